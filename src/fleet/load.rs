//! What an engine says of its own load, and how that is joined with the gateway's own count.
//!
//! The engines' gauges lag: twelve requests sent at once read as `0 running` for most of a second (measured on vLLM
//! 0.32). So the own in-flight count leads, and the gauge only tells what *others* put on the engine: what it reports
//! beyond the most that this gateway had there of late. Load that was not refreshed is unknown, never zero.
//! Source: reference/engines.md, section 3, "Load, queue, limits".

use std::time::Duration;

use tokio::time::Instant;

/// After this time without news the engine's word on its load is ignored.
pub const LOAD_STALE: Duration = Duration::from_secs(5);

/// An engine's own word, from one metrics page.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EngineLoad {
    /// Requests in the running batch.
    pub running: u32,
    /// Requests queued in the engine.
    pub waiting: u32,
    /// Share of the KV pool that running requests hold, 0 to 1.
    pub kv_usage: Option<f32>,
    /// Tokens that the KV pool can hold.
    pub cache_tokens: Option<u64>,
    /// Prompt tokens found in the prefix cache since start.
    pub prefix_hits: Option<u64>,
    /// Prompt tokens looked up in the prefix cache since start.
    pub prefix_queries: Option<u64>,
    /// Start of the process in seconds since 1970: a change is a restart.
    pub start_time: Option<f64>,
}

/// The last word of an engine and what is needed to read it.
#[derive(Debug, Default)]
pub(super) struct LoadState {
    /// The last word and when it came.
    last: Option<(EngineLoad, Instant)>,
    /// KV capacity: does not go stale, it is a property of the process.
    pub(super) cache_tokens: Option<u64>,
    /// Requests on the engine that are not ours.
    foreign: u32,
    /// Most own requests in flight in the period before the last word.
    previous_peak: u32,
}

impl LoadState {
    /// Takes the engine's word; `peak` is the most own requests in flight since the word before.
    pub(super) fn set(&mut self, load: EngineLoad, peak: u32, now: Instant) {
        let own = peak.max(self.previous_peak);
        self.foreign = load.running.saturating_add(load.waiting).saturating_sub(own);
        self.previous_peak = peak;
        self.cache_tokens = load.cache_tokens.or(self.cache_tokens);
        self.last = Some((load, now));
    }

    /// The engine's word, unless stale.
    pub(super) fn fresh(&self, now: Instant) -> Option<EngineLoad> {
        let (load, at) = self.last?;
        (now.saturating_duration_since(at) <= LOAD_STALE).then_some(load)
    }

    /// Running and waiting requests now: the engine's split of the own count plus what others put there.
    pub(super) fn corrected(&self, in_flight: u32, now: Instant) -> Option<(u32, u32)> {
        let load = self.fresh(now)?;
        let total = in_flight.saturating_add(self.foreign);
        let waiting = load.waiting.min(total);
        Some((total - waiting, waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(running: u32, waiting: u32) -> EngineLoad {
        EngineLoad { running, waiting, ..EngineLoad::default() }
    }

    #[test]
    fn a_gauge_that_lags_behind_a_burst_does_not_hide_it() {
        let now = Instant::now();
        let mut state = LoadState::default();

        state.set(word(0, 0), 12, now);

        assert_eq!(state.corrected(12, now), Some((12, 0)));
    }

    #[test]
    fn a_gauge_that_lags_behind_the_end_of_a_burst_does_not_prolong_it() {
        let now = Instant::now();
        let mut state = LoadState::default();

        state.set(word(4, 8), 12, now);

        assert_eq!(state.corrected(0, now), Some((0, 0)), "all twelve were ours, and they ended");
        state.set(word(4, 0), 0, now);
        assert_eq!(state.corrected(0, now), Some((0, 0)), "the peak of the period before still explains them");
    }

    #[test]
    fn what_other_gateways_put_there_is_added_to_the_own_count() {
        let now = Instant::now();
        let mut state = LoadState::default();

        state.set(word(10, 5), 3, now);

        assert_eq!(state.corrected(2, now), Some((9, 5)), "12 foreign ones plus 2 of ours");
    }

    #[test]
    fn stale_is_unknown_and_not_zero_but_the_capacity_stays() {
        let now = Instant::now();
        let mut state = LoadState::default();
        state.set(EngineLoad { cache_tokens: Some(16_384), ..word(1, 0) }, 0, now);

        let later = now + LOAD_STALE + Duration::from_millis(1);

        assert!(state.fresh(now + LOAD_STALE).is_some());
        assert_eq!(state.fresh(later), None);
        assert_eq!(state.corrected(3, later), None);
        assert_eq!(state.cache_tokens, Some(16_384));
    }
}
