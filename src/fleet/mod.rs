//! Replicas: their addresses and their state.

pub mod base_url;
