//! Charges, views, restarts of one replica.

use std::time::Duration;

use super::*;

fn replica() -> Arc<Replica> {
    let base = "http://127.0.0.1:8001/v1".parse().unwrap();
    Replica::new(ReplicaSlot(3), ReplicaSpec { base, api_key: None, engine: None, limit: 256 })
}

fn load(running: u32, waiting: u32, cache_tokens: Option<u64>) -> EngineLoad {
    EngineLoad { running, waiting, cache_tokens, kv_usage: Some(0.5), ..EngineLoad::default() }
}

#[test]
fn a_charge_is_released_whole_however_it_ends() {
    let now = Instant::now();
    let replica = replica();
    let mut first = replica.try_charge(1000, Instant::now()).unwrap();
    let second = replica.try_charge(500, Instant::now()).unwrap();
    let view = replica.view(now, 4.0, 256);
    assert_eq!((view.in_flight, view.pending_prefill), (2, 1500));

    first.first_token(Instant::now());
    first.first_token(Instant::now());
    assert_eq!(replica.view(now, 4.0, 256).pending_prefill, 500, "released once");
    drop(first);
    drop(second);

    let view = replica.view(now, 4.0, 256);
    assert_eq!((view.in_flight, view.pending_prefill), (0, 0));
}

#[test]
fn a_charge_that_unwinds_is_released_too() {
    let replica = replica();

    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _charge = replica.try_charge(7, Instant::now()).unwrap();
        panic!("request task died");
    }));

    assert!(result.is_err());
    assert_eq!(replica.in_flight(), 0);
}

#[test]
fn the_view_joins_the_own_count_with_the_engines_word() {
    let now = Instant::now();
    let replica = replica();
    let _own = [replica.try_charge(1, Instant::now()).unwrap(), replica.try_charge(1, Instant::now()).unwrap()];
    assert_eq!(replica.view(now, 4.0, 256).running, 0, "no word yet: unknown");

    replica.set_load(load(3, 4, Some(16_384)), now);

    let view = replica.view(now, 4.0, 256);
    assert_eq!((view.in_flight, view.running, view.waiting), (2, 3, 4));
    assert_eq!(view.capacity_blocks, Some(256), "16,384 tokens of 4 bytes in blocks of 256");
    assert_eq!(view.kv_usage, Some(0.5));
    let stale = replica.view(now + Duration::from_secs(6), 4.0, 256);
    assert_eq!((stale.running, stale.waiting, stale.kv_usage), (0, 0, None));
    assert_eq!(stale.capacity_blocks, Some(256), "the capacity of a process does not go stale");
}

#[test]
fn an_unusable_byte_rate_gives_no_capacity_rather_than_a_wrong_one() {
    let now = Instant::now();
    let replica = replica();
    replica.set_load(load(0, 0, Some(u64::MAX)), now);

    assert_eq!(replica.view(now, f32::NAN, 256).capacity_blocks, None);
    assert_eq!(replica.view(now, 4.0, 0).capacity_blocks, None);
    assert_eq!(replica.view(now, 0.0, 256).capacity_blocks, None);
    assert_eq!(replica.view(now, 4.0, 1).capacity_blocks, Some(u32::MAX));
}

#[test]
fn a_restart_raises_the_generation_and_forgets_what_was_learnt_but_not_the_charges() {
    let now = Instant::now();
    let replica = replica();
    replica.probe_ok(now);
    replica.advance_clock(40);
    replica.set_load(load(1, 1, Some(1000)), now);
    for _ in 0..5 {
        replica.failed(FailureCause::Reset, now);
    }
    let charge = replica.try_charge(9, Instant::now()).unwrap();
    assert!(replica.ejected());

    replica.restarted();

    let view = replica.view(now, 4.0, 256);
    assert_eq!((view.generation, view.clock, view.capacity_blocks), (1, 0, None));
    assert!(replica.load(now).is_none());
    assert!(replica.usable(now));
    assert_eq!(view.in_flight, 1);
    drop(charge);
    assert_eq!(replica.in_flight(), 0);
}

#[test]
fn a_configured_engine_is_not_overruled_by_detection() {
    let base: BaseUrl = "http://h:1".parse().unwrap();
    let spec = ReplicaSpec { base, api_key: None, engine: Some(EngineKind::Sglang), limit: 1 };
    let fixed = Replica::new(ReplicaSlot(0), spec);
    let free = replica();

    assert!(!fixed.set_engine(EngineKind::Vllm));
    assert_eq!(fixed.engine(), EngineKind::Sglang);
    assert!(!free.engine_known());
    assert_eq!(free.engine(), EngineKind::Openai);
    assert!(free.set_engine(EngineKind::Tgi));
    assert!(!free.set_engine(EngineKind::Tgi));
    assert_eq!(free.engine(), EngineKind::Tgi);
}

#[test]
fn an_ejected_replica_takes_one_probe_request_and_its_end_frees_the_place() {
    let now = Instant::now();
    let replica = replica();
    replica.probe_ok(now);
    for _ in 0..5 {
        replica.failed(FailureCause::Status5xx, now);
    }
    let due = now + Duration::from_millis(1200);
    assert!(!replica.usable(now));
    assert!(replica.usable(due));

    let probe = replica.try_charge(1, Instant::now()).unwrap();
    assert!(probe.is_probe());
    assert!(!replica.usable(due));
    assert!(!replica.try_charge(1, Instant::now()).unwrap().is_probe());
    drop(probe);

    assert!(replica.usable(due), "the client of the probe left: the next request probes");
}

#[test]
fn models_change_by_what_they_say_and_not_by_their_time() {
    let replica = replica();
    let entry = |id: &str, raw: &str| ServedModel {
        id: id.into(),
        max_model_len: Some(4096),
        adapter_of: None,
        raw: raw.into(),
    };
    assert!(!replica.models_known());

    assert!(replica.set_models(vec![entry("a", r#"{"created":1}"#)]));
    assert!(!replica.set_models(vec![entry("a", r#"{"created":2}"#)]));
    assert_eq!(&*replica.models()[0].raw, r#"{"created":2}"#);
    assert!(replica.serves("a") && !replica.serves("b"));
    assert!(replica.set_models(Vec::new()));
    assert!(replica.models_known());
}

#[test]
fn an_emptied_cache_may_hold_what_came_since_the_last_word_and_nothing_older() {
    let replica = replica();
    let view = |replica: &Replica| replica.view(Instant::now(), 4.0, 256);
    replica.advance_clock(100);
    assert_eq!(view(&replica).since_empty, 100, "all that it was ever sent");
    replica.set_load(EngineLoad::default(), Instant::now());
    replica.advance_clock(7);

    replica.emptied();
    assert_eq!(view(&replica).since_empty, 7);
    replica.advance_clock(1);
    assert_eq!((view(&replica).since_empty, view(&replica).clock), (8, 108));

    replica.restarted();
    assert_eq!((view(&replica).since_empty, view(&replica).clock), (0, 0));
}
