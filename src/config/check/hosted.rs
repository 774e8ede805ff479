//! Checks of hosted models: `models[].fallback[]`, and where their spend is kept.

use super::{Checker, model::url, secret};
use crate::config::{
    hosted::{Budget, FallbackPlan, FallbackSection},
    plan::{ModelPlan, ServerPlan},
};

pub(super) fn hosted(c: &mut Checker<'_>, path: &str, section: FallbackSection) -> Option<FallbackPlan> {
    c.name(&format!("{path}.model"), &section.model);
    if section.on.is_empty() {
        c.refuse(&format!("{path}.on"), "is empty; write [saturated, down], or remove the fallback");
    }
    if section.endpoints.is_empty() {
        c.refuse(&format!("{path}.endpoints"), "is empty; write [chat], or remove the fallback");
    }
    if section.context == Some(0) {
        c.refuse(&format!("{path}.context"), "is 0; write 1 or more, or null for no limit");
    }
    for (at, field) in section.drop_fields.iter().enumerate() {
        if matches!(field.as_str(), "" | "*" | "model" | "messages" | "prompt" | "input" | "stream") {
            let path = format!("{path}.drop_fields[{at}]");
            c.refuse(&path, format!("is `{field}`, without which there is no request; remove it"));
        }
    }
    if let Some(budget) = &section.budget {
        money(c, &format!("{path}.budget"), budget);
    }
    if section.api_key.is_some() && section.url.starts_with("http://") && !is_loopback(&section.url) {
        c.warnings.push(format!("{path}.url has no TLS: its api_key and all prompts can be read on the way"));
    }
    Some(FallbackPlan {
        url: url(c, &format!("{path}.url"), &section.url)?,
        model: section.model,
        api_key: secret(section.api_key),
        on: section.on,
        budget: section.budget,
        context: section.context,
        drop_fields: section.drop_fields,
        token_field: section.token_field,
        content: section.content,
        endpoints: section.endpoints,
        roots: section.roots,
        ca_file: section.ca_file,
    })
}

fn is_loopback(url: &str) -> bool {
    ["http://127.", "http://localhost", "http://[::1]"].iter().any(|start| url.starts_with(start))
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
    let limited = budget.usd_per_hour.is_some() || budget.usd_per_day.is_some();
    if limited && budget.input_usd_per_million == 0.0 && budget.output_usd_per_million == 0.0 {
        c.warnings.push(format!(
            "{path} has limits and no prices, so nothing is ever spent; set input_usd_per_million and \
             output_usd_per_million"
        ));
    }
}

/// A budget that a restart resets is a smaller promise than it looks.
pub(super) fn spend(c: &mut Checker<'_>, server: &ServerPlan, models: &[ModelPlan]) {
    let limited = models.iter().flat_map(|model| &model.fallback).any(|target| target.budget.is_some());
    if limited && server.spend_file.is_none() {
        c.warnings.push("a restart forgets what hosted models have cost: server.spend_file is not set".to_owned());
    }
}
