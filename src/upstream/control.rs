//! Watches one replica for as long as it is in the pool: health, models, engine, load.
//!
//! Health and metrics run side by side in one future, so a metrics page that takes long never delays a probe. A replica
//! that is not up is asked four times a second, so that it serves within half a second of its start; a failed request of
//! a client brings the next probe forward. A probe that succeeds after nobody listened is a new process.
//! Source: reliability.md section 2; reference/engines.md section 3, "Failures".

use std::{fmt, sync::Arc, time::Duration};

use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    pages::Pages,
    probe::{self, HealthCheck},
    scrape::{Process, Scraped, Since, scrape},
    tls,
};
use crate::{
    engine::detect,
    fleet::{EngineLoad, ProbeFailure, Replica},
    types::EngineKind,
};

/// Pause between probes of a replica that is up.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for a page. SGLang's health check generates a token and takes a second.
pub const TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for a connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between readings of the model list: adapters come and go at run time.
pub const MODELS_INTERVAL: Duration = Duration::from_secs(30);

/// Pause between probes of a replica that is not up.
const RETURN_INTERVAL: Duration = Duration::from_millis(250);
/// A replica that is down for longer is asked at the ordinary pace.
const RETURN_WINDOW: Duration = Duration::from_secs(60);
/// Shortest time between two probes, however many requests fail.
const NUDGE_GAP: Duration = Duration::from_millis(100);
/// Pause between tries for a metrics page that is not there.
const OFF_PAUSE: Duration = Duration::from_secs(30);
/// Refused probes in a row after which a return is a restart, where the engine does not tell its start time.
const GONE_AFTER: u32 = 2;

/// What a watch found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It may be used.
    Up,
    /// It may not be used.
    Down,
    /// It serves other models than before.
    Models,
    /// Its process was replaced: its cache is empty.
    Restarted,
    /// Its engine is known now.
    Engine,
    /// Its engine told its load.
    Load,
}

/// Told of every change, after the replica's state has it. Must not block.
pub type OnChange = Arc<dyn Fn(&Replica, Change) + Send + Sync>;

/// How replicas are watched; cloned for each.
#[derive(Debug, Clone)]
pub struct Watch {
    /// From [`client`]; shared by all watches.
    pub client: reqwest::Client,
    /// Ends the watch.
    pub stop: CancellationToken,
    /// Pause between probes and between scrapes, varied by a tenth.
    pub interval: Duration,
    /// Longest wait for a page.
    pub timeout: Duration,
    /// Pause between readings of the model list.
    pub models_interval: Duration,
}

impl Watch {
    /// The default times.
    #[must_use]
    pub fn new(client: reqwest::Client, stop: CancellationToken) -> Self {
        Self { client, stop, interval: INTERVAL, timeout: TIMEOUT, models_interval: MODELS_INTERVAL }
    }
}

