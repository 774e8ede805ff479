//! Finds the status in an error body or error event, whatever engine wrote it.
//!
//! A stream's error comes after its 200, so the event is the only place where the status is. The shapes differ: nested
//! (vLLM), flat (SGLang), both at once (SGLang's events), a word instead of a number (TGI, `/v1/messages`), a number as
//! text. An error without any status is a 500; what is no error at all is `None`.
//! Source: captures/{vllm,sglang}/errors; reference/engines.md sections 3, 6 and 7.

use serde_json::Value;

/// Longest body that is read as JSON; no engine writes longer errors.
const MAX_BODY: usize = 256 * 1024;

/// What an error says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorText {
    /// HTTP status that it stands for.
    pub status: Option<u16>,
    /// Its message.
    pub message: String,
}

/// The status that an error body or the data of an error event stands for; `None` when it is no error.
#[must_use]
pub fn status_of(body: &[u8]) -> Option<u16> {
    read(body).map(|error| error.status.unwrap_or(500))
}

/// What an error body or the data of an error event says; `None` when it is no error object.
#[must_use]
pub fn read(body: &[u8]) -> Option<ErrorText> {
    let body = event_data(body);
    if body.len() > MAX_BODY || !body.starts_with(b"{") {
        return None;
    }
    let value: Value = serde_json::from_slice(body).ok()?;
    let inner = error_in(&value)?;
    let status = status_in(inner).or_else(|| status_in(&value));
    let message = inner.as_str().or_else(|| text(inner, "message")).or_else(|| text(&value, "message"));
    Some(ErrorText { status, message: message.unwrap_or_default().to_owned() })
}

/// The value that describes the error.
fn error_in(value: &Value) -> Option<&Value> {
    if let Some(error) = value.get("error").filter(|error| is_error(error)) {
        return Some(error);
    }
    if let Some(error) = value.pointer("/response/error").filter(|error| is_error(error)) {
        return Some(error);
    }
    // A flat one says so: SGLang by `object`, the event streams of responses and messages by `type`.
    let says = |key| text(value, key) == Some("error");
    (says("object") || says("type")).then_some(value)
}

fn is_error(value: &Value) -> bool {
    match value {
        Value::Object(object) => !object.is_empty(),
        Value::String(text) => !text.is_empty(),
        _ => false,
    }
}

fn status_in(error: &Value) -> Option<u16> {
    ["code", "status", "status_code", "type", "error_type"]
        .iter()
        .find_map(|key| error.get(key).and_then(status_from))
        .or_else(|| error.as_str().and_then(status_of_word))
}

/// Status of a number, a number as text, or a word.
fn status_from(value: &Value) -> Option<u16> {
    let number = value.as_u64().or_else(|| value.as_str().and_then(|text| text.trim().parse().ok()));
    match number {
        Some(number) => u16::try_from(number).ok().filter(|status| (400..600).contains(status)),
        None => value.as_str().and_then(status_of_word),
    }
}

/// Status of an error's name, however it is spelt: `Service Unavailable`, `SERVICE_UNAVAILABLE`, `ServiceUnavailableError`.
fn status_of_word(word: &str) -> Option<u16> {
    let plain: String = word.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    let plain = plain.strip_suffix("error").unwrap_or(&plain);
    Some(match plain {
        "badrequest" | "invalidrequest" | "contextlengthexceeded" | "invalidprompt" => 400,
        "unauthorized" | "authentication" | "invalidapikey" => 401,
        "forbidden" | "permission" | "permissiondenied" => 403,
        "notfound" | "modelnotfound" => 404,
        "requesttoolarge" => 413,
        "validation" | "template" | "tool" | "missingtemplatevariable" | "unprocessableentity" => 422,
        "generation" => 424,
        "ratelimit" | "ratelimitexceeded" | "toomanyrequests" => 429,
        "overloaded" => 503,
        "internalserver" | "internal" | "server" | "api" | "incompletegeneration" => 500,
        "serviceunavailable" | "healthcheck" | "unhealthy" => 503,
        "notimplemented" => 501,
        "badgateway" => 502,
        "timeout" | "gatewaytimeout" => 504,
        _ => return None,
    })
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

/// The data of an event, when the body is one; else the body.
fn event_data(body: &[u8]) -> &[u8] {
    let body = body.trim_ascii();
    body.strip_prefix(b"data:").map_or(body, <[u8]>::trim_ascii_start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engines_shape_has_its_status() {
        for (body, status) in [
            (r#"{"error":{"message":"m","type":"InternalServerError","param":null,"code":500}}"#, 500),
            (r#"{"object":"error","message":"m","type":"503","param":null,"code":503}"#, 503),
            (r#"{"error":{"object":"error","message":"m","type":"SERVICE_UNAVAILABLE","code":503}}"#, 503),
            (r#"{"error":{"message":"m","code":"429"}}"#, 429),
            (r#"{"type":"error","error":{"type":"NotFoundError","message":"m"}}"#, 404),
            (r#"{"type":"error","error":{"type":"overloaded_error","message":"m"}}"#, 503),
            (r#"{"error":"Model is overloaded","error_type":"overloaded"}"#, 503),
            (r#"{"error":"bad","error_type":"validation"}"#, 422),
            (r#"{"error":"Request failed during generation","error_type":"generation"}"#, 424),
            (r#"{"error":"unhealthy","error_type":"healthcheck"}"#, 503),
            (r#"{"error":"Unauthorized"}"#, 401),
            (r#"{"error":{"message":"m","type":"invalid_request_error","code":"context_length_exceeded"}}"#, 400),
            (r#"{"error":{"message":"boom"}}"#, 500),
            (r#"{"error":"boom"}"#, 500),
            (r#"{"error":{"message":"m","code":40303}}"#, 500),
            (r#"{"type":"response.failed","response":{"error":{"code":"server_error","message":"m"}}}"#, 500),
            (r#"{"type":"error","code":"rate_limit_exceeded","message":"m"}"#, 429),
            ("data: {\"error\":{\"message\":\"m\",\"code\":503}}\n\n", 503),
        ] {
            assert_eq!(status_of(body.as_bytes()), Some(status), "{body}");
        }
    }

    #[test]
    fn what_is_no_error_has_none() {
        for body in [
            "",
            "[DONE]",
            "Internal Server Error",
            "{",
            "[]",
            r#"{"id":"x","object":"chat.completion.chunk","choices":[],"error":null}"#,
            r#"{"error":{}}"#,
            r#"{"choices":[{"delta":{"content":"{\"error\":{\"code\":500}}"}}]}"#,
            r#"{"type":"response.created","response":{"error":null,"status":"in_progress"}}"#,
            r#"{"code":503,"data":[]}"#,
        ] {
            assert_eq!(status_of(body.as_bytes()), None, "{body}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_answered(body in proptest::collection::vec(proptest::num::u8::ANY, 0..64)) {
            if let Some(status) = status_of(&body) {
                proptest::prop_assert!((400..600).contains(&status));
            }
        }
    }
}
