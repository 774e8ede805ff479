//! What a key may do: models, rates, isolation, and keys that change while the gateway runs.

use std::{collections::HashSet, process::Command};

use crate::support::{
    check::{all_good, json_error},
    client::Request,
    gateway::{Config, TestGateway},
    key_entry, ms,
    replica::{
        ScriptedReplica,
        script::{Script, reply, stream},
    },
    sha256,
    sse::{DONE, content, finish, role},
    until,
};

fn as_key(id: &str, request: Request) -> Request {
    request.header("authorization", &format!("Bearer sk-{id}"))
}

async fn start(entries: &[String]) -> (ScriptedReplica, TestGateway) {
    let replica = ScriptedReplica::start();
    let config = Config::new(std::slice::from_ref(&replica)).top(&format!("keys:\n{}", entries.concat()));
    (replica.clone(), TestGateway::with(config).await)
}

#[tokio::test]
async fn a_key_sees_and_uses_its_own_models_only() {
    let replica = ScriptedReplica::start();
    let extra = format!("keys:\n{}{}", key_entry("all", ""), key_entry("none", ", models: [other]"));
    let config = Config::new(std::slice::from_ref(&replica))
        .model(&format!("aliases: [fast]\n  - name: other\n    replicas: [ {{ url: \"{}\" }} ]", replica.url()))
        .top(&extra);
    let gateway = TestGateway::with(config).await;
    let listed = async |key: &str| {
        let answer = gateway.send(&as_key(key, Request::get("/v1/models"))).await.json();
        let names = answer["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned());
        names.collect::<HashSet<_>>()
    };

    assert!(listed("all").await.is_superset(&HashSet::from(["m".to_owned(), "fast".to_owned()])));
    assert!(!listed("none").await.contains("m") && !listed("none").await.contains("fast"));
    for model in ["m", "fast"] {
        let body = format!(r#"{{"model":"{model}","messages":[]}}"#);
        let error = json_error(&gateway.send(&as_key("none", Request::body(body.clone()))).await, 403);
        assert_eq!((&error["code"], &error["param"]), (&"not_allowed".into(), &"model".into()));
        assert_eq!(gateway.send(&as_key("all", Request::body(body))).await.status, 200);
    }
    json_error(&gateway.send(&as_key("none", Request::body(r#"{"model":"no","messages":[]}"#))).await, 404);
}

#[tokio::test]
async fn requests_per_minute_are_told_and_held() {
    let (replica, gateway) = start(&[key_entry("a", ", rate: { requests_per_minute: 3 }"), key_entry("b", "")]).await;

    let first = gateway.send(&as_key("a", Request::chat("1"))).await;
    assert_eq!(first.header("x-ratelimit-limit-requests").as_deref(), Some("3"));
    assert_eq!(first.header("x-ratelimit-remaining-requests").as_deref(), Some("2"));
    assert!(first.header("x-ratelimit-reset-requests").is_some_and(|reset| reset.ends_with('s')));
    all_good(
        &gateway.send_all((2..4).map(|i| as_key("a", Request::chat(&i.to_string()))), 1).await,
        "three are allowed",
    );
    let fourth = gateway.send(&as_key("a", Request::chat("4"))).await;

    let error = json_error(&fourth, 429);
    assert_eq!(error["code"], "rate_limit_exceeded");
    assert!(error["message"].as_str().unwrap().contains("requests_per_minute of 3"), "{error}");
    let after: u64 = fourth.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=20).contains(&after), "three a minute: one comes back in 20 s, not {after}");
    assert_eq!(fourth.header("x-ratelimit-remaining-requests").as_deref(), Some("0"));
    assert_eq!(replica.count(), 3);
    assert!(gateway.send(&as_key("b", Request::chat("5"))).await.is_good(), "another key is not concerned");
    gateway.reaches("gateway_rejected_total", &[("reason", "rate")], 1.0).await;
}

#[tokio::test]
async fn output_tokens_are_paid_by_the_next_request() {
    let (replica, gateway) = start(&[key_entry("a", ", rate: { output_tokens_per_minute: 100 }")]).await;
    let usage = r#"{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":150,"total_tokens":153}}"#;
    replica.plays(reply(200, usage));

    assert!(gateway.send(&as_key("a", Request::chat("spends"))).await.is_good());
    gateway.idle().await;
    let second = gateway.send(&as_key("a", Request::chat("pays 100 of 150"))).await;
    assert!(second.is_good(), "a full bucket pays: {}", second.text());
    gateway.idle().await;
    let third = gateway.send(&as_key("a", Request::chat("cannot pay"))).await;

    assert!(json_error(&third, 429)["message"].as_str().unwrap().contains("output_tokens_per_minute of 100"));
    assert_eq!(replica.count(), 2);
}

#[tokio::test]
async fn a_prompt_of_more_than_a_minutes_tokens_is_told_that_it_never_fits() {
    let (_replica, gateway) = start(&[key_entry("a", ", rate: { prompt_tokens_per_minute: 50 }")]).await;

    let answer = gateway.send(&as_key("a", Request::chat(&"word ".repeat(400)))).await;

    assert!(json_error(&answer, 429)["message"].as_str().unwrap().contains("never allows it"));
    assert_eq!(answer.header("retry-after"), None);
}

#[tokio::test]
async fn requests_at_a_time_are_freed_however_they_end() {
    let (replica, gateway) = start(&[key_entry("a", ", rate: { concurrent: 2 }")]).await;
    replica.plays(Script::new(|play| async move { play.hang().await }));
    for _ in 0..20 {
        let calls = [
            gateway.start(&as_key("a", Request::stream("one"))).await,
            gateway.start(&as_key("a", Request::chat("two"))).await,
        ];
        assert!(until(ms(2000), async || replica.active() == 2).await);
        let third = gateway.send(&as_key("a", Request::chat("three"))).await;
        assert!(json_error(&third, 429)["message"].as_str().unwrap().contains("2 requests running"));
        for call in calls {
            call.reset();
        }
        assert!(until(ms(2000), async || replica.active() == 0).await);
    }
    gateway.idle().await;
}

#[tokio::test]
async fn an_isolated_group_has_its_own_salt_and_sees_no_cache() {
    let replicas = ScriptedReplica::fleet(2);
    let keys = [
        key_entry("a1", ", group: a"),
        key_entry("a2", ", group: a"),
        key_entry("b", ", group: b"),
        key_entry("open", ""),
    ];
    let config = Config::new(&replicas).server("isolation_secret: not-so-secret").server("expose_routing: true").top(
        &format!("keys:\n{}groups: [ {{ name: a, isolate: true }}, {{ name: b, isolate: true }} ]", keys.concat()),
    );
    let gateway = TestGateway::with(config).await;
    let answer = r#"{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":2000,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":1984}}}"#;
    for replica in &replicas {
        replica.plays(reply(200, answer));
    }
    let sent_by = async |key: &str, fields: &str| {
        for replica in &replicas {
            replica.forget();
        }
        let answer = gateway.send(&as_key(key, Request::chat_with("the same prompt", fields))).await;
        assert!(answer.is_good(), "{}", answer.text());
        let post = replicas.iter().find_map(|replica| replica.posts().first().cloned()).unwrap();
        let body: serde_json::Value = serde_json::from_slice(post.body()).unwrap();
        (answer, body["cache_salt"].clone())
    };

    let (told, a1) = sent_by("a1", "").await;
    assert!(a1.as_str().is_some_and(|salt| salt.len() == 32), "{a1}");
    assert_eq!(sent_by("a2", "").await.1, a1, "one group, one salt");
    assert_ne!(sent_by("b", "").await.1, a1);
    let (_, own) = sent_by("a1", r#","cache_salt":"mine""#).await;
    assert!(own != a1 && own != "mine", "the client's salt is combined, never trusted alone: {own}");
    let (_, stolen) = sent_by("b", &format!(r#","cache_salt":{a1}"#)).await;
    assert_ne!(stolen, a1, "knowing another group's salt is of no use");
    assert_eq!(told.header("x-gateway-replica"), None);
    assert_eq!(told.header("x-gateway-cached-tokens"), None);
    assert_eq!(told.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 0);

    let (seen, salt) = sent_by("open", "").await;
    assert!(salt.is_null() && seen.header("x-gateway-replica").is_some());
    assert_eq!(seen.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 1984);

    let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,\
                 \"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\n";
    for replica in &replicas {
        replica.plays(stream([role(), content("x"), finish(), usage.to_owned(), DONE.to_owned()]).in_pieces_of(7));
    }
    let streamed = gateway.send(&as_key("a1", Request::stream_with_usage("s"))).await;
    assert!(streamed.text().contains("\"cached_tokens\":0}"), "{}", streamed.text());

    let messages = Request::post("/v1/messages", r#"{"model":"m","max_tokens":5,"messages":[]}"#);
    json_error(&gateway.send(&as_key("a1", messages.clone())).await, 403);
    assert_eq!(gateway.send(&as_key("open", messages)).await.status, 200);
}

#[tokio::test]
async fn keys_change_without_a_restart_and_a_broken_file_changes_nothing() {
    let (replica, mut gateway) = start(&[key_entry("old", "")]).await;
    replica.plays(Script::new(|play| async move { play.hang().await }));
    let running = gateway.start(&as_key("old", Request::stream("runs on"))).await;
    replica.post(0).await;
    replica.plays(reply(200, crate::support::replica::engine::COMPLETION));
    let file = gateway.config_text();

    gateway.write_config(&file.replace(&key_entry("old", ""), &key_entry("new", ", rate: { requests_per_minute: 9 }")));
    gateway.hang_up();

    gateway.reaches("gateway_config_reloads_total", &[("result", "applied")], 1.0).await;
    assert_eq!(gateway.send(&as_key("new", Request::chat("x"))).await.status, 200);
    assert_eq!(gateway.send(&as_key("old", Request::chat("x"))).await.status, 401);

    for broken in
        ["keys: [", &file.replace("keys:", "kys:"), &file.replace(&format!("keys:\n{}", key_entry("old", "")), "")]
    {
        gateway.write_config(broken);
        gateway.hang_up();
        assert!(until(ms(3000), async || gateway.program_log().contains("was not reloaded")).await, "{broken}");
        assert_eq!(gateway.send(&as_key("new", Request::chat("x"))).await.status, 200, "the keys stay");
        assert_eq!(gateway.send(&Request::chat("x")).await.status, 401, "and the gateway stays closed");
    }
    assert!(gateway.is_alive());
    gateway.write_config(&file);
    let back = until(ms(6000), async || gateway.send(&as_key("old", Request::chat("x"))).await.status == 200);
    assert!(back.await, "a changed file is seen without a signal");
    running.close();
}

#[tokio::test]
async fn no_key_is_ever_in_a_log_a_metric_or_a_replicas_request() {
    let (replica, gateway) =
        start(&[key_entry("secret-one", ""), key_entry("limited", ", rate: { requests_per_minute: 1 }")]).await;
    for id in ["secret-one", "limited", "limited", "unknown"] {
        gateway.send(&as_key(id, Request::chat("x"))).await;
        gateway.send(&Request::chat("x").header("x-api-key", &format!("sk-{id}"))).await;
    }
    gateway.idle().await;

    let seen = [gateway.access_log(), gateway.program_log(), gateway.admin("/metrics").await.text()].concat();
    assert!(!seen.contains("sk-"), "{seen}");
    for post in replica.posts() {
        let head = String::from_utf8_lossy(&post.head).into_owned();
        assert!(!head.contains("sk-"), "{head}");
    }
}

#[test]
fn a_new_key_works_with_its_entry() {
    let output = Command::new(env!("CARGO_BIN_EXE_gateway")).args(["key", "new", "--id", "ci"]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let key = text.lines().map(str::trim).find(|line| line.starts_with("sk-gw-")).unwrap();
    assert!(text.contains(&format!("  - id: ci\n    sha256: {}\n", sha256(key))), "{text}");
    let bad = Command::new(env!("CARGO_BIN_EXE_gateway")).args(["key", "new", "--id", "a b"]).output().unwrap();
    assert!(!bad.status.success());
    assert!(String::from_utf8(bad.stderr).unwrap().contains("--id is `a b`"));
}
