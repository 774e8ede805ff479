//! The default: where the longest prefix is cached, unless that replica is too busy.
//!
//! 1. The holders of the longest prefix come first, the cheapest of them in front, while their work is within a tie of
//!    the best ([`cost::ties`]) and the [`Guard`] admits them.
//! 2. A prefix with more of the traffic than its holders' share gains a holder when one is clearly less busy
//!    ([`Popularity`]).
//! 3. All else (misses, overflow) goes by LMetric cost; replicas that cannot be told apart by load are taken in
//!    rendezvous order, so that gateways agree and a restarted one finds its caches again. Among them, one whose cache
//!    is full comes later: rendezvous alone gives some replica a third more prefixes than the mean, and it would evict
//!    while another has room.
//!
//! A short hit on boilerplate is no hit: it does not outweigh load. Source: DESIGN section 2, "Placement".

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::{
    Hits, Pick, Policy, RANKED, Ranking, ReplicaView, RouteQuery, cost, guard::Guard, popularity::Popularity, ranking,
    rendezvous,
};
use crate::types::PickReason;

/// A hit below this many tokens counts only if it is a good part of the prompt.
const LONG_HIT_TOKENS: u64 = 1024;
/// That part: one in so many.
const HIT_PART: u64 = 8;
/// A holder gives a request of a popular prefix to a replica that has this many fewer in flight.
const CLEARLY_LESS: u32 = 2;
/// Load that cannot be told from the least: two requests more, and one more for each so many.
const LOAD_TIE: u32 = 2;
const LOAD_TIE_PART: u32 = 16;
/// A prompt that nobody holds goes home if it waits there for no more than one prompt like itself, up to so many
/// tokens: 80 ms at 25 tokens a millisecond. Going by load alone, a restarted gateway would not find its caches; going
/// home at any price, some caches would evict while others have room.
const HOME_SLACK_TOKENS: u64 = 2048;
/// Where the engine does not tell its cache size, a cache that is filled this many prompts above the mean is crowded.
const FILL_SLACK: u32 = 2;
/// Fill is compared up to here then, 16 MiB of prompt text: after that every cache is full.
const ASSUMED_CAPACITY: u32 = 65_536;

/// The policy `prefix`.
#[derive(Debug, Default)]
pub struct Prefix {
    popularity: Popularity,
}

/// One view, with what the decision needs.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    view: usize,
    blocks: u32,
    work: u64,
    cost: u64,
    load: u32,
    weight: u64,
    admitted: bool,
    holder: bool,
    crowded: bool,
}

type Candidates = SmallVec<[Candidate; 64]>;

impl Policy for Prefix {
    fn name(&self) -> &'static str {
        "prefix"
    }

    fn needs_chain(&self) -> bool {
        true
    }

    fn rank(&self, query: &RouteQuery<'_>, hits: &Hits, views: &[ReplicaView]) -> Ranking {
        if views.len() < 2 {
            return ranking(0..views.len(), query, hits, views);
        }
        let mut candidates = candidates(query, hits, views);
        let denied = candidates.iter().any(|candidate| candidate.holder && !candidate.admitted);
        let mut kept = holder(&candidates);
        if let Some(holder) = kept
            && self.gains_holder(hits, &candidates, holder.load)
        {
            kept = None;
            for candidate in candidates.iter_mut().filter(|candidate| candidate.holder) {
                candidate.admitted = false;
            }
        }
        order(&mut candidates, query.uncached(hits.longest()).min(HOME_SLACK_TOKENS));
        if let Some(kept) = kept {
            // Stable: the kept holder moves to the front, the others stay in order behind it.
            candidates.sort_by_key(|candidate| candidate.view != kept.view);
        }
        let denied = denied && kept.is_none();
        let picks = candidates.iter().take(RANKED).enumerate().map(|(place, candidate)| {
            let reason = match place {
                _ if candidate.holder => PickReason::Hit,
                0 if denied => PickReason::Guard,
                _ => PickReason::Miss,
            };
            let uncached_tokens = query.uncached(candidate.blocks);
            Pick { view: candidate.view, reason, cached_blocks: candidate.blocks, uncached_tokens }
        });
        picks.collect()
    }
}

