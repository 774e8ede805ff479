//! What the engine does with a request over its life: head, prefix, seed, tools, keys.

use gateway::{
    simserver::Flavor,
    simulator::{Timing, timing::Rates},
};
use serde_json::{Value, json};

use super::{
    client::{self, get, metric, open, post},
    start, timing, tiny,
};

fn chat(content: &str, max_tokens: usize) -> Value {
    json!({"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens,
        "temperature": 0, "ignore_eos": true})
}

fn streamed(mut body: Value) -> Value {
    body["stream"] = true.into();
    body
}

#[tokio::test]
async fn vllm_sends_its_head_at_once_and_sglang_with_the_first_token() {
    for flavor in [Flavor::Vllm, Flavor::Sglang] {
        let mut config = tiny(flavor);
        config.engine.limits.max_num_seqs = 1;
        let engine = start(config).await;
        let mut first = open(engine.addr, "/v1/chat/completions", &streamed(chat("one", 100))).await;
        first.until("data: ").await;

        // Queued behind 100 tokens at 2 ms.
        let mut second = open(engine.addr, "/v1/chat/completions", &streamed(chat("two", 1))).await;
        let head = second.until("\r\n\r\n").await;
        let token = second.until("data: ").await;

        assert!(token.as_millis() >= 100, "{flavor:?} queued for only {token:?}");
        match flavor {
            Flavor::Vllm => assert!(head * 2 < token, "head after {head:?}, token after {token:?}"),
            Flavor::Sglang => assert!(head.as_millis() >= 100, "head after {head:?}"),
        }
        first.finish().await;
    }
}

#[tokio::test]
async fn a_repeated_prompt_reports_its_whole_blocks_and_comes_sooner() {
    for flavor in [Flavor::Vllm, Flavor::Sglang] {
        let mut config = tiny(flavor);
        config.report_cached_tokens = true;
        // 3,000 tokens take 300 ms cold, so that a busy machine's delays do not count.
        let slow = Rates { prefill_tokens_per_second: 10_000.0, ..Rates::default() };
        config.engine.timing = Timing::Rates(slow);
        let block = config.engine.block_size;
        let engine = start(config).await;
        let body = streamed(chat(&" lighthouse storm".repeat(1000), 2));

        let mut cold = open(engine.addr, "/v1/chat/completions", &body).await;
        let cold_ttft = cold.until("\"content\":\" ").await;
        cold.finish().await;
        let mut warm = open(engine.addr, "/v1/chat/completions", &body).await;
        let warm_ttft = warm.until("\"content\":\" ").await;
        warm.finish().await;

        assert!(warm_ttft * 2 < cold_ttft, "{flavor:?}: cold {cold_ttft:?}, warm {warm_ttft:?}");
        let usage = post(engine.addr, "/v1/chat/completions", &chat(&" lighthouse storm".repeat(1000), 2)).await.json();
        let usage = &usage["usage"];
        let prompt = usize::try_from(usage["prompt_tokens"].as_u64().unwrap()).unwrap();
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], (prompt - 1) / block * block);
    }
}

#[tokio::test]
async fn the_next_turn_finds_the_blocks_of_the_answer_too() {
    let mut config = tiny(Flavor::Vllm);
    config.report_cached_tokens = true;
    let engine = start(config).await;
    let first = post(engine.addr, "/v1/chat/completions", &chat("Tell me.", 200)).await.json();
    let said = first["choices"][0]["message"]["content"].as_str().unwrap();
    let before = usize::try_from(first["usage"]["prompt_tokens"].as_u64().unwrap()).unwrap();

    let mut next = chat("", 1);
    next["messages"] = json!([{"role": "user", "content": "Tell me."}, {"role": "assistant", "content": said},
        {"role": "user", "content": "More."}]);
    let next = post(engine.addr, "/v1/chat/completions", &next).await.json();

    // The KV of the last token is never computed.
    assert_eq!(next["usage"]["prompt_tokens_details"]["cached_tokens"], (before + 199) / 32 * 32);
}

#[tokio::test]
async fn a_cache_salt_has_a_cache_of_its_own() {
    let mut config = tiny(Flavor::Vllm);
    config.report_cached_tokens = true;
    let engine = start(config).await;
    let mut body = chat(&" storm".repeat(100), 1);
    let cached = |answer: Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    post(engine.addr, "/v1/chat/completions", &body).await;

    body["cache_salt"] = "A".into();
    assert_eq!(cached(post(engine.addr, "/v1/chat/completions", &body).await.json()), 0);
    assert_eq!(cached(post(engine.addr, "/v1/chat/completions", &body).await.json()), 96);
}

