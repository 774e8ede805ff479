//! Gateway: one binary in front of a team's vLLM and SGLang replicas.
//!
//! A request meets the modules in this order: [`types`] are the words all share.

/// What clients speak: body scan, splices.
pub mod dialect;
pub mod error;
/// From a body to the chain of block hashes of its prompt.
pub mod prompt;
/// Where a request goes: prefix index and policies.
pub mod routing;
pub mod types;
