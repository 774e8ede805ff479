//! The HTML report: one file without scripts or anything fetched, light or dark as the reader's system is.

use super::{
    ROWS,
    explain::DEFINITIONS,
    figure,
    svg::{Chart, Mark, Series, escaped},
};
use crate::loadtest::{
    clock::{ms, seconds, whole},
    drive::Results,
    level::{Level, short},
    measure::{Figures, Metric},
    plan::LoadPlan,
    record::{Outcome, Record},
    search::Found,
    stats::Dist,
    summary::in_flight,
};

/// Most dots of a picture.
const DOTS: usize = 1500;
/// Requests in the waterfall.
const SLOWEST: usize = 14;
/// Bars of a histogram.
const BINS: usize = 48;

/// The page.
#[must_use]
pub fn page(results: &Results) -> String {
    let setup = &results.setup;
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\"><title>Load test of {}</title><style>{}</style></head><body><main>",
        escaped(&setup.target),
        include_str!("page.css")
    );
    let label = setup.label.as_ref().map_or_else(String::new, |label| format!(" &middot; {}", escaped(label)));
    add!(
        out,
        "<h1>Load test of {}</h1><p class=\"sub\">model {} &middot; {} &middot; seed {} &middot; {} UTC{label}</p>",
        escaped(&setup.target),
        escaped(&setup.model),
        setup.api.name(),
        setup.seed,
        setup.date
    );
    if let Some(found) = &results.found {
        add!(out, "<div class=\"box\"><b>{}</b></div>", escaped(&found.text()));
    }
    if results.levels.len() > 1 {
        out.push_str(&curves(results));
    }
    let many = results.levels.len() > 1;
    for (at, level) in results.levels.iter().enumerate() {
        let body = one(level, results);
        if many {
            let open = if at + 1 == results.levels.len() && results.found.is_none() { " open" } else { "" };
            add!(out, "<details{open}><summary>{}</summary>{body}</details>", escaped(&level.name));
        } else {
            out.push_str(&body);
        }
    }
    out.push_str(&definitions(results));
    out.push_str("</main></body></html>\n");
    out
}

/// The place of a level on the x axis.
fn place(level: &Level) -> f64 {
    match &level.load {
        LoadPlan::Open(pattern) if pattern.rate.is_finite() => pattern.rate,
        LoadPlan::Closed { users, .. } => *users as f64,
        LoadPlan::Trace { speed, .. } => *speed,
        LoadPlan::Open(_) => 0.0,
    }
}

fn series(name: &str, colour: usize, mark: Mark, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.to_owned(), colour, mark, points, bars: Vec::new() }
}

/// Latency, goodness and throughput against the level of load.
fn curves(results: &Results) -> String {
    let mut levels: Vec<&Level> = results.levels.iter().collect();
    levels.sort_by(|a, b| place(a).total_cmp(&place(b)));
    let closed = levels.iter().any(|level| matches!(level.load, LoadPlan::Closed { .. }));
    let x = if closed { "users" } else { "requests/s" };
    let band = results.found.as_ref().and_then(|found: &Found| found.low.zip(found.high));
    let along = |pick: &dyn Fn(&Level) -> Option<f64>| -> Vec<(f64, f64)> {
        levels.iter().filter_map(|level| Some((place(level), pick(level)?))).collect()
    };
    let quantile = |name: &str, colour: usize, p: f64, dist: fn(&Level) -> &Dist| {
        let mut made = series(name, colour, Mark::Line, along(&|level| dist(level).at(p)));
        made.bars = levels
            .iter()
            .filter_map(|level| dist(level).at(p).map(|value| dist(level).interval(p).unwrap_or((value, value))))
            .collect();
        made
    };
    let limit = |metric: Metric| {
        let of = results.levels.first().map(|_| &results.setup.objectives);
        let found = of.into_iter().flatten().filter(move |text| text.starts_with(metric.name()));
        let limits = found.filter_map(|text| {
            let value = text.split_once("<=")?.1.split(' ').next()?.parse().ok()?;
            Some((value, text.clone()))
        });
        limits.collect::<Vec<(f64, String)>>()
    };
    let chart = |y: &str, series: Vec<Series>, limits: Vec<(f64, String)>| {
        Chart { x: x.to_owned(), y: y.to_owned(), series, limits, band, log_x: true }.svg()
    };
    let ttft: fn(&Level) -> &Dist = |level| &level.summary.dists.ttft_sched;
    let tpot: fn(&Level) -> &Dist = |level| &level.summary.dists.tpot;
    let first = chart(
        "TTFT from schedule, ms",
        vec![quantile("p50", 1, 0.5, ttft), quantile("p95", 2, 0.95, ttft)],
        limit(Metric::Ttft),
    );
    let second =
        chart("TPOT, ms", vec![quantile("p50", 1, 0.5, tpot), quantile("p95", 2, 0.95, tpot)], limit(Metric::Tpot));
    let through = chart(
        "output tokens/s",
        vec![series("output", 1, Mark::Line, along(&|level| Some(level.summary.output_throughput())))],
        Vec::new(),
    );
    let mut good = series("good", 3, Mark::Line, along(&|level| level.summary.good.map(|one| one.share * 100.0)));
    good.bars =
        levels.iter().filter_map(|level| level.summary.good.map(|one| (one.low * 100.0, one.high * 100.0))).collect();
    let goal = vec![(results.setup.goal * 100.0, format!("goal {} %", short(results.setup.goal * 100.0)))];
    let good = chart("requests within the objectives, %", vec![good], goal);
    let mut out = "<h2>Capacity curve</h2><div class=\"grid2\">".to_owned();
    for (title, picture) in [
        ("Within the objectives", good),
        ("Time to first token", first),
        ("Time per output token", second),
        ("Throughput", through),
    ] {
        add!(out, "<figure><h3>{title}</h3>{picture}</figure>");
    }
    out.push_str("</div><p class=\"sub\">Bars are 95 % intervals; the band is the interval of the capacity.</p>");
    out
}

