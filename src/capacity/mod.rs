//! Capacity: from a model and a GPU to weights, KV cache, concurrency, speed bounds, price and a replica count.
//!
//! Pure arithmetic on inputs that the caller has read: exact where engines are exact (weights by module, cache bytes,
//! blocks), a stated range where they are not (overhead), and bounds kept apart from estimates (speed).

mod cache;
mod calibrate;
mod device;
mod fleet;
mod geometry;
mod memory;
mod parse;
mod presets;
mod speed;
mod weights;

pub use cache::{Blocks, Layout, Pool, layout};
pub use calibrate::{Figures, read_log};
pub use device::{Device, device, devices};
pub use fleet::{Fleet, FleetInput, LATE, erlang_c, plan_fleet};
pub use geometry::{Attention, Geometry, Indexer, Layer, Mlp};
pub use memory::{Engine, Memory, MemoryInput, Range, Split, memory, overhead};
pub use parse::geometry;
pub use presets::{preset, preset_names};
pub use speed::{Speed, SpeedInput, Traffic};
pub use weights::{Format, Weights, format_of, weights};

/// Bytes in a GiB.
pub const GIB: f64 = 1_073_741_824.0;

/// An input that can't be used: which one, why, and what to give instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}; {remedy}")]
pub struct Problem {
    /// The field or flag.
    pub field: String,
    /// What is wrong, with the value.
    pub problem: String,
    /// What to do.
    pub remedy: String,
}

impl Problem {
    pub(crate) fn new(field: impl Into<String>, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into(), remedy: remedy.into() }
    }
}

/// A whole number out of a figure that is known to be one; saturates.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturating: below 0 is 0, NaN is 0")]
pub(crate) const fn whole(value: f64) -> u64 {
    value as u64
}

/// Lower case, letters and digits only: how names are compared.
pub(crate) fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}
