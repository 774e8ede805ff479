//! Requests that make replicas fail: one that broke the connection at two of them is not sent to a third.
//!
//! When many replicas die at once, what was in flight there did not kill them. So the second failure counts only if
//! that attempt began after the first failure was known, and at another replica; and a request like it that succeeds
//! clears the suspicion. Pure: `now` is an argument.

use std::time::Duration;

use tokio::time::Instant;

use super::recent::Recent;
use crate::types::ReplicaSlot;

/// Requests under suspicion at a time.
const SUSPECTS: usize = 4096;
/// How long a suspicion lasts: clients try again within minutes.
const KEEP: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Copy)]
struct Suspect {
    replica: ReplicaSlot,
    failed: Instant,
    poisonous: bool,
}

/// Suspects by the digest of the request.
#[derive(Debug)]
pub struct Poison {
    suspects: Recent<Suspect>,
}

impl Default for Poison {
    fn default() -> Self {
        Self { suspects: Recent::new(SUSPECTS, KEEP) }
    }
}

impl Poison {
    /// An attempt that was sent at `sent` ended by a broken connection before its answer.
    pub fn broke(&mut self, digest: u64, replica: ReplicaSlot, sent: Instant, now: Instant) {
        let before = self.suspects.get(digest, now).copied();
        let again = before.is_some_and(|before| before.replica != replica && sent > before.failed);
        let poisonous = again || before.is_some_and(|before| before.poisonous);
        // A second failure of the same burst does not move the first.
        if let Some(before) = before
            && !again
            && sent <= before.failed
        {
            return;
        }
        self.suspects.put(digest, Suspect { replica, failed: now, poisonous }, now);
    }

    /// A request like it was answered.
    pub fn answered(&mut self, digest: u64) {
        self.suspects.remove(digest);
    }

    /// Whether it may not be sent any more.
    #[must_use]
    pub fn is_poisonous(&self, digest: u64, now: Instant) -> bool {
        self.suspects.get(digest, now).is_some_and(|suspect| suspect.poisonous)
    }

    /// Whether nobody is under suspicion, so that no digest is needed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.suspects.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ReplicaSlot = ReplicaSlot(1);
    const B: ReplicaSlot = ReplicaSlot(2);

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn two_replicas_one_after_the_other_are_enough() {
        let (mut poison, t) = (Poison::default(), Instant::now());
        poison.broke(7, A, t, at(t, 1));
        assert!(!poison.is_poisonous(7, at(t, 1)));
        poison.broke(7, B, at(t, 2), at(t, 3));
        assert!(poison.is_poisonous(7, at(t, 4)) && !poison.is_poisonous(8, at(t, 4)));
        poison.broke(7, A, at(t, 2), at(t, 5));
        assert!(poison.is_poisonous(7, at(t, 6)), "once is enough");
        assert!(!poison.is_poisonous(7, at(t, 2000)), "and not for ever");
    }

    #[test]
    fn replicas_that_die_together_make_no_poison() {
        let (mut poison, t) = (Poison::default(), Instant::now());
        poison.broke(7, A, t, at(t, 10));
        poison.broke(7, B, at(t, 1), at(t, 10));
        poison.broke(7, B, at(t, 9), at(t, 11));
        assert!(!poison.is_poisonous(7, at(t, 11)));
    }

    #[test]
    fn one_replica_twice_or_a_success_between_make_no_poison() {
        let (mut poison, t) = (Poison::default(), Instant::now());
        poison.broke(7, A, t, at(t, 1));
        poison.broke(7, A, at(t, 2), at(t, 3));
        assert!(!poison.is_poisonous(7, at(t, 3)));
        poison.answered(7);
        assert!(poison.is_empty());
        poison.broke(7, B, at(t, 4), at(t, 5));
        assert!(!poison.is_poisonous(7, at(t, 5)));
    }
}
