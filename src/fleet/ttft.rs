//! Time to first token at one replica, learned from its first tokens.
//!
//! TTFT = fixed + a·tokens + b·pairs + c·decodes. Tokens and (query, key) pairs are those of the prompts that wait for
//! their first token there, the new one included; of the oldest, what should be done by now is taken off. The four
//! coefficients come from recursive least squares on relative errors, old samples fading, so that a short prompt counts
//! as much as a long one. A wait far off the prediction (a full pool, a hiccup) counts only so far.
//! Source: DESIGN section 2, "Placement"; Haykin, "Adaptive Filter Theory", RLS with exponential forgetting.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::routing::Prediction;

/// Samples without which nothing is said.
const ENOUGH: u32 = 16;
/// Weight of what was seen before, at each new sample: about the last 500 count.
const KEEP: f64 = 0.998;
/// Variance of what nobody has learned yet, in units of the features.
const UNKNOWN: f64 = 100.0;
/// An error counts up to this share of the wait.
const CLIP: f64 = 0.5;
/// Waits below this are as good as this one.
const SHORTEST: f64 = 0.01;
/// Units of tokens, pairs and decodes, which bring all coefficients to about the same size.
const TOKENS: f64 = 1e4;
const PAIRS: f64 = 1e8;
const DECODES: f64 = 1e2;
/// Coefficients.
const N: usize = 4;

/// What one request waits for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    number: u64,
    features: [f64; N],
    predicted: Option<Duration>,
}

impl Wait {
    /// Time to its first token as foreseen when it was sent.
    pub(super) fn predicted(&self) -> Option<Duration> {
        self.predicted
    }
}

#[derive(Debug, Clone, Copy)]
struct Prefill {
    number: u64,
    tokens: f64,
    pairs: f64,
}

/// What one replica's first tokens taught, and the prompts that wait for theirs.
#[derive(Debug, Default)]
pub(super) struct TtftModel(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    learned: Rls,
    pending: VecDeque<Prefill>,
    /// Since when the oldest of them is computed.
    since: Option<Instant>,
    next: u64,
}

impl TtftModel {
    /// A prompt of `prompt` tokens, `uncached` of them to be computed, was sent while `decodes` requests had output.
    pub(super) fn sent(&self, uncached: u64, prompt: u64, in_flight: u32, now: Instant) -> Wait {
        let mut state = self.state();
        let (tokens, waiting) = state.waiting(now);
        let own = pairs(uncached as f64, prompt as f64);
        let decodes = f64::from(in_flight) - state.pending.len() as f64;
        let features = features(tokens + uncached as f64, waiting + own, decodes);
        let number = state.next;
        state.next += 1;
        if state.pending.is_empty() {
            state.since = Some(now);
        }
        state.pending.push_back(Prefill { number, tokens: uncached as f64, pairs: own });
        let seconds = state.learned.learned().map(|theta| dot(&theta, &features));
        let predicted = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok());
        Wait { number, features, predicted }
    }

    /// Its first token came, `waited` after it was sent.
    pub(super) fn first_token(&self, wait: &Wait, waited: Duration, now: Instant) {
        let mut state = self.state();
        state.remove(wait.number, now);
        state.learned.learn(&wait.features, waited.as_secs_f64().max(SHORTEST));
    }

    /// It waits no longer, nobody knows since when.
    ///
    /// The next one's turn is taken to begin when this one's did, which the pace of the following ones corrects.
    pub(super) fn gone(&self, wait: &Wait) {
        let mut state = self.state();
        if let Some(since) = state.since {
            state.remove(wait.number, since);
        }
    }

    /// What a prompt that is sent now would wait; `None` until learned.
    #[expect(clippy::cast_possible_truncation, reason = "seconds; f32 has seven digits")]
    pub(super) fn predict(&self, in_flight: u32, now: Instant) -> Option<Prediction> {
        let state = self.state();
        let [fixed, a, b, c] = state.learned.learned()?;
        let (tokens, pairs) = state.waiting(now);
        let decodes = (f64::from(in_flight) - state.pending.len() as f64).max(0.0);
        let (per_token, per_pair) = (a / TOKENS, b / PAIRS);
        let backlog = per_token * tokens + per_pair * pairs;
        let base = (fixed + backlog + c * decodes / DECODES).max(0.0);
        Some(Prediction {
            base: base as f32,
            backlog: backlog as f32,
            per_token: per_token as f32,
            per_pair: per_pair as f32,
            decodes: decodes as f32,
        })
    }

    /// Another process is behind the address.
    pub(super) fn forget(&self) {
        let mut state = self.state();
        state.learned = Rls::default();
        state.pending.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Tokens and pairs that are still to be computed.
    fn waiting(&self, now: Instant) -> (f64, f64) {
        let tokens: f64 = self.pending.iter().map(|prefill| prefill.tokens).sum();
        let pairs: f64 = self.pending.iter().map(|prefill| prefill.pairs).sum();
        let (Some(head), Some(since)) = (self.pending.front(), self.since) else { return (tokens, pairs) };
        let Some([_, a, b, _]) = self.learned.learned() else { return (tokens, pairs) };
        let whole = a * head.tokens / TOKENS + b * head.pairs / PAIRS;
        let spent = now.saturating_duration_since(since).as_secs_f64();
        let done = if whole > 0.0 { (spent / whole).min(1.0) } else { 0.0 };
        (tokens - done * head.tokens, pairs - done * head.pairs)
    }

    fn remove(&mut self, number: u64, now: Instant) {
        let Some(place) = self.pending.iter().position(|prefill| prefill.number == number) else { return };
        self.pending.remove(place);
        if place == 0 {
            self.since = Some(now);
        }
    }
}

