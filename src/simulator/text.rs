//! Text to token ids and back, and the text that an engine "generates".
//!
//! A toy tokenizer without a vocabulary file: a word piece is an optional space and up to five lower-case letters,
//! anything else goes in raw pieces of up to three bytes, about four bytes a token in English. Every piece has its own
//! id, so decoding is exact, and encoding an answer again gives the ids it was generated from: the next turn of a
//! conversation finds the blocks that its predecessor's decode left in the cache, as with a real engine.
//! What a reader would get wrong: the vocabulary has 41 million ids, far more than a real one.

use std::borrow::Cow;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// End of sequence, `<|endoftext|>`.
pub const EOS: u32 = 0;

/// Special tokens, by id. As with real engines, their text inside a user's message becomes the token.
const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

const RAW1: u32 = 3;
const RAW2: u32 = RAW1 + 256;
const RAW3: u32 = RAW2 + 65_536;
const WORD: u32 = RAW3 + 16_777_216;
const LETTERS: usize = 5;
/// Words of one to five letters, without a space before them.
const WORDS: u32 = 26 + 676 + 17_576 + 456_976 + 11_881_376;
/// Ids from here on do not exist.
pub const VOCABULARY: u32 = WORD + 2 * WORDS;

/// Words that generated text is made of: one token each, so that text and ids map one to one.
const OUTPUT: [&str; 64] = [
    " the", " of", " and", " to", " in", " is", " that", " it", " for", " was", " on", " with", " as", " at", " by",
    " from", " this", " have", " or", " one", " had", " not", " but", " what", " all", " were", " when", " we",
    " there", " can", " an", " your", " which", " their", " said", " if", " do", " will", " each", " about", " how",
    " up", " out", " them", " then", " she", " many", " some", " so", " these", " would", " other", " into", " has",
    " more", " two", " like", " him", " see", " time", " could", " no", " make", " than",
];

/// Token `index` of the output that `seed` names. Never the end of sequence.
#[must_use]
pub fn output_token(seed: u64, index: usize) -> u32 {
    let hash = xxh3_64_with_seed(&(index as u64).to_le_bytes(), seed);
    let word = usize::try_from(hash % 64).ok().and_then(|at| OUTPUT.get(at)).unwrap_or(&" the");
    encode_piece(word.as_bytes())
}

/// Where output of `seed` would end by itself: uniform between half and one and a half of `mean`, at least 1.
#[must_use]
pub fn natural_length(seed: u64, mean: usize) -> usize {
    let hash = xxh3_64_with_seed(b"length", seed);
    let spread = u64::try_from(mean).unwrap_or(1).max(1);
    (mean / 2 + usize::try_from(hash % (spread + 1)).unwrap_or(0)).max(1)
}

/// Token ids of `text`.
#[must_use]
pub fn tokenize(text: &str) -> Vec<u32> {
    let mut ids = Vec::with_capacity(text.len() / 4 + 1);
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        if rest.starts_with(b"<|")
            && let Some((id, special)) = (0u32..).zip(SPECIAL).find(|(_, special)| rest.starts_with(special.as_bytes()))
        {
            ids.push(id);
            rest = rest.get(special.len()..).unwrap_or_default();
            continue;
        }
        let (piece, after) = rest.split_at(piece_len(rest));
        ids.push(encode_piece(piece));
        rest = after;
    }
    ids
}

/// Text of `ids`; ids that do not exist give nothing, broken UTF-8 gives replacement characters.
#[must_use]
pub fn detokenize(ids: &[u32]) -> String {
    let mut bytes = Vec::with_capacity(ids.len() * 4);
    for id in ids {
        decode_piece(*id, &mut bytes);
    }
    match String::from_utf8_lossy(&bytes) {
        Cow::Borrowed(text) => text.to_owned(),
        Cow::Owned(text) => text,
    }
}

/// Bytes of the next piece; at least 1.
fn piece_len(rest: &[u8]) -> usize {
    let word = word_len(rest);
    if word > 0 {
        return word;
    }
    let mut len = 0;
    while let Some(first) = rest.get(len) {
        if len > 0 && (word_len(rest.get(len..).unwrap_or_default()) > 0 || rest.get(len..).is_some_and(is_special)) {
            break;
        }
        let char_len = match first {
            0xF0.. => 4,
            0xE0..=0xEF => 3,
            0xC0..=0xDF => 2,
            _ => 1,
        };
        if len + char_len > 3 {
            break;
        }
        len += char_len;
    }
    // A four-byte character does not fit: it becomes two tokens, neither of which is text by itself.
    if len == 0 { 2.min(rest.len()) } else { len.min(rest.len()) }
}

