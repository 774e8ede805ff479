//! What comes out of a load test: table, JSON, one line a request, `JUnit`, histogram log, HTML.

pub mod explain;
pub mod hdr;
pub mod html;
pub mod json;
pub mod junit;
pub mod requests;
pub mod svg;
pub mod table;

use super::{body::Api, host::Facts, level::Level};

/// What all reports of a test show beside its levels.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Where the load went.
    pub target: String,
    /// Model.
    pub model: String,
    /// Endpoint.
    pub api: Api,
    /// Seed.
    pub seed: u64,
    /// Label.
    pub label: Option<String>,
    /// Extra members of the result.
    pub metadata: Vec<(String, String)>,
    /// Cap on requests under way.
    pub cap: Option<usize>,
    /// `YYYYMMDD-HHMMSS`, UTC.
    pub date: String,
    /// Objectives in words.
    pub objectives: Vec<String>,
    /// Share of requests that must meet them.
    pub goal: f64,
    /// Whose definitions.
    pub rules: super::measure::Rules,
    /// The client's machine.
    pub facts: Facts,
}

/// The name of a metric, its pick, and whether it is shown with intervals.
pub type Row = (&'static str, &'static str, fn(&Level) -> &super::stats::Dist);

/// The distributions that reports show, with their key in JSON and their name for people.
pub const ROWS: &[Row] = &[
    ("ttft_sched", "TTFT, from schedule", |level| &level.summary.dists.ttft_sched),
    ("ttft", "TTFT, from wire", |level| &level.summary.dists.ttft),
    ("tpot", "TPOT", |level| &level.summary.dists.tpot),
    ("itl", "ITL, per token", |level| &level.summary.dists.itl),
    ("icl", "chunk gap", |level| &level.summary.dists.icl),
    ("e2el_sched", "E2E, from schedule", |level| &level.summary.dists.e2el_sched),
    ("e2el", "E2E, from wire", |level| &level.summary.dists.e2el),
];

/// Distributions that only files carry.
pub const MORE_ROWS: &[Row] = &[
    ("ttfo", "first non-reasoning token", |level| &level.summary.dists.ttfo),
    ("ttfe", "first event", |level| &level.summary.dists.ttfe),
    ("ttfb", "head of the answer", |level| &level.summary.dists.ttfb),
    ("max_gap", "longest gap of a request", |level| &level.summary.dists.max_gap),
    ("client_queue_time", "wait for the cap", |level| &level.summary.dists.cap_wait),
    ("e2el_including_client_queue", "E2E with the wait", |level| &level.summary.dists.e2el_sched),
    ("connect", "connecting", |level| &level.summary.dists.connect),
    ("send_lag", "client's delay in sending", |level| &level.summary.dists.send_lag),
    ("read_lag", "client's delay in reading", |level| &level.summary.dists.read_lag),
];

/// Milliseconds with three to four significant digits.
#[must_use]
pub fn figure(value: f64) -> String {
    match value {
        value if value >= 1000.0 => format!("{value:.0}"),
        value if value >= 100.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// Seconds since 1970 as `YYYYMMDD-HHMMSS`, UTC.
#[must_use]
pub fn date(unix: u64) -> String {
    let (day, second) = (unix / 86_400, unix % 86_400);
    // Howard Hinnant's `civil_from_days`, for days after 1970.
    let z = day + 719_468;
    let era = z / 146_097;
    let of_era = z % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let (of_month, month) =
        (of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{of_month:02}-{hour:02}{minute:02}{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_read_off_the_seconds() {
        // `date -u -d @1782950400` and two more.
        assert_eq!(date(0), "19700101-000000");
        assert_eq!(date(951_782_400), "20000229-000000");
        assert_eq!(date(1_796_097_600 + 3661), "20261201-050101");
    }
}
