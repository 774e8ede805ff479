//! Any server that speaks the OpenAI API and was not recognised.
//!
//! Nothing is known of its metrics, so its load is the gateway's own count.

use super::{Engine, Samples};
use crate::{fleet::EngineLoad, types::EngineKind};

/// An unrecognised server.
#[derive(Debug, Clone, Copy)]
pub struct Openai;

impl Engine for Openai {
    fn kind(&self) -> EngineKind {
        EngineKind::Openai
    }

    fn metrics_path(&self) -> Option<&'static str> {
        None
    }

    fn wanted_metrics(&self) -> &'static [&'static str] {
        &[]
    }

    fn load(&self, _samples: &Samples) -> Option<EngineLoad> {
        None
    }

    fn closes_on_disconnect(&self) -> bool {
        false
    }
}
