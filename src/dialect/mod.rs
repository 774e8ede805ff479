//! What clients and engines speak: JSON bodies, server-sent events.

pub mod event;

pub mod sse;
pub mod walk;
