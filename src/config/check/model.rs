//! Checks of the `models` sections.
//!
//! Names and aliases share one space: a request's `model` must mean one model. A model needs replicas or discovery.

use std::collections::HashMap;

use super::{Checker, bad_url, hosted::hosted, secret};
use crate::{
    config::{
        defaults,
        file::{DiscoverySection, DnsSection, ModelSection, ReplicaSection, TokenizerSection},
        plan::{DiscoveryPlan, ModelPlan, Overrides, ReplicaPlan, TokenizerPlan},
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

fn model(c: &mut Checker<'_>, path: &str, mut section: ModelSection, overrides: &Overrides) -> ModelPlan {
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
    concurrency(c, path, &mut section.concurrency, &section.slo);
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
        fallback_sticky: section.fallback_sticky,
        degraded_response: section.degraded_response.filter(|text| !text.is_empty()),
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

pub(super) fn url(c: &mut Checker<'_>, path: &str, text: &str) -> Option<BaseUrl> {
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

fn concurrency(c: &mut Checker<'_>, path: &str, concurrency: &mut Concurrency, slo: &Slo) {
    let written = c.has(&format!("{path}.slo.ttft"));
    concurrency.predicted_ttft.get_or_insert(written && slo.ttft.is_some());
    c.in_range(&format!("{path}.concurrency.per_replica"), &concurrency.per_replica, &1, &defaults::PER_REPLICA_MAX);
    c.in_range(&format!("{path}.concurrency.queue"), &concurrency.queue, &0, &defaults::QUEUE_MAX);
    c.positive(&format!("{path}.concurrency.queue_timeout"), concurrency.queue_timeout);
    if let Some(queue) = concurrency.engine_queue {
        c.at_least_one(&format!("{path}.concurrency.engine_queue"), queue.into());
    }
    for (key, part) in [("kv_usage", concurrency.kv_usage), ("resume", Some(concurrency.resume))] {
        if let Some(part) = part.filter(|part| !(*part > 0.0 && *part <= 1.0)) {
            c.refuse(&format!("{path}.concurrency.{key}"), format!("is {part}; write a part above 0 and up to 1"));
        }
    }
    let predicts = concurrency.predicted_ttft == Some(true);
    if predicts && slo.ttft.is_none() {
        c.refuse(&format!("{path}.concurrency.predicted_ttft"), "is true without an objective; write slo.ttft");
    }
}

fn tokenizer(section: TokenizerSection) -> TokenizerPlan {
    match section {
        TokenizerSection::Engine => TokenizerPlan::Engine,
        TokenizerSection::Estimate => TokenizerPlan::Estimate,
        TokenizerSection::File(file) => TokenizerPlan::File { path: file.path, chat_template: file.chat_template },
    }
}
