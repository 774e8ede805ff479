//! Handles to the series of one hosted model.

use metrics::{Counter, Gauge};

use super::{
    labels::{Skip, Window},
    metrics as table,
    recorder::Registry,
};

/// Series of one hosted model under one model of clients.
#[derive(Debug)]
pub struct TargetMetrics {
    skipped: Vec<Counter>,
    dropped: Counter,
    spend: Vec<Gauge>,
    breaker: Gauge,
}

impl TargetMetrics {
    pub(super) fn new(r: &Registry, model: &str, target: &str) -> Self {
        let skipped = |reason: &Skip| r.counter(&table::FALLBACK_SKIPPED, &[model, target, reason.label()]);
        let spend = |window: &Window| r.gauge(&table::FALLBACK_SPEND, &[model, target, window.label()]);
        Self {
            skipped: Skip::ALL.iter().map(skipped).collect(),
            dropped: r.counter(&table::FALLBACK_DROPPED, &[model, target]),
            spend: Window::ALL.iter().map(spend).collect(),
            breaker: r.gauge(&table::FALLBACK_BREAKER, &[model, target]),
        }
    }

    /// It was passed over, or gave no answer.
    pub fn skipped(&self, reason: Skip) {
        if let Some(counter) = self.skipped.get(reason as usize) {
            counter.increment(1);
        }
    }

    /// Fields of a request were taken out.
    pub fn dropped(&self, fields: u64) {
        self.dropped.increment(fields);
    }

    /// US dollars in the window of now.
    pub fn spend(&self, window: Window, dollars: f64) {
        if let Some(gauge) = self.spend.get(window as usize) {
            gauge.set(dollars);
        }
    }

    /// Whether it is left alone.
    pub fn breaker(&self, open: bool) {
        self.breaker.set(f64::from(u8::from(open)));
    }
}
