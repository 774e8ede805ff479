//! Which bytes stand for a prompt, in the order in which a chat template would put them.
//!
//! Tools, system prompt, then messages with role tags; for completions the text or the token ids. White space between
//! JSON tokens, the order of members inside a message, and escapes make no difference. Only *leading* system messages
//! belong to the head: a later one stays where it is, or appending it would change every earlier hash.
//! Source: DESIGN section 2, "Prefix chain".

use smallvec::SmallVec;
use xxhash_rust::xxh3::Xxh3;

use super::{
    chain::{Chain, ChainSeed, Hasher},
    estimate::Weigher,
};
use crate::dialect::{
    Fields, Span,
    ids::plain_ids,
    json::{Cursor, Kind, ScanError, inside, unescape},
    scan::key_bytes,
};
use crate::types::Endpoint;

/// Between canonical parts. Text may hold the same bytes (escaped): prompts that collide by this only share a home.
const TOOLS: &[u8] = b"\x01tools\x02";
const SYSTEM: &[u8] = b"\x01system\x02";
const ROLE: &[u8] = b"\x01";
const CONTENT: &[u8] = b"\x02";
const NAME: &[u8] = b"\x04";
const CALL_ID: &[u8] = b"\x05";
const CALLS: &[u8] = b"\x06";
const OTHER: &[u8] = b"\x07";
const PART: &[u8] = b"\n";
/// Between the prompts of a batch: as long as a token id, and none.
const NEXT_PROMPT: &[u8] = &[0xff; 4];

/// The chain of a request's prompt. Never fails; a body without a prompt gives a chain without blocks.
///
/// Cost: one pass over the prompt at about memory speed; no allocation per message.
#[must_use]
pub fn chain(body: &[u8], fields: &Fields, endpoint: Endpoint, seed: &ChainSeed<'_>, block_bytes: u32) -> Chain {
    let mut walk = Walk { body, out: Hasher::new(seed, block_bytes, body.len()) };
    walk.request(fields, endpoint);
    walk.out.finish()
}

/// The weight of a request's prompt.
#[must_use]
pub(super) fn weigh(body: &[u8], fields: &Fields, endpoint: Endpoint) -> Weigher {
    let mut walk = Walk { body, out: Weigher::default() };
    walk.request(fields, endpoint);
    walk.out
}

/// Where canonical bytes go: into the chain, or into the digest of a part.
trait Sink {
    fn put(&mut self, piece: &[u8]);

    /// Tools and system prompt end here.
    fn end_of_head(&mut self) {}

    /// A message of a user ends here.
    fn end_of_user(&mut self) {}
}

impl Sink for Hasher {
    fn put(&mut self, piece: &[u8]) {
        Self::put(self, piece);
    }

    fn end_of_head(&mut self) {
        Self::end_of_head(self);
    }

    fn end_of_user(&mut self) {
        Self::end_of_user(self);
    }
}

impl Sink for Weigher {
    fn put(&mut self, piece: &[u8]) {
        Self::put(self, piece);
    }
}

impl Sink for Xxh3 {
    fn put(&mut self, piece: &[u8]) {
        self.update(piece);
    }
}

/// The members of a message that have a place of their own.
#[derive(Default)]
struct Message {
    role: Option<Span>,
    kind: Option<Span>,
    name: Option<Span>,
    call_id: Option<Span>,
    content: Option<Span>,
    calls: Option<Span>,
    /// Sum of the digests of all other members: the same in any order.
    other: u64,
}

struct Walk<'a, S> {
    body: &'a [u8],
    out: S,
}

impl<'a, S: Sink> Walk<'a, S> {
    fn request(&mut self, fields: &Fields, endpoint: Endpoint) {
        match endpoint {
            Endpoint::Chat => self.chat(fields, None, fields.messages),
            Endpoint::Messages => self.chat(fields, fields.system, fields.messages),
            Endpoint::Responses => self.chat(fields, fields.instructions, fields.input),
            Endpoint::Completions => self.plain(&[fields.prompt]),
            Endpoint::Embeddings | Endpoint::Tokenize => match fields.messages {
                Some(_) => self.chat(fields, None, fields.messages),
                None => self.plain(&[fields.input, fields.prompt]),
            },
            Endpoint::Rerank => self.plain(&[fields.query, fields.documents]),
            Endpoint::Score => self.plain(&[fields.text_1, fields.text_2]),
            Endpoint::Detokenize => self.plain(&[fields.tokens]),
        }
    }

