//! Many requests: schedule, cap, connections, scenarios.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use gateway::loadtest::{
    arrivals::Pattern,
    body::{Api, Style},
    client::Client,
    clock::Clock,
    lengths::Shape,
    measure::{Figures, Rules},
    plan::LoadPlan,
    record::{Outcome, Record},
    runner::{self, Load, Measured, Options},
    summary::{Asked, Summary},
    workload::{Spec, rng},
};
use tokio_util::sync::CancellationToken;

use super::server::{Scripted, chat, end, stream};

fn spec() -> Spec {
    let style = Style {
        api: Api::Chat,
        model: "m".into(),
        ignore_eos: false,
        per_chunk_usage: false,
        extra: serde_json::Map::new(),
    };
    Spec {
        style,
        input: 8,
        output: 4,
        shape: Shape::Fixed,
        shared_prefix: 0,
        groups: (1, 1.0),
        turns: 1,
        nonce: true,
        prompts: Vec::new(),
        tenants: Vec::new(),
        cancel_rate: 0.0,
        slow_readers: 0.0,
        seed: 0,
    }
}

fn options() -> Options {
    Options {
        api: Api::Chat,
        cap: None,
        duration: None,
        think: 0.0,
        timeout: Duration::from_secs(20),
        keys: vec![None],
        max_tokens: None,
        max_usd: None,
        probe_rate: 0.0,
        planned: None,
        watch: false,
        id: "t".into(),
    }
}

fn run(server: &Scripted, spec: &Spec, requests: usize, load: Load, options: Options) -> Measured {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        gateway::upstream::tls::install_provider();
        let clock = Clock::start();
        let client = Client::new(format!("http://{}", server.address).parse().unwrap(), clock, Rules::Own).unwrap();
        let stop = CancellationToken::new();
        runner::run(&Arc::new(client), spec.sessions(requests), load, (options, spec), (&stop, clock)).await.unwrap()
    })
}

fn answer(first: f64, gap: f64, tokens: u32) -> Scripted {
    let words: Vec<String> = (0..tokens).map(|at| chat(&format!("w{at}"))).collect();
    Scripted::start(stream(first, gap, &words, &end(tokens)))
}

fn sched(record: &Record) -> f64 {
    Figures::of(record, Rules::Own).ttft_sched.unwrap()
}

fn wire(record: &Record) -> f64 {
    Figures::of(record, Rules::Own).ttft.unwrap()
}

#[test]
fn c4_waiting_for_the_cap_is_in_the_latency_from_the_schedule_and_not_in_that_from_the_wire() {
    let server = answer(50.0, 0.0, 1);
    let measured = run(&server, &spec(), 4, Load::Open(vec![0.0; 4]), Options { cap: Some(1), ..options() });

    let mut waits: Vec<f64> = measured.records.iter().map(sched).collect();
    waits.sort_by(f64::total_cmp);
    for (at, wait) in waits.iter().enumerate() {
        let least = 50.0 * (at + 1) as f64;
        assert!((least - 1.0..least + 40.0).contains(wait), "{waits:?}");
    }
    assert!(measured.records.iter().all(|record| (49.0..80.0).contains(&wire(record))), "{measured:?}");
    assert_eq!(server.seen.peak.load(Ordering::Relaxed), 1);
}

#[test]
fn c7_d7_connections_are_used_again() {
    let server = answer(1.0, 0.0, 2);
    let measured = run(&server, &spec(), 30, Load::Closed { users: 2, ramp: 0.0 }, options());
    assert!(measured.records.iter().all(|record| record.outcome == Outcome::Ok), "{measured:?}");
    assert!(server.seen.connections.load(Ordering::Relaxed) <= 3);
}

#[test]
fn c8_c9_more_than_a_hundred_streams_run_at_once() {
    let server = answer(400.0, 0.0, 1);
    let measured = run(&server, &spec(), 150, Load::Open(vec![0.0; 150]), options());
    assert!(measured.records.iter().all(|record| record.outcome == Outcome::Ok));
    assert!(server.seen.peak.load(Ordering::Relaxed) >= 140, "{}", server.seen.peak.load(Ordering::Relaxed));
}

