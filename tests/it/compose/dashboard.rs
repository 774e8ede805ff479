//! Every name and label in the dashboard's expressions is one of the gateway's metrics, and every metric is shown.

use std::collections::BTreeSet;

use gateway::telemetry::{METRICS, MetricDef, MetricKind};
use serde_json::Value;

use super::text;

/// Labels that Prometheus itself adds.
const SCRAPED: [&str; 2] = ["job", "instance"];
/// The words of `PromQL` that the dashboard may use.
const WORDS: [&str; 11] =
    ["sum", "max", "count", "rate", "histogram_quantile", "by", "on", "group_left", "label_values", "model", "le"];

/// The row of a series name, with whether it has the label `le`.
fn metric(series: &str) -> Option<(&'static MetricDef, bool)> {
    let exact = |name: &str| METRICS.iter().find(|metric| metric.name == name);
    for (suffix, bucket) in [("_bucket", true), ("_sum", false), ("_count", false)] {
        if let Some(found) = series.strip_suffix(suffix).and_then(exact) {
            return matches!(found.kind, MetricKind::Histogram(_)).then_some((found, bucket));
        }
    }
    exact(series).filter(|metric| !matches!(metric.kind, MetricKind::Histogram(_))).map(|metric| (metric, false))
}

/// What an expression says: its words and the text in each pair of braces or brackets.
#[derive(Debug, Default)]
struct Expression<'a> {
    words: Vec<&'a str>,
    /// Series with the labels that are matched.
    series: Vec<(&'a str, Vec<&'a str>)>,
    /// Labels in `by (...)`.
    grouped: Vec<&'a str>,
}

/// The text without its first character.
fn behind(text: &str) -> &str {
    let mut letters = text.chars();
    letters.next();
    letters.as_str()
}

fn is_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_' || letter == ':'
}

fn read(expression: &str) -> Expression<'_> {
    let mut read = Expression::default();
    let mut rest = expression;
    while let Some(letter) = rest.chars().next() {
        if letter == '[' || letter == '"' {
            let close = if letter == '[' { ']' } else { '"' };
            rest = behind(rest).split_once(close).map_or("", |(_, after)| after);
        } else if letter.is_ascii_alphabetic() || letter == '_' {
            let end = rest.find(|letter| !is_word(letter)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            rest = after;
            if word.starts_with("gateway_") {
                let labels = rest.strip_prefix('{').and_then(|inner| inner.split_once('}'));
                rest = labels.map_or(rest, |(_, after)| after);
                let matched = labels.map_or("", |(inner, _)| inner).split(',').filter(|part| !part.is_empty());
                read.series.push((word, matched.filter_map(|part| part.split(['=', '!']).next()).collect()));
            } else if word == "by" {
                let (inside, after) = behind(rest.trim_start()).split_once(')').unwrap();
                rest = after;
                read.grouped.extend(inside.split(',').map(str::trim).filter(|label| !label.is_empty()));
            } else {
                read.words.push(word);
            }
        } else {
            rest = behind(rest);
        }
    }
    read
}

/// What is wrong with an expression and the legend of its series.
fn problems(expression: &str, legend: &str) -> Vec<String> {
    let read = read(expression);
    let mut problems = Vec::new();
    let mut labels: BTreeSet<&str> = SCRAPED.into();
    for word in read.words.iter().filter(|word| !WORDS.contains(word)) {
        problems.push(format!("unknown word {word}"));
    }
    if read.series.is_empty() {
        problems.push("no metric".to_owned());
    }
    for (series, matched) in &read.series {
        let Some((metric, bucket)) = metric(series) else {
            problems.push(format!("unknown series {series}"));
            continue;
        };
        let known =
            |label: &&str| metric.labels.contains(label) || SCRAPED.contains(label) || (bucket && *label == "le");
        labels.extend(metric.labels);
        labels.extend(bucket.then_some("le"));
        problems
            .extend(matched.iter().filter(|label| !known(label)).map(|label| format!("{series} has no label {label}")));
    }
    let legend = legend.split("{{").skip(1).filter_map(|part| part.split_once("}}")).map(|(label, _)| label.trim());
    for label in legend {
        if !read.grouped.contains(&label) {
            problems.push(format!("the legend names {label}, which is not grouped by"));
        }
    }
    problems
        .extend(read.grouped.iter().filter(|label| !labels.contains(**label)).map(|label| format!("no label {label}")));
    problems
}

fn dashboard() -> Value {
    serde_json::from_str(&text("deploy/grafana/dashboards/gateway.json")).unwrap()
}

/// Every target: the panel's title, the expression, the legend.
fn targets(dashboard: &Value) -> Vec<(&str, &str, &str)> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| {
        let title = panel["title"].as_str().unwrap();
        let targets = panel["targets"].as_array().into_iter().flatten();
        targets.map(move |target| {
            (title, target["expr"].as_str().unwrap(), target["legendFormat"].as_str().unwrap_or_default())
        })
    });
    targets.collect()
}

#[test]
fn every_expression_is_of_metrics_and_labels_that_exist() {
    let dashboard = dashboard();

    let mut wrong = Vec::new();
    for (title, expression, legend) in targets(&dashboard) {
        wrong.extend(problems(expression, legend).into_iter().map(|problem| format!("{title}: {problem}")));
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let query = variable["query"]["query"].as_str().unwrap();
        wrong.extend(problems(query, "").into_iter().map(|problem| format!("{query}: {problem}")));
    }

    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_metric_is_on_the_dashboard() {
    let dashboard = dashboard();

    let shown: BTreeSet<&str> = targets(&dashboard)
        .into_iter()
        .flat_map(|(_, expression, _)| read(expression).series)
        .filter_map(|(series, _)| metric(series))
        .map(|(metric, _)| metric.name)
        .collect();

    let all: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
    assert_eq!(shown, all);
}

#[test]
fn panels_name_the_provisioned_source_and_do_not_overlap() {
    let dashboard = dashboard();
    let mut taken = BTreeSet::new();

    for panel in dashboard["panels"].as_array().unwrap() {
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        for cell in (0..place("w")).flat_map(|x| (0..place("h")).map(move |y| (x, y))) {
            assert!(taken.insert((place("x") + cell.0, place("y") + cell.1)), "{} overlaps", panel["title"]);
        }
        assert!(place("x") + place("w") <= 24, "{}", panel["title"]);
        if panel["type"] != "row" {
            assert_eq!(panel["datasource"]["uid"], "prometheus", "{}", panel["title"]);
        }
    }
}

#[test]
fn a_made_up_metric_label_suffix_or_function_is_found() {
    for (expression, legend) in [
        ("sum(rate(gateway_request_total[1m]))", ""),
        ("sum(rate(gateway_requests_total{tenant=\"a\"}[1m]))", ""),
        ("sum by (tenant) (rate(gateway_requests_total[1m]))", ""),
        ("sum by (model) (rate(gateway_requests_total[1m]))", "{{outcome}}"),
        ("rate(gateway_time_to_first_token_seconds[1m])", ""),
        ("gateway_connections_count", ""),
        ("sum by (le) (gateway_connections)", ""),
        ("median(gateway_connections)", ""),
        ("vllm:num_requests_running", ""),
    ] {
        assert_ne!(problems(expression, legend), Vec::<String>::new(), "{expression}");
    }
    assert_eq!(
        problems(
            "histogram_quantile(0.9, sum by (le, model) (rate(gateway_overhead_seconds_bucket{model=~\"$model\"}[5m])))",
            "{{model}}"
        ),
        Vec::<String>::new()
    );
}
