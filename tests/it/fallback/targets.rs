//! Which target is asked: order, cause, breaker, context, conversation.

use std::time::Duration;

use super::{HOSTED, entry, full, hosted_api, outage_of, targets};
use crate::support::{
    check::{all_good, json_error},
    client::Request,
    gateway::{Config, TestGateway},
    ms,
    replica::{
        ScriptedReplica,
        script::{Script, reply, stream},
    },
    until,
};

/// Two hosted APIs behind one replica that is full.
async fn two(first: &str, second: &str) -> (ScriptedReplica, [ScriptedReplica; 2], TestGateway) {
    let (replica, apis) = (ScriptedReplica::start(), [hosted_api(), hosted_api()]);
    let entries = [entry(&apis[0], first), entry(&apis[1], second)];
    let gateway = TestGateway::with(Config::new(std::slice::from_ref(&replica)).model(&targets(&entries))).await;
    replica.plays(full());
    (replica, apis, gateway)
}

#[tokio::test]
async fn a_target_that_fails_before_its_first_event_hands_on() {
    let (_replica, apis, gateway) = two("", "").await;
    let failures: [(&str, Script); 6] = [
        ("429", reply(429, r#"{"error":{"message":"slow down"}}"#).into()),
        ("500", reply(500, "oops").into()),
        ("reset", Script::new(|play| async move { play.reset() })),
        ("no JSON", reply(200, "<html>").into()),
        ("error in a 200", reply(200, r#"{"error":{"message":"overloaded","code":503}}"#).into()),
        ("404", reply(404, r#"{"error":{"message":"no model hosted-x"}}"#).into()),
    ];
    for (at, (name, script)) in failures.into_iter().enumerate() {
        apis[0].plays(script);
        // Its breaker may be open by now: what counts is who answers.
        let answer = gateway.send(&Request::chat(name)).await;
        assert!(answer.is_good() && answer.has("hosted"), "{name}: {answer:?}");
        assert_eq!(apis[1].count(), at + 1, "{name}");
    }
    gateway.reaches("gateway_fallback_total", &[], 6.0).await;
}

#[tokio::test]
async fn an_error_event_of_a_target_hands_on() {
    let (_replica, apis, gateway) = two("", "").await;
    apis[0].plays(stream([crate::support::sse::error("busy", "overloaded", 529)]));

    assert!(gateway.send(&Request::stream("x")).await.has("[DONE]"));

    assert_eq!((apis[0].count(), apis[1].count()), (1, 1));
}

#[tokio::test]
async fn a_target_that_refuses_connections_hands_on() {
    let (_replica, apis, gateway) = two("", "").await;
    apis[0].kill().await;

    assert!(gateway.send(&Request::chat("x")).await.is_good());

    assert_eq!(apis[1].count(), 1);
    gateway.reaches("gateway_fallback_skipped_total", &[("reason", "connect")], 1.0).await;
}

#[tokio::test]
async fn each_target_is_there_for_its_cause() {
    let (replica, apis, gateway) = two(", on: [down]", ", on: [saturated]").await;

    assert!(gateway.send(&Request::chat("full")).await.is_good());
    assert_eq!((apis[0].count(), apis[1].count()), (0, 1));

    replica.kill().await;
    assert!(gateway.send(&Request::chat("gone")).await.is_good());
    assert_eq!((apis[0].count(), apis[1].count()), (1, 1));
    gateway.reaches("gateway_fallback_total", &[("reason", "down")], 1.0).await;
    gateway.reaches("gateway_fallback_total", &[("reason", "saturated")], 1.0).await;
}

#[tokio::test]
async fn a_breaker_opens_after_five_failures_and_one_probe_closes_it() {
    let (_replica, apis, gateway) = two("", "").await;
    apis[0].plays(reply(500, "oops"));
    for n in 0..8 {
        assert!(gateway.send(&Request::chat(&format!("{n}"))).await.is_good());
    }
    assert_eq!((apis[0].count(), apis[1].count()), (5, 8), "left alone after five");
    gateway.reaches("gateway_fallback_breaker_open", &[], 1.0).await;
    gateway.reaches("gateway_fallback_skipped_total", &[("reason", "breaker")], 3.0).await;

    apis[0].plays(reply(200, HOSTED).after(ms(400)));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let answers = gateway.send_all((0..6).map(|n| Request::chat(&format!("half {n}"))), 6).await;
    all_good(&answers, "one probes, the others go on to the next target");
    assert_eq!(apis[0].count(), 6, "one probe");

    assert!(gateway.send(&Request::chat("closed")).await.is_good());
    assert_eq!(apis[0].count(), 7, "and then it serves again");
    gateway.reaches("gateway_fallback_breaker_open", &[], 0.0).await;
}

#[tokio::test]
async fn a_request_that_is_too_long_for_the_context_stays_here() {
    let (replica, api, gateway) = outage_of(", context: 1000").await;
    replica.plays(full());

    let error = gateway.send(&Request::chat(&"long text ".repeat(2000))).await;
    assert!(json_error(&error, 503)["message"].as_str().unwrap().contains("too long"), "{}", error.text());
    let error = gateway.send(&Request::chat_with("x", r#","max_tokens":1001"#)).await;
    assert_eq!((error.status, api.count()), (503, 0));

    assert!(gateway.send(&Request::chat_with("x", r#","max_tokens":900"#)).await.is_good());
    gateway.reaches("gateway_fallback_skipped_total", &[("reason", "context")], 2.0).await;
}

const TURNS: &str = r#"{"model":"m","messages":[{"role":"user","content":"first"},{"role":"assistant","content":"a"},{"role":"user","content":"b"}]}"#;

#[tokio::test]
async fn a_conversation_that_spilled_stays_for_a_while_and_no_other_does() {
    let (replica, api) = (ScriptedReplica::start(), hosted_api());
    let config =
        Config::new(std::slice::from_ref(&replica)).model("fallback_sticky: 2s").model(&targets(&[entry(&api, "")]));
    let gateway = TestGateway::with(config).await;
    replica.plays(full());
    let first = Request::body(r#"{"model":"m","messages":[{"role":"user","content":"first"}]}"#);
    assert!(gateway.send(&first).await.is_good());
    assert_eq!(api.count(), 1);
    replica.plays(reply(200, crate::support::replica::engine::COMPLETION));

    assert!(gateway.send(&Request::body(TURNS)).await.has("hosted"), "the next turn goes where the last one was");
    assert!(!gateway.send(&Request::body(TURNS.replace("first", "other"))).await.has("hosted"), "another does not");
    assert!(!gateway.send(&first).await.has("hosted"), "the same beginning is a new conversation");
    let never = Request::body(TURNS).header("X-Gateway-Fallback", "never");
    assert!(!gateway.send(&never).await.has("hosted"), "the client's word counts");

    let back = until(ms(4000), async || !gateway.send(&Request::body(TURNS)).await.has("hosted"));
    assert!(back.await, "and comes back after 2 s");
}

#[tokio::test]
async fn a_conversation_that_went_because_replicas_were_down_comes_back_with_them() {
    let (replica, api, gateway) = outage_of("").await;
    replica.kill().await;
    assert!(gateway.send(&Request::body(TURNS)).await.has("hosted"));
    assert_eq!(api.count(), 1);

    replica.restart();
    let back = until(ms(5000), async || !gateway.send(&Request::body(TURNS)).await.has("hosted"));

    assert!(back.await, "sticky is for a full pool only");
}

#[tokio::test]
async fn the_proxy_of_the_environment_is_used() {
    let (replica, proxy) = (ScriptedReplica::start(), hosted_api());
    let target = r#"{ url: "http://hosted.invalid/v1", model: hosted-x, api_key: sk-hosted }"#.to_owned();
    let config = Config::new(std::slice::from_ref(&replica)).env("http_proxy", &proxy.url()).model(&targets(&[target]));
    let gateway = TestGateway::with(config).await;
    replica.plays(full());

    let answer = gateway.send(&Request::chat("x")).await;

    assert!(answer.is_good(), "{answer:?}");
    assert_eq!(proxy.post(0).await.target, "http://hosted.invalid/v1/chat/completions");
    assert_eq!(replica.count(), 1, "replicas are never asked over a proxy");
}
