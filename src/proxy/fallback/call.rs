//! Asks the hosted models in their order, and judges what each says before any of it goes to the client.

use std::{sync::Arc, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header, response::Parts};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::{
    Fallback, Target,
    outbound::{self, contents},
    target::Trial,
};
use crate::{
    config::FallbackOn,
    dialect::{event, restore::Restore, scan},
    error,
    proxy::{
        forward::{ForwardLimits, Outgoing},
        headers,
        hold::{self, Held, TapStart, read_error, retry_after, status_of},
        isolate::Mask,
        pool::Pool,
        report::Report,
        tap::{self, Observer, Tap, TapParts},
    },
    telemetry::{FallbackReason, Skip},
    types::Outcome,
    upstream::{
        body::UpstreamBody,
        hosted::{HostedBody, HostedClient, Trust},
    },
};

/// Largest answer that is kept to be judged.
const ANSWER_CAP: usize = 32 << 20;

/// Clients of one worker, by whom they trust.
#[derive(Debug, Clone, Default)]
pub struct HostedClients(pub(super) Vec<(Trust, HostedClient)>);

impl HostedClients {
    fn of(&self, target: &Target) -> Option<&HostedClient> {
        let trust = target.trust();
        self.0.iter().find(|(known, _)| *known == trust).map(|(_, client)| client)
    }
}

/// No target answered.
#[derive(Debug)]
pub struct Missed {
    /// The request goes on.
    pub report: Report,
    /// Why the last target was passed over.
    pub skip: Option<Skip>,
}

/// One request on its way to the hosted models of a pool.
#[derive(Debug)]
pub struct Hosted<'a> {
    /// The hosted models.
    pub fallback: &'a Fallback,
    /// The pool that cannot take it.
    pub pool: &'a Arc<Pool>,
    /// The worker's clients.
    pub clients: &'a HostedClients,
    /// Limits.
    pub limits: ForwardLimits,
    /// The conversation spilled before: this is no new spill.
    pub stays: bool,
}

/// How one target took it.
enum Said {
    /// This goes to the client.
    Relay(Box<Response<Body>>),
    /// Nothing: the next target is asked.
    Next(Box<Report>, Skip),
}

/// What every target is asked.
struct Question<'a> {
    out: &'a Outgoing,
    body: &'a [u8],
}

/// An error of a target.
struct Refusal {
    status: StatusCode,
    after: Option<Duration>,
    text: Bytes,
}

impl Hosted<'_> {
    /// Asks the targets that are there for `why`, in order.
    ///
    /// # Errors
    /// The report comes back when none answered.
    pub async fn run(
        &self,
        why: FallbackOn,
        out: &Outgoing,
        mut report: Report,
    ) -> Result<Response<Body>, Box<Missed>> {
        let endpoint = report.endpoint();
        let for_this = |target: &&Arc<Target>| {
            target.plan.on.contains(&why) && target.plan.endpoints.iter().any(|has| has.endpoint() == endpoint)
        };
        let targets: Vec<&Arc<Target>> = self.fallback.targets.iter().filter(for_this).collect();
        let mut skip = None;
        if !out.wish.allowed || targets.is_empty() {
            return Err(Box::new(Missed { report, skip }));
        }
        let body: Bytes = out.body.concat().into();
        let Ok(fields) = scan(&body) else { return Err(Box::new(Missed { report, skip })) };
        let kinds = contents(&body, &fields);
        let question = Question { out, body: &body };
        let mut asks = 0;
        for target in targets {
            let cannot = if kinds.iter().any(|kind| !target.plan.content.contains(kind)) {
                Some(Skip::Content)
            } else {
                let context = target.plan.context.unwrap_or(u64::MAX);
                (out.asked.prompt.saturating_add(out.asked.output) > context).then_some(Skip::Context)
            };
            let said = match cannot {
                Some(reason) => Said::Next(Box::new(report), reason),
                None => self.ask(target, &question, report).await,
            };
            if asked_it(&said) {
                asks += 1;
                if asks == 1 {
                    self.pool.metrics().fallback(reason(why));
                }
            }
            match said {
                Said::Relay(answer) => {
                    if why == FallbackOn::Saturated && !self.stays {
                        self.fallback.spilled(&out.wish, Instant::now());
                    }
                    return Ok(*answer);
                }
                Said::Next(back, reason) => {
                    target.metrics().skipped(reason);
                    report = *back;
                    skip = Some(reason);
                }
            }
        }
        Err(Box::new(Missed { report, skip }))
    }
}

