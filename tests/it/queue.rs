//! Full replicas: the bound, the queue in front of it, and who gets the next place.

use std::time::Duration;

use futures_util::future::join_all;

use crate::support::{
    check::{all_good, json_error},
    client::{Answer, Request},
    gateway::{Config, TestGateway},
    key_entry, ms,
    replica::{
        ScriptedReplica,
        engine::COMPLETION,
        script::{Script, reply},
    },
    until,
};

fn config(replicas: &[ScriptedReplica], concurrency: &str) -> Config {
    Config::new(replicas).model(&format!("concurrency: {{ {concurrency} }}"))
}

async fn start(replicas: usize, concurrency: &str) -> (Vec<ScriptedReplica>, TestGateway) {
    let replicas = ScriptedReplica::fleet(replicas);
    let gateway = TestGateway::with(config(&replicas, concurrency)).await;
    (replicas, gateway)
}

/// Two keys, `sk-flood` and `sk-calm`.
fn two_keys() -> String {
    format!("keys:\n{}{}", key_entry("flood", ""), key_entry("calm", ""))
}

fn from(key: &str, text: &str) -> Request {
    Request::chat(text).header("authorization", &format!("Bearer sk-{key}"))
}

fn slow(after: Duration) -> Script {
    reply(200, COMPLETION).after(after).into()
}

fn statuses(answers: &[Answer]) -> Vec<u16> {
    answers.iter().map(|answer| answer.status).collect()
}

/// Requests that wait, as the metric says.
async fn queued(gateway: &TestGateway, want: f64) {
    gateway.reaches("gateway_queue_depth", &[], want).await;
}

#[tokio::test]
async fn no_replica_gets_more_than_its_bound_and_whoever_waits_is_served() {
    let (replicas, gateway) = start(2, "per_replica: 2").await;
    for replica in &replicas {
        replica.plays(slow(ms(40)));
    }

    let answers = gateway.send_all((0..40).map(|i| Request::chat(&format!("number {i}"))), 40).await;

    all_good(&answers, "the queue holds 1,024");
    for replica in &replicas {
        assert_eq!(replica.peak(), 2, "per_replica is 2, and both places are used");
    }
    let metrics = gateway.metrics().await;
    let waits = metrics.total("gateway_queue_wait_seconds_sum", &[]);
    assert!(metrics.total("gateway_queue_wait_seconds_count", &[]) >= 30.0);
    let own = metrics.total("gateway_overhead_seconds_sum", &[]);
    assert!(own < waits / 4.0, "time in line is no work of the gateway: {own} of {waits}");
    queued(&gateway, 0.0).await;
    gateway.idle().await;
}

#[tokio::test]
async fn a_wait_ends_at_the_queues_limit() {
    let (replicas, gateway) = start(1, "per_replica: 1, queue_timeout: 400ms").await;
    replicas[0].plays(Script::new(|play| async move { play.hang().await }));
    let first = gateway.start(&Request::chat("takes the place")).await;
    replicas[0].post(0).await;

    let answer = gateway.send(&Request::chat("waits")).await;

    let error = json_error(&answer, 503);
    assert_eq!(error["code"], "queue_timeout");
    assert!(answer.header("retry-after").is_some_and(|after| after.parse::<u64>().is_ok_and(|after| after >= 1)));
    assert!((ms(390)..ms(1500)).contains(&answer.took()), "{:?}", answer.took());
    assert_eq!(replicas[0].count(), 1, "it was never sent");
    gateway.reaches("gateway_rejected_total", &[("reason", "queue_timeout")], 1.0).await;
    queued(&gateway, 0.0).await;
    first.close();
    gateway.idle().await;
}

