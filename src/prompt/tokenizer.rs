//! A Hugging Face tokenizer that counts the next turn of a conversation without reading the whole again.
//!
//! Before anything else a tokenizer splits its input at added tokens, as `<|im_start|>`, and the pieces between them
//! never meet again. So a text may be cut in front of such a token, and the counts of the pieces add up. Pieces are
//! remembered by the chain of their hashes.

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::Tokenizer as HuggingFace;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::memo::{Link, Memo};

/// Why a tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file is no tokenizer.
    #[error("is no tokenizer.json that this version reads: {0}")]
    File(String),
    /// A text that the tokenizer refuses.
    #[error("the tokenizer refuses the text: {0}")]
    Text(String),
}

/// Shortest piece: cutting finer costs more than it saves.
const PIECE: usize = 128;

/// A tokenizer with a memory.
#[derive(Debug)]
pub struct Tokenizer {
    inner: HuggingFace,
    /// Added tokens as the tokenizer finds them; `None` when it has none at which a text may be cut.
    added: Option<AhoCorasick>,
    /// Whether a text may be cut in front of the added token of this number.
    cuts: Vec<bool>,
    memo: Memo,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// When it is none.
    pub fn from_json(json: &[u8]) -> Result<Self, TokenizerError> {
        let mut inner = HuggingFace::from_bytes(json).map_err(|error| TokenizerError::File(error.to_string()))?;
        // A count needs neither.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| TokenizerError::File(error.to_string()))?;
        let tokens = inner.get_added_tokens_decoder();
        // Those that match after normalising are looked for in a second pass, inside the pieces of the first.
        let first: Vec<_> =
            tokens.into_values().filter(|token| !token.normalized && !token.content.is_empty()).collect();
        let cuts = first
            .iter()
            .map(|token| {
                let plain = !token.content.starts_with(|letter: char| letter.is_alphanumeric() || letter == '_');
                token.special && plain && !token.lstrip && !token.rstrip && !token.single_word
            })
            .collect();
        let patterns = first.iter().map(|token| token.content.as_str());
        let added = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(patterns).ok();
        Ok(Self { inner, added: added.filter(|_| !first.is_empty()), cuts, memo: Memo::default() })
    }

    /// The token ids of a text. `special` adds what the tokenizer puts around every text, as a token of beginning.
    ///
    /// # Errors
    /// When the tokenizer refuses it.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding =
            self.inner.encode_fast(text, special).map_err(|error| TokenizerError::Text(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// How many tokens a text has.
    ///
    /// # Errors
    /// When the tokenizer refuses it.
    pub fn count(&self, text: &str, special: bool) -> Result<u64, TokenizerError> {
        let around = if special {
            self.inner
                .get_post_processor()
                .map_or(0, |processor| tokenizers::PostProcessor::added_tokens(processor, false) as u64)
        } else {
            0
        };
        let pieces = self.pieces(text);
        let mut parent = 0;
        let chain: Vec<Link> = pieces
            .iter()
            .map(|piece| {
                parent = link(piece, parent);
                parent
            })
            .collect();
        let (known, mut tokens) = self.memo.deepest(&chain).map_or((0, 0), |(at, tokens)| (at + 1, tokens));
        let mut learned = Vec::with_capacity(chain.len() - known);
        for (piece, link) in pieces.iter().zip(&chain).skip(known) {
            tokens += self.measure(piece)?;
            learned.push((*link, tokens));
        }
        self.memo.learn(learned.into_iter());
        Ok(tokens + around)
    }

    fn measure(&self, piece: &str) -> Result<u64, TokenizerError> {
        let encoding = self.inner.encode_fast(piece, false).map_err(|error| TokenizerError::Text(error.to_string()))?;
        Ok(encoding.len() as u64)
    }

    /// Cuts a text where its pieces are tokenised alone.
    fn pieces<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let mut pieces = Vec::new();
        let mut start = 0;
        for found in self.added.iter().flat_map(|added| added.find_iter(text)) {
            let cut = self.cuts.get(found.pattern().as_usize()).is_some_and(|cut| *cut);
            if cut && found.start() >= start + PIECE {
                pieces.extend(text.get(start..found.start()));
                start = found.start();
            }
        }
        pieces.extend(text.get(start..).filter(|rest| !rest.is_empty()));
        pieces
    }
}

/// Both halves of the parent count: the lower as seed, the whole as the last bytes.
#[expect(clippy::cast_possible_truncation, reason = "a seed has 64 bits; the other half is mixed in below")]
fn link(piece: &str, parent: Link) -> Link {
    xxh3_128_with_seed(piece.as_bytes(), parent as u64).wrapping_add((parent >> 64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}
