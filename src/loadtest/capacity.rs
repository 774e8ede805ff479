//! Runs the probes of a search.

use std::{
    io::{self, IsTerminal, Write},
    sync::Arc,
};

use super::{
    arrivals::Pattern,
    clock::{seconds, whole},
    level::{Bench, Level, short},
    live::show,
    plan::{LoadPlan, Mode, SearchPlan},
    search::{Found, Probe, Search, Status},
    stability::{Stability, judge},
    summary::in_flight,
    verdict::Validity,
};

/// Fewest requests of a probe: 95 % cannot be told from 90 % with less.
const FEWEST: usize = 80;
/// Most requests of a probe.
const MOST: usize = 50_000;

/// Searches the largest level inside the objectives.
///
/// # Errors
/// When no thread can be started.
pub async fn search(bench: &Bench, plan: SearchPlan, load: &LoadPlan) -> anyhow::Result<(Vec<Level>, Found)> {
    let users = matches!(bench.plan.mode, Mode::SearchConcurrency(_));
    let mut search = Search::new(plan.from, plan.to, bench.plan.asked.goal, users);
    let began = bench.clock.now();
    let mut levels: Vec<Level> = Vec::new();
    let mut late = None;
    while let Some(at) = search.next() {
        if bench.stop.is_cancelled() {
            late = Some("ended by hand");
            break;
        }
        if seconds(bench.clock.now().saturating_sub(began)) > plan.budget {
            late = Some("--search-budget is used up");
            break;
        }
        let load = at_level(load, at, users);
        let level = probe(bench, &plan, &load, (at, levels.len())).await?;
        if level.summary.stopped.is_some() {
            late = level.summary.stopped;
            break;
        }
        if level.summary.judged.verdict == Validity::Invalid && level.summary.completed == 0 {
            late = Some("no request of a probe was answered");
            levels.push(level);
            break;
        }
        let saturated = !users && stability(&level, at) == Stability::Saturated;
        if let Some(share) = level.summary.good {
            tell(&level, saturated, share.share)?;
            search.observe(Probe::new(at, &share, saturated));
        }
        levels.push(level);
    }
    show("");
    let limited = limited_by(&levels, &search, bench);
    let words =
        bench.plan.asked.objectives.iter().map(|one| format!("{} {} ms", one.metric.name(), short(one.limit_ms)));
    let unit = if users { "users" } else { "requests/s" };
    let mut found = search.found(unit, words.collect::<Vec<_>>().join(", "), limited);
    if let Some(reason) = late.filter(|_| found.status != Status::Found || search.next().is_some()) {
        found.status = Status::Undecided(reason.to_owned());
        found.estimate = None;
    }
    let invalid = levels.iter().filter(|level| level.summary.judged.verdict == Validity::Invalid).count();
    if found.status == Status::Found && invalid * 2 > levels.len() {
        found.status =
            Status::Undecided(format!("{invalid} of {} probes were invalid: the client was too slow", levels.len()));
        found.estimate = None;
    }
    Ok((levels, found))
}

fn at_level(load: &LoadPlan, level: f64, users: bool) -> LoadPlan {
    if users {
        return LoadPlan::Closed { users: whole(level).max(1), ramp: 0.0 };
    }
    let burstiness = if let LoadPlan::Open(pattern) = load { pattern.burstiness } else { 1.0 };
    LoadPlan::Open(Pattern { rate: level, burstiness, ramp: None })
}

async fn probe(bench: &Bench, plan: &SearchPlan, load: &LoadPlan, (at, number): (f64, usize)) -> anyhow::Result<Level> {
    let mut own = (*bench.plan).clone();
    let users = matches!(load, LoadPlan::Closed { .. });
    let wanted = if users { whole(at * 8.0) } else { whole(at * plan.probe) };
    own.requests = Some(wanted.clamp(FEWEST, MOST));
    let bench = Bench { plan: Arc::new(own), ..bench.clone() };
    let seed = bench.plan.spec.seed.wrapping_add((number as u64 + 1).wrapping_mul(0x9e37_79b9));
    bench.level(load, seed).await
}

/// Whether the number under way grew while requests arrived, the first fifth left out.
fn stability(level: &Level, rate: f64) -> Stability {
    let last = level.records.iter().map(|record| record.intended).max().unwrap_or(0);
    judge(&in_flight(&level.records), (seconds(last) * 0.2, seconds(last)), rate)
}

/// What the lowest level that failed was short of.
fn limited_by(levels: &[Level], search: &Search, bench: &Bench) -> Option<String> {
    let goal = bench.plan.asked.goal;
    let failing = search.probes().iter().zip(levels).filter(|(probe, _)| probe.share < goal);
    let (probe, level) = failing.min_by(|(a, _), (b, _)| a.level.total_cmp(&b.level))?;
    if probe.share == 0.0 && level.summary.good.is_some_and(|share| share.share >= goal) {
        return Some("saturation: requests pile up".to_owned());
    }
    let missed = level.summary.missed.iter().zip(&bench.plan.asked.objectives);
    missed.max_by_key(|(count, _)| **count).map(|(_, objective)| objective.metric.name().to_uppercase())
}

fn tell(level: &Level, saturated: bool, share: f64) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let colour = out.is_terminal();
    let verdict = level.summary.judged.verdict.name();
    let state = if saturated { ", piles up" } else { "" };
    let (dim, plain) = if colour { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
    let p99 = level.summary.dists.ttft_sched.at(0.95).unwrap_or(0.0);
    writeln!(
        out,
        "{dim}probe {:>12}  {:>5.1} % good of {:>5}, TTFT p95 {p99:.0} ms{state}, {verdict}{plain}",
        level.name,
        share * 100.0,
        level.planned
    )
}