#[tokio::test]
async fn replicas_with_equal_seeds_answer_alike_and_others_do_not() {
    let text = |answer: Value| answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let one = start(tiny(Flavor::Vllm)).await;
    let two = start(tiny(Flavor::Sglang)).await;
    let mut config = tiny(Flavor::Vllm);
    config.seed = 7;
    let other = start(config).await;

    let body = chat("Hello.", 20);
    let said = text(post(one.addr, "/v1/chat/completions", &body).await.json());

    assert_eq!(text(post(two.addr, "/v1/chat/completions", &body).await.json()), said);
    assert_ne!(text(post(other.addr, "/v1/chat/completions", &body).await.json()), said);
    assert_ne!(text(post(one.addr, "/v1/chat/completions", &chat("Hallo.", 20)).await.json()), said);
}

#[tokio::test]
async fn an_answer_may_end_by_itself_or_at_a_stop_string() {
    let engine = start(tiny(Flavor::Vllm)).await;
    let mut body = chat("Hello.", 1000);
    body["ignore_eos"] = false.into();
    let natural = post(engine.addr, "/v1/chat/completions", &body).await.json();
    assert_eq!(natural["choices"][0]["finish_reason"], "stop");
    assert_eq!(natural["choices"][0]["stop_reason"], Value::Null);
    let said = natural["choices"][0]["message"]["content"].as_str().unwrap();
    let stop = said.split(' ').nth(9).unwrap();

    body["stop"] = json!([format!(" {stop}")]);
    body["stream_options"] = json!({"include_usage": true});
    let cut = post(engine.addr, "/v1/chat/completions", &streamed(body)).await.body;

    assert!(cut.contains(&format!("\"finish_reason\":\"stop\",\"stop_reason\":\" {stop}\"")), "{cut}");
    assert!(!cut.contains(&format!("\"content\":\" {stop}\"")));
}

