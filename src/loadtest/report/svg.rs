//! Small charts as inline SVG; colours come from the page's style sheet.

/// Size of a chart.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 240.0;
/// Room for labels: left, right, top, bottom.
const LEFT: f64 = 58.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 34.0;

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Dots.
    Dots,
    /// A line with dots.
    Line,
    /// Steps.
    Steps,
    /// Bars from the axis.
    Bars,
}

/// One series.
#[derive(Debug, Clone)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Number of its colour, from 1.
    pub colour: usize,
    /// How it is drawn.
    pub mark: Mark,
    /// Points.
    pub points: Vec<(f64, f64)>,
    /// Interval of each point; empty for none.
    pub bars: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Debug, Clone, Default)]
pub struct Chart {
    /// Label of the x axis.
    pub x: String,
    /// Label of the y axis.
    pub y: String,
    /// Series.
    pub series: Vec<Series>,
    /// Horizontal limits with a name.
    pub limits: Vec<(f64, String)>,
    /// A band on the x axis.
    pub band: Option<(f64, f64)>,
    /// Logarithmic x axis.
    pub log_x: bool,
}

/// Text that may stand in HTML.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Even numbers on an axis up to about `most`.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let span = (high - low).max(1e-9);
    let raw = span / 5.0;
    let power = 10_f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|one| one * power).find(|step| *step >= raw).unwrap_or(raw);
    let first = (low / step).ceil();
    (0..12).map(|at| (first + f64::from(at)) * step).take_while(|tick| *tick <= high + step * 1e-6).collect()
}

fn label(value: f64) -> String {
    let text = if value.abs() >= 100.0 || value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Where values lie on the picture.
struct Scale {
    x: (f64, f64),
    y: (f64, f64),
    log_x: bool,
}

impl Scale {
    fn of(chart: &Chart) -> Option<Self> {
        let points = || chart.series.iter().flat_map(|series| series.points.iter());
        let of_x = |value: f64| if chart.log_x { value.max(1e-9).ln() } else { value };
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for (x, _) in points() {
            (low, high) = (low.min(of_x(*x)), high.max(of_x(*x)));
        }
        if !low.is_finite() {
            return None;
        }
        let ends = chart.series.iter().flat_map(|series| series.bars.iter().map(|bar| bar.1));
        let limits = chart.limits.iter().map(|limit| limit.0);
        let top = points().map(|point| point.1).chain(ends).fold(0.0, f64::max);
        // A limit far above everything would flatten the picture.
        let top = limits.filter(|limit| *limit < top * 3.0).fold(top, f64::max);
        let pad = if high > low { 0.0 } else { 0.5 };
        Some(Self { x: (low - pad, high + pad), y: (0.0, (top * 1.05).max(1e-6)), log_x: chart.log_x })
    }

    fn px(&self, x: f64) -> f64 {
        let x = if self.log_x { x.max(1e-9).ln() } else { x };
        LEFT + (x - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - LEFT - RIGHT)
    }

    fn py(&self, y: f64) -> f64 {
        TOP + (1.0 - ((y - self.y.0) / (self.y.1 - self.y.0)).min(1.0)) * (HEIGHT - TOP - BOTTOM)
    }
}

impl Chart {
    /// The picture; a sentence where there is nothing to draw.
    #[must_use]
    pub fn svg(&self) -> String {
        let Some(scale) = Scale::of(self) else { return "<p class=\"none\">nothing to show</p>".to_owned() };
        let mut out =
            format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">", escaped(&self.y));
        if let Some((from, to)) = self.band {
            let (from, to) = (scale.px(from).max(LEFT), scale.px(to).min(WIDTH - RIGHT));
            let (width, height) = ((to - from).max(2.0), HEIGHT - TOP - BOTTOM);
            add!(out, "<rect class=\"band\" x=\"{from:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{height}\"/>");
        }
        self.axes(&scale, &mut out);
        for series in &self.series {
            draw(series, &scale, &mut out);
        }
        for (value, name) in self.limits.iter().filter(|limit| limit.0 <= scale.y.1) {
            let (y, x) = (scale.py(*value), WIDTH - RIGHT);
            add!(
                out,
                "<line class=\"limit\" x1=\"{LEFT}\" x2=\"{x}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text class=\"limit\" x=\"{x}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                y - 4.0,
                escaped(name)
            );
        }
        out.push_str("</svg>");
        if self.series.len() > 1 {
            out.push_str("<p class=\"legend\">");
            for series in &self.series {
                add!(out, "<span><i class=\"b{}\"></i>{}</span>", series.colour, escaped(&series.name));
            }
            out.push_str("</p>");
        }
        out
    }

    fn axes(&self, scale: &Scale, out: &mut String) {
        let bottom = HEIGHT - BOTTOM;
        for tick in ticks(scale.y.0, scale.y.1) {
            let y = scale.py(tick);
            add!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0,
                label(tick)
            );
        }
        let marks: Vec<f64> = if self.log_x {
            let mut all: Vec<f64> =
                self.series.iter().flat_map(|series| series.points.iter().map(|one| one.0)).collect();
            all.sort_by(f64::total_cmp);
            all.dedup_by(|b, a| scale.px(*b) - scale.px(*a) < 36.0);
            all
        } else {
            ticks(scale.x.0, scale.x.1)
        };
        for tick in marks {
            add!(
                out,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                scale.px(tick),
                bottom + 15.0,
                label(tick)
            );
        }
        let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
        add!(
            out,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{bottom}\" y2=\"{bottom}\"/><text class=\"name\" x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text><text class=\"name\" transform=\"translate(12 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            WIDTH - RIGHT,
            HEIGHT - 4.0,
            escaped(&self.x),
            f64::midpoint(TOP, bottom),
            escaped(&self.y)
        );
    }
}

