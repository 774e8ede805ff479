//! The running gateway: data port, admin port, replicas, and how they stop.
//!
//! [`start`] brings everything up and returns at once; the data port listens when it returns, with or without replicas.
//! Stopping is in three steps: no new connections and `/readyz` says 503, running requests end, the rest is cut.

mod activity;
pub mod admin;
mod answer;
mod connection;
mod data;
mod guarded;
mod head;
mod refuse;
mod reload;
mod stream;
mod supervise;
mod view;
mod workers;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{net::TcpListener, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{info, warn};

use crate::{
    config::{Overrides, Plan},
    proxy::{
        Shared,
        auth::Keys,
        fallback::{FallbackError, Fallbacks},
        isolate::Salts,
        poison::Suspects,
        read::BodyBudget,
    },
    server::{reload::Reloader, supervise::Supervisor, view::View, workers::Workers},
    telemetry::Telemetry,
    upstream::{
        control::{self, Watch},
        tls,
    },
};

/// Recorded samples are moved into the histograms this often.
const UPKEEP: Duration = Duration::from_secs(5);

/// The spend on hosted models is written this often.
const KEEP_SPEND: Duration = Duration::from_secs(1);

/// A gateway that could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port is taken or not ours.
    #[error("cannot listen on {address} ({port} port): {cause}")]
    Listen {
        /// Which port.
        port: &'static str,
        /// Where.
        address: SocketAddr,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// No client for probes.
    #[error("cannot set up the client for health probes: {0}")]
    Client(#[from] control::ClientError),
    /// Hosted models.
    #[error(transparent)]
    Fallback(#[from] FallbackError),
    /// No thread for the access log.
    #[error("cannot start the access log: {0}")]
    AccessLog(#[source] io::Error),
}

/// A running gateway.
#[derive(Debug)]
pub struct Running {
    /// Data port.
    pub address: SocketAddr,
    /// Admin port.
    pub admin_address: SocketAddr,
    shared: Arc<Shared>,
    workers: Workers,
    tasks: TaskTracker,
    /// Begins the drain.
    drain: CancellationToken,
    /// Ends everything.
    stop: CancellationToken,
}

/// Starts the gateway. Must be called inside a runtime, which carries the admin port and the watches.
///
/// # Errors
/// When a port cannot be bound or a thread cannot be started.
pub async fn start(plan: Plan) -> Result<Running, StartError> {
    tls::install_provider();
    let plan = Arc::new(plan);
    let telemetry = Telemetry::with_access_log(plan.server.access_log).map_err(StartError::AccessLog)?;
    let shared = Arc::new(Shared {
        directory: arc_swap::ArcSwap::default(),
        keys: arc_swap::ArcSwap::from_pointee(Keys::new(&plan.keys, &Keys::default())),
        salts: plan.server.isolation_secret.as_ref().map(Salts::new),
        bodies: BodyBudget::new(plan.server.limits.body_memory),
        telemetry: telemetry.clone(),
        suspects: Suspects::default(),
        fallbacks: Fallbacks::new(&plan, &telemetry)?,
        server: plan.server.clone(),
    });
    let (tasks, drain, stop) = (TaskTracker::new(), CancellationToken::new(), CancellationToken::new());
    let admin_listen = plan.server.admin_listen;
    let listen = |port, address| move |cause| StartError::Listen { port, address, cause };
    let admin = TcpListener::bind(admin_listen).await.map_err(listen("admin", admin_listen))?;
    let admin_address = admin.local_addr().map_err(listen("admin", admin_listen))?;
    let workers = Workers::start(&shared, &tasks, &drain, &stop).map_err(listen("data", plan.server.listen))?;
    let view = Arc::new(View { shared: shared.clone(), drain: drain.clone() });
    let served = axum::serve(admin, admin::router(view)).with_graceful_shutdown(stop.clone().cancelled_owned());
    tasks.spawn(async move {
        if let Err(error) = served.await {
            warn!(%error, "the admin port ended");
        }
    });
    let mut watch = Watch::new(control::client(plan.server.timeouts.connect)?, stop.clone());
    watch.interval = plan.server.health.interval;
    watch.timeout = plan.server.health.timeout;
    let supervisor = Supervisor::start(shared.clone(), plan, watch, tasks.clone());
    tasks.spawn(keep_spend(shared.clone(), stop.clone()));
    tasks.spawn(upkeep(telemetry, supervisor, stop.clone()));
    let address = workers.address();
    info!(%address, admin = %admin_address, "gateway listens");
    Ok(Running { address, admin_address, shared, workers, tasks, drain, stop })
}

/// Moves samples into histograms; holds the supervisor for as long as the gateway runs.
async fn upkeep(telemetry: Arc<Telemetry>, supervisor: Arc<Supervisor>, stop: CancellationToken) {
    let mut tick = tokio::time::interval(UPKEEP);
    while stop.run_until_cancelled(tick.tick()).await.is_some() {
        telemetry.upkeep();
    }
    drop(supervisor);
}

/// Keeps what hosted models have cost.
async fn keep_spend(shared: Arc<Shared>, stop: CancellationToken) {
    let mut tick = tokio::time::interval(KEEP_SPEND);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while stop.run_until_cancelled(tick.tick()).await.is_some() {
        let shared = shared.clone();
        if tokio::task::spawn_blocking(move || shared.fallbacks.keep_spend()).await.is_err() {
            warn!("the spend on hosted models was not kept");
        }
    }
}

impl Running {
    /// What every request shares.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Reads the configuration of these flags again whenever it changes, until the drain begins.
    pub fn follow(&self, overrides: Overrides, plan: &Plan) {
        if let Some(reloader) = Reloader::new(self.shared.clone(), overrides, plan) {
            self.tasks.spawn(reloader.run(self.drain.clone()));
        }
    }

    /// Stops: no new connections, running requests end within `timeouts.drain`, the rest is cut. Returns whether all
    /// requests ended by themselves. A cancelled `now` cuts at once.
    pub async fn shutdown(self, now: CancellationToken) -> bool {
        let limit = self.shared.server.timeouts.drain;
        info!(limit = ?limit, "draining");
        self.drain.cancel();
        let ended = self.workers.join();
        tokio::pin!(ended);
        let clean = tokio::select! {
            done = timeout(limit, &mut ended) => done.is_ok(),
            () = now.cancelled() => false,
        };
        self.stop.cancel();
        if !clean {
            warn!("cutting the requests that still run");
            ended.await;
        }
        self.tasks.close();
        self.tasks.wait().await;
        // The last lines of the access log; waits a second at most when the pipe is blocked.
        let shared = self.shared.clone();
        let last = move || {
            shared.fallbacks.keep_spend();
            shared.telemetry.flush_access_log();
        };
        if tokio::task::spawn_blocking(last).await.is_err() {
            warn!("the access log was not flushed");
        }
        clean
    }
}
