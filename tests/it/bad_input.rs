//! Bad input gets an error that names what is wrong, nothing dies of it, and no series or memory grows with it.

use crate::support::{
    check::{all_good, json_error},
    client::{Answer, Call, End, Request},
    gateway::{Config, TestGateway, pair},
    ms,
    replica::{
        ScriptedReplica,
        engine::COMPLETION,
        script::{Script, reply},
    },
    short,
};

/// The gateway runs and serves.
async fn well(replica: &ScriptedReplica, gateway: &mut TestGateway) {
    assert!(gateway.is_alive(), "nothing a client sends may end the process");
    replica.plays(reply(200, COMPLETION));
    all_good(&[gateway.send(&Request::chat("after")).await], "bad input disturbs nobody else");
    assert!(!gateway.program_log().contains("panicked"), "nothing panics");
}

/// Sends bytes as they are on an own connection; the first answer, and the connection.
async fn raw(gateway: &TestGateway, bytes: impl AsRef<[u8]>) -> Call {
    let mut call = Call::open(gateway.address()).await;
    call.send_bytes(bytes.as_ref()).await;
    call.rest(ms(6000)).await;
    call
}

#[tokio::test]
async fn bodies_that_are_no_request_are_refused_by_name() {
    let (replica, mut gateway) = pair().await;
    let bodies = [
        "",
        " ",
        "{",
        r#"{"model":"m","messages":[}"#,
        r#"{"model":"m""#,
        r#"{"model":"m"} trailing"#,
        "[1,2]",
        r#"[{"model":"m"}]"#,
        "\"text\"",
        "null",
        "42",
        "not json",
        r#"{"model":"m","messages":[{"role":"user","content":"line
break"}]}"#,
    ];
    for body in bodies {
        let answer = gateway.send(&Request::body(body)).await;
        let error = json_error(&answer, 400);
        assert_eq!(error["code"], "invalid_body", "{body:?}: {error}");
    }
    assert_eq!(replica.count(), 0, "a body that cannot be understood reaches no replica");
    gateway.only_outcome("client_error", u32::try_from(bodies.len()).unwrap()).await;
    well(&replica, &mut gateway).await;
}

#[tokio::test]
async fn a_model_that_is_not_served_is_a_404_that_names_it() {
    let (replica, mut gateway) = pair().await;

    let answer = gateway.send(&Request::body(r#"{"model":"no-such-model","messages":[]}"#)).await;

    let error = json_error(&answer, 404);
    assert_eq!(error["code"], "model_not_found");
    assert_eq!(error["param"], "model");
    assert!(error["message"].as_str().unwrap().contains("no-such-model"), "{error}");
    for body in [r#"{"model":5,"messages":[]}"#, r#"{"model":["m"],"messages":[]}"#] {
        let answer = gateway.send(&Request::body(body)).await;
        assert!([400, 404].contains(&answer.status), "{body}: {}", answer.text());
        json_error(&answer, answer.status);
    }
    assert_eq!(replica.count(), 0, "an unknown model reaches no replica");
    well(&replica, &mut gateway).await;
}

#[tokio::test]
async fn unknown_paths_and_methods_are_told_apart() {
    let (replica, mut gateway) = pair().await;
    for path in [
        "/",
        "/v1",
        "/v1/chat",
        "/v1/chat/completions/x",
        "/metrics",
        "/healthz",
        "/replicas",
        "/v1/models/m/x",
        "/%00",
    ] {
        for method in ["GET", "POST"] {
            let answer = gateway.send(&Request::post(path, "{}").method(method)).await;
            let error = json_error(&answer, 404);
            assert_eq!(error["code"], "unknown_url", "{method} {path}");
        }
    }
    for (method, path) in [
        ("GET", "/v1/chat/completions"),
        ("DELETE", "/v1/completions"),
        ("POST", "/v1/models"),
        ("PUT", "/v1/embeddings"),
    ] {
        let answer = gateway.send(&Request::post(path, "{}").method(method)).await;
        let error = json_error(&answer, 405);
        assert_eq!(error["code"], "method_not_allowed", "{method} {path}");
        assert!(answer.header("allow").is_some(), "a 405 says what is allowed");
    }
    assert_eq!(replica.count(), 0);
    well(&replica, &mut gateway).await;
}

#[tokio::test]
async fn ambiguous_framing_is_refused_and_the_connection_closed() {
    let (replica, mut gateway) = pair().await;
    let body = r#"{"model":"m","messages":[]}"#;
    let post = |headers: &str| {
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{headers}\r\n{body}"
        )
    };
    let n = body.len();
    let forms = [
        post("Content-Length: abc\r\n"),
        post("Content-Length: -1\r\n"),
        post("Content-Length: 99999999999999999999999\r\n"),
        post(&format!("Content-Length: {n}\r\nContent-Length: {}\r\n", n + 1)),
        post("Transfer-Encoding: xchunked\r\n"),
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"
            .to_owned(),
        "NONSENSE\r\n\r\n".to_owned(),
        "GET /v1/models HTTP/9.9\r\n\r\n".to_owned(),
    ];
    for form in forms {
        let mut call = raw(&gateway, &form).await;
        let note = short(form.as_bytes());
        let refused = (400..500).contains(&call.answer.status) || call.answer.status == 505;
        assert!(refused || call.answer.end == Some(End::Cut), "{note}: {} {}", call.answer.status, call.answer.text());
        assert!(
            call.is_closed_within(ms(3000)).await,
            "{note}: what follows cannot be trusted, so the connection closes"
        );
    }
    assert_eq!(replica.count(), 0, "an ambiguous request reaches no replica");
    well(&replica, &mut gateway).await;
}

#[tokio::test]
async fn a_length_beside_chunked_never_makes_two_requests_of_one() {
    let (replica, mut gateway) = pair().await;
    let hidden = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    let form = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"
    );

    let mut call = raw(&gateway, form).await;

    assert!((400..500).contains(&call.answer.status), "{}", call.answer.status);
    assert!(call.is_closed_within(ms(3000)).await, "the connection closes");
    assert_eq!(replica.count(), 0);
    well(&replica, &mut gateway).await;
}

