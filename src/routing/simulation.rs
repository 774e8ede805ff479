//! A closed simulation of placement: what hit rate and what balance a policy reaches on prefixes with Zipf popularity.
//!
//! Deterministic and without a clock of its own. Replicas compute prefills one after the other and have an exact LRU
//! cache of prompt blocks. The numbers of the first scenario are those of the peer lab's routing test.

use std::collections::{BTreeMap, HashMap};

use super::testing::view;
use super::{Hits, Policy, PrefixIndex, ReplicaView, RouteQuery, policy};
use crate::prompt::{Chain, ChainSeed, chain::Hasher};

/// Block of the simulated engine's cache.
const ENGINE_BLOCK: usize = 64;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        super::rendezvous::weight(self.0, 0)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[derive(Clone)]
struct Scenario {
    replicas: u16,
    prefixes: usize,
    prefix_bytes: usize,
    suffix_bytes: usize,
    zipf: f64,
    rate: f64,
    requests: usize,
    cache_blocks: usize,
    prefill_seconds_per_byte: f64,
    decode_seconds: f64,
    /// Whether prefixes are system prompts, as the gateway sees them.
    marked: bool,
    /// Cache size that the engine tells, in blocks of the gateway.
    capacity: Option<u32>,
    seed: u64,
}

/// The peer lab, test (e): 4 ms a KiB of prefill, one at a time, then 18 ms of output.
fn lab() -> Scenario {
    Scenario {
        replicas: 4,
        prefixes: 64,
        prefix_bytes: 8192,
        suffix_bytes: 200,
        zipf: 1.0,
        rate: 150.0,
        requests: 900,
        cache_blocks: 2800,
        prefill_seconds_per_byte: 0.004 / 1024.0,
        decode_seconds: 0.018,
        marked: true,
        capacity: None,
        seed: 100,
    }
}

/// LRU over engine blocks.
#[derive(Default)]
struct Engine {
    last: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    tick: u64,
    free_at: f64,
}

impl Engine {
    /// Blocks cached from the front; all are used now, the deepest longest ago.
    fn run(&mut self, blocks: &[u64], capacity: usize) -> usize {
        let hit = blocks.iter().take_while(|block| self.last.contains_key(block)).count();
        for block in blocks.iter().rev() {
            self.tick += 1;
            if let Some(old) = self.last.insert(*block, self.tick) {
                self.order.remove(&old);
            }
            self.order.insert(self.tick, *block);
        }
        while self.last.len() > capacity {
            let (_, block) = self.order.pop_first().unwrap();
            self.last.remove(&block);
        }
        hit
    }
}

struct Running {
    replica: usize,
    first_token: f64,
    end: f64,
    tokens: u64,
    prefilling: bool,
}

#[derive(Debug)]
struct Report {
    hit_percent: f64,
    ttft_p50: f64,
    ttft_p95: f64,
    ttft_p99: f64,
    spread: f64,
    /// First replica of each prefix.
    homes: HashMap<usize, usize>,
}

struct World {
    scenario: Scenario,
    engines: Vec<Engine>,
    rng: Rng,
    served: u64,
}

impl World {
    fn new(scenario: &Scenario) -> Self {
        let engines = (0..scenario.replicas).map(|_| Engine::default()).collect();
        Self { scenario: scenario.clone(), engines, rng: Rng(scenario.seed), served: 0 }
    }

    /// Runs the scenario's requests through a gateway that starts with an empty index.
    fn run(&mut self, policy: &dyn Policy) -> Report {
        let scenario = self.scenario.clone();
        let index = PrefixIndex::new(1 << 16);
        let mut views: Vec<ReplicaView> = (0..scenario.replicas)
            .map(|slot| ReplicaView { capacity_blocks: scenario.capacity, ..view(slot) })
            .collect();
        let mut running: Vec<Running> = Vec::new();
        let weights: Vec<f64> = (1..=scenario.prefixes).map(|rank| (rank as f64).powf(-scenario.zipf)).collect();
        let total: f64 = weights.iter().sum();
        let (mut now, mut hit, mut all) = (0.0, 0_usize, 0_usize);
        let (mut ttfts, mut counts, mut homes) = (Vec::new(), vec![0_usize; views.len()], HashMap::new());
        for engine in &mut self.engines {
            engine.free_at = 0.0;
        }
        for _ in 0..scenario.requests {
            now -= self.rng.unit().ln() / scenario.rate;
            settle(&mut running, &mut views, now);
            let mut place = self.rng.unit() * total;
            let prefix = weights
                .iter()
                .position(|weight| {
                    place -= weight;
                    place < 0.0
                })
                .unwrap_or(0);
            self.served += 1;
            let (chain, blocks) = prompt(&scenario, prefix, self.served);
            let tokens = (scenario.prefix_bytes + scenario.suffix_bytes) as u64 / 4;
            let query = RouteQuery {
                chain: &chain,
                prompt_tokens: tokens,
                tokens_per_block: 64.0,
                affinity: None,
                random: self.rng.next(),
            };
            let hits = if policy.needs_chain() { index.lookup(&chain, &views) } else { Hits::none() };
            let pick = policy.rank(&query, &hits, &views)[0];
            let view = &mut views[pick.view];
            let new = index.insert(&chain, view.slot, view.generation, view.clock);
            view.clock += new;
            view.in_flight += 1;
            view.pending_prefill += pick.uncached_tokens;
            let engine = &mut self.engines[pick.view];
            let cached = engine.run(&blocks, scenario.cache_blocks);
            let uncached = (blocks.len() - cached) * ENGINE_BLOCK;
            engine.free_at = engine.free_at.max(now) + uncached as f64 * scenario.prefill_seconds_per_byte;
            let first_token = engine.free_at + 0.002;
            running.push(Running {
                replica: pick.view,
                first_token,
                end: first_token + scenario.decode_seconds,
                tokens: pick.uncached_tokens,
                prefilling: true,
            });
            ttfts.push(first_token - now);
            hit += cached;
            all += blocks.len();
            counts[pick.view] += 1;
            homes.entry(prefix).or_insert(pick.view);
        }
        ttfts.sort_by(f64::total_cmp);
        let quantile = |percent: usize| ttfts[ttfts.len() * percent / 100] * 1000.0;
        Report {
            hit_percent: 100.0 * hit as f64 / all as f64,
            ttft_p50: quantile(50),
            ttft_p95: quantile(95),
            ttft_p99: quantile(99),
            spread: *counts.iter().max().unwrap() as f64 * counts.len() as f64 / scenario.requests as f64,
            homes,
        }
    }
}

