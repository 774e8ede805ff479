//! What a hosted model may cost, over restarts too.

use std::path::PathBuf;

use super::{entry, full, hosted_api, targets};
use crate::support::{
    client::Request,
    gateway::{Config, TestGateway},
    ms,
    replica::ScriptedReplica,
    until,
};

/// A thousand prompt tokens and a hundred of output, as the hosted API counts: 0.0025 $ an answer.
const PRICES: &str = "input_usd_per_million: 1.0, output_usd_per_million: 15.0";

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("spend-{name}-{}.json", std::process::id()))
}

async fn limited(name: &str, limits: &str) -> (ScriptedReplica, ScriptedReplica, TestGateway) {
    let (replica, api) = (ScriptedReplica::start(), hosted_api());
    let budget = format!(", budget: {{ {limits}, {PRICES} }}");
    let config = Config::new(std::slice::from_ref(&replica))
        .server(&format!("spend_file: {}", file(name).display()))
        .model(&targets(&[entry(&api, &budget)]));
    let gateway = TestGateway::with(config).await;
    replica.plays(full());
    (replica, api, gateway)
}

/// A request that reserves little: its output is bounded.
fn small(n: usize) -> Request {
    Request::chat_with(&format!("{n}"), r#","max_tokens":100"#)
}

#[tokio::test]
async fn a_spent_budget_ends_the_fallback_and_a_restart_does_not_give_it_back() {
    // Four answers cost 0.0100 $; a fifth reserves 0.0015 $ and more for its output.
    let (_replica, api, mut gateway) = limited("restart", "usd_per_day: 0.0110").await;
    for n in 0..4 {
        assert!(gateway.send(&small(n)).await.is_good(), "answer {n}");
    }
    for n in 4..7 {
        assert_eq!(gateway.send(&small(n)).await.status, 503, "the budget is spent");
    }
    assert_eq!(api.count(), 4);
    gateway.reaches("gateway_fallback_skipped_total", &[("reason", "budget")], 3.0).await;
    let told = gateway.program_log().matches("budget of a hosted model is spent").count();
    assert_eq!(told, 1, "told once: {}", gateway.program_log());
    gateway.reaches("gateway_fallback_spend_usd", &[("window", "day")], 0.01).await;
    let kept = until(ms(4000), async || {
        std::fs::read_to_string(file("restart")).is_ok_and(|text| text.contains("10000000000"))
    });
    assert!(kept.await, "0.01 $ in pico-dollars is on disk");

    gateway.restart().await;

    assert_eq!(gateway.send(&small(8)).await.status, 503, "a restart does not reset it");
    gateway.reaches("gateway_fallback_spend_usd", &[("window", "hour")], 0.01).await;
    std::fs::remove_file(file("restart")).unwrap();
}

#[tokio::test]
async fn requests_at_once_do_not_overrun_a_budget_together() {
    // Each reserves 100 output tokens, 0.0015 $, and its prompt; four fit into 0.0070 $ at a time.
    let (_replica, api, gateway) = limited("together", "usd_per_hour: 0.0070").await;
    let whole = super::HOSTED;
    api.plays(crate::support::replica::script::reply(200, whole).after(ms(300)));

    let answers = gateway.send_all((0..20).map(small), 20).await;

    let served = answers.iter().filter(|answer| answer.status == 200).count();
    assert!((3..=4).contains(&served), "{served} were served");
    assert_eq!(served, api.count());
    std::fs::remove_file(file("together")).unwrap();
}

#[tokio::test]
async fn spend_is_what_the_usage_says_in_streams_and_whole_answers() {
    let (_replica, api, gateway) = limited("usage", "usd_per_day: 100").await;
    for n in 0..10 {
        let request = if n % 2 == 0 { small(n) } else { Request::stream(&format!("{n}")) };
        assert!(gateway.send(&request).await.is_good());
    }
    assert_eq!(api.count(), 10);
    // By hand: 10 x (1000 x 1 $ + 100 x 15 $) / 1e6.
    gateway.reaches("gateway_fallback_spend_usd", &[("window", "day")], 0.025).await;
    api.plays(crate::support::replica::script::reply(500, "no"));
    gateway.send(&small(11)).await;
    gateway.reaches("gateway_fallback_spend_usd", &[("window", "day")], 0.025).await;
    std::fs::remove_file(file("usage")).unwrap();
}

#[tokio::test]
async fn a_damaged_spend_file_stops_the_start() {
    let path = file("damaged");
    std::fs::write(&path, "{\"version\":1,").unwrap();
    let replica = ScriptedReplica::start();
    let config = Config::new(std::slice::from_ref(&replica)).server(&format!("spend_file: {}", path.display()));

    let log = TestGateway::refused(config).await;

    assert!(log.contains("spend_file") && log.contains("damaged") && log.contains("remove it"), "{log}");
    std::fs::remove_file(path).unwrap();
}
