//! Circuit breaker of a hosted target: after failures in a row it is left alone, then one request tries it again.
//!
//! States of Hystrix and of Envoy's outlier detection, without statistics: a target sees few requests, so a rate would
//! mean nothing. The pause doubles with every probe that fails. Pure: `now` is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// Failures in a row that open it.
const FAILURES: u32 = 5;
/// First pause.
const SHORTEST: Duration = Duration::from_secs(5);
/// Longest pause.
const LONGEST: Duration = Duration::from_secs(60);

/// Breaker of one target.
#[derive(Debug, Default)]
pub struct Breaker {
    failures: u32,
    /// Open until then; a probe may run after it.
    open: Option<Instant>,
    /// The next pause, less what was doubled so far.
    pauses: u32,
    probing: bool,
}

impl Breaker {
    /// Whether a request may go now. In the half-open state only one may; it must end in [`succeeded`](Self::succeeded),
    /// [`failed`](Self::failed) or [`abandoned`](Self::abandoned).
    #[must_use]
    pub fn admit(&mut self, now: Instant) -> bool {
        match self.open {
            None => true,
            Some(until) if now < until || self.probing => false,
            Some(_) => {
                self.probing = true;
                true
            }
        }
    }

    /// Whether it is open or half open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The target answered.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// The target failed. `after` is its own word on when to come back, which opens the breaker at once.
    pub fn failed(&mut self, now: Instant, after: Option<Duration>) {
        self.failures += 1;
        let probe = std::mem::take(&mut self.probing);
        if after.is_none() && !probe && self.failures < FAILURES {
            return;
        }
        // One that was sent before it opened says nothing new.
        if self.open.is_some() && !probe {
            return;
        }
        let pause = SHORTEST.saturating_mul(1 << self.pauses.min(8)).min(LONGEST);
        self.pauses += 1;
        self.open = Some(now + after.unwrap_or_default().clamp(pause, LONGEST.max(pause)));
    }

    /// The request ended without a word on the target: the client left.
    pub fn abandoned(&mut self) {
        self.probing = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn it_opens_after_five_in_a_row_and_not_before() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        for _ in 0..4 {
            breaker.failed(now, None);
        }
        breaker.succeeded();
        for _ in 0..4 {
            breaker.failed(now, None);
            assert!(breaker.admit(now));
        }

        breaker.failed(now, None);

        assert!(!breaker.admit(now) && breaker.is_open());
        assert!(!breaker.admit(now + s(5) - Duration::from_millis(1)));
    }

    #[test]
    fn one_probe_decides_and_pauses_double() {
        let (mut breaker, mut now) = (Breaker::default(), Instant::now());
        for _ in 0..9 {
            breaker.failed(now, None);
        }
        for pause in [5, 10, 20, 40, 60, 60] {
            now += s(pause);
            assert!(!breaker.admit(now - Duration::from_millis(1)), "pause of {pause} s");
            assert!(breaker.admit(now), "after {pause} s");
            assert!(!breaker.admit(now), "one probe only");
            breaker.failed(now, None);
        }
        now += s(60);
        assert!(breaker.admit(now));
        breaker.abandoned();
        assert!(breaker.admit(now), "a probe without a word makes room for the next");
        breaker.succeeded();
        assert!(breaker.admit(now) && breaker.admit(now) && !breaker.is_open());
    }

    #[test]
    fn a_targets_own_word_opens_it_at_once() {
        let (mut breaker, now) = (Breaker::default(), Instant::now());
        breaker.failed(now, Some(s(30)));
        assert!(!breaker.admit(now + s(29)) && breaker.admit(now + s(30)));
    }
}
