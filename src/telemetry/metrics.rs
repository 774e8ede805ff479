//! The one table of all metrics: name, kind, labels, help.
//!
//! Registration, the documentation, the dashboard test and the admin page read this table; a metric that is not here
//! does not exist. Names follow `gateway_<noun>_<unit>[_total]`; label values come from closed enums or from the
//! configuration, never from a request. TTFT, TPOT and ITL are defined in the design's interface, "Metrics".

use metrics::{Key, Label};

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MetricKind {
    /// Only rises.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Distribution over the given upper bounds.
    Histogram(&'static [f64]),
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MetricDef {
    /// Name on the page.
    pub name: &'static str,
    /// Kind, with the buckets of a histogram.
    pub kind: MetricKind,
    /// Label names, in order.
    pub labels: &'static [&'static str],
    /// One line for people.
    pub help: &'static str,
}

impl MetricDef {
    /// Key of one series; `values` in the order of the labels.
    pub(super) fn key(&self, values: &[&str]) -> Key {
        debug_assert_eq!(self.labels.len(), values.len(), "{} needs {:?}", self.name, self.labels);
        let labels = self.labels.iter().zip(values);
        Key::from_parts(
            self.name,
            labels.map(|(name, value)| Label::new(*name, (*value).to_owned())).collect::<Vec<_>>(),
        )
    }
}

/// Seconds, 1 ms to 300 s: from a cached one-token prompt to a queue at its limit.
pub const TTFT_BUCKETS: &[f64] = &[
    0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5,
    10.0, 15.0, 30.0, 60.0, 120.0, 300.0,
];
/// Seconds, 0.5 ms to 5 s: from speculative decoding on a small model to a preempted request.
pub const TOKEN_BUCKETS: &[f64] = &[
    0.0005, 0.001, 0.002, 0.0035, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0,
    2.5, 5.0,
];
/// Seconds, 5 ms to 600 s: from an embedding to the total limit.
pub const DURATION_BUCKETS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0];
/// Seconds, 10 us to 100 ms: what the gateway itself adds.
pub const OVERHEAD_BUCKETS: &[f64] =
    &[0.000_01, 0.000_02, 0.000_05, 0.000_1, 0.000_2, 0.000_35, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1];
/// Seconds, 1 ms to 30 s: waits below a millisecond are none, and the queue's limit is 30 s.
pub const WAIT_BUCKETS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Makes one constant a row, and the table of all rows.
macro_rules! metric_table {
    ($($id:ident = $name:literal, $kind:expr, [$($label:literal),*], $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $id: MetricDef = MetricDef { name: $name, kind: $kind, labels: &[$($label),*], help: $help };
        )*
        /// Every metric.
        pub const METRICS: &[MetricDef] = &[$($id),*];
    };
}

use MetricKind::{Counter, Gauge, Histogram};

