//! The rendered page, read back by a parser of its own.

use std::{collections::BTreeSet, time::Duration};

use nom_openmetrics::Family;

use super::*;
use crate::types::{Endpoint, Outcome, PickReason};

/// Everything recorded once.
fn exercised() -> Arc<Telemetry> {
    let telemetry = Telemetry::new();
    let model = telemetry.model("org/model \"x\"\\");
    let second = Duration::from_secs(1);
    model.request(Endpoint::Chat, Outcome::Success, second);
    model.ttft(Route::Replica, Duration::from_millis(120));
    model.tpot(Route::Replica, Duration::from_millis(20));
    model.itl(Duration::from_millis(20));
    model.overhead(Duration::from_micros(80));
    model.queue_wait(Duration::ZERO);
    model.queue_depth(2);
    model.queue_depth(-1);
    model.prompt_tokens(NO_KEY, 100);
    model.output_tokens("team-a", 7);
    model.cached(Source::Predicted, 64);
    model.saved(64);
    model.slo_met();
    model.slo_missed(Objective::Tpot);
    model.rejected(Reason::Saturated);
    model.fallback(FallbackReason::Down);
    model.retry(Cause::Reset);
    model.wasted(Waste::Cancelled, 3);
    model.index(10, 4);
    model.prediction_error(Duration::from_millis(5));
    model.parse_error();
    let replica = telemetry.replica("m", "10.0.0.1:8000/x");
    replica.up(true);
    replica.inflight(3);
    replica.waiting(1);
    replica.kv_usage(0.25);
    replica.pick(PickReason::Hit);
    let target = telemetry.target("m", "hosted@api.example.com:443");
    target.skipped(Skip::Budget);
    target.dropped(2);
    target.spend(Window::Day, 0.25);
    target.breaker(true);
    telemetry.connections(1);
    telemetry.body_memory(1024);
    telemetry
}

/// Value of the first sample of a series with these labels.
fn sample(page: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let (_, families) = nom_openmetrics::parser::prometheus(page).unwrap_or_else(|_| panic!("the page does not parse"));
    families.iter().flat_map(|family: &Family<'_>| &family.samples).find_map(|sample| {
        let has = |(key, value): &(&str, &str)| {
            sample.labels().iter().any(|label| {
                format!("{label:?}").contains(&format!("{key:?}"))
                    && format!("{label:?}").contains(&format!("{value:?}"))
            })
        };
        (sample.name() == name && labels.iter().all(has)).then(|| sample.number())
    })
}

#[test]
fn the_page_parses_and_holds_what_was_recorded() {
    let page = exercised().render();

    for (name, labels, value) in [
        ("gateway_requests_total", vec![("endpoint", "chat"), ("outcome", "success")], 1.0),
        ("gateway_time_to_first_token_seconds_count", vec![("route", "replica")], 1.0),
        ("gateway_time_to_first_token_seconds_sum", vec![("route", "replica")], 0.12),
        ("gateway_time_to_first_token_seconds_bucket", vec![("route", "replica"), ("le", "0.15")], 1.0),
        ("gateway_time_to_first_token_seconds_bucket", vec![("route", "replica"), ("le", "0.1")], 0.0),
        ("gateway_queue_depth", vec![], 1.0),
        ("gateway_prompt_tokens_total", vec![("key", "none")], 100.0),
        ("gateway_output_tokens_total", vec![("key", "team-a")], 7.0),
        ("gateway_cached_tokens_total", vec![("source", "predicted")], 64.0),
        ("gateway_slo_missed_total", vec![("objective", "tpot")], 1.0),
        ("gateway_slo_missed_total", vec![("objective", "ttft")], 0.0),
        ("gateway_wasted_tokens_total", vec![("cause", "cancelled")], 3.0),
        ("gateway_index_evictions_total", vec![], 4.0),
        ("gateway_replica_up", vec![("replica", "10.0.0.1:8000/x")], 1.0),
        ("gateway_replica_kv_usage", vec![("model", "m")], 0.25),
        ("gateway_replica_picks_total", vec![("reason", "hit")], 1.0),
        ("gateway_access_log_dropped_total", vec![], 0.0),
        ("gateway_build_info", vec![("version", env!("CARGO_PKG_VERSION"))], 1.0),
    ] {
        assert_eq!(sample(&page, name, &labels), Some(value), "{name} {labels:?}");
    }
    assert!(sample(&page, "process_resident_memory_bytes", &[]).unwrap() > 0.0);
}

#[test]
fn every_metric_of_the_table_is_on_the_page_with_help_and_type_and_no_other() {
    let page = exercised().render();
    let typed: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let helped: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next()).collect();
    let table: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();

    let own: BTreeSet<&str> = typed.iter().copied().filter(|name| name.starts_with("gateway_")).collect();
    assert_eq!(own, table);
    assert_eq!(typed, helped);
    assert!(typed.difference(&table).all(|name| name.starts_with("process_")), "{typed:?}");
}

