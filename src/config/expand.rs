//! `${VAR}`, `${VAR:-default}` and `$$` in the values of a configuration file.
//!
//! What a variable holds can never change the structure of the file: each placeholder is first replaced by a word that
//! YAML leaves alone, the file is parsed, and only scalars that the parser found are rewritten, quoted and escaped
//! where needed. So placeholders in comments do nothing, and a value with `: `, `#` or a line break stays one value.
//! A variable that is set but empty counts as unset, as in a shell's `:-`: an empty key is a mistake more often than a
//! wish; `${VAR:-}` says that it is one.

use std::fmt::Write as _;

use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle};

/// Opens and closes the stand-in of a placeholder. Private use: no keyboard types them.
const OPEN: char = '\u{E000}';
const CLOSE: char = '\u{E001}';

/// What stood in the text.
#[derive(Debug)]
enum Part {
    /// `$$`
    Dollar,
    /// `${NAME}` or `${NAME:-default}`
    Variable { name: String, default: Option<String> },
    /// Looks like a placeholder and is none; the text says why.
    Broken(String),
}

/// The file with all placeholders resolved, line for line.
#[derive(Debug, Default)]
pub(super) struct Expanded {
    /// YAML with the same lines as the file.
    pub text: String,
    /// Values from the environment and the placeholder that each came from, to be masked in messages.
    pub secrets: Vec<(String, String)>,
}

/// Shortest value that is masked in messages; a shorter one would garble them and is no secret.
const MASKED_LENGTH: usize = 4;

impl Expanded {
    /// A message with the values of variables replaced by their placeholders.
    pub(super) fn scrub(&self, message: &str) -> String {
        let long = self.secrets.iter().filter(|(value, _)| value.len() >= MASKED_LENGTH);
        long.fold(message.to_owned(), |text, (value, placeholder)| text.replace(value, placeholder))
    }
}

/// A line and what is wrong in it.
pub(super) type Fault = (usize, String);

/// Resolves all placeholders.
pub(super) fn expand(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Expanded, Vec<Fault>> {
    if !text.contains('$') {
        return Ok(Expanded { text: text.to_owned(), secrets: Vec::new() });
    }
    if text.contains([OPEN, CLOSE]) {
        return Err(vec![(1, "the file holds U+E000 or U+E001, which placeholders use; remove them".to_owned())]);
    }
    let (marked, parts) = mark(text);
    let mut out = Expanded { text: String::with_capacity(marked.len()), secrets: Vec::new() };
    let mut faults = Vec::new();
    let mut copied = 0;
    for item in Parser::new_from_str(&marked) {
        let (event, span) = item.map_err(|error| vec![(error.marker().line(), unmark(&error.info(), &parts))])?;
        let Event::Scalar(value, style, ..) = event else { continue };
        if !value.contains(OPEN) {
            continue;
        }
        let line = span.start.line();
        let (Some(range), false) = (span.byte_range(), is_multiline(style, line, span.end.line())) else {
            faults.push((line, "placeholders work in one-line values only; put this value on one line".to_owned()));
            continue;
        };
        match resolve(&value, &parts, env, &mut out.secrets) {
            Ok(resolved) => {
                out.text.push_str(marked.get(copied..range.start).unwrap_or_default());
                out.text.push_str(&scalar(&resolved, style == ScalarStyle::Plain));
                copied = range.end;
            }
            Err(message) => faults.push((line, message)),
        }
    }
    out.text.push_str(marked.get(copied..).unwrap_or_default());
    if faults.is_empty() { Ok(out) } else { Err(faults) }
}

fn is_multiline(style: ScalarStyle, start: usize, end: usize) -> bool {
    matches!(style, ScalarStyle::Literal | ScalarStyle::Folded) || start != end
}

/// Replaces each placeholder by its stand-in: `OPEN index CLOSE`.
fn mark(text: &str) -> (String, Vec<Part>) {
    let mut marked = String::with_capacity(text.len());
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        marked.push_str(before);
        let (part, remaining) = if let Some(after) = after.strip_prefix('$') {
            (Part::Dollar, after)
        } else if let Some(inside) = after.strip_prefix('{') {
            placeholder(inside)
        } else {
            marked.push('$');
            rest = after;
            continue;
        };
        // Writing to a String cannot fail.
        write!(marked, "{OPEN}{}{CLOSE}", parts.len()).unwrap_or_default();
        parts.push(part);
        rest = remaining;
    }
    marked.push_str(rest);
    (marked, parts)
}