#[test]
fn c3_c16_the_planned_rate_is_sent() {
    let server = answer(2.0, 0.0, 1);
    let times = Pattern { rate: 100.0, burstiness: 1.0, ramp: None }.times(200, &mut rng(0, 20));
    let measured = run(&server, &spec(), 200, Load::Open(times), options());
    let asked = Asked { rules: Rules::Own, objectives: Vec::new(), goal: 0.95, rate: Some(100.0), tenants: Vec::new() };
    let summary = Summary::of(&measured, &asked);
    let (sent, cv) = summary.arrivals.1.unwrap();
    let planned = summary.arrivals.0.unwrap();
    assert!((sent / planned - 1.0).abs() < 0.03, "{sent} of {planned}");
    assert!((0.75..1.3).contains(&cv), "{cv}");
}

#[test]
fn same_seed_same_bytes_in_the_same_order() {
    let bodies = || {
        let server = answer(0.0, 0.0, 1);
        let spec = Spec { turns: 2, shared_prefix: 8, groups: (3, 1.0), shape: Shape::Lognormal, ..spec() };
        run(&server, &spec, 12, Load::Closed { users: 1, ramp: 0.0 }, options());
        let bodies = server.seen.bodies.lock().unwrap().clone();
        bodies.iter().map(|body| body.split_once("\r\n\r\n").unwrap().1.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(bodies(), bodies());
}

#[test]
fn cancelled_requests_leave_after_their_token_and_count_neither_way() {
    let server = answer(5.0, 5.0, 20);
    let spec = Spec { cancel_rate: 1.0, output: 20, ..spec() };
    let measured = run(&server, &spec, 6, Load::Closed { users: 3, ramp: 0.0 }, options());
    assert!(measured.records.iter().all(|record| record.outcome == Outcome::Cancelled));
    assert!(measured.records.iter().all(|record| (1..=11).contains(&record.chunks.len())), "{measured:?}");
}

#[test]
fn a_token_budget_stops_the_run_before_it_is_passed() {
    let server = answer(1.0, 0.0, 4);
    let options = Options { max_tokens: Some(40), ..options() };
    let measured = run(&server, &spec(), 50, Load::Closed { users: 1, ramp: 0.0 }, options);
    assert_eq!(measured.stopped, Some("--max-tokens-total"));
    // The engine says 7 + 4 tokens a request; the next is planned with 8 + 4.
    let done = measured.records.iter().filter(|record| record.outcome == Outcome::Ok).count();
    assert_eq!(done, 3);
}

#[test]
fn canaries_run_beside_the_load() {
    let server = answer(10.0, 0.0, 1);
    let times = Pattern { rate: 20.0, burstiness: f64::INFINITY, ramp: None }.times(20, &mut rng(0, 20));
    let measured = run(&server, &spec(), 20, Load::Open(times), Options { probe_rate: 10.0, ..options() });
    assert!((6..=12).contains(&measured.probes.len()), "{}", measured.probes.len());
}

#[test]
fn turns_follow_each_other_with_their_pause() {
    let server = answer(5.0, 0.0, 1);
    let spec = Spec { turns: 3, ..spec() };
    let measured = run(&server, &spec, 3, Load::Open(vec![0.0]), Options { think: 0.05, ..options() });
    let gaps: Vec<u64> = measured.records.windows(2).map(|pair| pair[1].intended - pair[0].ended).collect();
    assert!(gaps.iter().all(|gap| (49_000_000..60_000_000).contains(gap)), "{gaps:?}");
}

#[test]
fn failed_requests_miss_objectives_and_stay_out_of_percentiles() {
    use gateway::loadtest::measure::{Metric, Objective};
    let refusal = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
    let server = Scripted::start(vec![super::server::Step::Raw(refusal.into())]);
    let measured = run(&server, &spec(), 10, Load::Open(vec![0.0; 10]), options());
    let objectives = vec![Objective { metric: Metric::Ttft, limit_ms: 1e6 }];
    let asked = Asked { rules: Rules::Own, objectives, goal: 0.95, rate: None, tenants: Vec::new() };
    let summary = Summary::of(&measured, &asked);
    assert_eq!((summary.good.unwrap().share, summary.dists.ttft_sched.n(), summary.failed), (0.0, 0, 10));
}

#[test]
fn a_load_has_a_name() {
    assert_eq!(gateway::loadtest::level::name(&LoadPlan::Closed { users: 3, ramp: 0.0 }), "3 users");
}
