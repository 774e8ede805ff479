//! Bounded load: no replica takes more than its share plus some, however much of the prompt it holds.
//!
//! A guard, not the policy: with few requests in flight it never acts. Counts our own requests, the one to be placed
//! included, because the engines' counts are up to a second old.
//! Source: DESIGN section 2; Mirrokni, Thorup, Zadimoghaddam, "Consistent hashing with bounded loads", 2016.

use super::ReplicaView;

/// In flight is at most 5/4 of the mean ...
const FACTOR_PERCENT: u64 = 125;
/// ... plus this.
const SLACK: u64 = 2;
/// Always allowed. At a mean of one, requests that arrive at random put five on one replica now and then; moving one of
/// them would cost a prefill and gain nothing, as engines run dozens at once.
const FLOOR: u64 = 6;

/// The bound for one decision.
#[derive(Debug, Clone, Copy)]
pub struct Guard {
    /// Most requests in flight, the new one included, times 100 times the number of replicas.
    bound: u64,
    scale: u64,
}

impl Guard {
    /// The bound that follows from the load of these replicas.
    #[must_use]
    pub fn new(views: &[ReplicaView]) -> Self {
        let total = views.iter().map(|view| u64::from(view.in_flight)).sum::<u64>() + 1;
        let count = views.len() as u64;
        let scale = 100 * count;
        let bound = (total * FACTOR_PERCENT + SLACK * scale).max(FLOOR * scale);
        Self { bound, scale }
    }

    /// Whether this replica may take one more.
    #[must_use]
    pub fn admits(&self, view: &ReplicaView) -> bool {
        view.in_flight < view.limit && (u64::from(view.in_flight) + 1) * self.scale <= self.bound
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::view;
    use super::*;

    fn admitted(in_flight: &[u32]) -> Vec<bool> {
        let views: Vec<_> = in_flight.iter().map(|count| ReplicaView { in_flight: *count, ..view(0) }).collect();
        let guard = Guard::new(&views);
        views.iter().map(|view| guard.admits(view)).collect()
    }

    #[test]
    fn a_replica_takes_a_quarter_more_than_the_mean_and_two() {
        // (11 + 3 * 7 + 1) / 4 = 8.25; 8.25 x 1.25 + 2 = 12.3
        assert_eq!(admitted(&[11, 7, 7, 7]), [true; 4]);
        assert_eq!(admitted(&[12, 7, 7, 6]), [false, true, true, true]);
    }

    #[test]
    fn few_requests_are_left_where_they_belong() {
        assert_eq!(admitted(&[5, 0, 0, 0]), [true; 4]);
        assert_eq!(admitted(&[6, 0, 0, 0]), [false, true, true, true]);
    }

    #[test]
    fn a_limit_is_a_limit() {
        let full = ReplicaView { in_flight: 1, limit: 1, ..view(0) };

        assert!(!Guard::new(&[full.clone(), view(1)]).admits(&full));
    }
}