fn settle(running: &mut Vec<Running>, views: &mut [ReplicaView], now: f64) {
    running.retain_mut(|request| {
        let view = &mut views[request.replica];
        if request.prefilling && request.first_token <= now {
            request.prefilling = false;
            view.pending_prefill -= request.tokens;
        }
        if request.end <= now {
            view.in_flight -= 1;
        }
        request.end > now
    });
}

/// The chain as the gateway makes it, and the engine's blocks.
fn prompt(scenario: &Scenario, prefix: usize, unique: u64) -> (Chain, Vec<u64>) {
    let text = |seed: u64, bytes: usize| -> String {
        let mut rng = Rng(seed);
        let words = std::iter::repeat_with(|| format!("{:016x}", rng.next())).take(bytes / 16 + 1);
        words.collect::<String>().chars().take(bytes).collect()
    };
    let head = text(prefix as u64, scenario.prefix_bytes);
    let tail = text(1 << 40 | unique, scenario.suffix_bytes);
    let mut hasher = Hasher::new(&ChainSeed::default(), 256, 0);
    hasher.put(head.as_bytes());
    if scenario.marked {
        hasher.end_of_head();
    }
    hasher.put(tail.as_bytes());
    hasher.end_of_user();
    let mut parent = 0;
    let whole = format!("{head}{tail}");
    let blocks = whole.as_bytes().chunks_exact(ENGINE_BLOCK).map(|block| {
        parent = xxhash_rust::xxh3::xxh3_64_with_seed(block, parent);
        parent
    });
    (hasher.finish(), blocks.collect())
}

fn run(name: &str, scenario: &Scenario) -> Report {
    World::new(scenario).run(&*policy(name).unwrap())
}

/// What is possible: every prefix is computed once.
fn bound(scenario: &Scenario) -> f64 {
    let engine_blocks = |bytes: usize| (bytes / ENGINE_BLOCK) as f64;
    let prefix = engine_blocks(scenario.prefix_bytes);
    let all = engine_blocks(scenario.prefix_bytes + scenario.suffix_bytes);
    100.0 * (scenario.requests - scenario.prefixes) as f64 / scenario.requests as f64 * prefix / all
}

/// Mean over some seeds.
fn mean(seeds: std::ops::Range<u64>, value: impl Fn(&Scenario) -> f64) -> f64 {
    let count = (seeds.end - seeds.start) as f64;
    seeds.map(|seed| value(&Scenario { seed, ..lab() })).sum::<f64>() / count
}

#[test]
fn the_default_reaches_the_hit_rate_of_a_client_that_pins_each_prefix() {
    let bound = mean(100..104, bound);
    let prefix = mean(100..104, |scenario| run("prefix", scenario).hit_percent);
    let round_robin = mean(100..104, |scenario| run("round_robin", scenario).hit_percent);

    assert!(prefix > bound - 0.3, "{prefix:.1} % of at most {bound:.1} %");
    assert!(prefix > round_robin + 25.0, "round robin: {round_robin:.1} %");
}

#[test]
fn the_default_waits_less_than_round_robin_and_spreads_the_prefixes() {
    let scenario = lab();
    let (prefix, round_robin) = (run("prefix", &scenario), run("round_robin", &scenario));

    assert!(prefix.ttft_p50 < round_robin.ttft_p50 / 2.0, "{prefix:?}");
    assert!(prefix.ttft_p95 < round_robin.ttft_p95, "{prefix:?}");
    assert!(prefix.ttft_p99 < round_robin.ttft_p99, "{prefix:?}");
    assert!(prefix.spread < 1.45, "{prefix:?}");
    for replica in 0..4 {
        let homes = prefix.homes.values().filter(|home| **home == replica).count();
        assert!((11..=20).contains(&homes), "replica {replica} is home of {homes} of 64");
    }
}

/// Where the same prefixes land when the gateway forgets everything and starts again before warm replicas.
fn restart(scenario: &Scenario) -> (Report, Report, usize) {
    let mut world = World::new(scenario);
    let before = world.run(&*policy("prefix").unwrap());
    let after = world.run(&*policy("prefix").unwrap());
    let same = after.homes.iter().filter(|(prefix, home)| before.homes.get(prefix) == Some(home)).count();
    (before, after, same)
}

#[test]
fn a_restarted_gateway_finds_its_caches_again() {
    let (before, after, same) = restart(&Scenario { rate: 1.0, capacity: Some(700), ..lab() });
    assert!(same * 100 >= after.homes.len() * 90, "{same} of {} prefixes have the same home", after.homes.len());
    assert!(after.hit_percent > before.hit_percent, "{after:?}");
}

#[test]
fn a_restart_under_load_keeps_the_hit_rate() {
    let (_, after, _) = restart(&lab());
    let best = 100.0 * 8192.0 / 8384.0;
    assert!(after.hit_percent > 0.93 * best, "{:.1} % of {best:.1} %", after.hit_percent);
}
