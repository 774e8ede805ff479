//! Gateway: one binary in front of a team's vLLM and SGLang replicas.
//!
//! A request meets the modules in this order: [`types`] are the words all share.

pub mod cli;
pub mod error;
pub mod simserver;
pub mod simulator;
pub mod types;
