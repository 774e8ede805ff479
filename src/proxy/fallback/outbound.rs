//! What a hosted model is sent: the request under its model name, without what only engines know, with its own key.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, header};
use secrecy::ExposeSecret;
use smallvec::SmallVec;

use crate::{
    config::{Content, FallbackPlan, TokenField},
    dialect::{
        json::Cursor,
        rewrite::{Edit, rewrite},
        scan::{self, Fields, Span},
    },
    proxy::headers,
    types::Endpoint,
};

/// Headers of the client that a third party gets; it gets no other.
const PASSED: [HeaderName; 8] = [
    header::CONTENT_TYPE,
    header::ACCEPT,
    headers::REQUEST_ID,
    headers::TRACEPARENT,
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("idempotency-key"),
    HeaderName::from_static("anthropic-version"),
    HeaderName::from_static("anthropic-beta"),
];

/// The request for a target, and how many fields were taken out. `None` when its parts make no HTTP request.
pub(super) fn request(
    plan: &FallbackPlan,
    endpoint: Endpoint,
    from: &HeaderMap,
    body: &[u8],
) -> Option<(Request<Bytes>, u64)> {
    let (body, dropped) = self::body(plan, endpoint, body)?;
    let mut request = Request::new(body);
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = plan.url.uri(endpoint.path()).ok()?;
    let headers = request.headers_mut();
    for name in &PASSED {
        if let Some(value) = from.get(name) {
            headers.insert(name, value.clone());
        }
    }
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(key) = &plan.api_key {
        let secret = |text: String| {
            let mut value = HeaderValue::from_str(&text).ok()?;
            value.set_sensitive(true);
            Some(value)
        };
        headers.insert(header::AUTHORIZATION, secret(format!("Bearer {}", key.expose_secret()))?);
        if endpoint == Endpoint::Messages {
            headers.insert(HeaderName::from_static("x-api-key"), secret(key.expose_secret().to_owned())?);
        }
    }
    Some((request, dropped))
}

fn body(plan: &FallbackPlan, endpoint: Endpoint, body: &[u8]) -> Option<(Bytes, u64)> {
    let limit = (endpoint == Endpoint::Chat).then(|| output_limit(plan.token_field, body)).flatten();
    let name = serde_json::Value::from(plan.model.as_str()).to_string();
    let mut dropped = 0;
    let edit = |key: &str, value: &[u8]| match key {
        "model" => Edit::Replace(name.clone()),
        "max_tokens" | "max_completion_tokens" if endpoint == Endpoint::Chat => Edit::Drop,
        "stream_options" if scan::member(value, whole(value), b"continuous_usage_stats").is_some() => {
            dropped += 1;
            Edit::Replace(r#"{"include_usage":true}"#.to_owned())
        }
        _ if plan.drop_fields.iter().any(|field| matches(field, key)) => {
            dropped += 1;
            Edit::Drop
        }
        _ => Edit::Keep,
    };
    let body = rewrite(body, edit, limit.as_slice())?;
    Some((body, dropped))
}

fn whole(value: &[u8]) -> Span {
    Span { start: 0, end: value.len() }
}

/// Whether a key is the field, or begins like one that ends in `*`.
fn matches(field: &str, key: &str) -> bool {
    match field.strip_suffix('*') {
        Some(start) => key.starts_with(start),
        None => key == field,
    }
}

/// The one output limit of a chat, under the name that the target knows.
fn output_limit(field: TokenField, body: &[u8]) -> Option<(&'static str, String)> {
    const OLD: &str = "max_tokens";
    const NEW: &str = "max_completion_tokens";
    let value = |key: &str| {
        let span = scan::member(body, top(body)?, key.as_bytes())?;
        let text = std::str::from_utf8(span.of(body)).ok()?;
        (text != "null").then(|| text.to_owned())
    };
    let (old, new) = (value(OLD), value(NEW));
    let name = match field {
        TokenField::AsSent if new.is_some() => NEW,
        TokenField::AsSent | TokenField::MaxTokens => OLD,
        TokenField::MaxCompletionTokens => NEW,
    };
    new.or(old).map(|value| (name, value))
}

/// The body's object.
fn top(body: &[u8]) -> Option<Span> {
    let start = body.iter().position(|byte| *byte == b'{')?;
    Some(Span { start, end: body.len() })
}

/// Kinds of content beside text in the messages of a request.
pub(super) fn contents(body: &[u8], fields: &Fields) -> SmallVec<[Content; 4]> {
    let mut found = SmallVec::new();
    for messages in [fields.messages, fields.input].into_iter().flatten() {
        for message in elements(body, messages) {
            let Some(content) = scan::member(body, message, b"content") else { continue };
            for part in elements(body, content) {
                let kind = scan::member(body, part, b"type").and_then(|span| scan::string_value(body, span));
                let Some(kind) = kind.as_deref().and_then(content_of) else { continue };
                if !found.contains(&kind) {
                    found.push(kind);
                }
            }
        }
    }
    found
}

fn content_of(kind: &str) -> Option<Content> {
    match kind {
        "image_url" | "input_image" | "image" | "image_pil" | "image_embeds" => Some(Content::Image),
        "input_audio" | "audio_url" | "audio" => Some(Content::Audio),
        "video_url" | "input_video" | "video" => Some(Content::Video),
        "file" | "input_file" | "document" => Some(Content::File),
        _ => None,
    }
}

/// The elements of an array; none of anything else.
pub(super) fn elements(body: &[u8], array: Span) -> Vec<Span> {
    let mut cursor = Cursor::new(body, array.start);
    let mut found = Vec::new();
    let mut more = cursor.open(b'[', b']').unwrap_or(false);
    while more {
        let Ok(value) = cursor.value() else { break };
        found.push(value);
        more = cursor.more(b']').unwrap_or(false);
    }
    found.retain(|span| span.end <= array.end);
    found
}

#[cfg(test)]
mod tests;