#[tokio::test]
async fn a_required_tool_is_called_with_its_required_arguments() {
    for flavor in [Flavor::Vllm, Flavor::Sglang] {
        let engine = start(tiny(flavor)).await;
        let mut body = chat("Weather?", 60);
        body["tool_choice"] = "required".into();
        body["tools"] = json!([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
            "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]);

        let whole = post(engine.addr, "/v1/chat/completions", &body).await.json();
        let stream = post(engine.addr, "/v1/chat/completions", &streamed(body)).await.body;

        let call = &whole["choices"][0]["message"]["tool_calls"][0]["function"];
        assert_eq!((&call["name"], &call["arguments"]), (&"weather".into(), &"{\"city\":\"text\"}".into()));
        let pieces: Vec<Value> =
            stream.split("\n\n").filter_map(|event| serde_json::from_str(event.strip_prefix("data: ")?).ok()).collect();
        let calls = pieces.iter().map(|piece| &piece["choices"][0]["delta"]["tool_calls"][0]["function"]);
        let arguments: String = calls.filter_map(|call| call["arguments"].as_str()).collect();
        assert_eq!(arguments, "{\"city\":\"text\"}");
        assert!(stream.contains("\"name\":\"weather\""));
    }
}

#[tokio::test]
async fn an_unknown_model_is_404_in_vllm_and_answered_by_sglang() {
    let vllm = start(tiny(Flavor::Vllm)).await;
    let sglang = start(tiny(Flavor::Sglang)).await;
    let mut body = chat("Hi", 1);
    body["model"] = "nope".into();

    assert_eq!(post(vllm.addr, "/v1/chat/completions", &body).await.status, 404);
    let answer = post(sglang.addr, "/v1/chat/completions", &body).await;
    assert_eq!((answer.status, &answer.json()["model"]), (200, &"nope".into()));
}

#[tokio::test]
async fn a_key_guards_what_each_engine_guards() {
    for (flavor, open_path, shut_path) in
        [(Flavor::Vllm, "/load", "/v1/models"), (Flavor::Sglang, "/health", "/v1/loads")]
    {
        let mut config = tiny(flavor);
        config.api_key = Some("sk-1".to_owned());
        let engine = start(config).await;

        assert_eq!(get(engine.addr, open_path).await.status, 200);
        assert_eq!(get(engine.addr, "/metrics").await.status, 200);
        let refused = get(engine.addr, shut_path).await;
        assert_eq!((refused.status, refused.body.as_str()), (401, "{\"error\":\"Unauthorized\"}"));
        let key = "authorization: Bearer sk-1\r\n";
        assert_eq!(client::send(engine.addr, "GET", shut_path, key, "").await.finish().await.status, 200);
    }
}

#[tokio::test]
async fn vllm_uses_the_callers_request_id_and_echoes_it_when_asked_to() {
    let headers = "content-type: application/json\r\nx-request-id: mine-1\r\n";
    let plain = start(tiny(Flavor::Vllm)).await;
    let mut config = tiny(Flavor::Vllm);
    config.request_id_headers = true;
    let echoing = start(config).await;
    let body = chat("Hi", 1).to_string();

    let answer = client::send(plain.addr, "POST", "/v1/chat/completions", headers, &body).await.finish().await;
    assert_eq!(answer.json()["id"], "chatcmpl-mine-1");
    assert!(!answer.head.contains("x-request-id"));
    let answer = client::send(echoing.addr, "POST", "/v1/nope", headers, &body).await.finish().await;
    assert!(answer.head.contains("x-request-id: mine-1"), "404 has it too: {}", answer.head);
    assert!(get(echoing.addr, "/health").await.head.contains("x-request-id: "), "and a fresh one where none came");
}

#[tokio::test]
async fn a_silent_stream_gets_comments_when_asked_for() {
    let mut config = tiny(Flavor::Vllm);
    config.engine.timing = timing(150);
    config.keep_alive = Some(std::time::Duration::from_millis(40));
    let engine = start(config).await;

    let answer = post(engine.addr, "/v1/chat/completions", &streamed(chat("Hi", 3))).await;

    assert!(answer.body.matches(": keep-alive\n\n").count() >= 3, "{}", answer.body);
    assert!(answer.body.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn metrics_count_what_happened_under_the_engines_names() {
    let vllm = start(tiny(Flavor::Vllm)).await;
    post(vllm.addr, "/v1/chat/completions", &chat("Hello there.", 5)).await;
    for (name, value) in [
        ("vllm:generation_tokens_total", 5.0),
        ("vllm:num_requests_running", 0.0),
        ("vllm:kv_cache_usage_perc", 0.0),
        ("vllm:prefix_cache_hits_total", 0.0),
        ("vllm:num_preemptions_total", 0.0),
        ("vllm:time_to_first_token_seconds_count", 1.0),
        ("vllm:inter_token_latency_seconds_count", 4.0),
        ("vllm:e2e_request_latency_seconds_count", 1.0),
    ] {
        assert_eq!(metric(vllm.addr, name).await.to_bits(), f64::to_bits(value), "{name}");
    }
    let page = get(vllm.addr, "/metrics").await.body;
    assert!(page.contains("finished_reason=\"length\"} 1.0"), "{page}");
    assert!(page.contains("block_size=\"32\"") && page.contains("num_gpu_blocks=\"512\""), "{page}");

    let sglang = start(tiny(Flavor::Sglang)).await;
    post(sglang.addr, "/v1/completions", &json!({"prompt": "abc", "max_tokens": 5})).await;
    for (name, value) in [
        ("sglang:generation_tokens_total", 5.0),
        ("sglang:max_total_num_tokens", 16_384.0),
        ("sglang:num_running_reqs", 0.0),
        ("sglang:time_to_first_token_seconds_count", 1.0),
    ] {
        assert_eq!(metric(sglang.addr, name).await.to_bits(), f64::to_bits(value), "{name}");
    }
}

#[tokio::test]
async fn no_tokens_may_be_asked_for_where_the_engine_allows_it() {
    let vllm = start(tiny(Flavor::Vllm)).await;
    let sglang = start(tiny(Flavor::Sglang)).await;
    let body = json!({"model": "tiny", "prompt": " the fox", "max_tokens": 0});
    let mut echo = body.clone();
    echo["echo"] = true.into();

    assert_eq!(post(vllm.addr, "/v1/completions", &body).await.status, 400);
    let echoed = post(vllm.addr, "/v1/completions", &echo).await.json();
    assert_eq!(
        (&echoed["choices"][0]["text"], &echoed["choices"][0]["finish_reason"]),
        (&" the fox".into(), &"length".into())
    );
    let none = post(sglang.addr, "/v1/completions", &body).await.json();
    assert_eq!(none["usage"]["completion_tokens"], 0);
    let stream = post(sglang.addr, "/v1/completions", &streamed(body)).await.body;
    assert!(stream.contains("\"finish_reason\":\"length\"") && stream.ends_with("data: [DONE]\n\n"), "{stream}");
}
