//! One answer format an endpoint and engine: events of a stream, and the whole answer.
//!
//! Written by hand rather than through a JSON map, because key order is part of what clients and gateways see.
//! Source: `shared/captures/{vllm,sglang}/{stream,json}`.

mod messages;
mod responses;
mod sglang;
mod vllm;

use serde_json::json;

use super::{
    config::{Flavor, SimConfig},
    errors::ApiError,
    output::Finish,
    parse::Generation,
};
use crate::types::Endpoint;

/// What all formats say of a request.
#[derive(Debug)]
pub(super) struct Head {
    /// Id of the whole answer.
    pub(super) id: String,
    /// Ids of the choices where they differ (SGLang streams); empty otherwise.
    pub(super) choice_ids: Vec<String>,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) fingerprint: String,
    pub(super) choices: usize,
    pub(super) prompt_tokens: Vec<usize>,
    pub(super) block_size: usize,
    pub(super) report_cached: bool,
    pub(super) include_usage: bool,
    pub(super) continuous_usage: bool,
    pub(super) max_tokens: Option<usize>,
    pub(super) temperature: Option<f64>,
    /// Prompt ids of each choice, when the client wants them.
    pub(super) prompt_ids: Option<Vec<String>>,
    /// Name and id of a forced tool call.
    pub(super) tool: Option<(String, String)>,
}

impl Head {
    fn id_of(&self, index: usize) -> &str {
        self.choice_ids.get(index).unwrap_or(&self.id)
    }

    fn prompt_tokens(&self, index: usize) -> usize {
        self.prompt_tokens.get(index).copied().unwrap_or(0)
    }
}

/// News of one choice.
#[derive(Debug)]
pub(super) struct Delta<'a> {
    pub(super) index: usize,
    pub(super) text: &'a str,
    /// Ids of the new tokens, as a JSON list or `null`.
    pub(super) ids: &'a str,
    /// Whether these are the first tokens of the whole answer.
    pub(super) opens: bool,
    /// Whether these are the first tokens of this choice.
    pub(super) first: bool,
    pub(super) finish: Option<&'a Finish>,
    /// Whether all choices have ended with this.
    pub(super) last: bool,
    pub(super) generated: usize,
    pub(super) cached: usize,
}

/// One choice of a whole answer.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) text: String,
    pub(super) ids: String,
    pub(super) finish: Finish,
}

/// Tokens of the whole answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) prompt: usize,
    pub(super) completion: usize,
    pub(super) cached: usize,
    /// Prompt tokens that were written to the cache.
    pub(super) stored: usize,
}

/// A format.
pub(super) trait Wire: Send {
    /// Events before any token.
    fn open(&mut self, _out: &mut String) {}
    /// Events of new tokens.
    fn delta(&mut self, out: &mut String, delta: &Delta<'_>);
    /// Events after the last token.
    fn close(&mut self, out: &mut String, usage: &Usage);
    /// Events when the engine fails in mid-stream.
    fn fail(&mut self, out: &mut String, error: &ApiError);
    /// The whole answer.
    fn whole(&self, choices: &[Choice], usage: &Usage) -> String;
}

/// The format of `generation`'s answer.
pub(super) fn wire(config: &SimConfig, generation: &Generation, head: Head) -> Box<dyn Wire> {
    match (generation.endpoint, config.flavor) {
        (Endpoint::Messages, flavor) => Box::new(messages::Messages::new(flavor, head)),
        (Endpoint::Responses, flavor) => Box::new(responses::Responses::new(flavor, head)),
        (Endpoint::Completions, Flavor::Vllm) => Box::new(vllm::Completions(head)),
        (_, Flavor::Vllm) => Box::new(vllm::Chat(head)),
        (Endpoint::Completions, Flavor::Sglang) => Box::new(sglang::Completions(head)),
        (_, Flavor::Sglang) => Box::new(sglang::Chat::new(head)),
    }
}

const DONE: &str = "data: [DONE]\n\n";

/// JSON text of a string.
fn quoted(text: &str) -> String {
    json!(text).to_string()
}

/// JSON text of a list of token ids.
pub(super) fn id_list(ids: &[u32]) -> String {
    json!(ids).to_string()
}

/// The stop string or token that ended the text, as JSON; null for the end-of-sequence token and for length.
fn matched(finish: &Finish) -> String {
    match finish {
        Finish::Stop(text) => quoted(text),
        Finish::StopToken(id) => id.to_string(),
        Finish::Length | Finish::Eos => "null".to_owned(),
    }
}
