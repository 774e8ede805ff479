//! Public reports, by their ids.

use serde_json::Value;

use super::{entry, full, hosted_api, outage_of, targets};
use crate::support::{
    check::{honest, json_error},
    client::Request,
    gateway::{Config, TestGateway},
    ms,
    replica::{
        ScriptedReplica,
        script::{Script, reply, stream},
    },
    sse::{DONE, content, error, role, text},
};

#[tokio::test]
async fn br_053_the_hosted_model_sees_its_own_key_only() {
    let (replica, api, gateway) = outage_of("").await;
    replica.plays(full());

    let request = Request::chat("x")
        .header("Authorization", "Bearer gw-key-1")
        .header("x-api-key", "gw-key-1")
        .header("Cookie", "a=gw-key-1")
        .header("Proxy-Authorization", "Basic gw-key-1")
        .header("X-Team-Token", "gw-key-1");
    let answer = gateway.send(&request).await;

    assert!(answer.is_good(), "{answer:?}");
    let sent = api.post(0).await;
    assert_eq!(sent.header("authorization").as_deref(), Some("Bearer sk-hosted"));
    for post in [&sent, &replica.post(0).await] {
        let head = String::from_utf8_lossy(&post.head).to_lowercase();
        assert!(!head.contains("cookie") && !head.contains("proxy-authorization"), "{head}");
    }
    assert!(!String::from_utf8_lossy(&sent.head).contains("gw-key-1"), "not under any name");
    let shown = gateway.access_log() + &gateway.program_log() + &answer.text();
    assert!(!shown.contains("sk-hosted") && !shown.contains("gw-key-1"), "no key is shown");
}

