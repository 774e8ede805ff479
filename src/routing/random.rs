//! Any replica with equal chance, from the number that the caller drew.
//!
//! The whole order is random, not only the first place: a retry must not always fall on the same neighbour.

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::{Hits, Policy, Ranking, ReplicaView, RouteQuery, ranking, rendezvous};

/// The policy `random`.
#[derive(Debug, Clone, Copy)]
pub struct Random;

impl Policy for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn needs_chain(&self) -> bool {
        false
    }

    fn rank(&self, query: &RouteQuery<'_>, hits: &Hits, views: &[ReplicaView]) -> Ranking {
        let mut order: SmallVec<[_; 64]> = views
            .iter()
            .enumerate()
            .map(|(number, view)| (Reverse(rendezvous::weight(query.random, view.id_hash)), number))
            .collect();
        order.sort_unstable();
        ranking(order.into_iter().map(|(_, number)| number), query, hits, views)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{chain, query, view};
    use super::*;

    #[test]
    fn every_replica_is_first_equally_often() {
        let chain = chain("x");
        let views: Vec<_> = (0..5).map(view).collect();
        let mut counts = [0; 5];
        for random in 0..5000 {
            counts[Random.rank(&RouteQuery { random, ..query(&chain) }, &Hits::none(), &views)[0].view] += 1;
        }

        assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
    }
}