    fn chat(&mut self, fields: &Fields, system: Option<Span>, messages: Option<Span>) {
        if let Some(tools) = fields.tools {
            self.out.put(TOOLS);
            compact(self.body, tools, &mut self.out);
        }
        if let Some(system) = system {
            self.out.put(SYSTEM);
            self.content(system);
        }
        if let Some(messages) = messages {
            // A part that breaks off stays as far as it went: the scan has already refused such a body.
            self.messages(messages).unwrap_or_default();
        }
        self.out.end_of_head();
    }

    fn messages(&mut self, span: Span) -> Result<(), ScanError> {
        let mut cursor = Cursor::new(self.body, span.start);
        if cursor.kind() != Kind::Array {
            self.out.end_of_head();
            self.out.put(ROLE);
            self.out.put(b"user");
            self.out.put(CONTENT);
            self.content(span);
            self.out.end_of_user();
            return Ok(());
        }
        let mut more = cursor.open(b'[', b']')?;
        while more {
            if cursor.kind() == Kind::Object {
                let message = self.message(&mut cursor)?;
                self.put_message(&message);
            } else {
                let value = cursor.value()?;
                self.out.end_of_head();
                self.out.put(ROLE);
                compact(self.body, value, &mut self.out);
            }
            more = cursor.more(b']')?;
        }
        Ok(())
    }

    /// Reads one message object and leaves the cursor behind it.
    fn message(&self, cursor: &mut Cursor<'_>) -> Result<Message, ScanError> {
        let mut message = Message::default();
        let mut more = cursor.open(b'{', b'}')?;
        while more {
            let key = cursor.key()?;
            let value = cursor.value()?;
            match &*key_bytes(self.body, key) {
                b"role" => message.role = Some(value),
                b"type" => message.kind = Some(value),
                b"name" => message.name = Some(value),
                b"tool_call_id" | b"call_id" => message.call_id = Some(value),
                b"content" => message.content = Some(value),
                b"tool_calls" => message.calls = Some(value),
                other => message.other = message.other.wrapping_add(member_digest(self.body, other, value)),
            }
            more = cursor.more(b'}')?;
        }
        Ok(message)
    }

    fn put_message(&mut self, message: &Message) {
        let role = message.role.map_or(&b""[..], |role| inside(role.of(self.body)).unwrap_or_default());
        if !matches!(role, b"system" | b"developer") {
            self.out.end_of_head();
        }
        self.out.put(ROLE);
        self.out.put(role);
        for (tag, span) in [(NAME, message.name), (CALL_ID, message.call_id), (PART, message.kind)] {
            if let Some(span) = span {
                self.out.put(tag);
                compact(self.body, span, &mut self.out);
            }
        }
        self.out.put(CONTENT);
        if let Some(content) = message.content {
            self.content(content);
        }
        if let Some(calls) = message.calls {
            self.out.put(CALLS);
            compact(self.body, calls, &mut self.out);
        }
        if message.other != 0 {
            self.out.put(OTHER);
            self.out.put(&message.other.to_le_bytes());
        }
        if role == b"user" {
            self.out.end_of_user();
        }
    }

    /// A string, null, or a list of parts. One text part is the same as the string.
    fn content(&mut self, span: Span) {
        let mut cursor = Cursor::new(self.body, span.start);
        match cursor.kind() {
            Kind::Array => self.parts(&mut cursor).unwrap_or_default(),
            Kind::Text => string(span.of(self.body), &mut self.out),
            _ if span.of(self.body) == b"null" => {}
            _ => compact(self.body, span, &mut self.out),
        }
    }

    fn parts(&mut self, cursor: &mut Cursor<'a>) -> Result<(), ScanError> {
        let mut more = cursor.open(b'[', b']')?;
        let mut first = true;
        while more {
            if !first {
                self.out.put(PART);
            }
            first = false;
            match cursor.kind() {
                Kind::Object => self.part(cursor)?,
                Kind::Text => string(cursor.value()?.of(self.body), &mut self.out),
                _ => compact(self.body, cursor.value()?, &mut self.out),
            }
            more = cursor.more(b']')?;
        }
        Ok(())
    }

