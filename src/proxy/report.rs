//! Step 9: what is known of one request, and the one place where it ends.
//!
//! A `Report` is made when the request arrives and ends when it is dropped, whatever happens: with the outcome that
//! somebody set, or as `cancelled` when nobody did, since only a client that leaves drops a request unfinished.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::HeaderValue;
use tokio::time::Instant;

use crate::{
    dialect::{
        event::{Meaning, Usage},
        sse::EventSink,
    },
    error::{self, ErrorKind, GatewayError},
    limits::Permit,
    proxy::{
        cut::Cut,
        fallback::Paid,
        pool::{Placed, Pool},
    },
    telemetry::{AccessRecord, NO_KEY, NO_MODEL, Objective, Reason, Route, Source, Telemetry, Waste},
    types::{Endpoint, Outcome},
};

/// What is known of one request so far.
#[derive(Debug)]
pub struct Report {
    telemetry: Arc<Telemetry>,
    endpoint: Endpoint,
    /// Last byte of the request so far; TTFT and the duration count from here.
    received: Instant,
    request_id: HeaderValue,
    traceparent: Option<HeaderValue>,
    key: Option<Arc<str>>,
    pool: Option<Arc<Pool>>,
    stream: bool,
    placed: Option<Placed>,
    attempts: u32,
    /// Where the last attempt went.
    route: Route,
    /// The hosted model that was asked last.
    target: Option<Box<str>>,
    /// What the hosted model is paid when the request ends.
    paid: Option<Paid>,
    predicted_cached: u64,
    prompt_bytes: u64,
    /// What an estimate of the prompt was made from.
    prompt_weight: u64,
    /// Ends a stream that goes on beyond its output cap.
    cut: Option<Box<Cut>>,
    usage: Usage,
    first_output: Option<Instant>,
    last_output: Option<Instant>,
    output_events: u64,
    finished: bool,
    done: bool,
    error_event: bool,
    status: u16,
    outcome: Option<Outcome>,
    error: Option<String>,
    /// Its place under the key's rates, and the prompt tokens that it was charged.
    permit: Option<(Permit, u64)>,
    /// Time in line.
    queued: Duration,
}

impl Report {
    /// A request that just arrived.
    #[must_use]
    pub fn new(telemetry: Arc<Telemetry>, endpoint: Endpoint, request_id: HeaderValue, now: Instant) -> Self {
        Self {
            telemetry,
            endpoint,
            received: now,
            request_id,
            traceparent: None,
            key: None,
            pool: None,
            stream: false,
            placed: None,
            attempts: 0,
            route: Route::Replica,
            target: None,
            paid: None,
            predicted_cached: 0,
            prompt_bytes: 0,
            prompt_weight: 0,
            cut: None,
            usage: Usage::default(),
            first_output: None,
            last_output: None,
            output_events: 0,
            finished: false,
            done: false,
            error_event: false,
            status: 0,
            outcome: None,
            error: None,
            permit: None,
            queued: Duration::ZERO,
        }
    }

    /// Endpoint of the request.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Id of the request.
    #[must_use]
    pub fn request_id(&self) -> &HeaderValue {
        &self.request_id
    }

    /// The trace that it belongs to.
    pub fn traced(&mut self, traceparent: Option<HeaderValue>) {
        self.traceparent = traceparent;
    }

    /// Whose key it came with.
    pub fn authenticated(&mut self, key: Arc<str>) {
        self.key = Some(key);
    }

    /// It runs under its key's rates, charged for so many prompt tokens.
    pub fn permitted(&mut self, permit: Permit, charged: u64) {
        self.permit = Some((permit, charged));
    }

    /// It waited so long for a place: no work of the gateway's.
    pub fn queued(&mut self, waited: Duration) {
        self.queued = waited;
    }

    /// The body is complete.
    pub fn received(&mut self, now: Instant) {
        self.received = now;
    }

    /// The model is known.
    pub fn resolved(&mut self, pool: Arc<Pool>, stream: bool) {
        self.pool = Some(pool);
        self.stream = stream;
    }

    /// Length of the canonical prompt, from which bytes per token are learned.
    pub fn prompt(&mut self, bytes: u64) {
        self.prompt_bytes = bytes;
    }

