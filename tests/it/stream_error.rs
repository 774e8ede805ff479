//! Theme `stream_error`: a broken stream never looks complete, and an error that is known early is an ordinary error.
//!
//! All cases of the theme are here, and what `reference/engines.md` adds: a full SGLang queue, a killed vLLM engine.

use crate::support::{
    check::{all_good, honest, json_error, same},
    client::{End, Request},
    gateway::{Config, TestGateway, fleet, pair},
    ms,
    replica::{
        ScriptedReplica,
        script::{Script, reply, stream},
    },
    sse::{DONE, content, error, event, finish, role, text},
    until,
};

/// Plays these events, then ends the connection.
fn cut_after(writes: &[String], reset: bool) -> Script {
    let writes = writes.to_vec();
    Script::new(move |play| {
        let writes = writes.clone();
        async move {
            play.head().await?;
            for write in &writes {
                play.chunk(write).await?;
            }
            play.pause(ms(60)).await?;
            if reset { play.reset() } else { play.close() }
        }
    })
}

#[tokio::test]
async fn br_019_a_reset_in_mid_stream_is_told() {
    let (replica, gateway) = pair().await;
    for (n, reset) in [(1, true), (2, false)] {
        replica.plays(cut_after(&[role(), content("a"), content("b")], reset));

        let answer = gateway.send(&Request::stream("x")).await;

        honest(&answer);
        assert_eq!(text(&answer.body), "ab", "what had arrived is relayed");
        assert_eq!(replica.count(), n, "no second attempt once bytes were delivered");
    }
    gateway.only_outcome("upstream_reset", 2).await;
    gateway.idle().await;
}

#[tokio::test]
async fn br_019_a_cut_inside_an_event_is_told() {
    let (replica, gateway) = pair().await;
    let half: String = content("b").chars().take(40).collect();
    replica.plays(cut_after(&[role(), content("a"), half], true));

    let answer = gateway.send(&Request::stream("x")).await;

    honest(&answer);
    gateway.only_outcome("upstream_reset", 1).await;
}

