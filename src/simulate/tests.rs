//! Policies on the first requests of a real conversation trace: small, and equal at every run.

use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::simulator::{Batching, EngineSpec, Limits, QueueLimit, Timing, timing::Rates};

const TRACE: &str = include_str!("../../tests/data/trace.jsonl");

/// Engines of 25,000 prompt tokens a second times `speed`.
fn engine(speed: f64) -> EngineSpec {
    let rates = Rates::default();
    EngineSpec {
        limits: Limits {
            max_num_seqs: 256,
            max_num_batched_tokens: 2048,
            queue: QueueLimit::Unlimited,
            batching: Batching::Mixed,
        },
        kv_tokens: 790 * 512,
        block_size: 512,
        prefix_caching: true,
        timing: Timing::Rates(Rates {
            prefill_tokens_per_second: rates.prefill_tokens_per_second * speed,
            decode: rates.decode.div_f64(speed),
            decode_per_sequence: rates.decode_per_sequence.div_f64(speed),
            overhead: rates.overhead.div_f64(speed),
        }),
    }
}

fn scenario(speeds: &[f64], speedup: f64) -> Scenario {
    Scenario {
        trace: Trace::parse(TRACE, usize::MAX).unwrap().faster(speedup),
        engines: speeds.iter().map(|speed| engine(*speed)).collect(),
        up: speeds.len(),
        gateways: 1,
        changes: Vec::new(),
        seed: 1,
        objectives: Objectives { ttft: 2.0, tpot: 0.05 },
    }
}

fn simulate(scenario: &Scenario, policy: &str) -> Report {
    run(scenario, policy, Instant::now()).unwrap()
}

#[test]
fn every_request_ends_once_and_two_runs_are_equal() {
    let scenario = scenario(&[1.0; 4], 1.0);
    let report = simulate(&scenario, "prefix");

    assert_eq!((report.completed, report.failed), (600, 0));
    assert_eq!(report.load.iter().sum::<u64>(), 600);
    assert_eq!(report.picks.values().sum::<u64>(), 600);
    assert!(report.hit_rate <= shared_lru(&scenario.trace, 4 * 790), "no more than the bound");
    let again = simulate(&scenario, "prefix");
    assert_eq!(again, report);
    assert!(run(&scenario, "best", Instant::now()).unwrap_err().to_string().contains("one of prefix, lmetric"));
}

#[test]
fn an_idle_replica_answers_in_the_time_of_the_prompt() {
    let mut scenario = scenario(&[1.0], 1.0);
    scenario.trace.arrivals.truncate(1);
    let report = simulate(&scenario, "prefix");

    // 6,758 tokens at 25,000 a second, and four steps of 0.5 ms.
    let expected = 6758.0 / 25_000.0 + 4.0 * 0.0005;
    assert!((report.ttft_p50_s - expected).abs() < 1e-6, "{} {expected}", report.ttft_p50_s);
    // 7.05 ms a token.
    assert!((report.tpot_p50_ms - 7.05).abs() < 1e-6, "{}", report.tpot_p50_ms);
}

#[test]
fn a_replica_that_dies_loses_what_is_on_it_and_one_that_comes_gets_its_share() {
    let mut scenario = scenario(&[1.0; 4], 3.0);
    scenario.up = 3;
    scenario.changes = vec![(Duration::from_secs(20), Change::Fail(0)), (Duration::from_secs(30), Change::Add(3))];
    let report = simulate(&scenario, "prefix");

    assert!((1..=40).contains(&report.failed), "{}", report.failed);
    assert_eq!(report.completed + report.failed, 600);
    assert!(report.load[0] < report.load[1] && report.load[3] > 30, "{:?}", report.load);
}

#[test]
fn a_slow_replica_gets_less_from_who_learns_than_from_who_does_not() {
    let scenario = scenario(&[1.0, 0.4, 1.0, 0.4], 1.0);
    let (learned, lmetric) = (simulate(&scenario, "learned"), simulate(&scenario, "lmetric"));

    assert!(learned.load[1] + learned.load[3] < (learned.load[0] + learned.load[2]) * 8 / 10, "{:?}", learned.load);
    assert!(learned.ttft_p90_s <= lmetric.ttft_p90_s, "{} {}", learned.ttft_p90_s, lmetric.ttft_p90_s);
}

#[test]
fn gateways_that_share_nothing_keep_the_hit_rate() {
    let with = |gateways| simulate(&Scenario { gateways, ..scenario(&[1.0; 4], 1.0) }, "prefix").hit_rate;
    let alone = with(1);
    for gateways in [2, 4, 8] {
        assert!(with(gateways) >= 0.9 * alone, "{gateways} gateways: {} of {alone}", with(gateways));
    }
}
