//! What an attempt means that gave nothing to relay: for the client, for the replica, and for those asked next.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use tokio::time::Instant;

use crate::{
    config::FallbackOn,
    dialect::event,
    engine::{self, Failure},
    error::{BoxError, ErrorKind, GatewayError, Retry, Stage},
    fleet::FailureCause,
    proxy::{
        attempt::Attempt,
        hold::{retry_after, status_of},
        report::Report,
        tap::{self, Observer},
    },
    telemetry::Cause,
    types::{Endpoint, Outcome},
    upstream::client,
};

/// How long a replica that said it is full is left alone, when it names no time.
const SATURATED_FOR: Duration = Duration::from_millis(500);

/// Why an attempt gave nothing to relay.
#[derive(Debug)]
pub(super) struct Refusal {
    /// What the client reads when nobody else is asked.
    pub(super) answer: Answer,
    /// Another replica may be asked, for this reason.
    pub(super) retry: Option<Cause>,
    /// A hosted model may be asked, for this reason; `None` when the request is at fault.
    pub(super) why: Option<FallbackOn>,
    /// The replica broke the connection: the request may be what breaks it.
    pub(super) broke: bool,
}

/// What the client reads when nobody else is asked.
#[derive(Debug)]
pub(super) enum Answer {
    /// The gateway's own words.
    Error(GatewayError),
    /// The engine's words.
    Engine(Response<Bytes>, Outcome),
}

impl Answer {
    /// Gives it to the client.
    ///
    /// # Errors
    /// The gateway's own words, whose answer is made where all errors are answered.
    pub(super) fn give(self, mut report: Report) -> Result<Response<Body>, Box<(GatewayError, Report)>> {
        match self {
            Self::Error(error) => Err(Box::new((error, report))),
            Self::Engine(answer, outcome) => {
                report.answered(answer.status().as_u16());
                report.end(outcome);
                Ok(answer.map(Body::from))
            }
        }
    }
}

impl Refusal {
    /// A failure of the replica that may have run the request.
    fn down(error: GatewayError) -> Self {
        Self { answer: Answer::Error(error), retry: None, why: Some(FallbackOn::Down), broke: false }
    }
}

impl Attempt<'_> {
    /// The request never ran here: the replica does not hold its prompt.
    pub(super) fn forget(&self) {
        self.forward.pool.forget(&self.out.chain, self.remembered, self.replica);
    }

    pub(super) fn transport(&self, error: hyper_util::client::legacy::Error) -> Refusal {
        let (error, cause) = client::transport_error(error, Stage::Forward);
        self.replica.failed(cause, Instant::now());
        self.forget();
        let unsent = error.retry == Retry::Elsewhere;
        let retry = unsent.then_some(if cause == FailureCause::Connect { Cause::Connect } else { Cause::Reset });
        Refusal { retry, broke: cause == FailureCause::Reset && !unsent, ..Refusal::down(error) }
    }

    /// A redirect or a switch of protocols: not passed on, as it would name the replica.
    pub(super) fn no_answer(&self, status: StatusCode) -> Refusal {
        let message = format!("the replica answered {status}, which is no answer to this request");
        self.nonsense(&message)
    }

    /// The replica speaks nonsense. The request may have run: no other replica is asked.
    pub(super) fn nonsense(&self, message: &str) -> Refusal {
        self.replica.failed(FailureCause::Protocol, Instant::now());
        self.forget();
        let error = GatewayError::new(ErrorKind::ReplicaProtocol, Stage::Forward, message);
        Refusal::down(error)
    }

    pub(super) fn timed_out(&self) -> Refusal {
        self.replica.failed(FailureCause::Timeout, Instant::now());
        self.forget();
        let limit = if self.out.stream { "timeouts.first_token" } else { "timeouts.total" };
        let message = format!("the replica did not answer within {limit}");
        Refusal::down(GatewayError::new(ErrorKind::ReplicaTimeout, Stage::Forward, message))
    }

    /// Decides what a whole error answer means.
    pub(super) fn judge(&self, status: StatusCode, headers: HeaderMap, body: Bytes) -> Refusal {
        let now = Instant::now();
        let failure = engine::engine(self.replica.engine()).failure(status.as_u16(), &body);
        let mut answer = Response::new(body);
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        let (outcome, retry, why) = match failure {
            Failure::Client => (Outcome::UpstreamClientError, None, None),
            Failure::Saturated => {
                let after = retry_after(answer.headers()).unwrap_or(SATURATED_FOR);
                self.replica.saturated(now + after);
                (Outcome::Rejected, Some(Cause::Saturated), Some(FallbackOn::Saturated))
            }
            Failure::ShuttingDown => {
                self.replica.failed(FailureCause::Status5xx, now);
                (Outcome::Rejected, Some(Cause::ShuttingDown), Some(FallbackOn::Down))
            }
            Failure::Broken => {
                self.replica.failed(FailureCause::Status5xx, now);
                (Outcome::UpstreamError, None, Some(FallbackOn::Down))
            }
        };
        if retry.is_some() {
            self.forget();
            if !answer.headers().contains_key(header::RETRY_AFTER) {
                answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
        }
        Refusal { answer: Answer::Engine(answer, outcome), retry, why, broke: false }
    }

    /// A whole answer, none of which reached the client, that is no result: an error object is judged as if it had come
    /// with its own status, anything else is nonsense.
    pub(super) fn whole_nonsense(
        &self,
        head: &http::response::Parts,
        observer: &Observer,
        body: Option<&Bytes>,
        endpoint: Endpoint,
    ) -> Option<Refusal> {
        let Observer::Json(_) = observer else { return None };
        let body = body.cloned().unwrap_or_default();
        let meaning = event::read(&body);
        tap::nonsense(&meaning, &body, endpoint)?;
        Some(if meaning.error {
            self.judge(status_of(&body), head.headers.clone(), body)
        } else {
            self.nonsense("the replica's answer is no JSON object")
        })
    }

    /// The body broke before any of it reached the client. The engine had begun: no other replica is asked.
    pub(super) fn broke_off(&self, error: BoxError) -> Refusal {
        let (kind, cause) = client::classify_body(&*error);
        self.replica.failed(cause, Instant::now());
        self.forget();
        let message = "the replica closed the connection before its answer began";
        let error = GatewayError::new(kind, Stage::Forward, message).cause(error);
        Refusal { broke: cause == FailureCause::Reset, ..Refusal::down(error) }
    }
}
