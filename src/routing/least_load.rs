//! Fewest requests, whatever they hold.
//!
//! Ties go by pending prefill and then by chance: any fixed order would send all traffic of an idle pool to one replica.

use smallvec::SmallVec;

use super::{Hits, Policy, Ranking, ReplicaView, RouteQuery, ranking, rendezvous};

/// The policy `least_load`.
#[derive(Debug, Clone, Copy)]
pub struct LeastLoad;

impl Policy for LeastLoad {
    fn name(&self) -> &'static str {
        "least_load"
    }

    fn needs_chain(&self) -> bool {
        false
    }

    fn rank(&self, query: &RouteQuery<'_>, hits: &Hits, views: &[ReplicaView]) -> Ranking {
        let mut order: SmallVec<[_; 64]> = views
            .iter()
            .enumerate()
            .map(|(number, view)| {
                let chance = rendezvous::weight(query.random, view.id_hash);
                (view.load(), view.pending_prefill, chance, number)
            })
            .collect();
        order.sort_unstable();
        ranking(order.into_iter().map(|(_, _, _, number)| number), query, hits, views)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{chain, query, view};
    use super::*;

    #[test]
    fn fewest_requests_first_then_least_pending() {
        let chain = chain("x");
        let views = [
            ReplicaView { in_flight: 2, ..view(0) },
            ReplicaView { in_flight: 1, pending_prefill: 10, ..view(1) },
            ReplicaView { in_flight: 1, ..view(2) },
            ReplicaView { running: 2, waiting: 1, ..view(3) },
        ];

        let ranking = LeastLoad.rank(&query(&chain), &Hits::none(), &views);

        assert_eq!(ranking.iter().map(|pick| pick.view).collect::<Vec<_>>(), [2, 1, 0, 3]);
    }

    #[test]
    fn an_idle_pool_is_used_evenly() {
        let chain = chain("x");
        let views = [view(0), view(1), view(2), view(3)];
        let mut counts = [0; 4];
        for random in 0..1000 {
            let query = RouteQuery { random, ..query(&chain) };
            counts[LeastLoad.rank(&query, &Hits::none(), &views)[0].view] += 1;
        }

        assert!(counts.iter().all(|count| (200..300).contains(count)), "{counts:?}");
    }
}
