//! Why a request could not be served: a value with kind, fault, retry and stage, turned into HTTP in one place.
//!
//! No message carries secrets, prompt text or upstream addresses; the cause goes to the log only.

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use crate::types::Outcome;

/// A boxed cause.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error and its causes on one line, each part once.
#[must_use]
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let part = cause.to_string();
        if !text.ends_with(&part) {
            text = format!("{text}: {part}");
        }
        next = cause.source();
    }
    text
}

/// The step of the request path in which it happened; the `stage` of the error log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Routing of the URL, limits on the head.
    Accept,
    /// Key to tenant.
    Auth,
    /// Reading the body.
    Read,
    /// Finding the fields that matter.
    Scan,
    /// Caps, rates, queue.
    Admit,
    /// Choosing a replica.
    Place,
    /// Sending, and the wait for the first event.
    Forward,
    /// Relaying the body.
    Tap,
}

impl Stage {
    /// Name in logs.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Auth => "auth",
            Self::Read => "read",
            Self::Scan => "scan",
            Self::Admit => "admit",
            Self::Place => "place",
            Self::Forward => "forward",
            Self::Tap => "tap",
        }
    }
}

/// Who must act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request is wrong.
    Client,
    /// The gateway is wrong or full.
    Gateway,
    /// A replica failed.
    Replica,
}

/// Closed list of what can go wrong; each has one status, one API type and code, one outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The body is not what it must be. 400
    BadRequest,
    /// No or a wrong key. 401
    Unauthorized,
    /// The key may not do this. 403
    Forbidden,
    /// No such path. 404
    NoRoute,
    /// No such model. 404
    NoModel,
    /// Wrong method. 405
    Method,
    /// The body did not arrive in time. 408
    BodyTimeout,
    /// Body over the limit. 413
    TooLarge,
    /// Output or prompt over a cap. 400
    OverCap,
    /// Prompt, or prompt plus output, beyond the model's context. 400
    OverContext,
    /// The client left while its body was read. 499, never sent
    ClientGone,
    /// Body memory or connection limit reached. 503
    Overloaded,
    /// No replica is up. 503
    NoReplica,
    /// Every usable replica is full. 503
    Saturated,
    /// So is the queue. 503
    QueueFull,
    /// The wait in the queue was too long. 503
    QueueTimeout,
    /// So is the queue, with this tenant's own requests. 429
    OverShare,
    /// Above a rate of the key. 429
    RateLimited,
    /// Connection refused or reset, or closed without an answer. 502
    ReplicaReset,
    /// Broken HTTP from a replica. 502
    ReplicaProtocol,
    /// A replica was silent for too long. 504
    ReplicaTimeout,
    /// A bug. 500
    Internal,
}

impl ErrorKind {
    /// HTTP status, OpenAI error type, machine-readable code.
    #[must_use]
    pub const fn answer(self) -> (StatusCode, &'static str, &'static str) {
        const INVALID: &str = "invalid_request_error";
        match self {
            Self::BadRequest => (StatusCode::BAD_REQUEST, INVALID, "invalid_body"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, INVALID, "invalid_api_key"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "permission_error", "not_allowed"),
            Self::NoRoute => (StatusCode::NOT_FOUND, INVALID, "unknown_url"),
            Self::NoModel => (StatusCode::NOT_FOUND, INVALID, "model_not_found"),
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, INVALID, "method_not_allowed"),
            Self::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, INVALID, "body_timeout"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, INVALID, "body_too_large"),
            Self::OverCap => (StatusCode::BAD_REQUEST, INVALID, "token_cap_exceeded"),
            Self::OverContext => (StatusCode::BAD_REQUEST, INVALID, "context_length_exceeded"),
            Self::ClientGone => (StatusCode::BAD_REQUEST, INVALID, "client_closed_request"),
            Self::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded_error", "gateway_overloaded"),
            Self::NoReplica => (StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", "no_replica"),
            Self::Saturated => (StatusCode::SERVICE_UNAVAILABLE, "overloaded_error", "pool_saturated"),
            Self::QueueFull => (StatusCode::SERVICE_UNAVAILABLE, "overloaded_error", "queue_full"),
            Self::QueueTimeout => (StatusCode::SERVICE_UNAVAILABLE, "overloaded_error", "queue_timeout"),
            Self::RateLimited => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "rate_limit_exceeded"),
            Self::OverShare => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "queue_share_exceeded"),
            Self::ReplicaReset => (StatusCode::BAD_GATEWAY, "upstream_error", "upstream_reset"),
            Self::ReplicaProtocol => (StatusCode::BAD_GATEWAY, "upstream_error", "upstream_protocol_error"),
            Self::ReplicaTimeout => (StatusCode::GATEWAY_TIMEOUT, "upstream_error", "upstream_timeout"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal_error", "internal_error"),
        }
    }

    /// Who must act.
    #[must_use]
    pub const fn fault(self) -> Fault {
        match self {
            Self::BadRequest
            | Self::Unauthorized
            | Self::Forbidden
            | Self::NoRoute
            | Self::NoModel
            | Self::Method
            | Self::BodyTimeout
            | Self::TooLarge
            | Self::OverCap
            | Self::OverContext
            | Self::ClientGone
            | Self::OverShare
            | Self::RateLimited => Fault::Client,
            Self::Overloaded
            | Self::Internal
            | Self::Saturated
            | Self::QueueFull
            | Self::QueueTimeout
            | Self::NoReplica => Fault::Gateway,
            Self::ReplicaReset | Self::ReplicaProtocol | Self::ReplicaTimeout => Fault::Replica,
        }
    }

    /// The outcome that a request ends in when this is its answer.
    #[must_use]
    pub const fn outcome(self) -> Outcome {
        match self {
            Self::ClientGone => Outcome::Cancelled,
            Self::Overloaded
            | Self::NoReplica
            | Self::Saturated
            | Self::QueueFull
            | Self::QueueTimeout
            | Self::OverShare
            | Self::RateLimited => Outcome::Rejected,
            Self::ReplicaReset => Outcome::UpstreamReset,
            Self::ReplicaProtocol => Outcome::UpstreamProtocolError,
            Self::ReplicaTimeout => Outcome::UpstreamTimeout,
            Self::Internal => Outcome::GatewayError,
            Self::BadRequest
            | Self::Unauthorized
            | Self::Forbidden
            | Self::NoRoute
            | Self::NoModel
            | Self::Method
            | Self::BodyTimeout
            | Self::TooLarge
            | Self::OverCap
            | Self::OverContext => Outcome::ClientError,
        }
    }
}

