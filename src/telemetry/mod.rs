//! What the gateway tells about itself: metrics, access log.
//!
//! [`Telemetry`] is the only door: call sites hold handles ([`ModelMetrics`], [`ReplicaMetrics`]) and say what
//! happened; names, labels and formats live here. Each `Telemetry` has its own recorder, so that several gateways in
//! one process do not mix.

mod access;
mod labels;
pub mod metrics;
mod model;
mod recorder;
mod replica;
mod target;

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ::metrics::{Counter, Gauge};

pub use self::{
    access::AccessRecord,
    labels::{Cause, FallbackReason, Objective, Reason, Reload, Route, Skip, Source, Waste, Window},
    metrics::{METRICS, MetricDef, MetricKind},
    model::{ModelMetrics, NO_KEY},
    replica::ReplicaMetrics,
    target::TargetMetrics,
};
use self::{access::Writer, metrics as table, recorder::Registry};
use crate::config::AccessLog;

/// Content type of [`Telemetry::render`]: the Prometheus text format.
pub const METRICS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Value of the `model` label of a request that names no known model.
pub const NO_MODEL: &str = "unknown";

type Models = BTreeMap<Box<str>, Arc<ModelMetrics>>;
type Replicas = BTreeMap<(Box<str>, Box<str>), Arc<ReplicaMetrics>>;

/// Metrics and access log of one gateway.
#[derive(Debug)]
pub struct Telemetry {
    registry: Arc<Registry>,
    process: metrics_process::Collector,
    access: Writer,
    reloads: Vec<Counter>,
    connections: Gauge,
    body_memory: Gauge,
    models: Mutex<Models>,
    replicas: Mutex<Replicas>,
}

impl Telemetry {
    /// Telemetry without an access log.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let registry = Arc::new(Registry::new());
        let dropped = registry.counter(&table::ACCESS_DROPPED, &[]);
        Arc::new(Self::build(registry, Writer::off(dropped)))
    }

    /// Telemetry that writes the access log.
    ///
    /// # Errors
    /// When the writing thread cannot be started.
    pub fn with_access_log(target: AccessLog) -> io::Result<Arc<Self>> {
        let registry = Arc::new(Registry::new());
        let dropped = registry.counter(&table::ACCESS_DROPPED, &[]);
        let access = Writer::start(target, dropped)?;
        Ok(Arc::new(Self::build(registry, access)))
    }

    fn build(registry: Arc<Registry>, access: Writer) -> Self {
        let process = metrics_process::Collector::default();
        registry.scope(|| process.describe());
        registry.gauge(&table::BUILD_INFO, &[env!("CARGO_PKG_VERSION")]).set(1.0);
        Self {
            process,
            access,
            reloads: Reload::ALL
                .iter()
                .map(|result| registry.counter(&table::CONFIG_RELOADS, &[result.label()]))
                .collect(),
            connections: registry.gauge(&table::CONNECTIONS, &[]),
            body_memory: registry.gauge(&table::BODY_MEMORY, &[]),
            models: Mutex::default(),
            replicas: Mutex::default(),
            registry,
        }
    }

    /// The `/metrics` page.
    #[must_use]
    pub fn render(&self) -> String {
        self.registry.scope(|| self.process.collect());
        // The exporter parts families by blank lines, which strict parsers refuse.
        let mut page = self.registry.render().replace("\n\n", "\n");
        replica::render(&mut page, &lock(&self.replicas).values().map(|replica| &**replica));
        page
    }

    /// Moves recorded samples into the histograms; to be called every few seconds, or samples pile up until a scrape.
    pub fn upkeep(&self) {
        self.registry.upkeep();
    }

    /// Handles of a model, made when first asked for. `model` is a configured name or [`NO_MODEL`].
    #[must_use]
    pub fn model(&self, model: &str) -> Arc<ModelMetrics> {
        let mut models = lock(&self.models);
        if let Some(known) = models.get(model) {
            return Arc::clone(known);
        }
        let made = Arc::new(ModelMetrics::new(Arc::clone(&self.registry), model));
        models.insert(model.into(), Arc::clone(&made));
        made
    }

    /// Handles of a replica, made when first asked for.
    #[must_use]
    pub fn replica(&self, model: &str, replica: &str) -> Arc<ReplicaMetrics> {
        let made = || Arc::new(ReplicaMetrics::new(&self.registry, model, replica));
        Arc::clone(lock(&self.replicas).entry((model.into(), replica.into())).or_insert_with(made))
    }

    /// Handles of a hosted model.
    #[must_use]
    pub fn target(&self, model: &str, target: &str) -> TargetMetrics {
        TargetMetrics::new(&self.registry, model, target)
    }

    /// Takes the gauges of a removed replica off the page. Its counters stay: they happened.
    pub fn forget_replica(&self, model: &str, replica: &str) {
        lock(&self.replicas).remove(&(Box::from(model), Box::from(replica)));
    }

    /// The configuration was read again.
    pub fn reloaded(&self, result: Reload) {
        if let Some(counter) = self.reloads.get(result as usize) {
            counter.increment(1);
        }
    }

    /// Client connections opened (positive) or closed (negative).
    pub fn connections(&self, delta: i64) {
        self.connections.increment(delta as f64);
    }

    /// Bytes of request bodies held now.
    pub fn body_memory(&self, bytes: u64) {
        self.body_memory.set(bytes as f64);
    }

    /// Writes the line of a request. Never blocks.
    pub fn access(&self, record: &AccessRecord<'_>) {
        self.access.write(record);
    }

    /// Waits until the lines so far are written, at most about a second. For the end of the process; it blocks.
    pub fn flush_access_log(&self) {
        self.access.flush();
    }
}

/// A panic while holding these locks leaves whole maps.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
