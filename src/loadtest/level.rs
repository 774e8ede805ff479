//! One run of a plan at one level of load: schedule, sessions, warm-up, measurement, summary.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{
    arrivals::Pattern,
    client::Client,
    clock::{Clock, nanos, whole},
    plan::{DEFAULT_REQUESTS, LoadPlan, MOST_REQUESTS, Plan},
    record::Record,
    runner::{self, Load, Measured, Options},
    summary::Summary,
    workload::{Session, rng},
};

/// Most connections that are opened before a run.
const PREOPENED: usize = 64;

/// One level that was run.
#[derive(Debug)]
pub struct Level {
    /// What was offered, for reports: `8.0/s`, `16 users`, `trace x2`.
    pub name: String,
    /// Requests planned.
    pub planned: usize,
    /// The load.
    pub load: LoadPlan,
    /// Figures.
    pub summary: Summary,
    /// Every request.
    pub records: Vec<Record>,
}

/// Runs levels of one plan against one target.
#[derive(Debug, Clone)]
pub struct Bench {
    /// Its client.
    pub client: Arc<Client>,
    /// The plan, with the model filled in.
    pub plan: Arc<Plan>,
    /// The clock.
    pub clock: Clock,
    /// Ends everything.
    pub stop: CancellationToken,
    /// Show the live line.
    pub watch: bool,
}

/// Name of a load.
#[must_use]
pub fn name(load: &LoadPlan) -> String {
    match load {
        LoadPlan::Open(pattern) if pattern.rate.is_infinite() => "all at once".to_owned(),
        LoadPlan::Open(pattern) => format!("{}/s", short(pattern.rate)),
        LoadPlan::Closed { users, .. } => format!("{users} users"),
        LoadPlan::Trace { speed, .. } => format!("trace x{}", short(*speed)),
    }
}

/// A number with as few digits as tell it.
#[must_use]
pub fn short(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

impl Bench {
    /// Runs one level; `seed` makes its prompts and times its own.
    ///
    /// # Errors
    /// When no thread can be started.
    pub async fn level(&self, load: &LoadPlan, seed: u64) -> anyhow::Result<Level> {
        let mut spec = self.plan.spec.clone();
        spec.seed = seed;
        let (times, sessions) = self.schedule(load, &spec, seed);
        let planned = sessions.iter().map(|session| session.turns.len()).sum();
        self.warm(load, &spec).await;
        let rate = match load {
            LoadPlan::Open(Pattern { rate, ramp: None, .. }) if rate.is_finite() => Some(*rate),
            _ => None,
        };
        let mut asked = self.plan.asked.clone();
        asked.rate = rate;
        let options = self.options(rate);
        let running = (&self.stop, self.clock);
        let measured = runner::run(&self.client, sessions, times, (options, &spec), running).await?;
        let summary = Summary::of(&measured, &asked);
        let Measured { records, .. } = measured;
        Ok(Level { name: name(load), planned, load: load.clone(), summary, records })
    }

    fn options(&self, planned: Option<f64>) -> Options {
        let plan = &self.plan;
        let keys = if plan.tenant_keys.is_empty() { vec![plan.key.clone()] } else { plan.tenant_keys.clone() };
        Options {
            api: plan.spec.style.api,
            cap: plan.cap,
            duration: plan.duration,
            think: plan.think,
            timeout: plan.timeout,
            keys,
            max_tokens: plan.max_tokens,
            max_usd: plan.max_usd,
            probe_rate: plan.probe_rate,
            planned,
            watch: self.watch,
            id: format!("bench-{:08x}", plan.spec.seed),
        }
    }

    fn schedule(&self, load: &LoadPlan, spec: &super::workload::Spec, seed: u64) -> (Load, Vec<Session>) {
        schedule(&self.plan, load, spec, seed)
    }

    /// Requests that are not counted, at most as many at a time as the run may have.
    async fn warm(&self, load: &LoadPlan, spec: &super::workload::Spec) {
        let users = match load {
            LoadPlan::Closed { users, .. } => *users,
            LoadPlan::Open(_) | LoadPlan::Trace { .. } => 8,
        };
        let users = users.min(self.plan.cap.unwrap_or(usize::MAX)).min(PREOPENED);
        if self.plan.warmup > 0 {
            let mut spec = spec.clone();
            spec.seed ^= 0x5741_524d;
            (spec.turns, spec.cancel_rate, spec.slow_readers) = (1, 0.0, 0.0);
            let sessions = spec.sessions(self.plan.warmup);
            let mut options = self.options(None);
            (options.watch, options.probe_rate, options.max_tokens, options.max_usd) = (false, 0.0, None, None);
            options.duration = None;
            let load = Load::Closed { users, ramp: 0.0 };
            let running = (&self.stop, self.clock);
            // What goes wrong here goes wrong in the run, which tells.
            drop(runner::run(&self.client, sessions, load, (options, &spec), running).await);
        }
        self.client.open(users).await;
    }
}

/// Times and sessions of a level: the same plan, load and seed give the same bytes.
#[must_use]
pub fn schedule(plan: &Plan, load: &LoadPlan, spec: &super::workload::Spec, seed: u64) -> (Load, Vec<Session>) {
    let turns = spec.turns.max(1);
    let requests = plan.requests.unwrap_or(DEFAULT_REQUESTS).min(MOST_REQUESTS);
    match load {
        LoadPlan::Open(pattern) => {
            let mut rng = rng(seed, 20);
            let times = match (plan.duration, plan.requests) {
                (Some(limit), wanted) => {
                    let most = wanted.unwrap_or(MOST_REQUESTS).div_ceil(turns);
                    pattern.within(limit, most, &mut rng)
                }
                (None, _) => pattern.times(requests.div_ceil(turns), &mut rng),
            };
            let wanted = if plan.duration.is_some() { times.len() * turns } else { requests };
            (Load::Open(times), spec.sessions(wanted))
        }
        LoadPlan::Closed { users, ramp } => {
            // A user asks at most some 50 times a second: enough sessions for the duration, made beforehand.
            let wanted = match (plan.duration, plan.requests) {
                (Some(limit), None) => whole(limit * 50.0 * *users as f64).clamp(*users, 20_000),
                _ => requests,
            };
            (Load::Closed { users: *users, ramp: *ramp }, spec.sessions(wanted))
        }
        LoadPlan::Trace { rows, speed } => {
            let limit = plan.duration.map_or(u64::MAX, nanos);
            let wanted = rows.iter().take(plan.requests.unwrap_or(MOST_REQUESTS));
            let rows: Vec<_> = wanted.filter(|row| nanos(row.at / speed) < limit).cloned().collect();
            let times = rows.iter().map(|row| row.at / speed).collect();
            (Load::Open(times), spec.of_trace(&rows))
        }
    }
}
