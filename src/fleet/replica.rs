//! One engine process: who it is (fixed) and how it is (atomics and two small locks).
//!
//! Counters are relaxed atomics: each is a statistic on its own, no reader needs two of them to agree. The generation
//! rises when the process behind the address was replaced, which empties the prefix index of it in O(1).
//! Source: DESIGN.md section 2, "Index" and "Placement".

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use secrecy::SecretString;
use tokio::{sync::Notify, time::Instant};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    BaseUrl, EngineLoad, FailureCause, InFlight, ProbeFailure, ServedModel, Standing,
    health::{Active, Health},
    load::LoadState,
    prefill::PrefillRate,
    room::{Freed, Listeners},
    ttft::TtftModel,
};
use crate::{
    routing::ReplicaView,
    types::{EngineKind, ReplicaSlot},
};

/// What the configuration or the discovery says of a replica.
#[derive(Debug, Clone)]
pub struct ReplicaSpec {
    /// Where it is.
    pub base: BaseUrl,
    /// Key that is sent to it.
    pub api_key: Option<SecretString>,
    /// Its engine; `None`: find out by probing.
    pub engine: Option<EngineKind>,
    /// Most requests in flight.
    pub limit: u32,
}

/// A replica. Shared as `Arc`; every method takes `&self`.
pub struct Replica {
    slot: ReplicaSlot,
    spec: ReplicaSpec,
    label: String,
    id_hash: u64,
    /// 0: not known yet, else one of the codes of [`code_of`].
    engine: AtomicU8,
    generation: AtomicU8,
    clock: AtomicU32,
    /// Reading of the clock behind which nothing is in the cache.
    emptied_at: AtomicU32,
    /// Reading of the clock at the engine's last word.
    clock_at_word: AtomicU32,
    counters: Counters,
    models: ArcSwapOption<Vec<ServedModel>>,
    health: Mutex<Health>,
    load: Mutex<LoadState>,
    prompt_bytes: AtomicU64,
    prompt_tokens: AtomicU64,
    prefill: PrefillRate,
    ttft: TtftModel,
    /// Somebody met a failure: probe now rather than at the next turn.
    nudge: Notify,
    listeners: Listeners,
}

/// What attempts charge.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) in_flight: AtomicU32,
    /// Most in flight since the engine's last word.
    pub(super) peak: AtomicU32,
    pub(super) pending_prefill: AtomicU64,
}

impl Replica {
    /// A replica of the first generation that nobody has probed.
    #[must_use]
    pub fn new(slot: ReplicaSlot, spec: ReplicaSpec) -> Arc<Self> {
        Self::with_generation(slot, 0, spec)
    }

    /// A replica in a slot that another one had before; see [`super::Slots`].
    #[must_use]
    pub fn with_generation(slot: ReplicaSlot, generation: u8, spec: ReplicaSpec) -> Arc<Self> {
        let label = spec.base.label();
        let id_hash = xxh3_64(label.as_bytes());
        // Random for each process: gateways side by side must not readmit a replica in step.
        let seed = RandomState::new().hash_one(id_hash);
        Arc::new(Self {
            slot,
            engine: AtomicU8::new(spec.engine.map_or(0, code_of)),
            spec,
            label,
            id_hash,
            generation: AtomicU8::new(generation),
            clock: AtomicU32::new(0),
            emptied_at: AtomicU32::new(0),
            clock_at_word: AtomicU32::new(0),
            counters: Counters::default(),
            models: ArcSwapOption::empty(),
            health: Mutex::new(Health::new(seed)),
            load: Mutex::new(LoadState::default()),
            prompt_bytes: AtomicU64::new(0),
            prompt_tokens: AtomicU64::new(0),
            prefill: PrefillRate::default(),
            ttft: TtftModel::default(),
            nudge: Notify::new(),
            listeners: Listeners::default(),
        })
    }

    /// Its number, unique among live replicas.
    #[must_use]
    pub fn slot(&self) -> ReplicaSlot {
        self.slot
    }

    /// `host:port[/path]`, the `replica` label of the metrics.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Hash of the label: equal in every gateway.
    #[must_use]
    pub fn id_hash(&self) -> u64 {
        self.id_hash
    }

    /// Where it is.
    #[must_use]
    pub fn base(&self) -> &BaseUrl {
        &self.spec.base
    }

    /// Key that is sent to it.
    #[must_use]
    pub fn api_key(&self) -> Option<&SecretString> {
        self.spec.api_key.as_ref()
    }