fn card(out: &mut String, value: &str, name: &str, class: &str) {
    add!(out, "<div class=\"card\"><b class=\"{class}\">{}</b><span>{}</span></div>", escaped(value), escaped(name));
}

/// One level: verdicts, table, pictures.
fn one(level: &Level, results: &Results) -> String {
    let summary = &level.summary;
    let mut out = format!("<h2>{}</h2><div class=\"cards\">", escaped(&level.name));
    let verdict = summary.judged.verdict.name();
    card(&mut out, verdict, "is this run to be trusted?", verdict);
    if let Some((share, objectives)) = summary.good.zip(summary.objectives) {
        let range = format!("{:.1} % good ({:.1}-{:.1})", share.share * 100.0, share.low * 100.0, share.high * 100.0);
        card(&mut out, objectives.name(), &range, objectives.name());
    }
    card(&mut out, &format!("{} / {}", summary.completed, level.planned), "requests whole", "");
    card(&mut out, &format!("{:.2}/s", summary.request_throughput()), "requests", "");
    card(&mut out, &format!("{:.0}/s", summary.output_throughput()), "output tokens", "");
    if let Some(goodput) = summary.goodput {
        card(&mut out, &format!("{goodput:.2}/s"), "goodput", "");
    }
    out.push_str("</div>");
    if !summary.judged.reasons.is_empty() {
        add!(out, "<p class=\"sub\">{}</p>", escaped(&summary.judged.reasons.join("; ")));
    }
    out.push_str(&table(level));
    out.push_str(&failures(level));
    out.push_str(&pictures(level, results));
    out.push_str(&waterfall(level));
    out
}

fn table(level: &Level) -> String {
    let mut out = "<div class=\"box wide\" style=\"margin-top:12px\"><table><tr><th>ms</th><th>mean</th><th>p50</th><th>p90</th><th>p95</th><th>p99</th><th>max</th><th>n</th></tr>".to_owned();
    for (key, name, pick) in ROWS {
        let dist = pick(level);
        if dist.n() == 0 {
            continue;
        }
        let mark = if *key == "itl" && level.summary.itl_estimated { " ~" } else { "" };
        let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), figure);
        add!(out, "<tr><td>{name}{mark}</td><td>{}</td>", cell(dist.mean()));
        for p in [0.5, 0.9, 0.95, 0.99] {
            let range = dist
                .interval(p)
                .map_or_else(String::new, |(low, high)| format!("<small>{}-{}</small>", figure(low), figure(high)));
            let (class, text) =
                if dist.carries(p) { ("", cell(dist.at(p))) } else { ("thin", format!("({})", cell(dist.at(p)))) };
            add!(out, "<td class=\"{class}\">{text}{range}</td>");
        }
        add!(out, "<td>{}</td><td>{}</td></tr>", cell(dist.max()), dist.n());
    }
    out.push_str("</table></div>");
    out
}

