//! Heads of answers, as uvicorn writes them.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use super::body::SimBody;

fn answer(status: u16, kind: Option<&'static str>, body: SimBody) -> Response<SimBody> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::SERVER, HeaderValue::from_static("uvicorn"));
    if let Some(kind) = kind {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    headers.insert(header::VARY, HeaderValue::from_static("Origin"));
    response
}

/// JSON.
pub(super) fn json(status: u16, text: impl Into<Bytes>) -> Response<SimBody> {
    answer(status, Some("application/json"), SimBody::text(text))
}

/// Plain text.
pub(super) fn text(status: u16, text: impl Into<Bytes>) -> Response<SimBody> {
    answer(status, Some("text/plain; charset=utf-8"), SimBody::text(text))
}

/// A metrics page.
pub(super) fn metrics(text: String) -> Response<SimBody> {
    answer(200, Some("text/plain; version=0.0.4; charset=utf-8"), SimBody::text(text))
}

/// A status alone.
pub(super) fn empty(status: u16) -> Response<SimBody> {
    answer(status, None, SimBody::Whole(None))
}

/// Server-sent events.
pub(super) fn sse(body: SimBody) -> Response<SimBody> {
    answer(200, Some("text/event-stream; charset=utf-8"), body)
}

/// FastAPI's bare error.
pub(super) fn detail(status: u16, words: &str) -> Response<SimBody> {
    json(status, format!("{{\"detail\":\"{words}\"}}"))
}
