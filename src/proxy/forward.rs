//! Step 7: ask a replica, and hold the head until its first event shows that the engine took the request.
//!
//! A 200 proves nothing: vLLM sends its head while the request still queues, SGLang reports a full queue as the first
//! event of a 200. Another replica is asked only when the request surely did not run: the connection was refused, or
//! the engine said that it is full or going away. "Read, then closed" may have run and is never sent twice.

use std::{sync::Arc, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Uri, header, uri::PathAndQuery};
use secrecy::{ExposeSecret, SecretString};
use smallvec::SmallVec;
use tokio::time::{Instant, timeout_at};

use crate::{
    config::FallbackOn,
    error::{ErrorKind, GatewayError, Stage},
    fleet::{InFlight, Replica},
    prompt::Chain,
    proxy::{
        attempt::Attempt,
        auth::Tenant,
        fallback::Wish,
        judge::{Answer, Refusal},
        poison::Suspects,
        pool::{Placed, Pool, Ready},
        report::Report,
        tap::TapLimits,
    },
    telemetry::{Cause, Skip},
    types::Asked,
    upstream::client::{Segments, UpstreamClient},
};

/// Most replicas that one request is sent to, refused connections included.
const MAX_ATTEMPTS: usize = 3;

/// Of these, most that read it: a refused connection costs a replica nothing, all else is work.
const MAX_READS: u32 = 2;

/// What is sent, and how the answer is treated.
#[derive(Debug)]
pub struct Outgoing {
    /// Whose request it is; `None` when the gateway is open.
    pub tenant: Option<Arc<Tenant>>,
    /// Headers without credentials.
    pub headers: HeaderMap,
    /// The client's query string.
    pub query: Option<String>,
    /// The spliced body.
    pub body: SmallVec<[Bytes; 8]>,
    /// The client asked for a stream.
    pub stream: bool,
    /// Take the usage chunk out of the stream.
    pub hide_usage: bool,
    /// Name the replica and the predicted cached tokens in the answer.
    pub expose: bool,
    /// The prompt's blocks.
    pub chain: Chain,
    /// Tokens that it may use.
    pub asked: Asked,
    /// Hide from the client what was cached.
    pub mask: bool,
    /// What the client wants of the fallback.
    pub wish: Wish,
}

/// Limits of one attempt.
#[derive(Debug, Clone, Copy)]
pub struct ForwardLimits {
    /// Longest hold of a stream's head.
    pub first_event_hold: Duration,
    /// Limits of the body.
    pub tap: TapLimits,
}

/// Why no replica answered, and what the client reads if nobody else does.
#[derive(Debug)]
pub struct Failed {
    /// A hosted model may be asked, for this reason; `None` when the request is at fault.
    pub(super) why: Option<FallbackOn>,
    /// What the client reads if nobody else answers.
    pub(super) answer: Answer,
}

impl Failed {
    /// No hosted model took it either, which the client reads where the reason is its request's own.
    #[must_use]
    pub(super) fn passed_over(self, why: FallbackOn, skip: Option<Skip>) -> Self {
        let reason = match skip {
            Some(Skip::Content) => "the hosted model does not read this kind of content",
            Some(Skip::Context) => "the request is too long for the hosted model",
            _ => return self,
        };
        let (kind, state) = match why {
            FallbackOn::Saturated => (ErrorKind::Saturated, "every replica of this model is full"),
            FallbackOn::Down => (ErrorKind::NoReplica, "no replica of this model answers"),
        };
        let error = GatewayError::new(kind, Stage::Forward, format!("{state}, and {reason}; try again later"));
        Self::new(Some(why), error.retry_after(Duration::from_secs(1)))
    }

    /// A failure in the gateway's own words.
    #[must_use]
    pub fn new(why: Option<FallbackOn>, error: GatewayError) -> Self {
        Self { why, answer: Answer::Error(error) }
    }
}

/// One request on its way to the replicas of a pool.
#[derive(Debug)]
pub struct Forward<'a> {
    /// The pool.
    pub pool: &'a Arc<Pool>,
    /// The worker's client.
    pub client: &'a UpstreamClient,
    /// Requests that break replicas.
    pub suspects: &'a Suspects,
    /// Limits.
    pub limits: ForwardLimits,
}

