//! Which replica was sent which prompt blocks, in a table of fixed size.
//!
//! An entry is 32 bytes: block hash, up to four holders, and for each holder the reading of *its own* clock (prompt
//! blocks inserted there so far) when it last saw the block. A holder counts only while its generation is the current
//! one and fewer blocks than its cache can hold have been inserted since: nothing is deleted when a replica restarts.
//! The table is set-associative with a CLOCK inside each bucket, so the bound is hard and an insert is O(1) a block.
//! Eight consecutive checkpoints of a chain share one page of 4 KiB, and a page is allocated when it is first written:
//! a gateway pays for the prompts it has seen, and a walk along a chain stays within few pages.
//! Source: DESIGN section 2, "Index"; cases BR-069 to BR-073.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use smallvec::SmallVec;

use super::{Hits, ReplicaView};
use crate::prompt::Chain;
use crate::types::{BlockHash, ReplicaSlot};

/// Entries in a bucket: 256 bytes, four cache lines.
const WAYS: usize = 8;
/// Entries in a page: 4 KiB.
const PAGE: usize = 128;
/// Consecutive checkpoints of a chain that lie in one page.
const GROUP: usize = 8;
/// Locks, or fewer in a small table. A lock is held for one bucket at a time.
const SHARDS: usize = 64;
/// Holders in an entry.
const HOLDERS: usize = 4;

/// A holder is 10 bits of slot, 5 bits of generation (1 to 31, so that no holder is zero) and the CLOCK bit.
const SLOT_BITS: u32 = 10;
const GENERATIONS: u8 = 31;
const USED: u16 = 1 << 15;

/// `[hash, holders (4 x u16), last uses (2 x 2 x u32)]`
type Raw = [u64; 4];
type Page = [Raw; PAGE];

/// A block and the first one of its group, which says in which page it lies.
#[derive(Debug, Clone, Copy)]
struct Key {
    hash: BlockHash,
    anchor: BlockHash,
}

impl Key {
    /// The key of a checkpoint. The anchor is part of the prefix, so equal prefixes have equal keys.
    fn of(hashes: &[BlockHash], checkpoint: usize) -> Option<Self> {
        let anchor = hashes.get(checkpoint - checkpoint % GROUP)?;
        Some(Self { hash: *hashes.get(checkpoint)?, anchor: *anchor })
    }
}

/// An entry, unpacked. Holders are in order of use, the latest first; zero is a free place.
#[derive(Debug, Clone, Copy)]
struct Entry {
    hash: u64,
    holders: [u16; HOLDERS],
    last: [u32; HOLDERS],
}

impl Entry {
    const fn empty(hash: u64) -> Self {
        Self { hash, holders: [0; HOLDERS], last: [0; HOLDERS] }
    }

    #[expect(clippy::cast_possible_truncation, reason = "fields are cut out of words")]
    const fn unpack(raw: Raw) -> Self {
        let [hash, holders, first, second] = raw;
        Self {
            hash,
            holders: [holders as u16, (holders >> 16) as u16, (holders >> 32) as u16, (holders >> 48) as u16],
            last: [first as u32, (first >> 32) as u32, second as u32, (second >> 32) as u32],
        }
    }

    const fn pack(self) -> Raw {
        let [a, b, c, d] = self.holders;
        let [p, q, r, s] = self.last;
        [
            self.hash,
            a as u64 | (b as u64) << 16 | (c as u64) << 32 | (d as u64) << 48,
            p as u64 | (q as u64) << 32,
            r as u64 | (s as u64) << 32,
        ]
    }

    fn holders(&self) -> impl Iterator<Item = (u16, u32)> {
        self.holders.into_iter().zip(self.last).filter(|(holder, _)| *holder != 0)
    }

    /// Puts a holder first. True if it was not one already. An older life of the same replica gives way, else the
    /// holder that was used longest ago.
    fn touch(&mut self, holder: u16, clock: u32) -> bool {
        let slot = |holder: u16| holder & ((1 << SLOT_BITS) - 1);
        let place = self.holders.iter().position(|old| *old != 0 && slot(*old) == slot(holder));
        let known = place.and_then(|place| self.holders.get(place)).is_some_and(|old| old & !USED == holder);
        let place = place.unwrap_or(HOLDERS - 1);
        if let Some(moved) = self.holders.get_mut(..=place) {
            moved.rotate_right(1);
        }
        if let Some(moved) = self.last.get_mut(..=place) {
            moved.rotate_right(1);
        }
        if let (Some(first), Some(last)) = (self.holders.first_mut(), self.last.first_mut()) {
            *first = holder | USED;
            *last = clock;
        }
        !known
    }

