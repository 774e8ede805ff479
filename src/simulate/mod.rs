//! A pool of simulated replicas behind simulated gateways, in virtual time.
//!
//! What decides is the code that serves: the same [`crate::routing::Policy`], [`crate::routing::PrefixIndex`] and
//! [`crate::fleet::Replica`] (its charges, its reading of the engines' gauges, what it learned), and the engine model
//! behind `gateway engine`. Only the clock, the network and the clients are not real. Nothing here reads a clock or
//! draws a random number: two runs of one scenario are equal to the last digit.

mod bound;
pub mod chart;
mod gateway;
mod node;
mod pool;
mod report;
pub mod trace;

pub use bound::shared_lru;
pub use pool::{Change, Scenario, UnknownPolicy, run};
pub use report::{Objectives, Report};
pub use trace::{Arrival, Trace, TraceError};

#[cfg(test)]
mod tests;
