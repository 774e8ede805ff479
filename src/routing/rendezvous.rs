//! Highest random weight: which replica a key belongs to, without shared state.
//!
//! The weight depends on the replica's label and not on its slot or position, so gateways side by side agree, a restart
//! changes nothing, and when a replica leaves only its own keys move.
//! Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.

use xxhash_rust::xxh3::xxh3_64;

/// Stable identity of a replica, from its label.
#[must_use]
pub fn id_hash(label: &str) -> u64 {
    xxh3_64(label.as_bytes())
}

/// Weight of a replica for a key: the replica with the highest one is the key's home.
#[must_use]
pub const fn weight(key: u64, id_hash: u64) -> u64 {
    // Two rounds of the finaliser of MurmurHash3: one alone keeps sums of related keys related.
    mix(mix(key) ^ id_hash)
}

const fn mix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(key: u64, labels: &[String]) -> &str {
        labels.iter().max_by_key(|label| weight(key, id_hash(label))).unwrap()
    }

    fn labels(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("10.0.0.{number}:8000")).collect()
    }

    #[test]
    fn keys_spread_evenly() {
        let labels = labels(10);
        let mut counts = std::collections::HashMap::new();
        for key in 0..10_000 {
            *counts.entry(home(key, &labels)).or_insert(0) += 1;
        }

        assert!(counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn only_keys_of_the_replica_that_leaves_move() {
        let all = labels(8);
        let fewer = &all[..7];

        for key in 0..1000 {
            let before = home(key, &all);
            assert!(before == all[7] || before == home(key, fewer), "key {key} moved");
        }
    }
}
