//! Every request ends in one outcome, nothing stays charged, and TTFT, TPOT and ITL mean what the documentation says.

use std::{
    collections::HashSet,
    ops::Range,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{StreamExt, stream as futures};
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::support::{
    check::all_good,
    client::{Call, Request},
    gateway::{TestGateway, fleet, pair},
    ms,
    replica::{
        ScriptedReplica,
        conn::Received,
        engine::COMPLETION,
        script::{Script, head, reply, stream},
    },
    sse::{DONE, content, delta, finish, role, usage},
    until, words,
};

const TTFT: &str = "gateway_time_to_first_token_seconds";
const TPOT: &str = "gateway_time_per_output_token_seconds";
const ITL: &str = "gateway_inter_token_latency_seconds";

async fn sum_and_count(gateway: &TestGateway, histogram: &str) -> (f64, f64) {
    let metrics = gateway.metrics().await;
    (metrics.total(&format!("{histogram}_sum"), &[]), metrics.total(&format!("{histogram}_count"), &[]))
}

/// Plays what the request's text asks for.
fn by_kind() -> Script {
    Script::new(|play| async move {
        if play.request.has("before") {
            return play.hang().await;
        }
        if play.request.has("good") {
            return Script::from(stream([role(), content("a"), finish(), DONE.to_owned()])).run(play).await;
        }
        play.head().await?;
        play.chunk(role() + &content("a")).await?;
        if play.request.has("reset") {
            play.pause(ms(20)).await?;
            return play.reset();
        }
        play.hang().await
    })
}

/// One request of a kind, which leaves where its kind says so.
async fn one_of_kind(gateway: &TestGateway, replicas: &[ScriptedReplica], kind: &str, n: usize) {
    let marker = format!("<{kind} {n}>");
    let mut call = gateway.start(&Request::stream(&marker)).await;
    match kind {
        "before" => {
            let asked = || replicas.iter().any(|replica| replica.posts().iter().any(|post| post.has(&marker)));
            assert!(until(ms(8000), async || asked()).await, "the engine is asked");
        }
        "mid" => assert!(call.read_until(ms(8000), |answer| answer.has("\"a\"")).await, "output arrives"),
        _ => call.rest(ms(8000)).await,
    }
    drop(call.close());
}

#[tokio::test]
async fn br_087_mixed_outcomes_add_up() {
    let (replicas, gateway) = fleet(2).await;
    for replica in &replicas {
        replica.plays(by_kind());
    }
    let kinds = ["before", "mid", "reset", "good"];
    let calls = (0..200).map(|n| one_of_kind(&gateway, &replicas, kinds[n % 4], n));

    futures::iter(calls).buffer_unordered(25).collect::<Vec<()>>().await;

    for (outcome, count) in [("cancelled", 100.0), ("upstream_reset", 50.0), ("success", 50.0)] {
        gateway.reaches("gateway_requests_total", &[("outcome", outcome)], count).await;
    }
    gateway.reaches("gateway_requests_total", &[], 200.0).await;
    gateway.idle().await;
    let logged = || gateway.access_log().lines().filter(|line| line.starts_with('{')).count();
    assert!(until(ms(5000), async || logged() == 200).await, "one access log line a request: {} of 200", logged());
}

#[tokio::test]
async fn f24_500_aborted_streams_leave_nothing_behind() {
    let (replica, gateway) = pair().await;
    replica.plays(Script::new(|play| async move {
        play.head().await?;
        play.chunk(role()).await?;
        for i in 0..200 {
            play.pause(ms(50)).await?;
            play.chunk(content(&i.to_string())).await?;
        }
        Ok(())
    }));
    let calls = (0..500).map(|i| {
        let gateway = &gateway;
        async move {
            let mut call = gateway.start(&Request::stream(&format!("abort-{i}-"))).await;
            assert!(call.read_until(ms(10_000), |answer| answer.has("data:")).await, "stream {i} begins");
            tokio::time::sleep(ms(i % 7 * 20)).await;
            let left = Instant::now();
            drop(if i % 2 == 0 { call.close() } else { call.reset() });
            (i, left)
        }
    });

    let left: Vec<(u64, Instant)> = futures::iter(calls).buffer_unordered(50).collect().await;

    assert!(
        until(ms(3000), async || replica.active() == 0).await,
        "{} of 500 engine streams still run",
        replica.active()
    );
    let posts = replica.posts();
    let mut after: Vec<Duration> = left.iter().map(|(i, left)| closed_after(&posts, *i, *left)).collect();
    after.sort_unstable();
    assert!(after[475] < ms(200), "95 % of the engine's streams end within 200 ms of their client: {:?}", after[475]);
    assert!(after[499] < ms(1500), "and all soon: {:?}", after[499]);
    gateway.only_outcome("cancelled", 500).await;
    gateway.idle().await;

    replica.plays(reply(200, COMPLETION));
    all_good(&gateway.send_all((0..8).map(|i| Request::chat(&format!("after {i}"))), 1).await, "serves as before");
}

fn closed_after(posts: &[Arc<Received>], stream: u64, left: Instant) -> Duration {
    let marker = format!("abort-{stream}-");
    let post = posts.iter().find(|post| post.has(&marker)).unwrap();
    post.conn.hung_up().map_or(Duration::MAX, |at| at.saturating_duration_since(left))
}

/// Bytes of a request's text that a replica had in its cache, and all of them.
#[derive(Default, Clone, Copy)]
struct Tally {
    cached: usize,
    all: usize,
}

impl Tally {
    fn rate(self) -> f64 {
        self.cached as f64 / self.all as f64
    }
}

/// A replica that keeps every prefix it was sent, block by block.
fn caching(tally: Arc<Mutex<Tally>>) -> Script {
    let cache = Arc::new(Mutex::new(HashSet::new()));
    Script::new(move |play| {
        let (cache, tally) = (cache.clone(), tally.clone());
        async move {
            let mut hash = 0;
            let mut held = true;
            for block in play.request.body().chunks_exact(256) {
                hash = xxh3_64_with_seed(block, hash);
                held &= !cache.lock().unwrap().insert(hash);
                let mut tally = tally.lock().unwrap();
                tally.all += block.len();
                tally.cached += if held { block.len() } else { 0 };
            }
            Script::from(reply(200, COMPLETION).after(ms(10))).run(play).await
        }
    })
}

/// A turn of a conversation: a system prompt shared by five, then what was said before, then something new.
fn turn(conversation: usize, turn: usize) -> Request {
    let system = words(&format!("system {}", conversation / 5), 2000);
    let said: String = (0..=turn)
        .map(|t| format!(r#",{{"role":"user","content":"{}"}}"#, words(&format!("{conversation} {t}"), 700)))
        .collect();
    Request::body(format!(r#"{{"model":"m","messages":[{{"role":"system","content":"{system}"}}{said}]}}"#))
}

#[tokio::test]
async fn a_restarted_gateway_finds_its_caches_again() {
    let replicas = ScriptedReplica::fleet(4);
    let mut gateway = TestGateway::over(&replicas).await;
    let tally = Arc::new(Mutex::new(Tally::default()));
    for replica in &replicas {
        replica.plays(caching(tally.clone()));
    }
    let before = hit_rate(&gateway, &tally, 0..4).await;
    gateway.restart().await;
    let after = hit_rate(&gateway, &tally, 4..8).await;

    let other = TestGateway::over(&replicas).await;
    for replica in &replicas {
        replica.plays(caching(tally.clone()));
    }
    hit_rate(&other, &tally, 0..4).await;
    let without = hit_rate(&other, &tally, 4..8).await;
    assert!(without > 0.7, "without a restart most of each turn is cached: {without:.3}");
    assert!(
        after >= 0.9 * without,
        "a restart keeps 90 % of the hit rate: {after:.3} with, {without:.3} without; {before:.3} before it"
    );
}

/// Plays these turns of sixty conversations, and says how much of their text was cached.
async fn hit_rate(gateway: &TestGateway, tally: &Mutex<Tally>, turns: Range<usize>) -> f64 {
    *tally.lock().unwrap() = Tally::default();
    for t in turns {
        // Conversations of one system prompt do not all speak in the same moment.
        let order = (0..60).map(|place| place * 7 % 60);
        all_good(&gateway.send_all(order.map(|c| turn(c, t)), 12).await, "every turn is answered");
    }
    tally.lock().unwrap().rate()
}

#[tokio::test]
async fn br_121_ttft_is_taken_at_the_first_output_and_not_at_the_role() {
    let (replica, gateway) = pair().await;
    replica.plays(Script::new(|play| async move {
        play.head().await?;
        play.chunk(role()).await?;
        play.pause(ms(600)).await?;
        play.chunk(content("a")).await?;
        play.chunk(finish() + DONE).await?;
        play.send("0\r\n\r\n").await
    }));

    assert!(gateway.send(&Request::stream("x")).await.is_good());

    gateway.reaches(&format!("{TTFT}_count"), &[], 1.0).await;
    let (ttft, _) = sum_and_count(&gateway, TTFT).await;
    assert!((0.59..1.5).contains(&ttft), "the role came at once, the text after 0.6 s: TTFT {ttft}");
}

#[tokio::test]
async fn ttft_begins_at_the_last_byte_of_the_request() {
    let (_replica, gateway) = pair().await;
    let bytes = Request::stream("slow to send").bytes();
    let (head, tail) = bytes.split_at(bytes.len() - 20);
    let mut call = Call::open(gateway.address()).await;

    assert!(call.send_bytes(head).await);
    tokio::time::sleep(ms(700)).await;
    assert!(call.send_bytes(tail).await);

    assert!(call.finish().await.is_good());
    gateway.reaches(&format!("{TTFT}_count"), &[], 1.0).await;
    let (ttft, _) = sum_and_count(&gateway, TTFT).await;
    assert!(ttft < 0.5, "the 0.7 s that the client took to send are not the pool's: TTFT {ttft}");
}

#[tokio::test]
async fn br_122_tool_calls_and_reasoning_are_output() {
    let (replica, gateway) = pair().await;
    let name = r#"{"tool_calls":[{"index":0,"id":"t","type":"function","function":{"name":"f","arguments":""}}]}"#;
    let arguments = r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":1}"}}]}"#;
    let forms = [
        [delta(name, "null"), delta(arguments, "null")],
        [delta(r#"{"reasoning_content":"hm"}"#, "null"), content("a")],
        [delta(r#"{"reasoning":"hm"}"#, "null"), content("a")],
    ];
    for (outputs, n) in forms.into_iter().zip(1..) {
        let [first, second] = outputs;
        replica.plays(stream([role(), first, second, finish(), DONE.to_owned()]).every(ms(10)));

        assert!(gateway.send(&Request::stream("x")).await.is_good());

        gateway.reaches(&format!("{TTFT}_count"), &[], f64::from(n)).await;
        gateway.reaches(&format!("{ITL}_count"), &[], f64::from(n)).await;
    }
}

#[tokio::test]
async fn br_120_ttft_is_counted_for_streams_that_delivered_output_only() {
    let (replica, gateway) = pair().await;
    replica.plays(by_kind());
    for n in 0..3 {
        one_of_kind(&gateway, std::slice::from_ref(&replica), "good", n).await;
        one_of_kind(&gateway, std::slice::from_ref(&replica), "mid", n).await;
        one_of_kind(&gateway, std::slice::from_ref(&replica), "before", n).await;
    }
    replica.plays(reply(500, r#"{"error":{"message":"internal"}}"#));
    assert_eq!(gateway.send(&Request::stream("failed")).await.status, 500);
    replica.plays(stream([role(), finish(), DONE.to_owned()]));
    assert!(gateway.send(&Request::stream("no output")).await.is_good());
    replica.plays(stream([
        content("a"),
        content("b").replace("\"index\":0", "\"index\":1"),
        finish(),
        DONE.to_owned(),
    ]));
    assert!(gateway.send(&Request::chat_with("two choices", r#","n":2,"stream":true"#)).await.is_good());

    gateway.reaches("gateway_requests_total", &[], 12.0).await;
    gateway.reaches(&format!("{TTFT}_count"), &[], 7.0).await;
}

#[tokio::test]
async fn tpot_and_itl_are_what_the_documentation_says() {
    let (replica, gateway) = pair().await;
    let mut events: Vec<String> = (0..5).map(|i| content(&i.to_string())).collect();
    events.extend([finish() + &usage(5, 9) + DONE]);
    replica.plays(stream(events).every(ms(100)));

    assert!(gateway.send(&Request::stream("x")).await.is_good());

    gateway.reaches(&format!("{TPOT}_count"), &[], 1.0).await;
    let (tpot, _) = sum_and_count(&gateway, TPOT).await;
    assert!((0.045..0.15).contains(&tpot), "0.4 s from first to last output for 9 tokens is 0.4 / 8 s a token: {tpot}");
    let (itl, gaps) = sum_and_count(&gateway, ITL).await;
    assert!((gaps - 4.0).abs() < 1e-9, "five output events have four gaps: {gaps}");
    assert!((0.38..1.2).contains(&itl), "four gaps of 0.1 s: {itl}");
    gateway.reaches("gateway_output_tokens_total", &[], 9.0).await;
    let (duration, _) = sum_and_count(&gateway, "gateway_request_duration_seconds").await;
    assert!((0.5..1.5).contains(&duration), "end to end is to the last byte, 0.5 s after the first: {duration}");
}

#[tokio::test]
async fn plain_answers_are_counted_too() {
    let (replica, gateway) = pair().await;
    replica.plays(reply(
        200,
        COMPLETION.replace(r#""total_tokens":7"#, r#""total_tokens":7,"prompt_tokens_details":{"cached_tokens":4}"#),
    ));

    assert!(gateway.send(&Request::chat("x")).await.is_good());

    gateway.only_outcome("success", 1).await;
    gateway.reaches("gateway_prompt_tokens_total", &[], 5.0).await;
    gateway.reaches("gateway_output_tokens_total", &[], 2.0).await;
    gateway.reaches("gateway_cached_tokens_total", &[("source", "reported")], 4.0).await;
    gateway.reaches("gateway_requests_total", &[("model", "m"), ("endpoint", "chat")], 1.0).await;
}

#[tokio::test]
async fn a_plain_answer_in_several_writes_is_a_success() {
    let (replica, gateway) = pair().await;
    let length = COMPLETION.len().to_string();
    let head = head(200, &[("content-type", "application/json"), ("content-length", &length)]);
    replica.plays(Script::new(move |play| {
        let head = head.clone();
        async move {
            play.send(head).await?;
            for piece in COMPLETION.as_bytes().chunks(100) {
                play.pause(ms(50)).await?;
                play.send(piece).await?;
            }
            Ok(())
        }
    }));

    assert_eq!(gateway.send(&Request::chat("x")).await.text(), COMPLETION);

    gateway.only_outcome("success", 1).await;
    gateway.reaches("gateway_output_tokens_total", &[], 2.0).await;
}

#[tokio::test]
async fn br_128_each_failure_has_its_own_outcome() {
    let cases = [
        (400, "upstream_client_error"),
        (404, "upstream_client_error"),
        (413, "upstream_client_error"),
        (422, "upstream_client_error"),
        (500, "upstream_error"),
    ];
    let (replica, gateway) = pair().await;
    let mut seen: Vec<&str> = Vec::new();
    for (status, outcome) in cases {
        replica
            .plays(reply(status, format!(r#"{{"error":{{"message":"no","type":"x","param":null,"code":{status}}}}}"#)));
        assert_eq!(gateway.send(&Request::chat("x")).await.status, status, "the engine's status passes");
        seen.push(outcome);
        let count = seen.iter().filter(|one| **one == outcome).count();
        gateway.reaches("gateway_requests_total", &[("outcome", outcome)], count as f64).await;
    }
    gateway.reaches("gateway_requests_total", &[], 5.0).await;
}

#[tokio::test]
async fn the_access_log_has_one_json_line_a_request_and_no_prompt() {
    let (_replica, gateway) = pair().await;
    let request = Request::stream("a very private question").header("X-Request-Id", "log-1");

    assert!(gateway.send(&request).await.is_good());

    assert!(until(ms(5000), async || gateway.access_log().contains("log-1")).await, "the request is logged");
    let log = gateway.access_log();
    let line = log.lines().find(|line| line.contains("log-1")).unwrap();
    let object: serde_json::Value = serde_json::from_str(line).unwrap();
    assert!(object.is_object() && line.contains("success"), "a JSON object with the outcome: {line}");
    assert!(!(log + &gateway.program_log()).contains("private"), "prompts are in no log");
}