    /// Weight of a prompt that was estimated, from which the ratio is learned.
    pub fn estimated(&mut self, weight: u64) {
        self.prompt_weight = weight;
    }

    /// A stream that goes on beyond these many output tokens is cut.
    pub fn capped(&mut self, cut: Cut) {
        self.cut = Some(Box::new(cut));
    }

    /// What takes the place of the rest when a stream went on beyond its cap; given once.
    pub fn cut(&mut self) -> Option<Bytes> {
        let (end, tokens) = self.cut.as_mut()?.take()?;
        self.usage.output.get_or_insert(tokens);
        self.finished = true;
        Some(end)
    }

    /// A replica was chosen and is about to be asked.
    pub fn dispatched(&mut self, placed: &Placed, now: Instant) {
        if self.attempts == 0
            && let Some(pool) = &self.pool
        {
            pool.metrics().overhead((now - self.received).saturating_sub(self.queued));
        }
        self.begin();
        self.route = Route::Replica;
        self.predicted_cached = self.pool.as_ref().map_or(0, |pool| pool.block_tokens(placed.pick.cached_blocks));
        placed.member.metrics.pick(placed.pick.reason);
        self.placed = Some(placed.clone());
    }

    /// A hosted model is about to be asked.
    pub fn dispatched_hosted(&mut self, paid: Paid, now: Instant) {
        if self.attempts == 0
            && let Some(pool) = &self.pool
        {
            pool.metrics().overhead(now - self.received);
        }
        self.begin();
        self.route = Route::Fallback;
        self.predicted_cached = 0;
        self.placed = None;
        self.target = Some(paid.target().label().into());
        self.paid = Some(paid);
    }

    /// The hosted model did nothing for the request.
    pub fn unpaid(&mut self) {
        if let Some(paid) = self.paid.take() {
            paid.release();
        }
    }

    /// Forgets what the attempt before has shown.
    fn begin(&mut self) {
        self.attempts += 1;
        self.usage = Usage::default();
        (self.first_output, self.last_output, self.output_events) = (None, None, 0);
        (self.finished, self.done, self.error_event) = (false, false, false);
        // One that failed after it was asked has cost its prompt.
        self.paid = None;
        if let Some(cut) = &mut self.cut {
            cut.begin();
        }
    }

    /// Predicted cached tokens of the last attempt.
    #[must_use]
    pub fn predicted_cached(&self) -> u64 {
        self.predicted_cached
    }

    /// The status that the client gets.
    pub fn answered(&mut self, status: u16) {
        self.status = status;
    }

    /// How the request ended. The first word counts.
    pub fn end(&mut self, outcome: Outcome) {
        self.outcome.get_or_insert(outcome);
    }

    /// The request ended in an error of the gateway's own words.
    pub fn fail(&mut self, error: &GatewayError) {
        self.end(error.kind.outcome());
        if let Some(reason) = refusal(error.kind) {
            let metrics =
                self.pool.as_ref().map_or_else(|| self.telemetry.model(NO_MODEL), |pool| pool.metrics().clone());
            metrics.rejected(reason);
        }
        self.status = error.kind.answer().0.as_u16();
        let cause = error.cause.as_ref().map(|cause| format!(": {}", error::chain(cause.as_ref())));
        self.error = Some(format!("{error}{}", cause.unwrap_or_default()));
    }

    /// Why a stream broke off, for the log.
    pub fn note(&mut self, error: String) {
        self.error.get_or_insert(error);
    }

