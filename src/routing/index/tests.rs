use std::collections::HashMap;

use proptest::prelude::*;

use super::super::testing::{chain, view};
use super::*;

fn slot(number: u16) -> ReplicaSlot {
    ReplicaSlot(number)
}

/// A prompt: a family, so many shared blocks of it, and so many blocks of its own.
fn prompt(family: u8, shared: usize, own: u32, own_blocks: usize) -> Chain {
    chain(&format!("{}{}", format!("family {family:09}").repeat(shared), format!("own {own:012}").repeat(own_blocks)))
}

#[test]
fn the_longest_prefix_of_each_replica_is_found() {
    let index = PrefixIndex::new(4096);
    let views = [view(0), view(1), view(2)];
    assert_eq!(index.insert(&prompt(1, 10, 1, 5), slot(0), 0, 0), 15);
    assert_eq!(index.insert(&prompt(1, 4, 2, 3), slot(2), 0, 0), 7);

    let hits = index.lookup(&prompt(1, 10, 9, 9), &views);

    assert_eq!([hits.blocks(0), hits.blocks(1), hits.blocks(2)], [10, 0, 4]);
    assert_eq!(hits.deepest().map(|(_, depth)| depth), Some(10));
    assert_eq!(index.insert(&prompt(1, 10, 1, 5), slot(0), 0, 15), 0, "nothing new");
    assert_eq!(index.insert(&prompt(1, 12, 7, 0), slot(0), 0, 15), 2);
}

#[test]
fn a_restart_or_another_slot_forgets_everything_at_once() {
    let index = PrefixIndex::new(4096);
    let prompt = prompt(1, 10, 1, 0);
    index.insert(&prompt, slot(0), 3, 0);

    assert_eq!(index.lookup(&prompt, &[ReplicaView { generation: 3, ..view(0) }]).blocks(0), 10);
    assert_eq!(index.lookup(&prompt, &[ReplicaView { generation: 4, ..view(0) }]).blocks(0), 0);
    assert_eq!(index.lookup(&prompt, &[ReplicaView { generation: 3, ..view(1) }]).longest(), 0);
    assert!(index.lookup(&prompt, &[]).deepest().is_none());
}

#[test]
fn a_new_life_takes_the_place_of_the_old_one() {
    let index = PrefixIndex::new(4096);
    let prompt = prompt(1, 3, 1, 0);
    for generation in 0..20 {
        assert_eq!(index.insert(&prompt, slot(0), generation, 0), 3);
    }
    index.insert(&prompt, slot(1), 0, 0);

    let hits = index.lookup(&prompt, &[ReplicaView { generation: 19, ..view(0) }, view(1)]);
    assert_eq!([hits.blocks(0), hits.blocks(1)], [3, 3]);
    assert_eq!(index.len(), 3);
}

#[test]
fn a_holder_counts_only_while_its_cache_could_still_hold_the_block() {
    let index = PrefixIndex::new(4096);
    let prompt = prompt(1, 10, 1, 0);
    index.insert(&prompt, slot(0), 0, u32::MAX - 4);
    let at = |clock| ReplicaView { clock, capacity_blocks: Some(100), ..view(0) };

    assert_eq!(index.lookup(&prompt, &[at(u32::MAX)]).blocks(0), 10);
    assert_eq!(index.lookup(&prompt, &[at(95)]).blocks(0), 10, "clocks wrap");
    assert_eq!(index.lookup(&prompt, &[at(96)]).blocks(0), 0);
    index.insert(&prompt, slot(0), 0, 96);
    assert_eq!(index.lookup(&prompt, &[at(96)]).blocks(0), 10, "used again");
}

#[test]
fn undo_leaves_what_was_there_before() {
    let index = PrefixIndex::new(4096);
    let (short, long) = (prompt(1, 10, 1, 0), prompt(1, 10, 1, 6));
    index.insert(&short, slot(0), 0, 0);
    let new = index.insert(&long, slot(0), 0, 10);
    index.undo(&long, new, slot(0), 0);
    assert_eq!(index.lookup(&long, &[view(0)]).blocks(0), 10);
    assert_eq!(index.len(), 10);

    index.undo(&short, 0, slot(0), 0);
    assert_eq!(index.lookup(&long, &[view(0)]).blocks(0), 10);
    index.remove(&short, slot(0), 0);
    assert!(index.is_empty());
}

#[test]
fn only_four_holders_are_known_and_the_latest_stay() {
    let index = PrefixIndex::new(4096);
    let prompt = prompt(1, 2, 1, 0);
    let views: Vec<_> = (0..6).map(view).collect();
    for number in 0..6 {
        index.insert(&prompt, slot(number), 0, 0);
    }

    let hits = index.lookup(&prompt, &views);
    assert_eq!((0..6).map(|view| hits.blocks(view)).collect::<Vec<_>>(), [0, 0, 2, 2, 2, 2]);
}

#[test]
fn a_full_table_stays_full_and_keeps_what_is_used() {
    let index = PrefixIndex::new(2048);
    let used = prompt(1, 8, 1, 0);
    for own in 0..5_000 {
        index.insert(&used, slot(0), 0, 0);
        index.insert(&prompt(2, 0, own, 4), slot(1), 0, 0);
    }

    assert_eq!(index.len(), index.capacity());
    assert_eq!(index.evictions(), 8 + 5_000 * 4 - 2048);
    assert!(index.lookup(&used, &[view(0)]).blocks(0) >= 7);
}

