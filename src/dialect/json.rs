//! A cursor over JSON text that skips values without recursion, allocation or a tree.
//!
//! It accepts what Python's `json.loads` accepts: strict JSON and also `NaN`, `Infinity`, `-Infinity` and escapes of
//! lone surrogates. A number is never converted, so no literal is too large. The text must already be UTF-8.
//! Source: RFC 8259; `CPython` `Lib/json/scanner.py`; engines read bodies with one of `json`, `pydantic-core`, `orjson`.

use std::borrow::Cow;

use memchr::{memchr, memrchr};

use super::ids::{Ids, LIST_CHUNK, is_list};

/// Deepest nesting of arrays and objects. `serde_json` stops at the same depth; no chat body comes near it.
pub const MAX_DEPTH: u32 = 127;

/// Byte range of a JSON value in the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// The bytes of this span; empty if the body is shorter than the span says.
    #[must_use]
    pub fn of<'a>(&self, body: &'a [u8]) -> &'a [u8] {
        body.get(self.start..self.end).unwrap_or_default()
    }
}

/// Why a body is not JSON that an engine would read, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: {what}")]
pub struct ScanError {
    /// Offset of the offending byte; the body's length when it ends too early.
    pub offset: usize,
    /// What was wrong there.
    pub what: &'static str,
}

/// First character of a value, as far as the first byte tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `"`
    Text,
    /// `[`
    Array,
    /// `{`
    Object,
    /// a number, or one of the words `true`, `false`, `null`, `NaN`, `Infinity`
    Scalar,
}

/// Which containers are open: one bit each, set for an object.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    objects: u128,
    depth: u32,
}

impl Open {
    /// False when that would be too deep.
    fn push(&mut self, object: bool) -> bool {
        self.objects = (self.objects << 1) | u128::from(object);
        self.depth += 1;
        self.depth <= MAX_DEPTH
    }

    fn pop(&mut self) {
        self.objects >>= 1;
        self.depth -= 1;
    }

    const fn in_object(self) -> bool {
        self.objects & 1 == 1
    }
}

/// A position in JSON text. Every method leaves it behind what it consumed.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
    strict: bool,
}

impl<'a> Cursor<'a> {
    /// A cursor at `at`, for text that a strict one has accepted: the inside of strings is not looked at again.
    #[must_use]
    pub const fn new(text: &'a [u8], at: usize) -> Self {
        Self { text, at, strict: false }
    }

    /// A cursor at `at` that checks everything.
    #[must_use]
    pub const fn strict(text: &'a [u8], at: usize) -> Self {
        Self { text, at, strict: true }
    }

