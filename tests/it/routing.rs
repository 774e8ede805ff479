//! Theme routing: spread, affinity and bounds, with the default policy.
//!
//! Skipped: BR-069 (concurrent access to the index) is a stress test beside the index itself.

use std::collections::{HashMap, HashSet};

use tokio_util::sync::CancellationToken;

use crate::support::{
    beside,
    check::all_good,
    client::{Request, send},
    gateway::{Config, TestGateway, fleet, open_loop},
    ms,
    replica::{
        Health, ScriptedReplica,
        engine::COMPLETION,
        script::{Script, reply},
    },
    until, words,
};

fn counts(replicas: &[ScriptedReplica]) -> Vec<usize> {
    replicas.iter().map(ScriptedReplica::count).collect()
}

fn peaks(replicas: &[ScriptedReplica]) -> Vec<usize> {
    replicas.iter().map(ScriptedReplica::peak).collect()
}

/// Index of the replica that got a body with this marker.
fn holder(replicas: &[ScriptedReplica], marker: &str) -> Option<usize> {
    replicas.iter().position(|replica| replica.posts().iter().any(|post| post.has(marker)))
}

fn all_play(replicas: &[ScriptedReplica], script: impl Into<Script>) {
    let script = script.into();
    for replica in replicas {
        replica.plays(script.clone());
    }
}

#[tokio::test]
async fn br_058_load_is_counted_when_a_replica_is_chosen() {
    let (replicas, gateway) = fleet(4).await;
    all_play(&replicas, reply(200, COMPLETION).after(ms(800)));
    let requests = (0..100).map(|i| Request::chat(&words(&format!("058-{i}"), 4000))).collect();

    let answers = open_loop(&gateway, requests, ms(20)).await;

    all_good(&answers, "slow prefill is no failure");
    let (counts, peaks) = (counts(&replicas), peaks(&replicas));
    let (most, least) = (counts.iter().max().unwrap(), counts.iter().min().unwrap());
    assert!(*most * 20 <= *least * 27, "spread must be even, at most 1.35 to 1: {counts:?}, peaks {peaks:?}");
    let sum: usize = peaks.iter().sum();
    assert!(
        peaks.iter().all(|peak| peak * 5 <= sum * 2 + 5),
        "no replica above 1.6 x the mean in flight + 1: {peaks:?}"
    );
}

#[tokio::test]
async fn br_059_misses_go_by_load_and_not_by_index_size() {
    let (replicas, gateway) = fleet(2).await;
    let shared = words("059", 4000);
    let warm = (0..12).map(|i| Request::chat(&format!("{shared} tail {i}")));
    all_good(&gateway.send_all(warm, 1).await, "warming up");
    let big = if replicas[0].count() > replicas[1].count() { 0 } else { 1 };
    let (full, idle) = (&replicas[1 - big], &replicas[big]);
    let release = CancellationToken::new();
    let held = release.clone();
    full.plays(Script::new(|play| async move { play.hang().await }));
    idle.plays(Script::new(move |play| {
        let held = held.clone();
        async move {
            held.cancelled().await;
            Script::from(reply(200, COMPLETION)).run(play).await
        }
    }));
    let load = (0..24).map(|i| {
        let (address, request) = (gateway.address(), Request::chat(&words(&format!("load {i}"), 3000)));
        beside(async move { send(address, &request).await })
    });
    let running: Vec<_> = load.collect();
    assert!(until(ms(5000), async || full.active() + idle.active() == 24).await, "24 requests run");
    release.cancel();
    assert!(until(ms(5000), async || idle.active() == 0).await, "one replica is idle again");
    let (on_full, before) = (full.active(), full.count());
    assert!(on_full >= 8, "24 misses at once are spread over both: {:?}", counts(&replicas));

    for i in 0..30 {
        let request = Request::chat(&words(&format!("new {i}"), 3000));
        if tokio::time::timeout(ms(800), gateway.send(&request)).await.is_err() {
            println!("miss {i} went to the busy replica");
        }
    }

    let to_full = full.count() - before;
    assert!(to_full <= 3, "{on_full} in flight on one, none on the other: {to_full} of 30 misses went to the busy one");
    for call in &running {
        call.abort();
    }
}

