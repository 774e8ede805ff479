//! Whether one replica takes one more request.
//!
//! The bound on requests in flight is hard and is held where a request is charged. The others are signs that the
//! engine is behind; once a replica is full by one of them it stays so until the sign has fallen below
//! [`Bounds::resume`] of its bound, else each request that ends would let in two.

use std::time::Duration;

/// Prompt tokens at a replica below which its predicted TTFT is not looked at: small work is served as it comes.
const WORTH_PREDICTING: u64 = 2048;

/// Bounds of a model's replicas. `None` is no bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Requests that wait inside the engine.
    pub engine_queue: Option<u32>,
    /// Share of the KV pool in use, 0 to 1.
    pub kv_usage: Option<f32>,
    /// Predicted time to first token.
    pub ttft: Option<Duration>,
    /// Part of a bound below which a full replica takes requests again, 0 to 1.
    pub resume: f32,
}

/// What is known of one replica.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Signals {
    /// Requests that wait inside the engine; 0 if unknown.
    pub waiting: u32,
    /// Share of the KV pool in use.
    pub kv_usage: Option<f32>,
    /// Requests there.
    pub load: u32,
    /// Prompt tokens there whose first output was not seen.
    pub pending_prefill: u64,
    /// Seconds that one pending token adds to the time to first token there; `None` until learned.
    pub seconds_per_token: Option<f32>,
}

impl Bounds {
    /// Whether the replica is full by what its engine shows. `before`: whether it was.
    #[must_use]
    pub fn full(&self, signals: &Signals, before: bool) -> bool {
        // An idle replica is never full: whatever the signs say, nothing there will end and lower them.
        if signals.load == 0 {
            return false;
        }
        let part = if before { f64::from(self.resume) } else { 1.0 };
        let over = |value: f64, bound: f64| value >= bound * part;
        let queue = self.engine_queue.is_some_and(|bound| over(f64::from(signals.waiting), f64::from(bound)));
        let kv = self.kv_usage.zip(signals.kv_usage).is_some_and(|(bound, used)| over(used.into(), bound.into()));
        let late = self.ttft.zip(predicted_ttft(signals)).is_some_and(|(bound, ttft)| over(ttft, bound.as_secs_f64()));
        queue || kv || late
    }
}

/// Seconds to the first token of a request that came now, as far as the prompts before it decide.
fn predicted_ttft(signals: &Signals) -> Option<f64> {
    let seconds = signals.seconds_per_token?;
    (signals.pending_prefill >= WORTH_PREDICTING).then(|| signals.pending_prefill as f64 * f64::from(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Bounds = Bounds { engine_queue: None, kv_usage: None, ttft: None, resume: 0.8 };

    fn busy() -> Signals {
        Signals { load: 4, ..Signals::default() }
    }

    #[test]
    fn without_bounds_nothing_is_full() {
        let signals = Signals { waiting: 999, kv_usage: Some(1.0), pending_prefill: 1 << 30, ..busy() };
        assert!(!NONE.full(&signals, false));
    }

    #[test]
    fn each_bound_fills_and_lets_go_only_below_its_resume_part() {
        let queue = Bounds { engine_queue: Some(10), ..NONE };
        let kv = Bounds { kv_usage: Some(0.9), ..NONE };
        let ttft = Bounds { ttft: Some(Duration::from_secs(1)), ..NONE };
        let waiting = |waiting| Signals { waiting, ..busy() };
        let used = |used| Signals { kv_usage: Some(used), ..busy() };
        let pending = |tokens| Signals { pending_prefill: tokens, seconds_per_token: Some(0.0001), ..busy() };
        for (bounds, below, between, above) in [
            (queue, waiting(7), waiting(9), waiting(10)),
            (kv, used(0.7), used(0.8), used(0.95)),
            (ttft, pending(7_900), pending(9_000), pending(11_000)),
        ] {
            assert!(!bounds.full(&below, false) && !bounds.full(&below, true), "{below:?}");
            assert!(!bounds.full(&between, false) && bounds.full(&between, true), "{between:?}");
            assert!(bounds.full(&above, false) && bounds.full(&above, true), "{above:?}");
        }
    }

    #[test]
    fn unknown_and_idle_are_not_full() {
        let bounds = Bounds { kv_usage: Some(0.5), ttft: Some(Duration::from_millis(1)), ..NONE };
        assert!(!bounds.full(&Signals { pending_prefill: 1 << 20, ..busy() }, true), "no rate was learned, no KV word");
        let idle = Signals { kv_usage: Some(0.99), load: 0, ..Signals::default() };
        assert!(!bounds.full(&idle, true), "a cache that is full of finished prompts at an idle replica");
    }

    #[test]
    fn a_little_work_is_not_predicted() {
        let bounds = Bounds { ttft: Some(Duration::from_millis(1)), ..NONE };
        let little = Signals { pending_prefill: WORTH_PREDICTING - 1, seconds_per_token: Some(1.0), ..busy() };
        assert!(!bounds.full(&little, false));
    }
}
