//! Which path answers what, key and content type checks.
//!
//! What a reader would get wrong: `/health` only says that the process lives. In vLLM it stays 200 while the engine
//! hangs; SGLang's runs a token through the engine, so it hangs with it.
//! Source: captures `get/`, `errors/content_type_text`, `replica2/auth-*`, `failures/`.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

use super::{
    Server,
    answer::{detail, empty, json, metrics, text},
    body::SimBody,
    config::Flavor,
    errors::ApiError,
    generate, info, metrics_sglang, metrics_vllm, tokens,
};
use crate::types::Endpoint;

/// How often SGLang's `/health` looks whether a frozen engine moves again.
const HEALTH_POLL: Duration = Duration::from_millis(100);

/// Answers one request.
pub(super) async fn handle(server: Arc<Server>, request: Request<Incoming>) -> Response<SimBody> {
    let (parts, body) = request.into_parts();
    let id = parts.headers.get("x-request-id").cloned();
    let mut response = dispatch(&server, &parts.method, parts.uri.path(), &parts.headers, body).await;
    if server.config.flavor == Flavor::Vllm && server.config.request_id_headers {
        let fresh = || HeaderValue::from_str(&server.fresh_long_id()).ok();
        if let Some(id) = id.or_else(fresh) {
            response.headers_mut().insert("x-request-id", id);
        }
    }
    response
}

async fn dispatch(
    server: &Arc<Server>,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    body: Incoming,
) -> Response<SimBody> {
    if !authorized(server, path, headers) {
        return json(401, "{\"error\":\"Unauthorized\"}");
    }
    let post = endpoint(path);
    let wanted = match (post.is_some() || other_post(server.config.flavor, path), method) {
        (true, &Method::POST) => return post_request(server, path, headers, body).await,
        (true, _) => "POST",
        (false, _) => "GET",
    };
    if wanted == "GET" && !known_get(server, path) {
        return detail(404, "Not Found");
    }
    if method.as_str() != wanted {
        let mut response = detail(405, "Method Not Allowed");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(wanted));
        return response;
    }
    get(server, path).await
}

/// Both engines leave health and metrics open; vLLM guards only what is below `/v1`.
fn authorized(server: &Server, path: &str, headers: &HeaderMap) -> bool {
    let Some(key) = &server.config.api_key else { return true };
    let open = match server.config.flavor {
        Flavor::Vllm => !path.starts_with("/v1/"),
        Flavor::Sglang => path.starts_with("/health") || matches!(path, "/ready" | "/metrics" | "/ping"),
    };
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    open || given.and_then(|given| given.strip_prefix("Bearer ")) == Some(key)
}

fn endpoint(path: &str) -> Option<Endpoint> {
    Endpoint::ALL.into_iter().find(|endpoint| endpoint.path() == path)
}

fn other_post(flavor: Flavor, path: &str) -> bool {
    path == "/v1/messages/count_tokens" || (flavor == Flavor::Sglang && path == "/flush_cache")
}

fn known_get(server: &Server, path: &str) -> bool {
    const BOTH: [&str; 4] = ["/health", "/metrics", "/v1/models", "/ping"];
    const VLLM: [&str; 2] = ["/version", "/load"];
    const SGLANG: [&str; 9] = [
        "/",
        "/health_generate",
        "/ready",
        "/server_info",
        "/get_server_info",
        "/model_info",
        "/get_model_info",
        "/v1/loads",
        "/flush_cache",
    ];
    BOTH.contains(&path)
        || match server.config.flavor {
            Flavor::Vllm => VLLM.contains(&path),
            Flavor::Sglang => SGLANG.contains(&path) || path.starts_with("/v1/models/"),
        }
}

