//! Checks of the `keys` and `groups` sections.
//!
//! The file holds hashes, never keys; a message never shows either.

use std::collections::{HashMap, HashSet};

use super::Checker;
use crate::config::{
    file::KeySection,
    plan::{GroupPlan, KeyPlan, ModelPlan},
};

/// What keys are checked against.
pub(super) struct Known<'a> {
    /// Names that `keys[].models` may hold; none when the models come from the replicas.
    pub(super) models: &'a [ModelPlan],
    /// Groups with properties.
    pub(super) groups: &'a [GroupPlan],
}

/// Checks the groups; `has_secret`: whether there is a secret to make their salts of.
pub(super) fn groups(c: &mut Checker<'_>, groups: &[GroupPlan], has_secret: bool) {
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for (index, group) in groups.iter().enumerate() {
        let path = format!("groups[{index}]");
        c.name(&format!("{path}.name"), &group.name);
        if let Some(first) = seen.insert(&group.name, index) {
            c.refuse(
                &format!("{path}.name"),
                format!("is `{}`, as groups[{first}] already is; remove one", group.name),
            );
        }
        if group.isolate && !has_secret {
            let message =
                "is true without server.isolation_secret; set it to a long random text, the same in every gateway";
            c.refuse(&format!("{path}.isolate"), message);
        }
    }
}

pub(super) fn keys(c: &mut Checker<'_>, sections: Vec<KeySection>, known: &Known<'_>) -> Vec<KeyPlan> {
    let isolated: HashSet<&str> =
        known.groups.iter().filter(|group| group.isolate).map(|group| group.name.as_str()).collect();
    let mut ids: HashMap<String, usize> = HashMap::new();
    let mut hashes: HashMap<[u8; 32], usize> = HashMap::new();
    let mut plans = Vec::new();
    for (index, section) in sections.into_iter().enumerate() {
        let path = format!("keys[{index}]");
        c.name(&format!("{path}.id"), &section.id);
        if let Some(first) = ids.insert(section.id.clone(), index) {
            c.refuse(&format!("{path}.id"), format!("is `{}`, as keys[{first}] already is; rename one", section.id));
        }
        let models = restrictions(c, &path, &section, known);
        let Some(sha256) = sha256(c, &format!("{path}.sha256"), &section.sha256) else { continue };
        if let Some(first) = hashes.insert(sha256, index) {
            c.refuse(&format!("{path}.sha256"), format!("is the same as that of keys[{first}]; remove one"));
        }
        plans.push(KeyPlan {
            id: section.id.into(),
            sha256,
            models,
            caps: section.caps,
            rate: section.rate,
            isolate: section.group.as_deref().is_some_and(|group| isolated.contains(group)),
            group: section.group,
            priority: section.priority,
            fallback: section.fallback,
        });
    }
    plans
}

/// Checks what a key may do; gives its models by name, whatever alias they were written by.
fn restrictions(c: &mut Checker<'_>, path: &str, section: &KeySection, known: &Known<'_>) -> Option<Vec<String>> {
    if let Some(caps) = &section.caps {
        c.caps(&format!("{path}.caps"), caps);
    }
    if let Some(rate) = &section.rate {
        for (key, value) in [
            ("requests_per_minute", rate.requests_per_minute),
            ("prompt_tokens_per_minute", rate.prompt_tokens_per_minute),
            ("output_tokens_per_minute", rate.output_tokens_per_minute),
            ("concurrent", rate.concurrent.map(u64::from)),
        ] {
            if let Some(value) = value {
                c.in_range(&format!("{path}.rate.{key}"), &value, &1, &u64::from(u32::MAX));
            }
        }
    }
    if let Some(group) = &section.group {
        c.name(&format!("{path}.group"), group);
        // Most likely a typing error, and then the group is not isolated as its owner believes.
        if !known.groups.is_empty() && !known.groups.iter().any(|named| named.name == *group) {
            c.warnings.push(format!("{path}.group is `{group}`, which no entry of groups names: it has no properties"));
        }
    }
    let models = section.models.as_ref()?;
    if models.is_empty() {
        c.refuse(&format!("{path}.models"), "is empty: the key could do nothing; name models, or remove it for all");
    }
    let known = known.models;
    let name = |(at, word): (usize, &String)| {
        let model = known.iter().find(|model| *model.name == **word || model.aliases.contains(word));
        if model.is_none() && !known.is_empty() {
            let names: Vec<&str> = known.iter().map(|model| &*model.name).collect();
            c.refuse(
                &format!("{path}.models[{at}]"),
                format!("is `{word}`, no model here; write {}", names.join(", ")),
            );
        }
        model.map_or_else(|| word.clone(), |model| model.name.to_string())
    };
    Some(models.iter().enumerate().map(name).collect())
}

fn sha256(c: &mut Checker<'_>, path: &str, text: &str) -> Option<[u8; 32]> {
    let parsed = unhex(text);
    if parsed.is_none() {
        let length = text.chars().count();
        c.refuse(
            path,
            format!(
                "is not a SHA-256 ({length} characters); write the 64 hex digits that `printf %s \"$KEY\" | sha256sum` prints"
            ),
        );
    }
    parsed
}

/// 64 hex digits as 32 bytes.
fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0_u8; 32];
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}
