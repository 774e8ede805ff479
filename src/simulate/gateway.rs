//! One gateway of the simulation: its own replicas' state, index and policy, and the path of a placement through them.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::node::Foreseen;
use crate::{
    fleet::{InFlight, Replica, ReplicaSpec},
    prompt::{Chain, ChainSeed, chain::Hasher},
    routing::{Hits, Policy, PrefixIndex, ReplicaView, RouteQuery},
    types::{PickReason, ReplicaSlot},
};

/// Bytes that stand for one block of the trace.
const BLOCK_BYTES: u32 = 8;
/// Prompt blocks that the index can hold: `routing.index_entries` of a default configuration.
const INDEX_ENTRIES: usize = 1 << 20;
/// Where a prompt that nobody holds belongs is told by its beginning, up to so many tokens.
const HOME_TOKENS: usize = 1024;

/// A request that a gateway placed.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) node: usize,
    pub(super) charge: InFlight,
    pub(super) reason: PickReason,
    pub(super) foreseen: Foreseen,
}

/// What a prompt is to a gateway.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    pub(super) chain: &'a Chain,
    pub(super) tokens: usize,
    pub(super) random: u64,
}

/// One gateway. It knows of others only by what the engines' gauges say.
#[derive(Debug)]
pub(super) struct Gateway {
    replicas: Vec<Arc<Replica>>,
    usable: Vec<bool>,
    index: PrefixIndex,
    policy: Box<dyn Policy>,
    block_tokens: usize,
    views: Vec<ReplicaView>,
    open: Vec<usize>,
}

impl Gateway {
    pub(super) fn new(policy: Box<dyn Policy>, specs: &[ReplicaSpec], up: usize, block_tokens: usize) -> Self {
        let replica = |(slot, spec): (usize, &ReplicaSpec)| {
            Replica::new(ReplicaSlot(u16::try_from(slot).unwrap_or(u16::MAX)), spec.clone())
        };
        Self {
            replicas: specs.iter().enumerate().map(replica).collect(),
            usable: (0..specs.len()).map(|slot| slot < up).collect(),
            index: PrefixIndex::new(INDEX_ENTRIES),
            policy,
            block_tokens,
            views: Vec::new(),
            open: Vec::new(),
        }
    }

    pub(super) fn replica(&self, node: usize) -> Option<&Arc<Replica>> {
        self.replicas.get(node)
    }

    /// A replica left or came; its cache is empty when it comes.
    pub(super) fn set_usable(&mut self, node: usize, usable: bool) {
        if let Some(known) = self.usable.get_mut(node) {
            *known = usable;
        }
        if let Some(replica) = self.replicas.get(node).filter(|_| usable) {
            replica.restarted();
        }
    }

    fn bytes_per_token(&self) -> f32 {
        BLOCK_BYTES as f32 / self.block_tokens.max(1) as f32
    }

    /// Places a request as `serve` does: views, lookup, ranking, a place at the first that has one, and the index.
    pub(super) fn place(&mut self, asked: &Asked<'_>, now: Instant) -> Option<Placed> {
        self.look(now);
        let chain = asked.chain;
        let query = RouteQuery {
            chain,
            prompt_tokens: asked.tokens as u64,
            tokens_per_block: self.block_tokens as f32,
            affinity: None,
            random: asked.random,
        };
        let hits = if self.policy.needs_chain() { self.index.lookup(chain, &self.views) } else { Hits::none() };
        let ranking = self.policy.rank(&query, &hits, &self.views);
        let (pick, node, charge) = ranking.iter().find_map(|pick| {
            let node = *self.open.get(pick.view)?;
            let charge = self.replicas.get(node)?.try_charge_prompt(pick.uncached_tokens, query.prompt_tokens, now)?;
            Some((*pick, node, charge))
        })?;
        let replica = self.replicas.get(node)?;
        if self.policy.needs_chain() {
            let new = self.index.insert(chain, replica.slot(), replica.generation(), replica.clock());
            replica.advance_clock(new);
        }
        let cached = asked.tokens as u64 - pick.uncached_tokens.min(asked.tokens as u64);
        let learned = self.views.get(pick.view).and_then(|view| view.learned);
        let ttft = learned.map(|learned| f64::from(learned.ttft(pick.uncached_tokens, query.prompt_tokens)));
        let foreseen = Foreseen { cached, ttft };
        Some(Placed { node, charge, reason: pick.reason, foreseen })
    }

    /// Fills the views of the usable replicas.
    fn look(&mut self, now: Instant) {
        let bytes_per_token = self.bytes_per_token();
        self.views.clear();
        self.open.clear();
        for (node, replica) in self.replicas.iter().enumerate() {
            let view = replica.view(now, bytes_per_token, BLOCK_BYTES);
            if self.usable.get(node).copied().unwrap_or(false) && view.in_flight < view.limit {
                self.views.push(view);
                self.open.push(node);
            }
        }
    }
}

/// The chain of a prompt whose blocks have these hashes.
pub(super) fn chain(hashes: &[u64], block_tokens: usize) -> Chain {
    let mut hasher = Hasher::new(&ChainSeed::default(), BLOCK_BYTES, hashes.len() * BLOCK_BYTES as usize);
    let home = (HOME_TOKENS / block_tokens.max(1)).max(1);
    for (number, hash) in hashes.iter().enumerate() {
        if number == home {
            hasher.end_of_user();
        }
        hasher.put(&hash.to_le_bytes());
    }
    hasher.finish()
}

/// A moment of the simulation as the fleet's code wants it.
pub(super) fn at(origin: Instant, time: Duration) -> Instant {
    origin + time
}