fn is_special(rest: &[u8]) -> bool {
    rest.starts_with(b"<|") && SPECIAL.iter().any(|special| rest.starts_with(special.as_bytes()))
}

/// Length of the word piece at the start, 0 if there is none.
fn word_len(rest: &[u8]) -> usize {
    let space = usize::from(rest.first() == Some(&b' '));
    let letters = rest.iter().skip(space).take(LETTERS).take_while(|byte| byte.is_ascii_lowercase()).count();
    if letters == 0 { 0 } else { space + letters }
}

fn encode_piece(piece: &[u8]) -> u32 {
    let (spaced, letters) = match piece {
        [b' ', letters @ ..] if !letters.is_empty() => (true, letters),
        letters => (false, letters),
    };
    if !letters.is_empty() && letters.len() <= LETTERS && letters.iter().all(u8::is_ascii_lowercase) {
        // All words of fewer letters come first: the value is that of a bijective base-26 number.
        let value = letters.iter().fold(0u32, |value, letter| value * 26 + u32::from(letter - b'a') + 1) - 1;
        return WORD + value + if spaced { WORDS } else { 0 };
    }
    match *piece {
        [a] => RAW1 + u32::from(a),
        [a, b] => RAW2 + u32::from(a) * 256 + u32::from(b),
        [a, b, c, ..] => RAW3 + (u32::from(a) * 256 + u32::from(b)) * 256 + u32::from(c),
        [] => EOS,
    }
}

fn decode_piece(id: u32, out: &mut Vec<u8>) {
    if let Some(special) = usize::try_from(id).ok().and_then(|at| SPECIAL.get(at)) {
        out.extend_from_slice(special.as_bytes());
    } else if id < RAW2 {
        out.extend((id - RAW1).to_be_bytes().into_iter().skip(3));
    } else if id < RAW3 {
        out.extend((id - RAW2).to_be_bytes().into_iter().skip(2));
    } else if id < WORD {
        out.extend((id - RAW3).to_be_bytes().into_iter().skip(1));
    } else if id < VOCABULARY {
        let spaced = id - WORD >= WORDS;
        let mut value = (id - WORD) % WORDS + 1;
        let mut letters = [0u8; LETTERS];
        let mut len = 0;
        for slot in letters.iter_mut().rev() {
            if value == 0 {
                break;
            }
            value -= 1;
            *slot = b'a' + u8::try_from(value % 26).unwrap_or(0);
            value /= 26;
            len += 1;
        }
        if spaced {
            out.push(b' ');
        }
        out.extend(letters.into_iter().skip(LETTERS - len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_are_one_token_up_to_five_letters() {
        assert_eq!(tokenize(" quick brown fox").len(), 3);
        assert_eq!(tokenize(" lighthouse").len(), 2);
        assert_eq!(tokenize("The cat").len(), 3, "a capital is a raw piece");
        assert_eq!(tokenize("🙂").len(), 2, "a four-byte character is two tokens");
    }

    #[test]
    fn specials_in_text_become_special_tokens() {
        assert_eq!(tokenize("<|im_start|>user\nhi<|im_end|>").first(), Some(&1));
        assert_eq!(tokenize("..<|im_end|>").last(), Some(&2));
        assert_eq!(tokenize("<|nope|>").first(), Some(&encode_piece(b"<|")));
    }

    #[test]
    fn the_smallest_and_largest_words_have_ids_of_their_own() {
        assert_eq!(encode_piece(b"a"), WORD);
        assert_eq!(encode_piece(b"zzzzz"), WORD + WORDS - 1);
        assert_eq!(encode_piece(b" zzzzz"), VOCABULARY - 1);
        assert_eq!(detokenize(&[WORD, WORD + WORDS - 1, VOCABULARY - 1, VOCABULARY]), "azzzzz zzzzz");
    }

    #[test]
    fn generated_text_encodes_to_the_ids_it_was_generated_from() {
        let ids: Vec<u32> = (0..200).map(|index| output_token(7, index)).collect();
        let prompt = "<|im_start|>assistant\n";

        let again = tokenize(&format!("{prompt}{}<|im_end|>\n", detokenize(&ids)));

        let start = tokenize(prompt);
        assert_eq!(&again[start.len()..start.len() + 200], &ids[..]);
    }

    proptest! {
        #[test]
        fn decoding_gives_the_text_back(text in "\\PC*|[a-z ]{0,40}|[ -~\\n\\t]{0,40}") {
            prop_assert_eq!(detokenize(&tokenize(&text)), text);
        }
    }
}
