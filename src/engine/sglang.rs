//! SGLang, 0.5.
//!
//! Every tensor-parallel rank may export the same gauge, so only rank 0 counts, while data-parallel ranks are summed.
//! `cache_hit_rate` is that of the last prefill batch, 0 most of the time: the token counters are used instead. A full
//! queue answers a stream with 200 and an error event. `/metrics` is off by default; `/v1/loads` is always there.
//! Source: reference/engines.md section 6.

use serde::Deserialize;

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

    fn load_path(&self) -> Option<&'static str> {
        Some("/v1/loads?include=core")
    }

    fn load_of_page(&self, page: &[u8]) -> Option<EngineLoad> {
        let page: LoadPage = serde_json::from_slice(page).ok()?;
        let ranks = u32::try_from(page.loads.len()).ok().filter(|&ranks| ranks > 0)?;
        let sum = |of: fn(&RankLoad) -> f64| page.loads.iter().map(of).sum::<f64>();
        Some(EngineLoad {
            running: count(sum(|rank| rank.num_running_reqs)),
            waiting: count(sum(|rank| rank.num_waiting_reqs)),
            kv_usage: Some(share(sum(|rank| rank.token_usage) / f64::from(ranks))),
            cache_tokens: Some(tokens(sum(|rank| rank.max_total_num_tokens))).filter(|&tokens| tokens > 0),
            ..EngineLoad::default()
        })
    }

    fn closes_on_disconnect(&self) -> bool {
        true
    }
}

/// `/v1/loads`: one entry for each data-parallel rank.
#[derive(Deserialize)]
struct LoadPage {
    loads: Vec<RankLoad>,
}

#[derive(Deserialize)]
struct RankLoad {
    num_running_reqs: f64,
    num_waiting_reqs: f64,
    #[serde(default)]
    token_usage: f64,
    #[serde(default)]
    max_total_num_tokens: f64,
}

/// Samples of the first tensor- and pipeline-parallel rank.
fn first_ranks<'a>(samples: &'a Samples, name: &'a str) -> impl Iterator<Item = &'a Sample> + 'a {
    samples.named(name).filter(|sample| sample.label_is("tp_rank", "0") && sample.label_is("pp_rank", "0"))
}