/// Whether a target was sent the request.
const fn asked_it(said: &Said) -> bool {
    !matches!(said, Said::Next(_, Skip::Content | Skip::Context | Skip::Budget | Skip::Breaker))
}

const fn reason(why: FallbackOn) -> FallbackReason {
    match why {
        FallbackOn::Saturated => FallbackReason::Saturated,
        FallbackOn::Down => FallbackReason::Down,
    }
}

impl Hosted<'_> {
    /// Asks one target, if its budget and its breaker let it.
    async fn ask(&self, target: &Arc<Target>, question: &Question<'_>, mut report: Report) -> Said {
        let Question { out, body } = *question;
        let (trial, paid) = match target.admit(out.asked) {
            Ok(admitted) => admitted,
            Err(reason) => return Said::Next(Box::new(report), reason),
        };
        let request = outbound::request(&target.plan, report.endpoint(), &out.headers, body);
        let (Some((request, dropped)), Some(client)) = (request, self.clients.of(target)) else {
            paid.release();
            return Said::Next(Box::new(report), Skip::Failed);
        };
        target.metrics().dropped(dropped);
        let sent = Instant::now();
        report.dispatched_hosted(paid, sent);
        let call = Call { hosted: self, target, out, sent };
        let limit = sent + if out.stream { self.limits.tap.first_token } else { self.limits.tap.total };
        match timeout_at(limit, client.send(request)).await {
            Err(_) => call.next(trial, report, Skip::Timeout, None),
            Ok(Err(cause)) => {
                warn!(target = target.label(), error = error::chain(&cause), "a hosted model was not reached");
                if cause.is_connect() {
                    report.unpaid();
                }
                call.next(trial, report, Skip::Connect, None)
            }
            Ok(Ok(response)) if response.status().is_success() => call.accepted(trial, response, report).await,
            Ok(Ok(response)) => {
                let (head, body) = response.into_parts();
                let body = HostedBody::new(body, Restore::whole(&out.wish.model));
                let (text, _) = read_error(&mut UpstreamBody::Hosted(Box::new(body))).await;
                call.refused(trial, &Refusal { status: head.status, after: retry_after(&head.headers), text }, report)
            }
        }
    }
}

/// One request at one target, from its first word on.
struct Call<'a> {
    hosted: &'a Hosted<'a>,
    target: &'a Arc<Target>,
    out: &'a Outgoing,
    sent: Instant,
}

