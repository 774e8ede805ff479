//! Results as JSON: a superset of the keys of `vllm bench serve --save-result`, with their names and units.
//!
//! Times in `*_ms` are milliseconds; `latencies`, `ttfts`, `itls`, `start_times`, `queue_times` are seconds, as there.
//! `ttft` and `e2el` are from the wire, as there; what this tool adds ends in `_sched`, or stands under `gateway`.

use serde_json::{Map, Value, json};

use super::{MORE_ROWS, ROWS, Setup};
use crate::loadtest::{
    clock::seconds,
    level::Level,
    measure::{Figures, gaps},
    plan::LoadPlan,
    record::Outcome,
    stats::Dist,
};

/// Percentiles in the result.
const PERCENTILES: [(f64, &str); 4] = [(0.5, "p50"), (0.9, "p90"), (0.95, "p95"), (0.99, "p99")];

/// The result of one level.
#[must_use]
pub fn result(level: &Level, setup: &Setup) -> Value {
    let mut out = Map::new();
    let mut put = |key: &str, value: Value| {
        out.insert(key.to_owned(), value);
    };
    let summary = &level.summary;
    put("date", json!(setup.date));
    put("endpoint_type", json!(setup.api.name()));
    put("backend", json!(setup.api.name()));
    put("label", json!(setup.label));
    put("model_id", json!(setup.model));
    put("tokenizer_id", Value::Null);
    put("num_prompts", json!(level.planned));
    let (rate, burstiness) = match &level.load {
        LoadPlan::Open(pattern) if pattern.rate.is_finite() => (json!(pattern.rate), finite(pattern.burstiness)),
        _ => (json!("inf"), json!(1.0)),
    };
    put("request_rate", rate);
    put("burstiness", burstiness);
    let users = if let LoadPlan::Closed { users, .. } = &level.load { Some(*users) } else { setup.cap };
    put("max_concurrency", json!(users));
    put("duration", json!(summary.duration));
    put("completed", json!(summary.completed));
    put("failed", json!(summary.failed));
    put("total_input_tokens", json!(summary.input_tokens));
    put("total_output_tokens", json!(summary.output_tokens));
    put("request_throughput", json!(summary.request_throughput()));
    put("request_goodput", json!(summary.goodput));
    put("output_throughput", json!(summary.output_throughput()));
    let all = (summary.input_tokens + summary.output_tokens) as f64 / summary.duration.max(1e-9);
    put("total_token_throughput", json!(all));
    put("input_throughput", json!(summary.input_tokens as f64 / summary.duration.max(1e-9)));
    put("max_output_tokens_per_s", json!(summary.peak_tokens));
    put("max_concurrent_requests", json!(summary.peak_concurrency));
    put("rtfx", json!(0.0));
    for (key, value) in ramp(&level.load) {
        put(key, value);
    }
    for (key, _, pick) in ROWS.iter().chain(MORE_ROWS) {
        for (name, value) in of_dist(key, pick(level)) {
            put(&name, value);
        }
    }
    let probes = &summary.probes;
    if probes.n() > 0 {
        put("probe_completed", json!(probes.n()));
        put("probe_median_e2el_ms", json!(probes.at(0.5)));
        put("probe_p99_e2el_ms", json!(probes.at(0.99)));
        put("probe_max_e2el_ms", json!(probes.max()));
    }
    for (key, value) in per_request(level, setup) {
        put(key, value);
    }
    put("gateway", own(level, setup));
    // As in vLLM, what the caller names stands at the top.
    for (key, value) in &setup.metadata {
        put(key, json!(value));
    }
    Value::Object(out)
}

fn finite(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { json!("inf") }
}

fn ramp(load: &LoadPlan) -> Vec<(&'static str, Value)> {
    let LoadPlan::Open(pattern) = load else { return Vec::new() };
    let Some(ramp) = pattern.ramp else { return Vec::new() };
    vec![
        ("ramp_up_strategy", json!(if ramp.exponential { "exponential" } else { "linear" })),
        ("ramp_up_start_rps", json!(ramp.from)),
        ("ramp_up_end_rps", json!(pattern.rate)),
    ]
}

