//! The `gateway` binary: parse, start a runtime, run one command.

use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
};

use clap::Parser;
use gateway::cli::{Cli, Command, capacity, check, demo, engine, serve};
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Exit code of a command that could not do its work.
const FAILED: u8 = 1;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let level = if matches!(cli.command, Command::Demo(_)) { "warn" } else { "info" };
    let filter = EnvFilter::try_from_env("GATEWAY_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    match run(cli) {
        Ok(code) => code,
        Err(error) => {
            // Standard error may be closed; then there is nobody to tell.
            writeln!(std::io::stderr(), "gateway: {error:#}").unwrap_or_default();
            ExitCode::from(FAILED)
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    // Requests run on the workers' own runtimes; this one carries control only.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match cli.command {
            Command::Demo(args) => demo::run(args).await,
            Command::Serve(args) => serve::run(args).await,
            Command::Capacity(args) => Ok(capacity::run(&args)),
            Command::Check(args) => Ok(check::run(args)),
            Command::Engine(args) => engine::run(*args).await.map(|()| ExitCode::SUCCESS),
        }
    })
}
