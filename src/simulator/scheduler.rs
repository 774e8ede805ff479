//! Continuous batching: which sequences compute how many tokens in the next step.
//!
//! vLLM v1 has no prefill phase: every running sequence asks for all it lacks, running ones before waiting ones, until
//! the token budget is spent. So decodes go first and a long prompt is cut into chunks that ride along. SGLang runs
//! prefill alone and lets decodes wait. A full pool preempts the sequence that came last: its blocks are freed, it goes
//! to the head of the queue, and computes prompt and output again; its client only sees a pause.
//! Source: vLLM `v1/core/sched/scheduler.py` (`schedule`, `scheduler_reserve_full_isl`), SGLang `get_next_batch_to_run`.

use std::{collections::VecDeque, time::Duration};

use super::{
    kv::KvPool,
    sequence::{Request, SeqId, Sequence},
    timing::Work,
};

/// How prefill and decode share steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batching {
    /// vLLM: both in one step, decodes first.
    Mixed,
    /// SGLang: prefill in steps of its own, decodes wait.
    PrefillFirst,
}

/// When a new request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueLimit {
    /// Never.
    Unlimited,
    /// vLLM `--max-num-queued-reqs`: waiting and running together.
    Total(usize),
    /// SGLang `--max-queued-requests`: waiting only.
    Waiting(usize),
}

/// Limits of one engine.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Sequences that run at once.
    pub max_num_seqs: usize,
    /// Tokens in one step.
    pub max_num_batched_tokens: usize,
    /// When a new request is refused.
    pub queue: QueueLimit,
    /// How prefill and decode share steps.
    pub batching: Batching,
}

/// What a finished step did to one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It left the queue for the first time, at the begin of the step.
    Admitted {
        /// The sequence.
        id: SeqId,
        /// Prompt tokens found in the prefix cache.
        cached: usize,
    },
    /// A token was sampled; `finished` with the last one.
    Token {
        /// The sequence.
        id: SeqId,
        /// Tokens sampled so far.
        generated: usize,
        /// Prompt tokens that were cached when it was admitted.
        cached: usize,
        /// Whether this was the last one; the sequence is gone then.
        finished: bool,
    },
    /// It lost its blocks and waits again.
    Preempted {
        /// The sequence.
        id: SeqId,
    },
}

/// Sums over the life of a scheduler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Prompt tokens looked up in the prefix cache.
    pub queries: u64,
    /// Prompt tokens found there.
    pub hits: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Tokens computed in all steps.
    pub step_tokens: u64,
    /// Steps.
    pub steps: u64,
}

/// The queue, the running set and the pool.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    pool: KvPool,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    changes: Vec<Change>,
    totals: Totals,
    next_id: u64,
    /// The head of the queue that did not fit, and the free blocks then: no use looking again before there are more.
    blocked: Option<(SeqId, usize)>,
}

impl Scheduler {
    /// An idle scheduler on `pool`.
    #[must_use]
    pub fn new(limits: Limits, pool: KvPool) -> Self {
        Self {
            limits,
            pool,
            waiting: VecDeque::new(),
            running: Vec::new(),
            changes: Vec::new(),
            totals: Totals::default(),
            next_id: 0,
            blocked: None,
        }
    }

    /// Sequences that run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Sequences that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Prompt and output tokens that waiting sequences still have to compute, not counting any cache hit.
    #[must_use]
    pub fn waiting_tokens(&self) -> usize {
        self.waiting.iter().map(Sequence::total).sum()
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &KvPool {
        &self.pool
    }

    /// The pool, to flush it.
    pub fn pool_mut(&mut self) -> &mut KvPool {
        &mut self.pool
    }

    /// Sums so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Whether the queue limit lets one more request in.
    #[must_use]
    pub fn admits(&self) -> bool {
        match self.limits.queue {
            QueueLimit::Unlimited => true,
            QueueLimit::Total(limit) => self.waiting.len() + self.running.len() < limit,
            // A request that can run at once does not queue.
            QueueLimit::Waiting(limit) => {
                self.waiting.len() < limit + self.limits.max_num_seqs.saturating_sub(self.running.len())
            }
        }
    }

    /// Puts a sequence at the end of the queue.
    pub fn submit(&mut self, request: Request, now: Duration) -> SeqId {
        let id = SeqId(self.next_id);
        self.next_id += 1;
        self.waiting.push_back(Sequence::new(id, request, now));
        id
    }

    /// Removes a sequence and frees its blocks at once. False when it is not here (any more).
    pub fn abort(&mut self, id: SeqId) -> bool {
        let mut gone = if let Some(at) = self.running.iter().position(|seq| seq.id == id) {
            self.running.remove(at)
        } else if let Some(at) = self.waiting.iter().position(|seq| seq.id == id) {
            let Some(seq) = self.waiting.remove(at) else { return false };
            seq
        } else {
            return false;
        };
        self.pool.release(&mut gone.table);
        true
    }

    /// Chooses the next step. `Work::tokens` is 0 when there is nothing to do.
    pub fn schedule(&mut self) -> Work {
        let mut work = Work::default();
        let budget = self.limits.max_num_batched_tokens;
        match self.limits.batching {
            Batching::Mixed => {
                let (left, preempted) = self.schedule_running(budget, &mut work, |_| true);
                if !preempted {
                    self.admit(left, &mut work);
                }
            }
            Batching::PrefillFirst => {
                let (left, preempted) = self.schedule_running(budget, &mut work, Sequence::prefilling);
                if !preempted {
                    self.admit(left, &mut work);
                }
                if work.tokens == 0 {
                    self.schedule_running(budget, &mut work, |seq| !seq.prefilling());
                }
            }
        }
        if work.tokens > 0 {
            self.totals.steps += 1;
            self.totals.step_tokens += work.tokens as u64;
        }
        work
    }

    /// Applies the step that [`Self::schedule`] chose. Sequences aborted since then are simply not there.
    pub fn complete(&mut self) -> std::vec::Drain<'_, Change> {
        let (pool, changes) = (&mut self.pool, &mut self.changes);
        self.running.retain_mut(|seq| {
            if seq.scheduled == 0 {
                return true;
            }
            seq.computed += seq.scheduled;
            seq.scheduled = 0;
            if seq.remaining() > 0 {
                return true;
            }
            if seq.generated < seq.target() {
                seq.generated += 1;
            }
            let finished = seq.generated >= seq.target();
            let cached = seq.cached.unwrap_or_default();
            changes.push(Change::Token { id: seq.id, generated: seq.generated, cached, finished });
            if finished {
                pool.release(&mut seq.table);
            }
            !finished
        });
        self.changes.drain(..)
    }