#[tokio::test]
async fn br_061_affinity_survives_skewed_load() {
    let (replicas, gateway) = fleet(4).await;
    let mut past: HashMap<usize, HashSet<usize>> = HashMap::new();
    let (mut hits, mut turns) = (0, 0);
    for turn in 0..5 {
        let slow = if turn % 2 == 1 { 250 } else { 30 };
        all_play(&replicas, reply(200, COMPLETION).after(ms(30)));
        replicas[0].plays(reply(200, COMPLETION).after(ms(slow)));
        let requests = (0..24).map(|session| {
            let history: String = (0..turn).map(|t| words(&format!("061-{session}-{t}"), 300)).collect();
            Request::chat(&format!("{}{history}[s{session}t{turn}]", words(&format!("061-{session}"), 3000)))
        });
        all_good(&gateway.send_all(requests, 12).await, "every turn is answered");
        for session in 0..24 {
            let at = holder(&replicas, &format!("[s{session}t{turn}]")).unwrap();
            let seen = past.entry(session).or_default();
            if turn > 0 {
                turns += 1;
                hits += usize::from(seen.contains(&at));
            }
            seen.insert(at);
        }
    }

    let counts = counts(&replicas);
    assert!(hits * 10 >= turns * 7, "{hits} of {turns} turns found their prefix, 70 % is the bound; spread {counts:?}");
    assert!(counts.iter().all(|count| count * 10 < turns * 6 + 240), "no replica takes most of it: {counts:?}");
}

