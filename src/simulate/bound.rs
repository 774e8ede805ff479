//! What placement cannot beat: the hit rate of one cache of the size of all, used by every request in turn.

use std::collections::{BTreeMap, HashMap};

use super::Trace;

/// Share of the prompt tokens that one LRU cache of `blocks` blocks would have had, 0 to 1.
///
/// As an engine counts: whole blocks from the front, and the last token of a prompt is always computed.
#[must_use]
pub fn shared_lru(trace: &Trace, blocks: usize) -> f64 {
    let mut last: HashMap<u64, u64> = HashMap::new();
    let mut order: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut tick, mut hits, mut tokens) = (0, 0, 0);
    for arrival in &trace.arrivals {
        let most = (arrival.input - 1) / trace.block_tokens.max(1);
        let found = arrival.hashes.iter().take(most).take_while(|hash| last.contains_key(hash)).count();
        hits += found * trace.block_tokens;
        tokens += arrival.input;
        // The deepest block was used longest ago: a chain loses its tail before its head.
        for hash in arrival.hashes.iter().rev() {
            tick += 1;
            if let Some(before) = last.insert(*hash, tick) {
                order.remove(&before);
            }
            order.insert(tick, *hash);
        }
        while last.len() > blocks {
            let Some((_, hash)) = order.pop_first() else { break };
            last.remove(&hash);
        }
    }
    hits as f64 / tokens.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(prompts: &[&[u64]]) -> Trace {
        let line = |ids: &&[u64]| {
            format!(
                r#"{{"timestamp": 0, "input_length": {}, "output_length": 1, "hash_ids": {ids:?}}}"#,
                ids.len() * 512
            )
        };
        Trace::parse(&prompts.iter().map(line).collect::<Vec<_>>().join("\n"), 99).unwrap()
    }

    #[test]
    fn whole_blocks_count_but_never_the_last_token() {
        let same = trace(&[&[1, 2, 3, 4], &[1, 2, 3, 4]]);

        assert_eq!(shared_lru(&same, 100), 3.0 / 8.0, "the block of the last token is computed again");
        assert_eq!(shared_lru(&same, 3), 3.0 / 8.0, "the tail gives way first");
        assert_eq!(shared_lru(&same, 1), 1.0 / 8.0);
    }

    #[test]
    fn what_was_used_longest_ago_gives_way() {
        let back = trace(&[&[1, 2, 3], &[11, 12, 13], &[1, 2, 3]]);

        assert_eq!(shared_lru(&back, 6), 2.0 / 9.0);
        assert_eq!(shared_lru(&back, 3), 0.0);
    }
}
