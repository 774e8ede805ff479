//! Two runs side by side: is B better, worse, equal within a margin, or is there too little data?
//!
//! The interval of a difference comes from a moving-block bootstrap (neighbouring requests share a queue), requests are
//! paired where both runs had the same schedule, and verdicts are Holm-corrected over the metrics.
//! Source: reference/loadtest.md F.13; Künsch 1989; Holm 1979.

use std::{io, path::Path};

use anyhow::Context;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::Value;

use super::{report::figure, stats::Dist};

/// Bootstrap draws.
const DRAWS: usize = 1000;
/// Fewest requests of a run.
const FEWEST: usize = 30;

/// What became of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Lower, beyond the margin.
    Better,
    /// Higher, beyond the margin.
    Worse,
    /// Surely within the margin.
    Equal,
    /// The interval leaves it open.
    Unclear,
}

impl Change {
    const fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "WORSE",
            Self::Equal => "equal",
            Self::Unclear => "not enough data",
        }
    }
}

/// One metric of two runs, in the order of the schedule; `None` where a request has none.
#[derive(Debug, Clone)]
pub struct Pair {
    /// Name.
    pub name: &'static str,
    /// The run before.
    pub a: Vec<Option<f64>>,
    /// The run after.
    pub b: Vec<Option<f64>>,
}

/// The difference of a percentile.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// Metric and percentile.
    pub name: String,
    /// Before.
    pub a: f64,
    /// After.
    pub b: f64,
    /// Interval of the difference.
    pub interval: (f64, f64),
    /// Verdict.
    pub change: Change,
}

fn percentile(values: &[f64], p: f64) -> f64 {
    Dist::new(values.iter().copied()).at(p).unwrap_or(f64::NAN)
}

/// One resampled run: blocks of neighbours, wrapped around.
fn resample(values: &[Option<f64>], starts: &[usize], block: usize) -> Vec<f64> {
    let around = starts.iter().flat_map(|start| (0..block).map(move |at| start + at));
    around.filter_map(|at| values.get(at % values.len()).copied().flatten()).collect()
}

/// Compares a metric at some percentiles; `tests` is how many comparisons are made in all.
#[must_use]
pub fn compare(pair: &Pair, percentiles: &[f64], margin: f64, tests: usize) -> Vec<Difference> {
    let clean = |all: &[Option<f64>]| all.iter().copied().flatten().collect::<Vec<f64>>();
    let (a, b) = (clean(&pair.a), clean(&pair.b));
    if a.is_empty() || b.is_empty() {
        return Vec::new();
    }
    let paired = pair.a.len() == pair.b.len();
    let mut rng = StdRng::seed_from_u64(17);
    let block = |n: usize| super::clock::whole((n as f64).cbrt()).max(1);
    let mut starts = |n: usize| (0..n.div_ceil(block(n))).map(|_| rng.random_range(0..n)).collect::<Vec<usize>>();
    let draws: Vec<(Dist, Dist)> = (0..DRAWS)
        .map(|_| {
            let of_a = starts(pair.a.len());
            // The same requests in both: what they have in common drops out of the difference.
            let of_b = if paired { of_a.clone() } else { starts(pair.b.len()) };
            let a = Dist::new(resample(&pair.a, &of_a, block(pair.a.len())));
            (a, Dist::new(resample(&pair.b, &of_b, block(pair.b.len()))))
        })
        .collect();
    let few = a.len().min(b.len()) < FEWEST;
    let each = percentiles.iter().map(|p| {
        let differences = Dist::new(draws.iter().filter_map(|(a, b)| Some(b.at(*p)? - a.at(*p)?)));
        // Bonferroni's level is the strictest step of Holm's: an interval can be shown for it.
        let tail = 0.025 / tests as f64;
        let interval = (differences.at(tail).unwrap_or(f64::NAN), differences.at(1.0 - tail).unwrap_or(f64::NAN));
        let (was, is) = (percentile(&a, *p), percentile(&b, *p));
        let thin = few || (a.len().min(b.len()) as f64) * (1.0 - p) < 10.0;
        let change = if thin { Change::Unclear } else { change(interval, was.abs() * margin) };
        Difference { name: format!("{} p{}", pair.name, p * 100.0), a: was, b: is, interval, change }
    });
    each.collect()
}

fn change((low, high): (f64, f64), margin: f64) -> Change {
    if high < -margin {
        Change::Better
    } else if low > margin {
        Change::Worse
    } else if low >= -margin && high <= margin {
        Change::Equal
    } else {
        Change::Unclear
    }
}

