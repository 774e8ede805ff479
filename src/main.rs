//! The `gateway` binary: parse, start a runtime, run one command.

use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
};

use clap::Parser;
use gateway::cli::{Cli, Command, capacity, check, demo, engine, key, loadtest, serve, simulate};
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Exit code of a command that could not do its work.
const FAILED: u8 = 1;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let level = if matches!(cli.command, Command::Demo(_) | Command::Loadtest(_)) { "warn" } else { "info" };
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

/// Tells what is wrong with the command line, or the help that was asked for.
fn usage(error: &clap::Error) -> ExitCode {
    // Who closed the output wants no help.
    error.print().unwrap_or_default();
    let loadtest = std::env::args_os().nth(1).is_some_and(|command| command == "loadtest");
    match u8::try_from(error.exit_code()) {
        Ok(0) => ExitCode::SUCCESS,
        // A load test's 2 says that the run is invalid.
        Ok(_) if loadtest => ExitCode::from(loadtest::USAGE),
        Ok(code) => ExitCode::from(code),
        Err(_) => ExitCode::from(FAILED),
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    // Requests run on the workers' own runtimes; this one carries control only.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match cli.command {
            Command::Demo(args) => demo::run(args).await,
            Command::Serve(args) => serve::run(args).await,
            Command::Key(args) => key::run(&args),
            Command::Capacity(args) => Ok(capacity::run(&args)),
            Command::Check(args) => Ok(check::run(args)),
            Command::Loadtest(args) => loadtest::run(*args).await,
            Command::Engine(args) => engine::run(*args).await.map(|()| ExitCode::SUCCESS),
            Command::Simulate(args) => simulate::run(&args),
        }
    })
}
