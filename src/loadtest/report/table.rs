//! The terminal's report: verdict first, 80 columns.

use super::{ROWS, Setup, figure};
use crate::loadtest::{
    level::{Level, short},
    record::Outcome,
    stats::Dist,
    verdict::{Objectives, Validity},
};

/// Percentiles shown.
const PERCENTILES: [f64; 4] = [0.5, 0.9, 0.95, 0.99];
/// Metrics whose intervals are shown below them.
const WITH_INTERVALS: [&str; 3] = ["ttft_sched", "tpot", "e2el_sched"];

/// Words that may be coloured.
#[derive(Debug, Clone, Copy)]
pub struct Ink {
    /// The output is a terminal.
    pub colour: bool,
}

impl Ink {
    fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    fn validity(self, verdict: Validity) -> String {
        let code = match verdict {
            Validity::Valid => "32",
            Validity::Degraded => "33",
            Validity::Invalid => "31;1",
        };
        self.paint(code, &verdict.name().to_uppercase())
    }

    fn objectives(self, objectives: Objectives) -> String {
        let code = match objectives {
            Objectives::Pass => "32;1",
            Objectives::Missed => "31;1",
            Objectives::Undecided => "33;1",
        };
        self.paint(code, &objectives.name().to_uppercase())
    }
}

/// One line on what was done to what.
#[must_use]
pub fn head(setup: &Setup) -> String {
    let api = setup.api.name();
    let text = format!("{}  model {}  {api}  seed {}", setup.target, setup.model, setup.seed);
    text.chars().take(80).collect()
}

/// The report of one level.
#[must_use]
pub fn level(level: &Level, setup: &Setup, ink: Ink) -> String {
    let mut out = String::new();
    let summary = &level.summary;
    let write = |out: &mut String, line: &str| {
        out.push_str(line);
        out.push('\n');
    };
    write(&mut out, &head(setup));
    write(&mut out, &verdict(level, setup, ink));
    for reason in &summary.judged.reasons {
        write(&mut out, &format!("         {}", clip(reason, 71)));
    }
    if let Some(stopped) = summary.stopped {
        write(&mut out, &format!("stopped early: {stopped}"));
    }
    out.push('\n');
    write(
        &mut out,
        &format!("{:<20}{:>9}{:>10}{:>10}{:>10}{:>10}{:>10}", "ms", "mean", "p50", "p90", "p95", "p99", "max"),
    );
    for (key, name, pick) in ROWS {
        let dist = pick(level);
        let estimated = *key == "itl" && summary.itl_estimated;
        let name = if estimated { format!("{name} ~") } else { (*name).to_owned() };
        if dist.n() > 0 {
            write(&mut out, &row(&name, dist, ink));
        }
        if dist.n() > 0 && WITH_INTERVALS.contains(key) && dist.carries(0.5) {
            write(&mut out, &ink.dim(&intervals(dist)));
        }
    }
    out.push('\n');
    out.push_str(&load(level));
    out.push_str(&errors(level));
    for tenant in &summary.tenants {
        let good = tenant.good.map_or_else(String::new, |share| format!(", {:.1} % good", share.share * 100.0));
        let p = |p: f64| tenant.ttft.at(p).map_or_else(|| "-".to_owned(), figure);
        let name = clip(&tenant.name, 20);
        write(
            &mut out,
            &format!("tenant   {name}: {} requests, TTFT p50 {} p99 {}{good}", tenant.requests, p(0.5), p(0.99)),
        );
    }
    out
}

fn clip(text: &str, most: usize) -> String {
    let clean: String = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    if clean.chars().count() <= most { clean } else { clean.chars().take(most - 1).chain(['…']).collect() }
}

fn verdict(level: &Level, setup: &Setup, ink: Ink) -> String {
    let summary = &level.summary;
    let mut out = format!(
        "{}  {}, {} of {} requests whole in {:.1} s",
        ink.validity(summary.judged.verdict),
        level.name,
        summary.completed,
        level.planned,
        summary.duration
    );
    if let (Some(share), Some(objectives)) = (summary.good, summary.objectives) {
        let (low, high) = (share.low * 100.0, share.high * 100.0);
        let words = setup.objectives.join(" ");
        add!(
            out,
            "\n{}  {:.1} % within {words}\n         95 % interval {low:.1}-{high:.1} %, goal {} %, goodput {:.2} requests/s",
            ink.objectives(objectives),
            share.share * 100.0,
            short(setup.goal * 100.0),
            summary.goodput.unwrap_or(0.0)
        );
    }
    out
}

fn row(name: &str, dist: &Dist, ink: Ink) -> String {
    let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), figure);
    let mut line = format!("{name:<20}{:>9}", cell(dist.mean()));
    for p in PERCENTILES {
        let text = cell(dist.at(p));
        if dist.carries(p) {
            add!(line, "{text:>10}");
        } else {
            line.push_str(&ink.dim(&format!("{:>10}", format!("({text})"))));
        }
    }
    add!(line, "{:>10}", cell(dist.max()));
    line
}

fn intervals(dist: &Dist) -> String {
    let mut line = format!("{:<29}", "  95 % interval");
    for p in PERCENTILES {
        let text = dist.interval(p).map_or_else(String::new, |(low, high)| range(low, high));
        add!(line, "{text:>10}");
    }
    line.trim_end().to_owned()
}