    fn clear_used(&mut self) {
        for holder in &mut self.holders {
            *holder &= !USED;
        }
    }

    /// Takes a holder out. True if none is left.
    fn drop_holder(&mut self, holder: u16) -> bool {
        for (old, last) in self.holders.iter_mut().zip(&mut self.last) {
            if *old & !USED == holder {
                *old = 0;
                *last = 0;
            }
        }
        self.holders == [0; HOLDERS]
    }
}

/// Number of a holder: which replica in which life.
fn holder(slot: ReplicaSlot, generation: u8) -> u16 {
    (u16::from(generation % GENERATIONS) + 1) << SLOT_BITS | (slot.0 & ((1 << SLOT_BITS) - 1))
}

/// Pages by number; `None` until first written.
type Shard = Vec<Option<Box<Page>>>;

/// Prompt blocks and their holders. Shared by all workers; a lock is held for one bucket at a time.
#[derive(Debug)]
pub struct PrefixIndex {
    shards: Vec<Mutex<Shard>>,
    /// Pages in each shard, allocated or not.
    pages: usize,
    entries: AtomicUsize,
    evictions: AtomicU64,
}

impl PrefixIndex {
    /// An empty index of at most `entries` blocks, rounded up to whole pages in every shard. 32 bytes each.
    #[must_use]
    pub fn new(entries: usize) -> Self {
        let total = entries.div_ceil(PAGE).max(1);
        let shards = total.min(SHARDS);
        let pages = total.div_ceil(shards);
        Self {
            shards: (0..shards).map(|_| Mutex::new(vec![None; pages])).collect(),
            pages,
            entries: AtomicUsize::new(0),
            evictions: AtomicU64::new(0),
        }
    }

