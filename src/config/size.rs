//! Byte sizes in the configuration: `1048576`, `32MiB`, `1 GB`.
//!
//! `KiB MiB GiB` are powers of 1024, `KB MB GB` powers of 1000, as in SI and IEC; case does not matter.
//! Use with `#[serde(with = "size")]`.

use std::fmt;

use serde::{Deserializer, Serializer, de};

/// Units, longest first, so that `KiB` is not read as `B`.
const UNITS: [(&str, u64); 10] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("b", 1),
    ("", 1),
];

/// Reads a size.
///
/// # Errors
/// A text for people: what the value must look like.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a size; write bytes or a unit, as in 1048576, 32KiB, 32MiB, 1GiB");
    let lower = text.trim().to_ascii_lowercase();
    let (unit, factor) = UNITS.iter().find(|(unit, _)| lower.ends_with(unit)).ok_or_else(wrong)?;
    let number = lower.strip_suffix(unit).unwrap_or(&lower).trim();
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(*factor).ok_or_else(|| format!("`{text}` is more than 16 EiB"))
}

/// Writes a size with the largest binary unit that divides it.
#[must_use]
pub fn display(bytes: u64) -> String {
    let units = [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.iter().find(|(_, factor)| bytes >= *factor && bytes % factor == 0) {
        Some((unit, factor)) => format!("{}{unit}", bytes / factor),
        None => bytes.to_string(),
    }
}

struct SizeVisitor;

impl de::Visitor<'_> for SizeVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size as in 1048576, 32KiB, 32MiB or 1GiB")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<u64, E> {
        Ok(value)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<u64, E> {
        u64::try_from(value).map_err(|_| E::custom(format!("`{value}` is negative; a size is 0 or more")))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<u64, E> {
        parse(value).map_err(E::custom)
    }
}

/// For `#[serde(with)]`.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    deserializer.deserialize_any(SizeVisitor)
}

/// For `#[serde(with)]`.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
pub(super) fn serialize<S: Serializer>(bytes: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&display(*bytes))
}

/// The same for sizes that index memory.
pub(super) mod addressable {
    use super::{Deserializer, Serializer, de, display};

    /// For `#[serde(with)]`.
    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<usize, D::Error> {
        let bytes = super::deserialize(d)?;
        usize::try_from(bytes).map_err(|_| de::Error::custom(format!("`{bytes}` is more than this machine addresses")))
    }

    /// For `#[serde(with)]`.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(in crate::config) fn serialize<S: Serializer>(bytes: &usize, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&display(*bytes as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        for (text, bytes) in [
            ("0", 0),
            ("1048576", 1 << 20),
            ("32KiB", 32 << 10),
            ("32 mib", 32 << 20),
            ("1GB", 1_000_000_000),
            ("7B", 7),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "MiB", "-1", "1.5GiB", "1 parsec", "99999999999GiB", "1e3"] {
            assert!(parse(text).is_err(), "{text} is accepted");
        }
    }

    #[test]
    fn a_shown_size_reads_back_the_same() {
        for bytes in [0, 1, 1023, 1024, 1 << 20, (1 << 20) + 1, 3 << 30] {
            assert_eq!(parse(&display(bytes)), Ok(bytes));
        }
    }
}
