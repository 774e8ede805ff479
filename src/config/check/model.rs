//! Checks of the `models` sections.
//!
//! Names and aliases share one space: a request's `model` must mean one model. A model needs replicas or discovery.

use std::collections::HashMap;

use super::{Checker, bad_url, secret};
use crate::{
    config::{
        defaults,
        file::{DiscoverySection, DnsSection, FallbackSection, ModelSection, ReplicaSection, TokenizerSection},
        plan::{Budget, DiscoveryPlan, FallbackPlan, ModelPlan, Overrides, ReplicaPlan, TokenizerPlan},
        sections::{Concurrency, RoutingPlan, Slo},
    },
    fleet::BaseUrl,
};

pub(super) fn models(c: &mut Checker<'_>, sections: Vec<ModelSection>, overrides: &Overrides) -> Vec<ModelPlan> {
    names(c, &sections);
    sections
        .into_iter()
        .enumerate()
        .map(|(index, section)| model(c, &format!("models[{index}]"), section, overrides))
        .collect()
}

/// Every name and alias once.
fn names(c: &mut Checker<'_>, sections: &[ModelSection]) {
    let mut seen: HashMap<&str, String> = HashMap::new();
    for (index, section) in sections.iter().enumerate() {
        let name = (format!("models[{index}].name"), section.name.as_str());
        let aliases = section.aliases.iter().enumerate();
        let aliases = aliases.map(|(at, alias)| (format!("models[{index}].aliases[{at}]"), alias.as_str()));
        for (path, word) in std::iter::once(name).chain(aliases) {
            c.name(&path, word);
            if let Some(first) = seen.get(word) {
                c.refuse(&path, format!("is `{word}`, which {first} already is; rename one"));
            }
            seen.entry(word).or_insert(path);
        }
    }
}

fn model(c: &mut Checker<'_>, path: &str, section: ModelSection, overrides: &Overrides) -> ModelPlan {
    if let Some(upstream) = &section.upstream_model {
        c.name(&format!("{path}.upstream_model"), upstream);
    }
    if section.replicas.is_empty() && section.discovery.is_none() {
        c.refuse(&format!("{path}.replicas"), "is empty; add a url or set `discovery`");
    }
    let replicas = replicas(c, path, section.replicas);
    let discovery = section.discovery.and_then(|found| discovery(c, &format!("{path}.discovery"), found));
    let routing = routing(c, path, section.routing, overrides);
    c.caps(&format!("{path}.caps"), &section.caps);
    if let Some(context) = section.context {
        c.at_least_one(&format!("{path}.context"), context);
    }
    slo(c, path, &section.slo);
    concurrency(c, path, &section.concurrency);
    let fallback = section.fallback.into_iter().enumerate();
    ModelPlan {
        name: section.name.into(),
        aliases: section.aliases,
        upstream_model: section.upstream_model,
        engine: section.engine.kind(),
        api_key: secret(section.api_key),
        replicas,
        discovery,
        routing,
        tokenizer: section.tokenizer.map(tokenizer),
        counter: None,
        context: section.context,
        caps: section.caps,
        slo: section.slo,
        concurrency: section.concurrency,
        fallback: fallback.filter_map(|(at, target)| hosted(c, &format!("{path}.fallback[{at}]"), target)).collect(),
    }
}

fn replicas(c: &mut Checker<'_>, path: &str, sections: Vec<ReplicaSection>) -> Vec<ReplicaPlan> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut plans = Vec::new();
    for (index, section) in sections.into_iter().enumerate() {
        let path = format!("{path}.replicas[{index}].url");
        let Some(url) = url(c, &path, &section.url) else { continue };
        if let Some(first) = seen.insert(url.to_string(), index) {
            c.refuse(&path, format!("is `{url}`, as replicas[{first}] already is; remove one"));
        }
        plans.push(ReplicaPlan { url });
    }
    plans
}

fn url(c: &mut Checker<'_>, path: &str, text: &str) -> Option<BaseUrl> {
    text.parse().map_err(|error| c.refuse(path, bad_url(&error))).ok()
}

fn discovery(c: &mut Checker<'_>, path: &str, section: DiscoverySection) -> Option<DiscoveryPlan> {
    if section.kubernetes.is_some() {
        c.refuse(
            &format!("{path}.kubernetes"),
            "is not implemented in this version; use `dns` with a headless service",
        );
        return None;
    }
    let Some(dns) = section.dns else {
        c.refuse(path, "is empty; write { dns: { host: name } }, or null");
        return None;
    };
    dns_plan(c, &format!("{path}.dns"), dns)
}

