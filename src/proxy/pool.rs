//! One model as clients see it: its replicas, its prefix index, its policy, its limits.
//!
//! A replica that serves several models is a member of several pools and is shared between them: its load is one.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::{
    admission::{Bounds, Signals},
    config::{Caps, Concurrency, RoutingPlan, Slo},
    fleet::{self, Freed, InFlight, Replica, RetryBudget},
    prompt::Chain,
    proxy::{
        admit::context::Context,
        count::{Counter, Mode},
        line::{Line, LineLimits},
    },
    routing::{self, Hits, Policy, PrefixIndex, Ranking, ReplicaView, RouteQuery},
    telemetry::{ModelMetrics, ReplicaMetrics, Telemetry},
    types::ReplicaSlot,
};

/// Part of the objective for TTFT that prompts at a replica may take. The prediction is a mean: the rest is for those
/// above it.
const AT_REPLICA: f32 = 0.6;

/// Part of it that a request may be expected to spend in line.
const IN_LINE: f32 = 0.2;

/// Bytes of prompt to a token until the engine's own `usage` teaches better; English text in common vocabularies.
const BYTES_PER_TOKEN: f32 = 4.0;

/// Weight of one answer in the learned bytes per token.
const LEARN: f32 = 0.05;

/// A replica inside a pool, with the metric handles of the pair.
#[derive(Debug, Clone)]
pub struct Member {
    /// The replica.
    pub replica: Arc<Replica>,
    /// Its gauges and pick counters under this pool's model.
    pub metrics: Arc<ReplicaMetrics>,
    /// Whether the signs of its engine had it full when they were last looked at.
    full: Arc<AtomicBool>,
}

impl Member {
    /// A member with room.
    #[must_use]
    pub fn new(replica: Arc<Replica>, metrics: Arc<ReplicaMetrics>) -> Self {
        Self { replica, metrics, full: Arc::default() }
    }

    /// Whether it takes one more request, by its bound and by the signs of its engine.
    fn has_room(&self, view: &ReplicaView, bounds: &Bounds) -> bool {
        let signals = Signals {
            waiting: view.waiting,
            kv_usage: view.kv_usage,
            load: view.load(),
            pending_prefill: view.pending_prefill,
            seconds_per_token: self.replica.seconds_per_token(),
        };
        let full = bounds.full(&signals, self.full.load(Ordering::Relaxed));
        self.full.store(full, Ordering::Relaxed);
        !full && view.in_flight < view.limit
    }
}

/// One model.
#[derive(Debug)]
pub struct Pool {
    name: Arc<str>,
    upstream_model: Arc<str>,
    caps: Caps,
    slo: Slo,
    block_bytes: u32,
    members: ArcSwap<Vec<Member>>,
    index: PrefixIndex,
    policy: Box<dyn Policy>,
    metrics: Arc<ModelMetrics>,
    retries: RetryBudget,
    bytes_per_token: AtomicU32,
    bounds: Bounds,
    line: Line,
    counter: Counter,
    context: Option<u64>,
}

/// What a pool is made of.
#[derive(Debug)]
pub struct PoolParts<'a> {
    /// What clients send.
    pub name: Arc<str>,
    /// What replicas are told.
    pub upstream_model: Arc<str>,
    /// Token caps.
    pub caps: Caps,
    /// Objectives.
    pub slo: Slo,
    /// How many requests run and wait.
    pub concurrency: &'a Concurrency,
    /// Policy, block size, index bound.
    pub routing: &'a RoutingPlan,
    /// How prompt tokens are counted.
    pub counting: Mode,
    /// Prompt plus output tokens that the model takes; `None` is what its replicas say.
    pub context: Option<u64>,
}

/// A replica chosen for one attempt.
#[derive(Debug, Clone)]
pub struct Placed {
    /// Where.
    pub member: Member,
    /// Why, how much is cached, how much is to be computed.
    pub pick: routing::Pick,
}

/// Replicas in the order in which they are to be tried.
pub type Placement = SmallVec<[Placed; 4]>;

/// A request that may go.
#[derive(Debug)]
pub struct Ready {
    /// Where; never empty.
    pub placement: Placement,
    /// Its place at the first of them.
    pub charge: InFlight,
    /// How long it waited for that in line.
    pub waited: Duration,
}

/// What a request asks of a placement.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The prompt's blocks.
    pub chain: &'a Chain,
    /// Hash of the session hint.
    pub affinity: Option<u64>,
    /// A random number.
    pub random: u64,
}

/// Why nothing was placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unplaced {
    /// No replica is usable.
    Down,
    /// Every usable replica is full.
    Full,
}

/// What there is room for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// Usable replicas.
    pub usable: u32,
    /// Of them, those that take one more.
    pub open: u32,
}

