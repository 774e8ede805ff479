//! What a small engine says when no script is set: vLLM's and SGLang's GET endpoints, and a two-word answer.

use super::{
    super::sse::{DONE, content, finish, role, usage},
    Flavor, Health, State,
    script::{Script, reply, stream},
};

/// The whole answer of a chat.
pub(crate) const COMPLETION: &str = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi there"},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}"#;
const TEXT: &str = r#"{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"hi","logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}"#;
const EMBEDDING: &str = r#"{"object":"list","model":"m","data":[{"object":"embedding","index":0,"embedding":[0.1,0.2]}],"usage":{"prompt_tokens":2,"total_tokens":2}}"#;
const RESPONSE: &str = r#"{"id":"resp_1","object":"response","created_at":1,"model":"m","status":"completed","output":[],"usage":{"input_tokens":3,"output_tokens":1,"total_tokens":4}}"#;
const MESSAGE: &str = r#"{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":1}}"#;

/// Answers every POST as the endpoint asks.
pub(super) fn small() -> Script {
    Script::new(|play| async move {
        let body = play.request.json();
        let script: Script = match play.request.path() {
            path if path.ends_with("/chat/completions") && body["stream"] == true => {
                let asked = body["stream_options"]["include_usage"] == true;
                let usage = if asked { usage(5, 2) } else { String::new() };
                stream([role(), content("hi"), content(" there"), finish() + &usage + DONE]).into()
            }
            path if path.ends_with("/chat/completions") => reply(200, COMPLETION).into(),
            path if path.ends_with("/completions") => reply(200, TEXT).into(),
            path if path.ends_with("/embeddings") => reply(200, EMBEDDING).into(),
            path if path.ends_with("/responses") => reply(200, RESPONSE).into(),
            path if path.ends_with("/messages") => reply(200, MESSAGE).into(),
            path if path.ends_with("/tokenize") => {
                reply(200, r#"{"count":3,"max_model_len":4096,"tokens":[1,2,3]}"#).into()
            }
            _ => reply(200, r#"{"ok":true}"#).into(),
        };
        script.run(play).await
    })
}

/// Answers a GET as the engine does.
pub(super) fn get(flavor: Flavor, model: &str, path: &str, state: &State) -> Script {
    let vllm = flavor == Flavor::Vllm;
    let ends = |suffix: &str| path.ends_with(suffix);
    if ["/health", "/health_generate", "/ping", "/ready"].into_iter().any(ends) {
        return match state.health {
            Health::Status(status) => reply(status, "").into(),
            Health::Hang => Script::new(|play| async move { play.hang().await }),
        };
    }
    if ends("/v1/models") {
        let owner = if vllm { "vllm" } else { "sglang" };
        return reply(200, format!(
            r#"{{"object":"list","data":[{{"id":"{model}","object":"model","created":1,"owned_by":"{owner}","root":"{model}","parent":null,"max_model_len":131072}}]}}"#
        )).into();
    }
    if ends("/metrics") {
        return reply(200, metrics(flavor, model, state))
            .content_type("text/plain; version=0.0.4; charset=utf-8")
            .into();
    }
    match path {
        _ if vllm && ends("/version") => reply(200, r#"{"version":"0.32.0"}"#),
        _ if vllm && ends("/load") => reply(200, format!(r#"{{"server_load":{}}}"#, state.active)),
        _ if !vllm && (ends("/server_info") || ends("/get_server_info")) => reply(200, format!(
            r#"{{"model_path":"{model}","served_model_name":"{model}","version":"0.5.23","context_length":131072,"max_total_num_tokens":1000000,"dp_size":1,"tp_size":1,"page_size":16}}"#
        )),
        _ if !vllm && (ends("/model_info") || ends("/get_model_info")) => reply(200, format!(
            r#"{{"model_path":"{model}","served_model_name":"{model}","tokenizer_path":"{model}","is_generation":true,"model_type":"llama"}}"#
        )),
        _ => reply(404, r#"{"detail":"Not Found"}"#),
    }
    .into()
}

fn metrics(flavor: Flavor, model: &str, state: &State) -> String {
    let (active, started) = (state.active, state.started);
    let engine = match flavor {
        Flavor::Vllm => format!(
            r#"# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{model}"}} {active}.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="{model}"}} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="{model}"}} 0.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",num_gpu_blocks="100000"}} 1.0
"#
        ),
        Flavor::Sglang => format!(
            r#"# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{model_name="{model}"}} {active}.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{{model_name="{model}"}} 0.0
# TYPE sglang:token_usage gauge
sglang:token_usage{{model_name="{model}"}} 0.0
"#
        ),
    };
    format!("{engine}# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {started}\n")
}
