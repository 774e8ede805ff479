//! Request bodies of the four endpoints.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::types::Endpoint;

/// Which endpoint is driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`
    Messages,
}

impl Api {
    /// Path below the base URL.
    #[must_use]
    pub const fn path(self) -> &'static str {
        self.endpoint().path()
    }

    /// Name in flags and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.endpoint().label()
    }

    const fn endpoint(self) -> Endpoint {
        match self {
            Self::Chat => Endpoint::Chat,
            Self::Completions => Endpoint::Completions,
            Self::Responses => Endpoint::Responses,
            Self::Messages => Endpoint::Messages,
        }
    }
}

/// What all bodies of a run share.
#[derive(Debug, Clone)]
pub struct Style {
    /// Endpoint.
    pub api: Api,
    /// Model name.
    pub model: String,
    /// Ask the engine to run to the full answer length.
    pub ignore_eos: bool,
    /// Ask for usage on every chunk.
    pub per_chunk_usage: bool,
    /// Members added to each body.
    pub extra: Map<String, Value>,
}

/// A streaming request for these messages and at most `output` tokens.
#[must_use]
pub fn body(style: &Style, messages: &[Value], output: usize) -> Bytes {
    let mut body = Map::new();
    body.insert("model".into(), json!(style.model));
    body.insert("stream".into(), json!(true));
    let mut options = json!({ "include_usage": true });
    if style.per_chunk_usage
        && let Some(options) = options.as_object_mut()
    {
        options.insert("continuous_usage_stats".into(), json!(true));
    }
    match style.api {
        Api::Chat => {
            body.insert("messages".into(), json!(messages));
            body.insert("max_tokens".into(), json!(output));
            body.insert("stream_options".into(), options);
        }
        Api::Completions => {
            body.insert("prompt".into(), json!(text(messages)));
            body.insert("max_tokens".into(), json!(output));
            body.insert("stream_options".into(), options);
        }
        Api::Responses => {
            body.insert("input".into(), json!(messages));
            body.insert("max_output_tokens".into(), json!(output));
        }
        Api::Messages => {
            let of_system = |message: &&Value| message.get("role").and_then(Value::as_str) == Some("system");
            let system: Vec<Value> = messages.iter().filter(of_system).cloned().collect();
            if !system.is_empty() {
                body.insert("system".into(), json!(text(&system)));
            }
            let rest: Vec<&Value> = messages.iter().filter(|message| !of_system(message)).collect();
            body.insert("messages".into(), json!(rest));
            body.insert("max_tokens".into(), json!(output));
        }
    }
    if style.ignore_eos {
        body.insert("ignore_eos".into(), json!(true));
    }
    body.extend(style.extra.clone());
    Bytes::from(Value::Object(body).to_string())
}

/// The contents one after the other.
fn text(messages: &[Value]) -> String {
    let contents = messages.iter().filter_map(|message| message.get("content").and_then(Value::as_str));
    contents.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(api: Api) -> Value {
        let style = Style { api, model: "m".into(), ignore_eos: true, per_chunk_usage: false, extra: Map::new() };
        let messages = [json!({"role":"system","content":"s"}), json!({"role":"user","content":"u"})];
        serde_json::from_slice(&body(&style, &messages, 9)).unwrap()
    }

    #[test]
    fn every_endpoint_gets_its_own_shape() {
        let chat = made(Api::Chat);
        assert_eq!((&chat["max_tokens"], &chat["stream_options"]["include_usage"]), (&json!(9), &json!(true)));
        assert_eq!(made(Api::Completions)["prompt"], "s\nu");
        let responses = made(Api::Responses);
        assert_eq!((&responses["max_output_tokens"], responses.get("stream_options")), (&json!(9), None));
        let messages = made(Api::Messages);
        assert_eq!((&messages["system"], messages["messages"].as_array().unwrap().len()), (&json!("s"), 1));
        assert!(messages["stream"].as_bool().unwrap() && messages["ignore_eos"].as_bool().unwrap());
    }
}
