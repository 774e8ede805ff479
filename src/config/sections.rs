//! Leaf sections of the configuration: the same struct is read from the file and held in the plan.
//!
//! A struct here knows units and defaults only; ranges and cross-checks are in `check.rs`, so a value that came from
//! a [`Plan`](super::Plan) has passed them, one that was built by hand has not.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{defaults, period, size};

/// `server.limits`: what one gateway holds at most.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Bytes of one request body; above it 413.
    #[serde(with = "size")]
    pub body: u64,
    /// Bytes of one request head; above it 431.
    #[serde(with = "size::addressable")]
    pub headers: usize,
    /// Client connections at a time; a new one above it is answered 503 and closed.
    pub connections: usize,
    /// Bytes of all request bodies held at a time; above it 503.
    #[serde(with = "size")]
    pub body_memory: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: defaults::BODY_BYTES,
            headers: defaults::HEADER_BYTES,
            connections: defaults::CONNECTIONS,
            body_memory: defaults::BODY_MEMORY_BYTES,
        }
    }
}

/// `server.timeouts`: the longest wait of each kind.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// Until a replica accepts a connection.
    #[serde(with = "period")]
    pub connect: Duration,
    /// How long the answer's head is held back for the first event, so that another replica may still be tried.
    #[serde(with = "period")]
    pub first_event_hold: Duration,
    /// From dispatch to the first event with output; keep-alive comments do not count.
    #[serde(with = "period")]
    pub first_token: Duration,
    /// Between two events of a stream.
    #[serde(with = "period")]
    pub stream_idle: Duration,
    /// How long a client may read or send nothing while the gateway waits for it.
    #[serde(with = "period")]
    pub client_idle: Duration,
    /// A whole request, from its last byte received to the last byte sent.
    #[serde(with = "period")]
    pub total: Duration,
    /// Until a request head that has begun is complete; between requests a connection may be idle for longer.
    #[serde(with = "period")]
    pub header: Duration,
    /// After SIGTERM, until running requests are cut.
    #[serde(with = "period")]
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: defaults::CONNECT,
            first_event_hold: defaults::FIRST_EVENT_HOLD,
            first_token: defaults::FIRST_TOKEN,
            stream_idle: defaults::STREAM_IDLE,
            client_idle: defaults::CLIENT_IDLE,
            total: defaults::TOTAL,
            header: defaults::HEADER,
            drain: defaults::DRAIN,
        }
    }
}

/// `server.health`: active probes of every replica.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct HealthPlan {
    /// Between two probes of a replica; jittered by a tenth.
    #[serde(with = "period")]
    pub interval: Duration,
    /// Longest wait for a probe's answer.
    #[serde(with = "period")]
    pub timeout: Duration,
}

impl Default for HealthPlan {
    fn default() -> Self {
        Self { interval: defaults::HEALTH_INTERVAL, timeout: defaults::HEALTH_TIMEOUT }
    }
}

/// `server.access_log`: where the line of each request goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessLog {
    /// Standard output.
    #[default]
    Stdout,
    /// Standard error.
    Stderr,
    /// Nowhere.
    Off,
}

/// `routing`: how a replica is chosen.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RoutingPlan {
    /// Name of the policy.
    pub policy: String,
    /// Prompt bytes per hashed block.
    pub block_bytes: u32,
    /// Remembered blocks over all replicas of the model; 32 bytes each.
    pub index_entries: usize,
}

impl Default for RoutingPlan {
    fn default() -> Self {
        Self {
            policy: defaults::POLICY.to_owned(),
            block_bytes: defaults::BLOCK_BYTES,
            index_entries: defaults::INDEX_ENTRIES,
        }
    }
}

/// What happens to a request above a cap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExcess {
    /// 400 that names the cap.
    #[default]
    Reject,
    /// The value is lowered to the cap.
    Clamp,
}

/// `caps`: tokens that one request may use. `null` is no cap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Caps {
    /// Prompt tokens.
    pub max_prompt_tokens: Option<u64>,
    /// Output tokens, over all choices together.
    pub max_output_tokens: Option<u64>,
    /// Output tokens of a request that names no limit.
    pub default_output_tokens: Option<u64>,
    /// What happens above a cap.
    pub on_excess: OnExcess,
}

/// `slo`: objectives that `gateway_slo_met_total` counts. `null` is no objective.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Slo {
    /// Time to first token.
    #[serde(with = "period::optional")]
    pub ttft: Option<Duration>,
    /// Time per output token after the first.
    #[serde(with = "period::optional")]
    pub tpot: Option<Duration>,
}

impl Default for Slo {
    fn default() -> Self {
        Self { ttft: Some(defaults::SLO_TTFT), tpot: Some(defaults::SLO_TPOT) }
    }
}

/// `concurrency`: how many requests run and wait. A model whose every usable replica is at one of the bounds is full.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Concurrency {
    /// Requests in flight at one replica; never more.
    pub per_replica: u32,
    /// Requests that wait inside a replica's engine; `null` is no bound.
    pub engine_queue: Option<u32>,
    /// Share of a replica's KV pool in use, 0 to 1; `null` is no bound.
    pub kv_usage: Option<f32>,
    /// Whether a replica whose predicted time to first token is above `slo.ttft` is full, and whoever would be late by
    /// the queue's pace is refused at once; `null`: if `slo.ttft` is written.
    pub predicted_ttft: Option<bool>,
    /// Part of a bound below which a full replica takes requests again.
    pub resume: f32,
    /// Requests that wait for a place; 0 refuses at once.
    pub queue: u32,
    /// Longest wait; then 503.
    #[serde(with = "period")]
    pub queue_timeout: Duration,
}

impl Default for Concurrency {
    fn default() -> Self {
        Self {
            per_replica: defaults::PER_REPLICA,
            engine_queue: None,
            kv_usage: None,
            predicted_ttft: None,
            resume: defaults::RESUME,
            queue: defaults::QUEUE,
            queue_timeout: defaults::QUEUE_TIMEOUT,
        }
    }
}
