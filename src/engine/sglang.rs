//! SGLang, 0.5.
//!
//! Every tensor-parallel rank may export the same gauge, so only rank 0 counts, while data-parallel ranks are summed.
//! `cache_hit_rate` is that of the last prefill batch, 0 most of the time: the token counters are used instead. A full
//! queue answers a stream with 200 and an error event.
//! Source: reference/engines.md section 6.

use super::{
    Engine, Sample, Samples, count,
    samples::{mean, total},
    share, tokens,
};
use crate::{fleet::EngineLoad, types::EngineKind};

/// SGLang.
#[derive(Debug, Clone, Copy)]
pub struct Sglang;

const RUNNING: &str = "sglang:num_running_reqs";
const WAITING: &str = "sglang:num_queue_reqs";
const TOKEN_USAGE: &str = "sglang:token_usage";
const CACHE_TOKENS: &str = "sglang:max_total_num_tokens";
const CACHED: &str = "sglang:cached_tokens_total";
const PROMPT: &str = "sglang:prompt_tokens_total";
const START: &str = "process_start_time_seconds";

impl Engine for Sglang {
    fn kind(&self) -> EngineKind {
        EngineKind::Sglang
    }

    fn wanted_metrics(&self) -> &'static [&'static str] {
        &[RUNNING, WAITING, TOKEN_USAGE, CACHE_TOKENS, CACHED, PROMPT, START]
    }

    fn load(&self, samples: &Samples) -> Option<EngineLoad> {
        let sum = |name| total(first_ranks(samples, name)).map(|(sum, _)| sum);
        let queries = samples.sum(PROMPT).map(tokens);
        Some(EngineLoad {
            running: count(sum(RUNNING)?),
            waiting: count(sum(WAITING).unwrap_or(0.0)),
            kv_usage: mean(first_ranks(samples, TOKEN_USAGE)).map(share),
            cache_tokens: sum(CACHE_TOKENS).map(tokens).filter(|&tokens| tokens > 0),
            // The counter appears with its first hit; until then there were none.
            prefix_hits: samples.sum(CACHED).map(tokens).or(queries.map(|_| 0)),
            prefix_queries: queries,
            start_time: samples.sum(START),
        })
    }

    fn closes_on_disconnect(&self) -> bool {
        true
    }
}

/// Samples of the first tensor- and pipeline-parallel rank.
fn first_ranks<'a>(samples: &'a Samples, name: &'a str) -> impl Iterator<Item = &'a Sample> + 'a {
    samples.named(name).filter(|sample| sample.label_is("tp_rank", "0") && sample.label_is("pp_rank", "0"))
}
