//! Runs the engine model in real time: one task, one timer a step.
//!
//! The model sits behind a short mutex, so a request is let in and an abort frees its slot in the caller's own call, not
//! when the task next runs. Steps follow each other by the model's clock, not by when the timer fired: a timer that is
//! a millisecond late does not make the engine slower, several short steps may run on one wake.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    config::{Flavor, SimConfig},
    meter::Meter,
    outbox::{Outbox, Progress},
};
use crate::simulator::{Event, Request, SeqId, SimEngine, Stats};

/// A driver this late (a starved machine) does not try to catch up.
const MAX_LAG: Duration = Duration::from_millis(100);
/// How long the front end of a dead engine still answers; vLLM's exits about 0.4 s after its engine.
const DEATH_THROES: Duration = Duration::from_millis(300);

/// One sequence's way back to its reader.
#[derive(Debug)]
struct Owner {
    outbox: Arc<Outbox>,
    index: usize,
    ends_by_itself: bool,
    prompt_tokens: usize,
    arrived: Duration,
    first: Option<Duration>,
    last: Duration,
}

#[derive(Debug)]
struct State {
    sim: SimEngine,
    owners: HashMap<SeqId, Owner>,
    meter: Meter,
    frozen: bool,
    dead: bool,
}

/// Why a request was not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The queue is full.
    Full,
    /// The engine is dead.
    Dead,
    /// Asked for by `--fail-after`.
    Fault,
}

/// One sequence to run.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) request: Request,
    /// Whether it ends at a stop or at its length, for the counter.
    pub(super) ends_by_itself: bool,
}

/// The engine in real time.
#[derive(Debug)]
pub(super) struct Driver {
    state: Mutex<State>,
    wake: Notify,
    started: Instant,
    config: Arc<SimConfig>,
}

impl Driver {
    pub(super) fn new(config: Arc<SimConfig>) -> Arc<Self> {
        let meter = match config.flavor {
            Flavor::Vllm => Meter::vllm(),
            Flavor::Sglang => Meter::sglang(),
        };
        let state =
            State { sim: SimEngine::new(&config.engine), owners: HashMap::new(), meter, frozen: false, dead: false };
        Arc::new(Self { state: Mutex::new(state), wake: Notify::new(), started: Instant::now(), config })
    }

    /// Lets a request of one or more sequences in.
    pub(super) fn submit(self: &Arc<Self>, jobs: Vec<Job>) -> Result<Ticket, Refusal> {
        let outbox = Arc::new(Outbox::new(jobs.len()));
        let now = self.started.elapsed();
        let mut state = self.lock();
        if state.dead {
            return Err(Refusal::Dead);
        }
        let before = state.meter.requests;
        if self.config.faults.fail_after.is_some_and(|limit| before >= limit) {
            return Err(Refusal::Fault);
        }
        if !state.sim.admits() {
            state.meter.rejected += 1;
            return Err(Refusal::Full);
        }
        state.meter.requests += 1;
        state.frozen |= self.config.faults.hang_after.is_some_and(|limit| before >= limit);
        let mut ids = SmallVec::new();
        for (index, job) in jobs.into_iter().enumerate() {
            let prompt_tokens = job.request.prompt.tokens;
            let id = state.sim.submit_more(job.request, now);
            let owner = Owner {
                outbox: Arc::clone(&outbox),
                index,
                ends_by_itself: job.ends_by_itself,
                prompt_tokens,
                arrived: now,
                first: None,
                last: now,
            };
            state.owners.insert(id, owner);
            ids.push(id);
        }
        drop(state);
        self.wake.notify_one();
        Ok(Ticket { driver: Arc::clone(self), ids, outbox })
    }

    /// State of the model and a copy of the counters.
    pub(super) fn read(&self) -> (Stats, Meter) {
        let state = self.lock();
        (state.sim.stats(), state.meter.clone())
    }

    /// State of the model.
    pub(super) fn stats(&self) -> Stats {
        self.lock().sim.stats()
    }

    /// Tokens of waiting prompts.
    pub(super) fn waiting_tokens(&self) -> usize {
        self.lock().sim.scheduler().waiting_tokens()
    }

    /// Free blocks whose content can still be found.
    pub(super) fn evictable_blocks(&self) -> usize {
        self.lock().sim.scheduler().pool().cached_free()
    }

