//! Theme fallback: hosted models in place of the pool. Before the first byte, under their own key, within their budget.

mod answers;
mod budget;
mod cases;
mod outage;
mod poison;
mod targets;
mod tls;

use crate::support::{
    gateway::{Config, TestGateway},
    replica::{
        ScriptedReplica,
        script::{Reply, Script, reply, stream},
    },
    sse::{DONE, content, finish, role, usage},
};

/// What an engine says that is full.
const FULL: &str = r#"{"error":{"message":"overloaded"}}"#;

/// The whole answer of a hosted model, under its own name.
const HOSTED: &str = r#"{"id":"h1","object":"chat.completion","created":1,"model":"hosted-x-2026","choices":[{"index":0,"message":{"role":"assistant","content":"hosted"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1000,"completion_tokens":100,"total_tokens":1100},"system_fingerprint":"fp"}"#;

/// The events of a hosted model, under its own name.
fn hosted_events(asked: bool) -> Vec<String> {
    let usage = if asked { usage(1000, 100) } else { String::new() };
    let events = [role(), content("hos"), content("ted"), finish(), usage, DONE.to_owned()];
    events.iter().map(|event| event.replace(r#""model":"m""#, r#""model":"hosted-x-2026""#)).collect()
}

/// A hosted API: streams when asked, and says usage when asked.
fn hosted_api() -> ScriptedReplica {
    let api = ScriptedReplica::start();
    api.plays(Script::new(|play| async move {
        let body = play.request.json();
        let script: Script = if body["stream"] == true {
            stream(hosted_events(body["stream_options"]["include_usage"] == true)).into()
        } else {
            reply(200, HOSTED).into()
        };
        script.run(play).await
    }));
    api
}

/// A target in the configuration; `more` begins with a comma.
fn entry(api: &ScriptedReplica, more: &str) -> String {
    format!(r#"{{ url: "{}/v1", model: hosted-x, api_key: sk-hosted{more} }}"#, api.url())
}

fn targets(entries: &[String]) -> String {
    format!("fallback: [ {} ]", entries.join(", "))
}

/// A replica, a hosted API, and a gateway that knows both.
async fn outage_of(more: &str) -> (ScriptedReplica, ScriptedReplica, TestGateway) {
    let (replica, api) = (ScriptedReplica::start(), hosted_api());
    let config = Config::new(std::slice::from_ref(&replica)).model(&targets(&[entry(&api, more)]));
    let gateway = TestGateway::with(config).await;
    (replica, api, gateway)
}

fn full() -> Reply {
    reply(503, FULL)
}
