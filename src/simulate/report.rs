//! What a run comes to: hit rate, latency, goodput, balance, reasons.

use std::{collections::BTreeMap, time::Duration};

use super::node::Foreseen;
use crate::types::PickReason;

/// What a request must keep to count for goodput.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Objectives {
    /// Time to first token, seconds.
    pub ttft: f64,
    /// Time per output token after the first, seconds.
    pub tpot: f64,
}

/// One request that ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) node: Option<usize>,
    pub(super) arrived: Duration,
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) cached: usize,
    pub(super) ttft: Option<Duration>,
    /// From the first token to the last.
    pub(super) decode: Option<Duration>,
    /// Whether it ran to its end.
    pub(super) whole: bool,
    pub(super) foreseen: Foreseen,
}

impl Ended {
    /// A request that was not served.
    pub(super) fn new(arrived: Duration, input: usize, output: usize) -> Self {
        Self {
            node: None,
            arrived,
            input,
            output,
            cached: 0,
            ttft: None,
            decode: None,
            whole: false,
            foreseen: Foreseen::default(),
        }
    }

    fn tpot(&self) -> Option<f64> {
        let gaps = u32::try_from(self.output.saturating_sub(1)).ok().filter(|gaps| *gaps > 0)?;
        Some(self.decode?.as_secs_f64() / f64::from(gaps))
    }

    fn good(&self, objectives: &Objectives) -> bool {
        let ttft = self.ttft.is_some_and(|ttft| ttft.as_secs_f64() <= objectives.ttft);
        self.whole && ttft && self.tpot().is_none_or(|tpot| tpot <= objectives.tpot)
    }
}

/// All requests of a run.
#[derive(Debug, Default)]
pub(super) struct Run {
    ended: Vec<Ended>,
    reasons: BTreeMap<&'static str, u64>,
}

/// The figures of one policy.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Report {
    /// Name of the policy.
    pub policy: String,
    /// Requests that ran to their end.
    pub completed: usize,
    /// Requests that were refused or lost with their replica.
    pub failed: usize,
    /// Share of the prompt tokens found in the engines' caches.
    pub hit_rate: f64,
    /// Time to first token in seconds: median.
    pub ttft_p50_s: f64,
    /// 90 of 100 are at most this.
    pub ttft_p90_s: f64,
    /// 99 of 100 are at most this.
    pub ttft_p99_s: f64,
    /// Time per output token after the first, in milliseconds: median.
    pub tpot_p50_ms: f64,
    /// 99 of 100 are at most this.
    pub tpot_p99_ms: f64,
    /// Requests a second that kept both objectives.
    pub goodput: f64,
    /// Share of the requests that kept both objectives.
    pub slo_attainment: f64,
    /// Standard deviation of the requests sent to each replica, over their mean.
    pub load_cv: f64,
    /// Most requests sent to one replica, over the mean.
    pub load_max_over_mean: f64,
    /// Requests sent to each replica.
    pub load: Vec<u64>,
    /// How often each reason decided.
    pub picks: BTreeMap<&'static str, u64>,
    /// Median of |foreseen - seen| / seen of the time to first token, after the first 500 requests; none if nothing
    /// was foreseen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_prediction_error: Option<f64>,
    /// Median of |foreseen - seen| / prompt of the cached tokens, after the first 500 requests.
    pub cached_prediction_error: f64,
    /// Sum of |foreseen - seen| of the cached tokens over the sum of prompt tokens, after the first 500 requests.
    pub cached_prediction_mean_error: f64,
    /// All times to first token in seconds, sorted.
    #[serde(skip)]
    pub ttft: Vec<f64>,
    /// Cached and all prompt tokens by the minute of their arrival.
    #[serde(skip)]
    pub minutes: Vec<(u64, u64)>,
}

/// Requests after which predictions are judged.
const WARM: usize = 500;

impl Run {
    pub(super) fn pick(&mut self, reason: PickReason) {
        *self.reasons.entry(reason.label()).or_default() += 1;
    }

    pub(super) fn ended(&mut self, ended: Ended) {
        self.ended.push(ended);
    }

