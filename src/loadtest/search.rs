//! The largest level of load that is inside the objectives: a search that says when it does not know.
//!
//! Doubles to a bracket, then bisects on the logarithm. All probes of a level are pooled, and a fit that can only fall
//! with the load (pool adjacent violators) tells the bracket, so one lucky probe does not mislead it. Both ends of the
//! last bracket are probed again: two answers of one level that cannot both be true mean that the target drifts, and the
//! result is `undecided`, not a number. Source: reference/loadtest.md F.8 and F.9; Ayer et al. 1955.

use serde::Serialize;
use serde_json::{Value, json};

use super::{
    level::short,
    stats::{Share, Z95, wilson},
};

/// Bracket that is narrow enough.
const PRECISION: f64 = 1.05;
/// Most probes.
const MOST: usize = 30;
/// Widest interval that is an answer.
const WIDEST: f64 = 1.6;
/// Standard errors between two answers of one level that mean drift.
const DRIFT: f64 = 3.5;
/// How far below the first level the search goes.
const DEPTH: f64 = 1024.0;

/// One probe.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Probe {
    /// Rate or users.
    pub level: f64,
    /// Share of good requests; zero if the load has no steady state.
    pub share: f64,
    /// Independent requests that it is worth.
    pub effective: f64,
}

impl Probe {
    /// A probe that gave this share; a saturated one is bad whatever its share.
    #[must_use]
    pub fn new(level: f64, share: &Share, saturated: bool) -> Self {
        let effective = share.effective.max(1.0);
        Self { level, share: if saturated { 0.0 } else { share.share }, effective }
    }

    fn words(&self) -> String {
        if self.share > 0.0 {
            format!("gave {:.1} % good", self.share * 100.0)
        } else {
            "piled up or gave none".to_owned()
        }
    }
}

/// How a search ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "status", content = "reason")]
pub enum Status {
    /// With a number.
    Found,
    /// The highest level allowed is still inside the objectives.
    AboveLimit,
    /// The lowest level tried is already outside.
    Unattainable,
    /// Without a number, and why.
    Undecided(String),
}

/// What a search found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Found {
    /// How it ended.
    #[serde(flatten)]
    pub status: Status,
    /// Where the fit crosses the goal.
    pub estimate: Option<f64>,
    /// Highest level that surely passed.
    pub low: Option<f64>,
    /// Lowest level that surely failed.
    pub high: Option<f64>,
    /// `requests/s` or `users`.
    pub unit: &'static str,
    /// What limits it.
    pub limited_by: Option<String>,
    /// Objectives in words.
    pub objectives: String,
    /// All probes, in order.
    pub probes: Vec<Probe>,
}

impl Found {
    /// The result in a line or two.
    #[must_use]
    pub fn text(&self) -> String {
        let unit = self.unit;
        let bound = |value: Option<f64>| value.map_or_else(|| "?".to_owned(), short);
        let limit = self.limited_by.as_ref().map_or_else(String::new, |what| format!(", limited by {what}"));
        let within = format!("within {}", self.objectives);
        match (&self.status, self.estimate) {
            (Status::Found, Some(estimate)) => format!(
                "CAPACITY {} {unit} (95 % interval {}-{})\n         {within}{limit}; {} probes",
                short(estimate),
                bound(self.low),
                bound(self.high),
                self.probes.len()
            ),
            (Status::AboveLimit, _) => {
                format!("CAPACITY above {} {unit}, the highest tried\n         {within}", bound(self.low))
            }
            (Status::Unattainable, _) => {
                format!("UNATTAINABLE: already {} {unit} is too much\n         {within}{limit}", bound(self.high))
            }
            (Status::Undecided(reason), _) => {
                format!("UNDECIDED between {} and {} {unit}\n         {reason}", bound(self.low), bound(self.high))
            }
            (Status::Found, None) => format!("UNDECIDED: no crossing {within}"),
        }
    }

    /// The result for scripts.
    #[must_use]
    pub fn json(&self) -> Value {
        json!(self)
    }

