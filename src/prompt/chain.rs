//! Cuts canonical prompt bytes into blocks and chains their hashes.
//!
//! Block i: `h_i = xxh3_64(block bytes, seed = h_{i-1})`, so equal hashes mean equal prefixes. The partial block at the
//! end is never hashed. Only some depths are kept: every block to 512, every 8th to 4,096, every 64th beyond, so a
//! 1 MiB prompt costs about a thousand probes and not four thousand. Source: DESIGN section 2, "Prefix chain".

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::types::BlockHash;

/// Every block is a checkpoint up to here.
const DENSE: u32 = 512;
/// Every [`MIDDLE_STEP`]th block up to here, every [`SPARSE_STEP`]th beyond.
const MIDDLE: u32 = 4_096;
const MIDDLE_STEP: u32 = 8;
const SPARSE_STEP: u32 = 64;
/// Checkpoints down to [`MIDDLE`].
const MIDDLE_COUNT: u32 = DENSE + (MIDDLE - DENSE) / MIDDLE_STEP;

/// Tools and system prompt are a prompt's home if they fill at least this many blocks; a shorter one is boilerplate.
const HOME_BLOCKS: u32 = 2;
/// The part of the first user message that is a prompt's home. A message often is one document and then a question, so
/// its end would be different for each question.
const USER_BLOCKS: u32 = 8;

/// What separates prompts that share text but not cache entries.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChainSeed<'a> {
    /// Model, as the replicas know it.
    pub model: &'a str,
    /// Adapter, raw JSON text.
    pub lora: Option<&'a [u8]>,
    /// The client's own cache separation, raw JSON text.
    pub cache_salt: Option<&'a [u8]>,
    /// Tenant group.
    pub group: Option<&'a str>,
    /// Arguments of the chat template, raw JSON text.
    pub chat_template_kwargs: Option<&'a [u8]>,
}

impl ChainSeed<'_> {
    /// The parent of the first block.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let parts = [self.lora, self.cache_salt, self.group.map(str::as_bytes), self.chat_template_kwargs];
        parts.into_iter().fold(xxh3_64(self.model.as_bytes()), |parent, part| match part {
            Some(part) => xxh3_64_with_seed(part, parent.wrapping_add(1)),
            None => xxh3_64_with_seed(&[], parent),
        })
    }
}

/// Block hashes of one prompt at the checkpoint depths, shallow to deep.
#[derive(Debug, Clone)]
pub struct Chain {
    hashes: Vec<BlockHash>,
    blocks: u32,
    bytes: u64,
    block_bytes: u32,
    stable_key: u64,
}

impl Chain {
    /// One hash per checkpoint, shallow to deep.
    #[must_use]
    pub fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    /// Blocks that checkpoint number `checkpoint` (from 0) covers.
    #[must_use]
    pub fn depth(&self, checkpoint: usize) -> u32 {
        let number = u32::try_from(checkpoint).unwrap_or(u32::MAX).saturating_add(1);
        if number <= DENSE {
            number
        } else if number <= MIDDLE_COUNT {
            DENSE + (number - DENSE) * MIDDLE_STEP
        } else {
            MIDDLE.saturating_add((number - MIDDLE_COUNT).saturating_mul(SPARSE_STEP))
        }
    }

    /// Whole blocks in the prompt.
    #[must_use]
    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Canonical bytes in the prompt, the partial last block included.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes in a block.
    #[must_use]
    pub const fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Where this prompt belongs while nobody knows it.
    ///
    /// Hash at the end of tools and system prompt if they fill at least two blocks; else at the end of the first user
    /// message or after eight blocks, whichever is shallower; else of the first block; else of everything.
    #[must_use]
    pub const fn stable_key(&self) -> u64 {
        self.stable_key
    }
}

/// A depth in blocks, and the chained hash there.
type Mark = (u32, u64);

/// Takes canonical bytes in pieces of any size. A block that lies inside one piece is hashed where it lies.
#[derive(Debug)]
pub struct Hasher {
    /// Start of a block that is not complete yet; never longer than a block.
    pending: Vec<u8>,
    block: usize,
    parent: u64,
    blocks: u32,
    bytes: u64,
    hashes: Vec<BlockHash>,
    head: Option<Mark>,
    user: Option<Mark>,
    first: Option<u64>,
    early: Option<u64>,
}

impl Hasher {
    /// A hasher for about `expected` bytes (a hint), in blocks of `block_bytes` (at least 1).
    #[must_use]
    pub fn new(seed: &ChainSeed<'_>, block_bytes: u32, expected: usize) -> Self {
        let block = (block_bytes.max(1)) as usize;
        Self {
            pending: Vec::with_capacity(block),
            block,
            parent: seed.hash(),
            blocks: 0,
            bytes: 0,
            hashes: Vec::with_capacity((expected / block).min(DENSE as usize)),
            head: None,
            user: None,
            first: None,
            early: None,
        }
    }

    /// Appends bytes.
    pub fn put(&mut self, mut piece: &[u8]) {
        self.bytes += piece.len() as u64;
        if !self.pending.is_empty() {
            let missing = self.block - self.pending.len();
            let Some((start, rest)) = piece.split_at_checked(missing) else {
                self.pending.extend_from_slice(piece);
                return;
            };
            self.pending.extend_from_slice(start);
            piece = rest;
            self.advance(xxh3_64_with_seed(&self.pending, self.parent));
            self.pending.clear();
        }
        let mut whole = piece.chunks_exact(self.block);
        for block in whole.by_ref() {
            self.advance(xxh3_64_with_seed(block, self.parent));
        }
        self.pending.extend_from_slice(whole.remainder());
    }

    fn advance(&mut self, hash: u64) {
        self.parent = hash;
        self.blocks = self.blocks.saturating_add(1);
        match self.blocks {
            1 => self.first = Some(hash),
            USER_BLOCKS => self.early = Some(hash),
            _ => {}
        }
        if is_checkpoint(self.blocks) {
            self.hashes.push(BlockHash(hash));
        }
    }

    /// Marks the end of tools and system prompt. The first call counts.
    pub fn end_of_head(&mut self) {
        self.head.get_or_insert((self.blocks, self.parent));
    }

    /// Marks the end of the first user message. The first call counts.
    pub fn end_of_user(&mut self) {
        self.user.get_or_insert((self.blocks, self.parent));
    }

    /// The chain of what was put.
    #[must_use]
    pub fn finish(self) -> Chain {
        let stable_key = self.stable_key();
        Chain {
            hashes: self.hashes,
            blocks: self.blocks,
            bytes: self.bytes,
            block_bytes: u32::try_from(self.block).unwrap_or(u32::MAX),
            stable_key,
        }
    }

    fn stable_key(&self) -> u64 {
        match (self.head, self.user, self.first) {
            (Some((blocks, hash)), _, _) if blocks >= HOME_BLOCKS => hash,
            (_, Some((blocks, hash)), Some(_)) if blocks > 0 => match self.early {
                Some(early) if blocks > USER_BLOCKS => early,
                _ => hash,
            },
            (_, _, Some(first)) => first,
            (_, _, None) => xxh3_64_with_seed(&self.pending, self.parent),
        }
    }
}

const fn is_checkpoint(blocks: u32) -> bool {
    blocks <= DENSE || (blocks <= MIDDLE && blocks.is_multiple_of(MIDDLE_STEP)) || blocks.is_multiple_of(SPARSE_STEP)
}
