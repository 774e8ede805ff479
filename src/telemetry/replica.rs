//! Series of one replica: gauges that disappear with it, counters that stay.
//!
//! The gauges are atomics rendered here and appended to the exporter's page: the exporter can drop a series only after
//! an idle time, and a removed replica that reads as up, or as zero, sets off alerts. A load that the engine has not
//! told is no line, never zero.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

use metrics::Counter;

use super::{
    metrics::{self as table, MetricDef},
    recorder::Registry,
};
use crate::types::PickReason;

/// An unknown value.
const UNKNOWN: u64 = u64::MAX;

/// Series of one replica of one model.
#[derive(Debug)]
pub struct ReplicaMetrics {
    model: Box<str>,
    replica: Box<str>,
    up: AtomicU64,
    inflight: AtomicU32,
    waiting: AtomicU64,
    /// Bits of an `f32`, or [`UNKNOWN`].
    kv_usage: AtomicU64,
    picks: Vec<Counter>,
}

impl ReplicaMetrics {
    pub(super) fn new(registry: &Registry, model: &str, replica: &str) -> Self {
        let pick = |reason: &PickReason| registry.counter(&table::REPLICA_PICKS, &[model, replica, reason.label()]);
        Self {
            model: model.into(),
            replica: replica.into(),
            up: AtomicU64::new(0),
            inflight: AtomicU32::new(0),
            waiting: AtomicU64::new(UNKNOWN),
            kv_usage: AtomicU64::new(UNKNOWN),
            picks: PickReason::ALL.iter().map(pick).collect(),
        }
    }

    /// Whether the replica passes its health probes.
    pub fn up(&self, up: bool) {
        self.up.store(up.into(), Relaxed);
    }

    /// Requests that the gateway has there.
    pub fn inflight(&self, requests: u32) {
        self.inflight.store(requests, Relaxed);
    }

    /// Requests waiting inside the engine.
    pub fn waiting(&self, requests: u32) {
        self.waiting.store(requests.into(), Relaxed);
    }

    /// Share of the engine's KV cache in use.
    pub fn kv_usage(&self, share: f32) {
        self.kv_usage.store(share.to_bits().into(), Relaxed);
    }

    /// The engine's word is missing or stale: its gauges disappear until it speaks again.
    pub fn load_unknown(&self) {
        self.waiting.store(UNKNOWN, Relaxed);
        self.kv_usage.store(UNKNOWN, Relaxed);
    }

    /// The replica was chosen.
    pub fn pick(&self, reason: PickReason) {
        if let Some(counter) = self.picks.get(reason as usize) {
            counter.increment(1);
        }
    }

    fn value(&self, metric: &MetricDef) -> Option<f64> {
        let known = |cell: &AtomicU64| Some(cell.load(Relaxed)).filter(|value| *value != UNKNOWN);
        match metric.name {
            name if name == table::REPLICA_UP.name => Some(self.up.load(Relaxed) as f64),
            name if name == table::REPLICA_INFLIGHT.name => Some(self.inflight.load(Relaxed).into()),
            name if name == table::REPLICA_WAITING.name => known(&self.waiting).map(|waiting| waiting as f64),
            _ => {
                known(&self.kv_usage).and_then(|bits| u32::try_from(bits).ok()).map(|bits| f32::from_bits(bits).into())
            }
        }
    }
}

/// The gauges that this file renders.
pub(super) const GAUGES: [MetricDef; 4] =
    [table::REPLICA_UP, table::REPLICA_INFLIGHT, table::REPLICA_WAITING, table::REPLICA_KV_USAGE];

/// Appends the gauges of all replicas in the exposition format.
pub(super) fn render<'a>(page: &mut String, replicas: impl Iterator<Item = &'a ReplicaMetrics> + Clone) {
    for metric in &GAUGES {
        let mut lines = replicas.clone().filter_map(|replica| Some((replica, replica.value(metric)?))).peekable();
        if lines.peek().is_none() {
            continue;
        }
        let MetricDef { name, help, .. } = metric;
        // Writing to a String cannot fail.
        writeln!(page, "# HELP {name} {help}\n# TYPE {name} gauge").unwrap_or_default();
        for (replica, value) in lines {
            let (model, label) = (escape(&replica.model), escape(&replica.replica));
            writeln!(page, "{name}{{model=\"{model}\",replica=\"{label}\"}} {value}").unwrap_or_default();
        }
        page.push('\n');
    }
}

/// A label value in the exposition format.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
