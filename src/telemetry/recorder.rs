//! A Prometheus recorder of one gateway, and handles to its series.
//!
//! Not the process-wide recorder of the `metrics` macros: several gateways may live in one test process, and handles
//! held in structs save the label hashing on every request. Crate documentation: metrics-exporter-prometheus 0.18.

use metrics::{Counter, Gauge, Histogram, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use super::metrics::{METRICS, MetricDef, MetricKind};

/// The exporter ignores it; the trait wants it.
static METADATA: Metadata<'static> = Metadata::new("gateway", Level::INFO, None);

/// The recorder.
#[derive(Debug)]
pub(super) struct Registry {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

impl Registry {
    /// A recorder that knows the buckets and help texts of the whole table.
    pub(super) fn new() -> Self {
        let recorder = METRICS.iter().fold(PrometheusBuilder::new(), with_buckets).build_recorder();
        for metric in METRICS {
            let (name, help) = (metric.name.into(), metric.help.into());
            match metric.kind {
                MetricKind::Counter => recorder.describe_counter(name, None, help),
                MetricKind::Gauge => recorder.describe_gauge(name, None, help),
                MetricKind::Histogram(_) => recorder.describe_histogram(name, None, help),
            }
        }
        let handle = recorder.handle();
        Self { recorder, handle }
    }

    pub(super) fn counter(&self, metric: &MetricDef, values: &[&str]) -> Counter {
        self.recorder.register_counter(&metric.key(values), &METADATA)
    }

    pub(super) fn gauge(&self, metric: &MetricDef, values: &[&str]) -> Gauge {
        self.recorder.register_gauge(&metric.key(values), &METADATA)
    }

    pub(super) fn histogram(&self, metric: &MetricDef, values: &[&str]) -> Histogram {
        self.recorder.register_histogram(&metric.key(values), &METADATA)
    }

    /// Runs code that uses the `metrics` macros against this recorder.
    pub(super) fn scope<T>(&self, run: impl FnOnce() -> T) -> T {
        metrics::with_local_recorder(&self.recorder, run)
    }

    pub(super) fn render(&self) -> String {
        self.handle.render()
    }

    pub(super) fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

/// Adds the buckets of a histogram; refused only for an empty list, which a test rules out.
fn with_buckets(builder: PrometheusBuilder, metric: &MetricDef) -> PrometheusBuilder {
    match metric.kind {
        MetricKind::Histogram(buckets) => {
            let matcher = Matcher::Full(metric.name.to_owned());
            builder.set_buckets_for_metric(matcher, buckets).unwrap_or_else(|_| PrometheusBuilder::new())
        }
        MetricKind::Counter | MetricKind::Gauge => builder,
    }
}