    /// The offset of the next byte.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.at
    }

    /// An error at the current position.
    #[must_use]
    pub const fn error(&self, what: &'static str) -> ScanError {
        ScanError { offset: self.at, what }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Takes `byte` if it is next.
    pub fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Moves on by a number of bytes, whatever they are.
    pub const fn skip(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// Skips white space.
    pub fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    /// Kind of the value that starts here.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.peek() {
            Some(b'"') => Kind::Text,
            Some(b'[') => Kind::Array,
            Some(b'{') => Kind::Object,
            _ => Kind::Scalar,
        }
    }

    /// Whether only white space is left.
    pub fn at_end(&mut self) -> bool {
        self.space();
        self.at >= self.text.len()
    }

    /// Starts an object or array: true if it has a first member or element, false if it was empty (and is consumed).
    ///
    /// # Errors
    /// If `open` is not next.
    pub fn open(&mut self, open: u8, close: u8) -> Result<bool, ScanError> {
        if !self.take(open) {
            return Err(self.error("expected an object or an array"));
        }
        self.space();
        Ok(!self.take(close))
    }

    /// After a member or element: true if another follows, false if the container was closed.
    ///
    /// # Errors
    /// If neither a comma nor `close` is next.
    pub fn more(&mut self, close: u8) -> Result<bool, ScanError> {
        self.space();
        if self.take(b',') {
            self.space();
            return Ok(true);
        }
        if self.take(close) {
            return Ok(false);
        }
        Err(self.error(if close == b'}' { "expected ',' or '}'" } else { "expected ',' or ']'" }))
    }

    /// Reads a member's key and colon, and stops at the value. The span includes the quotes.
    ///
    /// # Errors
    /// If no string or no colon is next.
    pub fn key(&mut self) -> Result<Span, ScanError> {
        let start = self.at;
        if self.peek() != Some(b'"') {
            return Err(self.error("expected a member name in quotes"));
        }
        self.string()?;
        let span = Span { start, end: self.at };
        self.space();
        if !self.take(b':') {
            return Err(self.error("expected ':'"));
        }
        self.space();
        Ok(span)
    }

    /// Skips one value of any depth and gives its span.
    ///
    /// # Errors
    /// If the text is not JSON there.
    pub fn value(&mut self) -> Result<Span, ScanError> {
        let start = self.at;
        let mut open = Open::default();
        loop {
            let closed = match self.peek() {
                Some(b'"') => {
                    self.string()?;
                    true
                }
                Some(b'{') => self.enter(true, &mut open)?,
                Some(b'[') => self.enter(false, &mut open)?,
                _ => {
                    self.scalar()?;
                    true
                }
            };
            if closed && self.leave(&mut open)? {
                return Ok(Span { start, end: self.at });
            }
        }
    }

    /// Opens a container. True if it was empty and is closed again; else stops at its first value.
    fn enter(&mut self, object: bool, open: &mut Open) -> Result<bool, ScanError> {
        if !open.push(object) {
            return Err(self.error("nested too deeply"));
        }
        let (first, last) = if object { (b'{', b'}') } else { (b'[', b']') };
        if !self.open(first, last)? {
            open.pop();
            return Ok(true);
        }
        if object {
            self.key()?;
        } else {
            self.numbers();
        }
        Ok(false)
    }

    /// After a value: closes containers until another value follows (false) or none is open (true).
    fn leave(&mut self, open: &mut Open) -> Result<bool, ScanError> {
        while open.depth > 0 {
            let object = open.in_object();
            if self.more(if object { b'}' } else { b']' })? {
                if object {
                    self.key()?;
                }
                return Ok(false);
            }
            open.pop();
        }
        Ok(true)
    }

    /// Skips plain whole numbers with their commas, as far as each is surely followed by another value.
    ///
    /// Token-id prompts are megabytes of these. Anything unusual stops it and is left to [`Cursor::scalar`].
    fn numbers(&mut self) {
        let start = self.at;
        while let Some(window) = self.text.get(self.at.saturating_sub(1)..=self.at + LIST_CHUNK)
            && is_list(window)
        {
            self.at += LIST_CHUNK;
        }
        // The last chunk may have ended inside a number.
        let passed = self.text.get(start..self.at).unwrap_or_default();
        self.at = memrchr(b',', passed).map_or(start, |comma| start + comma + 1);
        self.space();
        let ids = Ids::new(self.text, self.at);
        while let Some(next) = ids.skip(self.at) {
            self.at = next;
        }
        self.space();
    }

    /// Skips a string, the cursor being at its opening quote.
    ///
    /// # Errors
    /// If it does not end; for a strict cursor also if it holds a control character or a bad escape.
    pub fn string(&mut self) -> Result<(), ScanError> {
        let start = self.at + 1;
        let mut end = start;
        loop {
            let rest = self.text.get(end..).unwrap_or_default();
            let Some(length) = memchr(b'"', rest) else {
                self.at = self.text.len();
                return Err(self.error("the string does not end"));
            };
            end += length;
            let inside = self.text.get(start..end).unwrap_or_default();
            // A quote after an odd number of backslashes is escaped.
            let backslashes = inside.iter().rev().take_while(|byte| **byte == b'\\').count();
            end += 1;
            if backslashes.is_multiple_of(2) {
                if self.strict {
                    check_string(inside).map_err(|error| ScanError { offset: start + error.offset, ..error })?;
                }
                self.at = end;
                return Ok(());
            }
        }
    }

    /// Skips a number or a word.
    fn scalar(&mut self) -> Result<(), ScanError> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let length = match rest.first() {
            None => return Err(self.error("expected a value, found the end")),
            Some(b't') => word(rest, b"true"),
            Some(b'f') => word(rest, b"false"),
            Some(b'n') => word(rest, b"null"),
            Some(b'N') => word(rest, b"NaN"),
            Some(b'I') => word(rest, b"Infinity"),
            Some(b'-') => word(rest, b"-Infinity").or_else(|| number_length(rest)),
            Some(_) => number_length(rest),
        };
        self.at += length.ok_or_else(|| self.error("expected a value"))?;
        Ok(())
    }
}

