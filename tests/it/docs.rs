//! What the documents say of the program is true: metrics, outcomes, error codes, endpoints, defaults, command lines.
//!
//! `docs/metrics.md` is written by the test itself: `GATEWAY_UPDATE_DOCS=1 cargo test --test it docs`.

use std::fmt::Write as _;

use gateway::{
    config::{self, Overrides},
    telemetry::{
        Cause, FallbackReason, METRICS, MetricKind, Objective, Reason, Reload, Route, Skip, Source, Waste, Window,
    },
    types::{Endpoint, Outcome, PickReason},
};
use serde_json::Value;

use crate::compose::{admin_answers, parsed, root, text};

const BEGIN: &str = "<!-- table: begin -->\n";
const END: &str = "<!-- table: end -->\n";

fn labels<T: Copy>(all: &[T], label: impl Fn(T) -> &'static str) -> String {
    all.iter().map(|value| format!("`{}`", label(*value))).collect::<Vec<_>>().join(" ")
}

/// The two tables of `docs/metrics.md`: metrics, and the values of labels that come from closed lists.
fn tables() -> String {
    let mut table = "| metric | kind | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for metric in METRICS {
        let kind = match metric.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram(_) => "histogram",
        };
        let names = metric.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(" ");
        writeln!(table, "| `{}` | {kind} | {names} | {} |", metric.name, metric.help).unwrap();
    }
    table.push_str("\n| label | of | values |\n|---|---|---|\n");
    let rows = [
        ("outcome", "requests, request duration", labels(&Outcome::ALL, Outcome::label)),
        ("endpoint", "requests", labels(&Endpoint::ALL, Endpoint::label)),
        ("route", "time to first token, time per output token", labels(Route::ALL, Route::label)),
        ("source", "cached tokens", labels(Source::ALL, Source::label)),
        ("objective", "objectives missed", labels(Objective::ALL, Objective::label)),
        ("reason", "replica picks", labels(&PickReason::ALL, PickReason::label)),
        ("reason", "rejected", labels(Reason::ALL, Reason::label)),
        ("result", "configuration reloads", labels(Reload::ALL, Reload::label)),
        ("reason", "fallback", labels(FallbackReason::ALL, FallbackReason::label)),
        ("reason", "fallback skipped", labels(Skip::ALL, Skip::label)),
        ("window", "fallback spend", labels(Window::ALL, Window::label)),
        ("cause", "retries", labels(Cause::ALL, Cause::label)),
        ("cause", "wasted tokens", labels(Waste::ALL, Waste::label)),
    ];
    for (label, of, values) in rows {
        writeln!(table, "| `{label}` | {of} | {values} |").unwrap();
    }
    table
}

#[test]
fn the_table_of_metrics_is_the_one_of_the_program() {
    let text = text("docs/metrics.md");
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (written, after) = rest.split_once(END).unwrap();
    let table = tables();

    if std::env::var_os("GATEWAY_UPDATE_DOCS").is_some() {
        std::fs::write(root("docs/metrics.md"), format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        return;
    }

    assert_eq!(written, table, "run GATEWAY_UPDATE_DOCS=1 cargo test --test it docs");
}

#[test]
fn no_document_names_a_metric_that_is_not_there() {
    for file in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/metrics.md"] {
        let text = text(file);
        let unknown = unknown_metrics(&text);
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
    assert_eq!(unknown_metrics("see `gateway_made_up_total{x}`"), ["gateway_made_up_total"]);
}

/// Words that look like a metric and are none.
fn unknown_metrics(text: &str) -> Vec<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let named = words.filter(|word| word.starts_with("gateway_") && !word.ends_with('_'));
    let known = |word: &str| {
        METRICS.iter().any(|metric| match word.strip_prefix(metric.name) {
            Some("") => true,
            Some("_bucket" | "_sum" | "_count") => matches!(metric.kind, MetricKind::Histogram(_)),
            _ => false,
        })
    };
    // An outcome and an error code share the prefix.
    named.filter(|word| !known(word) && !matches!(*word, "gateway_error" | "gateway_overloaded")).collect()
}

