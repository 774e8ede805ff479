//! The end of a stream whose replica ignores the output cap.
//!
//! Counted is what can be counted surely: an event with text is a token or more, and an engine's running usage is its
//! own word. Pieces of a tool call are not counted, since a parser may make several of one token. When the count passes
//! the cap the client gets a last event in its own dialect that says so, and the replica's connection is closed, which
//! tells the engine to stop.

use bytes::Bytes;
use memchr::memmem;
use serde_json::{Value, json};
use smallvec::SmallVec;

use crate::{dialect::event::Meaning, types::Endpoint};

/// Longest first event of a stream that is kept to name the answer in the last one.
const FIRST: usize = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Below,
    /// The cap was passed, and this ends the stream.
    Passed(Bytes),
    /// The end was taken.
    Ended,
}

/// Watches one stream.
#[derive(Debug)]
pub struct Cut {
    endpoint: Endpoint,
    /// Tokens over all choices.
    limit: u64,
    choices: u64,
    /// Events with text.
    texts: u64,
    /// The engine's running count.
    usage: u64,
    /// Choices that have ended by themselves.
    finished: SmallVec<[u64; 2]>,
    /// The whole answer has ended by itself.
    complete: bool,
    /// The first event of a dialect whose last event repeats it.
    first: Option<Value>,
    state: State,
}

impl Cut {
    /// For an answer of so many output tokens over so many choices.
    #[must_use]
    pub fn new(endpoint: Endpoint, limit: u64, choices: u64) -> Self {
        Self {
            endpoint,
            limit,
            choices,
            texts: 0,
            usage: 0,
            finished: SmallVec::new(),
            complete: false,
            first: None,
            state: State::Below,
        }
    }

    /// Tokens that an answer has beyond the cap.
    #[must_use]
    pub fn beyond(&self, output: u64) -> u64 {
        output.saturating_sub(self.limit)
    }

    /// An answer begins.
    pub fn begin(&mut self) {
        *self = Self::new(self.endpoint, self.limit, self.choices);
    }

    /// Whether this event is beyond the cap, and must not reach the client.
    pub fn exceeds(&mut self, meaning: &Meaning, payload: &[u8]) -> bool {
        if self.exceeded() {
            return true;
        }
        if self.first.is_none() && self.endpoint == Endpoint::Responses && payload.len() <= FIRST {
            self.first = serde_json::from_slice(payload).ok();
        }
        self.usage = self.usage.max(meaning.usage.and_then(|usage| usage.output).unwrap_or_default());
        self.texts += u64::from(meaning.output && !self.calls(payload));
        let over = self.texts.max(self.usage) > self.limit;
        // The usage behind the end, and an error, say what was and not what comes.
        if over && meaning.output && !self.complete && !meaning.error {
            self.state = State::Passed(self.end(payload));
            return true;
        }
        self.complete |= meaning.done || meaning.error;
        if meaning.finished {
            self.note_finished(payload);
        }
        false
    }

    /// Whether the next text is beyond the cap.
    #[must_use]
    pub fn reached(&self) -> bool {
        self.texts.max(self.usage) >= self.limit
    }

    /// Whether the cap was passed.
    #[must_use]
    pub fn exceeded(&self) -> bool {
        self.state != State::Below
    }

    /// The end of a stream that passed the cap, once, and the tokens that the client has.
    pub fn take(&mut self) -> Option<(Bytes, u64)> {
        let State::Passed(end) = &mut self.state else { return None };
        let end = std::mem::take(end);
        self.state = State::Ended;
        Some((end, self.limit))
    }

    /// Whether the event is a piece of a tool call.
    fn calls(&self, payload: &[u8]) -> bool {
        match self.endpoint {
            Endpoint::Messages => memmem::find(payload, b"\"input_json_delta\"").is_some(),
            Endpoint::Responses => memmem::find(payload, b"\"response.function_call").is_some(),
            _ => memmem::find_iter(payload, b"\"tool_calls\"").any(|at| {
                let rest = payload.get(at + b"\"tool_calls\"".len()..).unwrap_or_default().trim_ascii_start();
                rest.strip_prefix(b":").is_some_and(|rest| rest.trim_ascii_start().starts_with(b"["))
            }),
        }
    }

    fn note_finished(&mut self, payload: &[u8]) {
        let event: Value = serde_json::from_slice(payload).unwrap_or_default();
        let Some(choices) = event.get("choices").and_then(Value::as_array) else {
            self.complete = true;
            return;
        };
        let ended = choices.iter().filter(|choice| choice.get("finish_reason").is_some_and(|reason| !reason.is_null()));
        self.finished.extend(ended.filter_map(|choice| choice.get("index").and_then(Value::as_u64)));
        self.complete |= self.finished.len() as u64 >= self.choices;
    }

    /// What ends the stream in place of the event with this payload.
    fn end(&self, payload: &[u8]) -> Bytes {
        let event: Value = serde_json::from_slice(payload).unwrap_or_default();
        let text = match self.endpoint {
            Endpoint::Messages => self.messages(&event),
            Endpoint::Responses => self.responses(),
            _ => self.chunk(&event),
        };
        Bytes::from(text)
    }