    /// Most entries it can have.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.shards.len() * self.pages * PAGE
    }

    /// Entries in use, those of replicas that restarted included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.load(Relaxed)
    }

    /// Whether it has no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entries that gave way to others so far.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Relaxed)
    }

    /// The longest prefix that each view still holds.
    ///
    /// A replica that holds a block holds all blocks before it, so this gallops and bisects over depth, first over
    /// "any holder", then for each holder that was seen. Cost: about `2 log2(depth)` probes and a few for each holder.
    #[must_use]
    pub fn lookup(&self, chain: &Chain, views: &[ReplicaView]) -> Hits {
        let mut search = Search::new(self, chain, views);
        let Some(deepest) = search.deepest() else {
            return Hits::new(std::iter::repeat_n(0, views.len()), None);
        };
        search.refine(deepest);
        let depths = search.found.iter().map(|found| found.map_or(0, |checkpoint| chain.depth(checkpoint)));
        let hash = chain.hashes().get(deepest).copied();
        Hits::new(depths, hash.map(|hash| (hash, chain.depth(deepest))))
    }

    /// Notes that a replica was sent this prompt when its clock read `clock`. Gives the blocks that are new to it, by
    /// which the caller advances that clock.
    pub fn insert(&self, chain: &Chain, slot: ReplicaSlot, generation: u8, clock: u32) -> u32 {
        let holder = holder(slot, generation);
        let mut new = 0;
        let mut above = 0;
        for checkpoint in 0..chain.hashes().len() {
            let depth = chain.depth(checkpoint);
            if Key::of(chain.hashes(), checkpoint).is_some_and(|key| self.touch(key, holder, clock)) {
                new += depth - above;
            }
            above = depth;
        }
        new
    }

    /// Forgets that a replica holds any block of this prompt.
    pub fn remove(&self, chain: &Chain, slot: ReplicaSlot, generation: u8) {
        self.forget(chain.hashes(), 0, holder(slot, generation));
    }

    /// Takes back an [`insert`](Self::insert) that gave `new` blocks: what the replica held before, it still holds.
    pub fn undo(&self, chain: &Chain, new: u32, slot: ReplicaSlot, generation: u8) {
        let deepest = chain.hashes().len().checked_sub(1).map_or(0, |last| chain.depth(last));
        let kept = deepest.saturating_sub(new);
        let first = (0..chain.hashes().len()).position(|checkpoint| chain.depth(checkpoint) > kept);
        if let Some(first) = first {
            self.forget(chain.hashes(), first, holder(slot, generation));
        }
    }

    /// Takes a holder out of the checkpoints from `first` on.
    fn forget(&self, hashes: &[BlockHash], first: usize, holder: u16) {
        for key in (first..hashes.len()).filter_map(|checkpoint| Key::of(hashes, checkpoint)) {
            let mut shard = self.shard(key);
            let Some(page) = self.page(&mut shard, key) else { continue };
            let Some(raw) = bucket(page, key.hash).iter_mut().find(|raw| is(raw, key.hash)) else { continue };
            let mut entry = Entry::unpack(*raw);
            if entry.drop_holder(holder) {
                *raw = [0; 4];
                self.entries.fetch_sub(1, Relaxed);
            } else {
                *raw = entry.pack();
            }
        }
    }

    fn shard(&self, key: Key) -> Option<MutexGuard<'_, Shard>> {
        let number = (key.anchor.0 >> 32) as usize % self.shards.len();
        // A panic elsewhere leaves whole entries, so a poisoned shard is as good as any.
        self.shards.get(number).map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[expect(clippy::cast_possible_truncation, reason = "any bits of the hash will do")]
    fn number(&self, key: Key) -> usize {
        key.anchor.0 as usize % self.pages
    }

    /// The page of a key, if it was ever written.
    fn page<'s>(&self, shard: &'s mut Option<MutexGuard<'_, Shard>>, key: Key) -> Option<&'s mut Page> {
        shard.as_mut()?.get_mut(self.number(key))?.as_deref_mut()
    }

    /// The page of a key, to be written.
    fn page_to_write<'s>(&self, shard: &'s mut Option<MutexGuard<'_, Shard>>, key: Key) -> Option<&'s mut Page> {
        let page = shard.as_mut()?.get_mut(self.number(key))?;
        Some(page.get_or_insert_with(|| Box::new([[0; 4]; PAGE])))
    }

    fn probe(&self, key: Key) -> Option<Entry> {
        let mut shard = self.shard(key);
        let page = self.page(&mut shard, key)?;
        bucket(page, key.hash).iter().find(|raw| is(raw, key.hash)).map(|raw| Entry::unpack(*raw))
    }

    /// Makes `holder` the latest holder of a block. True if it was none.
    fn touch(&self, key: Key, holder: u16, clock: u32) -> bool {
        let hash = key.hash;
        let mut shard = self.shard(key);
        let Some(page) = self.page_to_write(&mut shard, key) else { return false };
        let bucket = bucket(page, hash);
        if let Some(raw) = bucket.iter_mut().find(|raw| is(raw, hash)) {
            let mut entry = Entry::unpack(*raw);
            let new = entry.touch(holder, clock);
            *raw = entry.pack();
            return new;
        }
        let mut entry = Entry::empty(hash.0);
        entry.touch(holder, clock);
        // Not used yet: prompts that never come again must not push out those that do.
        entry.clear_used();
        let place = match bucket.iter().position(|raw| !occupied(raw)) {
            Some(free) => {
                self.entries.fetch_add(1, Relaxed);
                free
            }
            None => {
                self.evictions.fetch_add(1, Relaxed);
                victim(bucket, hash)
            }
        };
        if let Some(raw) = bucket.get_mut(place) {
            *raw = entry.pack();
        }
        true
    }
}

/// The bucket of a block inside its page.
fn bucket(page: &mut Page, hash: BlockHash) -> &mut [Raw] {
    let start = (hash.0 >> 40) as usize % (PAGE / WAYS) * WAYS;
    page.get_mut(start..start + WAYS).unwrap_or_default()
}

const fn occupied(raw: &Raw) -> bool {
    let [_, holders, ..] = raw;
    *holders != 0
}