impl Forward<'_> {
    /// Asks the replicas in order until one takes the request.
    ///
    /// # Errors
    /// The last replica's failure when no other may be asked.
    pub async fn run(
        &self,
        out: &Outgoing,
        ready: Ready,
        mut report: Report,
    ) -> Result<Response<Body>, (Failed, Report)> {
        self.pool.retries().deposit(Instant::now());
        let mut last: Option<Refusal> = None;
        report.queued(ready.waited);
        let mut charge = Some(ready.charge);
        let (mut full, mut attempts, mut reads) = (false, 0, 0);
        let endpoint = report.endpoint();
        for placed in ready.placement {
            if reads >= MAX_READS || attempts >= MAX_ATTEMPTS {
                break;
            }
            // The first is charged already; another one that has filled up since is passed over.
            let now = Instant::now();
            let charge = charge.take().or_else(|| placed.member.replica.try_charge(placed.pick.uncached_tokens, now));
            let Some(charge) = charge else { continue };
            attempts += 1;
            if let Some(cause) = last.as_ref().and_then(|refusal| refusal.retry) {
                // A refused connection cost the replica nothing; any other retry is paid from the budget.
                if cause != Cause::Connect && !self.pool.retries().withdraw(Instant::now()) {
                    break;
                }
                self.pool.metrics().retry(cause);
            }
            let sent = Instant::now();
            match self.attempt(out, &placed, charge, report).await {
                Ok(relayed) => {
                    self.suspects.answered(endpoint, out);
                    return Ok(relayed);
                }
                Err((refusal, back)) => {
                    report = back;
                    if refusal.broke {
                        self.suspects.broke(endpoint, out, placed.member.replica.slot(), sent);
                    }
                    reads += u32::from(refusal.retry != Some(Cause::Connect));
                    full |= refusal.why == Some(FallbackOn::Saturated);
                    let again = refusal.retry.is_some();
                    last = Some(refusal);
                    if !again {
                        break;
                    }
                }
            }
        }
        let failed = match last {
            // One that lives and is full says more of the pool than one that is gone.
            Some(Refusal { why: Some(_), answer, .. }) if full => Failed { why: Some(FallbackOn::Saturated), answer },
            Some(Refusal { why, answer, .. }) => Failed { why, answer },
            None => Failed::new(Some(FallbackOn::Down), no_replica()),
        };
        Err((failed, report))
    }

    async fn attempt(
        &self,
        out: &Outgoing,
        placed: &Placed,
        charge: InFlight,
        mut report: Report,
    ) -> Result<Response<Body>, (Refusal, Report)> {
        let replica = &placed.member.replica;
        let remembered = self.pool.remember(&out.chain, replica);
        let request = match self.request(out, replica, &report) {
            Ok(request) => request,
            Err(error) => {
                return Err((Refusal { answer: Answer::Error(error), retry: None, why: None, broke: false }, report));
            }
        };
        let sent = Instant::now();
        report.dispatched(placed, sent);
        let attempt = Attempt { forward: self, out, replica, charge, remembered, sent };
        let limit = sent + if out.stream { self.limits.tap.first_token } else { self.limits.tap.total };
        match timeout_at(limit, self.client.send(request)).await {
            Err(_) => Err((attempt.timed_out(), report)),
            Ok(Err(error)) => Err((attempt.transport(error), report)),
            Ok(Ok(response)) if response.status().is_success() => attempt.accepted(response, report).await,
            Ok(Ok(response)) if response.status().as_u16() >= 400 => attempt.refused(response, report).await,
            Ok(Ok(response)) => Err((attempt.no_answer(response.status()), report)),
        }
    }

    fn request(&self, out: &Outgoing, replica: &Replica, report: &Report) -> Result<Request<Segments>, GatewayError> {
        let base = replica.base();
        let path = match &out.query {
            None => format!("{}{}", base.path, report.endpoint().path()),
            Some(query) => format!("{}{}?{query}", base.path, report.endpoint().path()),
        };
        let uri = PathAndQuery::try_from(path).map_err(http::Error::from).and_then(|path| {
            Uri::builder().scheme(base.scheme.clone()).authority(base.authority.clone()).path_and_query(path).build()
        });
        let uri = uri.map_err(|cause| {
            GatewayError::new(ErrorKind::BadRequest, Stage::Forward, "the query string is not valid").cause(cause)
        })?;
        let mut request = Request::new(Segments::new(out.body.clone()));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = uri;
        *request.headers_mut() = out.headers.clone();
        if let Some(credential) = replica.api_key().and_then(bearer) {
            request.headers_mut().insert(header::AUTHORIZATION, credential);
        }
        Ok(request)
    }
}

/// The credential of a replica as a header value that no log prints.
fn bearer(key: &SecretString) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose_secret())).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// The answer when there is nobody to ask.
#[must_use]
pub fn no_replica() -> GatewayError {
    GatewayError::new(ErrorKind::NoReplica, Stage::Place, "no replica of this model is up; try again later")
        .retry_after(Duration::from_secs(1))
}
