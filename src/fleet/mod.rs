//! Replicas: who they are, how loaded, whether they may be used.
//!
//! Pure: no I/O, no clock (`now` is an argument), no logging. Probes and scrapes that feed this live in `upstream`;
//! the request path reads it and charges it. Each mutex here guards a few words and is never held across an await.
//! Source: DESIGN.md sections 1 and 2; reliability.md section 2 for the numbers.

mod base_url;
mod breaker;
mod budget;
mod health;
mod in_flight;
mod load;
mod poison;
mod prefill;
mod recent;
mod replica;
mod room;
mod served;
mod slots;
mod spend;
mod ttft;
mod usable;

pub use base_url::{BaseUrl, BaseUrlError};
pub use breaker::Breaker;
pub use budget::RetryBudget;
pub use health::{Active, FailureCause, ProbeFailure, Standing};
pub use in_flight::InFlight;
pub use load::{EngineLoad, LOAD_STALE};
pub use poison::Poison;
pub use recent::Recent;
pub use replica::{Replica, ReplicaSpec};
pub use room::Freed;
pub use served::ServedModel;
pub use slots::Slots;
pub use spend::{Exhausted, Ledger, Period, Prices, SpendLimits, Spent, Usd};
pub use usable::usable_replicas;
