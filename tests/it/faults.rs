//! Rows of the fault matrix that `serve` must meet.
//!
//! F03 stands in `stream_error`, F18 in `health`, F24 in `accounting`, F27 in `routing`. F07, F08, F11 to F17, F19 to F23, F25, F26
//! and F30 to F40 need a fallback, a drain, a reload or a soak run.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use crate::support::{
    check::{all_good, honest, json_error, same},
    client::{End, Request},
    gateway::{Config, TestGateway, attempts, fleet, paced, pair},
    ms,
    replica::{
        ScriptedReplica,
        engine::COMPLETION,
        script::{LAST, Script, head, reply, stream},
    },
    sse::{DONE, content, finish, role, text},
    until,
};

#[tokio::test]
async fn f01_a_killed_replica_takes_only_its_own_streams_along() {
    let (replicas, gateway) = fleet(4).await;
    let events: Vec<String> = [role()]
        .into_iter()
        .chain((0..30).map(|i| content(&format!("{i} "))))
        .chain([finish(), DONE.to_owned()])
        .collect();
    let whole = events.concat();
    for replica in &replicas {
        replica.plays(stream(events.clone()).every(ms(60)));
    }
    let streams = gateway.send_all((0..60).map(|i| Request::stream(&format!("s{i} ").repeat(50))), 60);
    let kill = async {
        let active = || replicas.iter().map(ScriptedReplica::active).sum::<usize>();
        assert!(until(ms(5000), async || active() == 60).await, "sixty streams run, not {}", active());
        let victim = replicas.iter().max_by_key(|replica| replica.active()).unwrap();
        let on_it = victim.active();
        tokio::time::sleep(ms(300)).await;
        victim.kill().await;
        for replica in &replicas {
            replica.plays(reply(200, COMPLETION));
        }
        let new = gateway.send_all((0..30).map(|i| Request::chat(&format!("n{i} ").repeat(50))), 5).await;
        all_good(&new, "new requests move at once");
        on_it
    };

    let (answers, on_it) = tokio::join!(streams, kill);

    let (complete, broken): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.text() == whole);
    assert_eq!(complete.len(), 60 - on_it, "the other replicas' streams are untouched");
    all_good(&complete, "whole streams end cleanly");
    broken.iter().for_each(honest);
    let outcome = u32::try_from(on_it).unwrap();
    gateway.reaches("gateway_requests_total", &[("outcome", "upstream_reset")], f64::from(outcome)).await;
    gateway.idle().await;
}

#[tokio::test]
async fn f02_a_replica_that_hangs_costs_its_own_requests_only() {
    let replicas = ScriptedReplica::fleet(4);
    let limits = ["first_token: 1s", "total: 1s"];
    let gateway = TestGateway::with(limits.into_iter().fold(Config::new(&replicas), Config::timeout)).await;
    replicas[0].plays(Script::new(|play| async move { play.hang().await }));

    let requests = (0..60).map(|i| Request::chat(&format!("u{i} ").repeat(200)));
    let answers = gateway.send_all(requests, 20).await;

    assert!(answers.iter().all(|answer| answer.end != Some(End::Timeout)), "hung requests end at their limit");
    let good = answers.iter().filter(|answer| answer.is_good()).count();
    assert!(good >= 40, "{good} of 60 were served, three of four replicas are well");
    gateway.idle().await;
}

#[tokio::test]
async fn f04_a_replica_that_resets_on_accept_costs_one_request_at_most() {
    let (replicas, gateway) = fleet(2).await;
    replicas[0].kill().await;
    replicas[0].set_reset_on_accept(true);
    replicas[0].restart();

    let answers = gateway.send_all((0..20).map(|i| Request::chat(&format!("a{i}"))), 1).await;

    let (good, failed): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status == 200);
    all_good(&good, "the other replica serves");
    assert!(
        failed.len() <= 1,
        "a reset may have come after the request was read, so the first may fail; {} did",
        failed.len()
    );
    for answer in &failed {
        assert_eq!(json_error(answer, 502)["code"], "upstream_reset");
    }
}

#[tokio::test]
async fn f05_a_slow_drip_is_not_killed_while_bytes_flow() {
    let replica = ScriptedReplica::start();
    let limits = ["first_token: 1s", "stream_idle: 1s", "client_idle: 1s", "total: 1s"];
    let gateway =
        TestGateway::with(limits.into_iter().fold(Config::new(std::slice::from_ref(&replica)), Config::timeout)).await;
    let whole = content("first") + &content("drip") + &finish() + DONE;
    let first = content("first").len();
    let pieces: Vec<Vec<u8>> = [whole.as_bytes()[..first].to_vec()]
        .into_iter()
        .chain(whole.as_bytes()[first..].chunks(5).map(<[u8]>::to_vec))
        .collect();
    replica.plays(stream(pieces).every(ms(40)));

    let answer = gateway.send(&Request::stream("x")).await;

    assert!(answer.took() > ms(2000), "the drip is slower than the limits: {:?}", answer.took());
    same(&answer, whole, "bytes flow, so nothing is idle");
}