impl Prefix {
    /// Whether the prefix deserves one more holder, and a replica with clearly less to do could become it.
    fn gains_holder(&self, hits: &Hits, candidates: &Candidates, load: u32) -> bool {
        let Some((deepest, _)) = hits.deepest() else { return false };
        let deserved = self.popularity.deserved(deepest.0, candidates.len());
        let holders = candidates.iter().filter(|candidate| candidate.holder).count();
        let others = candidates.iter().filter(|candidate| !candidate.holder && candidate.admitted);
        let idlest = others.map(|candidate| candidate.load).min().unwrap_or(u32::MAX);
        holders < deserved && idlest.saturating_add(CLEARLY_LESS) <= load
    }
}

/// The holder that keeps the request, if one is admitted and its work ties with the best.
fn holder(candidates: &Candidates) -> Option<Candidate> {
    let admitted = || candidates.iter().filter(|candidate| candidate.admitted);
    let best = admitted().map(|candidate| candidate.work).min()?;
    let holders = admitted().filter(|candidate| candidate.holder && cost::ties(candidate.work, best));
    holders.min_by_key(|holder| (holder.cost, Reverse(holder.weight))).copied()
}

/// Whether the longest hit counts, and the routing key.
pub(super) fn hit(query: &RouteQuery<'_>, hits: &Hits) -> (bool, u64) {
    let longest = hits.longest();
    let cached = query.prompt_tokens.saturating_sub(query.uncached(longest));
    let counts = longest > 0 && (cached >= LONG_HIT_TOKENS || cached.saturating_mul(HIT_PART) >= query.prompt_tokens);
    let key = match hits.deepest() {
        Some((deepest, _)) if counts => deepest.0,
        _ => query.affinity.unwrap_or(query.chain.stable_key()),
    };
    (counts, key)
}

fn candidates(query: &RouteQuery<'_>, hits: &Hits, views: &[ReplicaView]) -> Candidates {
    let guard = Guard::new(views);
    let longest = hits.longest();
    let (counts, key) = hit(query, hits);
    let fill = |view: &ReplicaView| view.clock.min(ASSUMED_CAPACITY);
    let mean = views.iter().map(|view| u64::from(fill(view))).sum::<u64>() / views.len().max(1) as u64;
    let fair = mean + u64::from(query.chain.blocks()) * u64::from(FILL_SLACK);
    let crowded = |view: &ReplicaView| match view.capacity_blocks {
        Some(capacity) => view.clock.saturating_add(query.chain.blocks()) > capacity,
        None => u64::from(fill(view)) > fair,
    };
    views
        .iter()
        .enumerate()
        .map(|(number, view)| {
            let blocks = hits.blocks(number);
            Candidate {
                view: number,
                blocks,
                work: cost::work(query, view, blocks),
                cost: cost::lmetric(query, view, blocks),
                load: view.load(),
                weight: rendezvous::weight(key, view.id_hash),
                admitted: guard.admits(view),
                holder: counts && blocks == longest,
                crowded: crowded(view),
            }
        })
        .collect()
}

/// Best first: admitted ones before others; those that tie with the best in work (up to `slack` tokens) and load in
/// rendezvous order, with crowded caches behind; the rest by cost.
fn order(candidates: &mut Candidates, slack: u64) {
    let admitted = || candidates.iter().filter(|candidate| candidate.admitted);
    let work = admitted().map(|candidate| candidate.work).min().unwrap_or(0);
    let load = admitted().map(|candidate| candidate.load).min().unwrap_or(0);
    let most = load.saturating_add(LOAD_TIE + load / LOAD_TIE_PART);
    candidates.sort_by_cached_key(|candidate| {
        let near = cost::ties(candidate.work, work) || candidate.work <= work.saturating_add(slack);
        let ties = near && candidate.load <= most;
        let cost = if ties { 0 } else { candidate.cost };
        (!candidate.admitted, !ties, ties && candidate.crowded, cost, Reverse(candidate.weight))
    });
}

#[cfg(test)]
mod tests;