    /// 0 found, 1 unattainable, 4 undecided.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self.status {
            Status::Found | Status::AboveLimit => 0,
            Status::Unattainable => 1,
            Status::Undecided(_) => 4,
        }
    }
}

/// The probes of one level together, and what the fit says of it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Pooled {
    level: f64,
    share: f64,
    effective: f64,
    count: usize,
    fit: f64,
}

/// A search under way.
#[derive(Debug, Clone)]
pub struct Search {
    from: f64,
    to: f64,
    goal: f64,
    whole: bool,
    probes: Vec<Probe>,
}

impl Search {
    /// A search from one level up to another; `whole` for levels that are counts.
    #[must_use]
    pub const fn new(from: f64, to: f64, goal: f64, whole: bool) -> Self {
        Self { from, to, goal, whole, probes: Vec::new() }
    }

    /// Takes in a probe.
    pub fn observe(&mut self, probe: Probe) {
        self.probes.push(probe);
    }

    /// Probes so far.
    #[must_use]
    pub fn probes(&self) -> &[Probe] {
        &self.probes
    }

    /// The level to probe next; `None` when the search is over.
    #[must_use]
    pub fn next(&self) -> Option<f64> {
        if self.probes.len() >= MOST || self.drift().is_some() {
            return None;
        }
        let pooled = self.pooled();
        let (low, high) = bracket(&pooled, self.goal);
        match (low, high) {
            (None, None) => Some(self.from),
            (Some(low), None) if low.level >= self.to => None,
            (Some(low), None) => Some((low.level * 2.0).min(self.to)),
            (None, Some(high)) if self.whole && high.level <= 1.0 => None,
            (None, Some(high)) if high.level <= self.from / DEPTH => None,
            (None, Some(high)) => Some(self.rounded(high.level / 2.0).max(self.floor())),
            (Some(low), Some(high)) => self.between(low, high),
        }
    }

    fn between(&self, low: Pooled, high: Pooled) -> Option<f64> {
        let middle = self.rounded((low.level * high.level).sqrt());
        let narrow = high.level / low.level <= PRECISION || (self.whole && high.level - low.level <= 1.0);
        if !narrow && middle > low.level && middle < high.level {
            return Some(middle);
        }
        // Confirm the shorter-tried end first.
        let next = if high.count < low.count { high } else { low };
        if next.count < 2 {
            return Some(next.level);
        }
        // Then the nearest level whose error bar still holds the goal.
        let open = |one: &Pooled| {
            let (a, b) = wilson(one.share, one.effective, Z95);
            a < self.goal && b >= self.goal && one.count < 3
        };
        [low, high].into_iter().find(open).map(|one| one.level)
    }

    fn rounded(&self, level: f64) -> f64 {
        if self.whole { level.round() } else { level }
    }

    const fn floor(&self) -> f64 {
        if self.whole { 1.0 } else { 0.0 }
    }

    /// All probes by level, with the falling fit.
    fn pooled(&self) -> Vec<Pooled> {
        let mut all: Vec<Pooled> = Vec::new();
        for probe in &self.probes {
            let same = all.iter_mut().find(|one| (one.level / probe.level - 1.0).abs() < 1e-9);
            match same {
                Some(one) => {
                    let sum = one.effective + probe.effective;
                    one.share = (one.share * one.effective + probe.share * probe.effective) / sum;
                    (one.effective, one.count) = (sum, one.count + 1);
                }
                None => all.push(Pooled {
                    level: probe.level,
                    share: probe.share,
                    effective: probe.effective,
                    count: 1,
                    fit: probe.share,
                }),
            }
        }
        all.sort_by(|a, b| a.level.total_cmp(&b.level));
        fit_falling(&mut all);
        all
    }