#[tokio::test]
async fn br_021_an_error_as_the_first_event_is_the_clients_error() {
    let (replicas, gateway) = fleet(2).await;
    let refusal =
        event(r#"{"error":{"object":"error","message":"too many tokens","type":"BadRequestError","code":400}}"#);
    for replica in &replicas {
        replica.plays(stream([refusal.clone(), DONE.to_owned()]));
    }

    for n in 0..12 {
        let answer = gateway.send(&Request::stream(&format!("long {n}"))).await;
        if answer.status == 200 {
            same(&answer, refusal.clone() + DONE, "relayed as it came, or a 400");
        } else {
            assert_eq!(answer.status, 400, "{}", answer.text());
            assert!(answer.has("too many tokens"), "the engine's words reach the client: {}", answer.text());
        }
    }

    gateway.only_outcome("upstream_client_error", 12).await;
    let sent: usize = replicas.iter().map(ScriptedReplica::count).sum();
    assert_eq!(sent, 12, "a client's error is not tried elsewhere");
    for replica in &replicas {
        replica.plays(stream([content("fine"), finish(), DONE.to_owned()]));
    }
    let good = gateway.send_all((0..6).map(|n| Request::stream(&format!("after {n}"))), 1).await;
    all_good(&good, "no replica is blamed for a client's error");
}

#[tokio::test]
async fn br_022_the_same_refusal_for_stream_and_plain() {
    let (replica, gateway) = pair().await;
    let refusal = r#"{"error":{"message":"unsupported","type":"BadRequestError","param":null,"code":400}}"#;
    replica.plays(reply(400, refusal));

    let plain = gateway.send(&Request::chat("x")).await;
    let streamed = gateway.send(&Request::stream("x")).await;

    for answer in [&plain, &streamed] {
        json_error(answer, 400);
        assert_eq!(answer.text(), refusal, "the engine's own error body passes");
    }
    gateway.only_outcome("upstream_client_error", 2).await;
}

#[tokio::test]
async fn br_025_a_stream_with_an_error_event_is_no_success() {
    let (replica, gateway) = pair().await;
    let boom = event(r#"{"error":{"message":"boom","code":500}}"#);
    let writes = [content("a"), boom.clone(), content("b"), DONE.to_owned()];
    replica.plays(stream(writes.clone()).every(ms(20)));

    let answer = gateway.send(&Request::stream("x")).await;

    let whole = writes.concat();
    let stopped = content("a") + &boom;
    assert!(
        [&whole, &stopped].contains(&&answer.text()),
        "bytes are unchanged, or stop after the error: {}",
        answer.text()
    );
    gateway.only_outcome("upstream_stream_error", 1).await;
}

#[tokio::test]
async fn a_killed_vllm_engine_ends_its_streams_as_failures() {
    let (replica, gateway) = pair().await;
    let died = error("EngineCore encountered an issue.", "InternalServerError", 500);
    let writes = [role(), content("a"), died.clone(), DONE.to_owned()];
    replica.plays(stream(writes.clone()).every(ms(10)));

    let answer = gateway.send(&Request::stream("x")).await;

    assert!(answer.has("EngineCore encountered"), "the engine's error reaches the client: {}", answer.text());
    assert!(writes.concat().starts_with(&answer.text()), "nothing is added: {}", answer.text());
    gateway.only_outcome("upstream_stream_error", 1).await;
}

#[tokio::test]
async fn a_full_sglang_queue_behind_a_200_is_tried_elsewhere() {
    let (replicas, gateway) = fleet(2).await;
    let full = error("The request queue is full.", "SERVICE_UNAVAILABLE", 503);
    replicas[0].plays(stream([full.clone(), DONE.to_owned()]));

    let answers = gateway.send_all((0..8).map(|n| Request::stream(&format!("queue {n}"))), 1).await;

    all_good(&answers, "a request that never ran moves to the other replica");
    assert!(answers.iter().all(|answer| text(&answer.body) == "hi there"), "the client sees one whole answer");
    gateway.only_outcome("success", 8).await;
}

#[tokio::test]
async fn a_full_queue_everywhere_is_a_503_with_retry_after() {
    let (replica, gateway) = pair().await;
    replica.plays(stream([error("The request queue is full.", "SERVICE_UNAVAILABLE", 503), DONE.to_owned()]));

    let answer = gateway.send(&Request::stream("x")).await;

    assert_eq!(answer.status, 503, "the head is held until the first event: {}", answer.text());
    assert!(answer.header("retry-after").is_some(), "saturation says when to come back");
    gateway.reaches("gateway_requests_total", &[("outcome", "success")], 0.0).await;
    gateway.reaches("gateway_requests_total", &[], 1.0).await;
    replica.plays(stream([content("a"), finish(), DONE.to_owned()]));
    let back = until(ms(5000), async || gateway.send(&Request::stream("again")).await.is_good());
    assert!(back.await, "saturation takes no replica out");
}

#[tokio::test]
async fn done_alone_is_no_success() {
    let (replica, gateway) = pair().await;
    replica.plays(stream([DONE]));

    let answer = gateway.send(&Request::stream("x")).await;

    assert_ne!(answer.end, Some(End::Timeout));
    gateway.reaches("gateway_requests_total", &[], 1.0).await;
    gateway.reaches("gateway_requests_total", &[("outcome", "success")], 0.0).await;
}

#[tokio::test]
async fn f03_a_replica_that_hangs_in_mid_stream_is_ended_at_the_idle_limit() {
    let replica = ScriptedReplica::start();
    let config = Config::new(std::slice::from_ref(&replica)).timeout("stream_idle: 700ms");
    let gateway = TestGateway::with(config).await;
    replica.plays(Script::new(|play| async move {
        play.head().await?;
        play.chunk(role() + &content("a")).await?;
        play.hang().await
    }));

    let answer = gateway.send(&Request::stream("x")).await;

    honest(&answer);
    assert_eq!(text(&answer.body), "a");
    assert!(
        (ms(600)..ms(3000)).contains(&answer.took()),
        "the limit is 700 ms, the end came after {:?}",
        answer.took()
    );
    gateway.only_outcome("upstream_timeout", 1).await;
    gateway.idle().await;
}
