//! Each figure against the truth. Names carry the number of the known error in other tools that they guard against.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use gateway::loadtest::{
    body::Api,
    client::{Call, Client},
    clock::Clock,
    measure::{Figures, Rules, gaps},
    record::{Outcome, Record},
};

use super::server::{DONE, FINISH, ROLE, SSE, Scripted, Step, Truth, chat, end, stream, usage};

/// One request, followed to its end.
pub(super) fn ask_with(server: &Scripted, api: Api, rules: Rules, limit: Duration) -> Record {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        gateway::upstream::tls::install_provider();
        let clock = Clock::start();
        let client = Client::new(format!("http://{}", server.address).parse().unwrap(), clock, rules).unwrap();
        client.open(1).await;
        let call = Call {
            path: api.path(),
            body: Bytes::from_static(b"{}"),
            key: None,
            id: "x".into(),
            cancel_after: None,
            slow: false,
        };
        let mut record = Record { intended: clock.now(), started: clock.now(), ..Record::default() };
        if tokio::time::timeout(limit, client.exchange(&call, &mut record)).await.is_err() {
            record.outcome = Outcome::Timeout;
            record.ended = clock.now();
        }
        // The server notes the truth after its last write.
        tokio::time::sleep(Duration::from_millis(5)).await;
        record
    })
}

fn ask(server: &Scripted) -> Record {
    ask_with(server, Api::Chat, Rules::Own, Duration::from_secs(10))
}

fn close(shown: f64, truth: f64) -> bool {
    (shown - truth).abs() <= (truth * 0.01).max(1.0)
}

/// Plays a script a few times until the check holds; the last answer is shown if it never does.
fn agree(script: Vec<Step>, check: impl Fn(&Figures, &Record, &Truth) -> bool) {
    agree_by(script, Api::Chat, Rules::Own, check);
}

fn agree_by(script: Vec<Step>, api: Api, rules: Rules, check: impl Fn(&Figures, &Record, &Truth) -> bool) {
    let server = Scripted::start(script);
    let mut last = String::new();
    for _ in 0..8 {
        let record = ask_with(&server, api, rules, Duration::from_secs(10));
        let (figures, truth) = (Figures::of(&record, rules), server.truth());
        if check(&figures, &record, &truth) {
            return;
        }
        last = format!("{figures:?}\n{record:?}\n{truth:?}");
    }
    panic!("{last}");
}

fn words(count: usize) -> Vec<String> {
    (0..count).map(|at| chat(&format!("w{at} "))).collect()
}

/// Time to first token, per token and to the end are those of the server.
fn right(tokens: u64) -> impl Fn(&Figures, &Record, &Truth) -> bool {
    move |figures, record, truth| {
        record.outcome == Outcome::Ok
            && close(figures.ttft.unwrap(), truth.ttft())
            && close(figures.tpot.unwrap(), truth.span() / (tokens - 1) as f64)
            && close(figures.e2el.unwrap(), truth.ttft() + truth.span())
    }
}

#[test]
fn c1_c2_a_role_chunk_at_once_is_no_token() {
    let mut script = stream(51.0, 10.0, &words(8), &end(8));
    script.insert(1, Step::Other(ROLE.into()));
    agree(script.clone(), |figures, record, truth| {
        right(8)(figures, record, truth) && figures.ttfe.unwrap() < 20.0 && figures.ttft.unwrap() > 50.0
    });
    // The definitions of `vllm bench serve` count it, as asked.
    agree_by(script, Api::Chat, Rules::Vllm, |figures, _, truth| {
        figures.ttft.unwrap() < 20.0
            && close(figures.tpot.unwrap() * 7.0, truth.ttft() + truth.span() - figures.ttft.unwrap())
    });
}

#[test]
fn d5_four_tokens_a_chunk_are_four_tokens() {
    let four = |at: usize| {
        let text = chat("a b c d ");
        text.replace(
            "}]}\n",
            &format!("}}],\"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":{}}}}}\n", 4 * (at + 1)),
        )
    };
    let counted: Vec<String> = (0..6).map(four).collect();
    agree(stream(30.0, 40.0, &counted, &end(24)), |figures, record, truth| {
        // 24 tokens, the first four came with the first chunk.
        close(figures.tpot.unwrap() * 20.0, truth.span()) && gaps(record).all(|(_, tokens)| tokens == 4)
    });
    let uncounted: Vec<String> = (0..6).map(|_| chat("a b c d ")).collect();
    agree(stream(30.0, 40.0, &uncounted, &end(24)), |figures, _, truth| {
        close(figures.tpot.unwrap() * 23.0, truth.span())
    });
}

