//! Token counts of prompts by their beginnings, so that a conversation's next turn is tokenised from its tail only.
//!
//! A chain: each entry stands for a text and all text before it. Bounded by two generations: when the young one is
//! full, the old one is dropped and the young one becomes old; a read of an old entry makes it young again.

use std::{
    collections::HashMap,
    mem,
    sync::{Mutex, PoisonError},
};

/// Entries of one generation; two are held, about 100 bytes an entry.
const GENERATION: usize = 32_768;

/// Hash of a text and all that stands before it.
pub(super) type Link = u128;

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Link, u64>,
    old: HashMap<Link, u64>,
}

/// Counts that are known.
#[derive(Debug, Default)]
pub(super) struct Memo {
    generations: Mutex<Generations>,
}

impl Memo {
    /// The deepest link that is known: its place in the chain, and the tokens up to there.
    pub(super) fn deepest(&self, chain: &[Link]) -> Option<(usize, u64)> {
        let mut guard = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, link) in chain.iter().enumerate().rev() {
            if let Some(tokens) = guard.young.get(link) {
                return Some((at, *tokens));
            }
            if let Some(tokens) = guard.old.get(link).copied() {
                guard.put(*link, tokens);
                return Some((at, tokens));
            }
        }
        None
    }

    /// Notes counts.
    pub(super) fn learn(&self, counts: impl Iterator<Item = (Link, u64)>) {
        let mut guard = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        for (link, tokens) in counts {
            guard.put(link, tokens);
        }
    }
}

impl Generations {
    fn put(&mut self, link: Link, tokens: u64) {
        if self.young.len() >= GENERATION {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(link, tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_known_beginning_is_found() {
        let memo = Memo::default();
        memo.learn([(1, 10), (2, 20)].into_iter());

        assert_eq!(memo.deepest(&[1, 2, 3]), Some((1, 20)));
        assert_eq!(memo.deepest(&[1, 9]), Some((0, 10)));
        assert_eq!(memo.deepest(&[7]), None);
    }

    #[test]
    fn it_is_bounded_and_keeps_what_is_used() {
        let memo = Memo::default();
        memo.learn([(u128::MAX, 1)].into_iter());
        for round in 0..4_u128 {
            let base = round * GENERATION as u128;
            memo.learn((0..GENERATION as u128 - 1).map(|at| (base + at, 0)));
            assert!(memo.deepest(&[u128::MAX]).is_some(), "what is read in each generation stays");
        }
        let held = memo.generations.lock().unwrap();
        assert!(held.young.len() + held.old.len() <= 2 * GENERATION);
    }
}
