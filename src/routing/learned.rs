//! By learned time: `prefix` until the speed of every replica is known, then the least predicted wait.
//!
//! Cost = (backlog + own prefill, seconds) x (requests there + `BASE` + `LONG` x own prefill). It is LMetric in
//! seconds, so that a slow replica counts as slow, with one correction: what a long prompt adds to the wait of those
//! behind it is small beside its own, so the longer it is the more its own wait decides. Holders of the longest
//! prefix come first while their cost is within `TIE` of the best. Source: DESIGN section 2, "Placement"; the
//! constants were chosen on `gateway simulate`.

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::{
    Hits, Policy, Prediction, Ranking, ReplicaView, RouteQuery,
    prefix::{self, Prefix},
    ranking, rendezvous,
};

/// Requests that a replica counts for besides its own.
const BASE: f32 = 2.0;
/// Requests that one second of own prefill counts for, up to one second.
const LONG: f32 = 4.0;
/// Costs this close, as a share, are equal.
const TIE: f32 = 0.1;

/// The policy `learned`.
#[derive(Debug, Default)]
pub struct Learned {
    until: Prefix,
}

impl Policy for Learned {
    fn name(&self) -> &'static str {
        "learned"
    }

    fn needs_chain(&self) -> bool {
        true
    }

    fn rank(&self, query: &RouteQuery<'_>, hits: &Hits, views: &[ReplicaView]) -> Ranking {
        let (counts, key) = prefix::hit(query, hits);
        let learned = if views.len() < 2 { None } else { rank(query, hits, views, counts, key) };
        learned.unwrap_or_else(|| self.until.rank(query, hits, views))
    }
}

struct Candidate {
    view: usize,
    cost: f32,
    holder: bool,
    weight: u64,
}

/// The ranking; `None` while a replica has not been learned. `counts` says whether the longest hit is one, `key` is
/// the routing key.
fn rank(query: &RouteQuery<'_>, hits: &Hits, views: &[ReplicaView], counts: bool, key: u64) -> Option<Ranking> {
    let longest = hits.longest();
    let candidate = |(number, view): (usize, &ReplicaView)| {
        let blocks = hits.blocks(number);
        Some(Candidate {
            view: number,
            cost: cost(&view.learned?, query.uncached(blocks), query.prompt_tokens, view.load()),
            holder: counts && blocks == longest,
            weight: rendezvous::weight(key, view.id_hash),
        })
    };
    let mut order: SmallVec<[Candidate; 16]> = views.iter().enumerate().map(candidate).collect::<Option<_>>()?;
    let best = order.iter().map(|candidate| candidate.cost).fold(f32::INFINITY, f32::min);
    let ties = |candidate: &Candidate| candidate.cost <= best * (1.0 + TIE);
    order.sort_by(|a, b| {
        let place = |one: &Candidate| (!(ties(one) && one.holder), !ties(one));
        let costs = || a.cost.total_cmp(&b.cost);
        let weights = Reverse(a.weight).cmp(&Reverse(b.weight));
        let within = if ties(a) && ties(b) && !a.holder && !b.holder { weights } else { costs().then(weights) };
        place(a).cmp(&place(b)).then(within)
    });
    Some(ranking(order.iter().map(|candidate| candidate.view), query, hits, views))
}

fn cost(learned: &Prediction, uncached: u64, prompt: u64, load: u32) -> f32 {
    let own = learned.prefill(uncached, prompt);
    (learned.backlog + own) * (load as f32 + BASE + LONG * own.min(1.0))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{chain, query, view};
    use super::*;
    use crate::types::BlockHash;

    /// Ten thousand tokens a second.
    fn speed(backlog: f32) -> Option<Prediction> {
        Some(Prediction { base: backlog, backlog, per_token: 1e-4, per_pair: 0.0, decodes: 0.0 })
    }

    fn order(views: &[ReplicaView], hits: &Hits) -> Vec<usize> {
        let chain = chain(&"x".repeat(16_000)); // 4,000 tokens, 4 a block
        let ranking = rank(&query(&chain), hits, views, true, 7).unwrap();
        ranking.iter().map(|pick| pick.view).collect()
    }

    #[test]
    fn a_slow_replica_counts_as_slow() {
        let slow = Some(Prediction { per_token: 1e-3, ..speed(0.0).unwrap() });
        let views = [
            ReplicaView { learned: slow, ..view(0) }, // 4.0 x (0 + 2 + 4)
            ReplicaView { learned: speed(0.0), in_flight: 9, ..view(1) }, // 0.4 x (9 + 2 + 1.6)
        ];

        assert_eq!(order(&views, &Hits::none()), [1, 0]);
    }

    #[test]
    fn a_holder_comes_first_within_a_tenth_of_the_best_and_not_beyond() {
        let hits = Hits::new([500, 0], Some((BlockHash(7), 500)));
        // The holder computes 2,000 of 4,000 tokens: (backlog + 0.2) x 2.8 against 0.4 x 3.6 = 1.44.
        let views = |backlog| {
            [ReplicaView { learned: speed(backlog), ..view(0) }, ReplicaView { learned: speed(0.0), ..view(1) }]
        };

        assert_eq!(order(&views(0.36), &hits), [0, 1], "1.568 is within a tenth");
        assert_eq!(order(&views(0.40), &hits), [1, 0], "1.68 is not");
    }

    #[test]
    fn one_replica_that_is_not_learned_leaves_it_to_others() {
        let chain = chain("x");
        let views = [ReplicaView { learned: speed(0.0), ..view(0) }, view(1)];

        assert!(rank(&query(&chain), &Hits::none(), &views, false, 7).is_none());
    }
}
