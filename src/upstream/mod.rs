//! The side that talks to replicas.
//!
//! [`client`] carries requests; [`control`] watches replicas (health, models, metrics) with a client of its own, so a
//! pool full of streams never delays a probe.

pub mod body;
pub mod client;
pub mod control;
pub mod hosted;
mod pages;
mod probe;
mod scrape;
pub mod tls;
