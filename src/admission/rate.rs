//! How fast a queue is served, learned from the turns that it gave.

use std::time::Duration;

use tokio::time::Instant;

/// Weight of what was seen before, at each new turn: about the last forty turns count.
const KEEP: f64 = 0.975;

/// Turns without which nothing is said.
const ENOUGH: u32 = 8;

/// Tokens a second that leave the queue while somebody waits.
#[derive(Debug, Clone, Copy, Default)]
pub struct ServiceRate {
    tokens: f64,
    seconds: f64,
    turns: u32,
    /// The last turn, or when the queue last became non-empty.
    last: Option<Instant>,
}

impl ServiceRate {
    /// Somebody waits from now on; before, nobody did.
    pub fn began(&mut self, now: Instant) {
        self.last = Some(now);
    }

    /// A request of `cost` tokens had its turn.
    pub fn served(&mut self, cost: u64, now: Instant) {
        let Some(last) = self.last.replace(now) else { return };
        self.tokens = self.tokens.mul_add(KEEP, cost as f64);
        self.seconds = self.seconds.mul_add(KEEP, now.saturating_duration_since(last).as_secs_f64());
        self.turns = self.turns.saturating_add(1);
    }

    /// How long `tokens` take; `None` while too little was seen.
    #[must_use]
    pub fn wait_for(&self, tokens: u64) -> Option<Duration> {
        let known = self.turns >= ENOUGH && self.tokens > 0.0 && self.seconds > 0.0;
        let seconds = known.then(|| tokens as f64 * self.seconds / self.tokens)?;
        Duration::try_from_secs_f64(seconds).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_before_enough_was_seen() {
        let start = Instant::now();
        let mut rate = ServiceRate::default();
        rate.began(start);
        for turn in 1..ENOUGH {
            rate.served(100, start + Duration::from_millis(100) * turn);
            assert_eq!(rate.wait_for(100), None);
        }
        rate.served(100, start + Duration::from_millis(100) * ENOUGH);
        let wait = rate.wait_for(5000).unwrap().as_secs_f64();
        assert!((wait - 5.0).abs() < 0.01, "1,000 tokens a second: {wait}");
    }

    #[test]
    fn time_in_which_nobody_waited_does_not_count() {
        let start = Instant::now();
        let mut rate = ServiceRate::default();
        for round in 0..40_u32 {
            let at = start + Duration::from_secs(60) * round;
            rate.began(at);
            rate.served(1000, at + Duration::from_secs(1));
        }
        let wait = rate.wait_for(1000).unwrap().as_secs_f64();
        assert!((wait - 1.0).abs() < 0.01, "{wait}");
    }

    #[test]
    fn it_follows_a_pool_that_grew() {
        let start = Instant::now();
        let mut rate = ServiceRate::default();
        rate.began(start);
        let mut at = start;
        for _ in 0..100 {
            at += Duration::from_secs(1);
            rate.served(100, at);
        }
        for _ in 0..200 {
            at += Duration::from_millis(100);
            rate.served(100, at);
        }
        let wait = rate.wait_for(1000).unwrap().as_secs_f64();
        assert!((0.9..1.4).contains(&wait), "1,000 tokens a second now: {wait}");
    }
}