#[tokio::test]
async fn f06_a_burst_of_errors_on_one_replica_is_bounded() {
    let (replicas, gateway) = fleet(4).await;
    replicas[0].plays(reply(500, r#"{"error":{"message":"internal"}}"#));

    let answers = paced(&gateway, 160, ms(12)).await;

    let bad = answers.iter().filter(|answer| !answer.is_good()).count();
    let tried = attempts(&replicas);
    assert!(
        bad <= 12,
        "{bad} of 160 clients saw the errors of one replica, 12 is the bound; it got {}",
        replicas[0].count()
    );
    assert!(tried <= 200, "{tried} attempts for 160 requests, 1.25 x is the bound");
}

#[tokio::test]
async fn f09_malformed_events_are_relayed_as_they_are() {
    let (replica, gateway) = pair().await;
    let mut all: Vec<u8> = Vec::new();
    all.extend((0..8).flat_map(|_| 0..=255u8));
    let forms: [(&str, Vec<u8>); 6] = [
        ("bad UTF-8", b"data: {\"choices\":[{\"delta\":{\"content\":\"\xff\xfe\xc3\"}}]}\n\n".to_vec()),
        ("NUL bytes", b"data: \0\0\0\n\n".to_vec()),
        ("no blank line", b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n".to_vec()),
        ("HTML", b"<html><body>oops</body></html>".to_vec()),
        ("broken JSON", b"data: {\"choices\":[{\"delta\":{\"content\":\"a\n\n".to_vec()),
        ("binary", all),
    ];
    for (name, form) in forms {
        let writes = [content("x").into_bytes(), form, content("y").into_bytes(), DONE.as_bytes().to_vec()];
        replica.plays(stream(writes.clone()).every(ms(5)));

        same(&gateway.send(&Request::stream(name)).await, writes.concat(), name);
    }
    replica.plays(stream([content("fine"), finish(), DONE.to_owned()]));
    assert_eq!(text(&gateway.send(&Request::stream("after")).await.body), "fine");
    gateway.reaches("gateway_requests_total", &[], 7.0).await;
}

/// Sends these bytes, and closes after a moment where asked.
fn wire(bytes: Vec<u8>, close: bool) -> Script {
    let bytes = Arc::new(bytes);
    Script::new(move |play| {
        let bytes = bytes.clone();
        async move {
            play.send(&*bytes).await?;
            play.pause(ms(50)).await?;
            if close { play.close() } else { Ok(()) }
        }
    })
}

#[tokio::test]
async fn f10_framing_faults_become_errors_and_never_desync() {
    let json = ("content-type", "application/json");
    let sized = |size: usize, more: &[(&str, &str)]| {
        let size = size.to_string();
        let mut headers = vec![json, ("content-length", size.as_str())];
        headers.extend(more);
        head(200, &headers)
    };
    let chunked = head(200, &[json, ("transfer-encoding", "chunked")]);
    let n = COMPLETION.len();
    let body = COMPLETION.as_bytes();
    let flood: Vec<u8> = (0..2000).flat_map(|i| format!("X-{i}: {}\r\n", "v".repeat(1000)).into_bytes()).collect();
    let faults: [(&str, Vec<u8>, bool); 8] = [
        ("length too short", [sized(n - 5, &[]), body.to_vec()].concat(), false),
        ("length too long", [sized(n + 50, &[]), body.to_vec()].concat(), true),
        ("bad chunk size", [&chunked[..], b"zz\r\n", body, b"\r\n0\r\n\r\n"].concat(), true),
        ("chunk longer than its size", [&chunked[..], b"5\r\n", body, b"\r\n0\r\n\r\n"].concat(), true),
        ("two lengths", [sized(n, &[("content-length", "5")]), body.to_vec()].concat(), true),
        ("garbage", b"HTPP/1.1 abc\r\n\r\n".to_vec(), true),
        ("no answer", Vec::new(), true),
        (
            "header flood",
            [b"HTTP/1.1 200 OK\r\n".to_vec(), flood, b"content-length: 2\r\n\r\n{}".to_vec()].concat(),
            true,
        ),
    ];
    for (name, bytes, close) in faults {
        let (replica, gateway) = pair().await;
        replica.plays(wire(bytes, close));

        let answer = gateway.send(&Request::chat(name)).await;

        assert_ne!(answer.end, Some(End::Timeout), "'{name}' must not hang a client");
        assert_ne!(answer.status, 0, "'{name}' gets an answer");
        if !["length too short", "header flood"].contains(&name) {
            assert!(!answer.is_good(), "'{name}' is no clean 200: {}", answer.text());
        }
        if ["garbage", "no answer", "two lengths"].contains(&name) {
            json_error(&answer, 502);
            let outcome = if name == "no answer" { "upstream_reset" } else { "upstream_protocol_error" };
            gateway.only_outcome(outcome, 1).await;
        }
        replica.plays(reply(200, COMPLETION));
        for i in 0..3 {
            let next = gateway.send(&Request::chat(&format!("next {i}"))).await;
            assert!(next.status != 200 || next.text() == COMPLETION, "after '{name}': desync, {}", next.text());
        }
    }
}

#[tokio::test]
async fn f10_interim_answers_and_other_oddities_pass() {
    let (replica, gateway) = pair().await;
    let json = ("content-type", "application/json");
    let length = COMPLETION.len().to_string();
    let whole = [head(200, &[json, ("content-length", &length)]), COMPLETION.into()].concat();
    let until_close = [head(200, &[json]), COMPLETION.into()].concat();
    let old = String::from_utf8(until_close.clone()).unwrap().replacen("HTTP/1.1", "HTTP/1.0", 1).into_bytes();
    let interim = |text: &str, n: usize| [text.repeat(n).into_bytes(), whole.clone()].concat();
    let forms: [(&str, Vec<u8>, bool); 5] = [
        ("100", interim("HTTP/1.1 100 Continue\r\n\r\n", 1), false),
        ("103 twice", interim("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 2), false),
        ("100 x 50", interim("HTTP/1.1 100 Continue\r\n\r\n", 50), false),
        ("until close", until_close, true),
        ("HTTP/1.0", old, true),
    ];
    for (name, bytes, close) in forms {
        replica.plays(wire(bytes, close));

        same(&gateway.send(&Request::chat(name)).await, COMPLETION, name);
    }
}

#[tokio::test]
async fn f28_the_last_replica_is_never_ejected() {
    let (replica, gateway) = pair().await;
    let served = Arc::new(AtomicU32::new(0));
    let count = served.clone();
    replica.plays(Script::new(move |play| {
        let n = count.fetch_add(1, Ordering::Relaxed) % 10;
        async move {
            let failed = reply(500, r#"{"error":{"message":"internal"}}"#);
            Script::from(if [1, 4, 7].contains(&n) { failed } else { reply(200, COMPLETION) }).run(play).await
        }
    }));

    let answers = gateway.send_all((0..60).map(|i| Request::chat(&format!("e{i}"))), 1).await;

    let refused = answers.iter().filter(|answer| [429, 503].contains(&answer.status)).count();
    assert!(
        refused <= 3,
        "{refused} of 60 were refused by the gateway itself; {} reached the replica",
        replica.count()
    );
}

#[tokio::test]
async fn f28_the_last_replica_is_asked_though_all_fail() {
    let (replicas, gateway) = fleet(2).await;
    for replica in &replicas {
        replica.plays(reply(500, r#"{"error":{"message":"internal"}}"#));
    }

    let answers = gateway.send_all((0..40).map(|i| Request::chat(&format!("e{i}"))), 1).await;

    let passed = answers.iter().filter(|answer| answer.status == 500 && answer.has("internal")).count();
    assert!(passed >= 30, "a 5xx of the engine passes as it is, and one replica is always asked: {passed} of 40");
    gateway.reaches("gateway_requests_total", &[], 40.0).await;
}

#[tokio::test]
async fn f29_a_poison_request_takes_at_most_two_replicas_down() {
    let (replicas, gateway) = fleet(4).await;
    for replica in &replicas {
        replica.plays(Script::new(|play| async move {
            if play.request.has("poison") {
                play.replica.kill().await;
                return play.close();
            }
            Script::from(reply(200, COMPLETION)).run(play).await
        }));
    }

    let answer = gateway.send(&Request::chat("poison")).await;

    let dead = replicas.iter().filter(|replica| !replica.is_listening()).count();
    assert!((1..=2).contains(&dead), "one request killed {dead} of 4 replicas");
    json_error(&answer, 502);
    let good = gateway.send_all((0..6).map(|i| Request::chat(&format!("g{i}"))), 1).await;
    all_good(&good, "the others serve");
}

#[tokio::test]
async fn f36_a_firehose_of_tiny_events_starves_nobody() {
    let (replica, gateway) = pair().await;
    let tiny = "a\r\ndata: {}\n\n\r\n".repeat(200);
    replica.plays(Script::new(move |play| {
        let tiny = tiny.clone();
        async move {
            play.head().await?;
            if play.request.has("hose") {
                for _ in 0..200 {
                    play.send(&tiny).await?;
                    play.pause(ms(5)).await?;
                }
            } else {
                for i in 0..12 {
                    play.pause(ms(100)).await?;
                    play.chunk(content(&format!("<{i}>"))).await?;
                }
            }
            play.chunk(DONE).await?;
            play.send(LAST).await
        }
    }));
    let (hose, calm) = (Request::stream("hose"), Request::stream("calm"));

    let (hose, calm) = tokio::join!(gateway.send(&hose), gateway.send(&calm));

    assert!(hose.is_good() && hose.count("data: {}") == 40_000, "every tiny event arrives: {}", hose.count("data: {}"));
    assert!(calm.is_good());
    let mut gaps: Vec<_> =
        (1..12).map(|i| calm.time_of_text(&format!("<{i}>")) - calm.time_of_text(&format!("<{}>", i - 1))).collect();
    gaps.sort_unstable();
    assert!(gaps[5] < ms(200), "events 100 ms apart stay about 100 ms apart beside a firehose: {gaps:?}");
}
