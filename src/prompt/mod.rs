//! From a request body to the chain of block hashes that says which prefixes it shares with others.
//!
//! [`canonical`] decides which bytes stand for a prompt and in which order, [`mod@chain`] cuts them into blocks and hashes.
//! Nothing here fails: a shape that nobody expected is hashed as its raw text.

pub mod canonical;
pub mod chain;

pub use canonical::chain;
pub use chain::{Chain, ChainSeed};
