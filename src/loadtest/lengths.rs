//! How many tokens a prompt or an answer has.

use rand::{RngExt, rngs::StdRng};
use rand_distr::{Distribution, Exp, LogNormal, Normal};

use super::clock::whole;

/// Shape of a distribution of lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Always the mean.
    Fixed,
    /// Evenly between half and one and a half times the mean.
    Uniform,
    /// Standard deviation of a quarter of the mean.
    Normal,
    /// Coefficient of variation 1: a long tail, as real prompts have.
    Lognormal,
    /// Memoryless.
    Exponential,
}

/// Longest draw, in multiples of the mean: a tail beyond it would be one request that decides a run.
const LONGEST: f64 = 8.0;

/// Draws one length of this mean; at least 1.
#[must_use]
pub fn draw(shape: Shape, mean: usize, rng: &mut StdRng) -> usize {
    let m = mean as f64;
    let drawn = match shape {
        Shape::Fixed => m,
        Shape::Uniform => m * (0.5 + rng.random::<f64>()),
        Shape::Normal => Normal::new(m, m / 4.0).map_or(m, |normal| normal.sample(rng)),
        Shape::Lognormal => {
            // A lognormal of mean m and variation 1 has sigma^2 = ln 2 and mu = ln m - sigma^2 / 2.
            let sigma2 = std::f64::consts::LN_2;
            LogNormal::new(m.ln() - sigma2 / 2.0, sigma2.sqrt()).map_or(m, |lognormal| lognormal.sample(rng))
        }
        Shape::Exponential => Exp::new(1.0 / m).map_or(m, |exp| exp.sample(rng)),
    };
    whole(drawn.clamp(1.0, m * LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn every_shape_keeps_its_mean() {
        for shape in [Shape::Fixed, Shape::Uniform, Shape::Normal, Shape::Lognormal, Shape::Exponential] {
            let mut rng = StdRng::seed_from_u64(5);
            let sum: usize = (0..20_000).map(|_| draw(shape, 1000, &mut rng)).sum();
            let mean = sum as f64 / 20_000.0;
            assert!((mean - 1000.0).abs() < 20.0, "{shape:?}: {mean}");
        }
    }

    #[test]
    fn the_median_of_a_lognormal_of_variation_one_is_its_mean_over_root_two() {
        let mut rng = StdRng::seed_from_u64(5);
        let mut drawn: Vec<usize> = (0..20_001).map(|_| draw(Shape::Lognormal, 1000, &mut rng)).collect();
        drawn.sort_unstable();
        assert!((drawn[10_000] as f64 - 707.1).abs() < 20.0, "{}", drawn[10_000]);
    }

    #[test]
    fn no_length_is_zero() {
        let mut rng = StdRng::seed_from_u64(5);
        assert!((0..1000).all(|_| draw(Shape::Exponential, 1, &mut rng) >= 1));
    }
}
