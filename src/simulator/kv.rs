//! The KV pool: fixed blocks, reference counts, and a prefix cache of hash-chained whole blocks.
//!
//! A cached block that nobody uses is still free: it sits in the free list and keeps its content until it is the
//! oldest there. A sequence gives its blocks back last first, so a chain loses its tail before its head.
//! Equal content may be held by several blocks at once (two requests that computed it side by side).
//! Source: vLLM `v1/core/block_pool.py`, `FreeKVCacheBlockQueue`; SGLang differs by `page_size` only as modelled here.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use smallvec::SmallVec;

/// Index of a block in its pool.
pub type BlockId = usize;

const NONE: usize = usize::MAX;

#[derive(Debug)]
struct Block {
    refs: u32,
    hash: Option<u64>,
    prev: usize,
    next: usize,
}

/// Block hashes are xxh3 values already: one multiplication spreads those of hand-made traces too.
#[derive(Debug, Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxhash_rust::xxh3::xxh3_64_with_seed(bytes, self.0);
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

type Index = HashMap<u64, SmallVec<[BlockId; 1]>, BuildHasherDefault<Spread>>;

/// Blocks of one engine.
#[derive(Debug)]
pub struct KvPool {
    block_size: usize,
    blocks: Vec<Block>,
    index: Index,
    head: usize,
    tail: usize,
    free: usize,
    caching: bool,
    evictions: u64,
}

impl KvPool {
    /// A pool of `blocks` empty blocks of `block_size` tokens; without `caching` no prefix is ever found.
    #[must_use]
    pub fn new(blocks: usize, block_size: usize, caching: bool) -> Self {
        let list = (0..blocks)
            .map(|i| Block {
                refs: 0,
                hash: None,
                prev: if i == 0 { NONE } else { i - 1 },
                next: if i + 1 == blocks { NONE } else { i + 1 },
            })
            .collect();
        let (head, tail) = if blocks == 0 { (NONE, NONE) } else { (0, blocks - 1) };
        Self { block_size, blocks: list, index: Index::default(), head, tail, free: blocks, caching, evictions: 0 }
    }

