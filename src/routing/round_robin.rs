//! Each replica in turn.
//!
//! The turn is a counter over requests, not a memory of replicas: when the fleet changes, the order shifts once.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::{Hits, Policy, Ranking, ReplicaView, RouteQuery, ranking};

/// The policy `round_robin`.
#[derive(Debug, Default)]
pub struct RoundRobin {
    turn: AtomicUsize,
}

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        "round_robin"
    }

    fn needs_chain(&self) -> bool {
        false
    }

    fn rank(&self, query: &RouteQuery<'_>, hits: &Hits, views: &[ReplicaView]) -> Ranking {
        let count = views.len();
        let first = self.turn.fetch_add(1, Relaxed).checked_rem(count).unwrap_or(0);
        ranking((first..count).chain(0..first), query, hits, views)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{chain, query, view};
    use super::*;

    #[test]
    fn every_replica_has_its_turn_and_full_ones_are_passed_over() {
        let chain = chain("x");
        let policy = RoundRobin::default();
        let views = [view(0), ReplicaView { in_flight: 1, limit: 1, ..view(1) }, view(2)];

        let firsts: Vec<_> = (0..6).map(|_| policy.rank(&query(&chain), &Hits::none(), &views)[0].view).collect();

        assert_eq!(firsts, [0, 2, 2, 0, 2, 2]);
        assert!(policy.rank(&query(&chain), &Hits::none(), &[]).is_empty());
    }
}