    /// Two answers of one level that cannot both be true.
    fn drift(&self) -> Option<String> {
        for (at, a) in self.probes.iter().enumerate() {
            for b in self.probes.iter().skip(at + 1).filter(|b| (b.level / a.level - 1.0).abs() < 1e-9) {
                let both = (a.share * a.effective + b.share * b.effective) / (a.effective + b.effective);
                // At least one request's worth of doubt, so that 100 % twice is no proof of a tiny error.
                let variance = (both * (1.0 - both)).max(0.01) * (1.0 / a.effective + 1.0 / b.effective);
                let crosses = (a.share >= self.goal) != (b.share >= self.goal);
                if crosses && (a.share - b.share).abs() > DRIFT * variance.sqrt() {
                    let (first, second) = (a.words(), b.words());
                    return Some(format!("the target drifts: {} {first} first and {second} later", short(a.level)));
                }
            }
        }
        None
    }

    /// What the probes so far say.
    #[must_use]
    pub fn found(&self, unit: &'static str, objectives: String, limited_by: Option<String>) -> Found {
        let pooled = self.pooled();
        let (low, high) = bracket(&pooled, self.goal);
        let sure_low = pooled
            .iter()
            .rev()
            .find(|one| one.fit >= self.goal && wilson(one.share, one.effective, Z95).0 >= self.goal);
        let sure_high =
            pooled.iter().find(|one| one.fit < self.goal && wilson(one.share, one.effective, Z95).1 < self.goal);
        let (sure_low, sure_high) = (sure_low.map(|one| one.level), sure_high.map(|one| one.level));
        let wide =
            sure_low.zip(sure_high).is_none_or(|(low, high)| high / low > WIDEST && !(self.whole && high - low <= 2.0));
        let status = match (low, high, self.drift()) {
            (_, _, Some(drift)) => Status::Undecided(drift),
            (Some(_), None, _) if self.next().is_none() && sure_low.is_some() => Status::AboveLimit,
            (None, Some(_), _) if self.next().is_none() && sure_high.is_some() => Status::Unattainable,
            (Some(_), Some(_), _) if !wide => Status::Found,
            _ => Status::Undecided("the probes do not tell; give more --probe-seconds or --search-budget".to_owned()),
        };
        let estimate = low.zip(high).map(|(low, high)| crossing(&low, &high, self.goal));
        let estimate =
            estimate.filter(|_| status == Status::Found).map(|level| if self.whole { level.floor() } else { level });
        Found {
            status,
            estimate,
            low: sure_low.or(low.map(|one| one.level)),
            high: sure_high.or(high.map(|one| one.level)),
            unit,
            limited_by,
            objectives,
            probes: self.probes.clone(),
        }
    }
}

/// The highest level whose fit passes, and the lowest whose fit fails.
fn bracket(pooled: &[Pooled], goal: f64) -> (Option<Pooled>, Option<Pooled>) {
    let low = pooled.iter().rev().find(|one| one.fit >= goal).copied();
    let high = pooled.iter().find(|one| one.fit < goal).copied();
    (low, high)
}

/// Where a line between two levels, on the logarithm, crosses the goal.
fn crossing(low: &Pooled, high: &Pooled, goal: f64) -> f64 {
    let fall = low.fit - high.fit;
    let share = if fall > 0.0 { ((low.fit - goal) / fall).clamp(0.0, 1.0) } else { 0.5 };
    low.level * (high.level / low.level).powf(share)
}

/// Pool adjacent violators, weighted, non-increasing.
fn fit_falling(all: &mut [Pooled]) {
    let mut blocks: Vec<(f64, f64, usize)> = Vec::new();
    for one in all.iter() {
        blocks.push((one.share, one.effective, 1));
        while let [.., before, last] = blocks.as_slice() {
            if before.0 >= last.0 {
                break;
            }
            let weight = before.1 + last.1;
            let merged = ((before.0 * before.1 + last.0 * last.1) / weight, weight, before.2 + last.2);
            blocks.truncate(blocks.len() - 2);
            blocks.push(merged);
        }
    }
    let fits = blocks.iter().flat_map(|(fit, _, count)| std::iter::repeat_n(*fit, *count));
    all.iter_mut().zip(fits).for_each(|(one, fit)| one.fit = fit);
}

#[cfg(test)]
mod tests;
