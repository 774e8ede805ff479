use super::*;
use crate::simulator::sequence::Prompt;

fn limits(seqs: usize, tokens: usize) -> Limits {
    Limits {
        max_num_seqs: seqs,
        max_num_batched_tokens: tokens,
        queue: QueueLimit::Unlimited,
        batching: Batching::Mixed,
    }
}

fn scheduler(limits: Limits, blocks: usize) -> Scheduler {
    Scheduler::new(limits, KvPool::new(blocks, 16, true))
}

/// A prompt whose ids are `name`, `name` + 1, ...: equal names share all they can.
fn request(name: u32, tokens: u32, output: usize) -> Request {
    let ids: Vec<u32> = (name..name + tokens).collect();
    Request { prompt: Prompt::from_ids(&ids, 16, 0), output_tokens: output, output_seed: u64::from(name) }
}

/// Runs to the end; tokens of each step.
fn drain(scheduler: &mut Scheduler) -> Vec<usize> {
    let mut steps = Vec::new();
    loop {
        let work = scheduler.schedule();
        if work.tokens == 0 {
            return steps;
        }
        steps.push(work.tokens);
        scheduler.complete();
    }
}

#[test]
fn a_long_prompt_is_cut_into_chunks_and_then_decoded() {
    let mut scheduler = scheduler(limits(4, 64), 64);
    scheduler.submit(request(0, 150, 3), Duration::ZERO);

    // 64 + 64 + 22 prompt tokens; the third chunk samples token 1; tokens 1 and 2 are decoded, token 3 ends it.
    assert_eq!(drain(&mut scheduler), [64, 64, 22, 1, 1]);
    assert_eq!(scheduler.pool().references(), 0);
}

#[test]
fn decodes_go_first_and_a_prompt_gets_what_is_left_of_the_budget() {
    let mut scheduler = scheduler(limits(4, 64), 64);
    scheduler.submit(request(0, 10, 5), Duration::ZERO);
    assert_eq!(scheduler.schedule().prefill_tokens, 10);
    scheduler.complete();
    scheduler.submit(request(1000, 100, 1), Duration::ZERO);

    let work = scheduler.schedule();

    assert_eq!((work.decodes, work.prefill_tokens), (1, 63));
    scheduler.complete();
    let work = scheduler.schedule();
    assert_eq!((work.decodes, work.prefill_tokens), (1, 37));
}

#[test]
fn sglang_runs_prefill_alone_while_decodes_wait() {
    let mut scheduler = scheduler(Limits { batching: Batching::PrefillFirst, ..limits(4, 64) }, 64);
    scheduler.submit(request(0, 10, 5), Duration::ZERO);
    scheduler.schedule();
    scheduler.complete();
    scheduler.submit(request(1000, 100, 2), Duration::ZERO);

    let mut seen = Vec::new();
    for _ in 0..3 {
        let work = scheduler.schedule();
        seen.push((work.decodes, work.prefill_tokens));
        scheduler.complete();
    }

    assert_eq!(seen, [(0, 64), (0, 36), (2, 0)]);
}

#[test]
fn a_repeated_prompt_hits_whole_blocks_and_always_computes_its_last_token() {
    let mut scheduler = scheduler(limits(4, 4096), 64);
    // vLLM's own figures: 1,329 tokens in blocks of 32 give 1,312; here 90 in blocks of 16 give 80.
    scheduler.submit(request(0, 90, 1), Duration::ZERO);
    assert_eq!(drain(&mut scheduler), [90]);
    scheduler.submit(request(0, 90, 1), Duration::ZERO);
    assert_eq!(drain(&mut scheduler), [10]);
    // A whole number of blocks: the last block is computed again.
    scheduler.submit(request(0, 80, 1), Duration::ZERO);
    assert_eq!(drain(&mut scheduler), [16]);

    assert_eq!(scheduler.totals().queries, 90 + 90 + 80);
    assert_eq!(scheduler.totals().hits, 80 + 64);
}

