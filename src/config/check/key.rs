//! Checks of the `keys` sections.
//!
//! The file holds hashes, never keys; a message never shows either. A restriction to some models is refused while
//! nothing enforces it: ignoring it would let a key do what its owner forbade.

use std::collections::HashMap;

use super::Checker;
use crate::config::{file::KeySection, plan::KeyPlan};

/// Whether the request path enforces `keys[].models`.
const MODELS_ENFORCED: bool = false;

pub(super) fn keys(c: &mut Checker<'_>, sections: Vec<KeySection>) -> Vec<KeyPlan> {
    let mut ids: HashMap<String, usize> = HashMap::new();
    let mut hashes: HashMap<[u8; 32], usize> = HashMap::new();
    let mut plans = Vec::new();
    for (index, section) in sections.into_iter().enumerate() {
        let path = format!("keys[{index}]");
        c.name(&format!("{path}.id"), &section.id);
        if let Some(first) = ids.insert(section.id.clone(), index) {
            c.refuse(&format!("{path}.id"), format!("is `{}`, as keys[{first}] already is; rename one", section.id));
        }
        restrictions(c, &path, &section);
        let Some(sha256) = sha256(c, &format!("{path}.sha256"), &section.sha256) else { continue };
        if let Some(first) = hashes.insert(sha256, index) {
            c.refuse(&format!("{path}.sha256"), format!("is the same as that of keys[{first}]; remove one"));
        }
        plans.push(KeyPlan {
            id: section.id.into(),
            sha256,
            models: section.models,
            caps: section.caps,
            rate: section.rate,
            group: section.group,
        });
    }
    plans
}

fn restrictions(c: &mut Checker<'_>, path: &str, section: &KeySection) {
    if section.models.is_some() && !MODELS_ENFORCED {
        c.refuse(
            &format!("{path}.models"),
            "is not enforced in this version; remove it, then the key may use all models",
        );
    }
    if let Some(caps) = &section.caps {
        c.caps(&format!("{path}.caps"), caps);
    }
    if let Some(group) = &section.group {
        c.name(&format!("{path}.group"), group);
    }
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
