//! A chart of the runs as SVG: the distribution of the time to first token, one line a policy.

use std::fmt::Write;

use super::Report;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 60.0;
const BOTTOM: f64 = 50.0;
const TOP: f64 = 40.0;
const RIGHT: f64 = 20.0;
/// Points of a line.
const POINTS: usize = 200;
/// Distinct with the common kinds of colour blindness (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];

/// The share of requests whose first token came within a time, on a logarithmic axis.
#[must_use]
pub fn svg(reports: &[Report], hit_rate_bound: f64) -> String {
    let all = || reports.iter().flat_map(|report| report.ttft.iter().copied());
    let low = all().fold(f64::INFINITY, f64::min).clamp(0.001, 1e3).log10().floor();
    let high = all().fold(0.0, f64::max).clamp(0.01, 1e6).log10().ceil().max(low + 1.0);
    let x = |seconds: f64| LEFT + (seconds.max(1e-9).log10() - low) / (high - low) * (WIDTH - LEFT - RIGHT);
    let y = |share: f64| HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let mut put = |line: std::fmt::Arguments<'_>| out.write_fmt(line).and_then(|()| out.write_char('\n')).is_ok();
    put(format_args!(
        "<text x=\"{LEFT}\" y=\"22\" font-size=\"14\">Requests whose first token came within a time \
         (hit rate bound {:.1} %)</text>",
        100.0 * hit_rate_bound
    ));
    for step in 0..=4 {
        let share = f64::from(step) / 4.0;
        let at = y(share);
        put(format_args!(
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" \
             text-anchor=\"end\">{:.0} %</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            100.0 * share
        ));
    }
    let mut power = low;
    while power <= high {
        let seconds = 10_f64.powf(power);
        let at = x(seconds);
        put(format_args!(
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" \
             y=\"{}\" text-anchor=\"middle\">{seconds} s</text>",
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 18.0
        ));
        power += 1.0;
    }
    for (report, (place, colour)) in reports.iter().zip(COLOURS.iter().cycle().enumerate()) {
        let points: Vec<String> =
            curve(&report.ttft).map(|(s, share)| format!("{:.1},{:.1}", x(s), y(share))).collect();
        let at = TOP + 16.0 + 18.0 * place as f64;
        put(format_args!(
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" points=\"{}\"/>",
            points.join(" ")
        ));
        put(format_args!(
            "<text x=\"{}\" y=\"{at:.1}\" fill=\"{colour}\">{}: p90 {:.3} s, hit rate {:.1} %</text>",
            LEFT + 10.0,
            report.policy,
            report.ttft_p90_s,
            100.0 * report.hit_rate
        ));
    }
    out.push_str("</svg>\n");
    out
}

/// Times and the share of requests within each.
fn curve(sorted: &[f64]) -> impl Iterator<Item = (f64, f64)> + '_ {
    let count = sorted.len();
    (0..=POINTS).filter_map(move |point| {
        let rank = (point * count / POINTS).max(1);
        Some((*sorted.get(rank - 1)?, rank as f64 / count as f64))
    })
}