fn of_dist(key: &str, dist: &Dist) -> Vec<(String, Value)> {
    let mut all = vec![
        (format!("mean_{key}_ms"), json!(dist.mean())),
        (format!("median_{key}_ms"), json!(dist.at(0.5))),
        (format!("std_{key}_ms"), json!(dist.std())),
    ];
    all.extend(PERCENTILES.iter().map(|(p, name)| (format!("{name}_{key}_ms"), json!(dist.at(*p)))));
    all
}

/// Lists with one entry a request, failed ones included, so that indexes line up.
fn per_request(level: &Level, setup: &Setup) -> Vec<(&'static str, Value)> {
    let records = &level.records;
    let figures: Vec<Figures> = records.iter().map(|record| Figures::of(record, setup.rules)).collect();
    let secs = |pick: fn(&Figures) -> Option<f64>| {
        let values = figures.iter().map(|one| pick(one).unwrap_or(0.0) / 1e3);
        json!(values.collect::<Vec<_>>())
    };
    let ok = |record: &crate::loadtest::record::Record| record.outcome == Outcome::Ok;
    let lengths = |pick: fn(&crate::loadtest::record::Record) -> u64| {
        json!(records.iter().map(|record| if ok(record) { pick(record) } else { 0 }).collect::<Vec<_>>())
    };
    let itls: Vec<Vec<f64>> = records.iter().map(|record| gaps(record).map(|(gap, _)| gap / 1e3).collect()).collect();
    let errors: Vec<&str> = records.iter().map(|record| record.error.as_deref().unwrap_or("")).collect();
    vec![
        ("input_lens", lengths(|record| record.input_tokens())),
        ("output_lens", lengths(|record| record.output_tokens())),
        ("ttfts", secs(|one| one.ttft)),
        ("latencies", secs(|one| one.e2el)),
        ("itls", json!(itls)),
        ("start_times", json!(records.iter().map(|record| seconds(record.started)).collect::<Vec<_>>())),
        ("queue_times", json!(records.iter().map(|record| seconds(record.cap_wait)).collect::<Vec<_>>())),
        ("errors", json!(errors)),
    ]
}

/// What only this tool knows.
fn own(level: &Level, setup: &Setup) -> Value {
    let summary = &level.summary;
    let intervals: Map<String, Value> = ROWS
        .iter()
        .map(|(key, _, pick)| {
            let dist = pick(level);
            let each = PERCENTILES.iter().map(|(p, name)| ((*name).to_owned(), json!(dist.interval(*p))));
            ((*key).to_owned(), Value::Object(each.collect()))
        })
        .collect();
    let (planned, sent) = summary.arrivals;
    let tenants: Vec<Value> = summary
        .tenants
        .iter()
        .map(|tenant| {
            json!({ "name": tenant.name, "requests": tenant.requests, "good": tenant.good,
                    "ttft_sched_ms": { "p50": tenant.ttft.at(0.5), "p99": tenant.ttft.at(0.99) } })
        })
        .collect();
    json!({
        "verdict": summary.judged.verdict,
        "reasons": summary.judged.reasons,
        "lag_limit_ms": summary.judged.lag_limit_ms,
        "objectives": summary.objectives,
        "attainment": summary.good,
        "goal": setup.goal,
        "wanted": setup.objectives,
        "missed": summary.missed,
        "definitions": setup.rules,
        "target": setup.target,
        "seed": setup.seed,
        "level": level.name,
        "outcomes": summary.outcomes,
        "errors": summary.examples,
        "stopped": summary.stopped,
        "arrivals": { "planned_rate": planned, "sent_rate": sent.map(|one| one.0), "gap_cv": sent.map(|one| one.1) },
        "intervals_95_ms": intervals,
        "itl_estimated": summary.itl_estimated,
        "usage_missing": summary.usage_missing,
        "cached_tokens": summary.cached_tokens,
        "stalls": summary.stalls,
        "replicas": summary.replicas,
        "tenants": tenants,
        "host": summary.host,
        "facts": setup.facts,
    })
}
