//! The admin port: metrics, health, replicas.

use std::{fmt::Debug, sync::Arc};

use axum::{Router, http::StatusCode, routing::get};
use serde_json::Value;

/// What the admin port shows.
pub trait AdminView: Send + Sync + Debug {
    /// The metrics page.
    fn metrics(&self) -> String;
    /// Whether requests can be served.
    fn ready(&self) -> bool;
    /// One row a replica and model.
    fn replicas(&self) -> Value;
    /// One row a model.
    fn models(&self) -> Value;
}

/// The admin port's URLs.
pub fn router(view: Arc<dyn AdminView>) -> Router {
    let (a, b, c) = (view.clone(), view.clone(), view);
    Router::new()
        .route("/metrics", get(move || async move { a.metrics() }))
        .route("/healthz", get(|| async { "ok" }))
        .route(
            "/readyz",
            get(move || async move { if b.ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE } }),
        )
        .route("/replicas", get(move || async move { c.replicas().to_string() }))
}