impl Call<'_> {
    /// The target failed: the next is asked.
    #[expect(clippy::unused_self, reason = "reads as what the call does")]
    fn next(&self, trial: Trial, report: Report, reason: Skip, after: Option<Duration>) -> Said {
        trial.failed(after);
        Said::Next(Box::new(report), reason)
    }

    /// An error, by its own status or inside a 200. What the target says of keys and accounts stays here.
    fn refused(&self, trial: Trial, refusal: &Refusal, mut report: Report) -> Said {
        let Refusal { status, after, text } = refusal;
        report.unpaid();
        let label = self.target.label();
        match status.as_u16() {
            429 => return self.next(trial, report, Skip::Limited, *after),
            401..=403 => {
                warn!(target = label, status = status.as_u16(), "a hosted model refuses its api_key");
                return self.next(trial, report, Skip::Key, None);
            }
            400 | 413 | 422 if status_of(text) != StatusCode::INTERNAL_SERVER_ERROR => {}
            _ => {
                warn!(target = label, status = status.as_u16(), "a hosted model failed");
                return self.next(trial, report, Skip::Failed, None);
            }
        }
        // The request is at fault: its author reads why.
        trial.succeeded();
        let text = String::from_utf8_lossy(text).replace(&self.target.plan.model, &self.out.wish.model);
        let mut answer = Response::new(Body::from(text));
        *answer.status_mut() = *status;
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.expose(answer.headers_mut());
        report.answered(status.as_u16());
        report.end(Outcome::UpstreamClientError);
        Said::Relay(Box::new(answer))
    }

    /// A head with a success status: relayed after its first event, or as a whole.
    async fn accepted(&self, trial: Trial, response: Response<reqwest::Body>, mut report: Report) -> Said {
        let (head, body) = response.into_parts();
        let name = &self.out.wish.model;
        if !headers::is_event_stream(&head.headers) {
            let body = UpstreamBody::Hosted(Box::new(HostedBody::new(body, Restore::whole(name))));
            return self.whole(trial, &head, body, report).await;
        }
        let body = UpstreamBody::Hosted(Box::new(HostedBody::new(body, Restore::events(name))));
        match hold::hold(body, self.out.hide_usage, self.sent, &self.hosted.limits, &mut report).await {
            Held::Release(start) => {
                trial.succeeded();
                self.relay(&head, *start, report)
            }
            Held::Error(text) => {
                let refusal = Refusal { status: status_of(&text), after: retry_after(&head.headers), text };
                self.refused(trial, &refusal, report)
            }
            Held::TimedOut => self.next(trial, report, Skip::Timeout, None),
            Held::Broke(cause) => {
                warn!(target = self.target.label(), error = error::chain(&*cause), "a hosted model broke off");
                self.next(trial, report, Skip::Connect, None)
            }
            Held::Empty => self.next(trial, report, Skip::Failed, None),
        }
    }

    /// An answer that is no stream: read whole, as its model name may stand at its end.
    async fn whole(&self, trial: Trial, head: &Parts, mut body: UpstreamBody, report: Report) -> Said {
        let limit = self.sent + self.hosted.limits.tap.total;
        let mut whole = Vec::new();
        let mut rest = None;
        loop {
            match timeout_at(limit, body.frame()).await {
                Err(_) => return self.next(trial, report, Skip::Timeout, None),
                Ok(Some(Err(_))) => return self.next(trial, report, Skip::Connect, None),
                Ok(None) => break,
                Ok(Some(Ok(frame))) => whole.extend_from_slice(&frame.into_data().unwrap_or_default()),
            }
            // Longer than any answer that can be judged: relayed as it comes.
            if whole.len() > ANSWER_CAP {
                rest = Some(body);
                break;
            }
        }
        let meaning = event::read(&whole);
        if rest.is_none() && meaning.error {
            let (status, after) = (status_of(&whole), retry_after(&head.headers));
            return self.refused(trial, &Refusal { status, after, text: whole.into() }, report);
        }
        if rest.is_none() && tap::nonsense(&meaning, &whole, report.endpoint()).is_some() {
            warn!(target = self.target.label(), "a hosted model's answer is no JSON object");
            return self.next(trial, report, Skip::Failed, None);
        }
        trial.succeeded();
        let start = TapStart { first: Some(whole.into()), ..TapStart::new(Observer::Json(Vec::new()), rest) };
        self.relay(head, start, report)
    }

    /// To the client: its own head, since the target's names accounts, limits and cookies.
    fn relay(&self, head: &Parts, start: TapStart, mut report: Report) -> Said {
        report.answered(head.status.as_u16());
        let parts = TapParts {
            upstream: start.upstream,
            ready: start.ready,
            first: start.first,
            observer: start.observer,
            charge: None,
            limits: self.hosted.limits.tap,
            streaming: self.out.stream,
            mask: self.out.mask.then(Mask::default),
            sent: self.sent,
        };
        let mut answer = Response::new(Body::new(Tap::new(parts, report)));
        *answer.status_mut() = head.status;
        for name in [header::CONTENT_TYPE, header::CACHE_CONTROL] {
            if let Some(value) = head.headers.get(&name) {
                answer.headers_mut().insert(name, value.clone());
            }
        }
        self.expose(answer.headers_mut());
        Said::Relay(Box::new(answer))
    }

    fn expose(&self, answer: &mut HeaderMap) {
        if self.out.expose {
            answer.insert(headers::ROUTE, HeaderValue::from_static("fallback"));
        }
    }
}
