//! Theme `request_shape`: what an engine accepts arrives as it was sent; what must change changes in its own span only.
//!
//! All cases of the theme are here, BR-034 and BR-038 with an output cap. BR-027's cap over a batch waits for `caps.max_prompt_tokens`.

use std::collections::HashSet;

use crate::support::{
    check::{all_good, json_error, same},
    client::Request,
    gateway::{Config, TestGateway, fleet, pair},
    replica::{ScriptedReplica, script::reply},
    short,
};

const COMPLETIONS: &str = "/v1/completions";

/// The body reaches the replica byte for byte, and the answer comes back.
async fn unchanged(replica: &ScriptedReplica, gateway: &TestGateway, request: &Request) {
    becomes(replica, gateway, request, request.sent_body()).await;
}

/// The body reaches the replica as `want`.
async fn becomes(replica: &ScriptedReplica, gateway: &TestGateway, request: &Request, want: &[u8]) {
    let n = replica.count();
    let answer = gateway.send(request).await;
    assert_eq!(answer.status, 200, "{} for {}", short(&answer.body), short(request.sent_body()));
    let post = replica.post(n).await;
    assert!(
        post.body() == want,
        "the replica must get\n{}\nand got\n{}",
        String::from_utf8_lossy(want),
        String::from_utf8_lossy(post.body())
    );
}

async fn aliased() -> (ScriptedReplica, TestGateway) {
    let replica = ScriptedReplica::start();
    let config = Config::new(std::slice::from_ref(&replica)).model("aliases: [fast]");
    let gateway = TestGateway::with(config).await;
    (replica, gateway)
}

async fn capped() -> (ScriptedReplica, TestGateway) {
    let replica = ScriptedReplica::start();
    let caps = "caps: { max_output_tokens: 100, default_output_tokens: 100, on_excess: reject }";
    let gateway = TestGateway::with(Config::new(std::slice::from_ref(&replica)).model(caps)).await;
    (replica, gateway)
}

