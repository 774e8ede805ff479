//! The models that come with the program.

use serde_json::Value;

use super::{Geometry, Problem, geometry, plain};

const ROWS: &str = include_str!("data/presets.jsonl");

/// Name of a row, without parsing the row.
fn name(row: &str) -> &str {
    row.strip_prefix("{\"preset\": \"").and_then(|rest| rest.split('"').next()).unwrap_or_default()
}

/// All names, sorted.
#[must_use]
pub fn preset_names() -> Vec<&'static str> {
    ROWS.lines().map(name).collect()
}

/// A model by name; case and punctuation are ignored.
///
/// # Errors
///
/// The name is not known: the nearest names are in the remedy.
pub fn preset(wanted: &str) -> Result<Geometry, Problem> {
    let key = plain(wanted);
    if let Some(row) = ROWS.lines().find(|row| plain(name(row)) == key) {
        let value: Value = serde_json::from_str(row)
            .map_err(|error| Problem::new("--preset", format!("{wanted}: {error}"), "use --hf-config"))?;
        return geometry(name(row), &value);
    }
    let near: Vec<&str> = preset_names()
        .into_iter()
        .filter(|known| {
            let known = plain(known);
            known.contains(&key)
                || key.contains(&known)
                || (key.len() >= 4 && known.starts_with(key.get(..4).unwrap_or(&key)))
        })
        .take(6)
        .collect();
    let remedy =
        if near.is_empty() { "see --list-presets".to_owned() } else { format!("did you mean {}?", near.join(", ")) };
    Err(Problem::new("--preset", format!("{wanted:?} is not known"), remedy))
}
