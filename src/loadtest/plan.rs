//! What a load test is asked to do, after the flags were understood.

use std::{path::PathBuf, time::Duration};

use http::HeaderValue;

use super::{arrivals::Pattern, summary::Asked, trace::Row, workload::Spec};
use crate::fleet::BaseUrl;

/// How load is offered.
#[derive(Debug, Clone)]
pub enum LoadPlan {
    /// At drawn times.
    Open(Pattern),
    /// By users that wait for their answers.
    Closed {
        /// Users.
        users: usize,
        /// Seconds over which they join.
        ramp: f64,
    },
    /// At the times of a trace, divided by the speed.
    Trace {
        /// Its rows.
        rows: Vec<Row>,
        /// Factor.
        speed: f64,
    },
}

/// One run or many.
#[derive(Debug, Clone)]
pub enum Mode {
    /// One run.
    Single,
    /// One run for each rate.
    Sweep(Vec<f64>),
    /// One run for each number of users.
    SweepUsers(Vec<usize>),
    /// The largest rate that is stable and inside the objectives.
    FindCapacity(SearchPlan),
    /// The largest number of users that is inside the objectives.
    SearchConcurrency(SearchPlan),
    /// Two targets in turns.
    Ab,
}

/// Bounds of a search.
#[derive(Debug, Clone, Copy)]
pub struct SearchPlan {
    /// First rate or number of users.
    pub from: f64,
    /// Largest one.
    pub to: f64,
    /// Seconds of one probe.
    pub probe: f64,
    /// Seconds of the whole search.
    pub budget: f64,
}

/// Files to write.
#[derive(Debug, Clone, Default)]
pub struct Output {
    /// Results as JSON.
    pub json: Option<PathBuf>,
    /// One line a request.
    pub requests: Option<PathBuf>,
    /// HTML report.
    pub report: Option<PathBuf>,
    /// `HdrHistogram` interval log.
    pub hdr: Option<PathBuf>,
    /// `JUnit` XML.
    pub junit: Option<PathBuf>,
    /// Print the definitions.
    pub explain: bool,
}

/// A load test.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Targets: one, or two to compare. Empty with the simulated engine.
    pub targets: Vec<BaseUrl>,
    /// Model; the target's first if none.
    pub model: Option<String>,
    /// Key of the target.
    pub key: Option<HeaderValue>,
    /// Keys of the tenants.
    pub tenant_keys: Vec<Option<HeaderValue>>,
    /// What requests look like; the model's name is filled in later.
    pub spec: Spec,
    /// How load is offered.
    pub load: LoadPlan,
    /// One run or many.
    pub mode: Mode,
    /// Requests of a run.
    pub requests: Option<usize>,
    /// Seconds of a run.
    pub duration: Option<f64>,
    /// Requests before the run, not counted.
    pub warmup: usize,
    /// Most requests under way.
    pub cap: Option<usize>,
    /// Pause between turns, in seconds.
    pub think: f64,
    /// Longest request.
    pub timeout: Duration,
    /// Most tokens.
    pub max_tokens: Option<u64>,
    /// Most money, and the prices of a million prompt and answer tokens.
    pub max_usd: Option<(f64, f64, f64)>,
    /// Canaries a second.
    pub probe_rate: f64,
    /// Metrics pages to read; `None` tries the target's own.
    pub scrape: Option<Vec<String>>,
    /// Definitions and objectives.
    pub asked: Asked,
    /// Label in reports.
    pub label: Option<String>,
    /// Extra members of the result.
    pub metadata: Vec<(String, String)>,
    /// Files.
    pub output: Output,
}

/// Requests of a run whose size nobody gave.
pub const DEFAULT_REQUESTS: usize = 100;
/// Most requests of one run: a schedule is made as a whole.
pub const MOST_REQUESTS: usize = 1_000_000;
