//! The data port's URLs: the proxied endpoints and the list of models. Nothing else is there.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    routing::{get, post},
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header};

use crate::{
    error::{ErrorKind, GatewayError, Stage},
    proxy::{Proxy, headers},
    telemetry::{NO_MODEL, Reason},
    types::Endpoint,
};

/// Fields of a request head that are counted at most.
const HEADER_FIELDS: usize = 100;

/// The data port of one worker.
pub(super) fn router(proxy: Proxy) -> Router {
    let proxy = Arc::new(proxy);
    let mut router = Router::new();
    for endpoint in Endpoint::ALL {
        let proxy = proxy.clone();
        let serve = move |request: Request<Body>| async move {
            match checked(&proxy, &request) {
                Some(refused) => tagged(&proxy, request.headers(), refused),
                None => proxy.serve(endpoint, request).await,
            }
        };
        router = router.route(endpoint.path(), post(serve));
    }
    let (other, wrong) = (proxy.clone(), proxy.clone());
    let models = move |request: Request<Body>| async move { list(&proxy, &request) };
    let unknown = move |request: Request<Body>| async move { tagged(&other, request.headers(), unknown(&request)) };
    let wrong_method =
        move |request: Request<Body>| async move { tagged(&wrong, request.headers(), wrong_method(&request)) };
    router.route("/v1/models", get(models)).fallback(unknown).method_not_allowed_fallback(wrong_method)
}

/// Refuses a head over the limits, or one that another server might read as another request.
fn checked(proxy: &Proxy, request: &Request<Body>) -> Option<Response<Body>> {
    if let Some(message) = ambiguous(request) {
        let mut response = answer(&GatewayError::new(ErrorKind::BadRequest, Stage::Accept, message));
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        return Some(response);
    }
    let limit = proxy.shared().server.limits.headers;
    let size: usize = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let too_large = size + request.uri().to_string().len() > limit || request.headers().len() > HEADER_FIELDS;
    too_large.then(|| {
        let message =
            format!("the request head is over {limit} bytes (server.limits.headers) or {HEADER_FIELDS} fields");
        let mut response = answer(&GatewayError::new(ErrorKind::BadRequest, Stage::Accept, message));
        *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        response
    })
}

/// What RFC 9112 forbids and hyper lets pass: no or several `Host` fields (section 3.2), a transfer coding other than
/// one `chunked` (section 6.1). HTTP/2 has neither field.
fn ambiguous(request: &Request<Body>) -> Option<&'static str> {
    let all = |name: &header::HeaderName| request.headers().get_all(name).iter().count();
    let hosts = all(&header::HOST);
    if hosts > 1 || (hosts == 0 && request.version() == Version::HTTP_11) {
        return Some("the request must have one Host header");
    }
    let coding = request.headers().get(header::TRANSFER_ENCODING)?;
    let plain = all(&header::TRANSFER_ENCODING) == 1 && coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    (!plain).then_some("Transfer-Encoding must be `chunked`, once")
}

/// A refusal with the request's id, counted: such a request has no model and no report.
fn tagged(proxy: &Proxy, sent: &HeaderMap, mut response: Response<Body>) -> Response<Body> {
    proxy.shared().telemetry.model(NO_MODEL).rejected(Reason::Body);
    response.headers_mut().insert(headers::REQUEST_ID, headers::request_id(&mut sent.clone()));
    response
}

fn list(proxy: &Proxy, request: &Request<Body>) -> Response<Body> {
    let listed = proxy.shared().keys.load().check(request.headers()).and_then(|tenant| {
        let may_use = |model: &str| tenant.as_ref().is_none_or(|tenant| tenant.may_use(model));
        proxy.shared().directory.load().models(&may_use)
    });
    let mut response = match listed {
        Ok(models) => {
            let mut response = Response::new(Body::from(models.to_string()));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(error) => answer(&error),
    };
    let mut sent = request.headers().clone();
    response.headers_mut().insert(headers::REQUEST_ID, headers::request_id(&mut sent));
    response
}

fn unknown(request: &Request<Body>) -> Response<Body> {
    let message = format!("unknown URL {} {}; GET /v1/models lists the models", request.method(), path(request));
    answer(&GatewayError::new(ErrorKind::NoRoute, Stage::Accept, message))
}

fn wrong_method(request: &Request<Body>) -> Response<Body> {
    let allowed = if request.uri().path() == "/v1/models" { "GET" } else { "POST" };
    let message = format!("{} is not allowed on {}; use {allowed}", request.method(), path(request));
    let mut response = answer(&GatewayError::new(ErrorKind::Method, Stage::Accept, message));
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    response
}

/// The start of the path, for a message.
fn path(request: &Request<Body>) -> String {
    request.uri().path().chars().take(100).collect()
}

fn answer(error: &GatewayError) -> Response<Body> {
    error.response().map(Body::from)
}
