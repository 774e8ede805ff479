use super::super::testing::{chain, query, view};
use super::*;
use crate::types::BlockHash;

/// The deepest known block in these tests.
const DEEPEST: BlockHash = BlockHash(7 << 40);

fn hits(blocks: [u32; 4]) -> Hits {
    Hits::new(blocks, blocks.iter().copied().max().filter(|longest| *longest > 0).map(|longest| (DEEPEST, longest)))
}

fn views(change: impl Fn(u16, &mut ReplicaView)) -> Vec<ReplicaView> {
    let one = |slot| {
        let mut view = view(slot);
        change(slot, &mut view);
        view
    };
    (0..4).map(one).collect()
}

/// A prompt of 8,000 tokens in 2,000 blocks.
fn rank(policy: &Prefix, hits: &Hits, views: &[ReplicaView]) -> Ranking {
    let chain = chain(&"x".repeat(32_000));
    policy.rank(&query(&chain), hits, views)
}

/// Views in rendezvous order of the key for misses of [`rank`].
fn homes() -> Vec<usize> {
    rank(&Prefix::default(), &hits([0; 4]), &views(|_, _| ())).iter().map(|pick| pick.view).collect()
}

#[test]
fn the_holder_of_the_longest_prefix_is_first() {
    let ranking = rank(&Prefix::default(), &hits([1000, 0, 1900, 1899]), &views(|_, _| ()));

    assert_eq!(ranking[0], Pick { view: 2, reason: PickReason::Hit, cached_blocks: 1900, uncached_tokens: 400 });
    assert_eq!(ranking[1].view, 3, "the next best: 404 tokens to compute");
    assert_eq!(ranking[1].reason, PickReason::Miss);
    assert_eq!(ranking.len(), 4);
}

#[test]
fn a_busy_holder_keeps_its_prompt_while_its_work_ties_with_the_best() {
    let holds = hits([0, 1900, 0, 0]); // 400 tokens to compute there, 8,000 elsewhere
    let pending = |tokens| views(|slot, view| view.pending_prefill = if slot == 1 { tokens } else { 0 });

    let kept = rank(&Prefix::default(), &holds, &pending(8_400)); // 8,800 = 8,000 + 10 %
    assert_eq!((kept[0].view, kept[0].reason), (1, PickReason::Hit));
    let left = rank(&Prefix::default(), &holds, &pending(8_401));
    assert_ne!(left[0].view, 1);
    assert_eq!(left[0].reason, PickReason::Miss);
}

#[test]
fn the_guard_moves_a_prompt_on_and_always_to_the_same_replica() {
    let holds = hits([2000, 0, 0, 0]);
    // (6 + 1) / 4 x 1.25 + 2 = 4.2, so the floor of 6 counts.
    let busy = |count| views(|slot, view| view.in_flight = if slot == 0 { count } else { 0 });
    let policy = Prefix::default();

    assert_eq!(rank(&policy, &holds, &busy(5))[0].reason, PickReason::Hit);
    let moved = rank(&policy, &holds, &busy(6));
    assert_eq!(moved[0].reason, PickReason::Guard);
    assert_eq!(rank(&policy, &holds, &busy(6))[0].view, moved[0].view);
    let second = moved[0].view;
    let expected = (1..4).max_by_key(|slot| rendezvous::weight(DEEPEST.0, view(*slot).id_hash)).unwrap();
    assert_eq!(second, usize::from(expected));
}

#[test]
fn of_two_holders_the_less_busy_one_is_taken() {
    let ranking =
        rank(&Prefix::default(), &hits([2000, 0, 2000, 0]), &views(|slot, view| view.in_flight = u32::from(slot == 0)));

    assert_eq!([ranking[0].view, ranking[1].view], [2, 0]);
}

#[test]
fn a_miss_goes_home_unless_another_is_clearly_less_busy() {
    let home = homes()[0];
    let at_home = |load, tokens| {
        views(move |slot, view| {
            if usize::from(slot) == home {
                (view.in_flight, view.pending_prefill) = (load, tokens);
            }
        })
    };
    let first = |views: &[ReplicaView]| rank(&Prefix::default(), &hits([0; 4]), views)[0].view;

    assert_eq!(first(&at_home(2, 0)), home, "two requests more are a tie");
    assert_ne!(first(&at_home(3, 0)), home);
    assert_eq!(first(&at_home(0, 2048)), home, "2,048 tokens more are a tie");
    assert_ne!(first(&at_home(0, 2049)), home);
    assert_eq!(first(&at_home(3, 0)), homes()[1], "the second choice is stable, too");
}

