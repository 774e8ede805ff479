//! Theme cancel: clients that leave stop the engine, clients that stall hold it back, and nothing is dropped.
//!
//! All cases of the theme are here, and F24 in `accounting`. BR-085's HTTP/2 reset is here, and its half-closed client, which
//! may be served or count as gone.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::time::Instant;

use crate::support::{
    beside,
    check::{json_error, same},
    client::{Call, Request},
    gateway::{Config, TestGateway, fleet, pair},
    ms,
    replica::{
        ScriptedReplica,
        conn::Received,
        engine::COMPLETION,
        script::{LAST, Script, reply},
    },
    sse::{DONE, content, finish, role},
    until,
};

/// The bound is 100 ms on a quiet machine; this one is shared.
const PROMPT: Duration = ms(500);

/// One event each 50 ms, for ten seconds.
fn endless() -> Script {
    Script::new(|play| async move {
        play.head().await?;
        play.chunk(role()).await?;
        for i in 0..200 {
            play.pause(ms(50)).await?;
            play.chunk(content(&i.to_string())).await?;
        }
        play.send(LAST).await
    })
}

fn silent() -> Script {
    Script::new(|play| async move { play.hang().await })
}

async fn closed_after(post: &Received, left: Instant) -> Duration {
    assert!(
        until(ms(3000), async || post.conn.hung_up().is_some()).await,
        "the engine's connection stays open 3 s after the client left"
    );
    post.conn.hung_up().unwrap().saturating_duration_since(left)
}

#[tokio::test]
async fn br_085_a_client_that_leaves_before_the_head_stops_the_engine() {
    let (replica, gateway) = pair().await;
    replica.plays(reply(200, COMPLETION).after(ms(8000)));
    for (n, reset) in [false, true].into_iter().enumerate() {
        let call = gateway.start(&Request::chat(&format!("leave {n}"))).await;
        let post = replica.post(n).await;
        tokio::time::sleep(ms(100)).await;

        let left = Instant::now();
        drop(if reset { call.reset() } else { call.close() });

        let after = closed_after(&post, left).await;
        assert!(
            after < PROMPT,
            "the engine must be stopped within 100 ms of the client's close, and was after {after:?}"
        );
    }
    assert_eq!(replica.count(), 2, "an abandoned request is not tried again");
    gateway.only_outcome("cancelled", 2).await;
    gateway.idle().await;
}

#[tokio::test]
async fn br_085_an_http2_reset_stops_the_engine() {
    let (replica, gateway) = pair().await;
    replica.plays(silent());
    let socket = tokio::net::TcpStream::connect(gateway.address()).await.unwrap();
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
    let connection = beside(connection);
    let request = http::Request::post(format!("http://{}/v1/chat/completions", gateway.address()))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::copy_from_slice(Request::chat("x").sent_body())));
    let call = beside(client.send_request(request.unwrap()));
    let post = replica.post(0).await;

    let left = Instant::now();
    call.abort();

    let after = closed_after(&post, left).await;
    assert!(after < PROMPT, "RST_STREAM stops the engine too, after {after:?}");
    assert!(!connection.is_finished(), "only the stream was reset");
    gateway.only_outcome("cancelled", 1).await;
    connection.abort();
}

#[tokio::test]
async fn br_086_clients_that_leave_in_mid_stream_stop_the_engine() {
    let (replica, gateway) = pair().await;
    replica.plays(endless());
    let calls = (0..40).map(|i| {
        let gateway = &gateway;
        async move {
            let mut call = gateway.start(&Request::stream(&format!("cut-{i}-"))).await;
            assert!(call.read_until(ms(8000), |answer| answer.count("data:") >= 3).await, "three events arrive");
            let left = Instant::now();
            drop(call.close());
            (i, left)
        }
    });

    let left = join_all(calls).await;

    for (i, left) in left {
        let posts = replica.posts();
        let post = posts.iter().find(|post| post.has(&format!("cut-{i}-"))).unwrap();
        let after = closed_after(post, left).await;
        assert!(after < PROMPT, "stream {i} was stopped {after:?} after its client left");
    }
    gateway.only_outcome("cancelled", 40).await;
    gateway.idle().await;
}

#[tokio::test]
async fn br_089_no_attempt_is_started_after_the_client_left() {
    let (replicas, gateway) = fleet(2).await;
    for replica in &replicas {
        replica.plays(silent());
    }
    let call = gateway.start(&Request::stream("x")).await;
    assert!(until(ms(3000), async || replicas.iter().any(|replica| replica.active() == 1)).await);
    let busy = if replicas[0].count() > 0 { 0 } else { 1 };
    let post = replicas[busy].post(0).await;

    let left = Instant::now();
    drop(call.close());

    let after = closed_after(&post, left).await;
    assert!(after < PROMPT, "a silent engine is let go when its client leaves, and was after {after:?}");
    gateway.only_outcome("cancelled", 1).await;
    gateway.idle().await;
    assert_eq!(replicas[0].count() + replicas[1].count(), 1, "no attempt after the client left");
}

#[tokio::test]
async fn br_089_a_silent_engine_ends_at_the_first_token_limit() {
    let replica = ScriptedReplica::start();
    let config = Config::new(std::slice::from_ref(&replica)).timeout("first_token: 700ms");
    let gateway = TestGateway::with(config).await;
    replica.plays(silent());

    for request in [Request::stream("x"), Request::stream("y")] {
        let answer = gateway.send(&request).await;
        json_error(&answer, 504);
        assert!(
            (ms(600)..ms(3000)).contains(&answer.took()),
            "the limit is 700 ms, and fired after {:?}",
            answer.took()
        );
    }
    gateway.only_outcome("upstream_timeout", 2).await;
}

