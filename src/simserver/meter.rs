//! Counters and histograms behind `/metrics`, filled by the driver.
//!
//! Buckets are the engines' own, so that quantiles computed from a simulated replica have the same resolution.
//! Source: `shared/captures/vllm/metrics`, `shared/captures/sglang/native/metrics-2-after.prom`.

use std::{fmt::Write, time::Duration};

/// A Prometheus histogram.
#[derive(Debug, Clone)]
pub(super) struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
    count: u64,
}

impl Histogram {
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len()], sum: 0.0, count: 0 }
    }

    pub(super) fn observe(&mut self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
        self.sum += value;
        self.count += 1;
    }

    pub(super) fn time(&mut self, value: Duration) {
        self.observe(value.as_secs_f64());
    }

    pub(super) fn write(&self, out: &mut String, name: &str, labels: &str) {
        let mut total = 0;
        for (bound, count) in self.bounds.iter().zip(&self.counts) {
            total += count;
            put(out, format_args!("{name}_bucket{{{labels},le=\"{bound:?}\"}} {total}.0\n"));
        }
        put(out, format_args!("{name}_bucket{{{labels},le=\"+Inf\"}} {}.0\n", self.count));
        put(out, format_args!("{name}_count{{{labels}}} {}.0\n", self.count));
        put(out, format_args!("{name}_sum{{{labels}}} {:?}\n", self.sum));
    }
}

/// Appends formatted text; writing to a `String` cannot fail.
pub(super) fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    if out.write_fmt(text).is_err() {
        out.push('?');
    }
}

const TTFT: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
const ITL: &[f64] =
    &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
const E2E: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
const SGLANG_LATENCY: &[f64] =
    &[0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0];
const SGLANG_ITL: &[f64] = &[
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0,
    2.0, 4.0, 6.0, 8.0,
];
const ITERATION: &[f64] = &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0, 100_000.0,
];

/// Everything the driver counts that the engine model does not.
#[derive(Debug, Clone)]
pub(super) struct Meter {
    pub(super) requests: u64,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) by_length: u64,
    pub(super) by_stop: u64,
    pub(super) rejected: u64,
    pub(super) ttft: Histogram,
    pub(super) itl: Histogram,
    pub(super) e2e: Histogram,
    pub(super) queue_time: Histogram,
    pub(super) prefill_time: Histogram,
    pub(super) decode_time: Histogram,
    pub(super) tpot: Histogram,
    pub(super) step_tokens: Histogram,
    pub(super) prompt_lengths: Histogram,
    pub(super) output_lengths: Histogram,
}

impl Meter {
    pub(super) fn vllm() -> Self {
        Self::new(TTFT, ITL, E2E)
    }

    pub(super) fn sglang() -> Self {
        Self::new(SGLANG_LATENCY, SGLANG_ITL, SGLANG_LATENCY)
    }

    fn new(ttft: &'static [f64], itl: &'static [f64], e2e: &'static [f64]) -> Self {
        Self {
            requests: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            by_length: 0,
            by_stop: 0,
            rejected: 0,
            ttft: Histogram::new(ttft),
            itl: Histogram::new(itl),
            e2e: Histogram::new(e2e),
            queue_time: Histogram::new(E2E),
            prefill_time: Histogram::new(E2E),
            decode_time: Histogram::new(E2E),
            tpot: Histogram::new(itl),
            step_tokens: Histogram::new(ITERATION),
            prompt_lengths: Histogram::new(TOKENS),
            output_lengths: Histogram::new(TOKENS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_a_bound_belongs_to_its_bucket() {
        let mut histogram = Histogram::new(&[0.1, 1.0]);
        for value in [0.1, 0.5, 3.0] {
            histogram.observe(value);
        }
        let mut out = String::new();

        histogram.write(&mut out, "x", "a=\"b\"");

        assert_eq!(
            out,
            "x_bucket{a=\"b\",le=\"0.1\"} 1.0\nx_bucket{a=\"b\",le=\"1.0\"} 2.0\nx_bucket{a=\"b\",le=\"+Inf\"} 3.0\n\
             x_count{a=\"b\"} 3.0\nx_sum{a=\"b\"} 3.6\n"
        );
    }
}
