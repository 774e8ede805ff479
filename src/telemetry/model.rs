//! Handles to the series of one model.
//!
//! Built once per model and held. Series with few label values exist from the start, at zero, so that `rate()` sees
//! the first event; the many of `gateway_requests_total` appear when first used. No call allocates or locks but the
//! first of a key or of an (endpoint, outcome) pair.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use arc_swap::ArcSwap;
use metrics::{Counter, Gauge, Histogram};

use super::{
    labels::{Cause, FallbackReason, Objective, Reason, Route, Source, Waste},
    metrics as table,
    recorder::Registry,
};
use crate::types::{Endpoint, Outcome};

/// Value of the `key` label of a request without a key.
pub const NO_KEY: &str = "none";

/// Counters by (endpoint, outcome), each made when first used.
type Requests = [[OnceLock<Counter>; Outcome::ALL.len()]; Endpoint::ALL.len()];

/// Token counters of one client key.
#[derive(Debug)]
struct KeyCounters {
    id: Box<str>,
    prompt: Counter,
    output: Counter,
}

/// Series of one model.
#[derive(Debug)]
pub struct ModelMetrics {
    model: Box<str>,
    registry: Arc<Registry>,
    requests: Requests,
    durations: [OnceLock<Histogram>; Outcome::ALL.len()],
    ttft: Vec<Histogram>,
    tpot: Vec<Histogram>,
    itl: Histogram,
    overhead: Histogram,
    queue_wait: Histogram,
    queue_depth: Gauge,
    keys: ArcSwap<Vec<Arc<KeyCounters>>>,
    cached: Vec<Counter>,
    saved: Counter,
    slo_met: Counter,
    slo_missed: Vec<Counter>,
    rejected: Vec<Counter>,
    fallback: Vec<Counter>,
    retries: Vec<Counter>,
    wasted: Vec<Counter>,
    index_entries: Gauge,
    index_evictions: Counter,
    prediction_error: Histogram,
    parse_errors: Counter,
}

impl ModelMetrics {
    pub(super) fn new(registry: Arc<Registry>, model: &str) -> Self {
        let r = &*registry;
        let counters = |metric, labels: &[&'static str]| -> Vec<Counter> {
            labels.iter().map(|label| r.counter(metric, &[model, label])).collect()
        };
        let by_route = |metric| Route::ALL.iter().map(|route| r.histogram(metric, &[model, route.label()])).collect();
        Self {
            model: model.into(),
            requests: Default::default(),
            durations: Default::default(),
            ttft: by_route(&table::TTFT),
            tpot: by_route(&table::TPOT),
            itl: r.histogram(&table::ITL, &[model]),
            overhead: r.histogram(&table::OVERHEAD, &[model]),
            queue_wait: r.histogram(&table::QUEUE_WAIT, &[model]),
            queue_depth: r.gauge(&table::QUEUE_DEPTH, &[model]),
            keys: ArcSwap::default(),
            cached: counters(&table::CACHED_TOKENS, &labels(Source::ALL, Source::label)),
            saved: r.counter(&table::SAVED, &[model]),
            slo_met: r.counter(&table::SLO_MET, &[model]),
            slo_missed: counters(&table::SLO_MISSED, &labels(Objective::ALL, Objective::label)),
            rejected: counters(&table::REJECTED, &labels(Reason::ALL, Reason::label)),
            fallback: counters(&table::FALLBACK, &labels(FallbackReason::ALL, FallbackReason::label)),
            retries: counters(&table::RETRIES, &labels(Cause::ALL, Cause::label)),
            wasted: counters(&table::WASTED, &labels(Waste::ALL, Waste::label)),
            index_entries: r.gauge(&table::INDEX_ENTRIES, &[model]),
            index_evictions: r.counter(&table::INDEX_EVICTIONS, &[model]),
            prediction_error: r.histogram(&table::PREDICTION_ERROR, &[model]),
            parse_errors: r.counter(&table::PARSE_ERRORS, &[model]),
            registry,
        }
    }

    /// Name of the model.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// A request ended. `elapsed` runs from its last byte received to the last byte sent.
    pub fn request(&self, endpoint: Endpoint, outcome: Outcome, elapsed: Duration) {
        let make = || self.registry.counter(&table::REQUESTS, &[&self.model, endpoint.label(), outcome.label()]);
        if let Some(cell) = self.requests.get(endpoint as usize).and_then(|row| row.get(outcome as usize)) {
            cell.get_or_init(make).increment(1);
        }
        let make = || self.registry.histogram(&table::DURATION, &[&self.model, outcome.label()]);
        if let Some(cell) = self.durations.get(outcome as usize) {
            cell.get_or_init(make).record(elapsed);
        }
    }

