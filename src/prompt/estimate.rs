//! Prompt tokens without a tokenizer: weighed bytes times a ratio that is learned from the engine's own `usage`.
//!
//! A byte of a common word is a fraction of a token, a byte of Chinese, of a number or of punctuation is up to a whole
//! one. Weighing them apart keeps one ratio right for both; the ratio then is a property of the model's vocabulary. It
//! starts for a small vocabulary, so that early estimates are too high and never too low.

use std::sync::atomic::{AtomicU32, Ordering};

/// How far the truth may lie above the ratio times the weight.
pub const MARGIN: f32 = 0.25;

/// Bytes of a whole prompt to a token at most, runs of one byte counted short.
const LONGEST_TOKEN: u64 = 16;

/// Weight of what every prompt has: a token of beginning, the head of the answer.
const BASE: u64 = 10;
/// Weight of the text that a template puts around tools.
const TOOLS: u64 = 130;
/// Weight of what stands around a message.
const MESSAGE: u64 = 4;

/// Weighs canonical prompt bytes, in pieces of any size.
#[derive(Debug, Clone, Default)]
pub struct Weigher {
    weight: u64,
    /// Bytes, with a run of one byte counted short.
    bytes: u64,
    last: u8,
    /// Equal bytes at the end.
    same: u64,
    /// Letters of the word at the end.
    word: u64,
    /// White space at the end.
    space: u64,
}

impl Weigher {
    /// Appends bytes.
    pub fn put(&mut self, piece: &[u8]) {
        for &byte in piece {
            self.byte(byte);
        }
    }

    fn byte(&mut self, byte: u8) {
        self.same = if byte == self.last { self.same + 1 } else { 1 };
        self.last = byte;
        self.bytes += u64::from(self.same <= 4 || self.same.is_multiple_of(16));
        let (word, space) = (self.word, self.space);
        (self.word, self.space) = (0, 0);
        self.weight += match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {
                self.word = word + 1;
                // A token for three letters; letters that are no word have one each.
                u64::from(word.is_multiple_of(3) || word >= 16 || self.same > 2)
            }
            b' ' => {
                self.space = space + 1;
                // The first belongs to the next word.
                u64::from(space % 4 == 1)
            }
            b'\n' | b'\t' | b'\r' => {
                self.space = space + 1;
                1
            }
            1 => MESSAGE,
            _ => 1,
        };
    }

    /// The weight so far.
    #[must_use]
    pub fn weight(&self, tools: bool) -> u64 {
        self.weight + BASE + if tools { TOOLS } else { 0 }
    }

    /// Tokens that the text has at least, whatever the vocabulary.
    #[must_use]
    pub fn least(&self) -> u64 {
        self.bytes / LONGEST_TOKEN
    }
}

/// Tokens to a unit of weight, learned.
#[derive(Debug)]
pub struct Ratio {
    bits: AtomicU32,
}

impl Default for Ratio {
    fn default() -> Self {
        Self { bits: AtomicU32::new(1_f32.to_bits()) }
    }
}

impl Ratio {
    /// Tokens to a unit of weight.
    #[must_use]
    pub fn get(&self) -> f32 {
        f32::from_bits(self.bits.load(Ordering::Relaxed))
    }

    /// Learns from an answer's own count: quickly that prompts have more tokens, slowly that they have fewer. Lost
    /// updates between threads do no harm.
    pub fn learn(&self, weight: u64, tokens: u64) {
        // Short prompts are mostly template.
        if weight < 64 || tokens < 32 {
            return;
        }
        let seen = (tokens as f32 / weight as f32).clamp(0.1, 2.0);
        let now = self.get();
        let pace = if seen > now { 0.5 } else { 0.05 };
        self.bits.store((now + pace * (seen - now)).to_bits(), Ordering::Relaxed);
    }

    /// Tokens that a weight most likely has.
    #[must_use]
    pub fn tokens(&self, weight: u64) -> u64 {
        scale(weight, self.get())
    }

    /// Tokens that a weight may have: with the margin.
    #[must_use]
    pub fn most(&self, weight: u64) -> u64 {
        scale(weight, self.get() * (1.0 + MARGIN))
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a weight times a positive ratio")]
fn scale(weight: u64, ratio: f32) -> u64 {
    ((weight as f64 * f64::from(ratio)).ceil() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weigh(text: &str) -> Weigher {
        let mut weigher = Weigher::default();
        weigher.put(text.as_bytes());
        weigher
    }

    #[test]
    fn a_ratio_rises_at_once_and_falls_slowly() {
        let ratio = Ratio::default();
        for _ in 0..200 {
            ratio.learn(1000, 500);
        }
        assert!((ratio.get() - 0.5).abs() < 0.01, "{}", ratio.get());
        assert_eq!(ratio.most(1000), 626);
        ratio.learn(1000, 900);
        assert!(ratio.get() > 0.65, "half of the way at once: {}", ratio.get());
        ratio.learn(10, 1);
        assert!(ratio.get() > 0.65, "a short prompt teaches nothing");
    }

    #[test]
    fn text_that_is_no_words_weighs_more() {
        assert!(weigh(&"a".repeat(100)).weight(false) >= 90);
        assert_eq!(weigh("世界").weight(false), BASE + 6);
        assert_eq!(weigh("12345").weight(false), BASE + 5);
        assert_eq!(weigh("cat dog").weight(false), BASE + 2);
    }

    #[test]
    fn a_run_is_no_proof_of_many_tokens() {
        assert!(weigh(&" ".repeat(64_000)).least() < 64_000 / 128);
        assert!(weigh(&"word ".repeat(10_000)).least() > 3_000);
    }
}
