//! Theme `caps`: no shape of a request gets more tokens than its model, its key and the context allow.

use std::time::Duration;

use gateway::{
    config::{Caps, OnExcess},
    proxy::admit::{
        self,
        caps::{Limits, Output},
    },
};

use crate::support::{
    check::json_error,
    client::{Answer, Request},
    gateway::{Config, TestGateway},
    replica::{
        ScriptedReplica,
        script::{LAST, Script, reply},
    },
    sha256, short,
};

mod shapes;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A gateway with one replica and this in its model.
async fn with(lines: &[&str]) -> (ScriptedReplica, TestGateway) {
    let replica = ScriptedReplica::start();
    let config = Config::new(std::slice::from_ref(&replica));
    let config = lines.iter().fold(config, |config, line| config.model(line));
    (replica, TestGateway::with(config).await)
}

/// What the replica got as its limit.
async fn limit_of(replica: &ScriptedReplica, gateway: &TestGateway, body: &str, field: &str) -> serde_json::Value {
    let n = replica.count();
    let answer = gateway.send(&Request::body(body)).await;
    assert_eq!(answer.status, 200, "{body}: {}", short(&answer.body));
    replica.post(n).await.json()[field].clone()
}

/// The limits that the engine reads, as text.
fn limits_at(body: &serde_json::Value) -> String {
    let names = ["max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens"];
    let set = names.into_iter().filter_map(|name| Some(format!("{name}={}", body.get(name)?)));
    set.collect::<Vec<_>>().join(" ")
}

/// Each shape at its endpoint, refused and clamped: the status, what the engine reads, and what the gateway counts.
#[tokio::test]
async fn no_shape_of_a_limit_passes_the_cap() {
    assert!(shapes::SHAPES.len() >= 60, "{}", shapes::SHAPES.len());
    for (word, on_excess) in [("reject", OnExcess::Reject), ("clamp", OnExcess::Clamp)] {
        let line = format!("caps: {{ max_output_tokens: 100, default_output_tokens: 60, on_excess: {word} }}");
        let (replica, gateway) = with(&[&line]).await;
        let caps = Caps { max_output_tokens: Some(100), default_output_tokens: Some(60), on_excess, ..Caps::default() };
        for shape in shapes::SHAPES {
            let want = if on_excess == OnExcess::Reject { shape.reject } else { shape.clamp };
            let body = shape.body();
            let n = replica.count();

            let answer = gateway.send(&Request::post(shape.endpoint.path(), body.clone())).await;

            let what = format!("{word} {} {body}", shape.endpoint.path());
            let fields = admit::fields(body.as_bytes()).unwrap();
            let judged = Output::judge(body.as_bytes(), &fields, shape.endpoint, Limits::new(&caps, None));
            let Some((limits, count)) = want else {
                let error = json_error(&answer, 400);
                assert!(error["message"].as_str().unwrap().contains("100"), "{what}: {error}");
                assert_eq!(replica.count(), n, "{what}: a refused request reaches no replica");
                assert!(judged.is_err(), "{what}");
                continue;
            };
            assert_eq!(answer.status, 200, "{what}: {}", short(&answer.body));
            let post = replica.post(n).await;
            assert_eq!(limits_at(&post.json()), limits, "{what}");
            assert!(!post.has("999"), "{what}: no duplicate keeps a value over the cap");
            let judged = judged.unwrap();
            assert_eq!(judged.limit().unwrap() * judged.choices(), count, "{what}: the count");
            assert!(count <= 100, "{what}");
        }
    }
}