#[tokio::test]
async fn the_readme_names_every_endpoint_outcome_and_error_code() {
    let readme = text("README.md");
    let named = |word: &str| readme.contains(&format!("`{word}`"));

    for endpoint in Endpoint::ALL {
        assert!(named(endpoint.path()), "{}", endpoint.path());
    }
    for outcome in Outcome::ALL {
        assert!(named(outcome.label()), "{}", outcome.label());
    }
    for code in error_codes() {
        // What is never sent needs no explanation.
        assert!(code == "client_closed_request" || named(&code), "{code}");
    }
    for path in ["/", "/metrics", "/healthz", "/readyz", "/replicas"] {
        assert!(named(path) && admin_answers(path).await, "{path}");
    }
}

/// The codes in `ErrorKind::answer`.
fn error_codes() -> Vec<String> {
    let source = text("src/error.rs");
    let answers = source.lines().filter(|line| line.contains("=> (StatusCode::"));
    let codes: Vec<String> = answers.filter_map(|line| line.rsplit('"').nth(1)).map(str::to_owned).collect();
    assert!(codes.len() > 12, "{codes:?}");
    codes
}

/// Rows `` | `a.b.c` | `value` | `` of a document.
fn settings(text: &str) -> Vec<(String, String)> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| {
        let (key, rest) = row.split_once("` | `")?;
        let (value, _) = rest.split_once('`')?;
        key.contains('.').then(|| (key.to_owned(), value.to_owned()))
    });
    cells.collect()
}

/// The value of a dotted key in the effective configuration.
fn effective(plan: &Value, key: &str) -> Option<String> {
    let key = key.strip_prefix("models[].").map_or(key.to_owned(), |rest| format!("models.0.{rest}"));
    let pointer = format!("/{}", key.replace('.', "/"));
    plan.pointer(&pointer).map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

#[test]
fn the_defaults_in_the_readme_are_those_of_the_program() {
    let smallest = std::env::temp_dir().join(format!("gateway-docs-{}.yaml", std::process::id()));
    std::fs::write(&smallest, "models: [{ name: m, replicas: [{ url: http://h:1 }] }]").unwrap();
    let plan = config::load(&Overrides { config: Some(smallest.clone()), ..Overrides::default() }, &|_| None).unwrap();
    std::fs::remove_file(smallest).unwrap();
    let plan: Value = serde_saphyr::from_str(&config::effective_yaml(&plan)).unwrap();

    let rows = settings(&text("README.md"));

    assert!(rows.len() >= 15, "{rows:?}");
    for (key, value) in rows {
        assert_eq!(effective(&plan, &key).as_deref(), Some(value.as_str()), "{key}");
    }
    assert_eq!(effective(&plan, "server.timeouts.made_up"), None);
}

/// Lines of fenced `sh` blocks, continued lines joined, comments and prompts taken off.
fn commands(text: &str) -> Vec<String> {
    let blocks = text.split("```sh\n").skip(1).filter_map(|block| block.split_once("```")).map(|(block, _)| block);
    let lines = blocks.flat_map(|block| block.replace("\\\n", " ").lines().map(str::to_owned).collect::<Vec<_>>());
    lines.map(|line| line.split(" #").next().unwrap_or_default().trim().to_owned()).collect()
}

/// The arguments of the gateway in a command line, if it is one.
fn own_arguments(line: &str) -> Option<Vec<&str>> {
    let line = line.trim_end_matches('&').trim();
    let starts = ["cargo run --release -- ", "gateway ", "./target/release/gateway ", "target/release/gateway "];
    starts.iter().find_map(|start| line.strip_prefix(start)).map(|rest| rest.split_whitespace().collect())
}

#[test]
fn every_command_line_in_the_documents_is_one_that_the_program_takes() {
    let mut seen = 0;
    for file in ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"] {
        for line in commands(&text(file)) {
            let Some(arguments) = own_arguments(&line) else { continue };
            seen += 1;
            if let Err(error) = parsed(&arguments) {
                assert!(error.contains("Usage:") && arguments.contains(&"--help"), "{file}: {line}: {error}");
            }
        }
    }

    assert!(seen >= 5, "the documents show how the program is used");
    assert!(parsed(&own_arguments("cargo run --release -- demo --gpu").unwrap()).is_err());
}

#[test]
fn links_inside_the_repository_lead_somewhere() {
    for file in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/metrics.md"] {
        let text = text(file);
        let folder = root(file).parent().unwrap().to_owned();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target) {
            let path = target.split('#').next().unwrap();
            let outside = target.starts_with("http") || path.is_empty();
            assert!(outside || folder.join(path).exists(), "{file} links to {target}");
        }
    }
}
