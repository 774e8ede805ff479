//! Steps 3 and 4: what the request asks for, whether it may, and the splices that make the engine read the same.
//!
//! Every occurrence of a field is judged and rewritten, not only the last: whichever duplicate an engine takes, the
//! cap holds. A body that cannot be read is refused, never passed without limits.

pub mod caps;
pub mod context;

use bytes::Bytes;

use caps::occurrences;

use crate::{
    dialect::{
        scan::{self, Fields, Span},
        splice::Splices,
    },
    error::{ErrorKind, GatewayError, Stage},
    proxy::{auth::Tenant, pool::Pool},
};

/// Takes the earlier occurrences of a repeated field out, so that what an engine reads does not depend on its parser.
pub fn drop_duplicates(splices: &mut Splices, body: &[u8], fields: &Fields) {
    for value in fields.earlier() {
        // A later member follows, so there is a comma behind; a wanted key holds no quote, escaped or not.
        let before = body.get(..value.start).unwrap_or_default();
        let key_end = memchr::memrchr(b'"', before).unwrap_or_default();
        let key = memchr::memrchr(b'"', before.get(..key_end).unwrap_or_default());
        let comma = body.get(value.end..).and_then(|rest| memchr::memchr(b',', rest));
        if let (Some(start), Some(comma)) = (key, comma) {
            splices.replace(Span { start, end: value.end + comma + 1 }, Bytes::new());
        }
    }
}

/// Reads the fields of a body.
///
/// # Errors
/// `BadRequest` naming the byte at which the body stops being a JSON object.
pub fn fields(body: &[u8]) -> Result<Fields, GatewayError> {
    scan::scan(body).map_err(|error| {
        let message = format!("the request body is not a JSON object that an engine would read: {error}");
        GatewayError::new(ErrorKind::BadRequest, Stage::Scan, message)
    })
}

/// The requested model; `None` when the body names none.
///
/// # Errors
/// `BadRequest` when `model` is not a string.
pub fn model<'a>(body: &'a [u8], fields: &Fields) -> Result<Option<std::borrow::Cow<'a, str>>, GatewayError> {
    let Some(span) = fields.model else { return Ok(None) };
    if span.of(body) == b"null" {
        return Ok(None);
    }
    scan::string_value(body, span)
        .map(Some)
        .ok_or_else(|| GatewayError::new(ErrorKind::BadRequest, Stage::Scan, "model must be a string").param("model"))
}

/// Whether the key may use the model.
///
/// # Errors
/// `Forbidden`.
pub fn allowed(tenant: Option<&Tenant>, pool: &Pool) -> Result<(), GatewayError> {
    if tenant.is_none_or(|tenant| tenant.may_use(pool.name())) {
        return Ok(());
    }
    let message = format!("this key may not use the model `{}`; GET /v1/models lists those that it may", pool.name());
    Err(GatewayError::new(ErrorKind::Forbidden, Stage::Admit, message).param("model"))
}

/// Whether the engine will stream.
#[must_use]
pub fn wants_stream(body: &[u8], fields: &Fields) -> bool {
    fields.stream.is_some_and(|span| is_true(span.of(body)))
}

/// Events with text that are the prompt's own: a completion may repeat it in front of each answer.
#[must_use]
pub fn echoes(body: &[u8], fields: &Fields, output: &caps::Output<'_>) -> u64 {
    let start = body.iter().position(|byte| *byte == b'{').unwrap_or_default();
    let whole = Span { start, end: body.len() };
    let asked = fields.prompt.and_then(|_| scan::member(body, whole, b"echo"));
    if asked.is_some_and(|span| is_true(span.of(body))) { output.choices() } else { 0 }
}

/// What pydantic reads as true, the parser of both engines: `true`, 1, and some words in any case.
fn is_true(value: &[u8]) -> bool {
    match value {
        b"true" | b"1" | b"1.0" => true,
        [b'"', word @ .., b'"'] => {
            [&b"1"[..], b"true", b"t", b"yes", b"y", b"on"].iter().any(|truth| truth.eq_ignore_ascii_case(word))
        }
        _ => false,
    }
}

