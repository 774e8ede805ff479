//! Keeps a group's prompts apart from everybody else's in the replicas' caches.
//!
//! Whoever shares a prefix cache can time whether somebody else sent a prompt. So the request of an isolated group
//! carries a `cache_salt` that nobody outside can make, an HMAC of the group and of the client's own salt; the group is
//! part of the routing key; and nothing in the answer says where or how much of the prompt was cached.
//! Source: reference "reliability", section 4; vLLM's RFC on cache salting.

use bytes::Bytes;
use ring::hmac;
use secrecy::{ExposeSecret, SecretString};

use crate::{
    dialect::{scan::Fields, splice::Splices},
    error::{ErrorKind, GatewayError, Stage},
    types::Endpoint,
};

/// Bytes of the HMAC that become the salt: 128 bits cannot be guessed.
const SALT_BYTES: usize = 16;

/// Makes the salts.
pub struct Salts(hmac::Key);

impl std::fmt::Debug for Salts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Salts")
    }
}

impl Salts {
    /// Salts of this secret.
    #[must_use]
    pub fn new(secret: &SecretString) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret.expose_secret().as_bytes()))
    }

    /// The salt of a group whose client asked for `own`, the text of a JSON value.
    #[must_use]
    fn salt(&self, group: &str, own: Option<&[u8]>) -> String {
        let mut context = hmac::Context::with_key(&self.0);
        // The length keeps group "a" with the salt "b..." apart from group "ab" with "...".
        context.update(&(group.len() as u64).to_le_bytes());
        context.update(group.as_bytes());
        context.update(own.unwrap_or_default());
        let tag = context.sign();
        tag.as_ref().iter().take(SALT_BYTES).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Writes the group's salt over the client's.
///
/// # Errors
/// `Forbidden` for an endpoint whose requests cannot carry a salt to the engine.
pub fn isolate(
    splices: &mut Splices,
    body: &[u8],
    fields: &Fields,
    endpoint: Endpoint,
    (salts, group): (&Salts, &str),
) -> Result<(), GatewayError> {
    match endpoint {
        Endpoint::Chat | Endpoint::Completions | Endpoint::Responses => {}
        // The engine's parser of this endpoint drops the field; see `engines.md`.
        Endpoint::Messages => {
            let message = "this key's group is isolated, and /v1/messages cannot carry a cache salt to the engine; \
                           use /v1/chat/completions";
            return Err(GatewayError::new(ErrorKind::Forbidden, Stage::Admit, message));
        }
        // Pooling and tokenizing: the engines take no salt there.
        _ => return Ok(()),
    }
    let own = fields.cache_salt.map(|span| span.of(body)).filter(|value| *value != b"null");
    let salt = format!("\"{}\"", salts.salt(group, own));
    match fields.cache_salt {
        Some(span) => splices.replace(span, Bytes::from(salt)),
        None => splices.add_member(fields, "cache_salt", &salt),
    }
    Ok(())
}

/// The keys whose numbers tell what was cached: OpenAI's and Anthropic's.
const TELLING: [&[u8]; 3] = [b"\"cached_tokens\"", b"\"cache_read_input_tokens\"", b"\"cache_creation_input_tokens\""];

/// Writes zeros over the numbers that tell what was cached, in an answer that comes in pieces. Lengths stay.
#[derive(Debug, Default)]
pub struct Mask {
    state: Seek,
}

#[derive(Debug, Default, Clone, Copy)]
enum Seek {
    /// Looks for a key.
    #[default]
    Key,
    /// So many bytes of these keys (a bit each) have been seen.
    Inside { at: usize, fits: u8 },
    /// A key was seen; a colon must follow.
    Colon,
    /// Then the number.
    Number { begun: bool },
}

impl Mask {
    /// The same bytes, but for the digits.
    pub fn apply(&mut self, data: Bytes) -> Bytes {
        // Most frames hold no key at all: they are passed on as they are.
        if matches!(self.state, Seek::Key) && !ends_or_holds_key(&data) {
            return data;
        }
        let mut masked = data.to_vec();
        for byte in &mut masked {
            self.step(byte);
        }
        masked.into()
    }

    fn step(&mut self, byte: &mut u8) {
        self.state = match self.state {
            Seek::Key => begin(*byte),
            Seek::Inside { at, fits } => {
                let still = |(bit, key): (usize, &&[u8])| {
                    (fits & (1 << bit) != 0 && key.get(at) == Some(byte)).then_some(1 << bit)
                };
                let left: u8 = TELLING.iter().enumerate().filter_map(still).sum();
                let whole = TELLING.iter().enumerate().any(|(bit, key)| left & (1 << bit) != 0 && key.len() == at + 1);
                match (left, whole) {
                    (0, _) => begin(*byte),
                    (_, true) => Seek::Colon,
                    (fits, false) => Seek::Inside { at: at + 1, fits },
                }
            }
            Seek::Colon if *byte == b':' => Seek::Number { begun: false },
            Seek::Number { begun } if byte.is_ascii_digit() => {
                *byte = if begun { b' ' } else { b'0' };
                Seek::Number { begun: true }
            }
            Seek::Colon | Seek::Number { begun: false } if byte.is_ascii_whitespace() => self.state,
            Seek::Colon | Seek::Number { .. } => begin(*byte),
        };
    }
}

/// Where a byte outside any key leads.
fn begin(byte: u8) -> Seek {
    let all = (1 << TELLING.len()) - 1;
    if byte == b'"' { Seek::Inside { at: 1, fits: all } } else { Seek::Key }
}

/// Whether a key is in the data, or begins at its end and may go on in the next.
fn ends_or_holds_key(data: &[u8]) -> bool {
    let longest = TELLING.iter().map(|key| key.len()).max().unwrap_or_default();
    let tail = data.get(data.len().saturating_sub(longest)..).unwrap_or(data);
    let begins = |at: usize| tail.get(at..).is_some_and(|rest| TELLING.iter().any(|key| key.starts_with(rest)));
    memchr::memmem::find(data, b"\"cache").is_some() || memchr::memchr_iter(b'"', tail).any(begins)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(text: &str, piece: usize) -> String {
        let mut mask = Mask::default();
        let pieces = text.as_bytes().chunks(piece).map(Bytes::copy_from_slice);
        pieces.flat_map(|data| mask.apply(data).to_vec()).map(char::from).collect()
    }

    #[test]
    fn counts_of_cached_tokens_become_zero_however_the_answer_is_cut() {
        for (text, want) in [
            (r#"{"usage":{"cached_tokens":1024}}"#, r#"{"usage":{"cached_tokens":0   }}"#),
            (r#"{"cached_tokens" : 7 ,"prompt_tokens":9}"#, r#"{"cached_tokens" : 0 ,"prompt_tokens":9}"#),
            (r#"{"cache_read_input_tokens":12,"x":12}"#, r#"{"cache_read_input_tokens":0 ,"x":12}"#),
            (r#"{"cache_creation_input_tokens":88}"#, r#"{"cache_creation_input_tokens":0 }"#),
            (r#"{"a":"\"cached_tokens\":55","cached":3}"#, r#"{"a":"\"cached_tokens\":55","cached":3}"#),
            (r#"{"cached_tokens":null,"b":10}"#, r#"{"cached_tokens":null,"b":10}"#),
            (r#"{"x":"","cached_tokens":5}"#, r#"{"x":"","cached_tokens":0}"#),
        ] {
            for piece in 1..=text.len() {
                assert_eq!(masked(text, piece), want, "in pieces of {piece}");
            }
        }
    }

    #[test]
    fn a_frame_without_such_a_key_is_not_copied() {
        let data = Bytes::from_static(b"data: {\"choices\":[{\"delta\":{\"content\":\"hello there\"}}]}\n\n");
        let same = Mask::default().apply(data.clone());
        assert_eq!(same.as_ptr(), data.as_ptr());
    }

    #[test]
    fn a_salt_depends_on_secret_group_and_the_clients_own_salt_and_on_nothing_else() {
        let salts = Salts::new(&SecretString::from("s1"));
        let salt = salts.salt("a", None);
        assert_eq!(salt.len(), 2 * SALT_BYTES);
        assert_eq!(salt, salts.salt("a", None));
        let others = [
            salts.salt("b", None),
            salts.salt("a", Some(b"\"x\"")),
            salts.salt("ab", None),
            Salts::new(&SecretString::from("s2")).salt("a", None),
        ];
        assert!(others.iter().all(|other| *other != salt));
        assert_ne!(salts.salt("a", Some(b"b")), salts.salt("ab", None));
    }
}