    /// Tokens in one block.
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Blocks in the pool.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether the pool has no block at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Blocks that no sequence uses, cached ones included.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free
    }

    /// Blocks that no sequence uses but whose content can still be found. O(blocks): for metrics only.
    #[must_use]
    pub fn cached_free(&self) -> usize {
        self.blocks.iter().filter(|block| block.refs == 0 && block.hash.is_some()).count()
    }

    /// Cached blocks overwritten so far.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// How many leading `hashes` are in the pool, and how many of those blocks are free at the moment.
    #[must_use]
    pub fn lookup(&self, hashes: impl Iterator<Item = u64>) -> (usize, usize) {
        let (mut found, mut idle) = (0, 0);
        if !self.caching {
            return (0, 0);
        }
        for hash in hashes {
            let Some(block) = self.first(hash) else { break };
            found += 1;
            idle += usize::from(self.block(block).refs == 0);
        }
        (found, idle)
    }

    /// Takes a reference on each block that [`Self::lookup`] found, in order, into `table`.
    pub fn claim(&mut self, hashes: impl Iterator<Item = u64>, table: &mut Vec<BlockId>) {
        for hash in hashes {
            let Some(id) = self.first(hash) else { return };
            if self.block(id).refs == 0 {
                self.unlink(id);
            }
            self.block_mut(id).refs += 1;
            table.push(id);
        }
    }

    /// Appends `count` fresh blocks to `table`, evicting the oldest free ones; all or nothing.
    #[must_use]
    pub fn grow(&mut self, table: &mut Vec<BlockId>, count: usize) -> bool {
        if count > self.free {
            return false;
        }
        for _ in 0..count {
            let id = self.head;
            self.unlink(id);
            self.forget(id);
            self.block_mut(id).refs = 1;
            table.push(id);
        }
        true
    }

    /// Makes a full block findable under `hash`.
    pub fn seal(&mut self, id: BlockId, hash: u64) {
        if !self.caching || self.block(id).hash == Some(hash) {
            return;
        }
        self.forget(id);
        self.block_mut(id).hash = Some(hash);
        self.index.entry(hash).or_default().push(id);
    }

    /// Gives all blocks of `table` back, last first.
    pub fn release(&mut self, table: &mut Vec<BlockId>) {
        while let Some(id) = table.pop() {
            let block = self.block_mut(id);
            block.refs = block.refs.saturating_sub(1);
            if block.refs == 0 {
                self.append(id);
            }
        }
    }

    /// Forgets all cached content; blocks in use keep their place but are not found again.
    pub fn flush(&mut self) {
        self.index.clear();
        for block in &mut self.blocks {
            block.hash = None;
        }
    }

    /// Sum of all reference counts, for invariants.
    #[must_use]
    pub fn references(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.refs)).sum()
    }

    fn first(&self, hash: u64) -> Option<BlockId> {
        self.index.get(&hash).and_then(|ids| ids.first().copied())
    }

    fn forget(&mut self, id: BlockId) {
        let Some(hash) = self.block_mut(id).hash.take() else { return };
        self.evictions += 1;
        if let Some(ids) = self.index.get_mut(&hash) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.index.remove(&hash);
            }
        }
    }

    fn append(&mut self, id: BlockId) {
        let tail = self.tail;
        let block = self.block_mut(id);
        (block.prev, block.next) = (tail, NONE);
        if tail == NONE {
            self.head = id;
        } else {
            self.block_mut(tail).next = id;
        }
        self.tail = id;
        self.free += 1;
    }

    fn unlink(&mut self, id: BlockId) {
        let (prev, next) = (self.block(id).prev, self.block(id).next);
        if prev == NONE {
            self.head = next;
        } else {
            self.block_mut(prev).next = next;
        }
        if next == NONE {
            self.tail = prev;
        } else {
            self.block_mut(next).prev = prev;
        }
        self.free -= 1;
    }

    #[expect(clippy::indexing_slicing, reason = "block ids are handed out by this pool only and it never shrinks")]
    fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id]
    }

    #[expect(clippy::indexing_slicing, reason = "block ids are handed out by this pool only and it never shrinks")]
    fn block_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(pool: &mut KvPool, hashes: &[u64]) -> Vec<BlockId> {
        let mut table = Vec::new();
        assert!(pool.grow(&mut table, hashes.len()));
        for (id, hash) in table.iter().zip(hashes) {
            pool.seal(*id, *hash);
        }
        table
    }

    #[test]
    fn a_released_chain_is_found_again_and_lookup_stops_at_the_first_gap() {
        let mut pool = KvPool::new(8, 16, true);
        let mut table = fill(&mut pool, &[1, 2, 3]);

        pool.release(&mut table);

        assert_eq!(pool.lookup([1, 2, 3].into_iter()), (3, 3));
        assert_eq!(pool.lookup([1, 9, 3].into_iter()), (1, 1), "a later block is worthless without its prefix");
        assert_eq!(pool.free(), 8, "cached blocks are free blocks");
    }

    #[test]
    fn the_tail_of_the_oldest_chain_is_evicted_first() {
        let mut pool = KvPool::new(6, 16, true);
        let mut old = fill(&mut pool, &[1, 2, 3]);
        let mut young = fill(&mut pool, &[11, 12, 13]);
        pool.release(&mut old);
        pool.release(&mut young);

        let mut table = Vec::new();
        assert!(pool.grow(&mut table, 2));

        assert_eq!(pool.lookup([1, 2, 3].into_iter()).0, 1, "blocks 3 and 2 went, in that order");
        assert_eq!(pool.lookup([11, 12, 13].into_iter()).0, 3);
        assert_eq!(pool.evictions(), 2);
    }

    #[test]
    fn a_claimed_block_is_not_evicted_and_comes_back_as_the_youngest() {
        let mut pool = KvPool::new(4, 16, true);
        let mut first = fill(&mut pool, &[1, 2]);
        let mut second = fill(&mut pool, &[11, 12]);
        pool.release(&mut first);
        pool.release(&mut second);

        let mut again = Vec::new();
        pool.claim([1, 2].into_iter(), &mut again);
        pool.release(&mut again);
        let mut table = Vec::new();
        assert!(pool.grow(&mut table, 2));

        assert_eq!(pool.lookup([1, 2].into_iter()).0, 2);
        assert_eq!(pool.lookup([11].into_iter()).0, 0);
    }

    #[test]
    fn of_two_equal_blocks_one_stays_when_the_other_is_overwritten() {
        let mut pool = KvPool::new(2, 16, true);
        let mut one = fill(&mut pool, &[7]);
        let mut two = fill(&mut pool, &[7]);
        pool.release(&mut one);

        let mut table = Vec::new();
        assert!(pool.grow(&mut table, 1));

        assert_eq!(pool.lookup([7].into_iter()), (1, 0));
        pool.release(&mut two);
        assert_eq!(pool.lookup([7].into_iter()), (1, 1));
    }

    #[test]
    fn growing_is_all_or_nothing() {
        let mut pool = KvPool::new(3, 16, true);
        let mut table = Vec::new();

        assert!(!pool.grow(&mut table, 4));

        assert!(table.is_empty());
        assert_eq!(pool.free(), 3);
    }
}
