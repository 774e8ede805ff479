//! Which replicas of a pool a request may go to.
//!
//! Never empty out of caution: ejection leaves at least half of what health has up, and all of it when every one is
//! ejected (panic mode, so a single replica is never ejected). Empty means that each replica said no itself, drains, or
//! does not exist; a replica that was not probed yet or fell silent is tried when nothing better is left.
//! Source: reliability.md section 2; Envoy's panic threshold.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{Replica, Standing, health::Active};

/// Indices into a list of replicas, rising.
type Indices = SmallVec<[usize; 16]>;

/// Indices of the replicas that a request may go to, rising.
///
/// Replicas that refused for load a moment ago, or broke a connection and were not probed since, are left out while
/// another is left.
#[must_use]
pub fn usable_replicas(all: &[Arc<Replica>], now: Instant) -> Indices {
    let standings: SmallVec<[Standing; 16]> = all.iter().map(|replica| replica.standing(now)).collect();
    choose(&standings)
}

fn choose(standings: &[Standing]) -> Indices {
    let mut chosen = indices(standings, Standing::usable);
    let out = indices(standings, |s| s.active == Active::Up && !s.draining && s.ejected_until.is_some());
    if chosen.is_empty() {
        chosen = out;
    } else if out.len() > chosen.len() {
        readmit(&mut chosen, out, standings);
    }
    if chosen.is_empty() {
        return indices(standings, |s| matches!(s.active, Active::Unknown | Active::Silent) && !s.draining);
    }
    let preferred = |i: &usize| standings.get(*i).is_some_and(|standing| !standing.saturated && !standing.suspect);
    let free: Indices = chosen.iter().copied().filter(preferred).collect();
    if free.is_empty() { chosen } else { free }
}

/// Takes back the ejected replicas that are due soonest, until at most half are out.
fn readmit(chosen: &mut Indices, mut out: Indices, standings: &[Standing]) {
    let most_out = usize::midpoint(chosen.len(), out.len());
    out.sort_by_key(|&i| standings.get(i).and_then(|standing| standing.ejected_until));
    let back = out.len() - most_out;
    chosen.extend(out.into_iter().take(back));
    chosen.sort_unstable();
}

fn indices(standings: &[Standing], keep: impl Fn(&Standing) -> bool) -> Indices {
    standings.iter().enumerate().filter(|(_, standing)| keep(standing)).map(|(i, _)| i).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn standing(active: Active) -> Standing {
        Standing { active, ejected_until: None, saturated: false, suspect: false, draining: false }
    }

    fn up() -> Standing {
        standing(Active::Up)
    }

    #[test]
    fn a_replica_that_broke_a_connection_waits_for_its_probe_while_another_is_left() {
        let suspect = Standing { suspect: true, ..up() };

        assert_eq!(chosen(&[suspect, up()]), [1]);
        assert_eq!(chosen(&[suspect, suspect]), [0, 1]);
        assert_eq!(chosen(&[suspect]), [0]);
    }

    fn out(seconds: u64) -> Standing {
        // One fixed origin: the order of the ends is what counts.
        static ORIGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        let origin = *ORIGIN.get_or_init(Instant::now);
        Standing { ejected_until: Some(origin + Duration::from_secs(seconds)), ..up() }
    }

    fn chosen(standings: &[Standing]) -> Vec<usize> {
        choose(standings).to_vec()
    }

    #[test]
    fn a_single_replica_is_never_ejected() {
        assert_eq!(chosen(&[out(9)]), [0]);
    }

    #[test]
    fn ejection_takes_out_at_most_half_and_the_one_due_soonest_comes_back() {
        assert_eq!(chosen(&[up(), out(9)]), [0]);
        assert_eq!(chosen(&[up(), out(9), out(3), up()]), [0, 3]);
        assert_eq!(chosen(&[up(), out(9), out(3)]), [0, 2], "one of three may be out");
        assert_eq!(chosen(&[out(9), out(3), out(5), up()]), [1, 3]);
    }

    #[test]
    fn when_all_are_ejected_all_are_used() {
        assert_eq!(chosen(&[out(1), out(2), out(3)]), [0, 1, 2]);
    }

    #[test]
    fn a_replica_that_said_no_is_not_used_even_when_nothing_is_left() {
        assert_eq!(chosen(&[standing(Active::Refused)]), [0; 0]);
        assert_eq!(chosen(&[standing(Active::Refused), standing(Active::Silent), standing(Active::Unknown)]), [1, 2]);
        assert_eq!(chosen(&[standing(Active::Silent), up()]), [1]);
        assert_eq!(chosen(&[standing(Active::Refused), out(4)]), [1], "ejected is better than refused");
    }

    #[test]
    fn a_draining_replica_gets_nothing_in_any_mode() {
        let drains = |s: Standing| Standing { draining: true, ..s };
        assert_eq!(chosen(&[drains(up()), up()]), [1]);
        assert_eq!(chosen(&[drains(up())]), [0; 0]);
        assert_eq!(chosen(&[drains(out(1)), drains(standing(Active::Unknown))]), [0; 0]);
    }

    #[test]
    fn saturated_replicas_are_left_out_only_while_another_is_left() {
        let full = |s: Standing| Standing { saturated: true, ..s };
        assert_eq!(chosen(&[full(up()), up()]), [1]);
        assert_eq!(chosen(&[full(up()), full(up())]), [0, 1]);
        assert_eq!(chosen(&[full(up()), out(1)]), [0], "saturated is better than ejected");
    }

    #[test]
    fn no_replicas_no_choice() {
        assert_eq!(chosen(&[]), [0; 0]);
    }

    fn any_standing() -> impl Strategy<Value = Standing> {
        let active = prop::sample::select(vec![Active::Unknown, Active::Up, Active::Silent, Active::Refused]);
        (active, prop::option::of(0_u64..100), any::<bool>(), prop::bool::weighted(0.2)).prop_map(
            |(active, until, saturated, draining)| Standing {
                suspect: false,
                active,
                ejected_until: until.and_then(|seconds| out(seconds).ejected_until),
                saturated,
                draining,
            },
        )
    }

    proptest! {
        #[test]
        fn caution_never_empties_a_pool(standings in prop::collection::vec(any_standing(), 0..12)) {
            let got = choose(&standings);

            let up = indices(&standings, |s| s.active == Active::Up && !s.draining);
            prop_assert!(got.is_empty() <= up.is_empty(), "one that is up is always used");
            prop_assert!(got.windows(2).all(|pair| pair[0] < pair[1]));
            for &i in &got {
                prop_assert!(!standings[i].draining && standings[i].active != Active::Refused);
            }
            let unsaturated = standings.iter().map(|s| Standing { saturated: false, ..*s }).collect::<Vec<_>>();
            if !up.is_empty() {
                prop_assert!(choose(&unsaturated).len() * 2 >= up.len(), "ejection takes at most half");
            }
        }
    }
}