impl Pool {
    /// A pool without members. An unknown policy name falls back to the default; the configuration refuses it earlier.
    #[must_use]
    pub fn new(parts: PoolParts<'_>, telemetry: &Telemetry) -> Self {
        let policy =
            routing::policy(&parts.routing.policy).unwrap_or_else(|| Box::new(routing::prefix::Prefix::default()));
        Self {
            metrics: telemetry.model(&parts.name),
            name: parts.name,
            upstream_model: parts.upstream_model,
            caps: parts.caps,
            block_bytes: parts.routing.block_bytes,
            members: ArcSwap::default(),
            index: PrefixIndex::new(parts.routing.index_entries),
            policy,
            retries: RetryBudget::default(),
            bytes_per_token: AtomicU32::new(BYTES_PER_TOKEN.to_bits()),
            bounds: bounds(parts.concurrency, &parts.slo),
            line: Line::new(line_limits(parts.concurrency, &parts.slo)),
            slo: parts.slo,
            counter: Counter::new(parts.counting),
            context: parts.context,
        }
    }

    /// What clients call it.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What replicas call it.
    #[must_use]
    pub fn upstream_model(&self) -> &Arc<str> {
        &self.upstream_model
    }

    /// Token caps.
    #[must_use]
    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    /// What counts its prompts.
    #[must_use]
    pub fn counter(&self) -> &Counter {
        &self.counter
    }

    /// Prompt plus output tokens that its replicas take: as configured, else as they say. `None` if nobody says.
    #[must_use]
    pub fn context(&self) -> Option<Context> {
        if let Some(tokens) = self.context {
            return Some(Context { least: tokens, most: tokens });
        }
        let members = self.members.load();
        let said = members.iter().filter_map(|member| {
            let models = member.replica.models();
            models.iter().find(|served| served.id == self.upstream_model)?.max_model_len
        });
        said.fold(None, |all: Option<Context>, tokens| {
            Some(all.map_or(Context { least: tokens, most: tokens }, |all| Context {
                least: all.least.min(tokens),
                most: all.most.max(tokens),
            }))
        })
    }

    /// Objectives.
    #[must_use]
    pub fn slo(&self) -> &Slo {
        &self.slo
    }

    /// Metric handles.
    #[must_use]
    pub fn metrics(&self) -> &Arc<ModelMetrics> {
        &self.metrics
    }

    /// Retries allowed now.
    #[must_use]
    pub fn retries(&self) -> &RetryBudget {
        &self.retries
    }

    /// The prefix index.
    #[must_use]
    pub fn index(&self) -> &PrefixIndex {
        &self.index
    }

    /// Bytes of one prompt block.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// The replicas of now.
    #[must_use]
    pub fn members(&self) -> Arc<Vec<Member>> {
        self.members.load_full()
    }

    /// Replaces the replicas. Entries of those that left are dead by their generation, not removed.
    pub fn set_members(self: &Arc<Self>, members: Vec<Member>) {
        let listener: Weak<dyn Freed> = Arc::downgrade(&(Arc::clone(self) as Arc<dyn Freed>));
        for member in &members {
            member.replica.listen(&listener);
        }
        self.members.store(Arc::new(members));
        self.freed();
    }

    /// Those who wait for a place.
    #[must_use]
    pub fn line(&self) -> &Line {
        &self.line
    }

    /// What there is room for now.
    #[must_use]
    pub fn room(&self, now: Instant) -> Room {
        let members = self.members.load();
        let mut room = Room::default();
        for (member, view) in self.views(&members, now) {
            room.usable += 1;
            room.open += u32::from(member.has_room(&view, &self.bounds));
        }
        room
    }