#[tokio::test]
async fn br_026_a_token_id_prompt_arrives_as_sent() {
    let (replica, gateway) = pair().await;

    unchanged(&replica, &gateway, &Request::post(COMPLETIONS, r#"{"model":"m","prompt":[5,6,7],"max_tokens":4}"#))
        .await;
}

#[tokio::test]
async fn br_026_equal_token_ids_go_to_one_replica() {
    let (replicas, gateway) = fleet(4).await;
    let ids: Vec<String> = (0..1500).map(|i| (i * 7919 % 32000).to_string()).collect();
    let body = format!(r#"{{"model":"m","prompt":[{}],"max_tokens":4}}"#, ids.join(","));

    let answers = gateway.send_all((0..20).map(|_| Request::post(COMPLETIONS, body.clone())), 1).await;

    all_good(&answers, "token ids are never refused");
    let counts: Vec<usize> = replicas.iter().map(ScriptedReplica::count).collect();
    assert!(counts.iter().any(|count| *count >= 19), "20 requests with the same ids belong on one replica: {counts:?}");
}

#[tokio::test]
async fn br_027_batch_prompts_arrive_as_sent() {
    let (replica, gateway) = pair().await;
    for prompt in ["[[1,2,3],[4,5,6]]", r#"["a","b"]"#, "[]"] {
        let body = format!(r#"{{"model":"m","prompt":{prompt}}}"#);
        unchanged(&replica, &gateway, &Request::post(COMPLETIONS, body)).await;
    }
}

#[tokio::test]
async fn br_029_the_engines_own_answer_to_token_ids() {
    let (replica, gateway) = pair().await;
    let answer = r#"{"id": "cmpl-1", "choices": [{"index": 0, "text": "x", "logprobs": {"token_logprobs": [-0.10000000000000001]}, "prompt_token_ids": [11, 22, 33], "token_ids": [7]}], "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}}"#;
    replica.plays(reply(200, answer));
    let request =
        Request::post(COMPLETIONS, r#"{"model":"m","prompt":[11,22,33],"logprobs":true,"return_token_ids":true}"#);

    unchanged(&replica, &gateway, &request).await;

    same(&gateway.send(&request).await, answer, "a plain answer is relayed as it is");
}

#[tokio::test]
async fn br_030_unknown_fields_survive() {
    let (replica, gateway) = pair().await;
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"chat_template_kwargs":{"enable_thinking":false},"x_vendor_new":{"a":[1,null,{"b":true}]},"top_k":3,"guided_regex":"a|b"}"#;

    unchanged(&replica, &gateway, &Request::body(body)).await;
}

#[tokio::test]
async fn br_031_an_alias_changes_the_model_value_only() {
    let (replica, gateway) = aliased().await;
    let body = r#"{"chat_template_kwargs":{"model":"fast"},"model" : "fast","messages":[{"role":"user","content":"hi \u00e9 \"model\":\"fast\""}],"zz":1.50}"#;
    let want = body.replacen(r#""model" : "fast""#, r#""model" : "m""#, 1);

    becomes(&replica, &gateway, &Request::body(body), want.as_bytes()).await;
}

#[tokio::test]
async fn br_031_alias_and_usage_are_spliced_into_one_stream_request() {
    let (replica, gateway) = aliased().await;
    let body = r#"{"model":"fast","stream":true,"temperature":1.0,"messages":[{"role":"user","content":"hi"}]}"#;

    assert_eq!(gateway.send(&Request::body(body)).await.status, 200);

    let post = replica.post(0).await;
    assert_eq!(post.json()["model"], "m");
    assert_eq!(post.json()["stream_options"]["include_usage"], true);
    assert!(
        post.has(r#""temperature":1.0,"messages":[{"role":"user","content":"hi"}]"#),
        "all else keeps its bytes: {}",
        short(post.body())
    );
}

#[tokio::test]
async fn br_031_the_upstream_name_replaces_the_public_one() {
    let replica = ScriptedReplica::start_as(crate::support::replica::Flavor::Vllm, "org/real-7b");
    let config = Config::new(std::slice::from_ref(&replica)).model("upstream_model: org/real-7b");
    let gateway = TestGateway::with(config).await;
    let body = r#"{"model":"m","messages":[]}"#;

    becomes(&replica, &gateway, &Request::body(body), br#"{"model":"org/real-7b","messages":[]}"#).await;
}

const SCHEMA: &str = r#""response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"type":"object","properties":{"walnut":{"type":"string"},"birch":{"type":"string"},"maple":{"type":"string"}}}}}"#;

#[tokio::test]
async fn br_033_schema_property_order_survives_with_and_without_a_rewrite() {
    let (replica, gateway) = aliased().await;
    for model in ["m", "fast"] {
        let body = format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"x"}}],{SCHEMA}}}"#);
        let want = body.replacen("\"fast\"", "\"m\"", 1);
        becomes(&replica, &gateway, &Request::body(body), want.as_bytes()).await;
    }
}

fn tools() -> String {
    let tool = |i: usize| {
        format!(
            r#"{{"type": "function", "function": {{"name": "f{i}", "parameters": {{"type": "object", "properties": {{"zeta": {{"type": "string"}}, "alpha": {{"type": "integer"}}}}, "required": ["zeta"]}}}}}}"#
        )
    };
    format!("[{}]", (0..3).map(tool).collect::<Vec<_>>().join(", "))
}

#[tokio::test]
async fn br_034_equal_requests_stay_equal_while_a_cap_is_applied() {
    let (replica, gateway) = capped().await;
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"x"}}],"tools":{}}}"#, tools());

    let answers = gateway.send_all((0..100).map(|_| Request::body(body.clone())), 8).await;

    all_good(&answers, "100 equal requests");
    let posts = replica.posts();
    let distinct: HashSet<Vec<u8>> = posts.iter().map(|post| post.body().to_vec()).collect();
    assert_eq!((posts.len(), distinct.len()), (100, 1), "equal requests must be equal at the replica");
    assert!(posts[0].has(&tools()), "the tools keep their text: {}", short(posts[0].body()));
    assert_eq!(posts[0].json()["max_tokens"], 100, "the default cap is spliced in");
}

#[tokio::test]
async fn br_036_number_text_survives_with_and_without_a_rewrite() {
    let (replica, gateway) = aliased().await;
    for model in ["m", "fast"] {
        let body = format!(
            r#"{{"model":"{model}","messages":[{{"role":"user","content":"x"}}],"temperature":0.1000000000000000055511151231257827,"top_p":1.0,"x":1e-7,"y":-0.0,"seed":18446744073709551617}}"#
        );
        let want = body.replacen("\"fast\"", "\"m\"", 1);
        becomes(&replica, &gateway, &Request::body(body), want.as_bytes()).await;
    }
}

/// Escapes that are no Unicode text.
const LONE_SURROGATES: [&str; 3] = [r"cut emoji \ud83d here", r"\udc00 first", r"\ud800\ud800"];

