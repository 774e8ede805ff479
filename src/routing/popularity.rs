//! How large a share of the traffic begins with a prefix, and so how many replicas should hold it.
//!
//! A prefix that all requests share belongs on all replicas: one prefill on each buys the use of each. The in-flight
//! guard alone would fill just enough replicas to stay under its bound and leave the others idle for ever.
//! Counts decay by halving, so the memory is about the last two thousand requests. Fixed size; prefixes that share a
//! cell are counted together, which can only spread one of them too widely. Source: case BR-065, llm-d-router issue 669.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Cells. A rare prefix is overcounted by the traffic of a cell, a thousandth.
const CELLS: usize = 1024;
/// Requests after which all counts are halved.
const HALVING: u32 = 1024;
/// Requests for a prefix before its share means anything.
const ENOUGH: u32 = 24;
/// Part of a further replica that a share may ask for without getting it, in percent. A share is an estimate.
const TOLERANCE_PERCENT: u32 = 25;

/// Counts of requests by prefix.
#[derive(Debug)]
pub struct Popularity {
    counts: Vec<AtomicU32>,
    total: AtomicU32,
}

impl Default for Popularity {
    fn default() -> Self {
        let counts = std::iter::repeat_with(AtomicU32::default).take(CELLS).collect();
        Self { counts, total: AtomicU32::new(0) }
    }
}

impl Popularity {
    /// Counts one request for this prefix and gives the number of replicas out of `replicas` that its share deserves.
    ///
    /// At least one. Racing requests may lose a count or halve one twice; it is an estimate.
    pub fn deserved(&self, prefix: u64, replicas: usize) -> usize {
        let total = self.total.fetch_add(1, Relaxed) + 1;
        if total >= 2 * HALVING {
            self.total.store(HALVING, Relaxed);
            for count in &self.counts {
                count.store(count.load(Relaxed) / 2, Relaxed);
            }
        }
        let cell = (prefix >> 40) as usize % CELLS;
        let Some(count) = self.counts.get(cell).map(|count| count.fetch_add(1, Relaxed) + 1) else { return 1 };
        if count < ENOUGH {
            return 1;
        }
        let replicas = replicas as u64;
        let hundredths = u64::from(count) * replicas * 100 / u64::from(total.max(count));
        let deserved =
            (hundredths.saturating_sub(u64::from(TOLERANCE_PERCENT))).div_ceil(100).clamp(1, replicas.max(1));
        usize::try_from(deserved).unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_deserves_replicas_by_its_share() {
        let popularity = Popularity::default();
        let mut last = std::collections::BTreeMap::new();
        for request in 0..10_000_u64 {
            // Key 0 has 60 % of the traffic, keys 6 to 9 have 10 % each.
            let key = if request % 10 < 6 { 0 } else { request % 10 };
            last.insert(key, popularity.deserved(key << 40, 4));
        }

        assert_eq!(last[&0], 3, "0.6 x 4 = 2.4");
        assert_eq!(last[&6], 1, "0.1 x 4 = 0.4");
    }

    #[test]
    fn what_all_requests_share_belongs_everywhere_and_the_unknown_nowhere_else() {
        let popularity = Popularity::default();

        assert_eq!(popularity.deserved(1, 4), 1);
        let last = (0..100).map(|_| popularity.deserved(1, 4)).last();
        assert_eq!(last, Some(4));
        assert_eq!(popularity.deserved(2 << 40, 0), 1);
    }
}
