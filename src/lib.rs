//! Gateway: one binary in front of a team's vLLM and SGLang replicas.
//!
//! A request meets the modules in this order:
//!
//! 1. [`server`] accepts the connection, checks the head, finds the endpoint.
//! 2. [`proxy`] takes it from bytes to bytes. It asks
//! 3. [`dialect`] for the fields of the body and for the splices,
//! 4. [`prompt`] for the chain of block hashes,
//! 5. [`admission`] for a turn when no replica has room, [`fleet`] for the replicas that may be used, and [`routing`]
//!    for their order,
//! 6. [`upstream`] to send it, [`engine`] for what an error of that engine means,
//! 7. [`dialect`] again for what the events of the answer say, and
//! 8. [`telemetry`] to count how it ended.
//!
//! Beside the path, [`config`] says what to run, [`discovery`] and [`upstream`] keep the fleet true; [`simulator`] and
//! [`simserver`] are replicas without a GPU, [`demo`] shows all of it, [`cli`] has the commands. [`types`] and [`error`]
//! are the words that all share. `ARCHITECTURE.md` is the map.

pub mod admission;
pub mod capacity;
pub mod cli;
pub mod config;
pub mod demo;
pub mod dialect;
pub mod discovery;
pub mod engine;
pub mod error;
pub mod fleet;
pub mod limits;
pub mod loadtest;
pub mod prompt;
pub mod proxy;
pub mod routing;
pub mod server;
pub mod simserver;
pub mod simulate;
pub mod simulator;
pub mod telemetry;
pub mod types;
pub mod upstream;
