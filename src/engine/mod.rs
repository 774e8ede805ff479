//! What differs between the engines: paths, metric names, the meaning of an error. One file each, behind one trait.
//!
//! An engine that is not recognised is [`EngineKind::Openai`]: it has no load of its own, and that is unknown load, not
//! zero. Nothing here does I/O; the probing is in `upstream`.
//! Source: reference/engines.md, from runs of vLLM 0.32.0 and SGLang 0.5.23 and the source of TGI 3.3.7.

pub mod detect;
pub mod error_code;
mod failure;
pub mod models;
mod openai;
mod samples;
mod sglang;
mod tgi;
mod vllm;

pub use failure::Failure;
pub use openai::Openai;
pub use samples::{Sample, Samples};
pub use sglang::Sglang;
pub use tgi::Tgi;
pub use vllm::Vllm;

use crate::{fleet::EngineLoad, types::EngineKind};

/// One engine's ways.
pub trait Engine: Send + Sync + std::fmt::Debug {
    /// Which engine.
    fn kind(&self) -> EngineKind;

    /// Path of the health check.
    fn health_path(&self) -> &'static str {
        "/health"
    }

    /// Path of the model list.
    fn models_path(&self) -> &'static str {
        "/v1/models"
    }

    /// Path of the metrics page, if it has one.
    fn metrics_path(&self) -> Option<&'static str> {
        Some("/metrics")
    }

    /// Names of the samples that [`Self::load`] reads.
    fn wanted_metrics(&self) -> &'static [&'static str];

    /// Its own word on its load; `None` when the page does not tell.
    fn load(&self, samples: &Samples) -> Option<EngineLoad>;

    /// A page that tells the load as JSON, asked where the metrics page is missing.
    fn load_path(&self) -> Option<&'static str> {
        None
    }

    /// Its word on that page; `None` when the page does not tell.
    fn load_of_page(&self, _page: &[u8]) -> Option<EngineLoad> {
        None
    }

    /// What an error answer means: `status` and body, or status 200 and the data of the first event.
    fn failure(&self, status: u16, body: &[u8]) -> Failure {
        failure::classify(status, body)
    }

    /// Whether closing the connection makes it abort the request.
    fn closes_on_disconnect(&self) -> bool;
}

/// Every engine.
pub const REGISTRY: &[&dyn Engine] = &[&Vllm, &Sglang, &Tgi, &Openai];

/// The engine of a kind.
#[must_use]
pub fn engine(kind: EngineKind) -> &'static dyn Engine {
    match kind {
        EngineKind::Vllm => &Vllm,
        EngineKind::Sglang => &Sglang,
        EngineKind::Tgi => &Tgi,
        EngineKind::Openai => &Openai,
    }
}

/// A count from a gauge: rounded, negative as zero.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the range of u32 before")]
fn count(value: f64) -> u32 {
    value.round().clamp(0.0, f64::from(u32::MAX)) as u32
}

/// A count of tokens: rounded, negative as zero.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float-to-int cast saturates")]
fn tokens(value: f64) -> u64 {
    value.round().max(0.0) as u64
}

/// A share from a gauge, 0 to 1.
#[expect(clippy::cast_possible_truncation, reason = "a share needs no more than single precision")]
fn share(value: f64) -> f32 {
    value.clamp(0.0, 1.0) as f32
}

#[cfg(test)]
mod tests;
