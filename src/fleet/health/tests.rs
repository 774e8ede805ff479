//! The state machine on constructed times.

use super::*;

const MS: Duration = Duration::from_millis(1);

fn up() -> Health {
    let mut health = Health::new(1);
    assert!(health.probe_ok());
    health
}

fn fail(health: &mut Health, times: usize, now: Instant) -> bool {
    (0..times).map(|_| health.failed(now)).last().unwrap_or(false)
}

fn until(health: &mut Health, now: Instant) -> Duration {
    health.standing(now).ejected_until.expect("ejected") - now
}

#[test]
fn a_replica_is_unknown_until_its_first_probe_and_one_good_one_is_enough() {
    let now = Instant::now();
    let mut health = Health::new(1);

    assert_eq!(health.active(), Active::Unknown);
    assert!(!health.standing(now).usable());
    assert!(health.probe_ok(), "unknown to up is a change");
    assert!(!health.probe_ok(), "up to up is none");
    assert!(health.standing(now).usable());
}

#[test]
fn a_refusal_is_believed_at_once_and_silence_only_when_repeated() {
    let now = Instant::now();
    for failure in [ProbeFailure::Refused, ProbeFailure::Status(503)] {
        let mut health = up();
        assert!(health.probe_failed(failure));
        assert_eq!(health.active(), Active::Refused);
    }
    let mut health = up();

    assert!(!health.probe_failed(ProbeFailure::Timeout));
    assert!(health.standing(now).usable());
    assert!(health.probe_failed(ProbeFailure::Timeout));
    assert_eq!(health.active(), Active::Silent);
}

#[test]
fn a_good_probe_between_two_silent_ones_starts_the_count_again() {
    let mut health = up();

    health.probe_failed(ProbeFailure::Timeout);
    health.probe_ok();

    assert!(!health.probe_failed(ProbeFailure::Timeout));
}

#[test]
fn silence_after_a_refusal_stays_a_refusal() {
    let mut health = up();
    health.probe_failed(ProbeFailure::Refused);

    for _ in 0..5 {
        health.probe_failed(ProbeFailure::Timeout);
    }

    assert_eq!(health.active(), Active::Refused);
}

#[test]
fn five_failures_in_a_row_eject_and_a_success_between_starts_again() {
    let now = Instant::now();
    let mut health = up();

    assert!(!fail(&mut health, 4, now));
    health.succeeded(now);
    assert!(!fail(&mut health, 4, now));
    assert!(fail(&mut health, 1, now), "the fifth in a row");

    assert!(!health.standing(now).usable());
    let first = until(&mut health, now);
    assert!((800 * MS..=1200 * MS).contains(&first), "one second with jitter: {first:?}");
}

#[test]
fn streams_that_die_with_the_replica_do_not_lengthen_its_ejection() {
    let now = Instant::now();
    let mut health = up();
    fail(&mut health, 5, now);
    let first = until(&mut health, now);

    assert!(!fail(&mut health, 45, now + MS));

    assert_eq!(until(&mut health, now), first);
}

#[test]
fn after_the_ejection_one_request_probes_and_the_others_wait_for_it() {
    let now = Instant::now();
    let mut health = up();
    fail(&mut health, 5, now);
    let due = now + until(&mut health, now);

    assert!(health.standing(due).usable());
    assert!(health.begin_probe());
    assert!(!health.standing(due).usable(), "one at a time");
    assert!(!health.begin_probe());

    health.succeeded(due + MS);
    health.probe_ended();
    assert!(health.standing(due + MS).usable());
    assert!(!health.ejected());
}

#[test]
fn a_probe_that_fails_doubles_the_ejection_up_to_a_minute() {
    let mut now = Instant::now();
    let mut health = up();
    fail(&mut health, 5, now);
    let mut seconds = Vec::new();

    for _ in 0..8 {
        let held = until(&mut health, now);
        seconds.push(held.as_secs_f64());
        now += held;
        assert!(health.begin_probe());
        assert!(health.failed(now));
        health.probe_ended();
    }

    for (got, want) in seconds.iter().zip([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]) {
        assert!((want * 0.8..=want * 1.2).contains(got), "{seconds:?}");
    }
}

#[test]
fn a_probe_without_a_verdict_lets_another_try() {
    let now = Instant::now();
    let mut health = up();
    fail(&mut health, 5, now);
    let due = now + until(&mut health, now);
    health.begin_probe();

    health.probe_ended();
    assert!(health.standing(due).usable(), "the client left: nothing was learnt");

    health.begin_probe();
    assert!(!health.standing(due).usable());
    assert!(health.standing(due + PROBE_LEASE).usable(), "a probe that streams for minutes blocks nobody");
}

#[test]
fn a_good_health_probe_does_not_end_an_ejection_but_a_new_process_does() {
    let now = Instant::now();
    let mut health = up();
    fail(&mut health, 5, now);

    health.probe_ok();
    assert!(!health.standing(now).usable(), "vLLM says 200 while its engine hangs");

    health.probe_failed(ProbeFailure::Refused);
    health.probe_ok();
    assert!(health.standing(now).usable());
}

#[test]
fn a_replica_that_behaved_for_a_minute_starts_over_with_the_shortest_ejection() {
    let now = Instant::now();
    let mut health = up();
    fail(&mut health, 5, now);
    let mut at = now + Duration::from_secs(2);
    health.failed(at);
    at += Duration::from_secs(3);
    health.succeeded(at);

    at += FORGIVEN_AFTER + MS;
    fail(&mut health, 5, at);

    assert!(until(&mut health, at) <= 1200 * MS);
}

#[test]
fn saturation_passes_and_a_success_ends_it() {
    let now = Instant::now();
    let mut health = up();
    health.saturated(now + Duration::from_secs(1));

    assert!(health.standing(now).saturated);
    assert!(health.standing(now).usable(), "saturated is not failed");
    assert!(!health.standing(now + Duration::from_secs(1)).saturated);
    health.succeeded(now);
    assert!(!health.standing(now).saturated);
}
