//! The ports that the gateway listens on.

pub mod admin;
