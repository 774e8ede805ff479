//! How many retries a pool may add to its own load.
//!
//! Allowed within any ten seconds: a tenth of the requests, and in every second three however little traffic there is.
//! A budget that only counted failures would let an outage of the whole pool double its load at the worst moment.
//! Source: reliability.md section 2 (the budget of Linkerd, with a lower floor).

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Seconds that are looked back on.
const WINDOW: usize = 10;
/// Retries allowed for each request, as one in this many.
const REQUESTS_PER_RETRY: u32 = 10;
/// Retries a second that are allowed however little traffic there is.
const FLOOR_PER_SECOND: u32 = 3;

/// Retry budget of one pool. Cheap: one short lock a request.
#[derive(Debug, Default)]
pub struct RetryBudget {
    inner: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    /// Begin of the first second ever seen.
    start: Option<Instant>,
    /// Index of the newest second.
    second: u64,
    buckets: [Bucket; WINDOW],
}

#[derive(Debug, Default, Clone, Copy)]
struct Bucket {
    requests: u32,
    retries: u32,
}

impl RetryBudget {
    /// A full budget.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a first attempt.
    pub fn deposit(&self, now: Instant) {
        let mut ring = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = ring.bucket(now) {
            bucket.requests = bucket.requests.saturating_add(1);
        }
    }

    /// Takes one retry; false when the budget is spent, and then the failure is the answer.
    pub fn withdraw(&self, now: Instant) -> bool {
        let mut ring = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(current) = ring.bucket(now).map(|bucket| bucket.retries) else { return false };
        let (requests, retries) = ring.buckets.iter().fold((0_u32, 0_u32), |(requests, retries), bucket| {
            (requests.saturating_add(bucket.requests), retries.saturating_add(bucket.retries))
        });
        if current >= FLOOR_PER_SECOND && retries >= requests / REQUESTS_PER_RETRY {
            return false;
        }
        if let Some(bucket) = ring.bucket(now) {
            bucket.retries = bucket.retries.saturating_add(1);
        }
        true
    }
}

impl Ring {
    /// The bucket of `now`, after the seconds that passed since were cleared.
    fn bucket(&mut self, now: Instant) -> Option<&mut Bucket> {
        let start = *self.start.get_or_insert(now);
        let second = now.checked_duration_since(start).unwrap_or(Duration::ZERO).as_secs().max(self.second);
        let passed = second - self.second;
        let window = u64::try_from(WINDOW).unwrap_or(u64::MAX);
        for back in 0..passed.min(window) {
            let slot = usize::try_from((second - back) % window).ok()?;
            *self.buckets.get_mut(slot)? = Bucket::default();
        }
        self.second = second;
        self.buckets.get_mut(usize::try_from(second % window).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spend(budget: &RetryBudget, now: Instant) -> usize {
        (0..10_000).take_while(|_| budget.withdraw(now)).count()
    }

    #[test]
    fn little_traffic_still_has_three_retries_a_second() {
        let budget = RetryBudget::new();
        let now = Instant::now();

        budget.deposit(now);

        assert_eq!(spend(&budget, now), 3, "no burst");
        assert_eq!(spend(&budget, now + Duration::from_millis(900)), 0, "gone for this second");
        assert_eq!(spend(&budget, now + Duration::from_secs(1)), 3, "and the next has its own");
    }

    #[test]
    fn an_outage_adds_a_tenth_to_the_load_and_not_more() {
        let budget = RetryBudget::new();
        let start = Instant::now();
        let mut retries = 0;

        for i in 0..4000_u64 {
            let now = start + Duration::from_millis(i * 5);
            budget.deposit(now);
            retries += usize::from(budget.withdraw(now));
        }

        assert!((375..=450).contains(&retries), "4,000 failed requests in 20 s made {retries} retries");
    }

    #[test]
    fn a_long_silence_forgets_what_was_spent() {
        let budget = RetryBudget::new();
        let now = Instant::now();
        spend(&budget, now);

        assert!(budget.withdraw(now + Duration::from_secs(3600)));
    }

    #[test]
    fn a_clock_that_stands_behind_the_newest_second_is_taken_as_that_second() {
        let budget = RetryBudget::new();
        let now = Instant::now();
        budget.deposit(now);
        budget.deposit(now + Duration::from_secs(3));

        assert!(budget.withdraw(now), "another thread's slightly older clock is no error");
    }
}
