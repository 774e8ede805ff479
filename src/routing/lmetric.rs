//! Least LMetric cost, nothing else. The baseline that the default policy has to beat.
//!
//! Affinity is only what the cost makes of a hit: a busy holder loses to an idle replica sooner than in `prefix`.
//! Source: arXiv 2603.15202.

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::{Hits, Policy, Ranking, ReplicaView, RouteQuery, cost, ranking, rendezvous};

/// The policy `lmetric`.
#[derive(Debug, Clone, Copy)]
pub struct Lmetric;

impl Policy for Lmetric {
    fn name(&self) -> &'static str {
        "lmetric"
    }

    fn needs_chain(&self) -> bool {
        true
    }

    fn rank(&self, query: &RouteQuery<'_>, hits: &Hits, views: &[ReplicaView]) -> Ranking {
        let key = hits.deepest().map_or(query.chain.stable_key(), |(hash, _)| hash.0);
        let mut order: SmallVec<[_; 64]> = views
            .iter()
            .enumerate()
            .map(|(number, view)| {
                let cost = cost::lmetric(query, view, hits.blocks(number));
                (cost, Reverse(rendezvous::weight(key, view.id_hash)), number)
            })
            .collect();
        order.sort_unstable();
        ranking(order.into_iter().map(|(_, _, number)| number), query, hits, views)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{chain, query, view};
    use super::*;
    use crate::types::{BlockHash, PickReason};

    #[test]
    fn the_least_cost_comes_first() {
        let chain = chain(&"x".repeat(4000));
        let query = query(&chain); // 1000 tokens
        let views = [
            ReplicaView { in_flight: 4, ..view(0) }, // holds 200 blocks: (1000 - 800) x 5 = 1000
            ReplicaView { pending_prefill: 100, ..view(1) }, // (100 + 1000) x 1 = 1100
            ReplicaView { in_flight: 1, ..view(2) }, // 1000 x 2 = 2000
        ];
        let hits = Hits::new([200, 0, 0], Some((BlockHash(7), 200)));

        let ranking = Lmetric.rank(&query, &hits, &views);

        assert_eq!(ranking.iter().map(|pick| pick.view).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(ranking[0].reason, PickReason::Hit);
        assert_eq!(ranking[0].uncached_tokens, 200);
        assert_eq!(ranking[1].reason, PickReason::Miss);
    }
}
