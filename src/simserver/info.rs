//! What the engine says about itself: models, server and model information, SGLang's loads.
//!
//! Only what a gateway or an operator reads is there; the real `/server_info` has some 400 keys more.
//! Source: `shared/captures/{vllm,sglang}/get`, `sglang/native/v1_loads*`.

use http::Response;
use serde_json::json;

use super::{Server, answer, body::SimBody, config::Flavor, unix_seconds};
use crate::simulator::{QueueLimit, Timing};

pub(super) const VLLM_VERSION: &str = "0.32.0";
const SGLANG_VERSION: &str = "0.5.23";

fn model(server: &Server) -> String {
    let config = &server.config;
    let (name, created, longest) = (json!(config.model), unix_seconds(), config.max_model_len);
    match config.flavor {
        Flavor::Vllm => format!(
            "{{\"id\":{name},\"object\":\"model\",\"created\":{created},\"owned_by\":\"vllm\",\"root\":{name},\
             \"parent\":null,\"max_model_len\":{longest},\"permission\":[{{\"id\":\"modelperm-{}\",\
             \"object\":\"model_permission\",\"created\":{created},\"allow_create_engine\":false,\
             \"allow_sampling\":true,\"allow_logprobs\":true,\"allow_search_indices\":false,\"allow_view\":true,\
             \"allow_fine_tuning\":false,\"organization\":\"*\",\"group\":null,\"is_blocking\":false}}]}}",
            server.fresh_id()
        ),
        Flavor::Sglang => format!(
            "{{\"id\":{name},\"object\":\"model\",\"created\":{created},\"owned_by\":\"sglang\",\"root\":{name},\
             \"parent\":null,\"max_model_len\":{longest}}}"
        ),
    }
}

/// `GET /v1/models`
pub(super) fn models(server: &Server) -> String {
    format!("{{\"object\":\"list\",\"data\":[{}]}}", model(server))
}

/// `GET /v1/models/{id}` (SGLang)
pub(super) fn one_model(server: &Server, id: &str) -> Response<SimBody> {
    if id == server.config.model {
        return answer::json(200, model(server));
    }
    let error = json!({"error": {
        "message": format!("The model '{id}' does not exist"), "type": "invalid_request_error", "param": "model",
        "code": "model_not_found",
    }});
    answer::json(404, error.to_string())
}

/// `GET /server_info` (SGLang)
pub(super) fn server_info(server: &Server) -> String {
    let config = &server.config;
    let queued = match config.engine.limits.queue {
        QueueLimit::Waiting(limit) | QueueLimit::Total(limit) => Some(limit),
        QueueLimit::Unlimited => None,
    };
    let accelerator = match &config.engine.timing {
        Timing::Roofline(roofline) => Some(roofline.gpu.name),
        Timing::Rates(_) => None,
    };
    json!({
        "model_path": config.model,
        "served_model_name": config.model,
        "context_length": config.max_model_len,
        "max_running_requests": config.engine.limits.max_num_seqs,
        "max_queued_requests": queued,
        "max_total_tokens": config.engine.kv_tokens,
        "max_total_num_tokens": config.engine.kv_tokens,
        "chunked_prefill_size": config.engine.limits.max_num_batched_tokens,
        "page_size": config.engine.block_size,
        "schedule_policy": "fcfs",
        "dp_size": 1,
        "tp_size": 1,
        "disable_radix_cache": !config.engine.prefix_caching,
        "random_seed": config.seed,
        "accelerator": accelerator,
        "kv_events": null,
        "version": SGLANG_VERSION,
    })
    .to_string()
}

/// `GET /model_info` (SGLang)
pub(super) fn model_info(server: &Server) -> String {
    json!({
        "model_path": server.config.model,
        "served_model_name": server.config.model,
        "tokenizer_path": server.config.model,
        "is_generation": true,
        "weight_version": "default",
        "load_format": "dummy",
        "disaggregation_mode": "null",
        "model_type": "llama",
    })
    .to_string()
}

/// `GET /v1/loads` (SGLang): live, unlike the gauges of a real engine.
pub(super) fn loads(server: &Server) -> String {
    let (stats, config) = (server.driver.stats(), &server.config);
    let used = stats.used_blocks * config.engine.block_size;
    let waiting_tokens = server.driver.waiting_tokens();
    let micros = u64::try_from(stats.prefill_busy.as_micros()).unwrap_or(u64::MAX);
    json!({
        "timestamp": unix_seconds(),
        "version": SGLANG_VERSION,
        "accelerator": null,
        "num_accelerators": 1,
        "loads": [{
            "timestamp": unix_seconds(),
            "dp_rank": 0,
            "num_running_reqs": stats.running,
            "num_waiting_reqs": stats.waiting,
            "num_waiting_uncached_tokens": waiting_tokens,
            "num_used_tokens": used,
            "num_total_tokens": used + waiting_tokens,
            "num_active_tokens": used + waiting_tokens,
            "max_total_num_tokens": stats.blocks * config.engine.block_size,
            "max_running_requests": config.engine.limits.max_num_seqs,
            "token_usage": stats.kv_usage(),
            "gen_throughput": 0.0,
            "cache_hit_rate": 0.0,
            "utilization": 0.0,
            "total_prefill_uncached_tokens": stats.totals.queries - stats.totals.hits,
            "total_prefill_busy_us": micros,
            "queues": {"waiting": stats.waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0},
        }],
    })
    .to_string()
}
