//! A map that forgets: bounded in size and in time, the oldest entries first.
//!
//! For small memories of what just happened (poisonous requests, conversations that spilled), where forgetting early
//! does no harm. Pure: `now` is an argument.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

/// Values by hash, each for a while.
#[derive(Debug)]
pub struct Recent<V> {
    entries: HashMap<u64, (V, Instant)>,
    order: VecDeque<(u64, Instant)>,
    most: usize,
    keep: Duration,
}

impl<V> Recent<V> {
    /// A memory of at most `most` entries, each for `keep` after it was last put.
    #[must_use]
    pub fn new(most: usize, keep: Duration) -> Self {
        Self { entries: HashMap::new(), order: VecDeque::new(), most, keep }
    }

    /// Puts a value; the one before is forgotten.
    pub fn put(&mut self, key: u64, value: V, now: Instant) {
        self.entries.insert(key, (value, now));
        self.order.push_back((key, now));
        // The queue holds one item a put; those of keys put again since are stale.
        while let Some(&(oldest, put)) = self.order.front() {
            let current = self.entries.get(&oldest).is_some_and(|(_, last)| *last == put);
            let goes = !current || self.entries.len() > self.most || now.saturating_duration_since(put) > self.keep;
            if !goes && self.order.len() <= 2 * self.most {
                break;
            }
            self.order.pop_front();
            if current {
                self.entries.remove(&oldest);
            }
        }
    }

    /// The value of a key, if it was put lately.
    #[must_use]
    pub fn get(&self, key: u64, now: Instant) -> Option<&V> {
        let (value, put) = self.entries.get(&key)?;
        (now.saturating_duration_since(*put) <= self.keep).then_some(value)
    }

    /// Forgets a key.
    pub fn remove(&mut self, key: u64) {
        self.entries.remove(&key);
    }

    /// Entries held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_bounded_in_size_and_time() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let mut recent = Recent::new(3, 10 * second);
        for key in 0..100 {
            recent.put(key, key, now);
        }
        assert_eq!(recent.len(), 3);
        assert_eq!((recent.get(99, now), recent.get(96, now)), (Some(&99), None));
        assert_eq!(recent.get(99, now + 10 * second), Some(&99));
        assert_eq!(recent.get(99, now + 11 * second), None);

        for turn in 0..1000 {
            recent.put(7, turn, now + second);
        }
        assert_eq!(recent.get(7, now + second), Some(&999));
        assert!(recent.order.len() <= 2 * recent.most + 1, "putting one key again and again takes no room");
        recent.remove(7);
        assert_eq!(recent.get(7, now + second), None);
        recent.put(8, 0, now + 20 * second);
        assert_eq!(recent.len(), 1, "what is old goes when something comes");
    }
}