#[test]
fn siblings_in_one_step_share_what_the_first_of_them_computes() {
    let mut scheduler = scheduler(limits(4, 4096), 64);
    scheduler.submit(request(0, 90, 1), Duration::ZERO);
    scheduler.submit(request(0, 90, 1), Duration::ZERO);

    assert_eq!(drain(&mut scheduler), [100]);
}

#[test]
fn output_blocks_join_the_cache_when_full() {
    let mut scheduler = scheduler(limits(4, 4096), 64);
    let first = request(0, 10, 40);
    scheduler.submit(first.clone(), Duration::ZERO);
    drain(&mut scheduler);

    // The next turn: the same prompt, the 40 output tokens, and 6 more.
    let mut ids: Vec<u32> = (0..10).collect();
    ids.extend((0..40).map(|at| crate::simulator::text::output_token(first.output_seed, at)));
    ids.extend(900..906);
    let prompt = Prompt::from_ids(&ids, 16, 0);
    scheduler.submit(Request { prompt, output_tokens: 1, output_seed: 5 }, Duration::ZERO);

    // 10 + 39 computed tokens are 3 whole blocks: 56 - 48 = 8 are left to compute.
    assert_eq!(drain(&mut scheduler), [8]);
}

#[test]
fn a_full_pool_preempts_the_last_comer_which_starts_again_and_finishes() {
    // 8 blocks of 16. Two prompts of 48 (3 blocks each) and 40 output tokens (88 tokens: 6 blocks each at the end).
    let mut scheduler = scheduler(limits(4, 4096), 8);
    let first = scheduler.submit(request(0, 48, 40), Duration::ZERO);
    let second = scheduler.submit(request(1000, 48, 40), Duration::ZERO);
    let mut order = Vec::new();
    let mut preempted = Vec::new();
    while scheduler.schedule().tokens > 0 {
        for change in scheduler.complete() {
            match change {
                Change::Preempted { id } => preempted.push(id),
                Change::Token { id, finished: true, generated, .. } => order.push((id, generated)),
                Change::Token { .. } | Change::Admitted { .. } => {}
            }
        }
    }

    assert_eq!(preempted, [second], "both need a fifth block at the same step and only the first gets it");
    assert_eq!(order, [(first, 40), (second, 40)]);
    assert_eq!(scheduler.totals().preemptions, 1);
    assert_eq!(scheduler.pool().free(), 8);
}

#[test]
fn a_head_of_queue_that_does_not_fit_holds_back_those_behind_it() {
    let mut scheduler = scheduler(limits(4, 4096), 8);
    scheduler.submit(request(0, 80, 2), Duration::ZERO);
    scheduler.submit(request(1000, 64, 1), Duration::ZERO);
    scheduler.submit(request(2000, 16, 1), Duration::ZERO);

    scheduler.schedule();

    assert_eq!((scheduler.running(), scheduler.waiting()), (1, 2), "64 tokens need 4 of the 3 blocks left");
}

#[test]
fn an_abort_in_the_middle_of_a_step_frees_blocks_at_once_and_yields_no_token() {
    let mut scheduler = scheduler(limits(4, 4096), 8);
    let id = scheduler.submit(request(0, 40, 5), Duration::ZERO);
    scheduler.schedule();

    assert!(scheduler.abort(id));

    assert_eq!(scheduler.pool().free(), 8);
    assert_eq!(scheduler.complete().filter(|change| matches!(change, Change::Token { .. })).count(), 0);
    assert!(!scheduler.abort(id));
}

#[test]
fn queue_limits_count_as_each_engine_counts() {
    let total = Limits { queue: QueueLimit::Total(2), ..limits(1, 64) };
    let mut vllm = scheduler(total, 64);
    vllm.submit(request(0, 10, 5), Duration::ZERO);
    vllm.submit(request(0, 10, 5), Duration::ZERO);
    assert!(!vllm.admits());

    let waiting = Limits { queue: QueueLimit::Waiting(1), ..limits(1, 64) };
    let mut sglang = scheduler(waiting, 64);
    sglang.submit(request(0, 10, 5), Duration::ZERO);
    sglang.schedule();
    assert!(sglang.admits(), "one runs, none waits");
    sglang.submit(request(0, 10, 5), Duration::ZERO);
    assert!(!sglang.admits());
}
