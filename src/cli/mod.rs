//! Commands: one file each, flags to a typed plan, no logic.

pub mod capacity;
pub mod check;
pub mod demo;
pub mod engine;
pub mod key;
pub mod loadtest;
pub mod serve;
pub mod simulate;

use clap::{Parser, Subcommand};

/// Prefix-aware gateway for pools of vLLM and SGLang replicas.
#[derive(Debug, Parser)]
#[command(name = "gateway", version, about, max_term_width = 80)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compare placement with round robin on simulated replicas, then stay up.
    Demo(demo::DemoArgs),
    /// Route requests to replicas.
    Serve(serve::ServeArgs),
    /// Validate a configuration file and print the effective configuration, secrets masked.
    Check(check::CheckArgs),
    /// Make client keys.
    Key(key::KeyArgs),
    /// Size a pool: memory, concurrency, speed bounds, price, replicas.
    Capacity(Box<capacity::CapacityArgs>),
    /// Simulate a vLLM or SGLang replica.
    Engine(Box<engine::EngineArgs>),
    /// Measure what an OpenAI-compatible streaming endpoint really does.
    Loadtest(Box<loadtest::LoadtestArgs>),
    /// Replay a trace on simulated replicas, in virtual time, and compare policies.
    Simulate(Box<simulate::SimulateArgs>),
}
