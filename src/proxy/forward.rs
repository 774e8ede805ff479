//! Step 7: ask a replica, and hold the head until its first event shows that the engine took the request.
//!
//! A 200 proves nothing: vLLM sends its head while the request still queues, SGLang reports a full queue as the first
//! event of a 200. Another replica is asked only when the request surely did not run: the connection was refused, or
//! the engine said that it is full or going away. "Read, then closed" may have run and is never sent twice.

use std::{sync::Arc, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header, uri::PathAndQuery};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use secrecy::{ExposeSecret, SecretString};
use smallvec::SmallVec;
use tokio::time::{Instant, timeout_at};

use crate::{
    dialect::{
        event::{self, Meaning},
        sse::{EventSink, Frames, Scanner},
    },
    engine::{self, Failure, error_code},
    error::{ErrorKind, GatewayError, Retry, Stage},
    fleet::{FailureCause, InFlight, Replica},
    prompt::Chain,
    proxy::{
        auth::Tenant,
        headers,
        pool::{Placed, Placement, Pool},
        report::{Meter, Report},
        tap::{self, Observer, Tap, TapLimits, TapParts},
    },
    telemetry::Cause,
    types::{Asked, Endpoint, Outcome},
    upstream::client::{self, Segments, UpstreamClient},
};

/// Most replicas that one request may reach.
const MAX_ATTEMPTS: usize = 3;

/// A started but incomplete first event is not held longer than this: a client waits for its bytes.
const PARTIAL_HOLD: Duration = Duration::from_millis(40);

/// Comments that are held before the first event at most, in bytes.
const HOLD_BYTES: usize = 64 << 10;

/// Largest error answer that is read to decide on a retry; a longer one is relayed.
const ERROR_CAP: usize = 64 << 10;

/// Longest wait for the body of an error answer.
const ERROR_WAIT: Duration = Duration::from_secs(10);

/// How long a replica that said it is full is left alone, when it names no time.
const SATURATED_FOR: Duration = Duration::from_millis(500);

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
}

/// Limits of one attempt.
#[derive(Debug, Clone, Copy)]
pub struct ForwardLimits {
    /// Longest hold of a stream's head.
    pub first_event_hold: Duration,
    /// Limits of the body.
    pub tap: TapLimits,
}

/// Why an attempt gave nothing to relay.
struct Refusal {
    answer: Answer,
    retry: Option<Cause>,
}

/// What the client reads when no other replica is asked.
enum Answer {
    Error(GatewayError),
    Engine(Response<Bytes>, Outcome),
}