#[test]
fn c11_reasoning_is_output_and_the_first_answer_token_is_told_apart() {
    let reasoning = |key: &str| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"{key}\":\"hm\"}}}}]}}\n\n");
    for key in ["reasoning_content", "reasoning"] {
        let only: Vec<String> = (0..5).map(|_| reasoning(key)).collect();
        agree(stream(30.0, 10.0, &only, &end(5)), |figures, record, truth| {
            right(5)(figures, record, truth) && figures.ttfo.is_none()
        });
        let mut mixed = only.clone();
        mixed.push(chat("so"));
        agree(stream(30.0, 10.0, &mixed, &end(6)), |figures, record, truth| {
            right(6)(figures, record, truth) && close(figures.ttfo.unwrap(), *truth.tokens.last().unwrap())
        });
    }
}

#[test]
fn c12_without_usage_the_chunks_are_counted() {
    let tail = vec![Step::Other(FINISH.into()), Step::Other(DONE.into()), Step::End];
    agree(stream(30.0, 10.0, &words(9), &tail), |figures, record, truth| {
        right(9)(figures, record, truth) && record.usage.output.is_none() && record.output_tokens() == 9
    });
}

#[test]
fn usage_inside_a_choices_chunk_is_read() {
    let last = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":12}}\n\n";
    let tail = vec![Step::Other(last.into()), Step::Other(DONE.into()), Step::End];
    agree(stream(30.0, 10.0, &words(6), &tail), |figures, record, truth| {
        record.output_tokens() == 12 && close(figures.tpot.unwrap() * 11.0, truth.span())
    });
}

#[test]
fn empty_deltas_make_no_gap() {
    let mut script = vec![Step::Raw(SSE.into()), Step::Pause(40.0)];
    for word in words(4) {
        script.extend([Step::Token(word), Step::Pause(10.0), Step::Other(chat("")), Step::Pause(10.0)]);
    }
    script.extend(end(4));
    agree(script, |figures, record, truth| {
        close(figures.tpot.unwrap() * 3.0, truth.span())
            && record.chunks.len() == 4
            && gaps(record).zip(truth.tokens.windows(2)).all(|((gap, _), pair)| close(gap, pair[1] - pair[0]))
    });
}

#[test]
fn pings_are_no_events() {
    let mut script = stream(50.0, 10.0, &words(4), &end(4));
    script.insert(1, Step::Other(": ping\n\n".into()));
    script.insert(4, Step::Other(": ping\n\n".into()));
    agree(script, |figures, record, truth| {
        right(4)(figures, record, truth) && close(figures.ttfe.unwrap(), truth.ttft())
    });
}

#[test]
fn a_character_and_an_event_may_be_split_anywhere() {
    let event = chat("né 🦀");
    let (bytes, at) = (event.as_bytes(), event.find('🦀').unwrap() + 2);
    let mut script = vec![Step::Raw(SSE.into()), Step::Pause(30.0), Step::Token(chat("a")), Step::Pause(20.0)];
    script.extend([Step::Part(bytes[..at].to_vec()), Step::Pause(15.0), Step::Part(bytes[at..].to_vec())]);
    script.extend(end(2));
    agree(script, |figures, record, truth| {
        // The token is there when its event is whole: 35 ms after the first.
        record.outcome == Outcome::Ok
            && record.chunks.len() == 2
            && close(figures.ttft.unwrap(), truth.ttft())
            && figures.max_gap.is_some_and(|gap| (34.0..40.0).contains(&gap))
    });
}

#[test]
fn c24_the_answer_ends_with_its_last_token_and_not_with_the_usage_chunk() {
    let mut tail = end(4);
    tail.insert(1, Step::Pause(80.0));
    agree(stream(30.0, 10.0, &words(4), &tail), right(4));
}

#[test]
fn a_reset_after_done_is_no_failure() {
    let tail = vec![
        Step::Other(FINISH.into()),
        Step::Other(usage(4)),
        Step::Other(DONE.into()),
        Step::Pause(20.0),
        Step::Reset,
    ];
    agree(stream(30.0, 10.0, &words(4), &tail), right(4));
}

#[test]
fn a_reset_or_an_end_before_the_finish_is_one() {
    let broken = ask(&Scripted::start(stream(10.0, 5.0, &words(4), &[Step::Pause(20.0), Step::Reset])));
    assert_eq!((broken.outcome, broken.chunks.len()), (Outcome::Broken, 4), "{broken:?}");
    let truncated = ask(&Scripted::start(stream(10.0, 5.0, &words(4), &[Step::End])));
    assert_eq!(truncated.outcome, Outcome::Truncated, "{truncated:?}");
    assert!(Figures::of(&truncated, Rules::Own).e2el.is_none());
}

#[test]
fn c24_an_error_event_in_the_stream_is_a_failure_with_its_words() {
    let error = "event: error\ndata: {\"error\":{\"message\":\"engine died\",\"code\":500}}\n\n";
    let tail = [Step::Other(error.into()), Step::Other(DONE.into()), Step::End];
    let record = ask(&Scripted::start(stream(10.0, 5.0, &words(3), &tail)));
    assert_eq!(record.outcome, Outcome::ErrorEvent);
    assert!(record.error.unwrap().contains("engine died"));
}

