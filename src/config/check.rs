//! From file sections and flags to a plan: ranges, cross-checks, merging.
//!
//! Collects every problem before it gives up. Limits that a default would break (a `first_token` below the default
//! `first_event_hold`) move the default; limits that the file itself contradicts are errors.

mod hosted;
mod key;
mod model;
mod server;

use std::{collections::HashMap, fmt::Display, time::Duration};

use secrecy::{ExposeSecret, SecretString};

use super::{
    error::{ConfigError, Problem},
    nearest::nearest,
    period,
    plan::{OpenPlan, Overrides, Plan, ReplicaPlan},
    read::Source,
    sections::{Caps, Concurrency, RoutingPlan, Slo},
};
use crate::{
    fleet::{BaseUrl, BaseUrlError},
    types::MAX_REPLICAS,
};

/// The routing policies that `routing.policy` and `--policy` may name.
pub const POLICIES: &[&str] = &["prefix", "lmetric", "learned", "least_load", "round_robin", "random"];

/// Gathers what is wrong.
struct Checker<'a> {
    source: &'a Source,
    problems: Vec<Problem>,
    warnings: Vec<String>,
}

impl Checker<'_> {
    /// Notes a problem of a key: `message` follows the key path.
    fn refuse(&mut self, path: &str, message: impl Display) {
        let place = match self.source.outline.line(path) {
            Some(line) => format!("{}:{line}", self.source.name),
            None if self.source.name.is_empty() => "configuration".to_owned(),
            None => self.source.name.clone(),
        };
        let message = self.source.expanded.scrub(&format!("{path} {message}"));
        self.problems.push(Problem { place, message });
    }

    /// Notes a problem of a flag.
    fn refuse_flag(&mut self, flag: &str, message: impl Display) {
        self.problems.push(Problem { place: flag.to_owned(), message: message.to_string() });
    }

    /// Notes a problem of a value that came from the flag when that is given, else from the key.
    fn refuse_either(&mut self, flag: Option<&str>, path: &str, message: impl Display) {
        match flag {
            Some(flag) => self.refuse_flag(flag, message),
            None => self.refuse(path, message),
        }
    }

    /// Whether the file itself sets a key.
    fn has(&self, path: &str) -> bool {
        self.source.outline.has(path)
    }

    fn positive(&mut self, path: &str, value: Duration) {
        if value.is_zero() {
            self.refuse(path, "is 0s; write a time above zero, as in 10s");
        }
    }

    fn in_range<T: PartialOrd + Display>(&mut self, path: &str, value: &T, low: &T, high: &T) {
        if value < low || value > high {
            self.refuse(path, format!("is {value}; write {low} to {high}"));
        }
    }

    fn at_least_one(&mut self, path: &str, value: u64) {
        if value == 0 {
            self.refuse(path, "is 0; write 1 or more");
        }
    }

    /// A name that appears in URLs, logs and metric labels.
    fn name(&mut self, path: &str, value: &str) {
        if value.is_empty() {
            self.refuse(path, "is empty; write a name");
        } else if value.trim() != value || value.chars().any(char::is_control) {
            self.refuse(path, format!("is {value:?}; remove the spaces around it and control characters"));
        }
    }

    fn caps(&mut self, path: &str, caps: &Caps) {
        for (key, value) in [
            ("max_prompt_tokens", caps.max_prompt_tokens),
            ("max_output_tokens", caps.max_output_tokens),
            ("default_output_tokens", caps.default_output_tokens),
        ] {
            if value == Some(0) {
                self.refuse(&format!("{path}.{key}"), "is 0; write 1 or more, or null for no cap");
            }
        }
        if let (Some(default), Some(most)) = (caps.default_output_tokens, caps.max_output_tokens)
            && default > most
        {
            self.refuse(
                &format!("{path}.default_output_tokens"),
                format!("is {default}, above max_output_tokens {most}; lower it"),
            );
        }
    }

    fn policy(&mut self, path: &str, name: &str) {
        if !POLICIES.contains(&name) {
            let message = unknown_policy(name);
            self.refuse(path, message);
        }
    }
}