    pub(super) fn report(mut self, policy: &str, load: Vec<u64>, objectives: &Objectives) -> Report {
        self.ended.sort_by_key(|ended| ended.arrived);
        let whole = || self.ended.iter().filter(|ended| ended.whole);
        let sum = |value: fn(&Ended) -> usize| self.ended.iter().filter(|e| e.node.is_some()).map(value).sum::<usize>();
        let mut ttft: Vec<f64> = self.ended.iter().filter_map(|e| Some(e.ttft?.as_secs_f64())).collect();
        ttft.sort_by(f64::total_cmp);
        let tpot = sorted(whole().filter_map(Ended::tpot));
        let good = self.ended.iter().filter(|ended| ended.good(objectives)).count();
        let ends = whole().filter_map(|e| Some(e.arrived + e.ttft? + e.decode?));
        let span = ends.max().unwrap_or_default().as_secs_f64();
        let (load_cv, load_max_over_mean) = balance(&load);
        let completed = whole().count();
        let errors = self.errors();
        Report {
            policy: policy.to_owned(),
            completed,
            failed: self.ended.len() - completed,
            hit_rate: sum(|e| e.cached) as f64 / sum(|e| e.input).max(1) as f64,
            ttft_p50_s: quantile(&ttft, 50),
            ttft_p90_s: quantile(&ttft, 90),
            ttft_p99_s: quantile(&ttft, 99),
            tpot_p50_ms: quantile(&tpot, 50) * 1e3,
            tpot_p99_ms: quantile(&tpot, 99) * 1e3,
            goodput: if span > 0.0 { good as f64 / span } else { 0.0 },
            slo_attainment: good as f64 / self.ended.len().max(1) as f64,
            load_cv,
            load_max_over_mean,
            load,
            ttft_prediction_error: errors.ttft,
            cached_prediction_error: errors.cached,
            cached_prediction_mean_error: errors.cached_mean,
            minutes: self.minutes(),
            picks: self.reasons,
            ttft,
        }
    }

    fn errors(&self) -> Errors {
        let judged = || self.ended.iter().skip(WARM).filter(|ended| ended.ttft.is_some());
        let ttft = sorted(judged().filter_map(|ended| {
            let seen = ended.ttft?.as_secs_f64();
            Some((ended.foreseen.ttft? - seen).abs() / seen.max(1e-6))
        }));
        let off = |ended: &Ended| ended.foreseen.cached.abs_diff(ended.cached as u64) as f64;
        let cached = sorted(judged().map(|ended| off(ended) / ended.input as f64));
        let tokens = judged().map(|ended| ended.input).sum::<usize>().max(1);
        Errors {
            ttft: (!ttft.is_empty()).then(|| quantile(&ttft, 50)),
            cached: quantile(&cached, 50),
            cached_mean: judged().map(off).sum::<f64>() / tokens as f64,
        }
    }

    fn minutes(&self) -> Vec<(u64, u64)> {
        let mut minutes: Vec<(u64, u64)> = Vec::new();
        for ended in &self.ended {
            let minute = usize::try_from(ended.arrived.as_secs() / 60).unwrap_or(0);
            if minutes.len() <= minute {
                minutes.resize(minute + 1, (0, 0));
            }
            if let Some((cached, input)) = minutes.get_mut(minute) {
                *cached += ended.cached as u64;
                *input += ended.input as u64;
            }
        }
        minutes
    }
}

struct Errors {
    ttft: Option<f64>,
    cached: f64,
    cached_mean: f64,
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Nearest-rank quantile; 0 of nothing.
fn quantile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(rank).copied().unwrap_or(0.0)
}

/// Coefficient of variation, and the most over the mean.
fn balance(load: &[u64]) -> (f64, f64) {
    let count = load.len().max(1) as f64;
    let mean = load.iter().sum::<u64>() as f64 / count;
    if mean <= 0.0 {
        return (0.0, 0.0);
    }
    let variance = load.iter().map(|sent| (*sent as f64 - mean).powi(2)).sum::<f64>() / count;
    let most = load.iter().copied().max().unwrap_or(0) as f64;
    (variance.sqrt() / mean, most / mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balance_is_of_requests_and_quantiles_are_nearest_ranks() {
        assert_eq!(balance(&[2, 4, 6, 8]), (5.0_f64.sqrt() / 5.0, 1.6));
        assert_eq!(balance(&[0, 0]), (0.0, 0.0));
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 50), 2.0);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 99), 4.0);
        assert_eq!(quantile(&[], 99), 0.0);
    }

    #[test]
    fn goodput_counts_what_keeps_both_objectives_a_second() {
        let served = |arrived: u64, ttft: u64, decode: u64| Ended {
            node: Some(0),
            ttft: Some(Duration::from_millis(ttft)),
            decode: Some(Duration::from_millis(decode)),
            whole: true,
            ..Ended::new(Duration::from_secs(arrived), 1000, 11)
        };
        let mut run = Run::default();
        // Good; late; slow (10 gaps of 60 ms); not served.
        for ended in [served(0, 500, 400), served(0, 1001, 400), served(3, 400, 600)] {
            run.ended(ended);
        }
        run.ended(Ended::new(Duration::ZERO, 5000, 11));

        let report = run.report("x", vec![3], &Objectives { ttft: 1.0, tpot: 0.05 });

        assert_eq!(report.goodput, 0.25, "one of them in the 4 s until the last token");
        assert_eq!((report.completed, report.failed), (3, 1));
        assert_eq!(report.slo_attainment, 0.25);
        assert_eq!(report.tpot_p99_ms, 60.0);
    }
}