/// One request on its way to the replicas of a pool.
#[derive(Debug)]
pub struct Forward<'a> {
    /// The pool.
    pub pool: &'a Arc<Pool>,
    /// The worker's client.
    pub client: &'a UpstreamClient,
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
        out: Outgoing,
        placement: Placement,
        mut report: Report,
    ) -> Result<Response<Body>, (GatewayError, Report)> {
        self.pool.retries().deposit(Instant::now());
        let mut last: Option<Refusal> = None;
        for placed in placement.into_iter().take(MAX_ATTEMPTS) {
            if let Some(cause) = last.as_ref().and_then(|refusal| refusal.retry) {
                // A refused connection cost the replica nothing; any other retry is paid from the budget.
                if cause != Cause::Connect && !self.pool.retries().withdraw(Instant::now()) {
                    break;
                }
                self.pool.metrics().retry(cause);
            }
            match self.attempt(&out, &placed, report).await {
                Ok(relayed) => return Ok(relayed),
                Err((refusal, back)) => {
                    report = back;
                    let again = refusal.retry.is_some();
                    last = Some(refusal);
                    if !again {
                        break;
                    }
                }
            }
        }
        match last.map(|refusal| refusal.answer) {
            Some(Answer::Error(error)) => Err((error, report)),
            Some(Answer::Engine(answer, outcome)) => {
                report.answered(answer.status().as_u16());
                report.end(outcome);
                Ok(answer.map(Body::from))
            }
            None => Err((no_replica(), report)),
        }
    }

    async fn attempt(
        &self,
        out: &Outgoing,
        placed: &Placed,
        mut report: Report,
    ) -> Result<Response<Body>, (Refusal, Report)> {
        let replica = &placed.member.replica;
        let charge = replica.charge(placed.pick.uncached_tokens);
        let remembered = self.pool.remember(&out.chain, replica);
        let request = match self.request(out, replica, &report) {
            Ok(request) => request,
            Err(error) => return Err((Refusal { answer: Answer::Error(error), retry: None }, report)),
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

/// One attempt at one replica, from its first answer byte on.
struct Attempt<'a> {
    forward: &'a Forward<'a>,
    out: &'a Outgoing,
    replica: &'a Arc<Replica>,
    charge: InFlight,
    /// Blocks that the index noted as new here.
    remembered: u32,
    sent: Instant,
}

impl Attempt<'_> {
    /// The request never ran here: the replica does not hold its prompt.
    fn forget(&self) {
        self.forward.pool.forget(&self.out.chain, self.remembered, self.replica);
    }

    fn transport(&self, error: hyper_util::client::legacy::Error) -> Refusal {
        let (error, cause) = client::transport_error(error, Stage::Forward);
        self.replica.failed(cause, Instant::now());
        self.forget();
        let retry = (error.retry == Retry::Elsewhere).then_some(Cause::Connect);
        Refusal { answer: Answer::Error(error), retry }
    }

    /// A redirect or a switch of protocols: not passed on, as it would name the replica.
    fn no_answer(&self, status: StatusCode) -> Refusal {
        let message = format!("the replica answered {status}, which is no answer to this request");
        self.nonsense(&message)
    }

    /// The replica speaks nonsense. The request may have run: no other replica is asked.
    fn nonsense(&self, message: &str) -> Refusal {
        self.replica.failed(FailureCause::Protocol, Instant::now());
        self.forget();
        let error = GatewayError::new(ErrorKind::ReplicaProtocol, Stage::Forward, message);
        Refusal { answer: Answer::Error(error), retry: None }
    }

    fn timed_out(&self) -> Refusal {
        self.replica.failed(FailureCause::Timeout, Instant::now());
        self.forget();
        let limit = if self.out.stream { "timeouts.first_token" } else { "timeouts.total" };
        let message = format!("the replica did not answer within {limit}");
        Refusal {
            answer: Answer::Error(GatewayError::new(ErrorKind::ReplicaTimeout, Stage::Forward, message)),
            retry: None,
        }
    }

    /// A head with a status that is no success.
    async fn refused(self, response: Response<Incoming>, report: Report) -> Result<Response<Body>, (Refusal, Report)> {
        let (mut head, mut body) = response.into_parts();
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

    /// Decides what a whole error answer means.
    fn judge(&self, status: StatusCode, headers: HeaderMap, body: Bytes) -> Refusal {
        let now = Instant::now();
        let failure = engine::engine(self.replica.engine()).failure(status.as_u16(), &body);
        let mut answer = Response::new(body);
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        let (outcome, retry) = match failure {
            Failure::Client => (Outcome::UpstreamClientError, None),
            Failure::Saturated => {
                let after = retry_after(answer.headers()).unwrap_or(SATURATED_FOR);
                self.replica.saturated(now + after);
                (Outcome::Rejected, Some(Cause::Saturated))
            }
            Failure::ShuttingDown => {
                self.replica.failed(FailureCause::Status5xx, now);
                (Outcome::UpstreamError, Some(Cause::ShuttingDown))
            }
            Failure::Broken => {
                self.replica.failed(FailureCause::Status5xx, now);
                (Outcome::UpstreamError, None)
            }
        };
        if retry.is_some() {
            self.forget();
            if !answer.headers().contains_key(header::RETRY_AFTER) {
                answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
        }
        Refusal { answer: Answer::Engine(answer, outcome), retry }
    }

    /// A head with a success status: relayed, for an event stream only after its first event.
    async fn accepted(
        mut self,
        response: Response<Incoming>,
        report: Report,
    ) -> Result<Response<Body>, (Refusal, Report)> {
        let (mut head, body) = response.into_parts();
        let encoded = head.headers.contains_key(header::CONTENT_ENCODING);
        let events = headers::is_event_stream(&head.headers);
        headers::to_client(&mut head.headers, events);
        if !events || encoded {
            return self.plain(head, body, report).await;
        }
        match self.hold(body, report).await {
            Held::Release(start, report) => Ok(self.relay(head, start, report)),
            Held::Error(payload, report) => {
                let status = status_of(&payload);
                head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
                Err((self.judge(status, head.headers, payload), report))
            }
            Held::Failed(refusal, report) => Err((refusal, report)),
        }
    }

    /// An answer that is no event stream, or one that cannot be read. A whole answer is held until its first bytes: a
    /// replica that breaks off before them can still be told of as an error.
    async fn plain(
        mut self,
        head: http::response::Parts,
        mut body: Incoming,
        report: Report,
    ) -> Result<Response<Body>, (Refusal, Report)> {
        self.charge.first_token();
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

    /// A whole answer, none of which reached the client, that is no result: an error object is judged as if it had come
    /// with its own status, anything else is nonsense.
    fn whole_nonsense(
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
    fn broke_off(&self, error: hyper::Error) -> Refusal {
        let (kind, cause) = client::classify_body(&error);
        self.replica.failed(cause, Instant::now());
        self.forget();
        let message = "the replica closed the connection before its answer began";
        let error = GatewayError::new(kind, Stage::Forward, message).cause(error);
        Refusal { answer: Answer::Error(error), retry: None }
    }

    /// Reads until the first event, the hold limit, or a first event that comes in pieces too slowly.
    async fn hold(&mut self, mut body: Incoming, mut report: Report) -> Held {
        let limits = &self.forward.limits;
        let mut scanner = Box::new(Scanner::new(self.out.hide_usage));
        let mut ready = Frames::new();
        let mut first = None;
        let mut release = self.sent + limits.first_event_hold;
        let first_token = self.sent + limits.tap.first_token;
        loop {
            let frame = match timeout_at(release.min(first_token), body.frame()).await {
                Err(_) if Instant::now() >= first_token => return Held::Failed(self.timed_out(), report),
                Err(_) => break,
                Ok(Some(Err(error))) => return Held::Failed(self.broke_off(error), report),
                Ok(None) if ready.is_empty() && !scanner.inside_event() => {
                    return Held::Failed(self.nonsense("the replica's stream ended without an event"), report);
                }
                Ok(None) => {
                    let start = TapStart { ready, ..TapStart::new(Observer::Events(scanner), None) };
                    return Held::Release(start, report);
                }
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(data) = frame.into_data() else { continue };
            let now = Instant::now();
            let mut sink = First { meter: report.meter(now), first: &mut first };
            let progress = scanner.push(&data, &mut sink, &mut ready);
            match &first {
                Some((meaning, payload)) if meaning.error => return Held::Error(payload.clone(), report),
                Some(_) => break,
                None if progress.engine => release = release.min(now + PARTIAL_HOLD),
                None if ready.iter().map(Bytes::len).sum::<usize>() > HOLD_BYTES => break,
                None => {}
            }
        }
        if report.has_output() {
            self.charge.first_token();
        }
        Held::Release(TapStart { ready, ..TapStart::new(Observer::Events(scanner), Some(body)) }, report)
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
            charge: self.charge,
            limits: self.forward.limits.tap,
            streaming: self.out.stream,
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

/// What a relayed body starts with.
struct TapStart {
    ready: Frames,
    first: Option<Bytes>,
    observer: Observer,
    upstream: Option<Incoming>,
}

impl TapStart {
    fn new(observer: Observer, upstream: Option<Incoming>) -> Self {
        Self { ready: Frames::new(), first: None, observer, upstream }
    }
}

enum Held {
    Release(TapStart, Report),
    Error(Bytes, Report),
    Failed(Refusal, Report),
}

/// Notes the first event with data, and lets the meter see all.
struct First<'a> {
    meter: Meter<'a>,
    first: &'a mut Option<(Meaning, Bytes)>,
}

impl EventSink for First<'_> {
    fn event(&mut self, meaning: &Meaning, payload: &[u8]) {
        if self.first.is_none() && !payload.trim_ascii().is_empty() {
            let kept = if meaning.error { Bytes::copy_from_slice(payload) } else { Bytes::new() };
            *self.first = Some((*meaning, kept));
        }
        self.meter.event(meaning, payload);
    }

    fn holds(&self) -> bool {
        self.meter.holds()
    }

    fn refuses(&self) -> bool {
        self.meter.refuses()
    }

    fn oversize(&mut self) {
        self.meter.oversize();
    }
}

/// The status that an error object speaks of, 500 if of none.
fn status_of(error: &[u8]) -> StatusCode {
    let code = error_code::status_of(error).filter(|code| (400..600).contains(code));
    code.and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Reads an error body up to the cap. The second value is `None` when it is whole, else whether it has ended.
async fn read_error(body: &mut Incoming) -> (Bytes, Option<bool>) {
    let mut whole = Vec::new();
    let deadline = Instant::now() + ERROR_WAIT;
    loop {
        match timeout_at(deadline, body.frame()).await {
            Ok(None) => return (whole.into(), None),
            Ok(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    whole.extend_from_slice(data);
                }
                if whole.len() > ERROR_CAP {
                    return (whole.into(), Some(false));
                }
            }
            // A broken error answer: what came of it is still the engine's word.
            Err(_) | Ok(Some(Err(_))) => return (whole.into(), None),
        }
    }
}

/// Seconds of a Retry-After header.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(60)))
}
