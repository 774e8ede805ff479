//! What clients speak: finding the fields of a request body and changing a body without re-writing it.
//!
//! No body is ever parsed into a tree and written again: [`scan()`] finds byte spans, [`Splices`] replaces spans.
//! Source: DESIGN section 1, rules 1 to 3.

pub mod ids;
pub mod json;
pub mod scan;
pub mod splice;

pub use scan::{Fields, ScanError, Span, bool_value, int_value, scan, string_value};
pub use splice::Splices;
