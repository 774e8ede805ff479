//! Distributions with honest error bars.
//!
//! Percentiles interpolate as numpy does. An interval of a percentile comes from order statistics, a share's from Wilson
//! with an effective sample size: the requests of one queue episode stand or fall together. A percentile needs at least
//! ten samples beyond it.
//! Source: reference/loadtest.md F.8 and F.11; Hyndman and Fan 1996 (type 7); Wilson 1927.

use serde::Serialize;

use super::clock::whole;

/// Quantile of the normal distribution of a two-sided 95 % interval.
pub const Z95: f64 = 1.959_964;
/// Samples beyond a percentile that it takes to be shown in earnest.
const BEYOND: f64 = 10.0;
/// Batches of the error of a share.
const BATCHES: usize = 32;

/// A sample, sorted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Dist {
    sorted: Vec<f64>,
}

impl Dist {
    /// A sample of these values.
    #[must_use]
    pub fn new(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        Self { sorted }
    }

    /// Values.
    #[must_use]
    pub fn n(&self) -> usize {
        self.sorted.len()
    }

    /// The values, in order.
    #[must_use]
    pub fn values(&self) -> &[f64] {
        &self.sorted
    }

    /// Mean; `None` of nothing.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (!self.sorted.is_empty()).then(|| self.sorted.iter().sum::<f64>() / self.n() as f64)
    }

    /// Standard deviation of the population.
    #[must_use]
    pub fn std(&self) -> Option<f64> {
        let mean = self.mean()?;
        Some((self.sorted.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / self.n() as f64).sqrt())
    }

    /// Largest value.
    #[must_use]
    pub fn max(&self) -> Option<f64> {
        self.sorted.last().copied()
    }

    /// The value below which a share `p` lies.
    #[must_use]
    pub fn at(&self, p: f64) -> Option<f64> {
        let position = p * self.n().checked_sub(1)? as f64;
        let low = whole(position.floor());
        let (a, b) = (self.sorted.get(low)?, self.sorted.get(low + 1).or_else(|| self.sorted.last())?);
        Some(a + (b - a) * (position - position.floor()))
    }

    /// Whether the sample carries this percentile.
    #[must_use]
    pub fn carries(&self, p: f64) -> bool {
        self.n() as f64 * (1.0 - p) >= BEYOND && self.n() as f64 * p >= BEYOND
    }

    /// 95 % interval of a percentile; `None` where the sample does not carry it.
    #[must_use]
    pub fn interval(&self, p: f64) -> Option<(f64, f64)> {
        if !self.carries(p) {
            return None;
        }
        let (n, spread) = (self.n() as f64, Z95 * (self.n() as f64 * p * (1.0 - p)).sqrt());
        let low = whole((n * p - spread).floor().max(1.0)) - 1;
        let high = whole((n * p + spread).ceil() + 1.0).min(self.n()) - 1;
        Some((*self.sorted.get(low)?, *self.sorted.get(high)?))
    }
}

/// A share with its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Share {
    /// The share.
    pub share: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Independent requests that the sample is worth.
    pub effective: f64,
}

impl Share {
    /// The share of `true`, in the order in which requests were scheduled; `None` of nothing.
    #[must_use]
    pub fn of(good: &[bool]) -> Option<Self> {
        if good.is_empty() {
            return None;
        }
        let n = good.len() as f64;
        let share = good.iter().filter(|one| **one).count() as f64 / n;
        let effective = n / inflation(good, share);
        let (low, high) = wilson(share, effective, Z95);
        Some(Self { share, low, high, effective })
    }
}

/// Wilson's interval of a share `p` seen in `n` trials.
#[must_use]
pub fn wilson(p: f64, n: f64, z: f64) -> (f64, f64) {
    let z2 = z * z;
    let middle = (p + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let half = z / (1.0 + z2 / n) * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    ((middle - half).max(0.0), (middle + half).min(1.0))
}

/// How many requests in a row are worth one: the variance of batch means over what independent requests would give.
fn inflation(good: &[bool], share: f64) -> f64 {
    let variance = share * (1.0 - share);
    let size = good.len().div_ceil(BATCHES).max(4);
    let means: Vec<f64> =
        good.chunks_exact(size).map(|batch| batch.iter().filter(|one| **one).count() as f64 / size as f64).collect();
    if variance <= 0.0 || means.len() < 4 {
        return 1.0;
    }
    let middle = means.iter().sum::<f64>() / means.len() as f64;
    let spread = means.iter().map(|mean| (mean - middle).powi(2)).sum::<f64>() / (means.len() - 1) as f64;
    (size as f64 * spread / variance).clamp(1.0, good.len() as f64 / 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_numpys() {
        let dist = Dist::new([4.0, 1.0, 3.0, 2.0]);
        // numpy.percentile([1, 2, 3, 4], [0, 50, 90, 99, 100])
        for (p, expected) in [(0.0, 1.0), (0.5, 2.5), (0.9, 3.7), (0.99, 3.97), (1.0, 4.0)] {
            assert!((dist.at(p).unwrap() - expected).abs() < 1e-12, "{p}");
        }
        assert!((dist.std().unwrap() - 1.118_033_988_749_895).abs() < 1e-12);
        assert_eq!(Dist::default().at(0.5), None);
    }

    #[test]
    fn a_percentile_is_carried_by_ten_samples_beyond_it() {
        let dist = Dist::new((0..999).map(f64::from));
        assert!(dist.interval(0.99).is_none() && dist.interval(0.95).is_some());
        assert!(Dist::new((0..1000).map(f64::from)).interval(0.99).is_some());
    }

    #[test]
    fn the_interval_of_the_median_is_that_of_the_order_statistics() {
        // n = 100: ranks 40 and 61 (Conover, Practical Nonparametric Statistics, table for the median).
        let (low, high) = Dist::new((1..=100).map(f64::from)).interval(0.5).unwrap();
        assert_eq!((low, high), (40.0, 61.0));
    }

    #[test]
    fn wilsons_interval_is_the_textbook_one() {
        let (low, high) = wilson(0.9, 100.0, Z95);
        assert!((low - 0.8256).abs() < 1e-4 && (high - 0.9448).abs() < 1e-4, "{low} {high}");
        assert!((wilson(1.0, 100.0, Z95).0 - 0.9630).abs() < 1e-4);
    }

    #[test]
    fn misses_in_a_row_are_worth_less_than_scattered_ones() {
        let scattered: Vec<bool> = (0..1000).map(|at| at % 10 != 0).collect();
        let clumped: Vec<bool> = (0..1000).map(|at| !(200..300).contains(&at)).collect();
        let (a, b) = (Share::of(&scattered).unwrap(), Share::of(&clumped).unwrap());
        assert!((a.share - 0.9).abs() < 1e-12 && (b.share - 0.9).abs() < 1e-12);
        assert!(b.effective < 50.0 && a.effective > 900.0, "{a:?} {b:?}");
    }
}
