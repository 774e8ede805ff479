//! The set of addresses that DNS answers agree on.
//!
//! An address joins with the first answer that has it and leaves only when two answers in a row lack it: round-robin
//! servers and half-propagated updates leave addresses out of single answers. An empty answer or an error is no answer.
//! Source: reliability.md section 2, DNS row, and fault F12.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

/// Answers in a row that must lack an address before it is removed.
const AGREEING: u8 = 2;

/// The current set and who is missing from it.
#[derive(Debug, Default)]
pub(super) struct Agreed {
    /// Each address with the number of answers in a row that lacked it.
    addresses: BTreeMap<IpAddr, u8>,
}

impl Agreed {
    /// Takes a good answer. True when that changed the set.
    pub(super) fn update(&mut self, answer: &BTreeSet<IpAddr>) -> bool {
        if answer.is_empty() {
            return false;
        }
        let before: Vec<IpAddr> = self.addresses().collect();
        for (address, missing) in &mut self.addresses {
            *missing = if answer.contains(address) { 0 } else { missing.saturating_add(1) };
        }
        self.addresses.retain(|_, missing| *missing < AGREEING);
        for address in answer {
            self.addresses.entry(*address).or_default();
        }
        !self.addresses().eq(before)
    }

    /// The set, in order.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.addresses.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(last: &[u8]) -> BTreeSet<IpAddr> {
        last.iter().map(|&n| IpAddr::from([10, 0, 0, n])).collect()
    }

    fn now(agreed: &Agreed) -> BTreeSet<IpAddr> {
        agreed.addresses().collect()
    }

    #[test]
    fn an_address_joins_at_once_and_leaves_after_two_answers_without_it() {
        let mut agreed = Agreed::default();
        assert!(agreed.update(&set(&[1, 2])));

        assert!(!agreed.update(&set(&[1])), "one answer without it is a flap");
        assert_eq!(now(&agreed), set(&[1, 2]));
        assert!(agreed.update(&set(&[1])));
        assert_eq!(now(&agreed), set(&[1]));
        assert!(agreed.update(&set(&[1, 3])));
        assert_eq!(now(&agreed), set(&[1, 3]));
    }

    #[test]
    fn a_flapping_set_stays_whole() {
        let mut agreed = Agreed::default();
        agreed.update(&set(&[1, 2, 3]));

        for _ in 0..10 {
            assert!(!agreed.update(&set(&[1, 2])));
            assert!(!agreed.update(&set(&[2, 3])));
            assert!(!agreed.update(&set(&[1, 3])));
        }

        assert_eq!(now(&agreed), set(&[1, 2, 3]));
    }

    #[test]
    fn an_empty_answer_removes_nothing_and_does_not_count() {
        let mut agreed = Agreed::default();
        agreed.update(&set(&[1, 2]));

        for _ in 0..5 {
            assert!(!agreed.update(&set(&[])));
        }
        agreed.update(&set(&[1]));

        assert_eq!(now(&agreed), set(&[1, 2]), "five empty answers and one without it are one answer without it");
    }

    #[test]
    fn a_set_that_is_replaced_whole_overlaps_for_one_answer() {
        let mut agreed = Agreed::default();
        agreed.update(&set(&[1, 2]));

        assert!(agreed.update(&set(&[3, 4])));
        assert_eq!(now(&agreed), set(&[1, 2, 3, 4]));
        assert!(agreed.update(&set(&[3, 4])));
        assert_eq!(now(&agreed), set(&[3, 4]));
    }
}