#[test]
fn c22_a_refusal_keeps_its_status_its_delay_and_its_end() {
    let refusal = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 3\r\ncontent-type: application/json\r\ncontent-length: 27\r\n\r\n{\"error\":{\"message\":\"full\"}}";
    let record = ask(&Scripted::start(vec![Step::Pause(20.0), Step::Raw(refusal.replace("27", "28"))]));
    assert_eq!(
        (record.outcome, record.status, record.retry_after),
        (Outcome::Status, Some(429), Some(3.0)),
        "{record:?}"
    );
    assert!(record.ended > record.written.unwrap() && record.error.unwrap().contains("full"));
}

#[test]
fn c18_an_answer_of_one_token_divides_nothing() {
    agree(stream(40.0, 0.0, &words(1), &end(1)), |figures, record, truth| {
        record.outcome == Outcome::Ok && figures.tpot.is_none() && close(figures.ttft.unwrap(), truth.ttft())
    });
}

#[test]
fn c10_an_answer_without_tokens_has_no_time_to_first_token() {
    let record = ask(&Scripted::start(stream(10.0, 0.0, &[], &end(0))));
    assert_eq!(record.outcome, Outcome::NoTokens);
    assert_eq!(Figures::of(&record, Rules::Own).ttft, None);
}

#[test]
fn c26_a_stalled_stream_times_out_and_keeps_what_came() {
    let server = Scripted::start(stream(20.0, 10.0, &words(3), &[Step::Pause(1500.0), Step::End]));
    let record = ask_with(&server, Api::Chat, Rules::Own, Duration::from_millis(300));
    let figures = Figures::of(&record, Rules::Own);
    assert_eq!((record.outcome, record.chunks.len()), (Outcome::Timeout, 3));
    assert!(figures.ttft.is_some() && figures.e2el.is_none() && record.ended >= 300_000_000);
}

#[test]
fn an_answer_that_is_no_stream_is_refused() {
    let plain = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    assert_eq!(ask(&Scripted::start(vec![Step::Raw(plain.into())])).outcome, Outcome::NotAStream);
}

#[test]
fn every_endpoint_is_understood() {
    let text = |word: &str| format!("data: {{\"choices\":[{{\"index\":0,\"text\":\"{word}\"}}]}}\n\n");
    let completions = stream(30.0, 10.0, &[text("a"), text("b"), text("c")], &end(3));
    agree_by(completions, Api::Completions, Rules::Own, right(3));

    let delta = |word: &str| {
        format!(
            "event: response.output_text.delta\ndata: {{\"type\":\"response.output_text.delta\",\"delta\":\"{word}\"}}\n\n"
        )
    };
    let over = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":5,\"output_tokens\":3}}}\n\n";
    let mut responses =
        stream(30.0, 10.0, &[delta("a"), delta("b"), delta("c")], &[Step::Other(over.into()), Step::End]);
    responses.insert(
        1,
        Step::Other("event: response.created\ndata: {\"type\":\"response.created\",\"response\":{}}\n\n".into()),
    );
    agree_by(responses, Api::Responses, Rules::Own, right(3));

    let block = |word: &str| {
        format!(
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{{\"type\":\"text_delta\",\"text\":\"{word}\"}}}}\n\n"
        )
    };
    let stop = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"max_tokens\"},\"usage\":{\"output_tokens\":3}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let mut messages =
        stream(30.0, 10.0, &[block("a"), block("b"), block("c")], &[Step::Other(stop.into()), Step::End]);
    messages.insert(1, Step::Other("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":0}}}\n\n".into()));
    agree_by(messages, Api::Messages, Rules::Own, |figures, record, truth| {
        right(3)(figures, record, truth) && record.usage.prompt == Some(9)
    });
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test starves a runtime on purpose")]
fn c15_a_read_that_comes_late_does_not_move_the_figures() {
    // Nothing reads for 60 ms after the first token came; the kernel's time is what counts.
    let server = Scripted::start(stream(30.0, 200.0, &words(2), &end(2)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (record, lag) = runtime.block_on(async {
        gateway::upstream::tls::install_provider();
        let clock = Clock::start();
        let client =
            Arc::new(Client::new(format!("http://{}", server.address).parse().unwrap(), clock, Rules::Own).unwrap());
        client.open(1).await;
        let call = Call {
            path: "/v1/chat/completions",
            body: Bytes::new(),
            key: None,
            id: "x".into(),
            cancel_after: None,
            slow: false,
        };
        let task = tokio::spawn(async move {
            let mut record = Record::default();
            client.exchange(&call, &mut record).await;
            record
        });
        // Blocks the only thread of the runtime.
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        std::thread::sleep(Duration::from_millis(90));
        let record: Record = task.await.unwrap();
        let lag = record.read_lag;
        (record, lag)
    });
    let (figures, truth) = (Figures::of(&record, Rules::Own), server.truth());
    assert!(lag.is_some_and(|lag| lag > 20_000_000), "{record:?}");
    assert!((figures.ttft.unwrap() - truth.ttft()).abs() < 15.0, "{figures:?} {truth:?}");
}