#[test]
fn a_miss_goes_by_the_affinity_hint_and_gateways_agree_whatever_their_slots() {
    let chain = chain("short");
    let place = |affinity, slots: [u16; 4]| {
        let views: Vec<_> = slots
            .iter()
            .zip(0..4)
            .map(|(slot, label)| ReplicaView { slot: crate::types::ReplicaSlot(*slot), ..view(label) })
            .collect();
        let query = RouteQuery { affinity, ..query(&chain) };
        Prefix::default().rank(&query, &Hits::none(), &views)[0].view
    };

    assert_eq!(place(None, [0, 1, 2, 3]), place(None, [9, 4, 7, 1]));
    let used: std::collections::BTreeSet<_> = (0..40).map(|hint| place(Some(hint), [0, 1, 2, 3])).collect();
    assert_eq!(used.len(), 4);
}

#[test]
fn a_full_cache_is_left_for_one_with_room() {
    let home = homes()[0];
    let filled = |clock, capacity| {
        views(move |slot, view| {
            view.capacity_blocks = capacity;
            view.clock = if usize::from(slot) == home { clock } else { 0 };
        })
    };
    let first = |views: &[ReplicaView]| rank(&Prefix::default(), &hits([0; 4]), views)[0].view;

    // The prompt has 2,000 blocks.
    assert_eq!(first(&filled(8_000, Some(10_000))), home);
    assert_eq!(first(&filled(8_001, Some(10_000))), homes()[1]);
    assert_eq!(first(&filled(5_333, None)), home, "mean 1,333, and two prompts above");
    assert_eq!(first(&filled(5_400, None)), homes()[1]);
    let all_full = views(|_, view| (view.clock, view.capacity_blocks) = (20_000, Some(10_000)));
    assert_eq!(first(&all_full), home);
}

#[test]
fn a_short_hit_on_boilerplate_does_not_bind() {
    let policy = Prefix::default();
    let busy = views(|slot, view| view.in_flight = if slot == 0 { 3 } else { 0 });

    assert_ne!(rank(&policy, &hits([100, 0, 0, 0]), &busy)[0].view, 0, "400 of 8,000 tokens");
    assert_eq!(rank(&policy, &hits([256, 0, 0, 0]), &busy)[0].view, 0, "1,024 tokens are worth waiting for");
}

#[test]
fn a_prefix_with_all_the_traffic_comes_to_be_held_by_all() {
    let policy = Prefix::default();
    let mut holders = [2000, 0, 0, 0];
    let mut in_flight: std::collections::VecDeque<usize> = std::collections::VecDeque::new();
    let mut counts = [0; 4];
    for _ in 0..100 {
        let load =
            |slot: u16| u32::try_from(in_flight.iter().filter(|view| **view == usize::from(slot)).count()).unwrap();
        let pick = rank(&policy, &hits(holders), &views(|slot, view| view.in_flight = load(slot)))[0];
        holders[pick.view] = 2000;
        counts[pick.view] += 1;
        in_flight.push_back(pick.view);
        if in_flight.len() > 8 {
            in_flight.pop_front();
        }
    }

    assert!(counts.iter().all(|count| (10..=50).contains(count)), "case BR-065: {counts:?}");
}

#[test]
fn full_replicas_come_last_and_one_replica_is_the_only_one() {
    let ranking =
        rank(&Prefix::default(), &hits([2000, 0, 0, 0]), &views(|slot, view| view.limit = u32::from(slot != 0)));
    assert_eq!(ranking[3].view, 0);
    let one = rank(&Prefix::default(), &Hits::new([2000], Some((DEEPEST, 2000))), &[view(0)]);
    assert_eq!((one.len(), one[0].reason), (1, PickReason::Only));
    assert!(rank(&Prefix::default(), &Hits::none(), &[]).is_empty());
}

#[test]
fn every_policy_of_the_registry_ranks_every_view_once() {
    let chain = chain(&"x".repeat(1000));
    for entry in super::super::REGISTRY {
        let policy = super::super::policy(entry.name).unwrap();
        assert_eq!(policy.name(), entry.name);
        for count in 0..10_u16 {
            let views: Vec<_> = (0..count).map(view).collect();
            let ranking = policy.rank(&query(&chain), &Hits::none(), &views);
            let distinct: std::collections::BTreeSet<_> = ranking.iter().map(|pick| pick.view).collect();
            assert_eq!(distinct.len(), ranking.len());
            assert_eq!(ranking.len(), views.len().min(RANKED), "{}", entry.name);
            assert!(ranking.iter().all(|pick| pick.view < views.len()));
        }
    }
}
