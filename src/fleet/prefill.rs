//! How much one waiting prompt token adds to the time to first token at a replica.
//!
//! Learned from requests that found enough work there for the work to explain the wait: the ratio of the sums of their
//! waits and of the prompt tokens that had to be computed until their own first token, old ones fading.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Prompt tokens, own ones included, below which a wait teaches nothing: fixed costs decide it.
const ENOUGH_TOKENS: u64 = 2048;

/// Weight of what was seen before, at each new sample: about the last twenty count.
const KEEP: f32 = 0.95;

/// Samples without which nothing is said.
const ENOUGH_SAMPLES: u32 = 4;

/// What one replica's first tokens taught.
#[derive(Debug, Default)]
pub(super) struct PrefillRate(Mutex<Sums>);

#[derive(Debug, Default, Clone, Copy)]
struct Sums {
    seconds: f32,
    tokens: f32,
    samples: u32,
}

impl PrefillRate {
    /// A first token came `waited` after its request was sent to a replica that had `tokens` to compute, its own
    /// included.
    pub(super) fn saw(&self, tokens: u64, waited: Duration) {
        if tokens < ENOUGH_TOKENS {
            return;
        }
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sums.seconds = sums.seconds.mul_add(KEEP, waited.as_secs_f32());
        sums.tokens = sums.tokens.mul_add(KEEP, tokens as f32);
        sums.samples = sums.samples.saturating_add(1);
    }

    /// Seconds a token; `None` until learned.
    pub(super) fn seconds_per_token(&self) -> Option<f32> {
        let sums = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (sums.samples >= ENOUGH_SAMPLES && sums.tokens > 0.0).then(|| sums.seconds / sums.tokens)
    }

    /// Another process is behind the address.
    pub(super) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Sums::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_of_waits_and_tokens_is_learned_and_follows_change() {
        let rate = PrefillRate::default();
        for _ in 0..ENOUGH_SAMPLES - 1 {
            rate.saw(10_000, Duration::from_secs(1));
        }
        assert_eq!(rate.seconds_per_token(), None);
        rate.saw(10_000, Duration::from_secs(1));
        assert!((rate.seconds_per_token().unwrap() - 1e-4).abs() < 1e-6);
        for _ in 0..200 {
            rate.saw(10_000, Duration::from_secs(2));
        }
        assert!((rate.seconds_per_token().unwrap() - 2e-4).abs() < 1e-6);
        rate.forget();
        assert_eq!(rate.seconds_per_token(), None);
    }

    #[test]
    fn short_prompts_teach_nothing() {
        let rate = PrefillRate::default();
        for _ in 0..100 {
            rate.saw(ENOUGH_TOKENS - 1, Duration::from_secs(9));
        }
        assert_eq!(rate.seconds_per_token(), None);
    }
}