#[test]
fn a_deep_prompt_is_found_at_any_depth() {
    let index = PrefixIndex::new(1 << 16);
    let text = |blocks: usize| (0..blocks).map(|block| format!("block {block:010}")).collect::<String>();
    let full = chain(&text(6000));
    for depth in [1, 2, 3, 511, 512, 513, 519, 520, 4095, 4096, 4159, 4160, 6000] {
        let known = chain(&text(depth));
        let last = known.depth(known.hashes().len() - 1);
        index.insert(&known, slot(0), 0, 0);
        assert_eq!(index.lookup(&full, &[view(0)]).blocks(0), last, "{depth} blocks");
        index.remove(&known, slot(0), 0);
    }
}

#[test]
fn br_069_many_threads_at_once_leave_a_whole_table() {
    let index = PrefixIndex::new(2048);
    std::thread::scope(|scope| {
        for thread in 0..8_u16 {
            let index = &index;
            scope.spawn(move || {
                for round in 0..500 {
                    let prompt = prompt(u8::try_from(round % 7).unwrap(), 6, round * 8 + u32::from(thread), 4);
                    let new = index.insert(&prompt, slot(thread), 0, 0);
                    assert!(index.lookup(&prompt, &[view(thread)]).longest() <= 10);
                    if round % 3 == 0 {
                        index.undo(&prompt, new, slot(thread), 0);
                    }
                }
            });
        }
    });

    let entries: usize = index
        .shards
        .iter()
        .map(|shard| shard.lock().unwrap().iter().flatten().map(|page| used(page)).sum::<usize>())
        .sum();
    assert_eq!(index.len(), entries);
    assert!(entries <= index.capacity());
}

fn used(page: &Page) -> usize {
    page.iter().filter(|raw| occupied(raw)).count()
}

/// The index without bounds: for each block and replica, the generation and the clock of its last use.
#[derive(Default)]
struct Naive {
    blocks: HashMap<(BlockHash, u16), (u8, u32)>,
}

impl Naive {
    fn insert(&mut self, chain: &Chain, slot: u16, generation: u8, clock: u32) -> u32 {
        let mut new = 0;
        for hash in chain.hashes() {
            let old = self.blocks.insert((*hash, slot), (generation, clock));
            new += u32::from(old.is_none_or(|(old, _)| old != generation));
        }
        new
    }

    fn depth(&self, chain: &Chain, view: &ReplicaView) -> u32 {
        let held = chain.hashes().iter().take_while(|hash| {
            self.blocks.get(&(**hash, view.slot.0)).is_some_and(|(generation, last)| {
                *generation == view.generation
                    && view.capacity_blocks.is_none_or(|capacity| view.clock - last <= capacity)
            })
        });
        u32::try_from(held.count()).unwrap()
    }
}

proptest! {
    #[test]
    fn below_capacity_it_equals_a_naive_map(
        operations in prop::collection::vec((0_u8..3, 0_usize..12, 0_u32..4, 0_usize..12, 0_u16..4, prop::bool::weighted(0.05)), 1..60),
    ) {
        let index = PrefixIndex::new(1 << 16);
        let mut naive = Naive::default();
        let mut views: Vec<_> = (0..4).map(|slot| ReplicaView { capacity_blocks: Some(60), ..view(slot) }).collect();
        for (family, shared, own, own_blocks, replica, restart) in operations {
            let prompt = prompt(family, shared, own, own_blocks);
            let hits = index.lookup(&prompt, &views);
            for (number, view) in views.iter().enumerate() {
                prop_assert_eq!(hits.blocks(number), naive.depth(&prompt, view), "replica {}", number);
            }
            let longest = hits.longest();
            prop_assert_eq!(hits.deepest(), (longest > 0).then(|| (prompt.hashes()[longest as usize - 1], longest)));
            let view = &mut views[usize::from(replica)];
            if restart {
                view.generation += 1;
                view.clock = 0;
            }
            let new = index.insert(&prompt, view.slot, view.generation, view.clock);
            prop_assert_eq!(new, naive.insert(&prompt, replica, view.generation, view.clock));
            view.clock += new;
        }
    }

    #[test]
    fn it_never_has_more_entries_than_its_capacity(owns in prop::collection::vec((0_u32..10_000, 1_usize..40), 1..100)) {
        let index = PrefixIndex::new(100);
        for (own, blocks) in owns {
            index.insert(&prompt(0, 2, own, blocks), slot(0), 0, 0);
            prop_assert!(index.len() <= index.capacity());
        }
        prop_assert_eq!(index.capacity(), 128);
    }

    #[test]
    fn entries_survive_packing(hash in any::<u64>(), holders in any::<[u16; 4]>(), last in any::<[u32; 4]>()) {
        let entry = Entry::unpack(Entry { hash, holders, last }.pack());
        prop_assert_eq!((entry.hash, entry.holders, entry.last), (hash, holders, last));
    }
}