#[tokio::test]
async fn br_090_stalled_readers_hold_the_engine_back() {
    let (replica, gateway) = pair().await;
    let event = content(&"z".repeat(32_000));
    replica.plays(Script::new(move |play| {
        let event = event.clone();
        async move {
            play.head().await?;
            for _ in 0..1024 {
                play.chunk(&event).await?;
            }
            play.send(LAST).await
        }
    }));
    let before = gateway.resident();
    let mut stalled = Vec::new();
    for i in 0..20 {
        let mut call = Call::open_with(gateway.address(), Some(4096)).await;
        call.send(&Request::stream(&format!("slow {i}"))).await;
        stalled.push(call);
    }
    assert!(until(ms(5000), async || replica.active() == 20).await, "twenty streams run");

    let sent = || replica.posts().iter().map(|post| post.conn.sent()).sum::<u64>();
    let mut last = 0;
    let blocked = until(ms(10_000), async || {
        tokio::time::sleep(ms(300)).await;
        let now = sent();
        let same = now == last;
        last = now;
        same && now > 0
    });

    assert!(blocked.await, "a reader that stalls must block the engine's writes in the end");
    assert!(sent() < 330_000_000, "the engine could write {} of 671 MB; kernel buffers alone hold less", sent());
    let growth = gateway.resident().saturating_sub(before);
    assert!(growth < 24 << 20, "20 stalled streams cost {growth} bytes in the gateway");
}

#[tokio::test]
async fn br_092_a_huge_event_loses_no_byte() {
    let (replica, gateway) = pair().await;
    let line = format!("data: {}\n", "k".repeat(1018));
    let whole = line.repeat(25 << 10) + "\n" + &content("end").repeat(20) + &finish() + DONE;
    let body = whole.clone();
    replica.plays(Script::new(move |play| {
        let body = body.clone();
        async move {
            play.head().await?;
            for piece in body.as_bytes().chunks(1 << 16) {
                play.chunk(piece).await?;
            }
            play.send(LAST).await
        }
    }));

    let answer = gateway.send(&Request::stream("x")).await;

    same(&answer, whole, "25 MiB without a blank line: accounting may give up, the relay may not");
}

#[tokio::test]
async fn br_085_a_half_closed_client_is_served_or_counts_as_gone() {
    let (replica, gateway) = pair().await;
    replica.plays(reply(200, COMPLETION).after(ms(700)));
    let call = gateway.start(&Request::chat("x")).await;
    let post = replica.post(0).await;

    let left = Instant::now();
    call.half_close();
    let answer = call.finish().await;

    if answer.is_good() {
        assert_eq!(answer.text(), COMPLETION);
        gateway.only_outcome("success", 1).await;
    } else {
        assert_eq!(answer.status, 0, "no half answer: {answer:?}");
        let after = closed_after(&post, left).await;
        assert!(after < PROMPT, "a client that counts as gone stops the engine, and did after {after:?}");
        gateway.only_outcome("cancelled", 1).await;
    }
    gateway.idle().await;
}

#[tokio::test]
async fn bytes_behind_a_request_do_not_hide_that_its_client_left() {
    let (replica, gateway) = pair().await;
    replica.plays(silent());
    let mut call = gateway.start(&Request::chat("x")).await;
    let post = replica.post(0).await;
    call.send_bytes(b"GET /v1/mod").await;
    tokio::time::sleep(ms(100)).await;

    let left = Instant::now();
    drop(call.close());

    let after = closed_after(&post, left).await;
    assert!(after < ms(1000), "the client's close is seen within 200 ms, and was after {after:?}");
    gateway.only_outcome("cancelled", 1).await;
    gateway.idle().await;
}

#[tokio::test]
async fn an_http2_client_that_opens_no_window_does_not_hold_the_engine() {
    let replica = ScriptedReplica::start();
    let gateway = TestGateway::with(Config::new(std::slice::from_ref(&replica)).timeout("client_idle: 700ms")).await;
    replica.plays(endless());
    let socket = tokio::net::TcpStream::connect(gateway.address()).await.unwrap();
    let (mut client, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(200)
        .handshake(TokioIo::new(socket))
        .await
        .unwrap();
    let connection = beside(connection);
    let request = || {
        http::Request::post(format!("http://{}/v1/chat/completions", gateway.address()))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::copy_from_slice(Request::stream("x").sent_body())))
            .unwrap()
    };
    let answer = client.send_request(request()).await.unwrap();
    let post = replica.post(0).await;
    let started = Instant::now();

    let after = closed_after(&post, started).await;

    assert!(after > ms(600), "the limit is 700 ms: {after:?}");
    gateway.only_outcome("cancelled", 1).await;
    assert!(!connection.is_finished(), "only the stream is cut");
    let mut body = answer.into_body();
    let end = async { while let Some(Ok(_)) = http_body_util::BodyExt::frame(&mut body).await {} };
    tokio::time::timeout(ms(2000), end).await.expect("the client sees the end of the stream");
    replica.plays(reply(200, COMPLETION));
    assert_eq!(client.send_request(request()).await.unwrap().status(), 200, "the connection still serves");
    connection.abort();
}
