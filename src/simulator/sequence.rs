//! One sequence: its prompt as chained block hashes, its output as a seed, and how far it has been computed.
//!
//! The scheduler never sees token ids of a whole prompt: hashes of its whole blocks and the ids of its partial last
//! block are enough, so a trace that only has block hashes runs through the same code (with an empty tail).
//! Output tokens are a function of (seed, position), which is what makes greedy answers equal on every replica.

use std::{sync::Arc, time::Duration};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{kv::BlockId, text};

/// Number of a sequence, unique in its engine for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

/// A prompt, as the KV pool sees it.
#[derive(Debug, Clone, Default)]
pub struct Prompt {
    /// Tokens, at least 1.
    pub tokens: usize,
    /// Chained hash of each whole block. May be shorter than `tokens / block_size`: the rest is never shared.
    pub hashes: Arc<[u64]>,
    /// Token ids after the last whole block; empty when they are not known.
    pub tail: Arc<[u32]>,
    /// Start of the chain, which output blocks continue when the prompt has no whole block.
    pub root: u64,
}

impl Prompt {
    /// Hashes `ids` in blocks of `block_size`. `root` is the start of the chain: cache salt, adapter.
    #[must_use]
    pub fn from_ids(ids: &[u32], block_size: usize, root: u64) -> Self {
        let chunks = ids.chunks_exact(block_size);
        let tail = Arc::from(chunks.remainder());
        let mut hash = root;
        let hashes = chunks
            .map(|block| {
                hash = chain(hash, block.iter().copied());
                hash
            })
            .collect();
        Self { tokens: ids.len(), hashes, tail, root }
    }
}

/// Hash of one block chained to the block before it.
#[must_use]
pub fn chain(previous: u64, ids: impl Iterator<Item = u32>) -> u64 {
    let mut bytes: smallvec::SmallVec<[u8; 256]> = smallvec::SmallVec::new();
    for id in ids {
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    xxh3_64_with_seed(&bytes, previous)
}

/// What is asked of the engine.
#[derive(Debug, Clone)]
pub struct Request {
    /// The prompt.
    pub prompt: Prompt,
    /// Tokens to generate, the end-of-sequence token included. The caller knows: output is deterministic.
    pub output_tokens: usize,
    /// Names the output text.
    pub output_seed: u64,
}

/// State of a sequence inside the scheduler.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SeqId,
    request: Request,
    /// Hashes of whole blocks behind the prompt's own, which hold output tokens.
    output_hashes: Vec<u64>,
    pub(super) generated: usize,
    /// Tokens whose KV is in `table`.
    pub(super) computed: usize,
    pub(super) table: Vec<BlockId>,
    pub(super) sealed: usize,
    /// Prompt tokens found in the prefix cache at the first admission.
    pub(super) cached: Option<usize>,
    /// Tokens of this sequence in the step that runs now.
    pub(super) scheduled: usize,
    pub(super) preemptions: u32,
    pub(super) arrived: Duration,
}

impl Sequence {
    pub(super) fn new(id: SeqId, request: Request, arrived: Duration) -> Self {
        Self {
            id,
            request,
            output_hashes: Vec::new(),
            generated: 0,
            computed: 0,
            table: Vec::new(),
            sealed: 0,
            cached: None,
            scheduled: 0,
            preemptions: 0,
            arrived,
        }
    }

    pub(super) fn prompt_tokens(&self) -> usize {
        self.request.prompt.tokens
    }

    pub(super) fn target(&self) -> usize {
        self.request.output_tokens
    }

    /// Tokens known so far: the prompt and what was sampled.
    pub(super) fn total(&self) -> usize {
        self.request.prompt.tokens + self.generated
    }

    /// Tokens still to be computed before the next one can be sampled.
    pub(super) fn remaining(&self) -> usize {
        self.total() - self.computed
    }

    /// Whether the next step is more than the decode of one sampled token.
    pub(super) fn prefilling(&self) -> bool {
        self.generated == 0 || self.remaining() > 1
    }

    /// Known hashes of whole blocks, first to last.
    pub(super) fn hashes(&self) -> impl Iterator<Item = u64> + '_ {
        self.request.prompt.hashes.iter().chain(&self.output_hashes).copied()
    }

    /// Hash of block `index`, which must be full; computes those of output blocks on the way.
    pub(super) fn block_hash(&mut self, index: usize, block_size: usize) -> u64 {
        let own = self.request.prompt.hashes.len();
        if let Some(hash) = self.request.prompt.hashes.get(index) {
            return *hash;
        }
        while self.output_hashes.len() <= index - own {
            let next = own + self.output_hashes.len();
            let last = self.output_hashes.last().or(self.request.prompt.hashes.last()).copied();
            let previous = last.unwrap_or(self.request.prompt.root);
            let hash = chain(previous, (next * block_size..(next + 1) * block_size).map(|at| self.token(at)));
            self.output_hashes.push(hash);
        }
        self.output_hashes.get(index - own).copied().unwrap_or_default()
    }

    /// Id of the token at `position` of prompt and output together; 0 inside an unknown part of the prompt.
    fn token(&self, position: usize) -> u32 {
        let prompt = &self.request.prompt;
        if position >= prompt.tokens {
            return text::output_token(self.request.output_seed, position - prompt.tokens);
        }
        let tail = prompt.tokens.saturating_sub(prompt.tail.len());
        position.checked_sub(tail).and_then(|at| prompt.tail.get(at)).copied().unwrap_or_default()
    }
}
