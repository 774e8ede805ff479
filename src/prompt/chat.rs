//! A request's conversation as its engine hands it to the chat template.
//!
//! The engines differ: vLLM joins the text parts of a content with a newline, SGLang with a space, and SGLang adds
//! `defer_loading` to each tool. Both parse the arguments of tool calls. Images and audio become tokens that only the
//! engine can count: such a conversation is counted without them, and is told apart.
//! Source: reference on real engines, vLLM 0.32.0 and SGLang 0.5.23.

use minijinja::{Value, value::ValueKind};

use super::template::ContentFormat;
use crate::{
    dialect::{
        Fields, Span,
        scan::{bool_value, member},
    },
    types::{Endpoint, EngineKind},
};

/// What marks the end of the last message while a rendering that continues it is made.
const CONTINUE: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// The variables of the template, and what the rendering stands for.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) variables: Vec<(String, Value)>,
    /// Whether the engine will read just this: false with media, and where the engine translates first.
    pub(super) exact: bool,
    continues: bool,
}

impl Conversation {
    /// Reads a request; `None` when it has no list of messages.
    pub(super) fn read(
        body: &[u8],
        fields: &Fields,
        endpoint: Endpoint,
        engine: EngineKind,
        format: ContentFormat,
    ) -> Option<Self> {
        let whole = Span { start: body.iter().position(|byte| *byte == b'{')?, end: body.len() };
        let get = |key: &[u8]| member(body, whole, key);
        let flag = |key: &[u8], other| get(key).and_then(|span| bool_value(body, span)).unwrap_or(other);
        let (system, list) = match endpoint {
            Endpoint::Responses => (fields.instructions, fields.input?),
            Endpoint::Messages => (fields.system, fields.messages?),
            _ => (None, fields.messages?),
        };
        let mut reader =
            Reader { engine, format, exact: !matches!(endpoint, Endpoint::Responses | Endpoint::Messages) };
        let continues = flag(b"continue_final_message", false);
        let mut messages = Vec::new();
        if let Some(system) = system.and_then(|span| value(body, span)) {
            messages.push(Value::from_pairs([("role", Value::from("system")), ("content", reader.content(&system))]));
        }
        let list = value(body, list)?;
        match list.kind() {
            ValueKind::String => messages.push(Value::from_pairs([("role", Value::from("user")), ("content", list)])),
            _ => messages.extend(list.try_iter().ok()?.map(|message| reader.message(&message))),
        }
        if continues && let Some(last) = messages.pop() {
            messages.push(with(&last, "content", continued(&last.get_attr("content").ok()?)));
        }
        let tools = fields.tools.and_then(|span| value(body, span)).and_then(|tools| reader.tools(&tools, endpoint));
        let mut variables = vec![
            ("messages".to_owned(), Value::from(messages)),
            ("tools".to_owned(), tools.unwrap_or_else(|| Value::from(()))),
            ("documents".to_owned(), get(b"documents").and_then(|span| value(body, span)).unwrap_or_default()),
            ("add_generation_prompt".to_owned(), flag(b"add_generation_prompt", true).into()),
        ];
        if let Some(arguments) = fields.chat_template_kwargs.and_then(|span| value(body, span))
            && let Ok(keys) = arguments.try_iter()
        {
            variables.extend(keys.map(|key| (key.to_string(), arguments.get_item(&key).unwrap_or_default())));
        }
        Some(Self { variables, exact: reader.exact, continues })
    }

    /// The rendering without what marked its end.
    pub(super) fn finish(&self, mut text: String) -> String {
        if self.continues
            && let Some(at) = text.rfind(CONTINUE.trim_end())
        {
            let kept = text.get(at..).is_some_and(|rest| rest.starts_with(CONTINUE));
            text.truncate(at);
            if !kept {
                // The template trims content, so the engine does.
                text.truncate(text.trim_end().len());
            }
        }
        text
    }
}

fn value(body: &[u8], span: Span) -> Option<Value> {
    serde_json::from_slice(span.of(body)).ok().filter(|value: &Value| !value.is_none())
}

/// A map with one member set.
fn with(map: &Value, key: &str, value: Value) -> Value {
    let Ok(keys) = map.try_iter() else { return map.clone() };
    let mut found = false;
    let mut members: Vec<(Value, Value)> = keys
        .map(|name| {
            let this = name.as_str() == Some(key);
            found |= this;
            let old = map.get_item(&name).unwrap_or_default();
            (name, if this { value.clone() } else { old })
        })
        .collect();
    if !found {
        members.push((key.into(), value));
    }
    Value::from_pairs(members)
}

