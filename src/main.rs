//! The `gateway` binary.

use clap::{Parser, Subcommand};
use gateway::cli::engine;

#[derive(Parser)]
#[command(name = "gateway", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Engine(Box<engine::EngineArgs>),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Engine(args) => engine::run(*args).await,
    }
}
