//! Themes auth and security: keys, and requests that two servers might read in two ways.

use crate::support::{
    check::json_error,
    client::{Call, Request},
    gateway::{Config, TestGateway, pair},
    replica::{ScriptedReplica, script::reply},
    sha256,
};

fn key_line() -> String {
    format!("keys: [ {{ id: team-a, sha256: {} }} ]", sha256(KEY))
}

const KEY: &str = "sk-test-0123456789abcdef";

#[tokio::test]
async fn br_130_forms_of_authorization() {
    let replica = ScriptedReplica::start();
    let config = Config::new(std::slice::from_ref(&replica)).top(&key_line());
    let gateway = TestGateway::with(config).await;
    let with = |value: &str| Request::chat("x").header("authorization", value);

    for good in [format!("Bearer {KEY}"), format!("bearer {KEY}"), format!("BEARER {KEY}")] {
        assert_eq!(gateway.send(&with(&good)).await.status, 200, "{good}");
    }
    replica.forget();
    let near: String = KEY.chars().take(KEY.len() - 1).collect();
    let bad = ["Bearer", "Bearer ", &format!("Basic {KEY}"), KEY, &format!("Bearer {KEY}x"), &format!("Bearer {near}")];
    for value in bad {
        assert_eq!(json_error(&gateway.send(&with(value)).await, 401)["code"], "invalid_api_key", "{value}");
    }
    let two = with("Bearer wrong").header("authorization", &format!("Bearer {KEY}"));
    assert_eq!(gateway.send(&two).await.status, 401, "two keys are no key");
    let none = gateway.send(&Request::chat("x")).await;
    json_error(&none, 401);
    assert_eq!(none.header("www-authenticate").as_deref(), Some("Bearer"), "RFC 9110, section 15.5.2");
    assert_eq!(replica.count(), 0);
}

#[tokio::test]
async fn br_152_of_a_repeated_key_one_value_goes_on() {
    let (replica, gateway) = pair().await;
    for (sent, want) in [
        (
            r#"{"model":"m","max_tokens":5,"max_tokens":99999,"messages":[]}"#,
            r#"{"model":"m","max_tokens":99999,"messages":[]}"#,
        ),
        (r#"{"model":"other", "mod\u0065l":"m","messages":[]}"#, r#"{ "mod\u0065l":"m","messages":[]}"#),
        (
            r#"{"model":"m","Model":"other","max_tokens":5,"Max_Tokens":99999,"messages":[]}"#,
            r#"{"model":"m","Model":"other","max_tokens":5,"Max_Tokens":99999,"messages":[]}"#,
        ),
    ] {
        replica.forget();
        let answer = gateway.send(&Request::body(sent)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let post = replica.post(0).await;
        assert_eq!(String::from_utf8_lossy(post.body()), want, "{sent}");
    }
}

#[tokio::test]
async fn br_154_ambiguous_framing_is_refused() {
    let (replica, gateway) = pair().await;
    let body = r#"{"model":"m","messages":[]}"#;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nContent-Type: application/json\r\n";
    let sized = format!("Content-Length: {}\r\n\r\n{body}", body.len());
    let chunked = format!("\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    for (name, fields) in [
        ("no Host", sized.clone()),
        ("two Hosts", format!("Host: a\r\nHost: b\r\n{sized}")),
        ("two codings", format!("Host: a\r\nTransfer-Encoding: chunked, chunked\r\n{chunked}")),
        ("an unknown coding", format!("Host: a\r\nTransfer-Encoding: x, chunked\r\n{chunked}")),
        ("two coding fields", format!("Host: a\r\nTransfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n{chunked}")),
    ] {
        let mut call = Call::open(gateway.address()).await;
        call.send_bytes(format!("{head}{fields}").as_bytes()).await;
        let answer = call.finish().await;
        assert_eq!(answer.status, 400, "{name}: {}", answer.text());
        assert_eq!(replica.count(), 0, "{name} is not forwarded");
    }
    let mut call = Call::open(gateway.address()).await;
    call.send_bytes(format!("{head}Host: a\r\nTransfer-Encoding: Chunked\r\n{chunked}").as_bytes()).await;
    assert!(call.read_until(std::time::Duration::from_secs(5), |answer| answer.status == 200).await);
}

#[tokio::test]
async fn br_128_what_a_replica_says_has_its_outcome() {
    for (status, outcome) in [
        (400, "upstream_client_error"),
        (404, "upstream_client_error"),
        (422, "upstream_client_error"),
        (429, "rejected"),
        (500, "upstream_error"),
        (503, "rejected"),
    ] {
        let (replica, gateway) = pair().await;
        replica.plays(reply(status, r#"{"error":{"message":"m"}}"#));

        let answer = gateway.send(&Request::chat("x")).await;

        assert_eq!(answer.status, status);
        gateway.only_outcome(outcome, 1).await;
    }
}