    /// A last chunk in the shape of those before it, then `[DONE]`.
    fn chunk(&self, event: &Value) -> String {
        let mut members = Vec::new();
        for key in ["id", "object", "created", "model", "system_fingerprint"] {
            if let Some(value) = event.get(key) {
                members.push(format!("\"{key}\":{value}"));
            }
        }
        let body = if self.endpoint == Endpoint::Completions { r#""text":"""# } else { r#""delta":{}"# };
        let open = (0..self.choices).filter(|index| !self.finished.contains(index));
        let choices: Vec<String> = open
            .map(|index| format!(r#"{{"index":{index},{body},"logprobs":null,"finish_reason":"length"}}"#))
            .collect();
        members.push(format!("\"choices\":[{}]", choices.join(",")));
        format!("data: {{{}}}\n\ndata: [DONE]\n\n", members.join(","))
    }

    fn messages(&self, event: &Value) -> String {
        let block = event.get("index").and_then(Value::as_u64).unwrap_or_default();
        let events = [
            ("content_block_stop", json!({ "type": "content_block_stop", "index": block })),
            (
                "message_delta",
                json!({
                    "type": "message_delta",
                    "delta": { "stop_reason": "max_tokens", "stop_sequence": null },
                    "usage": { "output_tokens": self.limit },
                }),
            ),
            ("message_stop", json!({ "type": "message_stop" })),
        ];
        events.map(|(name, data)| format!("event: {name}\ndata: {data}\n\n")).concat()
    }

    fn responses(&self) -> String {
        let mut response = self.first.as_ref().and_then(|first| first.get("response")).cloned().unwrap_or(json!({}));
        if let Some(members) = response.as_object_mut() {
            members.insert("status".to_owned(), json!("incomplete"));
            members.insert("incomplete_details".to_owned(), json!({ "reason": "max_output_tokens" }));
        }
        let data = json!({ "type": "response.incomplete", "response": response });
        format!("event: response.incomplete\ndata: {data}\n\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::event;

    /// Feeds events; the number of those that pass, and the end.
    fn feed(cut: &mut Cut, events: &[&str]) -> (usize, Option<String>) {
        let passed = events.iter().filter(|text| !cut.exceeds(&event::read(text.as_bytes()), text.as_bytes())).count();
        (passed, cut.take().map(|(end, _)| String::from_utf8(end.to_vec()).unwrap()))
    }

    fn text(index: u64) -> String {
        format!(
            r#"{{"id":"c1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{{"index":{index},"delta":{{"content":"x"}},"finish_reason":null}}]}}"#
        )
    }

    #[test]
    fn the_event_beyond_the_cap_becomes_the_end() {
        let mut cut = Cut::new(Endpoint::Chat, 2, 1);
        let role = r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#;
        let (passed, end) = feed(&mut cut, &[role, &text(0), &text(0), &text(0), &text(0)]);

        assert_eq!(passed, 3);
        assert_eq!(
            end.unwrap(),
            "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":7,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n"
        );
    }

    #[test]
    fn an_answer_that_ends_by_itself_is_left_alone() {
        let finish = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}"#;
        let usage = r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":9}}"#;
        let mut cut = Cut::new(Endpoint::Chat, 2, 1);
        assert_eq!(feed(&mut cut, &[&text(0), &text(0), finish, usage, "[DONE]"]), (5, None));
        assert_eq!(cut.beyond(9), 7);
    }

    #[test]
    fn pieces_of_a_tool_call_are_no_tokens() {
        let call = r#"{"choices":[{"index":0,"delta":{"tool_calls" : [{"index":0,"function":{"arguments":"{"}}]}}]}"#;
        let none = r#"{"choices":[{"index":0,"delta":{"content":"x","tool_calls":null}}]}"#;
        assert_eq!(feed(&mut Cut::new(Endpoint::Chat, 1, 1), &[call; 9]), (9, None));
        assert_eq!(feed(&mut Cut::new(Endpoint::Chat, 1, 1), &[none; 9]).0, 1);
    }

    #[test]
    fn a_running_usage_counts_what_events_do_not_show() {
        let running = r#"{"choices":[{"index":0,"text":"xyz"}],"usage":{"prompt_tokens":1,"completion_tokens":3}}"#;
        let (passed, end) = feed(&mut Cut::new(Endpoint::Completions, 2, 1), &[running]);
        assert_eq!(passed, 0);
        assert!(end.unwrap().contains(r#"{"index":0,"text":"","logprobs":null,"finish_reason":"length"}"#));
    }

    #[test]
    fn of_several_choices_those_still_open_end() {
        let finish = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
        let (passed, end) = feed(&mut Cut::new(Endpoint::Chat, 2, 2), &[&text(0), finish, &text(1), &text(1)]);
        let end = end.unwrap();
        assert_eq!(passed, 3);
        assert!(end.contains(r#""index":1"#) && !end.contains(r#""index":0"#), "{end}");
    }

    #[test]
    fn other_dialects_end_in_their_own_words() {
        let delta = r#"{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"x"}}"#;
        let end = feed(&mut Cut::new(Endpoint::Messages, 1, 1), &[delta, delta]).1.unwrap();
        assert!(
            end.contains(r#""stop_reason":"max_tokens""#) && end.ends_with("data: {\"type\":\"message_stop\"}\n\n")
        );

        let created = r#"{"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}"#;
        let delta = r#"{"type":"response.output_text.delta","delta":"x"}"#;
        let end = feed(&mut Cut::new(Endpoint::Responses, 1, 1), &[created, delta, delta]).1.unwrap();
        assert!(end.contains("resp_1") && end.contains("max_output_tokens") && end.contains("\"incomplete\""), "{end}");
    }
}