fn draw(series: &Series, scale: &Scale, out: &mut String) {
    let colour = series.colour;
    let at: Vec<(f64, f64)> = series.points.iter().map(|(x, y)| (scale.px(*x), scale.py(*y))).collect();
    for ((x, _), (low, high)) in at.iter().zip(&series.bars) {
        let (low, high) = (scale.py(*low), scale.py(*high));
        add!(out, "<line class=\"s{colour} bar\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\"/>");
    }
    let path = |steps: bool| {
        let mut path = String::new();
        let mut last = None;
        for (x, y) in &at {
            match last {
                None => {
                    add!(path, "M{x:.1} {y:.1}");
                }
                Some(_) if steps => {
                    add!(path, "H{x:.1}V{y:.1}");
                }
                Some(()) => {
                    add!(path, "L{x:.1} {y:.1}");
                }
            }
            last = Some(());
        }
        path
    };
    match series.mark {
        Mark::Line | Mark::Steps => {
            add!(out, "<path class=\"s{colour} line\" d=\"{}\"/>", path(series.mark == Mark::Steps));
        }
        Mark::Bars => {
            let width = ((WIDTH - LEFT - RIGHT) / at.len().max(1) as f64 - 1.0).max(1.0);
            for (x, y) in &at {
                let (left, height) = ((x - width / 2.0).max(LEFT), HEIGHT - BOTTOM - y);
                add!(
                    out,
                    "<rect class=\"f{colour}\" x=\"{left:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
                );
            }
        }
        Mark::Dots => {}
    }
    if matches!(series.mark, Mark::Dots | Mark::Line) {
        let radius = if series.mark == Mark::Dots { 1.8 } else { 3.0 };
        for (x, y) in &at {
            add!(out, "<circle class=\"f{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"/>");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(ticks(0.0, 10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(0.0, 0.42).len(), 5);
    }

    #[test]
    fn a_point_lies_where_its_value_says_and_text_is_escaped() {
        let series = Series {
            name: "<a>".into(),
            colour: 1,
            mark: Mark::Line,
            points: vec![(0.0, 0.0), (10.0, 100.0)],
            bars: Vec::new(),
        };
        let chart = Chart { x: "x".into(), y: "a<b".into(), series: vec![series], ..Chart::default() };
        let svg = chart.svg();
        // The first point is the origin of the axes: left, and bottom.
        assert!(svg.contains("cx=\"58.0\" cy=\"206.0\"") && svg.contains("a&lt;b"), "{svg}");
        assert!(Chart::default().svg().contains("nothing to show"));
    }
}
