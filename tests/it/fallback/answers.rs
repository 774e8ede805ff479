//! What the client gets: one model name, its own events, and words of the gateway where nobody answers.

use serde_json::Value;

use super::{HOSTED, entry, full, hosted_api, hosted_events, outage_of, targets};
use crate::support::{
    check::{honest, json_error, same},
    client::{Answer, Request},
    gateway::{Config, TestGateway},
    ms,
    replica::{
        ScriptedReplica,
        script::{Script, reply, stream},
    },
    sse::{payloads, text, usages},
    until,
};

#[tokio::test]
async fn the_model_name_is_the_clients_in_every_event_however_the_stream_is_cut() {
    let (replica, api, gateway) = outage_of("").await;
    replica.plays(full());
    let want = hosted_events(false).concat().replace("hosted-x-2026", "m");
    for piece in [1, 2, 7, 64, 1000] {
        api.plays(stream(hosted_events(true)).in_pieces_of(piece));

        let answer = gateway.send(&Request::stream("x")).await;

        same(&answer, &want, &format!("in pieces of {piece}; the usage was not asked for"));
    }
    assert!(api.post(0).await.json()["stream_options"]["include_usage"] == true, "the gateway asks for it");
    assert_eq!(api.post(0).await.json()["model"], "hosted-x");
}

#[tokio::test]
async fn a_client_that_asks_for_usage_gets_it() {
    let (replica, _api, gateway) = outage_of("").await;
    replica.plays(full());

    let answer = gateway.send(&Request::stream_with_usage("x")).await;

    assert_eq!(usages(&answer.body).len(), 1);
    assert_eq!(usages(&answer.body)[0].0["prompt_tokens"], 1000);
}

