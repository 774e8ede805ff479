//! One attempt at one replica, from its first answer byte to the body that is relayed.

use std::sync::Arc;

use axum::body::Body;
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use crate::{
    dialect::sse::Scanner,
    fleet::{FailureCause, InFlight, Replica},
    proxy::{
        forward::{Forward, Outgoing},
        headers,
        hold::{self, Held, TapStart, read_error, status_of},
        isolate::Mask,
        judge::Refusal,
        report::Report,
        tap::{Observer, Tap, TapParts},
    },
    types::Outcome,
    upstream::body::UpstreamBody,
};

/// One attempt at one replica, from its first answer byte on.
pub(super) struct Attempt<'a> {
    pub(super) forward: &'a Forward<'a>,
    pub(super) out: &'a Outgoing,
    pub(super) replica: &'a Arc<Replica>,
    pub(super) charge: InFlight,
    /// Blocks that the index noted as new here.
    pub(super) remembered: u32,
    pub(super) sent: Instant,
}

impl Attempt<'_> {
    /// A head with a status that is no success.
    pub(super) async fn refused(
        self,
        response: Response<Incoming>,
        report: Report,
    ) -> Result<Response<Body>, (Refusal, Report)> {
        let (mut head, body) = response.into_parts();
        let mut body = UpstreamBody::Replica(body);
        let (whole, rest) = read_error(&mut body).await;
        headers::to_client(&mut head.headers, true);
        match rest {
            None => Err((self.judge(head.status, head.headers, whole), report)),
            Some(ended) => {
                // Too long to be an engine's refusal: relayed as it comes.
                if head.status.is_server_error() {
                    self.replica.failed(FailureCause::Status5xx, Instant::now());
                }
                let upstream = (!ended).then_some(body);
                Ok(self.relay(
                    head,
                    TapStart { first: Some(whole), ..TapStart::new(Observer::Blind, upstream) },
                    report,
                ))
            }
        }
    }

    /// A head with a success status: relayed, for an event stream only after its first event.
    pub(super) async fn accepted(
        mut self,
        response: Response<Incoming>,
        mut report: Report,
    ) -> Result<Response<Body>, (Refusal, Report)> {
        let (mut head, body) = response.into_parts();
        let body = UpstreamBody::Replica(body);
        let encoded = head.headers.contains_key(header::CONTENT_ENCODING);
        let events = headers::is_event_stream(&head.headers);
        headers::to_client(&mut head.headers, events);
        if !events || encoded {
            return self.plain(head, body, report).await;
        }
        let held = hold::hold(body, self.out.hide_usage, self.sent, &self.forward.limits, &mut report).await;
        let refusal = match held {
            Held::Release(start) => {
                if report.has_output() {
                    self.charge.first_token(Instant::now());
                }
                return Ok(self.relay(head, *start, report));
            }
            Held::Error(payload) => {
                let status = status_of(&payload);
                head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                self.judge(status, head.headers, payload)
            }
            Held::TimedOut => self.timed_out(),
            Held::Broke(error) => self.broke_off(error),
            Held::Empty => self.nonsense("the replica's stream ended without an event"),
        };
        Err((refusal, report))
    }

    /// An answer that is no event stream, or one that cannot be read. A whole answer is held until its first bytes: a
    /// replica that breaks off before them can still be told of as an error.
    async fn plain(
        mut self,
        head: http::response::Parts,
        mut body: UpstreamBody,
        report: Report,
    ) -> Result<Response<Body>, (Refusal, Report)> {
        self.charge.prefilled();
        let observer = if head.headers.contains_key(header::CONTENT_ENCODING) {
            Observer::Blind
        } else if self.out.stream && !headers::is_json(&head.headers) {
            Observer::Events(Box::new(Scanner::new(false)))
        } else {
            Observer::Json(Vec::new())
        };
        if body.is_end_stream()
            && let Some(refusal) = self.whole_nonsense(&head, &observer, None, report.endpoint())
        {
            return Err((refusal, report));
        }
        if self.out.stream {
            return Ok(self.relay(head, TapStart::new(observer, Some(body)), report));
        }
        let limit = self.sent + self.forward.limits.tap.total;
        match timeout_at(limit, body.frame()).await {
            Err(_) => Err((self.timed_out(), report)),
            Ok(Some(Err(error))) => Err((self.broke_off(error), report)),
            Ok(None) => Ok(self.relay(head, TapStart::new(observer, None), report)),
            Ok(Some(Ok(frame))) => {
                let first = frame.into_data().ok();
                if body.is_end_stream()
                    && let Some(refusal) = self.whole_nonsense(&head, &observer, first.as_ref(), report.endpoint())
                {
                    return Err((refusal, report));
                }
                Ok(self.relay(head, TapStart { first, ..TapStart::new(observer, Some(body)) }, report))
            }
        }
    }

    fn relay(self, mut head: http::response::Parts, start: TapStart, mut report: Report) -> Response<Body> {
        if self.out.expose {
            expose(&mut head.headers, self.replica, report.predicted_cached());
        }
        report.answered(head.status.as_u16());
        let parts = TapParts {
            upstream: start.upstream,
            ready: start.ready,
            first: start.first,
            observer: start.observer,
            charge: Some(self.charge),
            limits: self.forward.limits.tap,
            streaming: self.out.stream,
            mask: self.out.mask.then(Mask::default),
            sent: self.sent,
        };
        if !head.status.is_success() {
            let client = head.status.is_client_error();
            report.end(if client { Outcome::UpstreamClientError } else { Outcome::UpstreamError });
        }
        Response::from_parts(head, Body::new(Tap::new(parts, report)))
    }
}

/// Tells the client of the routing.
fn expose(answer: &mut HeaderMap, replica: &Replica, cached: u64) {
    if let Ok(label) = HeaderValue::from_str(replica.label()) {
        answer.insert(headers::REPLICA, label);
    }
    answer.insert(headers::ROUTE, HeaderValue::from_static("replica"));
    answer.insert(headers::CACHED, HeaderValue::from(cached));
}
