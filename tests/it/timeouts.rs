//! Theme timeouts: which limits fire, and which must not.
//!
//! BR-096 is in `fallback`.

use crate::support::{
    check::{honest, json_error, same},
    client::{Call, Request},
    gateway::{Config, TestGateway, pair},
    ms,
    replica::{
        ScriptedReplica,
        script::{LAST, Script, stream},
    },
    sse::{DONE, content, finish, role, text},
};

#[tokio::test]
async fn br_093_long_prefill_works_with_defaults() {
    let (replica, gateway) = pair().await;
    replica.plays(stream([role(), content("late"), finish(), DONE.to_owned()]).after(ms(4000)));

    let answer = gateway.send(&Request::stream(&"p".repeat(200_000))).await;

    assert!(answer.is_good(), "{answer:?}");
    assert_eq!(text(&answer.body), "late");
    assert_eq!(replica.count(), 1, "a slow prefill is waited for, not tried twice");
}

#[tokio::test]
async fn br_093_the_head_goes_out_when_the_hold_ends() {
    let replica = ScriptedReplica::start();
    let config = Config::new(std::slice::from_ref(&replica)).timeout("first_event_hold: 300ms");
    let gateway = TestGateway::with(config).await;
    replica.plays(Script::new(|play| async move {
        play.head().await?;
        play.pause(ms(1200)).await?;
        play.chunk(content("late") + &finish() + DONE).await?;
        play.send(LAST).await
    }));

    let mut call = gateway.start(&Request::stream("x")).await;

    assert!(
        call.read_until(ms(1000), |answer| answer.status == 200).await,
        "a client learns after 300 ms that it is served"
    );
    same(&call.finish().await, content("late") + &finish() + DONE, "then the stream follows");
}

#[tokio::test]
async fn br_093_the_limit_is_a_504_that_names_itself() {
    let replica = ScriptedReplica::start();
    let config = Config::new(std::slice::from_ref(&replica)).timeout("first_token: 800ms");
    let gateway = TestGateway::with(config).await;
    replica.plays(Script::new(|play| async move { play.hang().await }));

    let answer = gateway.send(&Request::stream("x")).await;

    let error = json_error(&answer, 504);
    assert!((ms(700)..ms(2500)).contains(&answer.took()), "the limit is 800 ms, it fired after {:?}", answer.took());
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("first_token") || message.contains("first token"), "it says which limit fired: {message}");
    assert_eq!(error["code"], "upstream_timeout");
}

#[tokio::test]
async fn br_093_comments_are_no_first_token() {
    let replica = ScriptedReplica::start();
    let config = Config::new(std::slice::from_ref(&replica)).timeout("first_token: 800ms");
    let gateway = TestGateway::with(config).await;
    replica.plays(stream(vec![": keep-alive\n\n"; 60]).every(ms(100)));

    let answer = gateway.send(&Request::stream("x")).await;

    assert!(
        (ms(700)..ms(3000)).contains(&answer.took()),
        "keep-alives are no progress: ended after {:?}",
        answer.took()
    );
    if answer.status == 200 {
        honest(&answer);
    } else {
        json_error(&answer, 504);
    }
    gateway.only_outcome("upstream_timeout", 1).await;
}

#[tokio::test]
async fn br_095_a_healthy_stream_outlives_the_total_limit() {
    let replica = ScriptedReplica::start();
    let limits = ["first_token: 1s", "stream_idle: 1s", "client_idle: 1s", "total: 1s"];
    let config = limits.into_iter().fold(Config::new(std::slice::from_ref(&replica)), Config::timeout);
    let gateway = TestGateway::with(config).await;
    let events: Vec<String> =
        [role()].into_iter().chain(vec![content("x"); 120]).chain([finish(), DONE.to_owned()]).collect();
    replica.plays(stream(events.clone()).every(ms(20)));

    let answer = gateway.send(&Request::stream("x")).await;

    same(&answer, events.concat(), "2.4 s of events under a total limit of 1 s for plain answers");
    gateway.only_outcome("success", 1).await;
}

#[tokio::test]
async fn br_095_a_plain_answer_ends_at_the_total_limit() {
    let replica = ScriptedReplica::start();
    let config = Config::new(std::slice::from_ref(&replica)).timeout("total: 800ms");
    let gateway = TestGateway::with(config).await;
    replica.plays(Script::new(|play| async move { play.hang().await }));

    let answer = gateway.send(&Request::chat("x")).await;

    json_error(&answer, 504);
    assert!(answer.took() < ms(2500), "the limit is 800 ms, it fired after {:?}", answer.took());
}

#[tokio::test]
async fn bytes_that_could_begin_either_protocol_do_not_hold_a_connection() {
    let replica = ScriptedReplica::start();
    let gateway = TestGateway::with(Config::new(std::slice::from_ref(&replica)).timeout("header: 500ms")).await;
    for begin in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n\r\nSM", b"POST /v1"] {
        let mut call = Call::open(gateway.address()).await;
        call.send_bytes(begin).await;
        assert!(call.is_closed_within(ms(3000)).await, "{} holds a connection", begin.escape_ascii());
    }
}

#[tokio::test]
async fn a_client_may_pause_between_requests_for_longer_than_a_head_may_take() {
    let replica = ScriptedReplica::start();
    let gateway = TestGateway::with(Config::new(std::slice::from_ref(&replica)).timeout("header: 400ms")).await;
    let list = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut call = Call::open(gateway.address()).await;
    call.send_bytes(list).await;
    assert!(call.read_until(ms(3000), |answer| answer.has("\"list\"")).await);

    assert!(!call.is_closed_within(ms(1200)).await, "an idle connection is kept");
    call.send_bytes(b"GET /v1/mod").await;
    assert!(call.is_closed_within(ms(3000)).await, "a head that has begun must come");
}