fn unknown_policy(name: &str) -> String {
    let known = POLICIES.join(", ");
    match nearest(name, POLICIES) {
        Some(near) => format!("is `{name}`, which is no policy; did you mean `{near}`? known: {known}"),
        None => format!("is `{name}`, which is no policy; write one of {known}"),
    }
}

/// An empty secret is none: `api_key: ${KEY:-}` makes a key optional.
fn secret(value: Option<SecretString>) -> Option<SecretString> {
    value.filter(|secret| !secret.expose_secret().is_empty())
}

/// Checks and merges.
pub(super) fn plan(mut source: Source, overrides: &Overrides) -> Result<Plan, ConfigError> {
    let config = std::mem::take(&mut source.config);
    let mut checker = Checker { source: &source, problems: Vec::new(), warnings: Vec::new() };
    let c = &mut checker;

    if let Some(policy) = &overrides.policy
        && !POLICIES.contains(&policy.as_str())
    {
        c.refuse_flag("--policy", unknown_policy(policy));
    }
    let has_keys = !config.keys.is_empty();
    let server = server::server(c, config.server, overrides, has_keys);
    let models = model::models(c, config.models, overrides);
    hosted::spend(c, &server, &models);
    key::groups(c, &config.groups, server.isolation_secret.is_some());
    let keys = key::keys(c, config.keys, &key::Known { models: &models, groups: &config.groups });
    let open = open(c, overrides, !models.is_empty());
    if models.is_empty() && open.is_none() && c.problems.is_empty() {
        let place = if source.name.is_empty() { "configuration" } else { source.name.as_str() };
        c.problems.push(Problem {
            place: place.to_owned(),
            message: "there is nothing to serve; add `models`, or give --replica URL".to_owned(),
        });
    }
    let replicas = models.iter().map(|model| model.replicas.len()).sum::<usize>();
    if replicas > MAX_REPLICAS {
        c.refuse("models", format!("list {replicas} replicas; one gateway tracks at most {MAX_REPLICAS}"));
    }

    let Checker { problems, warnings, .. } = checker;
    if !problems.is_empty() {
        return Err(ConfigError { problems });
    }
    Ok(Plan { server, models, open, keys, groups: config.groups, warnings })
}

/// Replicas given by flags.
fn open(c: &mut Checker<'_>, overrides: &Overrides, has_models: bool) -> Option<OpenPlan> {
    if overrides.replicas.is_empty() {
        return None;
    }
    if has_models {
        c.refuse_flag("--replica", "cannot be combined with `models` in the file; add the url to models[].replicas");
        return None;
    }
    let mut seen = HashMap::new();
    let mut replicas = Vec::new();
    for url in &overrides.replicas {
        match url.parse::<BaseUrl>() {
            Ok(base) => {
                let plan = ReplicaPlan { url: base };
                if seen.insert(plan.url.to_string(), ()).is_some() {
                    c.refuse_flag("--replica", format!("{url} is given twice; remove one"));
                }
                replicas.push(plan);
            }
            Err(error) => c.refuse_flag("--replica", bad_url(&error)),
        }
    }
    if replicas.len() > MAX_REPLICAS {
        c.refuse_flag(
            "--replica",
            format!("is given {} times; one gateway tracks at most {MAX_REPLICAS}", replicas.len()),
        );
    }
    let routing = RoutingPlan {
        policy: overrides.policy.clone().unwrap_or(RoutingPlan::default().policy),
        ..RoutingPlan::default()
    };
    Some(OpenPlan {
        replicas,
        engine: None,
        routing,
        caps: Caps::default(),
        slo: Slo::default(),
        concurrency: Concurrency::default(),
    })
}

/// A URL that does not parse; credentials in it are masked.
fn bad_url(error: &BaseUrlError) -> String {
    format!("is `{}`, which {}", error.shown, error.what)
}

fn longer_than(value: Duration, other: &str, limit: Duration) -> String {
    format!("is {}, longer than {other} {}; lower it", period::display(value), period::display(limit))
}