    /// Most requests in flight.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.spec.limit
    }

    // === engine and models

    /// The configured or detected engine; [`EngineKind::Openai`] until known.
    #[must_use]
    pub fn engine(&self) -> EngineKind {
        kind_of(self.engine.load(Ordering::Relaxed)).unwrap_or(EngineKind::Openai)
    }

    /// Whether the engine was configured or detected.
    #[must_use]
    pub fn engine_known(&self) -> bool {
        self.engine.load(Ordering::Relaxed) != 0
    }

    /// Sets the detected engine; a configured one stands. True when that changed it.
    pub fn set_engine(&self, kind: EngineKind) -> bool {
        self.spec.engine.is_none() && self.engine.swap(code_of(kind), Ordering::Relaxed) != code_of(kind)
    }

    /// What it serves; empty until known.
    #[must_use]
    pub fn models(&self) -> Arc<Vec<ServedModel>> {
        self.models.load_full().unwrap_or_default()
    }

    /// Whether it has told what it serves.
    #[must_use]
    pub fn models_known(&self) -> bool {
        self.models.load().is_some()
    }

    /// Whether it told that it serves a model of this name.
    #[must_use]
    pub fn serves(&self, model: &str) -> bool {
        self.models.load().as_ref().is_some_and(|models| models.iter().any(|served| &*served.id == model))
    }

    /// Takes what it serves. True when that differs from before.
    pub fn set_models(&self, models: Vec<ServedModel>) -> bool {
        let changed = self.models.load().as_ref().is_none_or(|before| **before != models);
        self.models.store(Some(Arc::new(models)));
        changed
    }

    // === process

    /// Process generation.
    #[must_use]
    pub fn generation(&self) -> u8 {
        self.generation.load(Ordering::Relaxed)
    }

    /// The process was replaced: its cache is empty, and what the old one did is forgotten.
    ///
    /// In-flight charges stay: their guards release them.
    pub fn restarted(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.clock.store(0, Ordering::Relaxed);
        self.emptied_at.store(0, Ordering::Relaxed);
        self.clock_at_word.store(0, Ordering::Relaxed);
        *self.load_state() = LoadState::default();
        self.prefill.forget();
        self.ttft.forget();
        self.health().forgive();
    }

    /// Blocks inserted into its cache since the process began, wrapping.
    #[must_use]
    pub fn clock(&self) -> u32 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Counts blocks that a prompt added to its cache.
    pub fn advance_clock(&self, blocks: u32) {
        self.clock.fetch_add(blocks, Ordering::Relaxed);
    }

    // === health

    /// Where it stands.
    #[must_use]
    pub fn standing(&self, now: Instant) -> Standing {
        self.health().standing(now)
    }

    /// Up, not ejected (or its one probe request is due), not draining.
    #[must_use]
    pub fn usable(&self, now: Instant) -> bool {
        self.standing(now).usable()
    }

    /// Whether the health probes have it up.
    #[must_use]
    pub fn up(&self) -> bool {
        self.health().active() == Active::Up
    }

    /// Whether its failures have it ejected.
    #[must_use]
    pub fn ejected(&self) -> bool {
        self.health().ejected()
    }

    /// A good health probe. True when that changed it to up.
    pub fn probe_ok(&self, _now: Instant) -> bool {
        let changed = self.health().probe_ok();
        self.freed();
        changed
    }

    /// A bad health probe. True when that took it down.
    pub fn probe_failed(&self, _now: Instant, failure: ProbeFailure) -> bool {
        let changed = self.health().probe_failed(failure);
        // Whoever waits for the last replica need not wait any longer.
        self.freed();
        changed
    }

    /// A request ended well.
    pub fn succeeded(&self, now: Instant) {
        self.health().succeeded(now);
    }

    /// A request failed by the replica's fault. True when that ejected it. Asks for a health probe at once.
    pub fn failed(&self, cause: FailureCause, now: Instant) -> bool {
        let ejected = self.health().failed(now);
        if matches!(cause, FailureCause::Connect | FailureCause::Reset) {
            self.health().suspect();
            self.nudge.notify_one();
        }
        ejected
    }

    /// It refused for load: others are preferred until then.
    pub fn saturated(&self, until: Instant) {
        self.health().saturated(until);
    }

    /// It leaves (no new requests), or comes back.
    pub fn set_draining(&self, draining: bool) {
        self.health().set_draining(draining);
    }

    /// Wakes the one task that probes this replica, ahead of its time.
    #[must_use]
    pub fn nudges(&self) -> &Notify {
        &self.nudge
    }

    /// Asks for a health probe ahead of time.
    pub fn nudge(&self) {
        self.nudge.notify_one();
    }

    // === load

    /// Charges one attempt whose prompt has this many tokens that the replica must compute, unless as many requests as
    /// it may have are there. Two that ask at once do not both get the last place.
    pub fn try_charge(self: &Arc<Self>, uncached_tokens: u64, now: Instant) -> Option<InFlight> {
        self.try_charge_prompt(uncached_tokens, uncached_tokens, now)
    }

    /// [`Self::try_charge`] for a prompt of `prompt_tokens`, of which the replica holds a part.
    pub fn try_charge_prompt(
        self: &Arc<Self>,
        uncached_tokens: u64,
        prompt_tokens: u64,
        now: Instant,
    ) -> Option<InFlight> {
        let limit = self.spec.limit;
        let one_more = |count: u32| (count < limit).then(|| count + 1);
        let before = self.counters.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        self.counters.peak.fetch_max(before.saturating_add(1), Ordering::Relaxed);
        let probe = self.health().begin_probe();
        let wait = self.ttft.sent(uncached_tokens, prompt_tokens, before, now);
        Some(InFlight::new(Arc::clone(self), uncached_tokens, wait, probe, now))
    }

    /// Tells this listener when there may be room here.
    pub fn listen(&self, listener: &Weak<dyn Freed>) {
        self.listeners.add(listener);
    }

    pub(super) fn freed(&self) {
        self.listeners.tell();
    }

    pub(super) fn saw_first_token(&self, tokens: u64, waited: Duration) {
        self.prefill.saw(tokens, waited);
    }

    pub(super) fn ttft(&self) -> &TtftModel {
        &self.ttft
    }

    /// Seconds that a pending prompt token adds to the time to first token here; `None` until learned.
    #[must_use]
    pub fn seconds_per_token(&self) -> Option<f32> {
        self.prefill.seconds_per_token()
    }

    /// Prompt tokens charged to it whose first output has not been seen.
    #[must_use]
    pub fn pending_prefill(&self) -> u64 {
        self.counters.pending_prefill.load(Ordering::Relaxed)
    }

    /// Requests of this gateway that are there now.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.counters.in_flight.load(Ordering::Relaxed)
    }

    /// The engine's counters fell since its last word: its cache was emptied in between. What it was sent since that
    /// word may be there.
    pub fn emptied(&self) {
        self.emptied_at.store(self.clock_at_word.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Takes the engine's word on its load.
    pub fn set_load(&self, load: EngineLoad, now: Instant) {
        self.clock_at_word.store(self.clock(), Ordering::Relaxed);
        let in_flight = self.in_flight();
        let peak = self.counters.peak.swap(in_flight, Ordering::Relaxed).max(in_flight);
        self.load_state().set(load, peak, now);
        self.freed();
    }

    /// The engine's word on its load; `None` when it never came or is stale.
    #[must_use]
    pub fn load(&self, now: Instant) -> Option<EngineLoad> {
        self.load_state().fresh(now)
    }

    /// What a policy may know of it.
    ///
    /// `running` and `waiting` are the engine's, brought up to now by the own count: together they are the own
    /// requests plus those that others put there. Both are 0 when the engine's word is missing or stale.
    #[must_use]
    pub fn view(&self, now: Instant, bytes_per_token: f32, block_bytes: u32) -> ReplicaView {
        let in_flight = self.in_flight();
        let (corrected, kv_usage, cache_tokens) = {
            let state = self.load_state();
            (state.corrected(in_flight, now), state.fresh(now).and_then(|load| load.kv_usage), state.cache_tokens)
        };
        let (running, waiting) = corrected.unwrap_or_default();
        ReplicaView {
            slot: self.slot,
            generation: self.generation(),
            in_flight,
            running,
            waiting,
            pending_prefill: self.pending_prefill(),
            kv_usage,
            capacity_blocks: cache_tokens.and_then(|tokens| blocks(tokens, bytes_per_token, block_bytes)),
            clock: self.clock(),
            since_empty: self.clock().wrapping_sub(self.emptied_at.load(Ordering::Relaxed)),
            limit: self.spec.limit,
            id_hash: self.id_hash,
            learned: self.ttft.predict(in_flight, now),
        }
    }

    /// Learns from a usage report how many bytes a token has.
    pub fn observe_prompt(&self, prompt_bytes: u64, prompt_tokens: u64) {
        self.prompt_bytes.fetch_add(prompt_bytes, Ordering::Relaxed);
        self.prompt_tokens.fetch_add(prompt_tokens, Ordering::Relaxed);
    }

    /// Prompt bytes and prompt tokens seen so far.
    #[must_use]
    pub fn observed_prompts(&self) -> (u64, u64) {
        (self.prompt_bytes.load(Ordering::Relaxed), self.prompt_tokens.load(Ordering::Relaxed))
    }

    // === inside

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(super) fn probe_ended(&self) {
        self.health().probe_ended();
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load_state(&self) -> MutexGuard<'_, LoadState> {
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica")
            .field("slot", &self.slot)
            .field("label", &self.label)
            .field("engine", &self.engine())
            .field("generation", &self.generation())
            .field("active", &self.health().active())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

/// Prompt blocks that a cache of so many tokens holds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the range of u32 before")]
fn blocks(tokens: u64, bytes_per_token: f32, block_bytes: u32) -> Option<u32> {
    let blocks = tokens as f64 * f64::from(bytes_per_token) / f64::from(block_bytes);
    (blocks.is_finite() && blocks >= 1.0).then(|| blocks.min(f64::from(u32::MAX)) as u32)
}

/// Number of an engine in the atomic; never 0.
const fn code_of(kind: EngineKind) -> u8 {
    match kind {
        EngineKind::Vllm => 1,
        EngineKind::Sglang => 2,
        EngineKind::Tgi => 3,
        EngineKind::Openai => 4,
    }
}

const fn kind_of(code: u8) -> Option<EngineKind> {
    match code {
        1 => Some(EngineKind::Vllm),
        2 => Some(EngineKind::Sglang),
        3 => Some(EngineKind::Tgi),
        4 => Some(EngineKind::Openai),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
