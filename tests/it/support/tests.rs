//! The support judged by itself: the client talks to a scripted replica directly.

use super::{
    client::{Call, End, Request, send},
    ms,
    replica::{
        Flavor, Health, ScriptedReplica,
        engine::COMPLETION,
        script::{LAST, SSE, Script, chunk, head, reply, stream},
    },
    sse::{DONE, content, role},
    until,
};

#[tokio::test]
async fn a_stream_arrives_as_it_was_scripted() {
    let replica = ScriptedReplica::start();
    replica.plays(stream([role(), content("a"), DONE.to_owned()]).every(ms(30)));

    let answer = send(replica.address(), &Request::stream("hi")).await;

    assert!(answer.is_good(), "{answer:?}");
    assert_eq!(answer.text(), role() + &content("a") + DONE);
    assert_eq!(answer.header("content-type").as_deref(), Some("text/event-stream; charset=utf-8"));
    let gap = answer.time_of_text("[DONE]") - answer.time_of(0);
    assert!(gap >= ms(50), "two gaps of 30 ms, and {gap:?} was seen");
}

#[tokio::test]
async fn pieces_of_one_byte_make_the_same_body() {
    let replica = ScriptedReplica::start();
    replica.plays(stream([role(), DONE.to_owned()]).in_pieces_of(1));

    let answer = send(replica.address(), &Request::stream("hi")).await;

    assert!(answer.is_good());
    assert_eq!(answer.text(), role() + DONE);
}

#[tokio::test]
async fn requests_are_recorded_whole_and_connections_are_kept() {
    let replica = ScriptedReplica::start();
    let first = Request::chat("one").header("X-Test", "1");
    let mut call = Call::start(replica.address(), &first).await;
    call.rest(ms(5000)).await;

    call.send(&Request::post("/v1/embeddings", "5\r\nhello\r\n0\r\n\r\n").header("Transfer-Encoding", "chunked")).await;
    call.rest(ms(5000)).await;

    assert!(call.answer.is_good() && call.answer.has("embedding"));
    let posts = replica.posts();
    assert_eq!(posts[0].body(), first.sent_body());
    assert_eq!(posts[0].header("x-test").as_deref(), Some("1"));
    assert_eq!(posts[1].body(), b"hello");
    assert!(std::sync::Arc::ptr_eq(&posts[0].conn, &posts[1].conn), "both came on one connection");
}

#[tokio::test]
async fn every_way_to_end_is_seen() {
    let replica = ScriptedReplica::start();
    let cut = |reset: bool| {
        Script::new(move |play| async move {
            play.head().await?;
            play.chunk(role()).await?;
            play.pause(ms(50)).await?;
            if reset { play.reset() } else { play.close() }
        })
    };

    replica.plays(cut(true));
    assert_eq!(send(replica.address(), &Request::stream("x")).await.end, Some(End::Reset));
    replica.plays(cut(false));
    assert_eq!(send(replica.address(), &Request::stream("x")).await.end, Some(End::Cut));
    replica.plays(Script::new(|play| async move {
        play.half_close();
        play.hang().await
    }));
    assert_eq!(send(replica.address(), &Request::stream("x")).await.end, Some(End::Cut));
    replica.plays(Script::new(|play| async move { play.hang().await }));
    let mut call = Call::start(replica.address(), &Request::stream("x")).await;
    call.rest(ms(50)).await;
    assert_eq!(call.answer.end, Some(End::Timeout));
}

#[tokio::test]
async fn a_client_that_leaves_is_noticed_and_ends_the_script() {
    let replica = ScriptedReplica::start();
    replica.plays(Script::new(|play| async move { play.hang().await }));

    for reset in [false, true] {
        let call = Call::start(replica.address(), &Request::chat("x")).await;
        let post = replica.post(usize::from(reset)).await;
        assert_eq!(replica.active(), 1);
        drop(if reset { call.reset() } else { call.close() });

        assert!(until(ms(2000), async || post.conn.hung_up().is_some() && replica.active() == 0).await);
    }
    assert_eq!(replica.peak(), 1);
}

#[tokio::test]
async fn a_killed_replica_refuses_and_comes_back_on_its_port() {
    let replica = ScriptedReplica::start();
    replica.plays(Script::new(|play| async move { play.hang().await }));
    let running = Call::start(replica.address(), &Request::chat("x")).await;
    replica.post(0).await;

    replica.kill().await;
    assert_eq!(running.finish().await.end, Some(End::Reset));
    assert_eq!(send(replica.address(), &Request::chat("x")).await.end, Some(End::Refused));
    assert!(!replica.is_listening());

    replica.restart();
    replica.plays(reply(200, COMPLETION));
    assert!(send(replica.address(), &Request::chat("x")).await.is_good());

    replica.set_reset_on_accept(true);
    assert_eq!(send(replica.address(), &Request::chat("x")).await.end, Some(End::Reset));
}

#[tokio::test]
async fn engines_answer_their_own_gets() {
    let vllm = ScriptedReplica::start();
    let sglang = ScriptedReplica::start_as(Flavor::Sglang, "other");

    assert!(send(vllm.address(), &Request::get("/metrics")).await.has("vllm:num_requests_running"));
    assert!(send(sglang.address(), &Request::get("/metrics")).await.has("sglang:num_running_reqs"));
    assert_eq!(send(vllm.address(), &Request::get("/version")).await.status, 200);
    assert_eq!(send(sglang.address(), &Request::get("/version")).await.status, 404);
    assert_eq!(send(sglang.address(), &Request::get("/v1/models")).await.json()["data"][0]["id"], "other");
    vllm.set_health(Health::Status(503));
    assert_eq!(send(vllm.address(), &Request::get("/health")).await.status, 503);
    vllm.answers_get("/health", reply(418, ""));
    assert_eq!(send(vllm.address(), &Request::get("/health")).await.status, 418);
    assert_eq!(vllm.probes().len(), 4);
}

#[tokio::test]
async fn framing_is_read_as_it_is_written() {
    let replica = ScriptedReplica::start();
    let forms: [(Vec<u8>, End, &str); 5] = [
        ([head(200, &[("content-length", "2")]), b"ok".to_vec()].concat(), End::Clean, "ok"),
        ([head(200, &[]), b"until the end".to_vec()].concat(), End::Clean, "until the end"),
        ([head(200, SSE), chunk("ab"), b"zz\r\n".to_vec()].concat(), End::Cut, "ab"),
        (
            [b"HTTP/1.1 100 Continue\r\n\r\n".to_vec(), head(200, SSE), chunk("x"), LAST.into()].concat(),
            End::Clean,
            "x",
        ),
        ([head(200, &[("content-length", "9")]), b"short".to_vec()].concat(), End::Cut, "short"),
    ];

    for (wire, end, body) in forms {
        replica.plays(Script::new(move |play| {
            let wire = wire.clone();
            async move {
                play.send(wire).await?;
                play.pause(ms(30)).await?;
                play.close()
            }
        }));
        let answer = send(replica.address(), &Request::chat("x")).await;
        assert_eq!((answer.end, answer.text().as_str()), (Some(end), body));
    }
}