    /// The usable members, each with its view.
    fn views<'a>(&self, members: &'a [Member], now: Instant) -> SmallVec<[(&'a Member, ReplicaView); 16]> {
        let replicas: SmallVec<[Arc<Replica>; 16]> = members.iter().map(|member| member.replica.clone()).collect();
        let bytes_per_token = self.bytes_per_token();
        let usable = fleet::usable_replicas(&replicas, now);
        let view = |member: &Member| member.replica.view(now, bytes_per_token, self.block_bytes);
        usable.iter().filter_map(|&at| members.get(at)).map(|member| (member, view(member))).collect()
    }

    /// Whether the policy reads the prompt.
    #[must_use]
    pub fn needs_chain(&self) -> bool {
        self.policy.needs_chain()
    }

    /// Name of its policy.
    #[must_use]
    pub fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// Learned bytes of prompt to a token.
    #[must_use]
    pub fn bytes_per_token(&self) -> f32 {
        f32::from_bits(self.bytes_per_token.load(Ordering::Relaxed))
    }

    /// Learns from an answer's own count. Lost updates between threads do no harm.
    pub fn learn_tokens(&self, bytes: u64, tokens: u64) {
        // Short prompts are mostly template; they teach nothing about text.
        if tokens < 64 || bytes < 256 {
            return;
        }
        let seen = (bytes as f32 / tokens as f32).clamp(0.5, 16.0);
        let now = self.bytes_per_token();
        self.bytes_per_token.store((now + LEARN * (seen - now)).to_bits(), Ordering::Relaxed);
    }

    /// Tokens that a prompt of these canonical bytes will have, at least one.
    #[must_use]
    pub fn prompt_tokens(&self, bytes: u64) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "bytes / ratio is finite and positive"
        )]
        let tokens = (bytes as f32 / self.bytes_per_token()) as u64;
        tokens.max(1)
    }

    /// Orders the usable replicas that have room, and takes a place at the first that still has one.
    ///
    /// # Errors
    /// Whether no replica is usable, or all are full.
    pub fn place(&self, wanted: &Wanted<'_>, now: Instant) -> Result<Ready, Unplaced> {
        let members = self.members.load();
        let usable = self.views(&members, now);
        if usable.is_empty() {
            return Err(Unplaced::Down);
        }
        let (open, views): (SmallVec<[&Member; 16]>, SmallVec<[ReplicaView; 16]>) =
            usable.into_iter().filter(|(member, view)| member.has_room(view, &self.bounds)).unzip();
        let placement = self.rank(wanted, &open, &views);
        let tokens = self.prompt_tokens(wanted.chain.bytes());
        let taken = placement.iter().enumerate().find_map(|(at, placed)| {
            let charge = placed.member.replica.try_charge_prompt(placed.pick.uncached_tokens, tokens, now)?;
            Some((at, charge))
        });
        let (at, charge) = taken.ok_or(Unplaced::Full)?;
        Ok(Ready { placement: placement.into_iter().skip(at).collect(), charge, waited: Duration::ZERO })
    }

    fn rank(&self, wanted: &Wanted<'_>, open: &[&Member], views: &[ReplicaView]) -> Placement {
        let hits = if self.needs_chain() { self.index.lookup(wanted.chain, views) } else { Hits::none() };
        let query = RouteQuery {
            chain: wanted.chain,
            prompt_tokens: self.prompt_tokens(wanted.chain.bytes()),
            tokens_per_block: self.block_bytes as f32 / self.bytes_per_token(),
            affinity: wanted.affinity,
            random: wanted.random,
        };
        let ranking: Ranking = self.policy.rank(&query, &hits, views);
        let placed = |pick: routing::Pick| Some(Placed { member: (*open.get(pick.view)?).clone(), pick });
        ranking.into_iter().filter_map(placed).collect()
    }

    /// Notes that `replica` will hold the prompt: at dispatch, so that siblings of a burst land together. Gives the
    /// blocks that are new to it.
    pub fn remember(&self, chain: &Chain, replica: &Replica) -> u32 {
        if !self.needs_chain() {
            return 0;
        }
        let new = self.index.insert(chain, replica.slot(), replica.generation(), replica.clock());
        replica.advance_clock(new);
        new
    }

    /// Takes back a `remember` that gave `new` blocks: the replica never saw the prompt.
    pub fn forget(&self, chain: &Chain, new: u32, replica: &Replica) {
        if self.needs_chain() {
            self.index.undo(chain, new, replica.slot(), replica.generation());
        }
    }

    /// Blocks as tokens.
    #[must_use]
    pub fn block_tokens(&self, blocks: u32) -> u64 {
        self.prompt_tokens(u64::from(blocks) * u64::from(self.block_bytes)).saturating_mul(u64::from(blocks > 0))
    }

    /// The replica in a slot.
    #[must_use]
    pub fn member(&self, slot: ReplicaSlot) -> Option<Member> {
        self.members.load().iter().find(|member| member.replica.slot() == slot).cloned()
    }
}

/// The objective that a full pool is held to, if it is.
fn held_ttft(concurrency: &Concurrency, slo: &Slo) -> Option<Duration> {
    slo.ttft.filter(|_| concurrency.predicted_ttft == Some(true))
}

fn bounds(concurrency: &Concurrency, slo: &Slo) -> Bounds {
    Bounds {
        engine_queue: concurrency.engine_queue,
        kv_usage: concurrency.kv_usage,
        ttft: held_ttft(concurrency, slo).map(|ttft| ttft.mul_f32(AT_REPLICA)),
        resume: concurrency.resume,
    }
}

fn line_limits(concurrency: &Concurrency, slo: &Slo) -> LineLimits {
    let patience = held_ttft(concurrency, slo).map_or(concurrency.queue_timeout, |ttft| ttft.mul_f32(IN_LINE));
    let timeout = concurrency.queue_timeout;
    LineLimits { length: concurrency.queue as usize, timeout, patience: patience.min(timeout) }
}

impl Freed for Pool {
    fn freed(&self) {
        if self.line.is_busy() {
            self.line.pump(self.room(Instant::now()));
        }
    }
}
