//! The effective configuration as YAML, secrets as `***`.
//!
//! Key hashes are masked too: the hash of a guessable key is as good as the key. Everything else reads back as
//! configuration, except that `open` (replicas given by flags) is no key of the file.

use std::fmt::Display;

use secrecy::SecretString;
use serde::Serializer;

use super::plan::Plan;
use crate::types::EngineKind;

/// What stands where a secret is.
pub const MASK: &str = "***";

/// The plan as YAML text.
#[must_use]
pub fn effective_yaml(plan: &Plan) -> String {
    serde_saphyr::to_string(plan).unwrap_or_else(|error| format!("# the configuration cannot be shown: {error}\n"))
}

#[expect(clippy::ref_option, reason = "serde's signature")]
pub(super) fn masked<S: Serializer>(secret: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    match secret {
        Some(_) => serializer.serialize_str(MASK),
        None => serializer.serialize_none(),
    }
}

pub(super) fn hash<S: Serializer>(_: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(MASK)
}

#[expect(clippy::ref_option, reason = "serde's signature")]
pub(super) fn engine<S: Serializer>(engine: &Option<EngineKind>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(engine.map_or("auto", EngineKind::label))
}

pub(super) fn text<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
