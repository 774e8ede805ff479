//! Hands out replica numbers, and takes them back when a replica leaves.
//!
//! A number that comes back is given out with the next generation: the prefix index still holds entries of the old
//! owner, and only the generation tells that they are not the new one's.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use crate::types::{MAX_REPLICAS, ReplicaSlot};

/// Free replica numbers of one process.
#[derive(Debug)]
pub struct Slots {
    /// Free numbers with the generation of the next owner; the one free for the longest is first.
    free: Mutex<VecDeque<(ReplicaSlot, u8)>>,
}

impl Default for Slots {
    fn default() -> Self {
        let free = (0..u16::try_from(MAX_REPLICAS).unwrap_or(u16::MAX)).map(|n| (ReplicaSlot(n), 0)).collect();
        Self { free: Mutex::new(free) }
    }
}

impl Slots {
    /// All numbers free.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A free number and the generation to start with; `None` when [`MAX_REPLICAS`] are in use.
    pub fn take(&self) -> Option<(ReplicaSlot, u8)> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Takes back the number of a replica that left, with its last generation.
    pub fn give_back(&self, slot: ReplicaSlot, generation: u8) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if !free.iter().any(|(held, _)| *held == slot) {
            free.push_back((slot, generation.wrapping_add(1)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_bounded_and_come_back_with_the_next_generation() {
        let slots = Slots::new();
        let mut seen: Vec<u16> = std::iter::from_fn(|| slots.take()).map(|(slot, _)| slot.0).collect();
        seen.dedup();
        assert_eq!(seen.len(), MAX_REPLICAS);

        slots.give_back(ReplicaSlot(7), 255);
        slots.give_back(ReplicaSlot(7), 255);

        assert_eq!(slots.take(), Some((ReplicaSlot(7), 0)), "the generation wraps");
        assert_eq!(slots.take(), None, "giving back twice frees once");
    }
}