#[tokio::test]
async fn br_111_a_clamp_to_the_window_is_told_in_a_header() {
    let (replica, gateway) = with(&[&tokenizer(), "context: 8192", "caps: { on_excess: clamp }"]).await;
    // "word " is one or two tokens: some 6000, whatever they are exactly.
    let prompt = "word ".repeat(3000);
    let body = |most: u64| {
        format!(r#"{{"model":"m","max_tokens":{most},"messages":[{{"role":"user","content":"{prompt}"}}]}}"#)
    };

    let answer = gateway.send(&Request::body(body(32_000))).await;

    assert_eq!(answer.status, 200, "{}", short(&answer.body));
    let sent = replica.post(0).await.json()["max_tokens"].as_u64().unwrap();
    let told = answer.header("x-gateway-max-tokens").unwrap();
    assert_eq!(told, sent.to_string());
    let counted = 8192 - sent;
    assert!((3000..8000).contains(&counted), "the prompt was counted: {counted}");
    let answer = gateway.send(&Request::body(body(10))).await;
    assert_eq!(answer.header("x-gateway-max-tokens"), None, "nothing was changed");
    assert_eq!(replica.post(1).await.json()["max_tokens"], 10);
}

#[tokio::test]
async fn br_112_two_fields_and_odd_types_never_pass_the_cap() {
    let (replica, gateway) = with(&["caps: { max_output_tokens: 100, on_excess: clamp }"]).await;
    let values =
        ["10", "5000", "\"5000\"", "1e9", "5000.0", "-1", "null", "0.5", "true", "[5000]", "99999999999999999999"];
    for first in values {
        for second in values {
            for body in [
                format!(r#"{{"model":"m","messages":[],"max_tokens":{first},"max_completion_tokens":{second}}}"#),
                format!(r#"{{"model":"m","messages":[],"max_tokens":{first},"max_tokens":{second}}}"#),
                format!(r#"{{"model":"m","max\u005ftokens":{first},"messages":[],"max_tokens":{second}}}"#),
            ] {
                let n = replica.count();
                let answer = gateway.send(&Request::body(body.clone())).await;
                if answer.status != 200 {
                    json_error(&answer, 400);
                    assert_eq!(replica.count(), n, "{body}");
                    continue;
                }
                let post = replica.post(n).await;
                let text = String::from_utf8_lossy(post.body()).into_owned();
                for key in ["\"max_tokens\":", "\"max\\u005ftokens\":", "\"max_completion_tokens\":"] {
                    for rest in text.split(key).skip(1) {
                        let value: String = rest.chars().take_while(|letter| !",}".contains(*letter)).collect();
                        let fine =
                            value == "null" || value.parse::<u64>().is_ok_and(|value| (1..=100).contains(&value));
                        assert!(fine, "{body} became {text}");
                    }
                }
                let json = post.json();
                assert!(!(json["max_tokens"].is_null() && json["max_completion_tokens"].is_null()), "{body}: {text}");
            }
        }
    }
}

#[tokio::test]
async fn br_114_a_cap_bounds_larger_values_and_leaves_smaller_ones() {
    let (replica, gateway) = with(&["caps: { max_output_tokens: 1024, on_excess: clamp }"]).await;
    let body = |most: u64| format!(r#"{{"model":"m","messages":[],"max_tokens":{most}}}"#);

    assert_eq!(limit_of(&replica, &gateway, &body(2000), "max_tokens").await, 1024);
    assert_eq!(limit_of(&replica, &gateway, &body(500), "max_tokens").await, 500);
}

#[tokio::test]
async fn br_115_an_explicit_small_value_is_never_raised() {
    let (replica, gateway) =
        with(&["caps: { max_output_tokens: 128000, default_output_tokens: 20000, on_excess: clamp }"]).await;
    let long = r#"{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":20000}}"#;
    replica.plays(reply(200, long));
    for field in ["max_tokens", "max_completion_tokens"] {
        let body = format!(r#"{{"model":"m","messages":[],"{field}":500}}"#);
        assert_eq!(limit_of(&replica, &gateway, &body, field).await, 500);
    }
}

#[tokio::test]
async fn br_117_zero_is_no_absence() {
    let (replica, gateway) = with(&["caps: { max_output_tokens: 100, default_output_tokens: 60 }"]).await;
    for value in ["0", "-1"] {
        let body = format!(r#"{{"model":"m","messages":[],"max_tokens":{value}}}"#);
        let error = json_error(&gateway.send(&Request::body(body)).await, 400);
        assert_eq!(error["param"], "max_tokens");
    }
    assert_eq!(
        limit_of(&replica, &gateway, r#"{"model":"m","messages":[],"max_tokens":null}"#, "max_tokens").await,
        60
    );
    assert_eq!(limit_of(&replica, &gateway, r#"{"model":"m","messages":[]}"#, "max_tokens").await, 60);

    let (replica, gateway) = with(&[]).await;
    for value in [0, -1] {
        let body = format!(r#"{{"model":"m","messages":[],"max_tokens":{value}}}"#);
        assert_eq!(
            limit_of(&replica, &gateway, &body, "max_tokens").await,
            value,
            "without a cap it is the engine's affair"
        );
    }
}

#[tokio::test]
async fn br_118_choices_and_batches_do_not_multiply_past_the_cap() {
    let (replica, gateway) = with(&["caps: { max_output_tokens: 1000, default_output_tokens: 100 }"]).await;
    let prompts = vec!["\"x\""; 500].join(",");
    for (path, body, param) in [
        (CHAT, r#"{"model":"m","messages":[],"n":16384,"max_tokens":100}"#.to_owned(), "n"),
        (COMPLETIONS, r#"{"model":"m","prompt":"x","best_of":64,"max_tokens":100}"#.to_owned(), "max_tokens"),
        (
            COMPLETIONS,
            r#"{"model":"m","prompt":"x","n":64,"use_beam_search":true,"max_tokens":100}"#.to_owned(),
            "max_tokens",
        ),
        (COMPLETIONS, format!(r#"{{"model":"m","prompt":[{prompts}],"max_tokens":100}}"#), "max_tokens"),
        (COMPLETIONS, format!(r#"{{"model":"m","prompt":[{prompts}],"n":4}}"#), "prompt"),
    ] {
        let error = json_error(&gateway.send(&Request::post(path, body)).await, 400);
        assert_eq!((&error["code"], &error["param"]), (&"token_cap_exceeded".into(), &param.into()), "{error}");
        assert!(error["message"].as_str().unwrap().contains("1000"), "{error}");
    }
    assert_eq!(replica.count(), 0);
    assert_eq!(
        limit_of(&replica, &gateway, r#"{"model":"m","messages":[],"n":2,"max_tokens":100}"#, "max_tokens").await,
        100
    );
}

#[tokio::test]
async fn br_027_a_prompt_cap_counts_the_ids_of_a_batch_together() {
    let (replica, gateway) = with(&["caps: { max_prompt_tokens: 1000 }"]).await;
    let ids = (0..600).map(|id| id.to_string()).collect::<Vec<_>>().join(",");

    let over = Request::post(COMPLETIONS, format!(r#"{{"model":"m","prompt":[[{ids}],[{ids}]],"max_tokens":1}}"#));
    let error = json_error(&gateway.send(&over).await, 400);
    let under = Request::post(COMPLETIONS, format!(r#"{{"model":"m","prompt":[{ids}],"max_tokens":1}}"#));

    assert_eq!(error["message"], "the prompt has 1200 tokens; this gateway allows at most 1000");
    assert_eq!(error["code"], "token_cap_exceeded");
    assert_eq!(gateway.send(&under).await.status, 200);
    assert_eq!(replica.count(), 1);
}

/// Text events until the connection closes, then whether it closed.
fn endless(text: &'static str) -> Script {
    Script::new(move |play| async move {
        play.head().await?;
        for _ in 0..2000 {
            play.chunk(text).await?;
            play.pause(Duration::from_millis(1)).await?;
        }
        play.send(LAST).await
    })
}

const WORD: &str = "data: {\"id\":\"chatcmpl-7\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"w \"},\"finish_reason\":null}]}\n\n";

fn count(answer: &Answer, text: &str) -> usize {
    answer.text().matches(text).count()
}

#[tokio::test]
async fn a_stream_beyond_the_cap_is_cut_with_finish_reason_length() {
    let (replica, gateway) = with(&["caps: { max_output_tokens: 20 }"]).await;
    replica.plays(endless(WORD));

    let answer = gateway.send(&Request::body(r#"{"model":"m","stream":true,"messages":[]}"#)).await;

    let text = answer.text();
    assert_eq!(count(&answer, "\"w \""), 20, "{}", short(&answer.body));
    let end = "data: {\"id\":\"chatcmpl-7\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n";
    assert!(text.ends_with(end), "{text}");
    gateway.only_outcome("success", 1).await;
    gateway.reaches("gateway_output_tokens_total", &[], 20.0).await;
    gateway.reaches("gateway_wasted_tokens_total", &[("cause", "over_cap")], 1.0).await;
    gateway.idle().await;
}

#[tokio::test]
async fn events_in_one_burst_and_in_pieces_are_cut_at_the_same_place() {
    let (replica, gateway) = with(&["caps: { max_output_tokens: 5 }"]).await;
    let burst = WORD.repeat(30);
    replica.plays(Script::new(move |play| {
        let burst = burst.clone();
        async move {
            play.head().await?;
            if play.request.has("pieces") {
                for piece in burst.as_bytes().chunks(37) {
                    play.chunk(piece).await?;
                    play.pause(Duration::from_millis(2)).await?;
                }
            } else {
                play.chunk(&burst).await?;
            }
            play.hang().await
        }
    }));
    for name in ["burst", "pieces"] {
        let body = format!(r#"{{"model":"m","stream":true,"messages":[],"max_tokens":5,"user":"{name}"}}"#);
        let answer = gateway.send(&Request::body(body)).await;
        assert_eq!(count(&answer, "\"w \""), 5, "{name}: {}", answer.text());
        assert_eq!(count(&answer, "\"length\""), 1, "{name}");
        assert!(answer.text().ends_with("data: [DONE]\n\n"), "{name}");
    }
}

#[tokio::test]
async fn a_stream_without_a_cap_is_not_cut() {
    let (replica, gateway) = with(&[]).await;
    replica.plays(Script::new(|play| async move {
        play.head().await?;
        play.chunk(WORD.repeat(50)).await?;
        play.chunk("data: [DONE]\n\n").await?;
        play.send(LAST).await
    }));
    let answer = gateway.send(&Request::body(r#"{"model":"m","stream":true,"messages":[],"max_tokens":5}"#)).await;
    assert_eq!(count(&answer, "\"w \""), 50);
}

#[tokio::test]
async fn an_answer_beyond_the_cap_is_relayed_and_counted() {
    let (replica, gateway) = with(&["caps: { max_output_tokens: 20 }"]).await;
    let body = r#"{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":50}}"#;
    replica.plays(reply(200, body));
    let answer = gateway.send(&Request::chat("x")).await;
    assert_eq!(answer.text(), body);
    gateway.reaches("gateway_wasted_tokens_total", &[("cause", "over_cap")], 30.0).await;
}

fn tokenizer() -> String {
    format!("tokenizer: {{ path: {}/tests/data/tokenizer/tokenizer.json }}", env!("CARGO_MANIFEST_DIR"))
}

#[tokio::test]
async fn a_prompt_beyond_the_context_gets_the_engines_own_answer() {
    let (replica, gateway) = with(&[&tokenizer(), "context: 50"]).await;
    // 29 tokens, by the engine's own /tokenize.
    let chat = |rest: &str| {
        format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"Write a short story about a lighthouse and a storm."}}]{rest}}}"#
        )
    };

    let error = json_error(&gateway.send(&Request::body(chat(r#","max_tokens":22"#))).await, 400);
    assert_eq!(error["code"], "context_length_exceeded");
    assert_eq!(error["param"], "input_tokens");
    assert_eq!(
        error["message"],
        "This model's maximum context length is 50 tokens. However, you requested 22 output tokens and your prompt contains at least 29 input tokens, for a total of at least 51 tokens. Please reduce the length of the input prompt or the number of requested output tokens. (parameter=input_tokens, value=29)"
    );
    assert_eq!(gateway.send(&Request::body(chat(r#","max_tokens":21"#))).await.status, 200, "29 and 21 fit in 50");
    assert_eq!(
        gateway.send(&Request::body(chat(""))).await.status,
        200,
        "without a limit the engine takes what there is"
    );
    let long = Request::chat(&"word ".repeat(100));
    let error = json_error(&gateway.send(&long).await, 400);
    assert!(
        error["message"].as_str().unwrap().contains("exceeds this limit even without any output tokens"),
        "{error}"
    );
    assert_eq!(replica.count(), 2);
    gateway.reaches("gateway_rejected_total", &[("reason", "cap")], 2.0).await;
}

#[tokio::test]
async fn an_estimate_refuses_no_request_for_the_context_that_may_fit() {
    let (replica, gateway) = with(&["tokenizer: estimate", "context: 100"]).await;
    let fits = Request::chat(&"international ".repeat(60));
    assert_eq!(gateway.send(&fits).await.status, 200);
    let never = Request::chat(&"international ".repeat(3000));
    assert_eq!(json_error(&gateway.send(&never).await, 400)["code"], "context_length_exceeded");
    assert_eq!(replica.count(), 1);
}

#[tokio::test]
async fn a_prompt_cap_counts_with_the_tokenizer() {
    let (replica, gateway) = with(&[&tokenizer(), "caps: { max_prompt_tokens: 28, on_excess: clamp }"]).await;
    let text = "Write a short story about a lighthouse and a storm.";
    let error = json_error(&gateway.send(&Request::chat(text)).await, 400);
    assert_eq!(error["message"], "the prompt has 29 tokens; this gateway allows at most 28");
    assert_eq!(gateway.send(&Request::chat("Write a short story")).await.status, 200);
    assert_eq!(replica.count(), 1);
}

#[tokio::test]
async fn the_engine_is_asked_for_its_count_and_may_fail() {
    let (replica, gateway) = with(&["tokenizer: engine", "caps: { max_prompt_tokens: 30 }"]).await;
    replica.plays(Script::new(|play| async move {
        let answer = if play.request.has("count31") {
            r#"{"count":31,"max_model_len":4096,"tokens":[1]}"#
        } else {
            r#"{"count":30}"#
        };
        let whole = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{answer}",
            answer.len()
        );
        play.send(whole).await
    }));

    let error = json_error(&gateway.send(&Request::chat("count31")).await, 400);
    assert_eq!(error["message"], "the prompt has 31 tokens; this gateway allows at most 30");
    assert_eq!(gateway.send(&Request::chat("count30")).await.status, 200);
    let paths: Vec<String> = replica.posts().iter().map(|post| post.path().to_owned()).collect();
    assert_eq!(paths, ["/tokenize", "/tokenize", CHAT]);

    replica.plays(reply(500, "{}"));
    let error = json_error(&gateway.send(&Request::chat(&"word ".repeat(200))).await, 400);
    assert!(error["message"].as_str().unwrap().contains("by estimate"), "{error}");
}

#[tokio::test]
async fn a_key_has_caps_of_its_own() {
    let hash = sha256("sk-a");
    let keys = format!(
        "caps: {{ max_output_tokens: 100, on_excess: reject }}\nkeys: [ {{ id: team-a, sha256: {hash}, caps: {{ max_output_tokens: 50, on_excess: clamp }} }} ]"
    );
    let (replica, gateway) = with(&[&keys]).await;
    let ask = |most: u64| {
        Request::body(format!(r#"{{"model":"m","messages":[],"max_tokens":{most}}}"#))
            .header("Authorization", "Bearer sk-a")
    };

    for (asked, got) in [(40, 40), (80, 50)] {
        let n = replica.count();
        assert_eq!(gateway.send(&ask(asked)).await.status, 200);
        assert_eq!(replica.post(n).await.json()["max_tokens"], got, "{asked}");
    }
    let error = json_error(&gateway.send(&ask(101)).await, 400);
    assert!(error["message"].as_str().unwrap().contains("at most 100"), "the model's own cap refuses: {error}");
}

#[tokio::test]
async fn the_context_is_what_the_replica_says() {
    let replica = ScriptedReplica::start();
    replica.answers_get(
        "/v1/models",
        reply(200, r#"{"object":"list","data":[{"id":"m","owned_by":"vllm","max_model_len":50}]}"#),
    );
    let gateway = TestGateway::with(Config::new(std::slice::from_ref(&replica)).model(&tokenizer())).await;
    let ask = |most: u64| {
        Request::chat_with("Write a short story about a lighthouse and a storm.", &format!(r#","max_tokens":{most}"#))
    };

    let error = json_error(&gateway.send(&ask(22)).await, 400);
    assert!(error["message"].as_str().unwrap().contains("maximum context length is 50 tokens"), "{error}");
    assert_eq!(gateway.send(&ask(21)).await.status, 200);
}
