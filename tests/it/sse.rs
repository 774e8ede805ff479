//! Theme sse: streams arrive byte for byte and at once, and what they say is counted right.
//!
//! All cases of the theme are here; BR-004's and BR-005's parser checks are unit tests beside the observer.

use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use crate::support::{
    check::same,
    client::{Answer, Request},
    gateway::{TestGateway, pair},
    ms,
    replica::{
        ScriptedReplica,
        script::{LAST, Script, Stream, stream},
    },
    sse::{DONE, content, delta, event, finish, payloads, role, text, usage, usages},
};

const TTFT: &str = "gateway_time_to_first_token_seconds";

/// Plays the writes, and judges that they arrive byte for byte.
async fn relayed(
    replica: &ScriptedReplica,
    gateway: &TestGateway,
    request: &Request,
    play: (Vec<String>, Stream),
) -> Answer {
    let (writes, play) = play;
    replica.plays(play);
    let answer = gateway.send(request).await;
    same(&answer, writes.concat(), "relay");
    answer
}

fn plain(writes: impl IntoIterator<Item = String>) -> (Vec<String>, Stream) {
    let writes: Vec<String> = writes.into_iter().collect();
    (writes.clone(), stream(writes))
}

/// Plays chunks after a pause each, and notes when each was written.
fn noting(chunks: Vec<Vec<u8>>, gap: std::time::Duration) -> (Script, Arc<Mutex<Vec<Instant>>>) {
    let written = Arc::new(Mutex::new(Vec::new()));
    let notes = written.clone();
    let script = Script::new(move |play| {
        let (chunks, notes) = (chunks.clone(), notes.clone());
        async move {
            play.head().await?;
            for chunk in &chunks {
                play.pause(gap).await?;
                notes.lock().unwrap().push(Instant::now());
                play.chunk(chunk).await?;
            }
            play.send(LAST).await
        }
    });
    (script, written)
}

/// How much later than written each chunk's last byte arrived, in milliseconds.
fn lags(answer: &Answer, chunks: &[Vec<u8>], written: &Mutex<Vec<Instant>>) -> Vec<u128> {
    let mut offset = 0;
    let times = written.lock().unwrap().clone();
    let lag = chunks.iter().zip(times).map(|(chunk, at)| {
        offset += chunk.len();
        answer.time_of(offset - 1).saturating_duration_since(at).as_millis()
    });
    lag.collect()
}

#[tokio::test]
async fn br_001_utf8_split_between_writes_survives() {
    let (replica, gateway) = pair().await;
    let writes = [role(), content("北京 café"), content("🦀 ok Ω"), content("𝔘𝔫𝔦"), finish(), DONE.to_owned()];
    let whole = writes.concat();

    replica.plays(stream(writes).in_pieces_of(1));
    same(&gateway.send(&Request::stream("x")).await, &whole, "byte by byte");

    let first = content("北").into_bytes();
    let at = first.iter().position(|byte| *byte == 0xe5).unwrap();
    for cut in at..at + 4 {
        let (head, tail) = first.split_at(cut);
        replica.plays(stream([head, tail, DONE.as_bytes()]).every(ms(20)));
        let answer = gateway.send(&Request::stream("x")).await;
        same(&answer, [&first, DONE.as_bytes()].concat(), &format!("cut at {cut}"));
        assert!(!answer.text().contains('\u{fffd}'), "no character may be replaced");
    }
    gateway.only_outcome("success", 5).await;
}

#[tokio::test]
async fn br_003_partial_events_are_relayed_at_once() {
    let (replica, gateway) = pair().await;
    let chunks = [
        role().as_str(),
        "da",
        "ta: {\"choices\":[{\"index\":0,\"delta\":{\"con",
        "tent\":\"a\"}}]}\n",
        "\ndata: [DONE]\n\n",
    ]
    .map(|chunk| chunk.as_bytes().to_vec())
    .to_vec();
    let (script, written) = noting(chunks.clone(), ms(120));
    replica.plays(script);

    let answer = gateway.send(&Request::stream("x")).await;

    same(&answer, chunks.concat(), "fragments");
    let lag = lags(&answer, &chunks, &written);
    assert!(lag.iter().all(|lag| *lag < 100), "a fragment must not wait for the next one 120 ms later: {lag:?} ms");
    gateway.reaches(&format!("{TTFT}_count"), &[], 1.0).await;
    gateway.only_outcome("success", 1).await;
}

#[tokio::test]
async fn br_003_a_partial_first_event_is_not_held_to_its_end() {
    let (replica, gateway) = pair().await;
    let chunks = ["da", "ta: {\"choices\":[{\"index\":0,\"delta\":{\"con", "tent\":\"a\"}}]}\n", "\ndata: [DONE]\n\n"]
        .map(|chunk| chunk.as_bytes().to_vec())
        .to_vec();
    let (script, written) = noting(chunks.clone(), ms(150));
    replica.plays(script);

    let answer = gateway.send(&Request::stream("x")).await;

    same(&answer, chunks.concat(), "fragments");
    let lag = lags(&answer, &chunks, &written);
    assert!(lag.iter().all(|lag| *lag < 130), "a fragment must not wait for the next one 150 ms later: {lag:?} ms");
    gateway.reaches(&format!("{TTFT}_count"), &[], 1.0).await;
}