/// Whether another replica may be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The request may have run, or would fail anywhere.
    Never,
    /// The request did not run: another replica may have it.
    Elsewhere,
}

/// Why a request could not be served.
#[derive(Debug, thiserror::Error)]
pub struct GatewayError {
    /// What happened.
    pub kind: ErrorKind,
    /// Whether another replica may be asked.
    pub retry: Retry,
    /// In which step.
    pub stage: Stage,
    /// What the client reads. Never secrets, prompt text or upstream addresses.
    pub message: String,
    /// The request field that is wrong, if one is.
    pub param: Option<&'static str>,
    /// When to come back.
    pub retry_after: Option<Duration>,
    /// What the log reads.
    #[source]
    pub cause: Option<BoxError>,
}

impl fmt::Display for GatewayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.stage.label(), self.message)
    }
}

impl GatewayError {
    /// An error that no other replica can cure.
    #[must_use]
    pub fn new(kind: ErrorKind, stage: Stage, message: impl Into<String>) -> Self {
        Self { kind, retry: Retry::Never, stage, message: message.into(), param: None, retry_after: None, cause: None }
    }

    /// Names the request field that is wrong.
    #[must_use]
    pub fn param(mut self, param: &'static str) -> Self {
        self.param = Some(param);
        self
    }

    /// Allows another replica.
    #[must_use]
    pub fn elsewhere(mut self) -> Self {
        self.retry = Retry::Elsewhere;
        self
    }

    /// Says when to come back.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Keeps the cause for the log.
    #[must_use]
    pub fn cause(mut self, cause: impl Into<BoxError>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// The OpenAI error object as JSON text.
    #[must_use]
    pub fn body(&self) -> Bytes {
        let (_, kind, code) = self.kind.answer();
        let object = serde_json::json!({
            "error": { "message": self.message, "type": kind, "param": self.param, "code": code }
        });
        Bytes::from(object.to_string())
    }

    /// The answer to the client.
    #[must_use]
    pub fn response(&self) -> Response<Bytes> {
        let mut response = Response::new(self.body());
        *response.status_mut() = self.kind.answer().0;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(after) = self.retry_after {
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        if self.kind == ErrorKind::Unauthorized {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_answers_in_openai_shape_and_names_the_field() {
        let error = GatewayError::new(ErrorKind::OverCap, Stage::Admit, "max_tokens is 9; the cap is 4")
            .param("max_tokens")
            .retry_after(Duration::from_millis(1500));

        let response = error.response();

        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        assert_eq!(response.headers()[header::RETRY_AFTER], "2");
        let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(body["error"]["param"], "max_tokens");
        assert_eq!(body["error"]["code"], "token_cap_exceeded");
        assert_eq!(body["error"]["type"], "invalid_request_error");
    }
}