    /// Whether nobody has said yet how the request ended.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.outcome.is_none()
    }

    /// Whether any output came.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.first_output.is_some()
    }

    /// Whether the engine reported an error inside the stream.
    #[must_use]
    pub fn has_error_event(&self) -> bool {
        self.error_event
    }

    /// Whether the stream said that it is complete: a finish reason, or output and then `[DONE]`.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.finished || (self.done && self.first_output.is_some())
    }

    /// A sink that notes what the events of one frame, read at `now`, say.
    pub fn meter(&mut self, now: Instant) -> Meter<'_> {
        Meter { report: self, now }
    }

    /// The usage of a non-streaming answer.
    pub fn used(&mut self, usage: Usage) {
        self.usage.update(usage);
    }

    /// The prediction of its first token was so far off.
    pub fn mispredicted(&self, off: Duration) {
        if let Some(pool) = &self.pool {
            pool.metrics().prediction_error(off);
        }
    }

    fn output(&mut self, now: Instant) {
        self.output_events += 1;
        let Some(pool) = &self.pool else { return };
        if let Some(last) = self.last_output {
            pool.metrics().itl(now - last);
        } else {
            self.first_output = Some(now);
            pool.metrics().ttft(self.route, now - self.received);
        }
        self.last_output = Some(now);
    }

    fn ttft(&self) -> Option<Duration> {
        self.first_output.map(|first| first - self.received)
    }

    fn tpot(&self) -> Option<Duration> {
        let tokens = u32::try_from(self.usage.output?).ok()?;
        let spread = self.last_output? - self.first_output?;
        (tokens > 1).then(|| spread / (tokens - 1))
    }

    fn count_tokens(&self, pool: &Pool, outcome: Outcome) {
        let metrics = pool.metrics();
        let key = self.key.as_deref().unwrap_or(NO_KEY);
        if let Some(tokens) = self.usage.prompt {
            metrics.prompt_tokens(key, tokens);
            // Another tokenizer teaches nothing about this one.
            if self.prompt_bytes > 0 && self.route == Route::Replica {
                pool.learn_tokens(self.prompt_bytes, tokens);
                pool.counter().learn(self.prompt_weight, tokens);
            }
        }
        // A broken stream never says its usage: its events are the best count there is.
        let output = self.usage.output.unwrap_or(self.output_events);
        if output > 0 {
            metrics.output_tokens(key, output);
        }
        let beyond = self.cut.as_ref().map_or(0, |cut| cut.beyond(output).max(u64::from(cut.exceeded())));
        if beyond > 0 {
            metrics.wasted(Waste::OverCap, beyond);
        }
        if outcome != Outcome::Success && output > 0 {
            metrics.wasted(if outcome == Outcome::Cancelled { Waste::Cancelled } else { Waste::Failed }, output);
        }
        if self.route == Route::Replica && (self.first_output.is_some() || outcome == Outcome::Success) {
            metrics.cached(Source::Predicted, self.predicted_cached);
            metrics.saved(self.usage.cached.unwrap_or(self.predicted_cached));
        }
        if let Some(cached) = self.usage.cached.filter(|_| self.route == Route::Replica) {
            metrics.cached(Source::Reported, cached);
        }
    }

    fn count_objectives(&self, pool: &Pool) {
        let slo = pool.slo();
        let missed =
            |limit: Option<Duration>, seen: Option<Duration>| limit.zip(seen).is_some_and(|(limit, seen)| seen > limit);
        let Some(ttft) = self.ttft() else { return };
        let late = missed(slo.ttft, Some(ttft));
        let slow = missed(slo.tpot, self.tpot());
        if late {
            pool.metrics().slo_missed(Objective::Ttft);
        }
        if slow {
            pool.metrics().slo_missed(Objective::Tpot);
        }
        if !late && !slow {
            pool.metrics().slo_met();
        }
    }

    fn log(&self, outcome: Outcome, duration: Duration, tpot: Option<Duration>) {
        let answered = self.placed.is_some();
        self.telemetry.access(&AccessRecord {
            time: SystemTime::now(),
            request_id: self.request_id.to_str().unwrap_or_default(),
            trace_id: self.traceparent.as_ref().and_then(trace_id),
            model: self.pool.as_ref().map_or(NO_MODEL, |pool| pool.name()),
            endpoint: self.endpoint.label(),
            stream: self.stream,
            key: self.key.as_deref(),
            route: (self.attempts > 0).then(|| self.route.label()),
            target: self.target.as_deref().filter(|_| self.route == Route::Fallback),
            replica: self.placed.as_ref().map(|placed| placed.member.replica.label()),
            reason: self.placed.as_ref().map(|placed| placed.pick.reason.label()),
            attempts: self.attempts,
            predicted_cached_tokens: answered.then_some(self.predicted_cached),
            reported_cached_tokens: self.usage.cached,
            prompt_tokens: self.usage.prompt,
            output_tokens: self.usage.output,
            ttft: self.ttft(),
            tpot,
            duration,
            status: self.status,
            outcome: outcome.label(),
            error: self.error.as_deref(),
        });
    }
}

