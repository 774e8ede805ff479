//! Durations in the configuration: `50ms`, `2s`, `5m`, `1h 30m`.
//!
//! A bare number is refused: `30` has been read as milliseconds and as seconds by different people.
//! Use with `#[serde(with = "period")]`, or `period::optional` for a key that may be null.

use std::{fmt, time::Duration};

use humantime_serde::re::humantime;
use serde::{Deserializer, Serializer, de};

/// Reads a duration.
///
/// # Errors
/// A text for people: what the value must look like.
pub fn parse(text: &str) -> Result<Duration, String> {
    if text.trim().parse::<f64>().is_ok() {
        return Err(format!("`{text}` has no unit; write it as in 50ms, {}s or 5m", text.trim()));
    }
    humantime::parse_duration(text.trim())
        .map_err(|_| format!("`{text}` is not a duration; write it as in 50ms, 2s, 5m or 1h 30m"))
}

/// Writes a duration, as in `50ms` or `5m`.
#[must_use]
pub fn display(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

struct PeriodVisitor;

impl de::Visitor<'_> for PeriodVisitor {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration as in 50ms, 2s or 5m")
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Duration, E> {
        parse(value).map_err(E::custom)
    }
}

/// For `#[serde(with)]`.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    deserializer.deserialize_str(PeriodVisitor)
}

/// For `#[serde(with)]`.
pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&display(*duration))
}

/// The same for a key that may be null.
pub(super) mod optional {
    use super::{Deserializer, Duration, Serializer, display};
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct Wrapped(#[serde(with = "super")] Duration);

    /// For `#[serde(with)]`.
    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Wrapped>::deserialize(d)?.map(|wrapped| wrapped.0))
    }

    /// For `#[serde(with)]`.
    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(in crate::config) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(duration) => serializer.serialize_str(&display(*duration)),
            None => serializer.serialize_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_needs_a_unit() {
        assert_eq!(parse("50ms"), Ok(Duration::from_millis(50)));
        assert_eq!(parse("1h 30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse("30"), Err("`30` has no unit; write it as in 50ms, 30s or 5m".to_owned()));
        assert!(parse("soon").is_err());
        assert!(parse("-1s").is_err());
    }
}
