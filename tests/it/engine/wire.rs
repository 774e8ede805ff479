//! What is on the wire, against what the real engines wrote (`tests/fixtures/engines`, from the captures).

use std::net::SocketAddr;

use gateway::simserver::Flavor;
use serde::Deserialize;
use serde_json::Value;

use super::{
    client::{self, Answer},
    shape::{shape, stream_shapes},
    start, timing, tiny,
};

#[derive(Deserialize)]
struct Case {
    name: String,
    path: String,
    #[serde(default)]
    content_type: Option<String>,
    body: Value,
    status: u16,
    #[serde(default)]
    stream: String,
    #[serde(default)]
    answer: String,
}

fn cases(lines: &str) -> Vec<Case> {
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Long texts are kept as `{"repeat": x, "times": n}`.
fn expand(value: &mut Value) {
    if let (Some(text), Some(times)) = (value.get("repeat").and_then(Value::as_str), value.get("times")) {
        *value = Value::String(text.repeat(times.as_u64().unwrap().try_into().unwrap()));
        return;
    }
    match value {
        Value::Object(map) => map.values_mut().for_each(expand),
        Value::Array(list) => list.iter_mut().for_each(expand),
        _ => {}
    }
}

async fn replay(addr: SocketAddr, case: &Case) -> Answer {
    let mut body = case.body.clone();
    expand(&mut body);
    let text = body.as_str().map_or_else(|| body.to_string(), str::to_owned);
    let kind = case.content_type.as_deref().unwrap_or("application/json");
    let headers = format!("content-type: {kind}\r\nanthropic-version: 2023-06-01\r\n");
    client::send(addr, "POST", &case.path, &headers, &text).await.finish().await
}

async fn streams(flavor: Flavor, lines: &str) {
    let mut config = tiny(flavor);
    // Slow enough that each token has an event of its own.
    config.engine.timing = timing(20);
    let engine = start(config).await;
    for case in cases(lines) {
        let answer = replay(engine.addr, &case).await;

        assert_eq!(answer.status, case.status, "{}", case.name);
        let mut expected = stream_shapes(&case.stream);
        // Text that was an incomplete character: a toy tokenizer's output has none.
        expected.retain(|event| !event.contains("\"delta\":{},"));
        assert_eq!(stream_shapes(&answer.body), expected, "{}", case.name);
        let ends = |text: &str| text.ends_with("data: [DONE]\n\n");
        assert_eq!(ends(&answer.body), ends(&case.stream), "{}", case.name);
    }
}

#[tokio::test]
async fn vllm_streams_have_the_events_and_keys_of_the_real_one() {
    streams(Flavor::Vllm, include_str!("../../fixtures/engines/vllm-streams.jsonl")).await;
}

#[tokio::test]
async fn sglang_streams_have_the_events_and_keys_of_the_real_one() {
    streams(Flavor::Sglang, include_str!("../../fixtures/engines/sglang-streams.jsonl")).await;
}

async fn answers(flavor: Flavor, lines: &str) {
    let engine = start(tiny(flavor)).await;
    for case in cases(lines) {
        let answer = replay(engine.addr, &case).await;

        assert_eq!(answer.status, case.status, "{}", case.name);
        assert_eq!(shape(&answer.body), shape(&case.answer), "{}", case.name);
    }
}

#[tokio::test]
async fn vllm_answers_have_the_keys_of_the_real_one() {
    answers(Flavor::Vllm, include_str!("../../fixtures/engines/vllm-answers.jsonl")).await;
}

#[tokio::test]
async fn sglang_answers_have_the_keys_of_the_real_one() {
    answers(Flavor::Sglang, include_str!("../../fixtures/engines/sglang-answers.jsonl")).await;
}

async fn errors(flavor: Flavor, lines: &str) {
    let engine = start(tiny(flavor)).await;
    // The toy vocabulary is larger than the captured model's.
    for case in cases(&lines.replace("999999", "99999999")) {
        let answer = replay(engine.addr, &case).await;

        assert_eq!((answer.status, &answer.body), (case.status, &case.answer), "{}", case.name);
    }
}

#[tokio::test]
async fn vllm_errors_are_those_of_the_real_one_to_the_byte() {
    errors(Flavor::Vllm, include_str!("../../fixtures/engines/vllm-errors.jsonl")).await;
}

#[tokio::test]
async fn sglang_errors_are_those_of_the_real_one_to_the_byte() {
    errors(Flavor::Sglang, include_str!("../../fixtures/engines/sglang-errors.jsonl")).await;
}

#[tokio::test]
async fn tokenize_and_detokenize_are_inverse_and_count_as_usage_does() {
    for flavor in [Flavor::Vllm, Flavor::Sglang] {
        let engine = start(tiny(flavor)).await;
        let chat = serde_json::json!({"model": "tiny", "messages": [{"role": "user", "content": "naïve café 🙂 ok"}]});

        let tokens = client::post(engine.addr, "/tokenize", &chat).await.json();
        let ids = serde_json::json!({"model": "tiny", "tokens": tokens["tokens"]});
        let text = client::post(engine.addr, "/detokenize", &ids).await.json();
        let answer = client::post(engine.addr, "/v1/chat/completions", &chat).await.json();

        let key = if flavor == Flavor::Vllm { "prompt" } else { "text" };
        assert_eq!(text[key], "<|im_start|>user\nnaïve café 🙂 ok<|im_end|>\n<|im_start|>assistant\n");
        assert_eq!(tokens["count"], answer["usage"]["prompt_tokens"]);
    }
}

#[tokio::test]
async fn paths_methods_and_models_answer_as_captured() {
    let vllm = start(tiny(Flavor::Vllm)).await;
    let sglang = start(tiny(Flavor::Sglang)).await;
    for (addr, path, status, body) in [
        (vllm.addr, "/health", 200, ""),
        (vllm.addr, "/version", 200, "{\"version\":\"0.32.0\"}"),
        (vllm.addr, "/load", 200, "{\"server_load\":0}"),
        (vllm.addr, "/server_info", 404, "{\"detail\":\"Not Found\"}"),
        (vllm.addr, "/v1/models/tiny", 404, "{\"detail\":\"Not Found\"}"),
        (vllm.addr, "/v1/chat/completions", 405, "{\"detail\":\"Method Not Allowed\"}"),
        (sglang.addr, "/health", 200, ""),
        (sglang.addr, "/version", 404, "{\"detail\":\"Not Found\"}"),
        (sglang.addr, "/load", 404, "{\"detail\":\"Not Found\"}"),
        (sglang.addr, "/get_load", 404, "{\"detail\":\"Not Found\"}"),
    ] {
        let answer = client::get(addr, path).await;
        assert_eq!((answer.status, answer.body.as_str()), (status, body), "{path}");
    }
    let models = client::get(vllm.addr, "/v1/models").await.json();
    assert_eq!((&models["data"][0]["owned_by"], &models["data"][0]["max_model_len"]), (&"vllm".into(), &4096.into()));
    assert_eq!(client::get(sglang.addr, "/server_info").await.json()["max_total_num_tokens"], 16_384);
    assert_eq!(client::get(sglang.addr, "/v1/loads").await.json()["loads"][0]["num_running_reqs"], 0);
    assert_eq!(client::send(vllm.addr, "HEAD", "/health", "", "").await.finish().await.status, 405);
}