fn word(text: &[u8], word: &[u8]) -> Option<usize> {
    text.starts_with(word).then_some(word.len())
}

/// Bytes below 0x20 are not allowed inside strings. Folds without early exit, so that it is vectorised.
fn has_control(text: &[u8]) -> bool {
    text.chunks(512).any(|chunk| chunk.iter().fold(u8::MAX, |low, byte| low.min(*byte)) < 0x20)
}

/// Checks the inside of a string; offsets are from its start.
fn check_string(inside: &[u8]) -> Result<(), ScanError> {
    if has_control(inside) {
        let offset = inside.iter().position(|byte| *byte < 0x20).unwrap_or(0);
        return Err(ScanError { offset, what: "control character inside a string" });
    }
    let mut offset = 0;
    while let Some(rest) = inside.get(offset..)
        && let Some(length) = memchr(b'\\', rest)
    {
        offset += length;
        let escape = rest.get(length..).and_then(escape_length);
        offset += escape.ok_or(ScanError { offset, what: "bad escape inside a string" })?;
    }
    Ok(())
}

/// Length of the escape at the start of `text`, if it is one.
fn escape_length(text: &[u8]) -> Option<usize> {
    match text.get(1)? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(2),
        b'u' => text.get(2..6)?.iter().all(u8::is_ascii_hexdigit).then_some(6),
        _ => None,
    }
}

pub(super) fn digits(text: &[u8], from: usize) -> usize {
    text.get(from..).unwrap_or_default().iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// Length of the JSON number at the start of `text`, if there is one.
fn number_length(text: &[u8]) -> Option<usize> {
    let mut at = usize::from(text.first() == Some(&b'-'));
    let whole = digits(text, at);
    if whole == 0 || (whole > 1 && text.get(at) == Some(&b'0')) {
        return None;
    }
    at += whole;
    if text.get(at) == Some(&b'.') {
        let fraction = digits(text, at + 1);
        if fraction == 0 {
            return None;
        }
        at += 1 + fraction;
    }
    if let Some(b'e' | b'E') = text.get(at) {
        let sign = usize::from(matches!(text.get(at + 1), Some(b'+' | b'-')));
        let exponent = digits(text, at + 1 + sign);
        if exponent == 0 {
            return None;
        }
        at += 1 + sign + exponent;
    }
    Some(at)
}

/// Calls `put` with the unescaped bytes of a string's inside, in pieces; pieces without escapes are not copied.
///
/// A lone surrogate comes out as three bytes that are not UTF-8 (as in WTF-8), so different ones stay different.
pub fn unescape(inside: &[u8], mut put: impl FnMut(&[u8])) {
    let mut rest = inside;
    while let Some(length) = memchr(b'\\', rest) {
        let (plain, escape) = rest.split_at_checked(length).unwrap_or_default();
        if !plain.is_empty() {
            put(plain);
        }
        let used = match escape.get(1) {
            Some(b'u') => unicode_escape(escape, &mut put),
            Some(letter) => {
                put(&[letter_escape(*letter)]);
                2
            }
            None => 1,
        };
        rest = escape.get(used..).unwrap_or_default();
    }
    if !rest.is_empty() {
        put(rest);
    }
}

const fn letter_escape(letter: u8) -> u8 {
    match letter {
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        other => other,
    }
}

/// Decodes `\uXXXX`, with its second half if it is the first of a pair, and gives the bytes used.
fn unicode_escape(escape: &[u8], put: &mut impl FnMut(&[u8])) -> usize {
    let Some(unit) = hex4(escape) else { return 2 };
    let mut buffer = [0; 4];
    if let Some(plain) = char::from_u32(unit) {
        put(plain.encode_utf8(&mut buffer).as_bytes());
        return 6;
    }
    let second = if unit < 0xdc00 { escape.get(6..).and_then(hex4) } else { None };
    if let Some(second @ 0xdc00..=0xdfff) = second {
        let code = 0x1_0000 + ((unit - 0xd800) << 10) + (second - 0xdc00);
        put(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER).encode_utf8(&mut buffer).as_bytes());
        return 12;
    }
    let [.., top, bottom] = unit.to_be_bytes();
    put(&[0xe0 | (top >> 4), 0x80 | ((top & 0x0f) << 2) | (bottom >> 6), 0x80 | (bottom & 0x3f)]);
    6
}