metric_table! {
    REQUESTS = "gateway_requests_total", Counter, ["model", "endpoint", "outcome"], "Requests by how they ended";
    TTFT = "gateway_time_to_first_token_seconds", Histogram(TTFT_BUCKETS), ["model", "route"],
        "Last request byte to the first event that carries output";
    TPOT = "gateway_time_per_output_token_seconds", Histogram(TOKEN_BUCKETS), ["model", "route"],
        "Time from first to last output event, per output token after the first";
    ITL = "gateway_inter_token_latency_seconds", Histogram(TOKEN_BUCKETS), ["model"],
        "Gap between consecutive output events";
    DURATION = "gateway_request_duration_seconds", Histogram(DURATION_BUCKETS), ["model", "outcome"],
        "Last request byte to last answer byte";
    OVERHEAD = "gateway_overhead_seconds", Histogram(OVERHEAD_BUCKETS), ["model"],
        "Time that the gateway itself added before dispatch";
    QUEUE_WAIT = "gateway_queue_wait_seconds", Histogram(WAIT_BUCKETS), ["model"], "Time spent waiting for a place";
    QUEUE_DEPTH = "gateway_queue_depth", Gauge, ["model"], "Requests waiting for a place";
    PROMPT_TOKENS = "gateway_prompt_tokens_total", Counter, ["model", "key"], "Prompt tokens, as the engine counted them";
    OUTPUT_TOKENS = "gateway_output_tokens_total", Counter, ["model", "key"], "Output tokens, as the engine counted them";
    CACHED_TOKENS = "gateway_cached_tokens_total", Counter, ["model", "source"],
        "Prompt tokens found in a replica's cache, predicted at dispatch and reported by the engine";
    SAVED = "gateway_prefill_tokens_saved_total", Counter, ["model"],
        "Prompt tokens that no engine had to prefill again";
    SLO_MET = "gateway_slo_met_total", Counter, ["model"], "Requests that met every objective of the model";
    SLO_MISSED = "gateway_slo_missed_total", Counter, ["model", "objective"], "Requests that missed an objective";
    REJECTED = "gateway_rejected_total", Counter, ["model", "reason"], "Requests refused by the gateway";
    FALLBACK = "gateway_fallback_total", Counter, ["model", "reason"], "Requests sent to a hosted model";
    FALLBACK_SKIPPED = "gateway_fallback_skipped_total", Counter, ["model", "target", "reason"],
        "Times that a hosted model was passed over or gave no answer";
    FALLBACK_DROPPED = "gateway_fallback_dropped_fields_total", Counter, ["model", "target"],
        "Engine-only request fields that were taken out for a hosted model";
    FALLBACK_SPEND = "gateway_fallback_spend_usd", Gauge, ["model", "target", "window"],
        "US dollars that a hosted model has cost in this hour and day";
    FALLBACK_BREAKER = "gateway_fallback_breaker_open", Gauge, ["model", "target"],
        "1 while a hosted model is left alone because it failed";
    RETRIES = "gateway_retries_total", Counter, ["model", "cause"], "Requests sent to another replica, by what the first did";
    REPLICA_UP = "gateway_replica_up", Gauge, ["model", "replica"], "1 when the replica passes its health probes";
    REPLICA_INFLIGHT = "gateway_replica_inflight", Gauge, ["model", "replica"], "Requests that the gateway has at the replica";
    REPLICA_WAITING = "gateway_replica_waiting", Gauge, ["model", "replica"], "Requests waiting inside the engine, by its own count";
    REPLICA_KV_USAGE = "gateway_replica_kv_usage", Gauge, ["model", "replica"], "Share of the engine's KV cache in use, by its own count";
    REPLICA_PICKS = "gateway_replica_picks_total", Counter, ["model", "replica", "reason"], "Routing decisions by reason";
    INDEX_ENTRIES = "gateway_index_entries", Gauge, ["model"], "Blocks that the prefix index remembers";
    INDEX_EVICTIONS = "gateway_index_evictions_total", Counter, ["model"], "Blocks that the prefix index forgot for lack of room";
    PREDICTION_ERROR = "gateway_ttft_prediction_error_seconds", Histogram(TTFT_BUCKETS), ["model"],
        "Absolute difference between predicted and observed time to first token";
    WASTED = "gateway_wasted_tokens_total", Counter, ["model", "cause"], "Output tokens generated that no client received whole";
    PARSE_ERRORS = "gateway_stream_parse_errors_total", Counter, ["model"], "Stream events that were relayed but not understood";
    ACCESS_DROPPED = "gateway_access_log_dropped_total", Counter, [], "Access log lines dropped because the reader was slow";
    CONFIG_RELOADS = "gateway_config_reloads_total", Counter, ["result"], "Times that the configuration was read again";
    CONNECTIONS = "gateway_connections", Gauge, [], "Open client connections";
    BODY_MEMORY = "gateway_body_memory_bytes", Gauge, [], "Bytes of request bodies held";
    BUILD_INFO = "gateway_build_info", Gauge, ["version"], "1, with the version as label";
}
