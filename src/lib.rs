//! Gateway: one binary in front of a team's vLLM and SGLang replicas.
//!
//! A request meets the modules in this order: [`types`] are the words all share.

pub mod cli;
pub mod config;
pub mod demo;
pub mod dialect;
pub mod discovery;
pub mod engine;
pub mod error;
pub mod fleet;
pub mod prompt;
pub mod proxy;
pub mod routing;
pub mod server;
pub mod simserver;
pub mod simulator;
pub mod telemetry;
pub mod types;
pub mod upstream;
