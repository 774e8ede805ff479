//! The typed read of a file, and the parser's errors in words for people.
//!
//! Unknown keys are errors that name the nearest known key. A value in a message is taken from the outline and never
//! from a secret; what came from the environment is masked.

use serde_saphyr::Error;

use super::{
    error::ConfigError,
    expand::{self, Expanded},
    file::FileConfig,
    nearest::nearest,
    outline::{Outline, join},
};

/// A file that parsed.
#[derive(Debug)]
pub(super) struct Source {
    /// Name of the file; empty without one.
    pub name: String,
    /// Its sections.
    pub config: FileConfig,
    /// Its keys and lines.
    pub outline: Outline,
    /// Its expansions, for masking.
    pub expanded: Expanded,
}

/// Keys whose values never appear in a message.
const SECRET_KEYS: [&str; 2] = ["api_key", "sha256"];

/// Parses the text of a file. An empty text is a configuration of defaults only.
pub(super) fn read(name: &str, text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Source, ConfigError> {
    let at = |line: usize| if name.is_empty() { "configuration".to_owned() } else { format!("{name}:{line}") };
    let expanded = expand::expand(text, env).map_err(|faults| ConfigError {
        problems: faults.into_iter().map(|(line, message)| super::Problem { place: at(line), message }).collect(),
    })?;
    let outline = Outline::read(&expanded.text)
        .map_err(|(line, message)| ConfigError::one(at(line), expanded.scrub(&format!("is not YAML: {message}"))))?;
    let config = if outline.is_empty() {
        FileConfig::default()
    } else {
        let options = serde_saphyr::options! { with_snippet: false };
        serde_saphyr::from_str_with_options(&expanded.text, options).map_err(|error| {
            let (line, message) = explain(&error, &outline);
            ConfigError::one(at(line), expanded.scrub(&message))
        })?
    };
    Ok(Source { name: name.to_owned(), config, outline, expanded })
}

/// Line and words of a parser's error.
fn explain(error: &Error, outline: &Outline) -> (usize, String) {
    let error = original(error);
    let place = error.location();
    let line = place.map_or(1, |place| usize::try_from(place.line()).unwrap_or(1));
    let column = place.map_or(1, |place| usize::try_from(place.column()).unwrap_or(1));
    let path = outline.path_at(line, column).unwrap_or_default();
    let shown = if path.is_empty() { "the file" } else { path };
    let message = match error {
        Error::SerdeUnknownField { field, expected, .. } => unknown_key(path, field, expected),
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            format!("{shown} is `{variant}`; write {}", one_of(expected))
        }
        Error::SerdeMissingField { field, .. } => format!("{shown} lacks `{field}`; add it"),
        Error::SerdeInvalidType { unexpected, expected, .. }
        | Error::SerdeInvalidValue { unexpected, expected, .. } => {
            let found = if is_secret(path) { "of the wrong type".to_owned() } else { unexpected.clone() };
            format!("{shown} is {found}; write {expected}")
        }
        Error::Unexpected { expected, .. } => {
            format!("{shown} is {}; write {}", found(path, outline), wanted(expected))
        }
        Error::InvalidScalar { ty, .. } => format!("{shown} is {}; write {}", found(path, outline), wanted(ty)),
        Error::DuplicateMappingKey { key, .. } => {
            format!("{} is given twice; keep one", key.as_deref().unwrap_or(shown))
        }
        Error::Message { msg, .. } if is_secret(path) => format!("{shown} is of the wrong type: {}", kind_only(msg)),
        Error::Message { msg, .. } => format!("{shown}: {msg}"),
        other => format!("{shown}: {}", other.render()),
    };
    (line, message)
}

/// The error inside alias and snippet wrappers.
fn original(error: &Error) -> &Error {
    match error {
        Error::AliasError { error, .. } | Error::WithSnippet { error, .. } => original(error),
        other => other,
    }
}

fn unknown_key(path: &str, field: &str, expected: &[&str]) -> String {
    let full = if path.ends_with(field) { path.to_owned() } else { join(path, field) };
    match nearest(field, expected) {
        Some(known) => format!("{full} is not a known key; did you mean `{known}`?"),
        None => format!("{full} is not a known key; known here: {}", expected.join(", ")),
    }
}

fn one_of(words: &[&str]) -> String {
    match words {
        [] => "nothing".to_owned(),
        [only] => format!("`{only}`"),
        [first @ .., last] => {
            format!("{} or `{last}`", first.iter().map(|w| format!("`{w}`")).collect::<Vec<_>>().join(", "))
        }
    }
}

/// What stands at a path, for a message.
fn found(path: &str, outline: &Outline) -> String {
    match outline.value(path) {
        Some(_) if is_secret(path) => "a secret of the wrong type".to_owned(),
        Some("" | "~" | "null") => "empty".to_owned(),
        Some(value) => format!("`{value}`"),
        None => "a list or map".to_owned(),
    }
}

/// The parser's word for what it wanted, in words of the configuration.
fn wanted(expected: &str) -> String {
    match expected {
        "sequence start" => "a list, as in [a, b], or leave the key out".to_owned(),
        "mapping start" => "a map, as in { key: value }, or leave the key out".to_owned(),
        "string scalar" => "a text".to_owned(),
        other => format!("a value of type {other}"),
    }
}

fn is_secret(path: &str) -> bool {
    SECRET_KEYS.iter().any(|key| path.ends_with(key))
}

fn kind_only(message: &str) -> &str {
    message.split('`').next().unwrap_or_default()
}