fn failures(level: &Level) -> String {
    let bad: Vec<String> = level
        .summary
        .outcomes
        .iter()
        .filter(|(outcome, _)| **outcome != Outcome::Ok)
        .map(|(outcome, count)| {
            let example = level.summary.examples.get(outcome).map_or("", String::as_str);
            format!(
                "<tr><td>{}</td><td>{count}</td><td style=\"text-align:left;white-space:normal\">{}</td></tr>",
                escaped(&format!("{outcome:?}")),
                escaped(example)
            )
        })
        .collect();
    if bad.is_empty() {
        return String::new();
    }
    format!("<h2>Requests that were not whole</h2><div class=\"box wide\"><table>{}</table></div>", bad.concat())
}

/// At most [`DOTS`] of them, evenly chosen.
fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let step = points.len().div_ceil(DOTS).max(1);
    points.into_iter().step_by(step).collect()
}

fn pictures(level: &Level, results: &Results) -> String {
    let rules = results.setup.rules;
    let over = |pick: &dyn Fn(&Record) -> Option<f64>| {
        thinned(level.records.iter().filter_map(|record| Some((seconds(record.intended), pick(record)?))).collect())
    };
    let time = |y: &str, series: Vec<Series>| {
        Chart { x: "seconds, by intended time".into(), y: y.into(), series, ..Chart::default() }.svg()
    };
    let first = over(&|record| Figures::of(record, rules).ttft_sched);
    let each = over(&|record| Figures::of(record, rules).tpot);
    let lag = over(&Record::send_lag);
    let read = over(&|record| record.read_lag.map(ms));
    let flight: Vec<(f64, f64)> = in_flight(&level.records).into_iter().map(|(at, n)| (at, n as f64)).collect();
    let queue: Vec<(f64, f64)> = over(&|record| Some(ms(record.cap_wait)).filter(|wait| *wait > 0.05));
    let step = flight.len().div_ceil(DOTS * 2).max(1);
    let flight = flight.into_iter().step_by(step).collect();
    let mut lags = vec![series("sending", 1, Mark::Dots, lag)];
    if !read.is_empty() {
        lags.push(series("reading (corrected)", 2, Mark::Dots, read));
    }
    let mut lag_chart =
        Chart { x: "seconds, by intended time".into(), y: "client's lag, ms".into(), series: lags, ..Chart::default() };
    lag_chart.limits = vec![(level.summary.judged.lag_limit_ms, "limit".into())];
    let mut all = vec![
        ("First token over time", time("TTFT from schedule, ms", vec![series("TTFT", 1, Mark::Dots, first)])),
        ("Time per token over time", time("TPOT, ms", vec![series("TPOT", 3, Mark::Dots, each)])),
        ("In flight", time("requests under way", vec![series("in flight", 4, Mark::Steps, flight)])),
        ("Client lag", lag_chart.svg()),
        ("Time to first token", histogram(&level.summary.dists.ttft_sched, "TTFT from schedule, ms")),
        ("Chunk gaps", histogram(&level.summary.dists.icl, "ms between chunks")),
    ];
    if !queue.is_empty() {
        all.push(("Wait for the cap", time("ms", vec![series("wait", 2, Mark::Dots, queue)])));
    }
    let mut out = "<div class=\"grid2\" style=\"margin-top:12px\">".to_owned();
    for (title, picture) in all {
        add!(out, "<figure><h3>{title}</h3>{picture}</figure>");
    }
    out.push_str("</div>");
    out
}

/// Counts over evenly spaced bins up to p99.5; what lies beyond is in the last.
fn histogram(dist: &Dist, x: &str) -> String {
    let (Some(low), Some(high)) = (dist.at(0.0), dist.at(0.995)) else { return Chart::default().svg() };
    let width = ((high - low) / BINS as f64).max(1e-3);
    let mut bins = [0.0; BINS];
    for value in dist.values() {
        let at = whole(((value - low) / width).floor()).min(BINS - 1);
        if let Some(bin) = bins.get_mut(at) {
            *bin += 1.0;
        }
    }
    let points = bins.iter().enumerate().map(|(at, count)| (low + (at as f64 + 0.5) * width, *count)).collect();
    Chart { x: x.into(), y: "count".into(), series: vec![series("count", 1, Mark::Bars, points)], ..Chart::default() }
        .svg()
}