#[tokio::test]
async fn br_004_any_line_end_and_several_events_in_one_write() {
    let (replica, gateway) = pair().await;
    let line = |letter: &str| format!(r#"data: {{"choices":[{{"index":0,"delta":{{"content":"{letter}"}}}}]}}"#);
    for end in ["\r\n", "\n", "\r"] {
        let whole = format!("{}{end}{end}{}{end}{end}data: [DONE]{end}{end}", line("a"), line("b"));
        relayed(&replica, &gateway, &Request::stream("x"), plain([whole])).await;
    }
    let mixed = format!("{}\r\n\n{}\n\r\ndata: [DONE]\r\r", line("a"), line("b"));
    relayed(&replica, &gateway, &Request::stream("x"), plain([mixed])).await;

    gateway.only_outcome("success", 4).await;
    gateway.reaches(&format!("{TTFT}_count"), &[], 4.0).await;
    gateway.reaches("gateway_inter_token_latency_seconds_count", &[], 4.0).await;
}

#[tokio::test]
async fn br_005_one_event_over_several_data_lines() {
    let (replica, gateway) = pair().await;
    let split = "event: message\ndata: {\"choices\":[{\"index\":0,\ndata: \"delta\":\ndata: {\"content\":\"a\"}}]}\n\n"
        .to_owned();

    relayed(&replica, &gateway, &Request::stream("x"), plain([split, DONE.to_owned()])).await;

    gateway.reaches(&format!("{TTFT}_count"), &[], 1.0).await;
    gateway.only_outcome("success", 1).await;
}

#[tokio::test]
async fn br_007_comments_pass_and_are_no_tokens() {
    let (replica, gateway) = pair().await;
    let comment = ": PROCESSING\n\n".to_owned();
    let (writes, play) = plain([comment.clone(), comment, role(), content("a"), finish(), DONE.to_owned()]);

    relayed(&replica, &gateway, &Request::stream("x"), (writes, play.every(ms(100)))).await;

    gateway.reaches(&format!("{TTFT}_count"), &[], 1.0).await;
    let ttft = gateway.metrics().await.total(&format!("{TTFT}_sum"), &[]);
    assert!((0.28..1.5).contains(&ttft), "TTFT is taken at the first text, 0.3 s after the send, and was {ttft} s");
}

#[tokio::test]
async fn br_008_empty_data_fields_pass_and_are_no_tokens() {
    let (replica, gateway) = pair().await;
    let writes =
        [content("a"), "data:\n\n".to_owned(), "data: \n\n".to_owned(), content("b"), finish(), DONE.to_owned()];

    relayed(&replica, &gateway, &Request::stream("x"), plain(writes)).await;

    gateway.only_outcome("success", 1).await;
    gateway.reaches("gateway_inter_token_latency_seconds_count", &[], 1.0).await;
}

#[tokio::test]
async fn br_009_a_usage_only_chunk_with_empty_choices() {
    let (replica, gateway) = pair().await;
    let writes = [role(), content("a"), finish(), usage(5, 2), DONE.to_owned()];

    relayed(&replica, &gateway, &Request::stream_with_usage("x"), plain(writes)).await;

    gateway.only_outcome("success", 1).await;
    gateway.reaches("gateway_prompt_tokens_total", &[], 5.0).await;
    gateway.reaches("gateway_output_tokens_total", &[], 2.0).await;
}

#[tokio::test]
async fn br_011_exactly_one_usage_chunk_before_done() {
    let (_replica, gateway) = pair().await;

    let answer = gateway.send(&Request::stream_with_usage("x")).await;

    let found = usages(&answer.body);
    assert_eq!(found.len(), 1, "the replica sent one usage chunk: {}", answer.text());
    assert_eq!(found[0].1, 0, "a usage chunk has no choices");
    let payloads = payloads(&answer.body);
    assert_eq!(payloads.last().map(String::as_str), Some("[DONE]"));
    assert!(payloads[payloads.len() - 2].contains("usage"), "usage is the last chunk before [DONE]");
}

#[tokio::test]
async fn br_012_the_usage_chunk_is_only_for_clients_that_asked() {
    let (replica, gateway) = pair().await;
    let visible = [role(), content("hi"), content(" there"), finish()].concat();
    let options = |text: &str| Request::chat_with("x", &format!(r#","stream":true,"stream_options":{text}"#));
    let cases = [
        (Request::stream("x"), false),
        (options(r#"{"include_usage":false,"x_other":1}"#), false),
        (options("null"), false),
        (options("{}"), false),
        (options(r#"{"x_other": [1, 2.50] , "include_usage" : true}"#), true),
    ];

    for (request, asked) in &cases {
        let usage = if *asked { usage(5, 2) } else { String::new() };
        let answer = gateway.send(request).await;
        let note = String::from_utf8_lossy(request.sent_body()).into_owned();
        same(&answer, format!("{visible}{usage}{DONE}"), &note);
    }

    let posts = replica.posts();
    assert!(posts[1].has(r#""x_other":1"#), "other keys of stream_options stay");
    assert_eq!(posts[4].body(), cases[4].0.sent_body(), "a client that asked is not rewritten");
    gateway.reaches("gateway_output_tokens_total", &[], 10.0).await;
    gateway.only_outcome("success", 5).await;
}

#[tokio::test]
async fn br_012_continuous_usage_alone_does_not_turn_usage_on() {
    let (replica, gateway) = pair().await;
    let with_usage = r#"data: {"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}"#;
    replica.plays(Script::new(move |play| async move {
        let asked = play.request.json()["stream_options"]["include_usage"] == true;
        let chunk = if asked { format!("{with_usage}\n\n") } else { content("a") };
        Script::from(stream([chunk, finish(), DONE.to_owned()])).run(play).await
    }));

    let request = Request::chat_with("x", r#","stream":true,"stream_options":{"continuous_usage_stats":true}"#);
    let answer = gateway.send(&request).await;

    same(
        &answer,
        content("a") + &finish() + DONE,
        "vLLM gives no usage for continuous_usage_stats alone, and the client must see none",
    );
}

#[tokio::test]
async fn br_013_usage_is_read_whatever_the_framing() {
    let (replica, gateway) = pair().await;
    let numbers = usage(5, 2);
    let (head, tail) = numbers.split_at(60);
    let running = delta(r#"{"content":"a"}"#, "null")
        .replace("]}", r#"],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}"#);
    let done = DONE.to_owned();
    let forms = [
        vec![content("a"), finish() + &numbers + DONE],
        vec![content("a"), finish(), numbers.clone(), done.clone()],
        vec![content("a"), finish(), head.to_owned(), tail.to_owned(), done.clone()],
        vec![running, finish(), numbers.clone(), done],
    ];

    for (writes, n) in forms.into_iter().zip(1..) {
        let (writes, play) = plain(writes);
        relayed(&replica, &gateway, &Request::stream_with_usage("x"), (writes, play.every(ms(60)))).await;
        gateway.reaches("gateway_prompt_tokens_total", &[], f64::from(5 * n)).await;
        gateway.reaches("gateway_output_tokens_total", &[], f64::from(2 * n)).await;
    }
}

#[tokio::test]
async fn br_015_done_reaches_the_client_at_once() {
    let (replica, gateway) = pair().await;
    let written = Arc::new(Mutex::new(None));
    let note = written.clone();
    replica.plays(Script::new(move |play| {
        let note = note.clone();
        async move {
            play.head().await?;
            play.chunk(content("a") + &finish()).await?;
            play.pause(ms(100)).await?;
            *note.lock().unwrap() = Some(Instant::now());
            play.chunk(DONE).await?;
            play.pause(ms(1000)).await?;
            play.send(LAST).await
        }
    }));

    let answer = gateway.send(&Request::stream("x")).await;

    same(&answer, content("a") + &finish() + DONE, "relay");
    let lag = answer.time_of_text("[DONE]") - written.lock().unwrap().unwrap();
    assert!(lag < ms(300), "[DONE] must not wait for the end of the body a second later, and came after {lag:?}");
    gateway.idle().await;
}

#[tokio::test]
async fn br_016_a_stream_without_done_that_ends_cleanly_is_a_success() {
    let (replica, gateway) = pair().await;
    let completed = "event: response.completed\n".to_owned()
        + &event(r#"{"type":"response.completed","response":{"usage":{"input_tokens":3,"output_tokens":1}}}"#);
    let response = Request::post("/v1/responses", r#"{"model":"m","input":"hi","stream":true}"#);

    relayed(&replica, &gateway, &response, plain([completed])).await;
    relayed(&replica, &gateway, &Request::stream("x"), plain([role(), content("a"), finish()])).await;

    gateway.only_outcome("success", 2).await;
}

#[tokio::test]
async fn br_017_small_events_are_not_buffered() {
    let (replica, gateway) = pair().await;
    let chunks: Vec<Vec<u8>> = (0..40).map(|i| content(&format!("<{i}>")).into_bytes()).collect();
    let (script, written) = noting(chunks.clone(), ms(25));
    replica.plays(script);

    let answer = gateway.send(&Request::stream("x")).await;

    same(&answer, chunks.concat(), "relay");
    let mut lag = lags(&answer, &chunks, &written);
    lag.sort_unstable();
    assert!(lag[20] < 20, "the median event must arrive within 20 ms of its write: {lag:?} ms");
    assert!(lag[38] < 150, "no event may wait for later ones: {lag:?} ms");
}

#[tokio::test]
async fn br_018_no_space_after_data_and_other_fields() {
    let (replica, gateway) = pair().await;
    let whole = "retry: 3000\nid: 7\nevent: message\ndata:{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\ndata:[DONE]\n\n";

    let answer = relayed(&replica, &gateway, &Request::stream("x"), plain([whole.to_owned()])).await;

    assert_eq!(text(&answer.body), "a");
    gateway.reaches(&format!("{TTFT}_count"), &[], 1.0).await;
    gateway.only_outcome("success", 1).await;
}
