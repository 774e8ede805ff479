use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use Priority::{High, Low, Normal};

fn ticket(class: Priority, tenant: u64, cost: u64) -> Ticket {
    Ticket { class, tenant: TenantId(tenant), cost }
}

/// Takes requests until so many tokens are served; gives the tokens of each tenant.
fn serve(queue: &mut FairQueue<u64>, tokens: u64) -> BTreeMap<u64, u64> {
    let mut served = BTreeMap::new();
    let mut sum = 0;
    while sum < tokens {
        let Some((who, cost)) = queue.pop() else { break };
        *served.entry(who).or_default() += cost;
        sum += cost;
    }
    served
}

#[test]
fn one_tenant_is_served_in_the_order_of_arrival() {
    let mut queue = FairQueue::default();
    for (item, cost) in [(1, 5000), (2, 10), (3, 300_000), (4, 1)] {
        queue.push(ticket(Normal, 0, cost), item);
    }
    let order: Vec<u64> = std::iter::from_fn(|| queue.pop()).map(|(item, _)| item).collect();
    assert_eq!(order, [1, 2, 3, 4]);
    assert!(queue.is_empty());
}

#[test]
fn a_tenant_that_floods_takes_no_more_than_its_share() {
    let mut queue = FairQueue::default();
    for _ in 0..500 {
        queue.push(ticket(Normal, 1, 1000), 1);
    }
    for _ in 0..50 {
        queue.push(ticket(Normal, 2, 1000), 2);
    }
    let served = serve(&mut queue, 100_000);
    assert!((45_000..=55_000).contains(&served[&2]), "{served:?}");
}

#[test]
fn shares_are_in_tokens_and_not_in_requests() {
    let mut queue = FairQueue::default();
    for _ in 0..1000 {
        queue.push(ticket(Normal, 1, 30_000), 1);
        queue.push(ticket(Normal, 2, 300), 2);
    }
    let served = serve(&mut queue, 400_000);
    let part = served[&2] as f64 / 400_000.0;
    assert!((0.45..=0.55).contains(&part), "{served:?}");
}

#[test]
fn a_higher_class_goes_first_and_no_class_starves() {
    let mut queue = FairQueue::default();
    for _ in 0..100 {
        queue.push(ticket(Low, 3, 10), 3);
        queue.push(ticket(Normal, 2, 10), 2);
        queue.push(ticket(High, 1, 10), 1);
    }
    let first: Vec<u64> = std::iter::from_fn(|| queue.pop()).take(64).map(|(who, _)| who).collect();
    let count = |who| first.iter().filter(|seen| **seen == who).count();
    assert_eq!((count(1), count(2), count(3)), (56, 4, 4), "7 turns in 8 are the highest class's: {first:?}");
}

#[test]
fn a_request_that_left_is_gone() {
    let mut queue = FairQueue::default();
    let first = queue.push(ticket(Normal, 1, 10), 1);
    queue.push(ticket(Normal, 1, 20), 2);
    assert_eq!(queue.remove(first), Some(1));
    assert_eq!(queue.remove(first), None);
    assert_eq!((queue.len(), queue.cost()), (1, 20));
    assert_eq!(queue.pop(), Some((2, 20)));
}

#[test]
fn a_request_that_found_no_room_is_next_again() {
    let mut queue = FairQueue::default();
    queue.push(ticket(Normal, 1, 50_000), 1);
    queue.push(ticket(Normal, 2, 10), 2);
    queue.push_front(ticket(Normal, 3, 90_000), 3);
    assert_eq!(queue.pop(), Some((3, 90_000)));
}

#[test]
fn a_full_queue_makes_room_at_the_cost_of_the_largest() {
    let mut queue = FairQueue::default();
    for item in 0..10 {
        queue.push(ticket(Normal, 1, 100), item);
    }
    assert_eq!(queue.evict_for(ticket(Normal, 1, 100)), None, "not at its own cost");
    assert_eq!(queue.evict_for(ticket(Normal, 2, 100)), Some(9), "the newest of the flood goes");
    assert_eq!(queue.evict_for(ticket(Normal, 2, 5000)), None, "a request larger than the flood is the flood");
}

#[test]
fn what_goes_ahead_is_bounded_by_fairness() {
    let mut queue = FairQueue::default();
    queue.push(ticket(Normal, 1, 10_000), 0);
    queue.push(ticket(High, 2, 500), 0);
    queue.push(ticket(Low, 3, 7_000), 0);
    assert_eq!(queue.ahead(ticket(Normal, 4, 100)), 500 + 100 + 100);
    assert_eq!(queue.ahead(ticket(Normal, 1, 100)), 500 + 10_000 + 100);
    assert_eq!(queue.ahead(ticket(High, 4, 100)), 100 + 100);
}

proptest! {
    /// Against the definition: while both wait, no tenant is ahead of another by more than a quantum and two of the
    /// largest requests; everything comes out once.
    #[test]
    fn nobody_is_ahead_by_more_than_a_round(
        costs in prop::collection::vec((0_u64..4, 1_u64..20_000), 1..200),
    ) {
        let mut queue = FairQueue::default();
        let mut left: BTreeMap<u64, usize> = BTreeMap::new();
        for (number, (who, cost)) in costs.iter().enumerate() {
            queue.push(ticket(Normal, *who, *cost), (number, *who));
            *left.entry(*who).or_default() += 1;
        }
        let all = left.len();
        let most = costs.iter().map(|(_, cost)| *cost).max().unwrap();
        let mut served: BTreeMap<u64, u64> = left.keys().map(|who| (*who, 0)).collect();
        let mut seen = vec![false; costs.len()];
        while let Some(((number, who), cost)) = queue.pop() {
            prop_assert!(!std::mem::replace(&mut seen[number], true));
            prop_assert_eq!(costs[number].1, cost);
            *served.get_mut(&who).unwrap() += cost;
            *left.get_mut(&who).unwrap() -= 1;
            if left.values().all(|left| *left > 0) && all == left.len() {
                let spread = served.values().max().unwrap() - served.values().min().unwrap();
                prop_assert!(spread <= 2 * (QUANTUM + most), "{:?}", served);
            }
        }
        prop_assert!(seen.iter().all(|seen| *seen));
    }
}