#[test]
fn names_follow_the_law() {
    let units = ["_seconds", "_bytes", "_total", "_info", "_usd"];
    let counted = [
        "queue_depth",
        "replica_up",
        "replica_inflight",
        "replica_waiting",
        "replica_kv_usage",
        "index_entries",
        "connections",
        "fallback_breaker_open",
    ];
    for metric in METRICS {
        let name = metric.name;
        let rest = name.strip_prefix("gateway_").unwrap_or_else(|| panic!("{name} lacks the prefix"));
        assert!(rest.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
        assert_eq!(
            matches!(metric.kind, MetricKind::Counter),
            name.ends_with("_total"),
            "{name}: counters and only they end in _total"
        );
        if matches!(metric.kind, MetricKind::Histogram(_)) {
            assert!(name.ends_with("_seconds"), "{name}: histograms carry their unit");
        }
        assert!(units.iter().any(|unit| name.ends_with(unit)) || counted.contains(&rest), "{name} has no unit");
        assert!(!metric.help.is_empty() && !metric.help.ends_with('.'), "{name}");
    }
    assert_eq!(METRICS.iter().map(|metric| metric.name).collect::<BTreeSet<_>>().len(), METRICS.len());
}

#[test]
fn buckets_rise_strictly() {
    for metric in METRICS {
        if let MetricKind::Histogram(buckets) = metric.kind {
            assert!(!buckets.is_empty() && buckets.windows(2).all(|pair| pair[0] < pair[1]), "{}", metric.name);
        }
    }
}

#[test]
fn the_table_holds_the_metrics_of_the_interface() {
    let interface = [
        ("gateway_requests_total", "model,endpoint,outcome"),
        ("gateway_time_to_first_token_seconds", "model,route"),
        ("gateway_time_per_output_token_seconds", "model,route"),
        ("gateway_inter_token_latency_seconds", "model"),
        ("gateway_request_duration_seconds", "model,outcome"),
        ("gateway_overhead_seconds", "model"),
        ("gateway_queue_wait_seconds", "model"),
        ("gateway_queue_depth", "model"),
        ("gateway_prompt_tokens_total", "model,key"),
        ("gateway_output_tokens_total", "model,key"),
        ("gateway_cached_tokens_total", "model,source"),
        ("gateway_prefill_tokens_saved_total", "model"),
        ("gateway_slo_met_total", "model"),
        ("gateway_slo_missed_total", "model,objective"),
        ("gateway_rejected_total", "model,reason"),
        ("gateway_fallback_total", "model,reason"),
        ("gateway_retries_total", "model,cause"),
        ("gateway_replica_up", "model,replica"),
        ("gateway_replica_inflight", "model,replica"),
        ("gateway_replica_waiting", "model,replica"),
        ("gateway_replica_kv_usage", "model,replica"),
        ("gateway_replica_picks_total", "model,replica,reason"),
        ("gateway_index_entries", "model"),
        ("gateway_index_evictions_total", "model"),
        ("gateway_ttft_prediction_error_seconds", "model"),
        ("gateway_wasted_tokens_total", "model,cause"),
    ];
    for (name, labels) in interface {
        let metric = METRICS.iter().find(|metric| metric.name == name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(metric.labels.join(","), labels, "{name}");
    }
}

#[test]
fn label_words_are_distinct_and_plain() {
    let sets: [Vec<&str>; 9] = [
        Route::ALL.iter().map(|v| v.label()).collect(),
        Source::ALL.iter().map(|v| v.label()).collect(),
        Objective::ALL.iter().map(|v| v.label()).collect(),
        Reason::ALL.iter().map(|v| v.label()).collect(),
        Cause::ALL.iter().map(|v| v.label()).collect(),
        Waste::ALL.iter().map(|v| v.label()).collect(),
        FallbackReason::ALL.iter().map(|v| v.label()).collect(),
        Endpoint::ALL.iter().map(|v| v.label()).collect(),
        Outcome::ALL.iter().map(|v| v.label()).collect(),
    ];
    for words in sets {
        assert_eq!(words.iter().collect::<BTreeSet<_>>().len(), words.len(), "{words:?}");
        assert!(words.iter().all(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '_')), "{words:?}");
    }
}

#[test]
fn enum_numbers_are_places_in_their_lists() {
    assert!(Endpoint::ALL.iter().enumerate().all(|(at, value)| *value as usize == at));
    assert!(Outcome::ALL.iter().enumerate().all(|(at, value)| *value as usize == at));
    assert!(PickReason::ALL.iter().enumerate().all(|(at, value)| *value as usize == at));
}

#[test]
fn a_removed_replica_leaves_the_page_and_its_counters_stay() {
    let telemetry = exercised();

    telemetry.forget_replica("m", "10.0.0.1:8000/x");

    let page = telemetry.render();
    assert_eq!(sample(&page, "gateway_replica_up", &[]), None);
    assert_eq!(sample(&page, "gateway_replica_picks_total", &[("reason", "hit")]), Some(1.0));
    telemetry.replica("m", "10.0.0.1:8000/x").pick(PickReason::Hit);
    assert_eq!(sample(&telemetry.render(), "gateway_replica_picks_total", &[("reason", "hit")]), Some(2.0));
}

#[test]
fn an_unknown_engine_load_is_absent_not_zero() {
    let telemetry = Telemetry::new();
    let replica = telemetry.replica("m", "h:1");
    assert_eq!(sample(&telemetry.render(), "gateway_replica_waiting", &[]), None);

    replica.waiting(0);
    replica.kv_usage(0.0);
    assert_eq!(sample(&telemetry.render(), "gateway_replica_waiting", &[]), Some(0.0));

    replica.load_unknown();
    assert_eq!(sample(&telemetry.render(), "gateway_replica_kv_usage", &[]), None);
}

#[test]
fn two_gateways_in_one_process_do_not_mix() {
    let (a, b) = (Telemetry::new(), Telemetry::new());

    a.model("m").slo_met();
    b.model("m").slo_met();
    b.model("m").slo_met();

    assert_eq!(sample(&a.render(), "gateway_slo_met_total", &[]), Some(1.0));
    assert_eq!(sample(&b.render(), "gateway_slo_met_total", &[]), Some(2.0));
}

#[test]
fn telemetry_may_be_shared_between_threads() {
    const fn shared<T: Send + Sync>() {}
    shared::<Telemetry>();
    shared::<ModelMetrics>();
    shared::<ReplicaMetrics>();
}
