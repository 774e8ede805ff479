//! The few samples of a metrics page that matter.
//!
//! A page has 50 to 140 KB and one odd line fails a whole-document parser, so lines are picked by name first and each is
//! parsed alone; what does not parse is counted. Names keep their colons: a parser that drops them reads nothing of any
//! engine.
//! Source: STYLE.md section 3 on `nom-openmetrics` and `prometheus-parse`; captures/*/metrics.

use nom_openmetrics::parser::family;

/// One sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    name: &'static str,
    labels: Vec<(Box<str>, Box<str>)>,
    /// Its value, finite.
    pub value: f64,
}

impl Sample {
    /// Value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(key, _)| &**key == name).map(|(_, value)| &**value)
    }

    /// Whether a label is missing or has this value.
    #[must_use]
    pub fn label_is(&self, name: &str, value: &str) -> bool {
        self.label(name).is_none_or(|have| have == value)
    }
}

/// The wanted samples of one page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples {
    samples: Vec<Sample>,
    rejected: u32,
}

impl Samples {
    /// Reads the samples whose name (as on the wire, `_total` included) is wanted.
    #[must_use]
    pub fn parse(page: &[u8], wanted: &'static [&'static str]) -> Self {
        let mut found = Self::default();
        for line in page.split(|&byte| byte == b'\n') {
            let Some(name) = name_of(line) else { continue };
            let Some(name) = wanted.iter().find(|want| want.as_bytes() == name) else { continue };
            match parse_line(line, name) {
                Some(sample) => found.samples.push(sample),
                None => found.rejected = found.rejected.saturating_add(1),
            }
        }
        found
    }

    /// Wanted lines that could not be read, or had no finite value.
    #[must_use]
    pub fn rejected(&self) -> u32 {
        self.rejected
    }

    /// Samples of one name.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Sample> + 'a {
        self.samples.iter().filter(move |sample| sample.name == name)
    }

    /// Sum over all samples of a name (engines of a data-parallel server, label values); `None` without any.
    #[must_use]
    pub fn sum(&self, name: &str) -> Option<f64> {
        total(self.named(name)).map(|(sum, _)| sum)
    }

    /// Sum of the first of these names that is there: the same thing under its names of several releases.
    #[must_use]
    pub fn sum_any(&self, names: &[&str]) -> Option<f64> {
        names.iter().find_map(|name| self.sum(name))
    }

    /// Mean over all samples of the first of these names that is there.
    #[must_use]
    pub fn mean_any(&self, names: &[&str]) -> Option<f64> {
        names.iter().find_map(|name| mean(self.named(name)))
    }
}

/// Sum and number of samples.
pub(super) fn total<'a>(samples: impl Iterator<Item = &'a Sample>) -> Option<(f64, u32)> {
    let (sum, number) = samples.fold((0.0, 0_u32), |(sum, number), sample| (sum + sample.value, number + 1));
    (number > 0).then_some((sum, number))
}

/// Mean of samples.
pub(super) fn mean<'a>(samples: impl Iterator<Item = &'a Sample>) -> Option<f64> {
    total(samples).map(|(sum, number)| sum / f64::from(number))
}

/// Name of the sample on a line; `None` for comments and blank lines.
fn name_of(line: &[u8]) -> Option<&[u8]> {
    if line.first().is_none_or(|&byte| byte == b'#') {
        return None;
    }
    let end = line.iter().position(|&byte| matches!(byte, b'{' | b' ' | b'\t' | b'\r'))?;
    line.get(..end)
}

fn parse_line(line: &[u8], name: &'static str) -> Option<Sample> {
    let line = std::str::from_utf8(line).ok()?.trim_end();
    let parsed = parse_text(line).or_else(|| {
        // `name value timestamp`: the parser knows no timestamps.
        let (without, stamp) = line.rsplit_once([' ', '\t'])?;
        stamp.parse::<f64>().ok()?;
        parse_text(without.trim_end())
    })?;
    let (labels, value) = parsed;
    value.is_finite().then_some(Sample { name, labels, value })
}

type Labels = Vec<(Box<str>, Box<str>)>;

fn parse_text(line: &str) -> Option<(Labels, f64)> {
    let text = format!("{line}\n");
    let (rest, family) = family(&text).ok()?;
    let sample = family.samples.first()?;
    if !rest.is_empty() {
        return None;
    }
    let labels = sample.labels().iter().map(|label| (label.name.into(), label.value.as_str().into())).collect();
    Some((labels, sample.number()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: &[&str] = &["a:b", "plain", "c_total"];

    fn parse(page: &str) -> Samples {
        Samples::parse(page.as_bytes(), WANTED)
    }

    #[test]
    fn names_with_colons_are_read_and_only_whole_names_match() {
        let samples =
            parse("# HELP a:b x\n# TYPE a:b gauge\na:b{x=\"1\"} 2.0\na:b{x=\"2\"} 3\na:bc 9\na:b_created 9\n");

        assert_eq!(samples.sum("a:b"), Some(5.0));
        assert_eq!(samples.mean_any(&["none", "a:b"]), Some(2.5));
        assert_eq!(samples.sum("plain"), None, "missing is not zero");
        assert_eq!(samples.rejected(), 0);
    }

    #[test]
    fn odd_lines_are_counted_and_do_not_spoil_the_others() {
        let samples =
            parse("plain\nplain x\nplain{a=\"1} 2\nplain NaN\nplain +Inf\n\u{7}\nplain 7\nc_total 1e3\r\nplain \n");

        assert_eq!(samples.sum("plain"), Some(7.0));
        assert_eq!(samples.sum("c_total"), Some(1000.0));
        assert_eq!(samples.rejected(), 5);
    }

    #[test]
    fn labels_may_hold_anything_and_a_time_stamp_may_follow() {
        let samples = parse("a:b{x=\"}, \\\" {\",y=\"é\"} 4 1700000000000\nplain 5 12\n");

        let sample = samples.named("a:b").next().unwrap();
        assert_eq!((sample.label("x"), sample.label("y")), (Some("}, \" {"), Some("é")));
        assert!((sample.value - 4.0).abs() < f64::EPSILON);
        assert_eq!(samples.sum("plain"), Some(5.0));
    }

    #[test]
    fn bytes_that_are_no_text_are_no_page() {
        assert_eq!(Samples::parse(&[0xff, 0xfe, b'\n', b'{'], WANTED), Samples::default());
        assert_eq!(Samples::parse(b"", WANTED), Samples::default());
        assert_eq!(Samples::parse(b"plain \xff\n", WANTED).rejected(), 1);
    }
}