/// A content with the mark behind its last text.
fn continued(content: &Value) -> Value {
    if let Some(text) = content.as_str() {
        return format!("{text}{CONTINUE}").into();
    }
    let Ok(parts) = content.try_iter() else { return content.clone() };
    let mut parts: Vec<Value> = parts.collect();
    if let Some(last) = parts.pop() {
        let text = last.get_attr("text").unwrap_or_default();
        parts.push(with(&last, "text", format!("{}{CONTINUE}", text.as_str().unwrap_or_default()).into()));
    }
    Value::from(parts)
}

struct Reader {
    engine: EngineKind,
    format: ContentFormat,
    exact: bool,
}

impl Reader {
    fn message(&mut self, message: &Value) -> Value {
        if message.kind() != ValueKind::Map {
            self.exact = false;
            return message.clone();
        }
        let content = message.get_attr("content").unwrap_or_default();
        let read = with(message, "content", self.content(&content));
        let Some(calls) = message.get_attr("tool_calls").ok().and_then(|calls| calls.try_iter().ok()) else {
            return read;
        };
        let calls: Vec<Value> = calls.map(|call| parsed(&call)).collect();
        if calls.is_empty() { read } else { with(&read, "tool_calls", Value::from(calls)) }
    }

    /// Texts as the template wants them.
    fn content(&mut self, content: &Value) -> Value {
        let texts: Vec<String> = match content.kind() {
            ValueKind::String => vec![content.as_str().unwrap_or_default().to_owned()],
            ValueKind::Seq => {
                content.try_iter().map(|parts| parts.filter_map(|part| self.part(&part)).collect()).unwrap_or_default()
            }
            _ => Vec::new(),
        };
        if self.format == ContentFormat::Parts {
            // SGLang leaves a plain text as it is.
            if self.engine == EngineKind::Sglang && content.kind() == ValueKind::String {
                return content.clone();
            }
            return texts
                .into_iter()
                .map(|text| Value::from_pairs([("type", Value::from("text")), ("text", Value::from(text))]))
                .collect();
        }
        texts.join(if self.engine == EngineKind::Sglang { " " } else { "\n" }).into()
    }

    fn part(&mut self, part: &Value) -> Option<String> {
        if let Some(text) = part.as_str() {
            return Some(text.to_owned());
        }
        let kind = part.get_attr("type").unwrap_or_default();
        let text = part.get_attr("text").unwrap_or_default();
        match (kind.as_str(), text.as_str()) {
            (Some("text" | "input_text" | "output_text"), Some(text)) => Some(text.to_owned()),
            _ => {
                self.exact = false;
                None
            }
        }
    }

    fn tools(&self, tools: &Value, endpoint: Endpoint) -> Option<Value> {
        let tools: Vec<Value> = tools.try_iter().ok()?.map(|tool| self.tool(&tool, endpoint)).collect();
        (!tools.is_empty()).then(|| Value::from(tools))
    }

    fn tool(&self, tool: &Value, endpoint: Endpoint) -> Value {
        if endpoint == Endpoint::Messages {
            let get = |key: &str| tool.get_attr(key).unwrap_or_default();
            let function = Value::from_pairs([
                ("name", get("name")),
                ("description", get("description")),
                ("parameters", get("input_schema")),
            ]);
            return Value::from_pairs([("type", Value::from("function")), ("function", function)]);
        }
        let missing = tool.get_attr("defer_loading").is_ok_and(|value| value.is_undefined());
        if self.engine == EngineKind::Sglang && missing && tool.kind() == ValueKind::Map {
            return with(tool, "defer_loading", Value::from(()));
        }
        tool.clone()
    }
}

/// A tool call with its arguments as a value and not as text.
fn parsed(call: &Value) -> Value {
    let Ok(function) = call.get_attr("function") else { return call.clone() };
    let Ok(arguments) = function.get_attr("arguments") else { return call.clone() };
    let value = match arguments.as_str() {
        Some("") => Some(Value::from_pairs(std::iter::empty::<(String, Value)>())),
        Some(text) => serde_json::from_str::<Value>(text).ok(),
        None => None,
    };
    value.map_or_else(|| call.clone(), |value| with(call, "function", with(&function, "arguments", value)))
}
