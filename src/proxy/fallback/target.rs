//! One hosted model with what is known of it: whether it fails, and what it has cost.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use tokio::time::Instant;
use tracing::warn;

use crate::{
    config::FallbackPlan,
    dialect::event::Usage,
    fleet::{Breaker, Ledger, Prices, SpendLimits, Spent, Usd},
    telemetry::{Skip, TargetMetrics, Telemetry, Window},
    types::Asked,
    upstream::hosted::Trust,
};

/// Output tokens that a request without a limit is taken to use until it ended.
const UNBOUNDED_OUTPUT: u64 = 4096;

/// A hosted model.
#[derive(Debug)]
pub struct Target {
    /// As configured.
    pub(super) plan: FallbackPlan,
    /// `model@host:port`, in logs and metrics.
    label: String,
    prices: Prices,
    metrics: TargetMetrics,
    breaker: Mutex<Breaker>,
    ledger: Mutex<Ledger>,
}

impl Target {
    pub(super) fn new(model: &str, plan: FallbackPlan, spent: Spent, telemetry: &Telemetry) -> Arc<Self> {
        let label = label(&plan);
        let budget = plan.budget.clone().unwrap_or_default();
        let limits = SpendLimits {
            hour: budget.usd_per_hour.map(Usd::from_dollars),
            day: budget.usd_per_day.map(Usd::from_dollars),
        };
        Arc::new(Self {
            prices: Prices::per_million(budget.input_usd_per_million, budget.output_usd_per_million),
            metrics: telemetry.target(model, &label),
            plan,
            label,
            breaker: Mutex::default(),
            ledger: Mutex::new(Ledger::new(limits, spent)),
        })
    }

    /// Its name in logs and metrics.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    pub(super) fn metrics(&self) -> &TargetMetrics {
        &self.metrics
    }

    pub(super) fn trust(&self) -> Trust {
        Trust { roots: self.plan.roots, ca_file: self.plan.ca_file.clone() }
    }

    /// What it cost in the hour and day of now.
    pub(super) fn spent(&self) -> Spent {
        self.ledger().spent(seconds())
    }

    /// Sets the gauges.
    pub(super) fn refresh(&self) {
        let spent = self.spent();
        self.metrics.spend(Window::Hour, spent.hour.spent.dollars());
        self.metrics.spend(Window::Day, spent.day.spent.dollars());
        self.metrics.breaker(self.breaker().is_open());
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a request pass that its budget and its breaker allow.
    pub(super) fn admit(self: &Arc<Self>, asked: Asked) -> Result<(Trial, Paid), Skip> {
        let output = if asked.output == 0 { UNBOUNDED_OUTPUT } else { asked.output };
        let most = self.prices.cost(asked.prompt, output);
        if let Err(exhausted) = self.ledger().reserve(most, seconds()) {
            if exhausted.first {
                warn!(target = %self.label, "the budget of a hosted model is spent; it is not used until its hour or day is over");
            }
            return Err(Skip::Budget);
        }
        let paid = Paid { target: self.clone(), most, prompt: asked.prompt, open: true };
        if !self.breaker().admit(Instant::now()) {
            paid.release();
            return Err(Skip::Breaker);
        }
        Ok((Trial { target: self.clone(), open: true }, paid))
    }
}

/// `model@host:port[/path]`.
pub(super) fn label(plan: &FallbackPlan) -> String {
    format!("{}@{}", plan.model, plan.url.label())
}

/// Seconds since 1970.
fn seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A request at a target until the target's first word; without one the breaker learns nothing.
#[derive(Debug)]
pub(super) struct Trial {
    target: Arc<Target>,
    open: bool,
}

impl Trial {
    pub(super) fn succeeded(mut self) {
        self.open = false;
        self.target.breaker().succeeded();
    }

    pub(super) fn failed(mut self, after: Option<Duration>) {
        self.open = false;
        let mut breaker = self.target.breaker();
        let before = breaker.is_open();
        breaker.failed(Instant::now(), after);
        if !before && breaker.is_open() {
            warn!(target = %self.target.label, "a hosted model fails; it is left alone for a while");
        }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if self.open {
            self.target.breaker().abandoned();
        }
    }
}

/// A reservation in a target's budget. Dropped without a word, it costs its prompt.
#[derive(Debug)]
pub struct Paid {
    target: Arc<Target>,
    most: Usd,
    prompt: u64,
    open: bool,
}

impl Paid {
    /// Whose budget it is.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The target did nothing for it.
    pub fn release(mut self) {
        self.close(Usd::default());
    }

    /// The request ended with this usage. What the target did not count is estimated: the prompt from its length, the
    /// output from its events.
    pub fn settle(mut self, usage: Usage, events: u64) {
        let cost = self.target.prices.cost(usage.prompt.unwrap_or(self.prompt), usage.output.unwrap_or(events));
        self.close(cost);
    }

    fn close(&mut self, cost: Usd) {
        self.open = false;
        self.target.ledger().settle(self.most, cost, seconds());
    }
}

impl Drop for Paid {
    fn drop(&mut self) {
        if self.open {
            let cost = self.target.prices.cost(self.prompt, 0);
            self.close(cost);
        }
    }
}