/// Rewrites the model name when the replicas know it by another.
pub fn rename(splices: &mut Splices, body: &[u8], fields: &Fields, upstream: &str) {
    let quoted = serde_json::Value::from(upstream).to_string();
    for span in occurrences(fields, "model", fields.model) {
        let same = scan::string_value(body, span).is_some_and(|name| name == upstream);
        if !same {
            splices.replace(span, Bytes::from(quoted.clone()));
        }
    }
}

/// Asks the engine for usage in a stream. Returns whether the usage chunk must be hidden from the client.
pub fn ask_for_usage(splices: &mut Splices, body: &[u8], fields: &Fields) -> bool {
    let Some(options) = fields.stream_options.filter(|span| span.of(body) != b"null") else {
        match fields.stream_options {
            Some(null) => splices.replace(null, &br#"{"include_usage":true}"#[..]),
            None => splices.add_member(fields, "stream_options", r#"{"include_usage":true}"#),
        }
        return true;
    };
    let continuous = scan::member(body, options, b"continuous_usage_stats");
    match fields.include_usage {
        Some(asked) if is_true(asked.of(body)) => false,
        // With it, asking for usage would put a running count on every chunk that the client sees.
        _ if continuous.is_some_and(|span| !matches!(span.of(body), b"false" | b"null")) => false,
        Some(asked) => {
            splices.replace(asked, &b"true"[..]);
            true
        }
        None => match options.of(body) {
            [b'{', inner @ .., b'}'] => {
                let comma = if inner.trim_ascii().is_empty() { "" } else { "," };
                splices.insert(options.start + 1, format!(r#""include_usage":true{comma}"#));
                true
            }
            // Not an object: the engine refuses it in its own words.
            _ => false,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(text: &'static str) -> (String, bool) {
        let body = Bytes::from_static(text.as_bytes());
        let fields = fields(&body).unwrap();
        let mut splices = Splices::new();
        let hide = ask_for_usage(&mut splices, &body, &fields);
        (joined(splices, &body), hide)
    }

    fn joined(splices: Splices, body: &Bytes) -> String {
        splices.apply(body).iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect()
    }

    #[test]
    fn usage_is_asked_for_and_hidden_unless_the_client_asked() {
        let cases = [
            (r#"{"a":1}"#, r#"{"a":1,"stream_options":{"include_usage":true}}"#, true),
            (r#"{"stream_options":null}"#, r#"{"stream_options":{"include_usage":true}}"#, true),
            (r#"{"stream_options":{}}"#, r#"{"stream_options":{"include_usage":true}}"#, true),
            (r#"{"stream_options":{"x":1}}"#, r#"{"stream_options":{"include_usage":true,"x":1}}"#, true),
            (
                r#"{"stream_options":{"include_usage":false,"x":1}}"#,
                r#"{"stream_options":{"include_usage":true,"x":1}}"#,
                true,
            ),
            (r#"{"stream_options":{"include_usage":true}}"#, r#"{"stream_options":{"include_usage":true}}"#, false),
            (r#"{"stream_options":7}"#, r#"{"stream_options":7}"#, false),
            (r#"{"stream_options":{"include_usage":"Yes"}}"#, r#"{"stream_options":{"include_usage":"Yes"}}"#, false),
            (
                r#"{"stream_options":{"continuous_usage_stats":true}}"#,
                r#"{"stream_options":{"continuous_usage_stats":true}}"#,
                false,
            ),
        ];
        for (text, want, hide) in cases {
            assert_eq!(usage(text), (want.to_owned(), hide), "{text}");
        }
    }

    #[test]
    fn of_a_repeated_field_the_engine_reads_the_last_only() {
        for (text, want) in [
            (r#"{"max_tokens":5,"max_tokens":9}"#, r#"{"max_tokens":9}"#),
            (r#"{"a":1, "model" : "x" , "n":2,"mod\u0065l":"y"}"#, r#"{"a":1,  "n":2,"mod\u0065l":"y"}"#),
            (r#"{"n":1,"n":2,"n":3,"stop":","}"#, r#"{"n":3,"stop":","}"#),
            (r#"{"messages":[{"content":"a,\"b"}],"messages":[]}"#, r#"{"messages":[]}"#),
        ] {
            let body = Bytes::copy_from_slice(text.as_bytes());
            let fields = fields(&body).unwrap();
            let mut splices = Splices::new();
            drop_duplicates(&mut splices, &body, &fields);
            assert_eq!(splices.apply(&body).concat(), want.as_bytes(), "{text}");
        }
    }
}