const fn is(raw: &Raw, hash: BlockHash) -> bool {
    let [first, ..] = raw;
    *first == hash.0 && occupied(raw)
}

const USED_BITS: u64 = (USED as u64) * 0x0001_0001_0001_0001;

/// CLOCK in one bucket: the first entry not used again since the last round, else all start a new round. The hand starts at a
/// place taken from the new hash, as there is no room to keep it.
fn victim(bucket: &mut [Raw], hash: BlockHash) -> usize {
    let start = (hash.0 >> 48) as usize % WAYS;
    let unused = (start..start + WAYS)
        .map(|place| place % WAYS)
        .find(|place| bucket.get(*place).is_some_and(|[_, holders, ..]| holders & USED_BITS == 0));
    if unused.is_none() {
        for [_, holders, ..] in bucket {
            *holders &= !USED_BITS;
        }
    }
    unused.unwrap_or(start)
}

/// No view has this slot.
const NOBODY: u16 = u16::MAX;

/// One lookup.
struct Search<'a> {
    index: &'a PrefixIndex,
    hashes: &'a [BlockHash],
    views: &'a [ReplicaView],
    /// View of each slot.
    of_slot: SmallVec<[u16; 64]>,
    /// Deepest checkpoint at which each view was seen.
    found: SmallVec<[Option<usize>; 64]>,
}

impl<'a> Search<'a> {
    fn new(index: &'a PrefixIndex, chain: &'a Chain, views: &'a [ReplicaView]) -> Self {
        let slots = views.iter().map(|view| usize::from(view.slot.0) + 1).max().unwrap_or(0);
        let mut of_slot = SmallVec::from_elem(NOBODY, slots);
        for (number, view) in views.iter().enumerate() {
            if let Some(place) = of_slot.get_mut(usize::from(view.slot.0)) {
                *place = u16::try_from(number).unwrap_or(NOBODY);
            }
        }
        let found = SmallVec::from_elem(None, views.len());
        Self { index, hashes: chain.hashes(), views, of_slot, found }
    }

    /// The view that this holder is, if it could still hold the block.
    fn live(&self, number: u16, last: u32) -> Option<usize> {
        let slot = number & ((1 << SLOT_BITS) - 1);
        let place = usize::from(*self.of_slot.get(usize::from(slot))?);
        let view = self.views.get(place)?;
        let current = holder(view.slot, view.generation) == number & !USED;
        let age = view.clock.wrapping_sub(last);
        let fits = age <= view.since_empty && view.capacity_blocks.is_none_or(|capacity| age <= capacity);
        (current && fits).then_some(place)
    }

    /// Looks at one checkpoint. True if any view holds it.
    fn held(&mut self, checkpoint: usize) -> bool {
        let Some(entry) = Key::of(self.hashes, checkpoint).and_then(|key| self.index.probe(key)) else { return false };
        let mut any = false;
        for (number, last) in entry.holders() {
            let Some(view) = self.live(number, last) else { continue };
            any = true;
            if let Some(found) = self.found.get_mut(view) {
                *found = (*found).max(Some(checkpoint));
            }
        }
        any
    }

    /// The deepest checkpoint that any view holds.
    fn deepest(&mut self) -> Option<usize> {
        if !self.held(0) {
            return None;
        }
        let mut low = 0;
        let mut step = 1;
        while low + step < self.hashes.len() && self.held(low + step) {
            low += step;
            step *= 2;
        }
        let high = (low + step).min(self.hashes.len());
        Some(bisect(low, high, |checkpoint| self.held(checkpoint)))
    }

    /// Finds the deepest checkpoint of each view that was seen above `deepest`.
    fn refine(&mut self, deepest: usize) {
        for view in 0..self.views.len() {
            let Some(low) = self.found.get(view).copied().flatten() else { continue };
            if low == deepest {
                continue;
            }
            bisect(low, deepest, |checkpoint| {
                self.held(checkpoint);
                self.found.get(view).copied().flatten() >= Some(checkpoint)
            });
        }
    }
}

/// Largest number in `low..high` that holds, given that `low` does.
fn bisect(mut low: usize, mut high: usize, mut holds: impl FnMut(usize) -> bool) -> usize {
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests;
