//! What clients and engines speak: request bodies, splices, server-sent events.
//!
//! No body is ever parsed into a tree and written again: [`scan()`] finds byte spans, [`Splices`] replaces spans,
//! [`sse`] watches answers as they pass. Source: DESIGN section 1, rules 1 to 3.

pub mod event;
pub mod ids;
pub mod json;
pub mod restore;
pub mod rewrite;
pub mod scan;
pub mod splice;
pub mod sse;
pub mod walk;

pub use scan::{Fields, ScanError, Span, bool_value, int_value, scan, string_value};
pub use splice::Splices;
