//! Events as an engine writes them, and what a reader makes of a stream.

use serde_json::Value;

/// The terminator of an OpenAI stream.
pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// One event with this payload.
pub(crate) fn event(json: &str) -> String {
    format!("data: {json}\n\n")
}

/// A chat chunk with this delta (JSON) and finish reason (JSON).
pub(crate) fn delta(delta: &str, finish: &str) -> String {
    event(&format!(
        r#"{{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{{"index":0,"delta":{delta},"finish_reason":{finish}}}]}}"#
    ))
}

/// The first chunk: a role and no text.
pub(crate) fn role() -> String {
    delta(r#"{"role":"assistant","content":""}"#, "null")
}

/// A chunk with text, which must need no escapes.
pub(crate) fn content(text: &str) -> String {
    delta(&format!(r#"{{"content":"{text}"}}"#), "null")
}

/// The chunk that ends the only choice.
pub(crate) fn finish() -> String {
    delta("{}", r#""stop""#)
}

/// The usage-only chunk.
pub(crate) fn usage(prompt: u32, completion: u32) -> String {
    let total = prompt + completion;
    event(&format!(
        r#"{{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{total}}}}}"#
    ))
}

/// An error event in vLLM's shape.
pub(crate) fn error(message: &str, kind: &str, code: u16) -> String {
    event(&format!(r#"{{"error":{{"message":"{message}","type":"{kind}","param":null,"code":{code}}}}}"#))
}

/// Data payloads of a stream: LF, CRLF or CR, several data lines joined, a last event without a blank line included.
pub(crate) fn payloads(body: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(body).replace("\r\n", "\n").replace('\r', "\n");
    let mut all = Vec::new();
    let mut lines: Vec<&str> = Vec::new();
    for line in text.split('\n').chain([""]) {
        if let Some(data) = line.strip_prefix("data:") {
            lines.push(data.strip_prefix(' ').unwrap_or(data));
        } else if line.is_empty() && !lines.is_empty() {
            all.push(lines.join("\n"));
            lines.clear();
        }
    }
    all
}

fn objects(body: &[u8]) -> Vec<Value> {
    payloads(body).iter().filter_map(|payload| serde_json::from_str(payload).ok()).collect()
}

/// The text that a chat client would show.
pub(crate) fn text(body: &[u8]) -> String {
    let mut shown = String::new();
    for object in objects(body) {
        for choice in object["choices"].as_array().into_iter().flatten() {
            shown.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        }
    }
    shown
}

/// The first event that reports an error.
pub(crate) fn error_event(body: &[u8]) -> Option<Value> {
    objects(body)
        .into_iter()
        .find(|object| object.get("error").is_some_and(|error| !error.is_null()) || object["type"] == "error")
}

/// Every usage object with numbers, with the number of choices beside it.
pub(crate) fn usages(body: &[u8]) -> Vec<(Value, usize)> {
    objects(body)
        .into_iter()
        .filter(|object| object["usage"]["prompt_tokens"].is_u64())
        .map(|object| (object["usage"].clone(), object["choices"].as_array().map_or(0, Vec::len)))
        .collect()
}

/// A mark of a complete answer, which a cut stream must never carry.
pub(crate) fn looks_finished(body: &[u8]) -> Option<String> {
    if payloads(body).iter().any(|payload| payload == "[DONE]") {
        return Some("[DONE]".to_owned());
    }
    objects(body).iter().find_map(|object| {
        let reason = object["choices"][0]["finish_reason"].as_str()?;
        Some(format!("finish_reason {reason}"))
    })
}

#[test]
fn a_reader_joins_data_lines_whatever_ends_them() {
    let body = "event: x\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\n: note\r\rdata:[DONE]\n\n";

    assert_eq!(payloads(body.as_bytes()), ["{\"a\":\n1}", "[DONE]"]);
}

#[test]
fn a_cut_stream_is_told_from_a_finished_one() {
    let cut = [role(), content("a")].concat();
    let told = [cut.clone(), error("boom", "InternalServerError", 500)].concat();

    assert_eq!(looks_finished(cut.as_bytes()), None);
    assert!(error_event(cut.as_bytes()).is_none());
    assert!(error_event(told.as_bytes()).is_some());
    assert_eq!(text(told.as_bytes()), "a");
    assert!(looks_finished([cut, finish()].concat().as_bytes()).is_some());
}
