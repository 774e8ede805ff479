//! `/metrics` under vLLM's names.
//!
//! Token counters of the prefix cache count tokens, not blocks; `kv_cache_usage_perc` is 0 to 1 and counts only blocks in
//! use, so it is 0 when idle although the cache is full. Aborts count nowhere in `request_success_total`, as captured.
//! Source: `shared/captures/vllm/metrics/names-help-types.txt`, `3-after-load.prom`.

use super::{
    Server,
    meter::{Histogram, Meter, put},
};

/// The page.
pub(super) fn page(server: &Server) -> String {
    let (stats, meter) = server.driver.read();
    let config = &server.config;
    let labels = format!("engine=\"0\",model_name={}", serde_json::json!(config.model));
    let mut page = Page { out: String::with_capacity(16 * 1024), labels };
    put(
        &mut page.out,
        format_args!(
            "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.\n\
             # TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {:?}\n",
            server.start_time
        ),
    );
    page.gauge("num_requests_running", "Number of requests in model execution batches.", stats.running as f64);
    page.gauge("num_requests_waiting", "Number of requests waiting to be processed.", stats.waiting as f64);
    page.family("num_requests_waiting_by_reason", "Number of waiting requests by reason.", "gauge");
    page.sample("num_requests_waiting_by_reason", ",reason=\"capacity\"", stats.waiting as f64);
    page.sample("num_requests_waiting_by_reason", ",reason=\"deferred\"", 0.0);
    page.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", stats.kv_usage());
    let (queries, hits) = (stats.totals.queries as f64, stats.totals.hits as f64);
    page.counter("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", queries);
    page.counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", hits);
    let preemptions = stats.totals.preemptions as f64;
    page.counter("num_preemptions", "Cumulative number of preemption from the engine.", preemptions);
    let (prompt, cached) = (meter.prompt_tokens as f64, meter.cached_tokens as f64);
    page.counter("prompt_tokens", "Number of prefill tokens processed.", prompt);
    page.family("prompt_tokens_by_source_total", "Number of prompt tokens by source.", "counter");
    page.sample("prompt_tokens_by_source_total", ",source=\"local_compute\"", prompt - cached);
    page.sample("prompt_tokens_by_source_total", ",source=\"local_cache_hit\"", cached);
    page.counter("prompt_tokens_cached", "Number of cached prompt tokens (local + external).", cached);
    page.counter("generation_tokens", "Number of generation tokens processed.", stats.generated as f64);
    page.family("request_success_total", "Count of successfully processed requests.", "counter");
    for (reason, count) in [("stop", meter.by_stop), ("length", meter.by_length), ("abort", 0), ("error", 0)] {
        page.sample("request_success_total", &format!(",finished_reason=\"{reason}\""), count as f64);
    }
    page.family(
        "admission_rejections_total",
        "Number of admission attempts rejected by a queue limit, by reason.",
        "counter",
    );
    put(
        &mut page.out,
        format_args!(
            "vllm:admission_rejections_total{{model_name={},reason=\"max_num_queued_reqs\"}} {:?}\n",
            serde_json::json!(config.model),
            meter.rejected as f64
        ),
    );
    page.histograms(&meter);
    page.family("cache_config_info", "Information of the LLMEngine CacheConfig", "gauge");
    put(
        &mut page.out,
        format_args!(
            "vllm:cache_config_info{{block_size=\"{}\",cache_dtype=\"auto\",enable_prefix_caching=\"{}\",engine=\"0\",\
             kv_cache_size_tokens=\"{}\",num_gpu_blocks=\"{}\",num_gpu_blocks_override=\"None\"}} 1.0\n",
            config.engine.block_size,
            if config.engine.prefix_caching { "True" } else { "False" },
            stats.blocks * config.engine.block_size,
            stats.blocks
        ),
    );
    page.out
}

struct Page {
    out: String,
    labels: String,
}

impl Page {
    fn family(&mut self, name: &str, help: &str, kind: &str) {
        put(&mut self.out, format_args!("# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}\n"));
    }

    fn sample(&mut self, name: &str, more: &str, value: f64) {
        let labels = &self.labels;
        put(&mut self.out, format_args!("vllm:{name}{{{labels}{more}}} {value:?}\n"));
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, help, "gauge");
        self.sample(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: f64) {
        let name = format!("{name}_total");
        self.family(&name, help, "counter");
        self.sample(&name, "", value);
    }

    fn histograms(&mut self, meter: &Meter) {
        self.histogram("request_prompt_tokens", "Number of prefill tokens processed.", &meter.prompt_lengths);
        self.histogram("request_generation_tokens", "Number of generation tokens processed.", &meter.output_lengths);
        self.histogram("iteration_tokens_total", "Histogram of number of tokens per engine_step.", &meter.step_tokens);
        self.histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds.", &meter.ttft);
        self.histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", &meter.itl);
        self.histogram(
            "request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            &meter.tpot,
        );
        self.histogram("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", &meter.e2e);
        self.histogram(
            "request_queue_time_seconds",
            "Histogram of time spent in WAITING phase for request.",
            &meter.queue_time,
        );
        self.histogram(
            "request_prefill_time_seconds",
            "Histogram of time spent in PREFILL phase for request.",
            &meter.prefill_time,
        );
        self.histogram(
            "request_decode_time_seconds",
            "Histogram of time spent in DECODE phase for request.",
            &meter.decode_time,
        );
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.family(name, help, "histogram");
        histogram.write(&mut self.out, &format!("vllm:{name}"), &self.labels);
    }
}
