//! Samples of one scrape.

/// A parsed metrics page.
pub(crate) struct Samples(Vec<(String, f64)>);

impl Samples {
    pub(super) fn parse(page: &str) -> Self {
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        let samples = lines.filter_map(|line| line.rsplit_once(' '));
        Self(samples.filter_map(|(series, value)| Some((series.to_owned(), value.parse().ok()?))).collect())
    }

    fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a (String, f64)> {
        self.0.iter().filter(move |(series, _)| series.split('{').next() == Some(name))
    }

    /// Sum over the series of a metric whose labels match.
    pub(crate) fn total(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let matching = self
            .of(name)
            .filter(|(series, _)| labels.iter().all(|(label, value)| series.contains(&format!("{label}=\"{value}\""))));
        matching.map(|(_, value)| value).sum()
    }

    /// Number of series on the page.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The series of one metric, for messages.
    pub(crate) fn series(&self, name: &str) -> String {
        let series: Vec<String> = self.of(name).map(|(series, value)| format!("{series} {value}")).collect();
        series.join("; ")
    }
}

#[test]
fn series_are_summed_by_label() {
    let samples =
        Samples::parse("# TYPE a counter\na{x=\"1\",y=\"2\"} 3\na{x=\"1\",y=\"3\"} 4.5\na_sum 9\nab{x=\"1\"} 7\n");

    assert!((samples.total("a", &[("x", "1")]) - 7.5).abs() < 1e-9);
    assert!((samples.total("a", &[("y", "3")]) - 4.5).abs() < 1e-9);
    assert!(samples.total("b", &[]).abs() < 1e-9);
}
