//! Finds the fields of a request body that the gateway acts on: one pass, spans only.
//!
//! What it accepts, an engine reads with the same meaning: keys may be escaped (`"mod\u0065l"`), and of a key that
//! occurs twice the last counts, as in Python's `json` and in `serde_json`. Earlier ones are kept aside for
//! [`Fields::duplicates_of`], so that a cap can be written over every one of them.
//! Source: DESIGN section 1, rules 2 and 3; cases BR-026 to BR-044.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::json::{Cursor, Kind, inside, text, unescape};
pub use super::json::{ScanError, Span};

macro_rules! fields {
    ($( $(#[$doc:meta])* $name:ident = $($key:literal)|+ ; )*) => {
        /// Value spans of the top-level fields that matter; of duplicates the last.
        #[derive(Clone, Debug, Default)]
        pub struct Fields {
            $( $(#[$doc])* pub $name: Option<Span>, )*
            /// Value of `include_usage` inside `stream_options`.
            pub include_usage: Option<Span>,
            /// Offset of the `}` that closes the body.
            pub close: usize,
            /// Whether the body has no member at all.
            pub empty: bool,
            /// Whether any field above occurs more than once.
            pub duplicates: bool,
            earlier: SmallVec<[(&'static str, Span); 2]>,
        }

        impl Fields {
            /// The place for a key's value, and the field's own name.
            fn slot(&mut self, key: &[u8]) -> Option<(&'static str, &mut Option<Span>)> {
                $( $( const { assert!($key.is_ascii()) }; )+ )*
                match std::str::from_utf8(key).ok()? {
                    $( $($key)|+ => Some((stringify!($name), &mut self.$name)), )*
                    _ => None,
                }
            }
        }
    };
}

fields! {
    /// `model`
    model = "model";
    /// `stream`
    stream = "stream";
    /// `stream_options`
    stream_options = "stream_options";
    /// `max_tokens`
    max_tokens = "max_tokens";
    /// `max_completion_tokens`
    max_completion_tokens = "max_completion_tokens";
    /// `max_output_tokens`
    max_output_tokens = "max_output_tokens";
    /// `min_tokens`
    min_tokens = "min_tokens";
    /// `n`
    n = "n";
    /// `best_of`
    best_of = "best_of";
    /// `messages`
    messages = "messages";
    /// `prompt`
    prompt = "prompt";
    /// `input`
    input = "input";
    /// `instructions`
    instructions = "instructions";
    /// `system`
    system = "system";
    /// `tools`
    tools = "tools";
    /// `cache_salt`
    cache_salt = "cache_salt";
    /// `prompt_cache_key`
    prompt_cache_key = "prompt_cache_key";
    /// `user`
    user = "user";
    /// The adapter: `lora_path` (SGLang), `lora_adapter`, `adapter_id` (TGI)
    lora = "lora_path" | "lora_adapter" | "lora" | "adapter_id";
    /// `chat_template_kwargs`
    chat_template_kwargs = "chat_template_kwargs";
    /// `text_1` of a score request
    text_1 = "text_1";
    /// `text_2` of a score request
    text_2 = "text_2";
    /// `query` of a rerank request
    query = "query";
    /// `documents` of a rerank request
    documents = "documents";
    /// `tokens` of a detokenize request
    tokens = "tokens";
}

impl Fields {
    /// Spans of the earlier values of a field that occurs more than once, by its key, in order of the body.
    pub fn duplicates_of(&self, key: &str) -> impl Iterator<Item = Span> {
        self.earlier.iter().filter(move |(name, _)| *name == key).map(|(_, span)| *span)
    }

    /// Spans of all earlier values of fields that occur more than once.
    pub fn earlier(&self) -> impl Iterator<Item = Span> {
        self.earlier.iter().map(|(_, span)| *span)
    }

    fn found(&mut self, key: &[u8], value: Span) {
        let Some((name, slot)) = self.slot(key) else { return };
        if let Some(earlier) = slot.replace(value) {
            self.duplicates = true;
            self.earlier.push((name, earlier));
        }
    }
}

/// Repeated fields that a body may have. No client sends one; each is work for the caps.
const MAX_DUPLICATES: usize = 16;

/// Byte order mark, which Python's `json.loads` skips.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// Scans a body. Time: about memory speed in strings, about 1 GB/s in arrays of token ids; no allocation.
///
/// # Errors
/// If the body is not one JSON object in UTF-8, nested to at most 127 levels, with nothing after it.
pub fn scan(body: &[u8]) -> Result<Fields, ScanError> {
    if let Err(error) = std::str::from_utf8(body) {
        return Err(ScanError { offset: error.valid_up_to(), what: "not UTF-8" });
    }
    let mut cursor = Cursor::strict(body, if body.starts_with(MARK) { MARK.len() } else { 0 });
    cursor.space();
    if cursor.kind() != Kind::Object {
        return Err(cursor.error("expected a JSON object"));
    }
    let mut fields = Fields { empty: true, ..Fields::default() };
    let mut more = cursor.open(b'{', b'}')?;
    while more {
        fields.empty = false;
        let key = cursor.key()?;
        let value = cursor.value()?;
        fields.found(&key_bytes(body, key), value);
        if fields.earlier.len() > MAX_DUPLICATES {
            return Err(cursor.error("too many duplicate fields"));
        }
        more = cursor.more(b'}')?;
    }
    fields.close = cursor.offset() - 1;
    if !cursor.at_end() {
        return Err(cursor.error("text after the end of the JSON object"));
    }
    fields.include_usage = fields.stream_options.and_then(|options| member(body, options, b"include_usage"));
    Ok(fields)
}

/// Unescaped bytes of a key; borrowed unless it has an escape.
#[must_use]
pub fn key_bytes(body: &[u8], key: Span) -> Cow<'_, [u8]> {
    let inside = inside(key.of(body)).unwrap_or_default();
    if memchr::memchr(b'\\', inside).is_none() {
        return Cow::Borrowed(inside);
    }
    let mut plain = Vec::with_capacity(inside.len());
    unescape(inside, |piece| plain.extend_from_slice(piece));
    Cow::Owned(plain)
}

/// Value of the last member with this key, if the value at `span` is an object that has it.
#[must_use]
pub fn member(body: &[u8], span: Span, key: &[u8]) -> Option<Span> {
    let mut cursor = Cursor::new(body, span.start);
    let mut found = None;
    let mut more = cursor.open(b'{', b'}').ok()?;
    while more {
        let name = cursor.key().ok()?;
        let value = cursor.value().ok()?;
        if *key_bytes(body, name) == *key {
            found = Some(value);
        }
        more = cursor.more(b'}').ok()?;
    }
    found
}

/// The unescaped text of a string; lone surrogates become U+FFFD. `None` if the value is not a string.
#[must_use]
pub fn string_value(body: &[u8], span: Span) -> Option<Cow<'_, str>> {
    text(span.of(body))
}

/// The value of `true` or `false`. `None` for anything else: engines differ on `1` and `"true"`.
#[must_use]
pub fn bool_value(body: &[u8], span: Span) -> Option<bool> {
    match span.of(body) {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

/// The value of a number that is whole, however it is written (`5`, `5.0`, `5e0`), saturating at the ends of `i64`.
///
/// `None` for a fraction and for anything that is not a number.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "a float cast saturates, which is what is wanted")]
pub fn int_value(body: &[u8], span: Span) -> Option<i64> {
    let text = std::str::from_utf8(span.of(body)).ok()?;
    if !text.starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
        return None;
    }
    if let Ok(value) = text.parse() {
        return Some(value);
    }
    let value: f64 = text.parse().ok()?;
    (value.fract() == 0.0 || value.is_infinite()).then_some(value as i64)
}

#[cfg(test)]
mod tests;
