//! Theme headers: hop-by-hop fields, lengths, codings, credentials and trace context.
//!
//! All cases of the theme are here. BR-053 and BR-054 on the fallback's route wait for the fallback.

use std::io::{Read, Write};

use bytes::Bytes;
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::support::{
    beside,
    check::same,
    client::Request,
    gateway::{TestGateway, pair},
    ms,
    replica::{
        ScriptedReplica,
        engine::COMPLETION,
        script::{LAST, Script, head, reply, stream},
    },
    sse::{DONE, content, finish, usage},
};

/// One request of each kind that generates or embeds.
fn routes() -> [Request; 4] {
    [
        Request::chat("x"),
        Request::stream("x"),
        Request::post("/v1/completions", r#"{"model":"m","prompt":"x"}"#),
        Request::post("/v1/embeddings", r#"{"model":"m","input":"x"}"#),
    ]
}

const HOP_BY_HOP: [(&str, &str); 6] = [
    ("Connection", "keep-alive, X-Hop"),
    ("Keep-Alive", "timeout=5"),
    ("X-Hop", "1"),
    ("Proxy-Authenticate", "x"),
    ("Trailer", "x-end"),
    ("Upgrade", "h2c"),
];

fn ten_events() -> Script {
    let headers =
        [("content-type", "text/event-stream; charset=utf-8"), ("transfer-encoding", "chunked"), ("X-Keep", "1")];
    let headers: Vec<(&str, &str)> = headers.into_iter().chain(HOP_BY_HOP).collect();
    let events = (0..10).map(|i| content(&format!("e{i}"))).chain([DONE.to_owned()]);
    stream(events).every(ms(30)).headers(&headers).into()
}

#[tokio::test]
async fn br_046_hop_by_hop_fields_of_the_replica_are_dropped() {
    let (replica, gateway) = pair().await;
    replica.plays(ten_events());

    let answer = gateway.send(&Request::stream("x")).await;

    assert!(answer.is_good());
    assert_eq!(answer.count("\"content\""), 10, "all ten events arrive");
    for name in ["x-hop", "proxy-authenticate", "trailer", "upgrade", "keep-alive"] {
        assert_eq!(answer.header(name), None, "{name} belongs to the other connection");
    }
    let own = answer.header("connection").unwrap_or_default();
    assert!(!own.to_lowercase().contains("x-hop"), "connection is the gateway's own: {own}");
}

#[tokio::test]
async fn br_046_hop_by_hop_fields_of_the_client_are_dropped() {
    let (replica, gateway) = pair().await;
    let fields = [("TE", "trailers"), ("Proxy-Connection", "keep-alive")];
    let request = HOP_BY_HOP.into_iter().chain(fields).fold(Request::chat("x"), |request, (k, v)| request.header(k, v));

    let answer = gateway.send(&request).await;

    assert_eq!(answer.status, 200, "{}", answer.text());
    let post = replica.post(0).await;
    for name in ["x-hop", "keep-alive", "proxy-connection", "proxy-authenticate", "upgrade", "te", "trailer"] {
        assert_eq!(post.header(name), None, "{name} belongs to the client's connection");
    }
}

#[tokio::test]
async fn br_046_over_http2_all_events_arrive_and_no_connection_field_does() {
    let (replica, gateway) = pair().await;
    replica.plays(ten_events());
    let socket = tokio::net::TcpStream::connect(gateway.address()).await.unwrap();
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
    let connection = beside(connection);
    let request = http::Request::post(format!("http://{}/v1/chat/completions", gateway.address()))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::copy_from_slice(Request::stream("x").sent_body())));

    let response = client.send_request(request.unwrap()).await.unwrap();

    assert_eq!(response.status(), 200);
    for name in
        ["transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "proxy-authenticate", "x-hop"]
    {
        assert!(!response.headers().contains_key(name), "{name} has no place in HTTP/2");
    }
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let want: String = (0..10).map(|i| content(&format!("e{i}"))).collect();
    assert_eq!(String::from_utf8_lossy(&body), want + DONE, "ten events arrive whole");
    connection.abort();
}

/// A stream with a true length, in ten parts.
fn with_length(events: Vec<String>) -> Script {
    Script::new(move |play| {
        let events = events.clone();
        async move {
            let length = events.concat().len().to_string();
            play.send(head(200, &[("content-type", "text/event-stream"), ("content-length", &length)])).await?;
            for event in &events {
                play.send(event).await?;
                play.pause(ms(30)).await?;
            }
            Ok(())
        }
    })
}

#[tokio::test]
async fn br_047_a_stream_with_a_true_length_arrives_in_full() {
    let (replica, gateway) = pair().await;
    let mut events: Vec<String> = (0..8).map(|i| content(&format!("e{i}"))).collect();
    events.extend([finish(), DONE.to_owned()]);
    replica.plays(with_length(events.clone()));

    let answer = gateway.send(&Request::stream_with_usage("x")).await;

    let whole = events.concat();
    same(&answer, &whole, "relay");
    let length = answer.header("content-length");
    assert!(length.as_ref().is_none_or(|length| *length == whole.len().to_string()), "right or absent: {length:?}");
    let (first, last) = (answer.time_of(0), answer.time_of(whole.len() - 1));
    assert!(last - first > ms(120), "the stream is relayed as it comes, not when it is complete: {:?}", last - first);
}

#[tokio::test]
async fn br_047_the_length_goes_when_the_usage_chunk_goes() {
    let (replica, gateway) = pair().await;
    let visible = [content("a"), finish()].concat();
    replica.plays(with_length(vec![visible.clone(), usage(5, 2), DONE.to_owned()]));

    let answer = gateway.send(&Request::stream("x")).await;

    same(&answer, visible + DONE, "the hidden chunk is gone, all else is there");
    let length = answer.header("content-length");
    assert!(length.is_none_or(|length| length == answer.body.len().to_string()), "a length that is not true must go");
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn br_050_coding_and_body_agree() {
    let (replica, gateway) = pair().await;
    for status in [200, 400, 500] {
        let body = match status {
            200 => COMPLETION.to_owned(),
            _ => format!(r#"{{"error":{{"message":"zipped error","type":"x","param":null,"code":{status}}}}}"#),
        };
        let text = body.clone();
        replica.plays(Script::new(move |play| {
            let asked = play.request.header("accept-encoding").is_some_and(|codings| codings.contains("gzip"));
            let zipped = reply(status, gzip(&text)).header("content-encoding", "gzip");
            let script = Script::from(if asked { zipped } else { reply(status, text.clone()) });
            async move { script.run(play).await }
        }));

        let answer = gateway.send(&Request::chat("z").header("Accept-Encoding", "gzip")).await;

        assert_eq!(answer.status, status, "the status passes");
        let mut got = String::new();
        if answer.header("content-encoding").as_deref() == Some("gzip") {
            GzDecoder::new(answer.body.as_slice()).read_to_string(&mut got).unwrap();
        } else {
            got = answer.text();
        }
        assert_eq!(got, body, "decoding by the header gives the engine's text");
    }
}

#[tokio::test]
async fn br_052_codings_that_accounting_cannot_read_are_not_asked_for() {
    let (replica, gateway) = pair().await;

    let answer = gateway.send(&Request::stream("x").header("Accept-Encoding", "br, zstd")).await;

    assert!(answer.is_good());
    let asked = replica.post(0).await.header("accept-encoding").unwrap_or_default();
    assert!(!asked.contains("br") && !asked.contains("zstd"), "the engine is asked for {asked:?}");
    gateway.reaches("gateway_output_tokens_total", &[], 2.0).await;
}

#[tokio::test]
async fn br_053_client_credentials_stay_at_the_gateway() {
    let (replica, gateway) = pair().await;
    let secrets = [
        ("Authorization", "Bearer gw-key-1"),
        ("x-api-key", "gw-key-1"),
        ("Cookie", "a=b"),
        ("Proxy-Authorization", "Basic eDp5"),
    ];
    for (n, route) in routes().into_iter().enumerate() {
        let request = secrets.into_iter().fold(route, |request, (name, value)| request.header(name, value));
        let answer = gateway.send(&request).await;
        assert_eq!(answer.status, 200, "{}", answer.text());

        let post = replica.post(n).await;
        let head = String::from_utf8_lossy(&post.head).to_lowercase();
        for secret in ["gw-key-1", "authorization:", "x-api-key:", "cookie:", "proxy-authorization:"] {
            assert!(!head.contains(secret), "{secret} must not leave the gateway on {}: {head}", post.path());
        }
    }
    let logs = gateway.access_log() + &gateway.program_log();
    assert!(!logs.contains("gw-key-1"), "no key in any log");
}

#[tokio::test]
async fn br_053_replicas_get_their_own_credential() {
    let replica = ScriptedReplica::start();
    let config = crate::support::gateway::Config::new(std::slice::from_ref(&replica))
        .model("api_key: ${IT_UPSTREAM_KEY}")
        .env("IT_UPSTREAM_KEY", "sk-upstream-1");
    let gateway = TestGateway::with(config).await;

    assert_eq!(gateway.send(&Request::chat("x").header("Authorization", "Bearer gw-key-1")).await.status, 200);

    assert_eq!(replica.post(0).await.header("authorization").as_deref(), Some("Bearer sk-upstream-1"));
    let logs = gateway.access_log() + &gateway.program_log();
    assert!(!logs.contains("sk-upstream-1"), "no key in any log");
}

#[tokio::test]
async fn br_054_trace_context_is_passed_on_every_route() {
    let (replica, gateway) = pair().await;
    let trace = "11112222333344445555666677778888";
    for (n, route) in routes().into_iter().enumerate() {
        let request =
            route.header("traceparent", &format!("00-{trace}-aaaabbbbccccdddd-01")).header("tracestate", "a=1");
        gateway.send(&request).await;

        let post = replica.post(n).await;
        let parent = post.header("traceparent").unwrap_or_default();
        assert!(parent.contains(trace), "the trace id is kept on {}: {parent:?}", post.path());
        assert_eq!(post.header("tracestate").as_deref(), Some("a=1"), "{}", post.path());
    }
}

#[tokio::test]
async fn br_056_streams_are_relayed_at_once_whatever_their_type_says() {
    let (replica, gateway) = pair().await;
    for kind in [Some("Text/Event-Stream;charset=UTF-8"), Some("application/x-ndjson"), None] {
        replica.plays(Script::new(move |play| async move {
            let mut headers = vec![("transfer-encoding", "chunked")];
            headers.extend(kind.map(|kind| ("content-type", kind)));
            play.send(head(200, &headers)).await?;
            play.chunk(content("a")).await?;
            play.pause(ms(400)).await?;
            play.chunk(finish() + DONE).await?;
            play.send(LAST).await
        }));

        let answer = gateway.send(&Request::stream("x")).await;

        same(&answer, content("a") + &finish() + DONE, &format!("{kind:?}"));
        let gap = answer.time_of_text("[DONE]") - answer.time_of(0);
        assert!(gap > ms(200), "the first event comes 400 ms before the last, not {gap:?}, for {kind:?}");
    }
}

#[tokio::test]
async fn br_057_one_header_policy_for_all_routes() {
    let (replica, gateway) = pair().await;
    let mut seen = Vec::new();
    for (n, route) in routes().into_iter().enumerate() {
        gateway.send(&route.header("x-team-call-id", "42").header("x-other", "1")).await;
        let post = replica.post(n).await;
        seen.push(["x-team-call-id", "x-other"].map(|name| post.header(name).is_some()));
    }

    assert!(seen.iter().all(|one| *one == seen[0]), "forwarded on some routes only: {seen:?}");
}

#[tokio::test]
async fn the_request_id_of_the_client_is_kept_or_one_is_made() {
    let (replica, gateway) = pair().await;

    let named = gateway.send(&Request::chat("x").header("X-Request-Id", "mine-1")).await;
    let unnamed = gateway.send(&Request::chat("x")).await;

    assert_eq!(named.header("x-request-id").as_deref(), Some("mine-1"));
    assert_eq!(replica.post(0).await.header("x-request-id").as_deref(), Some("mine-1"), "the engine logs the same id");
    assert!(unnamed.header("x-request-id").is_some_and(|id| id.len() >= 8), "every answer names its request");
}
