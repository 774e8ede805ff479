//! Gateway: one binary in front of a team's vLLM and SGLang replicas.
//!
//! A request meets the modules in this order: [`types`] are the words all share; [`dialect`] finds the fields of its body
//! and splices changes into it; [`prompt`] makes the chain of block hashes of its prompt; [`routing`] ranks the replicas.

pub mod dialect;
pub mod error;
pub mod prompt;
pub mod routing;
pub mod types;
