//! Ranks replicas for one request. Pure: no clock, no I/O; randomness and load come in as arguments.
//!
//! [`PrefixIndex`] remembers which replica was sent which prompt blocks; a [`Policy`] turns that and the load of each
//! replica into a ranking. A policy is one file and one line in [`REGISTRY`].
//! Source: DESIGN section 2, "Index" and "Placement".

pub mod cost;
pub mod guard;
pub mod index;
pub mod learned;
pub mod least_load;
pub mod lmetric;
pub mod popularity;
pub mod prefix;
pub mod random;
pub mod rendezvous;
pub mod round_robin;

#[cfg(test)]
mod simulation;

use std::fmt::Debug;

use smallvec::SmallVec;

pub use index::PrefixIndex;

use crate::prompt::Chain;
use crate::types::{BlockHash, PickReason, ReplicaSlot};

/// What a policy may know of one usable replica.
#[derive(Debug, Clone)]
pub struct ReplicaView {
    /// Number in this process.
    pub slot: ReplicaSlot,
    /// Which life of the replica: a restart empties its cache.
    pub generation: u8,
    /// Hash of the replica's label ([`rendezvous::id_hash`]): the same in every gateway, unlike the slot.
    pub id_hash: u64,
    /// Requests of this gateway at the replica.
    pub in_flight: u32,
    /// Running requests in the engine's own words; 0 if unknown or stale.
    pub running: u32,
    /// Waiting requests in the engine's own words; 0 if unknown or stale.
    pub waiting: u32,
    /// Prompt tokens charged to it whose first output has not been seen.
    pub pending_prefill: u64,
    /// Share of the KV pool in use.
    pub kv_usage: Option<f32>,
    /// Prompt blocks that its cache can hold.
    pub capacity_blocks: Option<u32>,
    /// Prompt blocks inserted so far, wrapping.
    pub clock: u32,
    /// Prompt blocks inserted since its cache was last seen empty: it holds none from before.
    pub since_empty: u32,
    /// Most requests in flight.
    pub limit: u32,
    /// What was learned of its speed; `None` before there were enough first tokens.
    pub learned: Option<Prediction>,
}

/// Time to first token at a replica, as learned from its first tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Seconds that any prompt waits there now: the fixed part, the backlog, the running requests.
    pub base: f32,
    /// Of them, those for prompts that are computed before.
    pub backlog: f32,
    /// Seconds for each token to compute.
    pub per_token: f32,
    /// Seconds for each pair of a computed token and one before it.
    pub per_pair: f32,
    /// Requests that are past their first token.
    pub decodes: f32,
}

impl Prediction {
    /// Seconds to compute `uncached` tokens of a prompt of `prompt`.
    #[must_use]
    pub fn prefill(&self, uncached: u64, prompt: u64) -> f32 {
        let (uncached, prompt) = (uncached as f32, prompt as f32);
        self.per_token * uncached + self.per_pair * uncached * (prompt - uncached / 2.0).max(0.0)
    }

    /// Seconds to its first token.
    #[must_use]
    pub fn ttft(&self, uncached: u64, prompt: u64) -> f32 {
        self.base + self.prefill(uncached, prompt)
    }
}

impl ReplicaView {
    /// Requests there as far as anybody knows: the engine also counts those of other gateways.
    #[must_use]
    pub fn load(&self) -> u32 {
        self.in_flight.max(self.running.saturating_add(self.waiting))
    }
}

/// One request to place.
#[derive(Debug, Clone, Copy)]
pub struct RouteQuery<'a> {
    /// Block hashes of the prompt.
    pub chain: &'a Chain,
    /// Estimated length of the prompt.
    pub prompt_tokens: u64,
    /// Estimated tokens in one block of the chain.
    pub tokens_per_block: f32,
    /// Hash of the session hint: `X-Gateway-Session`, `prompt_cache_key`, `user`.
    pub affinity: Option<u64>,
    /// A random number, drawn by the caller.
    pub random: u64,
}

impl RouteQuery<'_> {
    /// Tokens that a replica holding `blocks` must still compute; at least one, as engines always run the last token.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative; a float cast saturates")]
    pub fn uncached(&self, blocks: u32) -> u64 {
        let cached = (blocks as f32 * self.tokens_per_block.max(0.0)) as u64;
        self.prompt_tokens.saturating_sub(cached).max(1)
    }
}

/// One entry of a ranking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// Position in the views that were given.
    pub view: usize,
    /// Why it stands where it stands.
    pub reason: PickReason,
    /// Prompt blocks it should hold.
    pub cached_blocks: u32,
    /// Prompt tokens it must still compute.
    pub uncached_tokens: u64,
}

/// Most entries in a ranking: more attempts than this would only spread a failure.
pub const RANKED: usize = 4;

/// Best first; at most [`RANKED`]; empty only if there was no view.
pub type Ranking = SmallVec<[Pick; RANKED]>;