#[tokio::test]
async fn br_038_a_lone_surrogate_never_skips_the_cap() {
    let (replica, gateway) = capped().await;
    for text in LONE_SURROGATES {
        for body in [
            format!(r#"{{"model":"m","max_tokens":999999,"messages":[{{"role":"user","content":"{text}"}}]}}"#),
            format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}],"max_tokens":999999}}"#),
            format!(r#"{{"model":"m","{text}":1,"max_tokens":999999,"messages":[]}}"#),
        ] {
            let answer = gateway.send(&Request::body(body.clone())).await;
            json_error(&answer, 400);
        }
        let under = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}],"max_tokens":50}}"#);
        let answer = gateway.send(&Request::body(under)).await;
        assert!([200, 400].contains(&answer.status), "understood, or refused cleanly: {}", answer.text());
    }
    assert!(replica.posts().iter().all(|post| !post.has("999999")), "no replica may see a value over the cap");
}

#[tokio::test]
async fn br_039_a_lone_surrogate_is_kept_or_refused_cleanly() {
    let (replica, gateway) = aliased().await;
    for model in ["m", "fast"] {
        for text in LONE_SURROGATES {
            for stream in ["true", "false"] {
                let body = format!(
                    r#"{{"model":"{model}","messages":[{{"role":"tool","tool_call_id":"t1","content":"{text}"}}],"stream":{stream}}}"#
                );
                let n = replica.count();
                let answer = gateway.send(&Request::body(body)).await;
                if answer.status == 200 {
                    assert!(replica.post(n).await.has(text), "the escape {text} is kept");
                } else {
                    json_error(&answer, 400);
                }
            }
        }
    }
}

#[tokio::test]
async fn br_040_large_bodies_pass_up_to_the_limit() {
    let (replica, gateway) = pair().await;
    let picture = format!("data:image/png;base64,{}", "iVBORw0KGgoA".repeat((20 << 20) / 12));
    let bodies = [
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{}"}}]}}"#, "a".repeat(3 << 20)),
        format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":[{{"type":"text","text":"what"}},{{"type":"image_url","image_url":{{"url":"{picture}"}}}}]}}]}}"#
        ),
    ];

    for body in bodies {
        unchanged(&replica, &gateway, &Request::body(body)).await;
    }
}

#[tokio::test]
async fn br_040_a_body_over_the_limit_is_a_413() {
    let replica = ScriptedReplica::start();
    let gateway = TestGateway::with(Config::new(std::slice::from_ref(&replica)).limit("body: 64KiB")).await;
    let of_size = |size: usize| {
        let frame = r#"{"model":"m","messages":[{"role":"user","content":""}]}"#.len();
        Request::chat(&"a".repeat(size - frame))
    };

    assert_eq!(gateway.send(&of_size(64 << 10)).await.status, 200, "a body of exactly the limit passes");
    let over = gateway.send(&of_size((64 << 10) + 1)).await;
    assert_eq!(json_error(&over, 413)["code"], "body_too_large");
    let chunk = format!("{:x}\r\n{}\r\n", 70 << 10, "a".repeat(70 << 10));
    let chunked = Request::body(format!("{chunk}0\r\n\r\n")).header("Transfer-Encoding", "chunked");
    assert_eq!(json_error(&gateway.send(&chunked).await, 413)["code"], "body_too_large");

    gateway.reaches("gateway_requests_total", &[("outcome", "client_error")], 2.0).await;
    assert_eq!(replica.count(), 1, "a refused body reaches no replica");
}

#[tokio::test]
async fn br_042_list_null_and_unknown_content() {
    let (replica, gateway) = pair().await;
    let body = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"what"},{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}},{"type":"x_new_part","y":1}]},{"role":"assistant","content":null,"tool_calls":[{"id":"t","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"t","content":[{"type":"text","text":"r"}]}]}"#;

    unchanged(&replica, &gateway, &Request::body(body)).await;
}

#[tokio::test]
async fn br_043_the_gateway_needs_only_what_its_policy_needs() {
    let (replica, gateway) = pair().await;

    unchanged(&replica, &gateway, &Request::body(r#"{"model":"m","messages":[]}"#)).await;
    unchanged(&replica, &gateway, &Request::post("/v1/embeddings", r#"{"model":"m","input":"x"}"#)).await;
    unchanged(&replica, &gateway, &Request::post(COMPLETIONS, r#"{"model":"m"}"#)).await;

    let answer = gateway.send(&Request::body("{}")).await;
    if answer.status != 200 {
        json_error(&answer, answer.status);
        assert!((400..500).contains(&answer.status), "what is missing is the client's error: {}", answer.status);
    }
}

#[tokio::test]
async fn br_044_embeddings_of_token_arrays() {
    let (replica, gateway) = pair().await;
    for input in ["[[1,2],[3]]", "[1,2,3]"] {
        let body = format!(r#"{{"model":"m","input":{input}}}"#);
        unchanged(&replica, &gateway, &Request::post("/v1/embeddings", body)).await;
    }
}
