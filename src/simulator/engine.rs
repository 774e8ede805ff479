//! One simulated engine: scheduler, pool and step time behind five calls.
//!
//! `submit`, `abort`, `begin`, `finish`, `stats`. Time is the caller's: `begin(now)` answers how long the step takes,
//! `finish()` what it did. A driver in real time sleeps in between; a discrete-event loop jumps.
//! Two engines with equal specs that get equal calls do equal things.

use std::time::Duration;

use super::{
    kv::KvPool,
    scheduler::{Limits, Scheduler, Totals},
    sequence::{Request, SeqId},
    timing::{Timing, Work},
};

pub use super::scheduler::Change as Event;

/// What an engine is made of.
#[derive(Debug, Clone)]
pub struct EngineSpec {
    /// Scheduler limits.
    pub limits: Limits,
    /// Tokens the KV pool holds; rounded down to whole blocks.
    pub kv_tokens: usize,
    /// Tokens in one block (vLLM `--block-size`, SGLang `--page-size`).
    pub block_size: usize,
    /// Whether prefixes are kept and found.
    pub prefix_caching: bool,
    /// Step time.
    pub timing: Timing,
}

/// A request was refused: it never ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The queue limit is reached.
    #[error("the request queue is full")]
    QueueFull,
    /// Prompt and output together do not fit into the whole pool, so it would wait for ever.
    #[error("the request needs more tokens than the KV pool holds")]
    TooLarge,
}

/// State of an engine at one moment, and its sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sequences that run.
    pub running: usize,
    /// Sequences that wait.
    pub waiting: usize,
    /// Blocks in the pool.
    pub blocks: usize,
    /// Blocks used by running sequences.
    pub used_blocks: usize,
    /// Sums of the scheduler.
    pub totals: Totals,
    /// Tokens sampled.
    pub generated: u64,
    /// Sequences that ran to their end.
    pub finished: u64,
    /// Sequences aborted.
    pub aborted: u64,
    /// Requests refused by the queue limit.
    pub rejected: u64,
    /// Cached blocks overwritten.
    pub evictions: u64,
    /// Time spent in steps that computed prompt tokens.
    pub prefill_busy: Duration,
}

impl Stats {
    /// Share of the pool that running sequences use, 0 to 1.
    #[must_use]
    pub fn kv_usage(&self) -> f64 {
        if self.blocks == 0 { 0.0 } else { self.used_blocks as f64 / self.blocks as f64 }
    }
}

/// One engine.
#[derive(Debug)]
pub struct SimEngine {
    scheduler: Scheduler,
    timing: Timing,
    sums: Stats,
    in_step: bool,
}

impl SimEngine {
    /// An idle engine with an empty cache.
    #[must_use]
    pub fn new(spec: &EngineSpec) -> Self {
        let block_size = spec.block_size.max(1);
        let pool = KvPool::new(spec.kv_tokens / block_size, block_size, spec.prefix_caching);
        let scheduler = Scheduler::new(spec.limits, pool);
        Self { scheduler, timing: spec.timing.clone(), sums: Stats::default(), in_step: false }
    }

    /// Puts a request in the queue. `now` is time since the engine's start, by the caller's clock.
    ///
    /// # Errors
    /// The queue limit is reached, or the request could never run.
    pub fn submit(&mut self, request: Request, now: Duration) -> Result<SeqId, Refused> {
        let pool = self.scheduler.pool();
        if request.prompt.tokens + request.output_tokens > pool.len() * pool.block_size() {
            return Err(Refused::TooLarge);
        }
        if !self.admits() {
            self.sums.rejected += 1;
            return Err(Refused::QueueFull);
        }
        Ok(self.scheduler.submit(request, now))
    }

    /// Puts further sequences of a request that was let in behind it (`n`, batches): they are not refused. The caller
    /// has seen to it that each fits into the pool.
    pub fn submit_more(&mut self, request: Request, now: Duration) -> SeqId {
        self.scheduler.submit(request, now)
    }

    /// Whether [`Self::submit`] would take a request now.
    #[must_use]
    pub fn admits(&self) -> bool {
        self.scheduler.admits()
    }

    /// Ends a sequence wherever it is; its slot and blocks are free at once. False when it had ended.
    pub fn abort(&mut self, id: SeqId) -> bool {
        let found = self.scheduler.abort(id);
        self.sums.aborted += u64::from(found);
        found
    }

    /// Begins a step and says how long it takes; `None` when there is nothing to do. Call [`Self::finish`] after it.
    pub fn begin(&mut self) -> Option<Duration> {
        self.begin_work().map(|(duration, _)| duration)
    }

    /// [`Self::begin`], with what the step computes.
    pub fn begin_work(&mut self) -> Option<(Duration, Work)> {
        if self.in_step {
            return None;
        }
        let work = self.scheduler.schedule();
        if work.tokens == 0 {
            return None;
        }
        self.in_step = true;
        let duration = self.timing.step(&work);
        if work.prefill_tokens > 0 {
            self.sums.prefill_busy += duration;
        }
        Some((duration, work))
    }

    /// Ends the step that [`Self::begin`] began: tokens, ends and preemptions, in the order of the running set.
    pub fn finish(&mut self, events: &mut Vec<Event>) {
        self.in_step = false;
        events.clear();
        events.extend(self.scheduler.complete());
        for event in events.iter() {
            if let Event::Token { generated, finished, .. } = event {
                self.sums.generated += u64::from(*generated > 0);
                self.sums.finished += u64::from(*finished);
            }
        }
    }

    /// [`Self::begin`] and [`Self::finish`] at once, for virtual time: how long it took and what happened at its end.
    pub fn step(&mut self) -> Option<(Duration, Vec<Event>)> {
        let duration = self.begin()?;
        let mut events = Vec::new();
        self.finish(&mut events);
        Some((duration, events))
    }

    /// Whether a step is running.
    #[must_use]
    pub fn in_step(&self) -> bool {
        self.in_step
    }

    /// Forgets the prefix cache. False, and nothing done, while sequences run or wait (as the engines answer).
    pub fn flush_cache(&mut self) -> bool {
        let idle = self.scheduler.running() == 0 && self.scheduler.waiting() == 0;
        if idle {
            self.scheduler.pool_mut().flush();
        }
        idle
    }

    /// The scheduler, to read.
    #[must_use]
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// State and sums. O(1).
    #[must_use]
    pub fn stats(&self) -> Stats {
        let pool = self.scheduler.pool();
        Stats {
            running: self.scheduler.running(),
            waiting: self.scheduler.waiting(),
            blocks: pool.len(),
            used_blocks: pool.len() - pool.free(),
            totals: self.scheduler.totals(),
            evictions: pool.evictions(),
            ..self.sums
        }
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