/// No client could be built.
#[derive(Debug, thiserror::Error)]
#[error("no client for health checks: {0}")]
pub struct ClientError(#[source] Box<dyn std::error::Error + Send + Sync>);

/// The client of all watches: no proxies, no redirects, no kept connections.
///
/// # Errors
/// When TLS cannot be set up.
pub fn client(connect_timeout: Duration) -> Result<reqwest::Client, ClientError> {
    tls::install_provider();
    let config = tls::client_config().map_err(|e| ClientError(e.into()))?;
    reqwest::Client::builder()
        .tls_backend_preconfigured(config)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(connect_timeout)
        .pool_max_idle_per_host(0)
        .http1_only()
        .user_agent(concat!("gateway/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|e| ClientError(e.into()))
}

/// Watches a replica until the token is cancelled. The first probe goes out at once.
pub async fn watch_replica(replica: Arc<Replica>, watch: Watch, on_change: OnChange) {
    let stop = watch.stop.clone();
    let watcher = Watcher::new(replica, watch, on_change);
    tokio::select! {
        () = stop.cancelled() => {}
        ((), ()) = async { tokio::join!(watcher.watch_health(), watcher.watch_load()) } => {}
    }
}

struct Watcher {
    replica: Arc<Replica>,
    watch: Watch,
    on_change: OnChange,
    pages: Pages,
    process: Process,
    /// The replica came up or its engine became known: ask for its load now.
    ready: Notify,
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").field("replica", &self.replica).finish_non_exhaustive()
    }
}

/// What the health loop remembers.
#[derive(Debug)]
struct Memory {
    check: HealthCheck,
    /// It was up before: what comes back may be another process.
    seen: bool,
    /// Whether any probe was bad: a replica that never came up is told of once.
    missed: bool,
    /// Refused probes since the last good one.
    refused: u32,
    /// Since when it has not been up.
    down_since: Instant,
    /// When to read the model list again.
    models_due: Instant,
}

impl Watcher {
    fn new(replica: Arc<Replica>, watch: Watch, on_change: OnChange) -> Self {
        let pages = Pages::new(watch.client.clone(), replica.base().clone(), replica.api_key(), watch.timeout);
        Self { replica, watch, on_change, pages, process: Process::default(), ready: Notify::new() }
    }

    fn tell(&self, change: Change) {
        (self.on_change)(&self.replica, change);
    }

    // === health

    async fn watch_health(&self) {
        let now = Instant::now();
        let mut memory = Memory {
            check: HealthCheck::default(),
            missed: false,
            seen: false,
            refused: 0,
            down_since: now,
            models_due: now,
        };
        loop {
            let began = Instant::now();
            match memory.check.ask(&self.pages).await {
                Ok(()) => self.healthy(&mut memory).await,
                Err(failure) => self.unhealthy(&mut memory, failure),
            }
            self.pause(began, &memory).await;
        }
    }

    async fn healthy(&self, memory: &mut Memory) {
        let returns = !self.replica.up();
        if returns || Instant::now() >= memory.models_due {
            self.read_models(memory).await;
        }
        if returns && memory.seen && memory.refused > 0 {
            self.check_restart(memory.refused).await;
        }
        memory.refused = 0;
        memory.seen = true;
        if self.replica.probe_ok(Instant::now()) {
            tracing::info!(replica = self.replica.label(), "replica is up");
            self.tell(Change::Up);
            self.ready.notify_one();
        }
        if !self.replica.engine_known()
            && let Some(kind) = probe::detect(&self.pages).await
        {
            self.set_engine(kind);
        }
    }

    fn unhealthy(&self, memory: &mut Memory, failure: ProbeFailure) {
        let now = Instant::now();
        if failure == ProbeFailure::Refused {
            memory.refused = memory.refused.saturating_add(1);
        }
        if self.replica.probe_failed(now, failure) {
            memory.down_since = now;
            tracing::warn!(replica = self.replica.label(), ?failure, "replica is down");
            self.tell(Change::Down);
        } else if !memory.seen && !memory.missed {
            tracing::warn!(replica = self.replica.label(), ?failure, "replica does not answer yet; it is asked again");
        }
        memory.missed = true;
    }

    async fn read_models(&self, memory: &mut Memory) {
        let pause = if let Some(list) = probe::read_models(&self.pages).await {
            if self.replica.set_models(list.models) {
                self.tell(Change::Models);
            }
            if let Some(kind) = list.owned_by.as_deref().and_then(detect::by_owner) {
                self.set_engine(kind);
            }
            self.watch.models_interval
        } else if self.replica.models_known() {
            self.watch.models_interval
        } else {
            self.watch.interval
        };
        memory.models_due = Instant::now() + jittered(pause);
    }

    fn set_engine(&self, kind: EngineKind) {
        if self.replica.set_engine(kind) {
            tracing::info!(replica = self.replica.label(), engine = kind.label(), "engine recognised");
            self.tell(Change::Engine);
            self.ready.notify_one();
        }
    }

    /// It answers again after nobody listened: is it a new process?
    async fn check_restart(&self, refused: u32) {
        if self.process.tells_start()
            && let Scraped::Load(load) = scrape(&self.pages, self.replica.engine()).await
            && load.start_time.is_some()
        {
            self.take(load);
        } else if refused >= GONE_AFTER {
            self.process.forget();
            self.restarted();
        }
    }

    fn restarted(&self) {
        self.replica.restarted();
        tracing::info!(replica = self.replica.label(), "replica was restarted");
        self.tell(Change::Restarted);
    }

    /// Waits for the next turn, or for a failed request.
    async fn pause(&self, began: Instant, memory: &Memory) {
        let returning = !self.replica.up() && memory.down_since.elapsed() < RETURN_WINDOW;
        let interval = if returning { self.watch.interval.min(RETURN_INTERVAL) } else { self.watch.interval };
        if timeout(jittered(interval), self.replica.nudges().notified()).await.is_ok() {
            sleep_until(began + NUDGE_GAP).await;
        }
    }

    // === load

    async fn watch_load(&self) {
        loop {
            let mut pause = self.watch.interval;
            if self.replica.up() && self.replica.engine_known() {
                match scrape(&self.pages, self.replica.engine()).await {
                    Scraped::Load(load) => self.take(load),
                    Scraped::Off => pause = pause.max(OFF_PAUSE),
                    Scraped::Missed => {}
                }
            }
            tokio::select! {
                () = sleep(jittered(pause)) => {}
                () = self.ready.notified() => {}
            }
        }
    }

    fn take(&self, load: EngineLoad) {
        match self.process.compare(&load) {
            Since::Same => {}
            Since::Replaced => self.restarted(),
            Since::Emptied => {
                self.replica.emptied();
                tracing::info!(replica = self.replica.label(), "replica's counters began anew: its cache is empty");
                self.tell(Change::Restarted);
            }
        }
        self.replica.set_load(load, Instant::now());
        self.tell(Change::Load);
    }
}

/// Between 0.9 and 1.1 of the time, so that many watches do not fall into step.
fn jittered(time: Duration) -> Duration {
    time.mul_f64(rand::random_range(0.9..1.1))
}

#[cfg(test)]
mod tests;
