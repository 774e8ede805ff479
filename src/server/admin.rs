//! The admin port: `/metrics`, `/healthz`, `/readyz`, `/replicas` and a page at `/`.
//!
//! Read only, and never on the data port. `/healthz` says that the process lives and is 200 as long as it answers;
//! `/readyz` says whether requests would be served. `/replicas` holds replicas and models: the page needs both of the
//! same moment. Source: the design's interface, "Endpoints".

use std::{fmt::Debug, sync::Arc};

use axum::{Router, body::Body, extract::State, http::Uri, routing::get};
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use crate::telemetry::METRICS_CONTENT_TYPE;

/// What the admin port may know of the gateway. Every call is cheap enough for one a second.
pub trait AdminView: Send + Sync + Debug {
    /// The `/metrics` page.
    fn metrics(&self) -> String;
    /// Whether requests would be served now.
    fn ready(&self) -> bool;
    /// A list of objects, one a replica and model. The page reads `model` and `replica` (the label values of their
    /// metrics), `engine`, `up`, `usable`, `ejected`, `in_flight`, `waiting` and `kv_usage`; what is unknown is null.
    fn replicas(&self) -> Value;
    /// A list of objects, one a model. The page reads `model` (the label value of its metrics) and `policy`.
    fn models(&self) -> Value;
}

/// Routes of the admin port.
pub fn router(view: Arc<dyn AdminView>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || text("text/plain; charset=utf-8", "ok\n")))
        .route("/readyz", get(readyz))
        .route("/replicas", get(replicas))
        .fallback(async |uri: Uri| {
            error(StatusCode::NOT_FOUND, "unknown_url", &format!("no such path: {}", uri.path()))
        })
        .method_not_allowed_fallback(async || {
            error(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "the admin port is read only: use GET")
        })
        .with_state(view)
}

async fn metrics(State(view): State<Arc<dyn AdminView>>) -> Response<Body> {
    text(METRICS_CONTENT_TYPE, view.metrics())
}

async fn readyz(State(view): State<Arc<dyn AdminView>>) -> Response<Body> {
    let ready = view.ready();
    json_answer(if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, &json!({ "ready": ready }))
}

async fn replicas(State(view): State<Arc<dyn AdminView>>) -> Response<Body> {
    json_answer(StatusCode::OK, &json!({ "replicas": view.replicas(), "models": view.models() }))
}

/// The page, whose script and style run only with the nonce of this answer.
async fn page() -> Response<Body> {
    const PAGE: &str = include_str!("admin.html");
    let nonce = format!("{:032x}", rand::random::<u128>());
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let mut response = text("text/html; charset=utf-8", PAGE.replace("NONCE", &nonce));
    // Letters, digits and punctuation only: always a header value.
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response.headers_mut().insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

fn error(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    let kind = "invalid_request_error";
    json_answer(status, &json!({ "error": { "message": message, "type": kind, "param": null, "code": code } }))
}

fn json_answer(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = text("application/json", value.to_string());
    *response.status_mut() = status;
    response
}

/// 200 with a body that nobody keeps and no browser guesses the type of.
fn text(content_type: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    let headers: [(HeaderName, &'static str); 3] = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests;