#[tokio::test]
async fn br_062_every_path_moves_the_same_gauge() {
    let (replicas, gateway) = fleet(2).await;
    let requests = [
        Request::chat("x"),
        Request::stream("x"),
        Request::post("/v1/completions", r#"{"model":"m","prompt":"x"}"#),
        Request::post("/v1/embeddings", r#"{"model":"m","input":"x"}"#),
        Request::post("/v1/responses", r#"{"model":"m","input":"x"}"#),
        Request::post("/v1/messages", r#"{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"x"}]}"#),
        Request::post("/v1/rerank", r#"{"model":"m","query":"x","documents":["a"]}"#),
        Request::post("/v1/score", r#"{"model":"m","text_1":"x","text_2":"y"}"#),
        Request::post("/tokenize", r#"{"model":"m","prompt":"x"}"#),
        Request::post("/detokenize", r#"{"model":"m","tokens":[1]}"#),
    ];
    for request in &requests {
        for (status, leave) in [(200, false), (400, false), (500, false), (200, true)] {
            all_play(
                &replicas,
                Script::new(move |play| async move {
                    play.pause(ms(150)).await?;
                    Script::from(reply(status, COMPLETION)).run(play).await
                }),
            );
            let call = gateway.start(request).await;
            gateway.reaches("gateway_replica_inflight", &[], 1.0).await;
            if leave {
                call.close();
            } else {
                call.finish().await;
            }
            gateway.reaches("gateway_replica_inflight", &[], 0.0).await;
        }
    }
}

#[tokio::test]
async fn br_063_many_prefixes_spread_within_the_bound() {
    let (replicas, gateway) = fleet(10).await;
    all_play(&replicas, reply(200, COMPLETION).after(ms(800)));

    let answers = gateway.send_all((0..100).map(|i| Request::chat(&words(&format!("063-{i}"), 2000))), 100).await;

    all_good(&answers, "100 at once on 10 replicas");
    let peaks = peaks(&replicas);
    assert!(peaks.iter().all(|peak| *peak <= 15), "in flight at most 1.25 x the mean of 10 + 2.5: {peaks:?}");
}

#[tokio::test]
async fn br_065_a_common_system_prompt_does_not_pin_all_traffic() {
    let (replicas, gateway) = fleet(4).await;
    let system = words("065", 24_000);
    all_play(&replicas, reply(200, COMPLETION).after(ms(400)));
    let requests = (0..80).map(|i| {
        let tail = words(&format!("065-{i}"), 200);
        Request::body(format!(
            r#"{{"model":"m","messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"{tail}"}}]}}"#
        ))
    });

    let answers = open_loop(&gateway, requests.collect(), ms(50)).await;

    all_good(&answers, "8 in flight on 4 replicas");
    let counts = counts(&replicas);
    assert!(counts.iter().all(|count| (8..=40).contains(count)), "all replicas are used, none for most: {counts:?}");
}

#[tokio::test]
async fn br_068_the_same_prompt_sticks_to_one_replica() {
    let (replicas, gateway) = fleet(4).await;
    let prompt = words("068", 8000);

    all_good(&gateway.send_all((0..50).map(|_| Request::chat(&prompt)), 1).await, "the same prompt");

    let counts = counts(&replicas);
    assert!(counts.iter().any(|count| *count >= 49), "49 of 50 belong on one replica: {counts:?}");
}

#[tokio::test]
async fn shared_prefixes_stay_apart_and_at_home() {
    let (replicas, gateway) = fleet(4).await;
    let mut homes = HashMap::new();
    let (mut hits, mut later) = (0, 0);
    for round in 0..8 {
        for group in 0..10 {
            let marker = format!("<{group}.{round}>");
            let request = Request::chat(&(words(&format!("home {group}"), 6000) + &marker));
            assert!(gateway.send(&request).await.is_good());
            let at = holder(&replicas, &marker).unwrap();
            if round > 0 {
                later += 1;
                hits += usize::from(homes[&group] == at);
            } else {
                homes.insert(group, at);
            }
        }
    }

    let counts = counts(&replicas);
    assert!(hits * 100 >= later * 95, "{hits} of {later} requests found their prefix: {counts:?}");
    assert!(counts.iter().all(|count| *count <= 64), "ten prefixes must not collapse onto one replica: {counts:?}");
}

#[tokio::test]
async fn f27_a_hot_prefix_stays_bounded() {
    let (replicas, gateway) = fleet(4).await;
    let hot = words("f27", 4000);
    assert!(gateway.send(&Request::chat(&hot)).await.is_good());
    all_play(&replicas, reply(200, COMPLETION).after(ms(400)));
    let requests: Vec<Request> = (0..160)
        .map(|i| if i % 5 < 3 { format!("{hot} {i}") } else { words(&format!("f27-{i}"), 3000) })
        .map(|text| Request::chat(&text))
        .collect();

    let mut over = Vec::new();
    let mut samples = 0;
    let load = open_loop(&gateway, requests, ms(13));
    let watch = async {
        tokio::time::sleep(ms(600)).await;
        for _ in 0..120 {
            tokio::time::sleep(ms(10)).await;
            let active: Vec<usize> = replicas.iter().map(ScriptedReplica::active).collect();
            let (most, sum) = (active.iter().max().copied().unwrap(), active.iter().sum::<usize>());
            samples += 1;
            if most * 16 > sum * 5 + 48 {
                over.push(active);
            }
        }
    };
    let (answers, ()) = tokio::join!(load, watch);

    all_good(&answers, "a hot prefix fails nobody");
    assert!(
        over.len() * 5 <= samples,
        "the fullest replica is above 1.25 x mean + 3 in {} of {samples} samples, e.g. {:?}",
        over.len(),
        over.first()
    );
}

/// Sends prompts that share nothing, so that each fills the index with its own blocks.
async fn flood(gateway: &TestGateway, prompts: usize, length: usize, at_once: usize) {
    let pad = words("flood", length);
    let requests = (0..prompts).map(|i| {
        let (head, tail) = pad.split_at(i * 6 % length);
        Request::chat(&format!("{i:08} {tail}{head}"))
    });
    all_good(&gateway.send_all(requests, at_once).await, "the flood is served");
}

#[tokio::test]
async fn br_070_br_072_the_index_keeps_its_bound_at_every_insert() {
    let replicas = ScriptedReplica::fleet(2);
    for replica in &replicas {
        replica.forget_bodies();
    }
    let config = Config::new(&replicas).model("routing: { index_entries: 16384 }");
    let gateway = TestGateway::with(config).await;
    flood(&gateway, 100, 48_000, 8).await;
    let before = gateway.resident();
    let entries = gateway.metrics().await.total("gateway_index_entries", &[]);
    assert!(entries > 0.0 && entries <= 16_384.0, "100 x 188 blocks in an index of 16,384 entries: {entries}");

    flood(&gateway, 300, 48_000, 8).await;

    let metrics = gateway.metrics().await;
    let entries = metrics.total("gateway_index_entries", &[]);
    assert!(entries <= 16_384.0, "the limit holds at every insert: {entries}");
    assert!(metrics.total("gateway_index_evictions_total", &[]) > 0.0, "the oldest entries leave");
    let growth = gateway.resident().saturating_sub(before);
    assert!(growth < 16 << 20, "memory is flat once the index is full: grew by {growth} bytes");
}

#[tokio::test]
async fn br_073_a_restarted_replica_loses_its_entries() {
    let (replicas, gateway) = fleet(2).await;
    let prompt = words("073", 6000);
    all_good(&gateway.send_all((0..3).map(|i| Request::chat(&format!("{prompt}{i}"))), 1).await, "warming up");
    let home = if replicas[0].count() > replicas[1].count() { 0 } else { 1 };
    let (first, second) = (&replicas[home], &replicas[1 - home]);
    first.set_health(Health::Status(503));
    first.stop().await;
    gateway.reaches("gateway_replica_up", &[], 1.0).await;
    all_good(&gateway.send_all((3..6).map(|i| Request::chat(&format!("{prompt}{i}"))), 1).await, "the other serves");
    assert!(second.count() >= 3, "the other replica is warm now");

    first.set_health(Health::Status(200));
    first.restart();
    gateway.reaches("gateway_replica_up", &[], 2.0).await;
    first.forget();
    all_good(&gateway.send_all((6..12).map(|i| Request::chat(&format!("{prompt}{i}"))), 1).await, "both are up");

    assert_eq!(first.count(), 0, "a restarted replica has an empty cache: the one that is warm must get the prefix");
}

#[tokio::test]
async fn a_replica_url_may_carry_a_path() {
    let replica = ScriptedReplica::start();
    let gateway = TestGateway::with(Config::new(std::slice::from_ref(&replica)).base_path("/openai")).await;

    assert!(gateway.send(&Request::chat("x")).await.is_good());

    assert_eq!(replica.post(0).await.target, "/openai/v1/chat/completions");
}