    /// Time to first token of a request.
    pub fn ttft(&self, route: Route, elapsed: Duration) {
        record(&self.ttft, route as usize, elapsed);
    }

    /// Time per output token of a request.
    pub fn tpot(&self, route: Route, per_token: Duration) {
        record(&self.tpot, route as usize, per_token);
    }

    /// Gap between two output events.
    pub fn itl(&self, gap: Duration) {
        self.itl.record(gap);
    }

    /// What the gateway itself took before dispatch.
    pub fn overhead(&self, elapsed: Duration) {
        self.overhead.record(elapsed);
    }

    /// A request left the queue.
    pub fn queue_wait(&self, waited: Duration) {
        self.queue_wait.record(waited);
    }

    /// Requests entered (positive) or left (negative) the queue.
    pub fn queue_depth(&self, delta: i64) {
        self.queue_depth.increment(delta as f64);
    }

    /// Prompt tokens of a request. `key` is a key's id from the configuration, or [`NO_KEY`].
    pub fn prompt_tokens(&self, key: &str, tokens: u64) {
        self.key(key).prompt.increment(tokens);
    }

    /// Output tokens of a request. `key` is a key's id from the configuration, or [`NO_KEY`].
    pub fn output_tokens(&self, key: &str, tokens: u64) {
        self.key(key).output.increment(tokens);
    }

    /// Prompt tokens found in a cache.
    pub fn cached(&self, source: Source, tokens: u64) {
        add(&self.cached, source as usize, tokens);
    }

    /// Prompt tokens that nobody had to prefill again.
    pub fn saved(&self, tokens: u64) {
        self.saved.increment(tokens);
    }

    /// A request met every objective.
    pub fn slo_met(&self) {
        self.slo_met.increment(1);
    }

    /// A request missed an objective.
    pub fn slo_missed(&self, objective: Objective) {
        add(&self.slo_missed, objective as usize, 1);
    }

    /// The gateway refused a request.
    pub fn rejected(&self, reason: Reason) {
        add(&self.rejected, reason as usize, 1);
    }

    /// A request went to a hosted model.
    pub fn fallback(&self, reason: FallbackReason) {
        add(&self.fallback, reason as usize, 1);
    }

    /// A request went to another replica.
    pub fn retry(&self, cause: Cause) {
        add(&self.retries, cause as usize, 1);
    }

    /// Output tokens that no client received whole.
    pub fn wasted(&self, cause: Waste, tokens: u64) {
        add(&self.wasted, cause as usize, tokens);
    }

    /// State of the prefix index; `evictions` since start.
    pub fn index(&self, entries: usize, evictions: u64) {
        self.index_entries.set(entries as f64);
        self.index_evictions.absolute(evictions);
    }

    /// How far the predicted time to first token was from the observed one.
    pub fn prediction_error(&self, difference: Duration) {
        self.prediction_error.record(difference);
    }

    /// A stream event was relayed but not understood.
    pub fn parse_error(&self) {
        self.parse_errors.increment(1);
    }

    /// Counters of a key; a handful of keys, so a list is searched.
    fn key(&self, id: &str) -> Arc<KeyCounters> {
        let find = |keys: &[Arc<KeyCounters>]| keys.iter().find(|key| &*key.id == id).map(Arc::clone);
        if let Some(known) = find(&self.keys.load()) {
            return known;
        }
        let made = Arc::new(KeyCounters {
            id: id.into(),
            prompt: self.registry.counter(&table::PROMPT_TOKENS, &[&self.model, id]),
            output: self.registry.counter(&table::OUTPUT_TOKENS, &[&self.model, id]),
        });
        // Two that race make the same counters: the registry hands out one series per key.
        self.keys.rcu(|keys| {
            let mut keys = Vec::clone(keys);
            if find(&keys).is_none() {
                keys.push(Arc::clone(&made));
            }
            keys
        });
        made
    }
}

/// The words of an enum.
fn labels<T: Copy>(all: &[T], label: fn(T) -> &'static str) -> Vec<&'static str> {
    all.iter().map(|value| label(*value)).collect()
}

fn add(counters: &[Counter], index: usize, by: u64) {
    if let Some(counter) = counters.get(index) {
        counter.increment(by);
    }
}

fn record(histograms: &[Histogram], index: usize, value: Duration) {
    if let Some(histogram) = histograms.get(index) {
        histogram.record(value);
    }
}
