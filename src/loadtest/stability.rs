//! Whether an open load has a steady state: does the number of requests under way grow?
//!
//! The slope is taken over means of ten equal spans, and its error from their scatter: single samples follow each other
//! too closely for a plain error bar. Compared is the growth as a share of the arrivals, with a margin of 1 %.
//! Source: reference/loadtest.md F.7.

use serde::Serialize;

/// Spans.
const SPANS: usize = 10;
/// Quantile of Student's t of a two-sided 95 % interval with eight degrees of freedom.
const T8: f64 = 2.306;
/// Growth that counts as none, as a share of the arrivals.
const MARGIN: f64 = 0.01;

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stability {
    /// It does not grow.
    Stable,
    /// It grows.
    Saturated,
    /// The run was too short to tell.
    Undecided,
}

/// Judges the steps of the number under way (time, number from then on) between two times.
#[must_use]
pub fn judge(steps: &[(f64, usize)], window: (f64, f64), rate: f64) -> Stability {
    let (from, to) = window;
    let span = (to - from) / SPANS as f64;
    if span <= 0.0 || rate <= 0.0 {
        return Stability::Undecided;
    }
    let means: Vec<f64> =
        (0..SPANS).map(|at| mean(steps, from + at as f64 * span, from + (at + 1) as f64 * span)).collect();
    let middle = (SPANS - 1) as f64 / 2.0;
    let spread: f64 = (0..SPANS).map(|at| (at as f64 - middle).powi(2)).sum();
    let level = means.iter().sum::<f64>() / SPANS as f64;
    let slope = means.iter().enumerate().map(|(at, mean)| (at as f64 - middle) * mean).sum::<f64>() / spread;
    let left = |(at, mean): (usize, &f64)| (mean - level - slope * (at as f64 - middle)).powi(2);
    let residual = means.iter().enumerate().map(left).sum::<f64>() / (SPANS - 2) as f64;
    let error = T8 * (residual / spread).sqrt();
    let (low, high) = ((slope - error) / span / rate, (slope + error) / span / rate);
    if low > MARGIN {
        Stability::Saturated
    } else if high < MARGIN {
        Stability::Stable
    } else {
        Stability::Undecided
    }
}

/// Mean of a step function between two times.
fn mean(steps: &[(f64, usize)], from: f64, to: f64) -> f64 {
    let (mut area, mut at, mut value) = (0.0, from, 0.0);
    for (time, number) in steps {
        if *time > from {
            let until = time.min(to);
            area += (until - at).max(0.0) * value;
            at = at.max(until);
        }
        if *time >= to {
            break;
        }
        value = *number as f64;
    }
    area += (to - at).max(0.0) * value;
    area / (to - from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_steps_is_their_area() {
        let steps = [(0.0, 2), (1.0, 4), (3.0, 0)];
        assert!((mean(&steps, 0.0, 4.0) - 2.5).abs() < 1e-12);
        assert!((mean(&steps, 0.5, 1.5) - 3.0).abs() < 1e-12);
    }

    #[test]
    fn growth_is_saturation_and_a_flat_line_is_stable() {
        let wavy = |at: usize| 10 + [0, 1, 2, 1][at % 4];
        let flat: Vec<_> = (0..1000).map(|at| (at as f64 / 10.0, wavy(at))).collect();
        assert_eq!(judge(&flat, (0.0, 100.0), 10.0), Stability::Stable);
        let growing: Vec<_> = (0..1000).map(|at| (at as f64 / 10.0, wavy(at) + at / 20)).collect();
        assert_eq!(judge(&growing, (0.0, 100.0), 10.0), Stability::Saturated);
    }

    #[test]
    fn a_noisy_short_run_is_undecided() {
        let noisy: Vec<_> = (0..100).map(|at| (at as f64 / 10.0, (at * 7919) % 40)).collect();
        assert_eq!(judge(&noisy, (0.0, 10.0), 2.0), Stability::Undecided);
    }
}
