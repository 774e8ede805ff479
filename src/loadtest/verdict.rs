//! Whether a run's figures can be trusted, and whether its objectives were met.
//!
//! The limit on the client's own delays is tied to what is measured: 1 ms, or 2 % of the median TTFT if that is more. A
//! delay in sending spoils what follows; one in reading is corrected where the kernel told the time, and spoils the run
//! only when it is ten times the limit. Source: reference/loadtest.md F.6.

use serde::Serialize;

use super::{host::Host, stats::Share};

/// Whether the figures can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Validity {
    /// They can.
    #[default]
    Valid,
    /// With care: something was close to a limit.
    Degraded,
    /// They cannot.
    Invalid,
}

impl Validity {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Degraded => "degraded",
            Self::Invalid => "invalid",
        }
    }
}

/// What the verdict rests on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Evidence {
    /// 99th percentile of the delay in sending, ms.
    pub send_lag: Option<f64>,
    /// 99th percentile of the delay in reading, ms; `None` without kernel times.
    pub read_lag: Option<f64>,
    /// Median TTFT, ms.
    pub ttft: Option<f64>,
    /// The machine.
    pub host: Host,
    /// Requests a second planned, and sent.
    pub rates: Option<(f64, f64)>,
    /// Requests that got any answer.
    pub answered: usize,
}

/// Pressure on the CPUs from which a run is at best degraded.
const PRESSURE: f64 = 0.5;
/// CPUs' worth of waiting for a CPU, likewise.
const RUN_QUEUE: f64 = 0.25;
/// Stolen time, likewise.
const STEAL: f64 = 0.05;
/// Smallest share of the planned rate that must have been sent.
const OFFERED: f64 = 0.98;

/// The verdict with its reasons.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
pub struct Judged {
    /// The verdict.
    pub verdict: Validity,
    /// Why it is not `valid`.
    pub reasons: Vec<String>,
    /// Limit on the client's delays, ms.
    pub lag_limit_ms: f64,
}

impl Judged {
    fn add(&mut self, verdict: Validity, reason: String) {
        self.verdict = self.verdict.max(verdict);
        self.reasons.push(reason);
    }
}

/// Judges a run.
#[must_use]
pub fn judge(evidence: &Evidence) -> Judged {
    let limit = evidence.ttft.map_or(1.0, |ttft| (ttft * 0.02).max(1.0));
    let mut judged = Judged { lag_limit_ms: limit, ..Judged::default() };
    if evidence.answered == 0 {
        judged.add(Validity::Invalid, "no request was answered".into());
    }
    if let Some(lag) = evidence.send_lag.filter(|lag| *lag > limit / 2.0) {
        let verdict = if lag > limit { Validity::Invalid } else { Validity::Degraded };
        judged.add(verdict, format!("client sent late: p99 {lag:.1} ms, limit {limit:.1} ms"));
    }
    if let Some(lag) = evidence.read_lag.filter(|lag| *lag > limit) {
        let verdict = if lag > 10.0 * limit { Validity::Invalid } else { Validity::Degraded };
        judged.add(verdict, format!("client read late: p99 {lag:.1} ms (corrected), limit {limit:.1} ms"));
    }
    if let Some((planned, sent)) = evidence.rates.filter(|(planned, sent)| *sent < OFFERED * planned) {
        judged.add(Validity::Invalid, format!("sent {sent:.2}/s of {planned:.2}/s planned"));
    }
    let host = &evidence.host;
    for (value, limit, what) in [
        (host.cpu_pressure, PRESSURE, "of the time something waited for a CPU"),
        (host.run_queue_wait, RUN_QUEUE, "of a CPU was missing to this process"),
        (host.steal, STEAL, "of the CPU time was stolen by the hypervisor"),
    ] {
        if let Some(value) = value.filter(|value| *value > limit) {
            judged.add(Validity::Degraded, format!("{:.0} % {what}", value * 100.0));
        }
    }
    judged
}

/// Whether the objectives were met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Objectives {
    /// Met, beyond the error bar.
    Pass,
    /// Missed, beyond the error bar.
    Missed,
    /// The error bar holds the goal.
    Undecided,
}

impl Objectives {
    /// Compares a share with the goal.
    #[must_use]
    pub fn of(share: &Share, goal: f64) -> Self {
        if share.low >= goal {
            Self::Pass
        } else if share.high < goal {
            Self::Missed
        } else {
            Self::Undecided
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Missed => "missed",
            Self::Undecided => "undecided",
        }
    }
}

/// Exit code: 0 pass, 1 objective missed, 2 run invalid, 4 undecided. (3 is usage, before any run.)
#[must_use]
pub const fn exit_code(validity: Validity, objectives: Option<Objectives>) -> u8 {
    match (validity, objectives) {
        (Validity::Invalid, _) => 2,
        (_, Some(Objectives::Missed)) => 1,
        (_, Some(Objectives::Undecided)) => 4,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence() -> Evidence {
        Evidence { send_lag: Some(0.2), read_lag: Some(0.1), ttft: Some(50.0), answered: 10, ..Evidence::default() }
    }

    fn verdict(evidence: &Evidence) -> Validity {
        judge(evidence).verdict
    }

    #[test]
    fn the_limit_on_lag_grows_with_what_is_measured() {
        assert_eq!(verdict(&evidence()), Validity::Valid);
        assert_eq!(verdict(&Evidence { send_lag: Some(1.2), ..evidence() }), Validity::Invalid);
        assert_eq!(verdict(&Evidence { send_lag: Some(1.2), ttft: Some(1000.0), ..evidence() }), Validity::Valid);
        assert_eq!(verdict(&Evidence { send_lag: Some(0.7), ..evidence() }), Validity::Degraded);
    }

    #[test]
    fn a_late_read_that_the_kernel_corrects_degrades_and_a_very_late_one_spoils() {
        assert_eq!(verdict(&Evidence { read_lag: Some(2.0), ..evidence() }), Validity::Degraded);
        assert_eq!(verdict(&Evidence { read_lag: Some(20.0), ..evidence() }), Validity::Invalid);
    }

    #[test]
    fn a_load_that_was_not_offered_and_silence_are_invalid() {
        assert_eq!(verdict(&Evidence { rates: Some((100.0, 90.0)), ..evidence() }), Validity::Invalid);
        assert_eq!(verdict(&Evidence { answered: 0, ..evidence() }), Validity::Invalid);
    }

    #[test]
    fn a_machine_short_of_cpu_degrades() {
        let host = Host { cpu_pressure: Some(0.9), ..Host::default() };
        let judged = judge(&Evidence { host, ..evidence() });
        assert_eq!((judged.verdict, judged.reasons.len()), (Validity::Degraded, 1));
    }

    #[test]
    fn the_error_bar_decides() {
        let share = |low, high| Share { share: f64::midpoint(low, high), low, high, effective: 1.0 };
        assert_eq!(Objectives::of(&share(0.96, 1.0), 0.95), Objectives::Pass);
        assert_eq!(Objectives::of(&share(0.80, 0.90), 0.95), Objectives::Missed);
        assert_eq!(Objectives::of(&share(0.94, 0.97), 0.95), Objectives::Undecided);
        assert_eq!(exit_code(Validity::Invalid, Some(Objectives::Pass)), 2);
        assert_eq!(exit_code(Validity::Degraded, Some(Objectives::Undecided)), 4);
        assert_eq!(exit_code(Validity::Valid, Some(Objectives::Missed)), 1);
    }
}
