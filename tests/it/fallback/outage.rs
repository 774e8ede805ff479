//! The whole pool dies under load and comes back.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{entry, hosted_api, targets};
use crate::support::{
    client::Request,
    gateway::{Config, TestGateway},
    ms,
    replica::ScriptedReplica,
};

/// Requests a second. An unoptimised gateway on a busy machine is given less to do.
const RATE: u32 = if cfg!(debug_assertions) { 60 } else { 200 };
const SECONDS: u32 = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_new_request_is_answered_while_all_replicas_are_dead() {
    let (replicas, api) = (ScriptedReplica::fleet(3), hosted_api());
    let prices = "budget: { usd_per_day: 1000, input_usd_per_million: 1.0, output_usd_per_million: 15.0 }";
    let config = Config::new(&replicas).model(&targets(&[entry(&api, &format!(", {prices}"))]));
    let gateway = TestGateway::with(config).await;
    let start = Instant::now();
    let one = async |n: u32| {
        let at = Duration::from_secs(1) / RATE * n;
        tokio::time::sleep_until(start + at).await;
        // The same words each time: many requests of one digest are no poison.
        let request = if n.is_multiple_of(2) { Request::chat("same") } else { Request::stream(&format!("u{n}")) };
        let answer = gateway.send(&request).await;
        (at, answer)
    };
    let faults = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        join_all(replicas.iter().map(ScriptedReplica::kill)).await;
        let killed = start.elapsed();
        tokio::time::sleep(Duration::from_secs(2)).await;
        replicas.iter().for_each(ScriptedReplica::restart);
        (killed, start.elapsed())
    };

    let (answers, (killed, back)) = tokio::join!(join_all((0..RATE * SECONDS).map(one)), faults);

    let late: Vec<_> = answers.iter().filter(|(at, _)| *at > killed && *at < back).collect();
    assert!(late.len() > usize::try_from(RATE).unwrap(), "{}", late.len());
    for (at, answer) in &late {
        assert!(answer.is_good(), "sent at {at:?}, {killed:?} to {back:?} dead: {answer:?}");
        assert!(answer.took() < Duration::from_secs(2), "answered after {:?}", answer.took());
    }
    assert!(api.count() >= late.len() / 2, "{} of {}", api.count(), late.len());
    // Whoever was in flight when they died: told honestly or served by the fallback.
    let wrong = answers.iter().filter(|(_, answer)| answer.status != 200).count();
    assert!(wrong <= 2, "{wrong} failed");
    let on_replicas = answers.iter().filter(|(at, _)| *at > back + ms(2000));
    let hosted = on_replicas.filter(|(_, answer)| answer.has("hos")).count();
    assert!(hosted == 0, "{hosted} still went to the fallback two seconds after the replicas were back");
    let served = u32::try_from(api.count()).unwrap();
    // By hand: 1000 prompt and 100 output tokens each, as the hosted API says in every answer.
    gateway.reaches("gateway_fallback_spend_usd", &[("window", "day")], f64::from(served) * 0.0025).await;
}