fn dns_plan(c: &mut Checker<'_>, path: &str, dns: DnsSection) -> Option<DiscoveryPlan> {
    c.positive(&format!("{path}.interval"), dns.interval);
    c.at_least_one(&format!("{path}.port"), dns.port.into());
    let scheme = dns.scheme.name();
    // The host and path become part of each replica's URL: what makes no URL makes no replica.
    if dns.host.contains([':', '/', '@']) || format!("{scheme}://{}", dns.host).parse::<BaseUrl>().is_err() {
        c.refuse(&format!("{path}.host"), format!("is `{}`; write a DNS name without scheme, port or path", dns.host));
        return None;
    }
    let base = format!("{scheme}://{}{}", dns.host, dns.path).parse::<BaseUrl>().ok();
    let Some(base) = base.filter(|_| dns.path.is_empty() || dns.path.starts_with('/')) else {
        c.refuse(&format!("{path}.path"), format!("is `{}`; write a path as in /openai, or leave it out", dns.path));
        return None;
    };
    Some(DiscoveryPlan::Dns {
        host: dns.host,
        port: dns.port,
        interval: dns.interval,
        scheme: base.scheme,
        path: base.path,
    })
}

fn routing(c: &mut Checker<'_>, path: &str, mut routing: RoutingPlan, overrides: &Overrides) -> RoutingPlan {
    c.policy(&format!("{path}.routing.policy"), &routing.policy);
    if let Some(policy) = &overrides.policy {
        routing.policy.clone_from(policy);
    }
    c.in_range(
        &format!("{path}.routing.block_bytes"),
        &routing.block_bytes,
        &defaults::BLOCK_BYTES_MIN,
        &defaults::BLOCK_BYTES_MAX,
    );
    c.in_range(
        &format!("{path}.routing.index_entries"),
        &routing.index_entries,
        &defaults::INDEX_ENTRIES_MIN,
        &defaults::INDEX_ENTRIES_MAX,
    );
    routing
}

fn slo(c: &mut Checker<'_>, path: &str, slo: &Slo) {
    for (key, objective) in [("ttft", slo.ttft), ("tpot", slo.tpot)] {
        if let Some(objective) = objective {
            c.positive(&format!("{path}.slo.{key}"), objective);
        }
    }
}

fn concurrency(c: &mut Checker<'_>, path: &str, concurrency: &Concurrency) {
    c.in_range(&format!("{path}.concurrency.per_replica"), &concurrency.per_replica, &1, &defaults::PER_REPLICA_MAX);
    c.in_range(&format!("{path}.concurrency.queue"), &concurrency.queue, &0, &defaults::QUEUE_MAX);
    c.positive(&format!("{path}.concurrency.queue_timeout"), concurrency.queue_timeout);
    // In the plan a default looks like a choice, so the warning is made here and not in `unused`.
    for key in ["queue", "queue_timeout"] {
        let path = format!("{path}.concurrency.{key}");
        if c.has(&path) {
            c.warnings.push(format!("{path} is not used by this version: no request waits in a queue"));
        }
    }
}

fn tokenizer(section: TokenizerSection) -> TokenizerPlan {
    match section {
        TokenizerSection::Engine => TokenizerPlan::Engine,
        TokenizerSection::Estimate => TokenizerPlan::Estimate,
        TokenizerSection::File(file) => TokenizerPlan::File { path: file.path, chat_template: file.chat_template },
    }
}

fn hosted(c: &mut Checker<'_>, path: &str, section: FallbackSection) -> Option<FallbackPlan> {
    c.name(&format!("{path}.model"), &section.model);
    if section.on.is_empty() {
        c.refuse(&format!("{path}.on"), "is empty; write [saturated, down], or remove the fallback");
    }
    if let Some(budget) = &section.budget {
        money(c, &format!("{path}.budget"), budget);
    }
    Some(FallbackPlan {
        url: url(c, &format!("{path}.url"), &section.url)?,
        model: section.model,
        api_key: secret(section.api_key),
        on: section.on,
        budget: section.budget,
    })
}

fn money(c: &mut Checker<'_>, path: &str, budget: &Budget) {
    for (key, value) in [
        ("usd_per_hour", budget.usd_per_hour.unwrap_or(0.0)),
        ("usd_per_day", budget.usd_per_day.unwrap_or(0.0)),
        ("input_usd_per_million", budget.input_usd_per_million),
        ("output_usd_per_million", budget.output_usd_per_million),
    ] {
        if !value.is_finite() || value < 0.0 {
            c.refuse(&format!("{path}.{key}"), format!("is {value}; write US dollars, 0 or more"));
        }
    }
}
