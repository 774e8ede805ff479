//! `/metrics` under SGLang's names.
//!
//! Scheduler gauges carry rank labels, request counters carry none of them. Free and evictable tokens are apart: the
//! prefix cache is "evictable", not "available". (Real request counters are split by `is_streaming`; here they are not.)
//! Source: `shared/captures/sglang/metric-names.txt`, `native/metrics-*.prom`.

use super::{
    Server,
    meter::{Histogram, put},
};

/// The page.
pub(super) fn page(server: &Server) -> String {
    let (stats, meter) = server.driver.read();
    let config = &server.config;
    let model = serde_json::json!(config.model);
    let request = format!("engine_type=\"unified\",model_name={model}");
    let rank = format!("engine_type=\"unified\",model_name={model},moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"0\"");
    let mut out = String::with_capacity(16 * 1024);
    put(
        &mut out,
        format_args!(
            "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.\n\
             # TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {:?}\n",
            server.start_time
        ),
    );
    let block = config.engine.block_size as f64;
    let total = stats.blocks as f64 * block;
    let used = stats.used_blocks as f64 * block;
    let evictable = server.driver.evictable_blocks() as f64 * block;
    for (name, help, value) in [
        ("max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", total),
        ("page_size", "Page size of the KV cache.", block),
        ("context_len", "Context length.", config.max_model_len as f64),
        ("num_running_reqs", "The number of running requests.", stats.running as f64),
        ("num_queue_reqs", "The number of requests in the waiting queue.", stats.waiting as f64),
        ("num_used_tokens", "The number of used tokens.", used),
        ("token_usage", "The token usage.", stats.kv_usage()),
        ("full_token_usage", "The token usage of full attention.", stats.kv_usage()),
        ("kv_used_tokens", "KV tokens in use.", used),
        ("kv_evictable_tokens", "KV tokens that are cached and may be evicted.", evictable),
        ("kv_available_tokens", "KV tokens that are free.", total - used - evictable),
        ("cache_hit_rate", "The prefix cache hit rate.", 0.0),
        ("gen_throughput", "The generation throughput (token/s).", 0.0),
        ("utilization", "Utilization.", 0.0),
        ("num_retracted_reqs", "The number of retracted requests.", stats.totals.preemptions as f64),
    ] {
        put(
            &mut out,
            format_args!(
                "# HELP sglang:{name} {help}\n# TYPE sglang:{name} gauge\nsglang:{name}{{{rank}}} {value:?}\n"
            ),
        );
    }
    let source = format!("cache_source=\"device\",{request}");
    for (name, help, value, labels) in [
        ("prompt_tokens_total", "Number of prefill tokens processed.", meter.prompt_tokens, &request),
        ("generation_tokens_total", "Number of generation tokens processed.", stats.generated, &request),
        ("cached_tokens_total", "Number of cached prompt tokens.", meter.cached_tokens, &source),
        ("num_requests_total", "Number of requests processed.", stats.finished, &request),
        ("num_aborted_requests_total", "Number of requests aborted.", stats.aborted, &request),
    ] {
        let value = value as f64;
        put(
            &mut out,
            format_args!(
                "# HELP sglang:{name} {help}\n# TYPE sglang:{name} counter\nsglang:{name}{{{labels}}} {value:?}\n"
            ),
        );
    }
    let histograms: [(&str, &str, &Histogram); 4] = [
        ("queue_time_seconds", "Histogram of queueing time in seconds.", &meter.queue_time),
        ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", &meter.ttft),
        ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", &meter.itl),
        ("e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds", &meter.e2e),
    ];
    for (name, help, histogram) in histograms {
        put(&mut out, format_args!("# HELP sglang:{name} {help}\n# TYPE sglang:{name} histogram\n"));
        histogram.write(&mut out, &format!("sglang:{name}"), &request);
    }
    out
}
