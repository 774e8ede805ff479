use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::simulator::{
    scheduler::{Batching, QueueLimit},
    sequence::Prompt,
    timing::Rates,
};

fn spec(seqs: usize, tokens: usize, blocks: usize, batching: Batching) -> EngineSpec {
    EngineSpec {
        limits: Limits { max_num_seqs: seqs, max_num_batched_tokens: tokens, queue: QueueLimit::Unlimited, batching },
        kv_tokens: blocks * 8,
        block_size: 8,
        prefix_caching: true,
        timing: Timing::Rates(Rates::default()),
    }
}

fn request(group: u32, tokens: usize, output: usize) -> Request {
    let ids: Vec<u32> =
        (0u32..).take(tokens).enumerate().map(|(at, id)| if at < tokens / 2 { group } else { 1000 + id }).collect();
    Request { prompt: Prompt::from_ids(&ids, 8, 0), output_tokens: output, output_seed: u64::from(group) }
}

#[test]
fn a_cold_prompt_takes_its_prefill_time_and_a_cached_one_only_the_rest() {
    let mut engine = SimEngine::new(&EngineSpec { kv_tokens: 65_536, ..spec(8, 8192, 0, Batching::Mixed) });
    engine.submit(request(1, 2500, 1), Duration::ZERO).unwrap();
    let (cold, events) = engine.step().unwrap();
    assert_eq!(cold, Duration::from_micros(500 + 100_000), "2,500 tokens at 25,000 a second, and the overhead");
    assert!(matches!(
        events[..],
        [Event::Admitted { cached: 0, .. }, Event::Token { generated: 1, finished: true, .. }]
    ));

    engine.submit(request(1, 2500, 1), Duration::ZERO).unwrap();
    let (warm, events) = engine.step().unwrap();

    assert_eq!(warm, Duration::from_micros(500 + 160), "4 tokens are left behind 312 blocks of 8");
    assert!(matches!(events[..], [Event::Admitted { cached: 2496, .. }, Event::Token { cached: 2496, .. }]));
}

#[test]
fn the_queue_limit_refuses_and_counts() {
    let mut base = spec(1, 64, 64, Batching::Mixed);
    base.limits.queue = QueueLimit::Total(1);
    let mut engine = SimEngine::new(&base);
    engine.submit(request(1, 10, 1), Duration::ZERO).unwrap();

    assert_eq!(engine.submit(request(2, 10, 1), Duration::ZERO), Err(Refused::QueueFull));

    assert_eq!(engine.stats().rejected, 1);
}

#[test]
fn a_request_that_could_never_run_is_refused() {
    let mut engine = SimEngine::new(&spec(1, 64, 8, Batching::Mixed));

    assert_eq!(engine.submit(request(1, 60, 5), Duration::ZERO), Err(Refused::TooLarge));
    assert!(engine.submit(request(1, 60, 4), Duration::ZERO).is_ok());
}

#[test]
fn a_cache_in_use_is_not_flushed() {
    let mut engine = SimEngine::new(&spec(4, 64, 64, Batching::Mixed));
    let id = engine.submit(request(1, 40, 9), Duration::ZERO).unwrap();
    engine.step();
    assert!(!engine.flush_cache());
    engine.abort(id);

    assert!(engine.flush_cache());

    engine.submit(request(1, 40, 1), Duration::ZERO).unwrap();
    engine.step();
    assert_eq!(engine.stats().totals.hits, 0);
}

#[derive(Debug, Clone)]
enum Act {
    Submit { group: u32, tokens: usize, output: usize },
    Abort(usize),
    Begin,
    Finish,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => (0u32..4, 1usize..120, 0usize..40).prop_map(|(group, tokens, output)| Act::Submit { group, tokens, output }),
        1 => (0usize..50).prop_map(Act::Abort),
        4 => Just(Act::Begin),
        4 => Just(Act::Finish),
    ];
    proptest::collection::vec(act, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn nothing_leaks_and_no_limit_is_passed(acts in acts(), mixed: bool, blocks in 20usize..40) {
        let batching = if mixed { Batching::Mixed } else { Batching::PrefillFirst };
        let mut engine = SimEngine::new(&spec(5, 48, blocks, batching));
        let mut targets: HashMap<SeqId, usize> = HashMap::new();
        let mut ids = Vec::new();
        let mut events = Vec::new();
        for act in acts {
            match act {
                Act::Submit { group, tokens, output } => {
                    let id = engine.submit(request(group, tokens, output), Duration::ZERO).unwrap();
                    targets.insert(id, output);
                    ids.push(id);
                }
                Act::Abort(at) => if let Some(id) = ids.get(at) {
                    let known = targets.remove(id).is_some();
                    prop_assert_eq!(engine.abort(*id), known);
                },
                Act::Begin => if let Some((_, work)) = engine.begin_work() {
                    prop_assert!(work.tokens <= 48, "the token budget holds");
                },
                Act::Finish => if engine.in_step() {
                    engine.finish(&mut events);
                    for event in &events {
                        if let Event::Token { id, generated, finished, .. } = event {
                            prop_assert_eq!(*finished, *generated == targets[id], "exactly the tokens asked for");
                            if *finished { targets.remove(id); }
                        }
                    }
                },
            }
            let stats = engine.stats();
            prop_assert!(stats.running <= 5);
            prop_assert_eq!(stats.running + stats.waiting, targets.len());
            prop_assert!(engine.scheduler().pool().references() >= stats.used_blocks as u64);
        }
        if engine.in_step() { engine.finish(&mut events); }
        let mut steps = 0;
        while engine.step().is_some() {
            steps += 1;
            prop_assert!(steps < 20_000, "every request ends");
        }
        let stats = engine.stats();
        prop_assert_eq!((stats.running, stats.waiting, stats.used_blocks), (0, 0, 0));
        prop_assert_eq!(engine.scheduler().pool().references(), 0);
        prop_assert_eq!(engine.scheduler().pool().free(), blocks);
    }
}