/// Pairs of attention: each computed token looks at all before it.
fn pairs(uncached: f64, prompt: f64) -> f64 {
    uncached * (prompt - uncached / 2.0).max(0.0)
}

fn features(tokens: f64, pairs: f64, decodes: f64) -> [f64; N] {
    [1.0, tokens / TOKENS, pairs / PAIRS, decodes.max(0.0) / DECODES]
}

/// Recursive least squares.
#[derive(Debug)]
struct Rls {
    theta: [f64; N],
    /// Inverse of the weighted sum of the outer products of the features.
    inverse: [[f64; N]; N],
    samples: u32,
}

impl Default for Rls {
    fn default() -> Self {
        let mut inverse = [[0.0; N]; N];
        for (place, row) in inverse.iter_mut().enumerate() {
            if let Some(diagonal) = row.get_mut(place) {
                *diagonal = UNKNOWN;
            }
        }
        Self { theta: [0.0; N], inverse, samples: 0 }
    }
}

impl Rls {
    /// Coefficients, once there were enough samples and they make sense.
    fn learned(&self) -> Option<[f64; N]> {
        let [fixed, a, b, c] = self.theta;
        let sound = self.theta.iter().all(|value| value.is_finite()) && a > 0.0;
        (self.samples >= ENOUGH && sound).then_some([fixed, a, b.max(0.0), c.max(0.0)])
    }

    fn learn(&mut self, features: &[f64; N], waited: f64) {
        // Relative: both sides over the wait, so the target is 1.
        let x = features.map(|feature| feature / waited);
        let px = self.inverse.map(|row| dot(&row, &x));
        let scale = KEEP + dot(&x, &px);
        let mut error = 1.0 - dot(&self.theta, &x);
        if self.samples >= ENOUGH {
            error = error.clamp(-CLIP, CLIP);
        }
        for (value, gain) in self.theta.iter_mut().zip(px) {
            *value += gain / scale * error;
        }
        for (row, left) in self.inverse.iter_mut().zip(px) {
            for (value, right) in row.iter_mut().zip(px) {
                // Bounded, or a feature that never varies makes it grow for ever.
                *value = ((*value - left * right / scale) / KEEP).clamp(-UNKNOWN, UNKNOWN);
            }
        }
        self.samples = self.samples.saturating_add(1);
    }
}

fn dot(left: &[f64; N], right: &[f64; N]) -> f64 {
    left.iter().zip(right).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 20 ms, 40 µs a token, 2 ns a pair, 0.1 ms a decode.
    fn truth(tokens: f64, pairs: f64, decodes: f64) -> f64 {
        0.02 + 40e-6 * tokens + 2e-9 * pairs + 1e-4 * decodes
    }

    fn teach(model: &TtftModel, rounds: u64, slower: f64) -> Instant {
        let mut now = Instant::now();
        for round in 0..rounds {
            let (prompt, busy) = (500 + round * 7919 % 20_000, u32::try_from(round * 31 % 50).unwrap());
            let uncached = prompt - round * 13 % (prompt / 2);
            let wait = model.sent(uncached, prompt, busy, now);
            let pairs = uncached as f64 * (prompt as f64 - uncached as f64 / 2.0);
            let waited = Duration::from_secs_f64(slower * truth(uncached as f64, pairs, f64::from(busy)));
            now += waited;
            model.first_token(&wait, waited, now);
        }
        now
    }

    #[test]
    fn the_coefficients_of_a_replica_are_found_and_follow_it() {
        let model = TtftModel::default();
        let mut now = teach(&model, 15, 1.0);
        assert!(model.predict(0, now).is_none(), "15 samples are too few");
        for slower in [1.0, 2.5] {
            now = teach(&model, 3000, slower);
            let seen = model.predict(10, now).unwrap();
            for (uncached, prompt) in [(8000_u64, 9000_u64), (300, 12_000)] {
                let pairs = uncached as f64 * (prompt as f64 - uncached as f64 / 2.0);
                let expected = slower * truth(uncached as f64, pairs, 10.0);
                let share = f64::from(seen.ttft(uncached, prompt)) / expected;
                assert!((share - 1.0).abs() < 0.02, "{share}");
            }
        }
        model.forget();
        assert!(model.predict(0, now).is_none());
    }

    #[test]
    fn what_waits_in_front_is_waited_for_but_not_what_is_done_already() {
        let model = TtftModel::default();
        let now = teach(&model, 500, 1.0);
        let idle = model.predict(0, now).unwrap().ttft(100, 100);
        let wait = model.sent(10_000, 10_000, 1, now);
        let own = 0.5_f32; // 40 µs x 10,000 + 2 ns x 50,000,000

        let behind = model.predict(1, now).unwrap().ttft(100, 100);
        let later = model.predict(1, now + Duration::from_secs_f32(own / 2.0)).unwrap().ttft(100, 100);

        assert!((behind - idle - own).abs() < 0.02, "{behind} {idle} {own}");
        assert!((later - idle - own / 2.0).abs() < 0.02, "{later}");
        model.gone(&wait);
        assert!((model.predict(1, now).unwrap().ttft(100, 100) - idle).abs() < 0.01);
    }
}
