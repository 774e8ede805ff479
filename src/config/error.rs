//! What is wrong with a configuration, said so that a person can mend it without reading code.
//!
//! Each problem is one line: `file:line: key path, value, remedy`. Source lines are never quoted: a line may hold a
//! literal secret. A value that came out of a `${VAR}` is written as the placeholder again.

use std::fmt;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where: `file:line`, a file, or a flag.
    pub place: String,
    /// What, with the key path, the value and the remedy.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// Everything that is wrong with a configuration; never empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// In the order of the file.
    pub problems: Vec<Problem>,
}

impl ConfigError {
    pub(super) fn one(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { problems: vec![Problem { place: place.into(), message: message.into() }] }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}
