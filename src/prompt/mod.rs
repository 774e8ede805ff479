//! From a request body to what is known of its prompt: which prefixes it shares with others, and how many tokens it has.
//!
//! [`canonical`] decides which bytes stand for a prompt and in which order, [`mod@chain`] cuts them into blocks and hashes.
//! Neither fails: a shape that nobody expected is hashed as its raw text. [`count`] tells tokens: with the model's own
//! [`template`] and [`tokenizer`], or by the weight of the text ([`mod@estimate`]).

pub mod canonical;
pub mod chain;
mod chat;
pub mod count;
pub mod estimate;
mod memo;
mod python;
pub mod template;
pub mod tokenizer;

pub use canonical::chain;
pub use chain::{Chain, ChainSeed};
pub use count::{Counted, PromptCounter};
