use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::super::clock::whole;
use super::*;

const LIMIT: f64 = 0.5;
const GOAL: f64 = 0.95;

/// A single server with exponential service of mean 1/40 s, first come first served: whether each wait is within the limit.
fn queue(rate: f64, count: usize, slow: f64, rng: &mut StdRng) -> Vec<bool> {
    let exp = |rng: &mut StdRng, mean: f64| -(1.0 - rng.random::<f64>()).ln() * mean;
    let (mut now, mut free) = (0.0, 0.0_f64);
    (0..count)
        .map(|_| {
            now += exp(rng, 1.0 / rate);
            let start = free.max(now);
            free = start + exp(rng, slow / 40.0);
            free - now <= LIMIT
        })
        .collect()
}

/// P(sojourn <= t) = 1 - exp(-(mu - lambda) t) in an M/M/1 queue: lambda = mu + ln(1 - goal) / t.
fn truth() -> f64 {
    40.0 + (1.0 - GOAL).ln() / LIMIT
}

fn searched(seed: u64, slow: impl Fn(usize) -> f64) -> Found {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut search = Search::new(4.0, 1e5, GOAL, false);
    while let Some(level) = search.next() {
        let slow = slow(search.probes().len());
        // 20 minutes of the queue's time a probe.
        let good = queue(level, whole(level * 1200.0), slow, &mut rng);
        search.observe(Probe::new(level, &Share::of(&good).unwrap(), false));
    }
    search.found("requests/s", String::new(), None)
}

#[test]
fn the_long_run_agrees_with_theory() {
    let good = queue(truth(), 2_000_000, 1.0, &mut StdRng::seed_from_u64(1));
    let share = good.iter().filter(|one| **one).count() as f64 / good.len() as f64;
    assert!((share - GOAL).abs() < 0.006, "{share}");
}

#[test]
fn the_capacity_of_a_queue_is_found_within_five_percent_and_covered_in_18_of_20_runs() {
    let runs: Vec<Found> = (0..20).map(|seed| searched(seed, |_| 1.0)).collect();
    let close = |one: &Found| one.estimate.is_some_and(|estimate| (estimate / truth() - 1.0).abs() < 0.05);
    let covers = |one: &Found| one.low.unwrap() <= truth() && truth() <= one.high.unwrap();
    let shown = || runs.iter().map(|one| (one.estimate, one.low, one.high, one.probes.len())).collect::<Vec<_>>();
    assert!(runs.iter().filter(|one| close(one)).count() >= 18, "{} {:?}", truth(), shown());
    assert!(runs.iter().filter(|one| covers(one)).count() >= 18, "{} {:?}", truth(), shown());
}

#[test]
fn a_drifting_server_is_undecided() {
    // It becomes slower with every probe.
    let drifting: Vec<Found> = (0..10).map(|seed| searched(seed, |probe| 1.0 + 0.08 * probe as f64)).collect();
    let numbers = drifting.iter().filter(|one| one.status == Status::Found).count();
    assert!(numbers <= 1, "{:?}", drifting.iter().map(|one| (&one.status, one.estimate)).collect::<Vec<_>>());
}

#[test]
fn the_fit_never_rises_and_keeps_the_mean() {
    let pooled = |share, effective| Pooled { level: 1.0, share, effective, count: 1, fit: share };
    let mut all = [pooled(1.0, 10.0), pooled(0.7, 10.0), pooled(0.9, 30.0), pooled(0.2, 10.0)];
    fit_falling(&mut all);
    let fits: Vec<f64> = all.iter().map(|one| (one.fit * 1000.0).round() / 1000.0).collect();
    assert_eq!(fits, [1.0, 0.85, 0.85, 0.2]);
}

#[test]
fn a_target_that_never_fails_and_one_that_always_does_are_told_apart() {
    for (share, expected) in [(1.0, Status::AboveLimit), (0.0, Status::Unattainable)] {
        let mut search = Search::new(1.0, 64.0, GOAL, true);
        while let Some(level) = search.next() {
            let good = vec![share > 0.5; 200];
            search.observe(Probe::new(level, &Share::of(&good).unwrap(), false));
        }
        assert_eq!(search.found("users", String::new(), None).status, expected);
    }
}