/// How requests are placed.
pub trait Policy: Send + Sync + Debug {
    /// Name in the configuration.
    fn name(&self) -> &'static str;
    /// Whether the chain is used. If not, the caller need not look it up.
    fn needs_chain(&self) -> bool;
    /// Ranks `views`. Never blocks.
    fn rank(&self, query: &RouteQuery<'_>, hits: &Hits, views: &[ReplicaView]) -> Ranking;
}

/// What the index knows of one prompt, per view.
#[derive(Debug, Clone, Default)]
pub struct Hits {
    blocks: SmallVec<[u32; 16]>,
    deepest: Option<(BlockHash, u32)>,
}

impl Hits {
    /// Nobody holds anything.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Hits with these blocks for each view. `deepest` is the deepest checkpoint that anybody holds, and its depth.
    #[must_use]
    pub fn new(blocks: impl IntoIterator<Item = u32>, deepest: Option<(BlockHash, u32)>) -> Self {
        Self { blocks: blocks.into_iter().collect(), deepest }
    }

    /// Blocks of the longest prefix that this view still holds; 0 if none.
    #[must_use]
    pub fn blocks(&self, view: usize) -> u32 {
        self.blocks.get(view).copied().unwrap_or(0)
    }

    /// Blocks of the longest prefix that any view holds.
    #[must_use]
    pub fn longest(&self) -> u32 {
        self.blocks.iter().copied().max().unwrap_or(0)
    }

    /// Deepest checkpoint known to anybody, with the blocks it covers.
    #[must_use]
    pub const fn deepest(&self) -> Option<(BlockHash, u32)> {
        self.deepest
    }
}

/// One policy, as the configuration knows it.
#[derive(Debug, Clone, Copy)]
pub struct PolicyEntry {
    /// Value of `routing.policy`.
    pub name: &'static str,
    /// One line of help.
    pub summary: &'static str,
    /// Makes one. Each model has its own.
    pub build: fn() -> Box<dyn Policy>,
}

/// Every policy.
pub const REGISTRY: &[PolicyEntry] = &[
    PolicyEntry {
        name: "prefix",
        summary: "where the longest prefix is cached, unless that replica is too busy (default)",
        build: || Box::new(prefix::Prefix::default()),
    },
    PolicyEntry {
        name: "lmetric",
        summary: "least (pending + uncached prompt tokens) x (running + 1)",
        build: || Box::new(lmetric::Lmetric),
    },
    PolicyEntry {
        name: "learned",
        summary: "as prefix, then by each replica's learned time to first token",
        build: || Box::new(learned::Learned::default()),
    },
    PolicyEntry { name: "least_load", summary: "fewest requests in flight", build: || Box::new(least_load::LeastLoad) },
    PolicyEntry {
        name: "round_robin",
        summary: "each replica in turn",
        build: || Box::new(round_robin::RoundRobin::default()),
    },
    PolicyEntry { name: "random", summary: "any replica with equal chance", build: || Box::new(random::Random) },
];

/// A new policy of this name.
#[must_use]
pub fn policy(name: &str) -> Option<Box<dyn Policy>> {
    REGISTRY.iter().find(|entry| entry.name == name).map(|entry| (entry.build)())
}

/// Makes a ranking of views in this order, with those that are at their limit last.
///
/// The reason is a hit where the view holds the longest known prefix, else a miss; [`PickReason::Only`] if there is one view.
pub(crate) fn ranking(
    order: impl IntoIterator<Item = usize>,
    query: &RouteQuery<'_>,
    hits: &Hits,
    views: &[ReplicaView],
) -> Ranking {
    let longest = hits.longest();
    let full = |view: usize| views.get(view).is_none_or(|view| view.in_flight >= view.limit);
    let (open, closed): (SmallVec<[usize; 64]>, SmallVec<[usize; 64]>) =
        order.into_iter().partition(|view| !full(*view));
    let picks = open.into_iter().chain(closed).take(RANKED).map(|view| {
        let cached_blocks = hits.blocks(view);
        let reason = match cached_blocks {
            _ if views.len() == 1 => PickReason::Only,
            blocks if blocks > 0 && blocks == longest => PickReason::Hit,
            _ => PickReason::Miss,
        };
        Pick { view, reason, cached_blocks, uncached_tokens: query.uncached(cached_blocks) }
    });
    picks.collect()
}

#[cfg(test)]
pub(crate) mod testing {
    //! Views, chains and queries for the tests of policies.

    use super::{ReplicaView, RouteQuery, rendezvous};
    use crate::prompt::{Chain, ChainSeed, chain::Hasher};
    use crate::types::ReplicaSlot;

    /// An idle replica with nothing cached.
    pub(crate) fn view(slot: u16) -> ReplicaView {
        ReplicaView {
            slot: ReplicaSlot(slot),
            generation: 0,
            id_hash: rendezvous::id_hash(&format!("10.0.0.{slot}:8000")),
            in_flight: 0,
            running: 0,
            waiting: 0,
            pending_prefill: 0,
            kv_usage: None,
            capacity_blocks: None,
            clock: 0,
            since_empty: u32::MAX,
            limit: 256,
            learned: None,
        }
    }

    /// The chain of `text` in blocks of 16 bytes.
    pub(crate) fn chain(text: &str) -> Chain {
        let mut hasher = Hasher::new(&ChainSeed::default(), 16, text.len());
        hasher.put(text.as_bytes());
        hasher.finish()
    }

    /// A query of four tokens a block.
    pub(crate) fn query(chain: &Chain) -> RouteQuery<'_> {
        let prompt_tokens = chain.bytes() / 4;
        RouteQuery { chain, prompt_tokens, tokens_per_block: 4.0, affinity: None, random: 0 }
    }
}