/// The sixteen bits of a `\uXXXX`.
fn hex4(escape: &[u8]) -> Option<u32> {
    let [b'\\', b'u', hex @ ..] = escape.get(..6)? else { return None };
    hex.iter().try_fold(0, |value, digit| Some(value * 16 + char::from(*digit).to_digit(16)?))
}

/// The inside of a string value without its quotes, or `None` if the value is not a string.
#[must_use]
pub fn inside(value: &[u8]) -> Option<&[u8]> {
    let [b'"', inside @ .., b'"'] = value else { return None };
    Some(inside)
}

/// The unescaped text of a string value; lone surrogates become U+FFFD. `None` if the value is not a string.
#[must_use]
pub fn text(value: &[u8]) -> Option<Cow<'_, str>> {
    let inside = inside(value)?;
    if memchr(b'\\', inside).is_none() {
        return Some(String::from_utf8_lossy(inside));
    }
    let mut plain = Vec::with_capacity(inside.len());
    unescape(inside, |piece| plain.extend_from_slice(piece));
    Some(Cow::Owned(String::from_utf8_lossy(&plain).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_longer_than_a_chunk_are_judged_like_short_ones() {
        let list = |number: &str, separator: &str| format!("[{}5]", format!("{number}{separator}").repeat(400));
        let good = |text: &str| Cursor::strict(text.as_bytes(), 0).value().is_ok_and(|span| span.end == text.len());

        for separator in [",", ", ", " , ", ",\n  "] {
            for number in ["7", "0", "12345", "123456789012", "-1", "1.5", "\"x\"", "[1,2]", "null"] {
                assert!(good(&list(number, separator)), "{number:?} {separator:?}");
            }
            for number in ["01", "1 2", "", "-", "1,", "x", "1."] {
                assert!(!good(&list(number, separator)), "{number:?} {separator:?}");
            }
        }
        for cut in 0..700 {
            let text = list("12345", ",");
            assert!(Cursor::strict(text.split_at(cut).0.as_bytes(), 0).value().is_err(), "cut at {cut}");
            let wrong =
                text.bytes().enumerate().map(|(at, byte)| if at == cut + 1 { b';' } else { byte }).collect::<Vec<_>>();
            assert!(Cursor::strict(&wrong, 0).value().is_err(), "wrong byte at {cut}");
        }
    }

    #[test]
    fn escapes_are_decoded() {
        let text = |value: &str| text(value.as_bytes()).unwrap().into_owned();

        assert_eq!(text(r#""a\n\"\\\/\u00e9\ud83d\ude00""#), "a\n\"\\/é😀");
        assert_eq!(text(r#""x\ud83d here""#), "x\u{fffd}\u{fffd}\u{fffd} here");
    }

    #[test]
    fn lone_surrogates_stay_different() {
        let bytes = |inside: &str| {
            let mut plain = Vec::new();
            unescape(inside.as_bytes(), |piece| plain.extend_from_slice(piece));
            plain
        };

        assert_eq!(bytes(r"\ud800"), [0xed, 0xa0, 0x80]);
        assert_eq!(bytes(r"\udfff"), [0xed, 0xbf, 0xbf]);
        assert_eq!(bytes(r"\ud800\ud800"), [0xed, 0xa0, 0x80, 0xed, 0xa0, 0x80]);
    }

    #[test]
    fn nesting_has_a_bound() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);

        assert!(Cursor::new(nested(127).as_bytes(), 0).value().is_ok());
        assert_eq!(Cursor::new(nested(128).as_bytes(), 0).value().unwrap_err().offset, 127);
        assert!(Cursor::new("[".repeat(1 << 20).as_bytes(), 0).value().is_err());
    }
}
