//! Gateway: one binary in front of a team's vLLM and SGLang replicas.
//!
//! A request meets the modules in this order: [`types`] are the words all share.

pub mod discovery;
pub mod engine;
pub mod error;
pub mod fleet;
pub mod routing;
pub mod types;
pub mod upstream;