#[tokio::test]
async fn without_a_queue_a_full_pool_refuses_at_once() {
    let (replicas, gateway) = start(1, "per_replica: 1, queue: 0").await;
    replicas[0].plays(Script::new(|play| async move { play.hang().await }));
    let first = gateway.start(&Request::chat("takes the place")).await;
    replicas[0].post(0).await;

    let answer = gateway.send(&Request::chat("one too many")).await;

    assert_eq!(json_error(&answer, 503)["code"], "queue_full");
    assert!(answer.took() < ms(200), "{:?}", answer.took());
    first.close();
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_is_gone_at_once_and_keeps_nobody_waiting() {
    let (replicas, gateway) = start(1, "per_replica: 1").await;
    replicas[0].plays(slow(ms(600)));
    let first = gateway.start(&Request::chat("first")).await;
    replicas[0].post(0).await;
    let mut leaving = Vec::new();
    for i in 0..20 {
        leaving.push(gateway.start(&Request::chat(&format!("leaves {i}"))).await);
    }
    queued(&gateway, 20.0).await;
    let last = gateway.start(&Request::chat("stays")).await;
    queued(&gateway, 21.0).await;

    for call in leaving {
        call.reset();
    }

    let gone = until(ms(400), async || gateway.metrics().await.total("gateway_queue_depth", &[]) < 1.5).await;
    assert!(gone, "whoever leaves does not stay in the queue");
    assert!(first.finish().await.is_good());
    assert!(last.finish().await.is_good(), "the next place is for who is still there");
    assert_eq!(replicas[0].count(), 2, "nobody who left was sent");
    gateway.idle().await;
}

#[tokio::test]
async fn whoever_waits_for_a_pool_that_dies_is_told() {
    let (replicas, gateway) = start(1, "per_replica: 1").await;
    replicas[0].plays(Script::new(|play| async move { play.hang().await }));
    let first = gateway.start(&Request::chat("first")).await;
    replicas[0].post(0).await;
    let waiting = gateway.start(&Request::chat("waits")).await;
    queued(&gateway, 1.0).await;

    replicas[0].kill().await;

    assert!(!first.finish().await.is_good());
    let answer = waiting.finish().await;
    assert!(matches!(answer.status, 502 | 503), "{}", answer.text());
    assert!(answer.took() < ms(8000), "well before the queue's limit of 30 s: {:?}", answer.took());
    queued(&gateway, 0.0).await;
}

#[tokio::test]
async fn a_replica_that_comes_up_takes_those_who_wait() {
    let replicas = ScriptedReplica::fleet(2);
    replicas[1].kill().await;
    let gateway = TestGateway::with(config(&replicas, "per_replica: 1")).await;
    replicas[0].plays(Script::new(|play| async move { play.hang().await }));
    let first = gateway.start(&Request::chat("first")).await;
    replicas[0].post(0).await;
    let waiting = gateway.start(&Request::chat("waits")).await;
    queued(&gateway, 1.0).await;

    replicas[1].restart();

    let answer = waiting.finish().await;
    assert!(answer.is_good(), "{}", answer.text());
    assert_eq!(replicas[1].count(), 1);
    first.close();
}

#[tokio::test]
async fn a_tenant_that_floods_does_not_keep_another_waiting() {
    let replicas = ScriptedReplica::fleet(1);
    replicas[0].plays(slow(ms(50)));
    let gateway = TestGateway::with(config(&replicas, "per_replica: 2").top(&two_keys())).await;
    let mut flood = Vec::new();
    for i in 0..100 {
        flood.push(gateway.start(&from("flood", &format!("flood {i}"))).await);
    }
    until(ms(3000), async || gateway.metrics().await.total("gateway_queue_depth", &[]) > 50.0).await;

    let calm = gateway.send_all((0..6).map(|i| from("calm", &format!("calm {i}"))), 1).await;

    all_good(&calm, "there is room in the queue");
    for answer in &calm {
        assert!(answer.took() < ms(1000), "its turn is next, not behind 2.5 s of flood: {:?}", answer.took());
    }
    let answers = join_all(flood.into_iter().map(|call| call.finish())).await;
    all_good(&answers, "the flood is served too");
}

#[tokio::test]
async fn a_full_queue_makes_room_for_who_has_little_in_it() {
    let replicas = ScriptedReplica::fleet(1);
    let config = config(&replicas, "per_replica: 1, queue: 3").top(&two_keys());
    let gateway = TestGateway::with(config).await;
    replicas[0].plays(slow(ms(800)));
    let first = gateway.start(&from("flood", "first")).await;
    replicas[0].post(0).await;
    let mut flood = Vec::new();
    for i in 0..3 {
        flood.push(gateway.start(&from("flood", &format!("flood {i}"))).await);
    }
    queued(&gateway, 3.0).await;

    let one_more = gateway.send(&from("flood", "flood 3")).await;
    assert_eq!(json_error(&one_more, 503)["code"], "queue_full", "alone in the queue, it is simply full");
    let calm = gateway.start(&from("calm", "calm")).await;

    let answers = join_all(flood.into_iter().map(|call| call.finish())).await;
    let mut seen = statuses(&answers);
    seen.sort_unstable();
    assert_eq!(seen, [200, 200, 429], "one of the flood gave its place away");
    let told = answers.iter().find(|answer| answer.status == 429).unwrap();
    assert_eq!(json_error(told, 429)["code"], "queue_share_exceeded");
    assert!(told.header("retry-after").is_some());
    assert!(calm.finish().await.is_good() && first.finish().await.is_good());
    gateway.idle().await;
}
