//! `gateway demo`: flags to ports, then run until told to stop.

use std::{net::SocketAddr, process::ExitCode};

use clap::Args;
use tokio_util::sync::CancellationToken;

use crate::demo::{self, Ports};

/// Compare placement with round robin on simulated replicas, then stay up.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Address of the data port of the gateway that stays up.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Address of its admin port.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9090")]
    admin_listen: SocketAddr,
    /// Leave after the table.
    #[arg(long)]
    exit: bool,
}

/// Runs the demo until it is done or interrupted.
///
/// # Errors
/// When a port is taken or a simulated replica cannot start.
pub async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let stop = CancellationToken::new();
    let ports = Ports { listen: args.listen, admin_listen: args.admin_listen };
    let demo = demo::run(ports, args.exit, stop.clone());
    tokio::pin!(demo);
    let done = tokio::select! {
        done = &mut demo => done,
        _ = tokio::signal::ctrl_c() => {
            stop.cancel();
            demo.await
        }
    };
    done.map(|()| ExitCode::SUCCESS)
}