/// Reads what follows `${`, and returns what follows the `}`.
fn placeholder(inside: &str) -> (Part, &str) {
    let line = inside.split('\n').next().unwrap_or_default();
    let Some((body, _)) = line.split_once('}') else {
        return (Part::Broken("`${` has no `}` on its line; close it, or write `$${` for the text".to_owned()), inside);
    };
    let remaining = inside.get(body.len() + 1..).unwrap_or_default();
    let (name, default) = match body.split_once(":-") {
        Some((name, default)) => (name, Some(default.to_owned())),
        None => (body, None),
    };
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if starts && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return (Part::Variable { name: name.to_owned(), default }, remaining);
    }
    let message =
        format!("`${{{body}}}` is no placeholder; write ${{VAR}} or ${{VAR:-default}}, or `$${{` for the text");
    (Part::Broken(message), remaining)
}

/// The value of a scalar with stand-ins.
fn resolve(
    value: &str,
    parts: &[Part],
    env: &dyn Fn(&str) -> Option<String>,
    secrets: &mut Vec<(String, String)>,
) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once(OPEN) {
        out.push_str(before);
        let (index, remaining) = after.split_once(CLOSE).unwrap_or((after, ""));
        match index.parse::<usize>().ok().and_then(|index| parts.get(index)) {
            Some(Part::Variable { name, default }) => {
                let resolved = variable(name, default.as_deref(), env)?;
                secrets.push((resolved.clone(), format!("${{{name}}}")));
                out.push_str(&resolved);
            }
            Some(Part::Broken(message)) => return Err(message.clone()),
            Some(Part::Dollar) | None => out.push('$'),
        }
        rest = remaining;
    }
    out.push_str(rest);
    Ok(out)
}

fn variable(name: &str, default: Option<&str>, env: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let found = env(name);
    let state = if found.is_some() { "empty" } else { "not set" };
    match (found.filter(|value| !value.is_empty()), default) {
        (Some(value), _) => Ok(value),
        (None, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(format!(
            "environment variable `{name}` is {state}; set it, or write ${{{name}:-default}} (${{{name}:-}} for empty)"
        )),
    }
}

/// Puts the placeholders back into a message of the parser.
fn unmark(message: &str, parts: &[Part]) -> String {
    parts.iter().enumerate().fold(message.to_owned(), |text, (index, part)| {
        let original = match part {
            Part::Variable { name, .. } => format!("${{{name}}}"),
            Part::Dollar | Part::Broken(_) => "$".to_owned(),
        };
        text.replace(&format!("{OPEN}{index}{CLOSE}"), &original)
    })
}

/// A value as a one-line YAML scalar: as it is where that is safe anywhere, else in double quotes.
///
/// A plain scalar stays plain when it can, so that `${PORT}` is a number.
fn scalar(value: &str, was_plain: bool) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '+' | '-' | '=' | '~');
    let colons_are_inside = !value.ends_with(':') && value.split(':').skip(1).all(|part| part.starts_with(safe));
    let starts_safely = value.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '.'));
    if was_plain && starts_safely && colons_are_inside && value.chars().all(|c| safe(c) || c == ':') {
        return value.to_owned();
    }
    let mut out = String::with_capacity(value.len() + 2);
    out.push('"');
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            // Every other character that YAML might treat as a line break or refuse.
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{FEFF}') => {
                write!(out, "\\U{:08X}", u32::from(c)).unwrap_or_default();
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests;
