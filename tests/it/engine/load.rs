//! Load: disconnects, full queues, slow readers, full pools.

use std::time::Duration;

use gateway::{
    simserver::Flavor,
    simulator::{Event, QueueLimit},
};
use serde_json::{Value, json};

use super::{
    client::{metric, open, post},
    eventually, start, tiny,
};

fn completion(prompt: &str, max_tokens: usize, stream: bool) -> Value {
    json!({"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true, "stream": stream})
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_slot_and_blocks() {
    for flavor in [Flavor::Vllm, Flavor::Sglang] {
        for stream in [true, false] {
            let engine = start(tiny(flavor)).await;
            let exchange = open(engine.addr, "/v1/completions", &completion("a b c", 4000, stream)).await;
            eventually("it runs", || engine.stats().running == 1).await;

            drop(exchange);

            eventually("the slot is free", || engine.stats().running == 0).await;
            assert_eq!(engine.stats().used_blocks, 0);
            assert_eq!(engine.stats().aborted, 1);
        }
    }
}

#[tokio::test]
async fn five_hundred_aborted_streams_leave_every_gauge_at_zero() {
    let vllm = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"];
    let sglang = ["sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage"];
    for (flavor, gauges) in [(Flavor::Vllm, vllm), (Flavor::Sglang, sglang)] {
        let engine = start(tiny(flavor)).await;
        for round in 0..5 {
            let mut open_ones = Vec::new();
            for at in 0..50 {
                let body = completion(&format!("{round} {at}"), 3000, true);
                open_ones.push(open(engine.addr, "/v1/completions", &body).await);
            }
            open_ones[0].until("data: ").await;
            drop(open_ones);
        }

        eventually("all are gone", || engine.stats().running + engine.stats().waiting == 0).await;
        for gauge in gauges {
            assert_eq!(metric(engine.addr, gauge).await.to_bits(), 0f64.to_bits(), "{gauge}");
        }
    }
}

#[tokio::test]
async fn a_full_queue_is_503_but_sglang_tells_a_stream_in_a_200() {
    for flavor in [Flavor::Vllm, Flavor::Sglang] {
        let mut config = tiny(flavor);
        config.engine.limits.max_num_seqs = 1;
        config.engine.limits.queue = if flavor == Flavor::Vllm { QueueLimit::Total(2) } else { QueueLimit::Waiting(1) };
        let engine = start(config).await;
        let running = open(engine.addr, "/v1/completions", &completion("one", 4000, true)).await;
        eventually("one runs", || engine.stats().running == 1).await;
        let waiting = open(engine.addr, "/v1/completions", &completion("two", 4000, true)).await;
        eventually("one waits", || engine.stats().waiting == 1).await;

        let whole = post(engine.addr, "/v1/completions", &completion("three", 10, false)).await;
        let stream = post(engine.addr, "/v1/completions", &completion("four", 10, true)).await;

        assert_eq!(whole.status, 503);
        assert!(whole.body.contains("\"code\":503"), "{}", whole.body);
        match flavor {
            Flavor::Vllm => assert_eq!((stream.status, stream.body), (503, whole.body)),
            Flavor::Sglang => {
                assert_eq!(stream.status, 200);
                assert_eq!(
                    stream.body,
                    "data: {\"error\": {\"object\": \"error\", \"message\": \"The request queue is full.\", \"type\": \
                     \"SERVICE_UNAVAILABLE\", \"param\": null, \"code\": 503}}\n\ndata: [DONE]\n\n"
                );
            }
        }
        drop((running, waiting));
    }
}

#[tokio::test]
async fn a_reader_that_sleeps_does_not_hold_the_engine_up() {
    let engine = start(tiny(Flavor::Vllm)).await;
    let mut body = completion("x", 300, true);
    body["stream_options"] = json!({"include_usage": true});
    // Never read: what it is owed is counters, and what fits into socket buffers.
    let sleeper = open(engine.addr, "/v1/completions", &body).await;

    let quick = post(engine.addr, "/v1/completions", &completion("y", 20, false)).await;
    assert_eq!(quick.status, 200);
    eventually("the sleeper's tokens are all generated", || engine.stats().finished == 2).await;

    let answer = sleeper.finish().await;
    assert!(answer.body.contains("\"completion_tokens\":300}"), "{}", answer.body);
}

#[tokio::test]
async fn a_full_pool_preempts_and_all_answers_are_whole() {
    let mut config = tiny(Flavor::Vllm);
    // Four prompts of about 400 tokens and 600 to come, in a pool of 2,048.
    config.max_model_len = 2048;
    config.engine.kv_tokens = 2048;
    config.engine.timing = super::timing(1);
    let engine = start(config).await;
    let mut answers = Vec::new();
    for at in 0..4 {
        let prompt = format!(" p{at} {}", " storm".repeat(400));
        answers.push(open(engine.addr, "/v1/completions", &completion(&prompt, 600, false)).await);
    }
    for answer in answers {
        let answer = answer.finish().await.json();
        assert_eq!(answer["usage"]["completion_tokens"], 600);
    }

    assert!(metric(engine.addr, "vllm:num_preemptions_total").await >= 1.0);
    assert_eq!(engine.stats().used_blocks, 0);
}

#[tokio::test]
async fn several_engines_share_a_runtime_and_stop_alone() {
    let (one, two) = (start(tiny(Flavor::Vllm)).await, start(tiny(Flavor::Vllm)).await);
    let addr = one.addr;

    one.shutdown().await;

    assert!(tokio::net::TcpStream::connect(addr).await.is_err(), "nothing listens any more");
    assert_eq!(post(two.addr, "/v1/completions", &completion("x", 1, false)).await.status, 200);
}

#[tokio::test]
async fn tokens_come_at_the_pace_of_the_model_not_of_the_timer() {
    let mut config = tiny(Flavor::Vllm);
    // 3.1 ms a step: timers fire on whole milliseconds, so a driver that slept after each step would take 4.
    config.engine.timing = super::timing(3);
    let engine = start(config).await;

    let mut exchange = open(engine.addr, "/v1/completions", &completion("x", 401, true)).await;
    let first = exchange.until("data: ").await;
    let all = exchange.until("[DONE]").await;

    let each = (all - first).as_secs_f64() / 400.0;
    assert!((0.0030..0.0038).contains(&each), "{each} s a token");
}

#[test]
fn virtual_time_needs_no_clock() {
    use gateway::simulator::{Prompt, Request, SimEngine};
    let mut engine = SimEngine::new(&tiny(Flavor::Vllm).engine);
    let prompt = Prompt { tokens: 640, hashes: (1..=20).collect(), ..Prompt::default() };
    engine.submit(Request { prompt, output_tokens: 3, output_seed: 1 }, Duration::ZERO).unwrap();

    let mut clock = Duration::ZERO;
    let mut tokens = Vec::new();
    while let Some((duration, events)) = engine.step() {
        clock += duration;
        tokens.extend(events.iter().filter(|event| matches!(event, Event::Token { .. })).map(|_| clock.as_micros()));
    }

    // 640 tokens at 100,000 a second and 0.1 ms; then 2.1 ms a token.
    assert_eq!(tokens, [6500, 8600, 10_700]);
}
