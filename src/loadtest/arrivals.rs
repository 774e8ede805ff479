//! When requests are sent: all times drawn up front from a seed, in seconds from the start.
//!
//! Times are absolute. A client that sleeps the drawn gap after each send drifts (vllm#21104: 183 requests a second at
//! a target of 200). With a known count the times are scaled so that the last one falls at exactly N / rate, as
//! `vllm bench serve` does.

use rand::{RngExt, rngs::StdRng};
use rand_distr::{Distribution, Gamma};

use super::clock::whole;

/// How the gaps between arrivals scatter and whether the rate grows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pattern {
    /// Requests a second; infinite: all at once.
    pub rate: f64,
    /// Shape of the gamma distribution of the gaps: 1 is Poisson, below 1 burstier, infinite constant.
    pub burstiness: f64,
    /// Growth to the rate.
    pub ramp: Option<Ramp>,
}

/// Growth of the rate at the beginning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ramp {
    /// Rate at the start.
    pub from: f64,
    /// Seconds until the full rate.
    pub seconds: f64,
    /// By a constant factor instead of a constant step.
    pub exponential: bool,
}

impl Pattern {
    /// The rate at `at` seconds.
    #[must_use]
    pub fn rate_at(&self, at: f64) -> f64 {
        let Some(ramp) = self.ramp.filter(|ramp| at < ramp.seconds) else { return self.rate };
        let share = at / ramp.seconds;
        if ramp.exponential {
            ramp.from * (self.rate / ramp.from).powf(share)
        } else {
            ramp.from + (self.rate - ramp.from) * share
        }
    }

    /// One gap of mean 1.
    fn unit_gap(&self, rng: &mut StdRng) -> f64 {
        if self.burstiness.is_infinite() {
            return 1.0;
        }
        if (self.burstiness - 1.0).abs() < f64::EPSILON {
            return -(1.0 - rng.random::<f64>()).ln();
        }
        Gamma::new(self.burstiness, 1.0 / self.burstiness).map_or(1.0, |gamma| gamma.sample(rng))
    }

    /// The first `count` arrivals.
    #[must_use]
    pub fn times(&self, count: usize, rng: &mut StdRng) -> Vec<f64> {
        if self.rate.is_infinite() {
            return vec![0.0; count];
        }
        let mut at = 0.0;
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            at += self.unit_gap(rng) / self.rate_at(at);
            times.push(at);
        }
        if self.ramp.is_none() && at > 0.0 {
            let scale = count as f64 / self.rate / at;
            times.iter_mut().for_each(|time| *time *= scale);
        }
        times
    }

    /// Arrivals within `seconds`, at most `most` of them.
    #[must_use]
    pub fn within(&self, seconds: f64, most: usize, rng: &mut StdRng) -> Vec<f64> {
        let mut times = Vec::with_capacity(whole(self.rate.min(1e6) * seconds).min(most));
        let mut at = 0.0;
        while times.len() < most && self.rate.is_finite() {
            at += self.unit_gap(rng) / self.rate_at(at);
            if at >= seconds {
                break;
            }
            times.push(at);
        }
        times
    }
}

/// Mean rate and coefficient of variation of the gaps of realised arrivals.
#[must_use]
pub fn realised(times: &[f64]) -> Option<(f64, f64)> {
    let gaps: Vec<f64> = times.iter().zip(times.iter().skip(1)).map(|(a, b)| b - a).collect();
    if gaps.len() < 2 {
        return None;
    }
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    (mean > 0.0).then(|| (1.0 / mean, variance.sqrt() / mean))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn pattern(rate: f64, burstiness: f64) -> Pattern {
        Pattern { rate, burstiness, ramp: None }
    }

    fn drawn(pattern: Pattern, count: usize) -> Vec<f64> {
        pattern.times(count, &mut StdRng::seed_from_u64(3))
    }

    #[test]
    fn the_last_arrival_falls_at_exactly_count_over_rate() {
        for burstiness in [0.3, 1.0, 4.0, f64::INFINITY] {
            let times = drawn(pattern(200.0, burstiness), 2000);
            assert!((times.last().unwrap() - 10.0).abs() < 1e-9, "{burstiness}");
            assert!(times.is_sorted());
        }
    }

    #[test]
    fn gaps_scatter_as_the_burstiness_says() {
        // The coefficient of variation of a gamma distribution is 1 / sqrt(shape).
        for (burstiness, expected) in [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5), (f64::INFINITY, 0.0)] {
            let (_, cv) = realised(&drawn(pattern(50.0, burstiness), 20_000)).unwrap();
            assert!((cv - expected).abs() < 0.06, "{burstiness}: {cv}");
        }
    }

    #[test]
    fn a_linear_ramp_sends_the_area_under_its_rate() {
        let ramp = Some(Ramp { from: 0.5, seconds: 20.0, exponential: false });
        let pattern = Pattern { rate: 10.0, burstiness: f64::INFINITY, ramp };
        let times = pattern.within(20.0, usize::MAX, &mut StdRng::seed_from_u64(1));
        // Mean rate 5.25 over 20 s.
        assert!((times.len() as f64 - 105.0).abs() <= 4.0, "{}", times.len());
        assert!((pattern.rate_at(10.0) - 5.25).abs() < 1e-9);
    }

    #[test]
    fn an_exponential_ramp_passes_the_geometric_mean_half_way() {
        let ramp = Some(Ramp { from: 1.0, seconds: 10.0, exponential: true });
        assert!((Pattern { rate: 16.0, burstiness: 1.0, ramp }.rate_at(5.0) - 4.0).abs() < 1e-9);
    }

    #[test]
    fn the_same_seed_draws_the_same_times() {
        assert_eq!(drawn(pattern(7.0, 0.5), 100), drawn(pattern(7.0, 0.5), 100));
    }

    #[test]
    fn an_infinite_rate_sends_everything_at_once() {
        assert_eq!(drawn(pattern(f64::INFINITY, 1.0), 3), [0.0; 3]);
    }
}
