//! `gateway serve`: flags to a plan, then run until told to stop.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    config::{self, Overrides},
    server,
};

/// Route requests to replicas.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Configuration file (YAML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// URL of a replica, as often as needed; its models are found.
    #[arg(long = "replica", value_name = "URL")]
    replicas: Vec<String>,
    /// Address of the data port [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Address of the admin port [default: 127.0.0.1:9090].
    #[arg(long, value_name = "ADDR")]
    admin_listen: Option<SocketAddr>,
    /// How a replica is chosen: `prefix` (default), `lmetric`, `learned`,
    /// `least_load`, `round_robin` or `random`.
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Serve on addresses beyond loopback without keys.
    #[arg(long)]
    insecure_no_auth: bool,
}

impl ServeArgs {
    fn overrides(self) -> Overrides {
        Overrides {
            config: self.config,
            replicas: self.replicas,
            listen: self.listen,
            admin_listen: self.admin_listen,
            policy: self.policy,
            insecure_no_auth: self.insecure_no_auth,
        }
    }
}

/// Runs the gateway until SIGTERM or SIGINT; a second signal cuts what still runs.
///
/// # Errors
/// When the configuration is wrong or the gateway cannot start.
pub async fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let overrides = args.overrides();
    let plan = config::load(&overrides, &config::environment)?;
    for warning in &plan.warnings {
        warn!("{warning}");
    }
    raise_file_limit(plan.server.limits.connections);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let running = server::start(plan.clone()).await?;
    running.follow(overrides, &plan);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    let now = CancellationToken::new();
    let clean = {
        let shutdown = running.shutdown(now.clone());
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                clean = &mut shutdown => break clean,
                _ = terminate.recv() => now.cancel(),
                _ = interrupt.recv() => now.cancel(),
            }
        }
    };
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Two descriptors a connection, and some to spare.
fn raise_file_limit(connections: usize) {
    let wanted = connections as u64 * 2 + 256;
    match rlimit::increase_nofile_limit(wanted) {
        Ok(limit) if limit < wanted => {
            warn!(limit, wanted, "the limit on open files is low for server.limits.connections");
        }
        Ok(limit) => info!(limit, "open files"),
        Err(error) => warn!(%error, "cannot raise the limit on open files"),
    }
}
