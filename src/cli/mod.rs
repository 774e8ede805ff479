//! One file a command: flags to a typed plan, no logic.

pub mod engine;