    /// Text parts are their text; all others (images, audio, what is not known yet) a digest of their members.
    fn part(&mut self, cursor: &mut Cursor<'a>) -> Result<(), ScanError> {
        let mut members: SmallVec<[(Span, Span); 6]> = SmallVec::new();
        let mut text = None;
        let mut is_text = false;
        let mut more = cursor.open(b'{', b'}')?;
        while more {
            let key = cursor.key()?;
            let value = cursor.value()?;
            match &*key_bytes(self.body, key) {
                b"text" => text = Some(value),
                b"type" => {
                    is_text = matches!(value.of(self.body), br#""text""# | br#""input_text""# | br#""output_text""#);
                }
                _ => {}
            }
            members.push((key, value));
            more = cursor.more(b'}')?;
        }
        // Text that is no string is read by no engine; a list there would be walked again at each level.
        let text = text.map(|text| text.of(self.body)).filter(|text| is_text && text.starts_with(b"\""));
        if let Some(text) = text {
            string(text, &mut self.out);
            return Ok(());
        }
        let digest = members.iter().fold(0_u64, |sum, (key, value)| {
            sum.wrapping_add(member_digest(self.body, &key_bytes(self.body, *key), *value))
        });
        self.out.put(OTHER);
        self.out.put(&digest.to_le_bytes());
        Ok(())
    }

    /// Prompts without roles, one after the other.
    fn plain(&mut self, prompts: &[Option<Span>]) {
        for (number, prompt) in prompts.iter().flatten().enumerate() {
            if number > 0 {
                self.out.put(NEXT_PROMPT);
            }
            self.prompt(*prompt).unwrap_or_default();
        }
        self.out.end_of_user();
    }

    /// A string, a list of token ids, or a list of such.
    fn prompt(&mut self, span: Span) -> Result<(), ScanError> {
        let mut cursor = Cursor::new(self.body, span.start);
        if cursor.kind() != Kind::Array {
            self.content(span);
            return Ok(());
        }
        let mut more = cursor.open(b'[', b']')?;
        let mut previous = None;
        while more {
            let kind = cursor.kind();
            if previous.is_some_and(|previous| previous != Kind::Scalar || kind != Kind::Scalar) {
                self.out.put(NEXT_PROMPT);
            }
            previous = Some(kind);
            more = match kind {
                Kind::Scalar => ids(self.body, &mut cursor, &mut self.out)?,
                Kind::Array => {
                    let mut inner = cursor.open(b'[', b']')?;
                    while inner {
                        inner = ids(self.body, &mut cursor, &mut self.out)?;
                    }
                    cursor.more(b']')?
                }
                Kind::Text | Kind::Object => {
                    let value = cursor.value()?;
                    self.content(value);
                    cursor.more(b']')?
                }
            };
        }
        Ok(())
    }
}

/// Puts token ids as four bytes each, up to the end of the array or something that is no plain id. True if more follows.
fn ids<'a>(body: &'a [u8], cursor: &mut Cursor<'a>, out: &mut impl Sink) -> Result<bool, ScanError> {
    let at = plain_ids(body, cursor.offset(), |piece| out.put(piece));
    cursor.skip(at - cursor.offset());
    cursor.space();
    let kind = cursor.kind();
    let value = cursor.value()?;
    match std::str::from_utf8(value.of(body)).ok().and_then(|text| text.parse::<u32>().ok()) {
        Some(value) if kind == Kind::Scalar => out.put(&value.to_le_bytes()),
        _ => compact(body, value, out),
    }
    cursor.more(b']')
}

/// Digest of one member, for sums that do not depend on order.
fn member_digest(body: &[u8], key: &[u8], value: Span) -> u64 {
    let mut digest = Xxh3::new();
    digest.update(key);
    digest.update(CONTENT);
    compact(body, value, &mut digest);
    digest.digest()
}

/// Puts the unescaped text of a string value.
fn string(value: &[u8], out: &mut impl Sink) {
    unescape(inside(value).unwrap_or(value), |piece| out.put(piece));
}

/// Puts a value without the white space between its tokens and with its strings unescaped. Order of members stays:
/// chat templates print tools in it.
fn compact(body: &[u8], span: Span, out: &mut impl Sink) {
    let mut cursor = Cursor::new(body, span.start);
    let mut plain = span.start;
    let text = |from, to| Span { start: from, end: to };
    while cursor.offset() < span.end {
        let at = cursor.offset();
        if cursor.kind() == Kind::Text {
            out.put(text(plain, at + 1).of(body));
            if cursor.string().is_err() {
                return;
            }
            string(text(at, cursor.offset()).of(body), out);
            plain = cursor.offset() - 1;
            continue;
        }
        cursor.space();
        if cursor.offset() > at {
            out.put(text(plain, at).of(body));
            plain = cursor.offset();
        } else {
            cursor.skip(1);
        }
    }
    out.put(text(plain, span.end).of(body));
}

#[cfg(test)]
mod tests;