    /// Whether the engine's process is gone.
    pub(super) fn dead(&self) -> bool {
        self.lock().dead
    }

    /// Whether the engine hangs.
    pub(super) fn frozen(&self) -> bool {
        self.lock().frozen
    }

    /// Forgets the prefix cache; false while busy.
    pub(super) fn flush_cache(&self) -> bool {
        self.lock().sim.flush_cache()
    }

    /// Drives the model until `stop`. Cancels `stop` itself when the engine dies.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut clock = self.started.elapsed();
        let mut events = Vec::new();
        loop {
            let Some(duration) = self.begin() else {
                tokio::select! {
                    () = self.wake.notified() => {}
                    () = stop.cancelled() => return,
                }
                clock = clock.max(self.started.elapsed());
                continue;
            };
            let begun = clock;
            clock += duration;
            let now = self.started.elapsed();
            if clock > now {
                tokio::select! {
                    () = tokio::time::sleep_until(self.started + clock) => {}
                    () = stop.cancelled() => return,
                }
            } else {
                if now - clock > MAX_LAG {
                    clock = now;
                }
                tokio::task::yield_now().await;
            }
            if self.finish(begun, clock, &mut events) {
                tokio::time::sleep(DEATH_THROES).await;
                stop.cancel();
                return;
            }
        }
    }

    fn begin(&self) -> Option<Duration> {
        let mut state = self.lock();
        if state.frozen || state.dead {
            return None;
        }
        let (duration, work) = state.sim.begin_work()?;
        state.meter.step_tokens.observe(work.tokens as f64);
        Some(duration)
    }

    /// Ends the step and tells the readers. True when the engine died of it.
    fn finish(&self, begun: Duration, now: Duration, events: &mut Vec<Event>) -> bool {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.sim.finish(events);
        for event in events.iter() {
            if let Event::Admitted { id, .. } = event
                && let Some(owner) = state.owners.get(id)
            {
                state.meter.queue_time.time(begun.saturating_sub(owner.arrived));
            }
            let Event::Token { id, generated, cached, finished } = *event else { continue };
            let Some(owner) = state.owners.get_mut(&id) else { continue };
            owner.note(now, generated, cached, &mut state.meter);
            owner.outbox.put(owner.index, Progress { generated, cached, finished });
            if finished {
                owner.end(now, generated, &mut state.meter);
                state.owners.remove(&id);
            }
        }
        let limit = self.config.faults.die_after_tokens;
        if limit.is_some_and(|limit| state.sim.stats().generated >= limit) {
            state.dead = true;
            for owner in state.owners.values() {
                owner.outbox.kill();
            }
        }
        state.dead
    }

    fn abort(&self, ids: &[SeqId]) {
        let mut state = self.lock();
        for id in ids {
            if state.owners.remove(id).is_some() {
                state.sim.abort(*id);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Owner {
    fn note(&mut self, now: Duration, generated: usize, cached: usize, meter: &mut Meter) {
        if self.first.is_none() {
            self.first = Some(now);
            meter.ttft.time(now.saturating_sub(self.arrived));
            meter.prompt_tokens += self.prompt_tokens as u64;
            meter.cached_tokens += cached as u64;
        } else if generated > 1 {
            meter.itl.time(now.saturating_sub(self.last));
        }
        self.last = now;
    }

    fn end(&self, now: Duration, generated: usize, meter: &mut Meter) {
        let first = self.first.unwrap_or(now);
        meter.e2e.time(now.saturating_sub(self.arrived));
        meter.decode_time.time(now.saturating_sub(first));
        meter.prefill_time.time(first.saturating_sub(self.arrived));
        meter.prompt_lengths.observe(self.prompt_tokens as f64);
        meter.output_lengths.observe(generated as f64);
        if generated > 1 {
            meter.tpot.observe(now.saturating_sub(first).as_secs_f64() / (generated - 1) as f64);
        }
        *(if self.ends_by_itself { &mut meter.by_stop } else { &mut meter.by_length }) += 1;
    }
}

/// A request inside the engine. Dropping it aborts what has not finished.
#[derive(Debug)]
pub(super) struct Ticket {
    driver: Arc<Driver>,
    ids: SmallVec<[SeqId; 1]>,
    pub(super) outbox: Arc<Outbox>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.driver.abort(&self.ids);
    }
}
