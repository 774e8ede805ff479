//! The answer when nobody can answer: the configured text as a complete answer of the endpoint, streamed or not.
//!
//! It ends as a real one would, with a finish reason and no usage: nothing was computed, and client libraries that wait
//! for the end of a stream must find it.

use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use serde_json::{Value, json};

use crate::types::Endpoint;

/// The answer; `None` on endpoints that generate nothing.
pub(super) fn answer(
    endpoint: Endpoint,
    stream: bool,
    usage: bool,
    model: &str,
    text: &str,
) -> Option<Response<Bytes>> {
    let words = Words { model, text, id: uuid::Uuid::now_v7().simple().to_string(), now: seconds() };
    let body = match (endpoint, stream) {
        (Endpoint::Chat, false) => words.chat().to_string(),
        (Endpoint::Chat, true) => words.chat_events(usage),
        (Endpoint::Completions, false) => words.completion().to_string(),
        (Endpoint::Completions, true) => words.completion_events(usage),
        (Endpoint::Responses, false) => words.response("completed").to_string(),
        (Endpoint::Responses, true) => words.response_events(),
        (Endpoint::Messages, false) => words.message().to_string(),
        (Endpoint::Messages, true) => words.message_events(),
        _ => return None,
    };
    let kind = if stream { "text/event-stream; charset=utf-8" } else { "application/json" };
    let mut response = Response::new(Bytes::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    Some(response)
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

struct Words<'a> {
    model: &'a str,
    text: &'a str,
    id: String,
    now: u64,
}

/// Events without names, as the OpenAI streams have them.
fn plain(events: &[Value]) -> String {
    let mut out: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    out.push_str("data: [DONE]\n\n");
    out
}

/// Events under the name that their `type` is.
fn named(events: &[Value]) -> String {
    let name = |event: &Value| event.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    events.iter().map(|event| format!("event: {}\ndata: {event}\n\n", name(event))).collect()
}

fn no_tokens() -> Value {
    json!({ "prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0 })
}

impl Words<'_> {
    fn chat(&self) -> Value {
        json!({
            "id": format!("chatcmpl-{}", self.id), "object": "chat.completion", "created": self.now, "model": self.model,
            "choices": [{
                "index": 0, "message": { "role": "assistant", "content": self.text }, "logprobs": null,
                "finish_reason": "stop",
            }],
            "usage": no_tokens(),
        })
    }

    fn chat_events(&self, usage: bool) -> String {
        let chunk = |choices: Value| {
            json!({
                "id": format!("chatcmpl-{}", self.id), "object": "chat.completion.chunk", "created": self.now,
                "model": self.model, "choices": choices,
            })
        };
        let step = |delta: Value, finish: Option<&str>| {
            chunk(json!([{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish }]))
        };
        let mut events = vec![
            step(json!({ "role": "assistant", "content": "" }), None),
            step(json!({ "content": self.text }), None),
            step(json!({}), Some("stop")),
        ];
        events.extend(usage.then(|| with_usage(chunk(json!([])))));
        plain(&events)
    }

    fn completion(&self) -> Value {
        with_usage(self.completion_with(&json!([self.choice(self.text, Some("stop"))])))
    }

    fn completion_with(&self, choices: &Value) -> Value {
        json!({
            "id": format!("cmpl-{}", self.id), "object": "text_completion", "created": self.now, "model": self.model,
            "choices": choices,
        })
    }

    #[expect(clippy::unused_self, reason = "reads as one of the words")]
    fn choice(&self, text: &str, finish: Option<&str>) -> Value {
        json!({ "index": 0, "text": text, "logprobs": null, "finish_reason": finish })
    }

    fn completion_events(&self, usage: bool) -> String {
        let mut events = vec![
            self.completion_with(&json!([self.choice(self.text, None)])),
            self.completion_with(&json!([self.choice("", Some("stop"))])),
        ];
        events.extend(usage.then(|| with_usage(self.completion_with(&json!([])))));
        plain(&events)
    }

    fn part(&self, text: &str) -> Value {
        json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
    }

    fn item(&self, status: &str, content: &Value) -> Value {
        json!({
            "type": "message", "id": format!("msg_{}", self.id), "status": status, "role": "assistant",
            "content": content,
        })
    }

    fn response(&self, status: &str) -> Value {
        let done = status == "completed";
        json!({
            "id": format!("resp_{}", self.id), "object": "response", "created_at": self.now, "model": self.model,
            "status": status, "error": null, "incomplete_details": null, "parallel_tool_calls": true, "tools": [],
            "tool_choice": "auto", "metadata": {},
            "output": if done { json!([self.item(status, &json!([self.part(self.text)]))]) } else { json!([]) },
            "usage": done.then(|| json!({
                "input_tokens": 0, "input_tokens_details": { "cached_tokens": 0 }, "output_tokens": 0,
                "output_tokens_details": { "reasoning_tokens": 0 }, "total_tokens": 0,
            })),
        })
    }

    fn response_events(&self) -> String {
        let id = format!("msg_{}", self.id);
        let at = json!({ "item_id": id, "output_index": 0, "content_index": 0 });
        let mut events = vec![
            json!({ "type": "response.created", "response": self.response("in_progress") }),
            json!({ "type": "response.in_progress", "response": self.response("in_progress") }),
            json!({ "type": "response.output_item.added", "output_index": 0, "item": self.item("in_progress", &json!([])) }),
            joined(json!({ "type": "response.content_part.added", "part": self.part("") }), &at),
            joined(json!({ "type": "response.output_text.delta", "delta": self.text, "logprobs": [] }), &at),
            joined(json!({ "type": "response.output_text.done", "text": self.text, "logprobs": [] }), &at),
            joined(json!({ "type": "response.content_part.done", "part": self.part(self.text) }), &at),
            json!({
                "type": "response.output_item.done", "output_index": 0,
                "item": self.item("completed", &json!([self.part(self.text)])),
            }),
            json!({ "type": "response.completed", "response": self.response("completed") }),
        ];
        for (number, event) in events.iter_mut().enumerate() {
            *event = joined(event.take(), &json!({ "sequence_number": number }));
        }
        named(&events)
    }

    fn message_with(&self, content: &Value, stop: Option<&str>) -> Value {
        json!({
            "id": format!("msg_{}", self.id), "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": stop, "stop_sequence": null,
            "usage": { "input_tokens": 0, "output_tokens": 0 },
        })
    }

    fn message(&self) -> Value {
        self.message_with(&json!([{ "type": "text", "text": self.text }]), Some("end_turn"))
    }

    fn message_events(&self) -> String {
        named(&[
            json!({ "type": "message_start", "message": self.message_with(&json!([]), None) }),
            json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
            json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": self.text } }),
            json!({ "type": "content_block_stop", "index": 0 }),
            json!({
                "type": "message_delta", "delta": { "stop_reason": "end_turn", "stop_sequence": null },
                "usage": { "output_tokens": 0 },
            }),
            json!({ "type": "message_stop" }),
        ])
    }
}

fn with_usage(chunk: Value) -> Value {
    joined(chunk, &json!({ "usage": no_tokens() }))
}

/// The members of both objects.
fn joined(mut object: Value, more: &Value) -> Value {
    if let (Some(object), Some(more)) = (object.as_object_mut(), more.as_object()) {
        object.extend(more.clone());
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::{
        event::{self, Meaning},
        sse::{EventSink, Frames, Scanner},
    };

    #[derive(Default)]
    struct Seen(Vec<Meaning>);

    impl EventSink for Seen {
        fn event(&mut self, meaning: &Meaning, _: &[u8]) {
            self.0.push(*meaning);
        }
    }

    #[test]
    fn every_endpoints_answer_is_complete_by_the_gateways_own_reading() {
        for endpoint in [Endpoint::Chat, Endpoint::Completions, Endpoint::Responses, Endpoint::Messages] {
            let whole = answer(endpoint, false, false, "m", "so \"sorry\"\n").unwrap();
            let meaning = event::read(whole.body());
            assert!(!meaning.error && !meaning.malformed && meaning.usage.is_some(), "{endpoint:?}");
            let object: Value = serde_json::from_slice(whole.body()).unwrap();
            assert_eq!(object["model"], "m");
            assert!(object.to_string().contains(r#"so \"sorry\"\n"#));

            let stream = answer(endpoint, true, true, "m", "sorry").unwrap();
            let (mut seen, mut frames) = (Seen::default(), Frames::new());
            Scanner::new(false).push(stream.body(), &mut seen, &mut frames);
            assert!(seen.0.iter().any(|event| event.output), "{endpoint:?} has output");
            assert!(seen.0.iter().any(|event| event.finished), "{endpoint:?} finishes");
            assert!(seen.0.iter().all(|event| !event.error && !event.malformed), "{endpoint:?}");
            let openai = matches!(endpoint, Endpoint::Chat | Endpoint::Completions);
            assert_eq!(seen.0.last().unwrap().done, openai, "{endpoint:?} ends as its dialect does");
            assert_eq!(seen.0.iter().filter(|event| event.usage_only).count(), usize::from(openai));
        }
        assert!(answer(Endpoint::Embeddings, false, false, "m", "x").is_none());
    }
}