    /// Longest time a sequence has been waiting, for metrics.
    #[must_use]
    pub fn oldest_arrival(&self) -> Option<Duration> {
        self.waiting.front().map(|seq| seq.arrived)
    }

    /// Gives running sequences that `wanted` selects their tokens; what is left of the budget, and whether any
    /// sequence had to be preempted.
    fn schedule_running(
        &mut self,
        mut budget: usize,
        work: &mut Work,
        wanted: impl Fn(&Sequence) -> bool,
    ) -> (usize, bool) {
        let mut at = 0;
        let mut preempted = false;
        while budget > 0 {
            let Some(seq) = self.running.get(at) else { break };
            if !wanted(seq) {
                at += 1;
                continue;
            }
            let tokens = seq.remaining().min(budget);
            if self.grow_or_preempt(at, tokens, &mut preempted) {
                self.take(at, tokens, work);
                budget -= tokens;
                at += 1;
            }
        }
        (budget, preempted)
    }

    /// Makes room for `tokens` more of the sequence at `at`, preempting from the end. False when that is itself.
    fn grow_or_preempt(&mut self, at: usize, tokens: usize, preempted: &mut bool) -> bool {
        let block_size = self.pool.block_size();
        loop {
            let Some(seq) = self.running.get_mut(at) else { return false };
            let blocks = (seq.computed + tokens).div_ceil(block_size);
            let more = blocks.saturating_sub(seq.table.len());
            if self.pool.grow(&mut seq.table, more) {
                return true;
            }
            let Some(mut victim) = self.running.pop() else { return false };
            self.pool.release(&mut victim.table);
            (victim.computed, victim.sealed, victim.scheduled) = (0, 0, 0);
            victim.preemptions += 1;
            self.totals.preemptions += 1;
            *preempted = true;
            self.changes.push(Change::Preempted { id: victim.id });
            self.waiting.push_front(victim);
        }
    }

    /// Books `tokens` of the sequence at `at` into the step and makes the blocks it fills findable.
    fn take(&mut self, at: usize, tokens: usize, work: &mut Work) {
        let block_size = self.pool.block_size();
        let Some(seq) = self.running.get_mut(at) else { return };
        seq.scheduled = tokens;
        work.add(seq.computed, tokens, !seq.prefilling());
        let full = (seq.computed + tokens) / block_size;
        while seq.sealed < full {
            let hash = seq.block_hash(seq.sealed, block_size);
            if let Some(block) = seq.table.get(seq.sealed) {
                self.pool.seal(*block, hash);
            }
            seq.sealed += 1;
        }
    }

    /// Admits waiting sequences, first come first served: a head that does not fit blocks all behind it.
    fn admit(&mut self, mut budget: usize, work: &mut Work) {
        let block_size = self.pool.block_size();
        while budget > 0 && self.running.len() < self.limits.max_num_seqs {
            let Some(seq) = self.waiting.front() else { return };
            if self.blocked.is_some_and(|(id, free)| id == seq.id && self.pool.free() <= free) {
                return;
            }
            // The last token is always computed: its logits are what the first sampled token comes from.
            let most = (seq.total() - 1) / block_size;
            let (hits, idle) = self.pool.lookup(seq.hashes().take(most));
            let missing = seq.total().div_ceil(block_size) - hits;
            if missing + idle > self.pool.free() {
                self.blocked = Some((seq.id, self.pool.free()));
                return;
            }
            let Some(mut seq) = self.waiting.pop_front() else { return };
            let mut table = std::mem::take(&mut seq.table);
            self.pool.claim(seq.hashes().take(hits), &mut table);
            seq.table = table;
            seq.computed = hits * block_size;
            seq.sealed = hits;
            if seq.cached.is_none() {
                let cached = seq.computed.min(seq.prompt_tokens());
                seq.cached = Some(cached);
                self.totals.queries += seq.prompt_tokens() as u64;
                self.totals.hits += cached as u64;
                self.changes.push(Change::Admitted { id: seq.id, cached });
            }
            let tokens = seq.remaining().min(budget);
            let blocks = (seq.computed + tokens).div_ceil(block_size);
            let grown = self.pool.grow(&mut seq.table, blocks - hits);
            debug_assert!(grown, "checked above");
            self.running.push(seq);
            self.take(self.running.len() - 1, tokens, work);
            budget -= tokens;
        }
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