/// The parts of the slowest requests, side by side.
fn waterfall(level: &Level) -> String {
    let mut slowest: Vec<&Record> = level.records.iter().filter(|record| record.outcome != Outcome::Unsent).collect();
    slowest.sort_by_key(|record| std::cmp::Reverse(record.ended.saturating_sub(record.intended)));
    slowest.truncate(SLOWEST);
    let Some(longest) = slowest.first().map(|record| ms(record.ended.saturating_sub(record.intended)).max(1e-6)) else {
        return String::new();
    };
    let (row, left, width) = (20.0, 92.0, 1000.0);
    let mut out = format!(
        "<h2>Slowest requests</h2><figure><svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"waterfall of the slowest requests\">",
        left + width + 80.0,
        slowest.len() as f64 * row
    );
    for (at, record) in slowest.iter().enumerate() {
        let y = at as f64 * row;
        let since = |time: u64| ms(time.saturating_sub(record.intended)) / longest * width;
        let wire = record.written.unwrap_or(record.ended);
        let first = record.first_token().unwrap_or(record.ended);
        let last = record.last_token().unwrap_or(first);
        let parts = [
            (record.intended, record.started, 5),
            (record.started, wire, 4),
            (wire, record.head.unwrap_or(first).min(first), 2),
            (record.head.unwrap_or(first).min(first), first, 3),
            (first, last, 1),
        ];
        add!(out, "<text x=\"0\" y=\"{:.0}\">#{} turn {}</text>", y + 14.0, record.index, record.turn + 1);
        for (from, to, colour) in parts {
            let (from, to) = (since(from), since(to));
            if to > from {
                add!(
                    out,
                    "<rect class=\"f{colour}\" x=\"{:.1}\" y=\"{:.0}\" width=\"{:.1}\" height=\"13\"/>",
                    left + from,
                    y + 3.0,
                    to - from
                );
            }
        }
        let total = ms(record.ended.saturating_sub(record.intended));
        add!(
            out,
            "<text x=\"{:.1}\" y=\"{:.0}\">{} ms</text>",
            left + since(record.ended) + 6.0,
            y + 14.0,
            figure(total)
        );
    }
    out.push_str("</svg><p class=\"legend\">");
    for (colour, name) in [
        (5, "waited for its turn"),
        (4, "connect and write"),
        (2, "until the head"),
        (3, "until the first token"),
        (1, "stream"),
    ] {
        add!(out, "<span><i class=\"b{colour}\"></i>{name}</span>");
    }
    out.push_str("</p></figure>");
    out
}

fn definitions(results: &Results) -> String {
    let facts = &results.setup.facts;
    let mut out = "<h2>Definitions</h2><div class=\"box\"><dl>".to_owned();
    for (name, meaning) in DEFINITIONS {
        add!(out, "<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(meaning));
    }
    add!(
        out,
        "</dl></div><h2>The client's machine</h2><div class=\"box\"><dl><dt>CPU</dt><dd>{} x {}</dd><dt>memory</dt><dd>{} GiB</dd><dt>kernel</dt><dd>{}</dd>",
        facts.cpus,
        escaped(&facts.cpu_model),
        facts.memory_gib,
        escaped(&facts.kernel)
    );
    if let Some(level) = results.levels.last() {
        let host = &level.summary.host;
        let percent =
            |value: Option<f64>| value.map_or_else(|| "unknown".to_owned(), |value| format!("{:.1} %", value * 100.0));
        add!(
            out,
            "<dt>CPU used</dt><dd>{}</dd><dt>waited for a CPU</dt><dd>{}</dd><dt>CPU pressure</dt><dd>{}</dd><dt>stolen</dt><dd>{}</dd>",
            percent(host.cpu_used),
            percent(host.run_queue_wait),
            percent(host.cpu_pressure),
            percent(host.steal)
        );
    }
    out.push_str("</dl></div>");
    if let Some(server) = &results.server {
        add!(
            out,
            "<h2>The server's own figures</h2><div class=\"box wide\"><pre>{}</pre></div>",
            escaped(server.text().trim())
        );
    }
    out
}