#[tokio::test]
async fn br_053_without_a_key_there_is_no_authorization() {
    let (replica, api) = (ScriptedReplica::start(), hosted_api());
    let target = format!(r#"{{ url: "{}", model: hosted-x }}"#, api.url());
    let gateway = TestGateway::with(Config::new(std::slice::from_ref(&replica)).model(&targets(&[target]))).await;
    replica.plays(full());

    assert!(gateway.send(&Request::chat("x").header("Authorization", "Bearer gw-key-1")).await.is_good());

    assert_eq!(api.post(0).await.header("authorization"), None);
}

#[tokio::test]
async fn br_054_the_trace_goes_on_over_retries_and_the_fallback() {
    let (replicas, api) = (ScriptedReplica::fleet(2), hosted_api());
    let gateway = TestGateway::with(Config::new(&replicas).model(&targets(&[entry(&api, "")]))).await;
    for replica in &replicas {
        replica.plays(full());
    }
    let trace = "00-11112222333344445555666677778888-aaaabbbbccccdddd-01";

    let request = Request::chat("x").header("traceparent", trace).header("tracestate", "a=1");
    assert!(gateway.send(&request).await.is_good());

    for upstream in [&replicas[0], &replicas[1], &api] {
        let sent = upstream.post(0).await;
        let got = sent.header("traceparent").unwrap_or_default().to_owned();
        assert_eq!(got.split('-').nth(1), trace.split('-').nth(1), "{got}");
        assert_eq!(sent.header("tracestate").as_deref(), Some("a=1"));
    }
}

#[tokio::test]
async fn br_096_the_fallback_answers_when_the_first_token_is_late() {
    let (replica, api) = (ScriptedReplica::start(), hosted_api());
    let config = Config::new(std::slice::from_ref(&replica))
        .timeout("first_token: 1s")
        .timeout("total: 1s")
        .model(&targets(&[entry(&api, "")]));
    let gateway = TestGateway::with(config).await;
    replica.plays(Script::new(|play| async move { play.hang().await }));

    for request in [Request::stream("a"), Request::chat("b")] {
        let answer = gateway.send(&request).await;

        assert!(answer.is_good(), "{answer:?}");
        assert!((ms(900)..ms(2500)).contains(&answer.took()), "the limit is 1 s, answered after {:?}", answer.took());
    }
    assert_eq!(api.count(), 2);
    gateway.reaches("gateway_fallback_total", &[("reason", "down")], 2.0).await;
}

#[tokio::test]
async fn br_103_before_the_first_event_and_never_after_content() {
    let (replica, api, gateway) = outage_of("").await;
    replica.plays(Script::new(|play| async move {
        play.head().await?;
        play.chunk(role() + &content("a")).await?;
        play.pause(ms(50)).await?;
        play.reset()
    }));
    let answer = gateway.send(&Request::stream("late")).await;
    honest(&answer);
    assert_eq!((text(&answer.body).as_str(), api.count()), ("a", 0), "what the client has is not said again");

    replica.plays(Script::new(|play| async move {
        play.head().await?;
        play.pause(ms(20)).await?;
        play.reset()
    }));
    let answer = gateway.send(&Request::stream("early")).await;
    assert!(answer.is_good(), "{answer:?}");
    assert_eq!((text(&answer.body).as_str(), api.count()), ("hosted", 1));
    assert_eq!(answer.text().matches("\"role\"").count(), 1, "one clean stream");
}

#[tokio::test]
async fn br_105_an_error_as_the_first_event_goes_to_the_fallback() {
    let (replica, api, gateway) = outage_of("").await;
    replica.plays(stream([error("rate", "rate_limit", 429), DONE.to_owned()]));

    let answer = gateway.send(&Request::stream("x")).await;

    assert!(answer.is_good(), "{answer:?}");
    assert_eq!((text(&answer.body).as_str(), api.count()), ("hosted", 1));
    gateway.reaches("gateway_fallback_total", &[("reason", "saturated")], 1.0).await;

    replica.plays(stream([error("bad schema", "BadRequestError", 400)]));
    json_error(&gateway.send(&Request::stream("y")).await, 400);
    assert_eq!(api.count(), 1, "a wrong request is wrong everywhere");
}

#[tokio::test]
async fn br_106_a_client_error_is_never_sent_on() {
    let (replica, api, gateway) = outage_of("").await;
    let body = r#"{"error":{"message":"This model's maximum context length is 8192 tokens.","type":"BadRequestError","param":null,"code":400}}"#;
    for status in [400, 404, 413, 422] {
        replica.plays(reply(status, body));
        assert_eq!(gateway.send(&Request::chat("x")).await.status, status);
    }
    assert_eq!(api.count(), 0);
}

#[tokio::test]
async fn br_108_one_token_field_with_the_clients_value() {
    for (config, sent, want) in [
        ("", r#","max_tokens":50"#, "max_tokens"),
        ("", r#","max_completion_tokens":50"#, "max_completion_tokens"),
        (", token_field: max_completion_tokens", r#","max_tokens":50"#, "max_completion_tokens"),
        (", token_field: max_tokens", r#","max_completion_tokens":50"#, "max_tokens"),
        (
            ", token_field: max_completion_tokens",
            r#","max_tokens":9,"max_completion_tokens":50"#,
            "max_completion_tokens",
        ),
    ] {
        let (replica, api, gateway) = outage_of(config).await;
        replica.plays(full());

        assert!(gateway.send(&Request::chat_with("x", sent)).await.is_good());

        let body = api.post(0).await.json();
        let fields: Vec<&str> =
            ["max_tokens", "max_completion_tokens"].into_iter().filter(|field| body.get(field).is_some()).collect();
        assert_eq!(fields, [want], "{config} {sent}");
        assert_eq!(body[want], 50, "{config} {sent}");
    }
}

#[tokio::test]
async fn br_109_content_that_the_fallback_cannot_read_stays_here() {
    let (replica, api, gateway) = outage_of(", content: []").await;
    replica.plays(full());
    let image = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"what?"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]}]}"#;

    let answer = gateway.send(&Request::body(image)).await;

    let error = json_error(&answer, 503);
    assert!(error["message"].as_str().unwrap().contains("content"), "it says why: {error}");
    assert!(answer.header("retry-after").is_some());
    assert_eq!(api.count(), 0);
    gateway.reaches("gateway_fallback_skipped_total", &[("reason", "content")], 1.0).await;
    assert!(gateway.send(&Request::chat("text")).await.is_good());
    assert_eq!(api.post(0).await.json()["messages"][0]["content"], Value::from("text"));
}

#[tokio::test]
async fn br_133_what_a_hosted_model_says_of_keys_is_not_shown() {
    let (replica, api, gateway) = outage_of("").await;
    replica.plays(full());
    for status in [401, 403, 402] {
        api.plays(reply(status, r#"{"error":{"message":"Incorrect API key provided: sk-ab***yz, org-9f00aa"}}"#));
        let answer = gateway.send(&Request::chat("x")).await;
        json_error_or_engine(&answer.text(), answer.status);
        let shown = answer.text() + &gateway.program_log();
        assert!(!shown.contains("sk-ab") && !shown.contains("9f00aa"), "{shown}");
    }
}

fn json_error_or_engine(text: &str, status: u16) {
    assert!(matches!(status, 502 | 503), "{status} {text}");
    let body: Value = serde_json::from_str(text).unwrap();
    assert!(body["error"]["message"].is_string());
}