/// An interval of at most nine letters: in seconds where milliseconds would be longer.
fn range(low: f64, high: f64) -> String {
    match high {
        high if high >= 10_000.0 => format!("{:.0}-{:.0}s", low / 1e3, high / 1e3),
        high if high >= 1000.0 => format!("{:.1}-{:.1}s", low / 1e3, high / 1e3),
        high if high >= 100.0 => format!("{low:.0}-{high:.0}"),
        high => format!("{low:.1}-{high:.1}"),
    }
}

fn load(level: &Level) -> String {
    let summary = &level.summary;
    let mut out = String::new();
    if let Some((sent, cv)) = summary.arrivals.1 {
        let planned = summary.arrivals.0.map_or_else(String::new, |rate| format!(" of {rate:.2} planned"));
        addln!(
            out,
            "load     {sent:.2} sent/s{planned}, gap CV {cv:.2}, at most {} in flight",
            summary.peak_concurrency
        );
    }
    let tokens = summary.input_tokens + summary.output_tokens;
    addln!(
        out,
        "through  {:.2} requests/s, {:.0} output tok/s, {:.0} tok/s in all, peak {:.0}/s",
        summary.request_throughput(),
        summary.output_throughput(),
        tokens as f64 / summary.duration.max(1e-9),
        summary.peak_tokens
    );
    let cached = if summary.cached_tokens > 0 { format!(", {} cached", summary.cached_tokens) } else { String::new() };
    let missing = if summary.usage_missing > 0 {
        format!(", {} answers without usage: chunks counted", summary.usage_missing)
    } else {
        String::new()
    };
    addln!(out, "tokens   {} in{cached}, {} out{missing}", summary.input_tokens, summary.output_tokens);
    let lag = |dist: &Dist| dist.at(0.99).map_or_else(|| "-".to_owned(), figure);
    let (send, read) = (lag(&summary.dists.send_lag), lag(&summary.dists.read_lag));
    addln!(
        out,
        "client   send lag p99 {send} ms, read lag p99 {read} ms (limit {}), {} stalls",
        figure(summary.judged.lag_limit_ms),
        summary.stalls
    );
    if summary.dists.cap_wait.max().is_some_and(|wait| wait > 1.0) {
        addln!(
            out,
            "cap      waited p50 {} p99 {} ms",
            lag_at(&summary.dists.cap_wait, 0.5),
            lag(&summary.dists.cap_wait)
        );
    }
    if summary.probes.n() > 0 {
        let probes = &summary.probes;
        let (p50, p99) = (lag_at(probes, 0.5), lag(probes));
        addln!(out, "canaries {} of one token, TTFT p50 {p50} p99 {p99} ms", probes.n());
    }
    out
}

fn lag_at(dist: &Dist, p: f64) -> String {
    dist.at(p).map_or_else(|| "-".to_owned(), figure)
}

fn errors(level: &Level) -> String {
    let mut out = String::new();
    for (outcome, count) in level.summary.outcomes.iter().filter(|(outcome, _)| **outcome != Outcome::Ok) {
        let name =
            serde_json::to_value(outcome).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default();
        let example = level.summary.examples.get(outcome).map_or_else(String::new, |text| format!(": {text}"));
        addln!(out, "{}", clip(&format!("{name:<8} {count} requests{example}"), 80));
    }
    out
}

/// The levels of a sweep below each other.
#[must_use]
pub fn sweep(levels: &[Level], ink: Ink) -> String {
    let mut out = format!(
        "\n{:<11}{:>7}{:>9}{:>9}{:>9}{:>9}{:>9}{:>8}  {}\n",
        "level", "sent/s", "TTFT50", "TTFT99", "TPOT50", "TPOT99", "tok/s", "good %", "run"
    );
    for level in levels {
        let summary = &level.summary;
        let at = |dist: &Dist, p: f64| {
            let text = dist.at(p).map_or_else(|| "-".to_owned(), figure);
            if dist.carries(p) { text } else { format!("({text})") }
        };
        let good = summary.good.map_or_else(|| "-".to_owned(), |share| format!("{:.1}", share.share * 100.0));
        let sent = summary.arrivals.1.map_or_else(|| "-".to_owned(), |(rate, _)| format!("{rate:.2}"));
        addln!(
            out,
            "{:<11}{sent:>7}{:>9}{:>9}{:>9}{:>9}{:>9.0}{good:>8}  {}",
            clip(&level.name, 11),
            at(&summary.dists.ttft_sched, 0.5),
            at(&summary.dists.ttft_sched, 0.99),
            at(&summary.dists.tpot, 0.5),
            at(&summary.dists.tpot, 0.99),
            summary.output_throughput(),
            ink.validity(summary.judged.verdict),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_fits_its_column_whatever_its_size() {
        for (low, high) in
            [(0.1, 0.2), (99.9, 100.1), (34.7, 38.0), (998.0, 1105.0), (9800.0, 9990.0), (20_122.0, 120_210.0)]
        {
            let text = range(low, high);
            assert!(text.chars().count() <= 9, "{text}");
        }
    }
}
