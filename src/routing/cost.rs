//! What it costs to send a prompt to a replica, before anything has been learned about its speed.
//!
//! [`lmetric`] is (pending prefill + uncached prompt tokens) x (running + 1), of arXiv 2603.15202: no knobs. [`work`] is
//! its first factor alone, the tokens to compute before this prompt's first output, and stands for time to first token.

use super::{ReplicaView, RouteQuery};

/// A replica whose work is this much above the best is as good: 20 ms of prefill at 25 tokens a millisecond, which is a
/// 7B to 8B model on one data-centre GPU. Becomes 20 ms once the time of each replica is learned.
pub const TIE_TOKENS: u64 = 512;

/// Prompt tokens that a replica computes before the first output of this prompt, if it holds `blocks` of it.
#[must_use]
pub fn work(query: &RouteQuery<'_>, view: &ReplicaView, blocks: u32) -> u64 {
    view.pending_prefill.saturating_add(query.uncached(blocks))
}

/// LMetric cost: work x (running + 1), where running is the larger of our own and the engine's count.
#[must_use]
pub fn lmetric(query: &RouteQuery<'_>, view: &ReplicaView, blocks: u32) -> u64 {
    work(query, view, blocks).saturating_mul(u64::from(view.load()) + 1)
}

/// Whether work cannot be told from the best: within 10 % or [`TIE_TOKENS`], whichever is more.
#[must_use]
pub const fn ties(work: u64, best: u64) -> bool {
    let tenth = best / 10;
    work <= best.saturating_add(if tenth > TIE_TOKENS { tenth } else { TIE_TOKENS })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{chain, query, view};
    use super::*;

    #[test]
    fn lmetric_is_work_times_running_plus_one() {
        let chain = chain(&"x".repeat(4000));
        let query = query(&chain); // 1000 tokens, 4 a block
        let busy = ReplicaView { in_flight: 2, running: 3, waiting: 1, pending_prefill: 500, ..view(0) };

        assert_eq!(work(&query, &busy, 100), 500 + 1000 - 400);
        assert_eq!(lmetric(&query, &busy, 100), 1100 * 5, "the engine's own count of 4 is the larger");
        assert_eq!(lmetric(&query, &view(0), 250), 1, "a prompt that is all cached still runs one token");
    }

    #[test]
    fn small_differences_are_ties() {
        assert!(ties(512, 0) && !ties(513, 0));
        assert!(ties(11_000, 10_000) && !ties(11_001, 10_000));
    }
}