/// Kendall's test for a trend inside a run: the standardised score, 0 for none.
#[must_use]
pub fn trend(values: &[Option<f64>]) -> f64 {
    let all: Vec<f64> = values.iter().copied().flatten().collect();
    // Quadratic: a thousand requests tell a trend.
    let step = all.len().div_ceil(1000).max(1);
    let values: Vec<f64> = all.chunks(step).map(|few| few.iter().sum::<f64>() / few.len() as f64).collect();
    let n = values.len() as f64;
    if n < 10.0 {
        return 0.0;
    }
    let mut score = 0.0;
    for (at, a) in values.iter().enumerate() {
        score += values
            .iter()
            .skip(at + 1)
            .map(|b| (b - a).partial_cmp(&0.0).map_or(0.0, |way| f64::from(way as i8)))
            .sum::<f64>();
    }
    score / (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt()
}

/// The comparison as text, and its exit code: 0 none worse, 1 worse, 4 nothing sure.
#[must_use]
pub fn report(pairs: &[Pair], margin: f64) -> (String, u8) {
    let percentiles = [0.5, 0.9, 0.99];
    let tests = pairs.len() * percentiles.len();
    let all: Vec<Difference> = pairs.iter().flat_map(|pair| compare(pair, &percentiles, margin, tests)).collect();
    let mut out = format!("{:<18}{:>10}{:>10}{:>22}  {}\n", "ms", "A", "B", "B - A, 95 % interval", "B is");
    for one in &all {
        let interval = format!("{:+.2} to {:+.2}", one.interval.0, one.interval.1);
        addln!(out, "{:<18}{:>10}{:>10}{interval:>22}  {}", one.name, figure(one.a), figure(one.b), one.change.name());
    }
    for pair in pairs {
        for (run, values) in [("A", &pair.a), ("B", &pair.b)] {
            let z = trend(values);
            if z.abs() > 3.0 {
                let way = if z > 0.0 { "rises" } else { "falls" };
                addln!(out, "warning: {} of {run} {way} during the run (z {z:+.1}): no steady state", pair.name);
            }
        }
    }
    let paired = pairs.iter().all(|pair| pair.a.len() == pair.b.len());
    let how = if paired { "the same requests, paired" } else { "unlike runs, unpaired" };
    addln!(out, "{how}; equal: within {:.0} %; intervals hold for all rows", margin * 100.0);
    let any = |change: Change| all.iter().any(|one| one.change == change);
    let code = if any(Change::Worse) {
        1
    } else if any(Change::Better) || any(Change::Equal) {
        0
    } else {
        4
    };
    (out, code)
}

const METRICS: [(&str, &str); 4] =
    [("TTFT sched", "ttft_sched_ms"), ("TTFT wire", "ttft_ms"), ("TPOT", "tpot_ms"), ("E2E sched", "e2el_sched_ms")];

/// Compares two files of `--requests-out`.
///
/// # Errors
/// A file that cannot be read or has no requests.
pub fn files(a: &Path, b: &Path, margin: f64) -> anyhow::Result<u8> {
    let (of_a, of_b) = (lines(a)?, lines(b)?);
    let column = |lines: &[Value], key: &str| lines.iter().map(|line| line.get(key).and_then(Value::as_f64)).collect();
    let pairs: Vec<Pair> =
        METRICS.iter().map(|(name, key)| Pair { name, a: column(&of_a, key), b: column(&of_b, key) }).collect();
    let (text, code) = report(&pairs, margin);
    io::Write::write_all(&mut io::stdout().lock(), text.as_bytes())?;
    Ok(code)
}

fn lines(path: &Path) -> anyhow::Result<Vec<Value>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("{shown}: cannot be read"))?;
    let read = text.lines().filter(|line| !line.trim().is_empty()).map(serde_json::from_str);
    let lines: Vec<Value> = read.collect::<Result<_, _>>().with_context(|| format!("{shown}: is no JSONL"))?;
    if lines.iter().all(|line| line.get("intended_ms").is_none()) {
        anyhow::bail!("{shown}: has no requests; write it with --requests-out");
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(seed: u64, shift: f64, n: usize) -> Vec<Option<f64>> {
        let mut rng = StdRng::seed_from_u64(seed);
        (0..n).map(|_| Some(100.0 - 20.0 * (1.0 - rng.random::<f64>()).ln() + shift)).collect()
    }

    fn median(a: Vec<Option<f64>>, b: Vec<Option<f64>>) -> Change {
        compare(&Pair { name: "x", a, b }, &[0.5], 0.02, 1)[0].change
    }

    #[test]
    fn better_worse_and_equal_are_told_apart() {
        assert_eq!(median(run(1, 0.0, 800), run(2, 20.0, 800)), Change::Worse);
        assert_eq!(median(run(1, 0.0, 800), run(2, -20.0, 800)), Change::Better);
        assert_eq!(median(run(1, 0.0, 800), run(1, 0.1, 800)), Change::Equal);
        assert_eq!(median(run(1, 0.0, 20), run(2, 20.0, 20)), Change::Unclear);
    }

    #[test]
    fn equal_runs_are_seldom_called_different() {
        let wrong = (0..40)
            .filter(|seed| {
                matches!(median(run(*seed, 0.0, 200), run(seed + 100, 0.0, 200)), Change::Better | Change::Worse)
            })
            .count();
        assert!(wrong <= 2, "{wrong} of 40");
    }

    #[test]
    fn a_trend_inside_a_run_is_seen() {
        let rising: Vec<Option<f64>> =
            run(1, 0.0, 400).iter().enumerate().map(|(at, one)| one.map(|v| v + at as f64 / 10.0)).collect();
        assert!(trend(&rising) > 3.0);
        assert!(trend(&run(1, 0.0, 400)).abs() < 3.0);
    }
}
