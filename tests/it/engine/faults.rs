//! Failures on request, shaped as the captured ones.

use std::time::Duration;

use gateway::simserver::{Flavor, SimConfig};
use serde_json::json;
use tokio::time::timeout;

use super::{
    client::{get, open, post},
    eventually, start, tiny,
};

fn with(flavor: Flavor, set: impl FnOnce(&mut SimConfig)) -> SimConfig {
    let mut config = tiny(flavor);
    set(&mut config);
    config
}

fn body(stream: bool) -> serde_json::Value {
    json!({"model": "tiny", "prompt": "x", "max_tokens": 2000, "ignore_eos": true, "stream": stream})
}

#[tokio::test]
async fn fail_after_answers_500_from_then_on() {
    let engine = start(with(Flavor::Vllm, |config| config.faults.fail_after = Some(1))).await;
    let short = json!({"prompt": "x", "max_tokens": 1});

    assert_eq!(post(engine.addr, "/v1/completions", &short).await.status, 200);
    assert_eq!(post(engine.addr, "/v1/completions", &short).await.status, 500);
    assert_eq!(get(engine.addr, "/health").await.status, 200);
}

#[tokio::test]
async fn a_hung_engine_is_healthy_in_vllm_and_silent_in_sglang() {
    for flavor in [Flavor::Vllm, Flavor::Sglang] {
        let engine = start(with(flavor, |config| config.faults.hang_after = Some(0))).await;
        let mut exchange = open(engine.addr, "/v1/completions", &body(true)).await;
        eventually("it waits", || engine.stats().waiting == 1).await;

        match flavor {
            Flavor::Vllm => {
                exchange.until("\r\n\r\n").await;
                assert_eq!(get(engine.addr, "/health").await.status, 200);
            }
            Flavor::Sglang => {
                let health = timeout(Duration::from_millis(300), get(engine.addr, "/health")).await;
                assert!(health.is_err(), "its health check runs through the engine");
            }
        }
        let more = timeout(Duration::from_millis(200), exchange.read()).await;
        assert!(more.is_err(), "no token comes");
    }
}

#[tokio::test]
async fn a_dying_engine_ends_streams_with_an_error_event_and_done_and_then_is_gone() {
    let engine = start(with(Flavor::Vllm, |config| config.faults.die_after_tokens = Some(20))).await;
    let whole = open(engine.addr, "/v1/completions", &body(false)).await;
    let stream = open(engine.addr, "/v1/completions", &body(true)).await.finish().await;
    let whole = whole.finish().await;
    let health = get(engine.addr, "/health").await;

    assert_eq!(stream.status, 200);
    let end = "data: {\"error\": {\"message\": \"EngineCore encountered an issue. See stack trace (above) for the root \
               cause.\", \"type\": \"InternalServerError\", \"param\": null, \"code\": 500}}\n\ndata: [DONE]\n\n";
    assert!(stream.body.ends_with(end), "{}", stream.body);
    assert_eq!(whole.status, 500);
    assert_eq!(health.status, 503);
    engine.died().await;
    let refused = tokio::net::TcpStream::connect(engine.addr).await;
    if let Ok(mut late) = refused {
        // The listener may close a moment after the word is out; nothing answers in any case.
        let mut byte = [0u8; 1];
        assert_eq!(tokio::io::AsyncReadExt::read(&mut late, &mut byte).await.unwrap_or(0), 0);
    }
}

#[tokio::test]
async fn health_may_be_slow() {
    let engine = start(with(Flavor::Vllm, |config| config.faults.health_delay = Duration::from_millis(150))).await;

    let asked = tokio::time::Instant::now();
    assert_eq!(get(engine.addr, "/health").await.status, 200);

    assert!(asked.elapsed() >= Duration::from_millis(150));
}