async fn get(server: &Arc<Server>, path: &str) -> Response<SimBody> {
    match path {
        "/health" | "/health_generate" => health(server).await,
        "/ready" | "/ping" => empty(200),
        "/metrics" => metrics(match server.config.flavor {
            Flavor::Vllm => metrics_vllm::page(server),
            Flavor::Sglang => metrics_sglang::page(server),
        }),
        "/v1/models" => json(200, info::models(server)),
        "/version" => json(200, format!("{{\"version\":\"{}\"}}", info::VLLM_VERSION)),
        "/load" => {
            let stats = server.driver.stats();
            json(200, format!("{{\"server_load\":{}}}", stats.running + stats.waiting))
        }
        "/server_info" | "/get_server_info" => json(200, info::server_info(server)),
        "/model_info" | "/get_model_info" => json(200, info::model_info(server)),
        "/v1/loads" => json(200, info::loads(server)),
        "/flush_cache" => flush(server),
        "/" => json(200, "\"SGLang is running\""),
        one => info::one_model(server, one.strip_prefix("/v1/models/").unwrap_or_default()),
    }
}

async fn health(server: &Arc<Server>) -> Response<SimBody> {
    tokio::time::sleep(server.config.faults.health_delay).await;
    while server.config.flavor == Flavor::Sglang && server.driver.frozen() {
        tokio::time::sleep(HEALTH_POLL).await;
    }
    empty(if server.driver.dead() { 503 } else { 200 })
}

fn flush(server: &Server) -> Response<SimBody> {
    let words = "Please check backend logs for more details. (When there are running or waiting requests, the operation \
                 will not be performed.)\n";
    if server.driver.flush_cache() {
        text(200, format!("Cache flushed.\n{words}"))
    } else {
        text(400, format!("Flush cache failed.\n{words}"))
    }
}

async fn post_request(server: &Arc<Server>, path: &str, headers: &HeaderMap, body: Incoming) -> Response<SimBody> {
    if path == "/flush_cache" {
        return flush(server);
    }
    let flavor = server.config.flavor;
    let anthropic = path.starts_with("/v1/messages");
    let refusal = |error: ApiError| {
        if error.kind == "plain" {
            return text(500, "Internal Server Error");
        }
        json(error.status, error.body(flavor, anthropic))
    };
    if server.driver.dead() {
        return refusal(ApiError::dead());
    }
    match endpoint(path) {
        Some(Endpoint::Embeddings) if flavor == Flavor::Sglang => {
            return refusal(ApiError::bad(
                "This model does not appear to be an embedding model by default. Please add `--is-embedding` when \
                 launching the server or try another model.",
            ));
        }
        Some(Endpoint::Embeddings | Endpoint::Rerank | Endpoint::Score) => return detail(404, "Not Found"),
        _ => {}
    }
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => return empty(400),
    };
    let value = match read_json(flavor, headers, &body) {
        Ok(value) => value,
        Err(error) => return refusal(error),
    };
    let answered = match endpoint(path) {
        Some(Endpoint::Tokenize) => tokens::tokenize(server, &value),
        Some(Endpoint::Detokenize) => tokens::detokenize(server, &value),
        Some(endpoint) => generate::generate(server, endpoint, headers, &value).await,
        None => tokens::count(server, &value),
    };
    answered.unwrap_or_else(refusal)
}

fn read_json(flavor: Flavor, headers: &HeaderMap, body: &Bytes) -> Result<Value, ApiError> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed";
        return Err(ApiError { kind: "Bad Request", ..ApiError::bad(message) });
    }
    if body.is_empty() {
        let shown = if flavor == Flavor::Vllm { "'None'" } else { "None" };
        return Err(ApiError::schema(flavor, "missing", &[], "Field required", shown));
    }
    serde_json::from_slice(body).map_err(|error| bad_json(flavor, body, &error))
}

/// Python names the offset, serde line and column.
fn bad_json(flavor: Flavor, body: &Bytes, error: &serde_json::Error) -> ApiError {
    let before: usize =
        body.split(|byte| *byte == b'\n').take(error.line().saturating_sub(1)).map(|l| l.len() + 1).sum();
    let at = before + error.column();
    let (location, param) = match flavor {
        Flavor::Vllm => (format!("'body.{at}'"), Some(format!("body.{at}"))),
        Flavor::Sglang => (format!("('body', {at})"), None),
    };
    let message = format!(
        "1 validation error:\n  {{'type': 'json_invalid', 'loc': {location}, 'msg': 'JSON decode error', 'input': \
         '<dict of 0 items>', 'ctx': {{'error': 'Expecting value'}}}}"
    );
    ApiError { kind: "Bad Request", param, ..ApiError::bad(message) }
}