#[tokio::test]
async fn header_and_body_limits_hold() {
    let replica = ScriptedReplica::start();
    let limits = ["header: 700ms", "client_idle: 700ms"];
    let config = limits.into_iter().fold(Config::new(std::slice::from_ref(&replica)), Config::timeout);
    let mut gateway = TestGateway::with(config).await;

    let large = Request::chat("x").header("X-Large", &"v".repeat(200_000));
    let answer: Answer = gateway.send(&large).await;
    assert!((400..500).contains(&answer.status) || answer.status == 0, "200 kB of headers: {}", answer.status);

    let mut slow = Call::open(gateway.address()).await;
    slow.send_bytes(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Slow: ").await;
    assert!(slow.is_closed_within(ms(5000)).await, "a head that does not come is let go after 700 ms");

    let bytes = Request::chat("half a body").bytes();
    let mut half = Call::open(gateway.address()).await;
    half.send_bytes(&bytes[..bytes.len() - 10]).await;
    half.rest(ms(6000)).await;
    assert_eq!(json_error(&half.answer, 408)["code"], "body_timeout");

    assert_eq!(replica.count(), 0);
    well(&replica, &mut gateway).await;
}

#[tokio::test]
async fn hostile_json_ends_in_an_answer() {
    let (replica, mut gateway) = pair().await;
    let deep = format!(r#"{{"model":"m","messages":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    let unclosed = format!(r#"{{"model":"m","messages":{}"#, "{\"a\":".repeat(100_000));
    let keys: String = (0..50_000).map(|i| format!(r#","k{i}":{i}"#)).collect();
    let wide = format!(r#"{{"model":"m","messages":[]{keys}}}"#);
    let invalid =
        [br#"{"model":"m","messages":[{"role":"user","content":""#.as_slice(), b"\xff\xfe\xc3", br#""}]}"#].concat();
    for body in [deep.into_bytes(), unclosed.into_bytes(), wide.into_bytes(), invalid, vec![0; 1 << 20]] {
        let answer = gateway.send(&Request::body(body.clone())).await;
        assert!([200, 400].contains(&answer.status), "{}: {} {}", short(&body), answer.status, short(&answer.body));
        if answer.status == 400 {
            json_error(&answer, 400);
        }
    }
    well(&replica, &mut gateway).await;
}

#[tokio::test]
async fn br_124_scanners_make_no_series() {
    let (replica, mut gateway) = pair().await;
    let methods = ["GET", "POST", "DELETE", "BREW"];
    let scan = |from: usize| {
        let paths = (from..from + 400).map(|i| Request::post(&format!("/scan/{i}?x={i}"), "{}").method(methods[i % 4]));
        let models = (from..from + 100).map(|i| Request::body(format!(r#"{{"model":"guess-{i}","messages":[]}}"#)));
        paths.chain(models).collect::<Vec<_>>()
    };
    gateway.send_all(scan(0), 8).await;
    let before = gateway.metrics().await.len();

    gateway.send_all(scan(1000), 8).await;

    let after = gateway.metrics().await.len();
    assert!(after <= before + 5, "series grew from {before} to {after} with what strangers sent");
    well(&replica, &mut gateway).await;
}

#[tokio::test]
async fn replicas_that_speak_nonsense_are_a_502_and_counted() {
    let forms: [&[u8]; 5] = [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        &[0; 4096],
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nx",
        b"HTTP/1.1 99999 No\r\n\r\n",
        b"<html>hello</html>\r\n\r\n",
    ];
    for form in forms {
        let (replica, mut gateway) = pair().await;
        replica.plays(Script::new(move |play| async move {
            play.send(form).await?;
            play.pause(ms(50)).await?;
            play.close()
        }));

        let answer = gateway.send(&Request::chat("x")).await;

        assert_eq!(json_error(&answer, 502)["type"], "upstream_error", "{}", short(form));
        gateway.only_outcome("upstream_protocol_error", 1).await;
        gateway.idle().await;
        well(&replica, &mut gateway).await;
    }
}

#[tokio::test]
async fn errors_name_no_replica_and_no_prompt() {
    let replica = ScriptedReplica::start();
    let mut gateway = TestGateway::over(std::slice::from_ref(&replica)).await;
    let port = replica.address().port().to_string();
    replica.plays(Script::new(|play| async move { play.reset() }));

    let answer = gateway.send(&Request::chat("my private words")).await;

    json_error(&answer, 502);
    assert!(!answer.has(&port) && !answer.has("127.0.0.1"), "no upstream address: {}", answer.text());
    assert!(!answer.has("private"), "no prompt: {}", answer.text());
    well(&replica, &mut gateway).await;
}

#[tokio::test]
async fn refusals_before_the_request_path_carry_a_request_id_and_are_counted() {
    let (_replica, gateway) = pair().await;
    let fields = (0..99).fold(Request::chat("x"), |request, i| request.header(&format!("X-{i}"), "v"));
    let long = Request::chat("x").header("X-Long", &"v".repeat(40_000));
    let cases =
        [(Request::post("/nowhere", "{}"), 404), (Request::post("/v1/models", "{}"), 405), (long, 431), (fields, 431)];
    for (request, status) in cases {
        let answer = gateway.send(&request).await;
        assert!(!json_error(&answer, status)["message"].as_str().unwrap().is_empty());
        assert!(answer.header("x-request-id").is_some_and(|id| !id.is_empty()), "{status} names the request");
    }
    let counted = gateway.metrics().await.total("gateway_rejected_total", &[("reason", "body")]);
    assert!(counted >= 3.0, "{counted}");
}

#[tokio::test]
async fn heads_that_cannot_be_parsed_get_an_error_with_a_body() {
    let (_replica, gateway) = pair().await;
    let fields: String = (0..200).map(|i| format!("X-{i}: v\r\n")).collect();
    let forms = [
        ("NONSENSE\r\n\r\n".to_owned(), 400),
        ("GET /v1/models HTTP/1.1\r\nHost x\r\n\r\n".to_owned(), 400),
        (format!("GET /v1/models HTTP/1.1\r\n{fields}\r\n"), 431),
    ];
    for (form, status) in forms {
        let call = raw(&gateway, form).await;
        json_error(&call.answer, status);
        assert!(call.answer.header("x-request-id").is_some());
    }
}

#[tokio::test]
async fn a_connection_over_the_limit_is_told_so_and_one_that_ends_makes_room() {
    let replica = ScriptedReplica::start();
    let config = Config::new(std::slice::from_ref(&replica)).limit("connections: 2");
    let mut gateway = TestGateway::with(config).await;
    let list = "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut call = Call::open(gateway.address()).await;
        call.send_bytes(list.as_bytes()).await;
        assert!(call.read_until(ms(3000), |answer| answer.status == 200).await);
        held.push(call);
    }

    for _ in 0..3 {
        let refused = gateway.send(&Request::chat("x")).await;
        assert_eq!(json_error(&refused, 503)["code"], "gateway_overloaded");
        assert_eq!(refused.header("retry-after").as_deref(), Some("1"));
        assert_eq!(refused.header("connection").as_deref(), Some("close"));
    }

    held.clear();
    replica.plays(reply(200, COMPLETION));
    let served = async || gateway.send(&Request::chat("x")).await.is_good();
    assert!(crate::support::until(ms(3000), served).await, "there is room again");
    well(&replica, &mut gateway).await;
}