/// Why the gateway refused, when it is the gateway that refused.
fn refusal(kind: ErrorKind) -> Option<Reason> {
    match kind {
        ErrorKind::BadRequest
        | ErrorKind::TooLarge
        | ErrorKind::BodyTimeout
        | ErrorKind::NoRoute
        | ErrorKind::Method => Some(Reason::Body),
        ErrorKind::Unauthorized | ErrorKind::Forbidden => Some(Reason::Auth),
        ErrorKind::NoModel => Some(Reason::NoModel),
        ErrorKind::OverCap | ErrorKind::OverContext => Some(Reason::Cap),
        ErrorKind::Overloaded => Some(Reason::Overload),
        ErrorKind::NoReplica => Some(Reason::NoReplica),
        ErrorKind::Saturated => Some(Reason::Saturated),
        ErrorKind::QueueFull => Some(Reason::QueueFull),
        ErrorKind::QueueTimeout => Some(Reason::QueueTimeout),
        ErrorKind::OverShare | ErrorKind::RateLimited => Some(Reason::Rate),
        ErrorKind::ClientGone
        | ErrorKind::ReplicaReset
        | ErrorKind::ReplicaProtocol
        | ErrorKind::ReplicaTimeout
        | ErrorKind::Internal => None,
    }
}

/// The trace id of a W3C `traceparent`: its second part, 32 hexadecimal digits.
fn trace_id(traceparent: &HeaderValue) -> Option<&str> {
    let id = traceparent.to_str().ok()?.split('-').nth(1)?;
    (id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}

impl Drop for Report {
    fn drop(&mut self) {
        let unfinished = if std::thread::panicking() { Outcome::GatewayError } else { Outcome::Cancelled };
        let outcome = self.outcome.unwrap_or(unfinished);
        let duration = self.received.elapsed();
        let tpot = self.tpot();
        if let Some(paid) = self.paid.take() {
            paid.settle(self.usage, self.output_events);
        }
        match &self.pool {
            Some(pool) => {
                pool.metrics().request(self.endpoint, outcome, duration);
                self.count_tokens(pool, outcome);
                if self.stream && outcome == Outcome::Success {
                    if let Some(tpot) = tpot {
                        pool.metrics().tpot(self.route, tpot);
                    }
                    self.count_objectives(pool);
                }
            }
            None => self.telemetry.model(NO_MODEL).request(self.endpoint, outcome, duration),
        }
        if let Some((permit, charged)) = &self.permit {
            permit.settle(*charged, self.usage.prompt, self.usage.output.unwrap_or(self.output_events));
        }
        self.log(outcome, duration, tpot);
    }
}

/// Notes what the events of one frame say.
#[derive(Debug)]
pub struct Meter<'a> {
    report: &'a mut Report,
    now: Instant,
}

impl EventSink for Meter<'_> {
    fn event(&mut self, meaning: &Meaning, payload: &[u8]) {
        let report = &mut *self.report;
        if report.cut.as_mut().is_some_and(|cut| cut.exceeds(meaning, payload)) {
            return;
        }
        if let Some(usage) = meaning.usage {
            report.usage.update(usage);
        }
        report.finished |= meaning.finished;
        report.done |= meaning.done;
        report.error_event |= meaning.error;
        if meaning.malformed
            && let Some(pool) = &report.pool
        {
            pool.metrics().parse_error();
        }
        // Output behind an error is no success and no progress.
        if meaning.output && !report.error_event {
            report.output(self.now);
        }
    }

    fn holds(&self) -> bool {
        self.report.cut.as_ref().is_some_and(|cut| cut.reached())
    }

    fn refuses(&self) -> bool {
        self.report.cut.as_ref().is_some_and(|cut| cut.exceeded())
    }

    fn oversize(&mut self) {
        if let Some(pool) = &self.report.pool {
            pool.metrics().parse_error();
        }
    }
}