#[tokio::test]
async fn a_whole_answer_and_an_alias_keep_the_name_that_was_sent() {
    let (replica, api) = (ScriptedReplica::start(), hosted_api());
    let config = Config::new(std::slice::from_ref(&replica))
        .model("aliases: [fast]")
        .server("expose_routing: true")
        .model(&targets(&[entry(&api, "")]));
    let gateway = TestGateway::with(config).await;
    replica.plays(full());

    let answer = gateway.send(&Request::body(r#"{"model":"fast","messages":[{"role":"user","content":"x"}]}"#)).await;

    same(&answer, HOSTED.replace("hosted-x-2026", "fast"), "only the name differs");
    assert_eq!(answer.header("x-gateway-route").as_deref(), Some("fallback"));
    assert_eq!(answer.header("x-gateway-replica"), None);
    gateway.only_outcome("success", 1).await;
    let line: Value = serde_json::from_str(gateway.access_log().lines().last().unwrap()).unwrap();
    assert_eq!((&line["route"], &line["outcome"]), (&Value::from("fallback"), &Value::from("success")));
    assert!(line["target"].as_str().unwrap().starts_with("hosted-x@127.0.0.1:"), "{line}");
    assert_eq!(line.get("replica"), None);
}

#[tokio::test]
async fn streams_of_the_fallback_are_timed_under_their_route() {
    let (replica, _api, gateway) = outage_of("").await;
    replica.plays(full());

    assert_eq!(text(&gateway.send(&Request::stream("x")).await.body), "hosted");

    let route = [("route", "fallback")];
    gateway.reaches("gateway_time_to_first_token_seconds_count", &route, 1.0).await;
    gateway.reaches("gateway_time_per_output_token_seconds_count", &route, 1.0).await;
    gateway.reaches("gateway_time_to_first_token_seconds_count", &[("route", "replica")], 0.0).await;
    gateway.reaches("gateway_output_tokens_total", &[], 100.0).await;
    gateway.reaches("gateway_prefill_tokens_saved_total", &[], 0.0).await;
    gateway.idle().await;
}

#[tokio::test]
async fn engine_only_fields_are_taken_out_and_counted() {
    let (replica, api, gateway) = outage_of("").await;
    replica.plays(full());
    let fields = r#","top_k":5,"min_p":0.1,"guided_regex":"a","ignore_eos":true,"cache_salt":"s","temperature":0.5,"vendor_field":{"a":1}"#;

    assert!(gateway.send(&Request::chat_with("x", fields)).await.is_good());

    let body = api.post(0).await.json();
    let mut keys: Vec<&str> = body.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["messages", "model", "temperature", "vendor_field"]);
    gateway.reaches("gateway_fallback_dropped_fields_total", &[], 5.0).await;
    assert!(replica.post(0).await.has("guided_regex"), "a replica gets what was sent");
}

#[tokio::test]
async fn a_request_that_the_hosted_model_refuses_says_why_under_the_clients_name() {
    let (replica, api, gateway) = outage_of("").await;
    replica.plays(full());
    api.plays(reply(
        400,
        r#"{"error":{"message":"hosted-x knows no tools","type":"invalid_request_error","param":"tools","code":null}}"#,
    ));

    let answer = gateway.send(&Request::chat("x")).await;

    assert_eq!(json_error(&answer, 400)["message"], "m knows no tools");
    gateway.only_outcome("upstream_client_error", 1).await;
}

#[tokio::test]
async fn a_hosted_stream_that_breaks_off_says_so_and_nobody_else_is_asked() {
    let (replica, apis) = (ScriptedReplica::start(), [hosted_api(), hosted_api()]);
    let entries = [entry(&apis[0], ""), entry(&apis[1], "")];
    let gateway = TestGateway::with(Config::new(std::slice::from_ref(&replica)).model(&targets(&entries))).await;
    replica.plays(full());
    apis[0].plays(Script::new(|play| async move {
        play.head().await?;
        play.chunk(hosted_events(false)[..2].concat() + "data: {\"half").await?;
        play.pause(ms(50)).await?;
        play.reset()
    }));

    let answer = gateway.send(&Request::stream("x")).await;

    honest(&answer);
    assert_eq!((text(&answer.body).as_str(), apis[1].count(), replica.count()), ("hos", 0, 1));
    gateway.only_outcome("upstream_reset", 1).await;
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_hosted_request() {
    let (replica, api, gateway) = outage_of("").await;
    replica.plays(full());
    api.plays(Script::new(|play| async move {
        play.head().await?;
        play.chunk(hosted_events(false)[..2].concat()).await?;
        play.hang().await
    }));
    let mut call = gateway.start(&Request::stream("x")).await;
    assert!(call.read_until(ms(3000), |answer| answer.has("hos")).await);
    assert_eq!(api.active(), 1);

    call.close();

    assert!(until(ms(3000), async || api.active() == 0).await, "the hosted model is told to stop");
    gateway.only_outcome("cancelled", 1).await;
}

#[tokio::test]
async fn the_client_may_forbid_it() {
    let (replica, api, gateway) = outage_of("").await;
    replica.plays(full());

    let answer = gateway.send(&Request::chat("x").header("X-Gateway-Fallback", "Never")).await;

    assert_eq!((answer.status, api.count()), (503, 0));
    assert_eq!(gateway.send(&Request::chat("x").header("X-Gateway-Fallback", "allow")).await.status, 200);
}

#[tokio::test]
async fn embeddings_of_another_model_are_no_substitute() {
    let (replica, api, gateway) = outage_of("").await;
    replica.plays(full());

    let answer = gateway.send(&Request::post("/v1/embeddings", r#"{"model":"m","input":"x"}"#)).await;

    assert_eq!((answer.status, api.count()), (503, 0));
}

#[tokio::test]
async fn the_configured_words_are_a_complete_answer_of_every_endpoint() {
    let replica = ScriptedReplica::start();
    let words = "Nobody is here; try again \\\"later\\\".";
    let config = Config::new(std::slice::from_ref(&replica)).model(&format!("degraded_response: \"{words}\""));
    let gateway = TestGateway::with(config).await;
    replica.plays(full());
    let said = "Nobody is here; try again \"later\".";
    let bodies = [
        ("/v1/chat/completions", r#""messages":[{"role":"user","content":"x"}]"#),
        ("/v1/completions", r#""prompt":"x""#),
        ("/v1/responses", r#""input":"x""#),
        ("/v1/messages", r#""max_tokens":9,"messages":[{"role":"user","content":"x"}]"#),
    ];
    for (path, body) in bodies {
        let whole = gateway.send(&Request::post(path, format!(r#"{{"model":"m",{body}}}"#))).await;
        assert!(whole.is_good(), "{path}: {whole:?}");
        assert_eq!(words_of(&whole.json()), said, "{path}");
        let events = gateway.send(&Request::post(path, format!(r#"{{"model":"m","stream":true,{body}}}"#))).await;
        assert!(events.is_good() && is_stream(&events), "{path}: {events:?}");
        let said_so = payloads(&events.body).iter().any(|payload| payload.contains(r#"try again \"later\"."#));
        assert!(said_so, "{path}: {}", events.text());
        assert!(events.header("x-gateway-route").is_none());
    }
    assert_eq!(text(&gateway.send(&Request::stream("x")).await.body), said);
    gateway.only_outcome("rejected", 9).await;

    assert_eq!(gateway.send(&Request::chat("x").header("X-Gateway-Fallback", "never")).await.status, 503);
    assert_eq!(gateway.send(&Request::post("/v1/embeddings", r#"{"model":"m","input":"x"}"#)).await.status, 503);
}

fn is_stream(answer: &Answer) -> bool {
    answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"))
}

fn words_of(answer: &Value) -> String {
    let places = ["/choices/0/message/content", "/choices/0/text", "/output/0/content/0/text", "/content/0/text"];
    places.iter().find_map(|place| answer.pointer(place)?.as_str()).unwrap_or_default().to_owned()
}
