//! vLLM, 0.8 to 0.33.
//!
//! `/health` says only that the process lives: it is 200 while the engine hangs. The prefix cache is counted in tokens;
//! `kv_cache_usage_perc` is 0 to 1 and counts running requests only, so a full prefix cache reads as 0.
//! Source: reference/engines.md sections 3 and 5 for the names of all releases.

use super::{Engine, Samples, count, share, tokens};
use crate::{fleet::EngineLoad, types::EngineKind};

/// vLLM.
#[derive(Debug, Clone, Copy)]
pub struct Vllm;

const RUNNING: &str = "vllm:num_requests_running";
const WAITING: &str = "vllm:num_requests_waiting";
const KV_USAGE: &[&str] = &["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"];
const HITS: &[&str] =
    &["vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits"];
const QUERIES: &[&str] =
    &["vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries"];
const CACHE_CONFIG: &str = "vllm:cache_config_info";
const START: &str = "process_start_time_seconds";

impl Engine for Vllm {
    fn kind(&self) -> EngineKind {
        EngineKind::Vllm
    }

    fn wanted_metrics(&self) -> &'static [&'static str] {
        &[
            RUNNING,
            WAITING,
            "vllm:kv_cache_usage_perc",
            "vllm:gpu_cache_usage_perc",
            "vllm:prefix_cache_hits_total",
            "vllm:gpu_prefix_cache_hits_total",
            "vllm:gpu_prefix_cache_hits",
            "vllm:prefix_cache_queries_total",
            "vllm:gpu_prefix_cache_queries_total",
            "vllm:gpu_prefix_cache_queries",
            CACHE_CONFIG,
            START,
        ]
    }

    fn load(&self, samples: &Samples) -> Option<EngineLoad> {
        Some(EngineLoad {
            running: count(samples.sum(RUNNING)?),
            waiting: count(samples.sum(WAITING).unwrap_or(0.0)),
            kv_usage: samples.mean_any(KV_USAGE).map(share),
            cache_tokens: cache_tokens(samples),
            prefix_hits: samples.sum_any(HITS).map(tokens),
            prefix_queries: samples.sum_any(QUERIES).map(tokens),
            start_time: samples.sum(START),
        })
    }

    fn closes_on_disconnect(&self) -> bool {
        true
    }
}

/// Blocks times block size, summed over the engines of a data-parallel server; `None` before the pool is sized.
fn cache_tokens(samples: &Samples) -> Option<u64> {
    let sizes = samples.named(CACHE_CONFIG).map(|sample| {
        let block_size: u64 = sample.label("block_size")?.parse().ok()?;
        let blocks: u64 = sample.label("num_gpu_blocks")?.parse().ok()?;
        block_size.checked_mul(blocks)
    });
    let sum = sizes.flatten().fold(0_u64, u64::saturating_add);
    (sum > 0).then_some(sum)
}
