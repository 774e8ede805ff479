//! Hugging Face text-generation-inference, 3.3.
//!
//! Its metrics have no prefix `x:`, no model label, no KV usage and no prefix hits: queue and batch size are all there
//! is. Its errors are `{"error": text, "error_type": word}`; overload is 429, a failed generation 424.
//! Source: reference/engines.md section 7 (read in source, not run).

use super::{Engine, Samples, count};
use crate::{fleet::EngineLoad, types::EngineKind};

/// TGI.
#[derive(Debug, Clone, Copy)]
pub struct Tgi;

const QUEUE: &str = "tgi_queue_size";
const BATCH: &str = "tgi_batch_current_size";
const START: &str = "process_start_time_seconds";

impl Engine for Tgi {
    fn kind(&self) -> EngineKind {
        EngineKind::Tgi
    }

    fn wanted_metrics(&self) -> &'static [&'static str] {
        &[QUEUE, BATCH, START]
    }

    fn load(&self, samples: &Samples) -> Option<EngineLoad> {
        let (batch, queue) = (samples.sum(BATCH), samples.sum(QUEUE));
        batch.or(queue)?;
        Some(EngineLoad {
            running: count(batch.unwrap_or(0.0)),
            waiting: count(queue.unwrap_or(0.0)),
            start_time: samples.sum(START),
            ..EngineLoad::default()
        })
    }

    fn closes_on_disconnect(&self) -> bool {
        true
    }
}
