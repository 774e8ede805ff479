//! A generation request from body to answer.
//!
//! The engines differ in when the head leaves: vLLM sends 200 at once, even while the request queues, SGLang waits for
//! the first token. A full queue is 503 in both, but SGLang tells a stream so in a 200 with an error event.
//! Source: `shared/reference/engines.md` sections 3 and 6, captures `queue-full.jsonl`.

use std::sync::Arc;

use http::{HeaderMap, Response};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    Server,
    answer::{json, sse},
    body::{EventStream, Planned, SimBody, usage},
    config::Flavor,
    driver::{Job, Refusal, Ticket},
    errors::ApiError,
    outbox::Progress,
    output::{Finish, Output},
    parse::{self, Generation},
    wire::{self, Choice, Head, id_list},
};
use crate::{
    simulator::{Prompt, Request},
    types::Endpoint,
};

/// Answers a generation request.
pub(super) async fn generate(
    server: &Arc<Server>,
    endpoint: Endpoint,
    headers: &HeaderMap,
    body: &Value,
) -> Result<Response<SimBody>, ApiError> {
    let config = &server.config;
    let flavor = config.flavor;
    let Some(map) = body.as_object() else { return Err(not_an_object(flavor, body)) };
    let generation = parse::parse(config, endpoint, map)?;
    let (jobs, planned) = plan(server, &generation);
    let head = head(server, &generation, headers, &planned);
    let ticket = match server.driver.submit(jobs) {
        Ok(ticket) => ticket,
        Err(refusal) => return refuse(flavor, refusal, generation.stream),
    };
    let wire = wire::wire(config, &generation, head);
    let block_size = config.engine.block_size;
    if !generation.stream {
        return whole(ticket, wire, planned, generation.return_token_ids, block_size).await;
    }
    let mut stream = EventStream::new(ticket, wire, planned, block_size)
        .with_token_ids(generation.return_token_ids)
        .with_keep_alive(config.keep_alive);
    let waits = flavor == Flavor::Sglang && endpoint != Endpoint::Responses;
    if waits && !stream.first_token().await {
        return Err(ApiError::dead());
    }
    Ok(sse(SimBody::Stream(Box::new(stream))))
}

fn not_an_object(flavor: Flavor, body: &Value) -> ApiError {
    if flavor == Flavor::Sglang {
        // As captured: a JSON array is an internal error, in plain text.
        return ApiError { status: 500, message: String::new(), kind: "plain", param: None };
    }
    let message = "Input should be a valid dictionary or object to extract fields from";
    let shown = super::errors::shown(flavor, body);
    ApiError::schema(flavor, "model_attributes_type", &[], message, &shown)
}

fn refuse(flavor: Flavor, refusal: Refusal, stream: bool) -> Result<Response<SimBody>, ApiError> {
    let error = match refusal {
        Refusal::Full => ApiError::queue_full(flavor),
        Refusal::Dead => ApiError::dead(),
        Refusal::Fault => ApiError { message: "Internal server error".to_owned(), ..ApiError::dead() },
    };
    if flavor == Flavor::Sglang && stream && refusal == Refusal::Full {
        let events = error.event(flavor) + "data: [DONE]\n\n";
        return Ok(sse(SimBody::text(events)));
    }
    Err(error)
}

/// What every choice will say, and what the engine is asked for: choices of one prompt follow each other.
fn plan(server: &Server, generation: &Generation) -> (Vec<Job>, Vec<Planned>) {
    let config = &server.config;
    let (mut jobs, mut planned) = (Vec::new(), Vec::new());
    for prompt in &generation.prompts {
        let blocks = Prompt::from_ids(&prompt.ids, config.engine.block_size, generation.root);
        let bytes: Vec<u8> = prompt.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let name = xxh3_64_with_seed(&bytes, config.seed);
        for choice in 0..generation.n {
            // Greedy choices are alike; the others differ by seed and number, and are the same on every replica.
            let mut seed = name;
            if generation.temperature != Some(0.0) {
                let salt = [generation.seed.unwrap_or(0).to_le_bytes(), (choice as u64).to_le_bytes()].concat();
                seed = if choice == 0 && generation.seed.is_none() { name } else { xxh3_64_with_seed(&salt, name) };
            }
            let output = match &generation.tool {
                Some(call) => Output::scripted(seed, &call.arguments, generation.rules.max_tokens),
                None => Output::plan(seed, &generation.rules),
            };
            let request = Request { prompt: blocks.clone(), output_tokens: output.length, output_seed: output.seed };
            jobs.push(Job { request, ends_by_itself: output.finish != Finish::Length });
            let prompt_tokens = if choice == 0 { prompt.ids.len() } else { 0 };
            let echo = if generation.echo { prompt.text.clone() } else { String::new() };
            planned.push(Planned { output, prompt_tokens, echo });
        }
    }
    (jobs, planned)
}

fn head(server: &Server, generation: &Generation, headers: &HeaderMap, planned: &[Planned]) -> Head {
    let config = &server.config;
    let header = headers.get("x-request-id").and_then(|value| value.to_str().ok());
    let (id, choice_ids) = match (config.flavor, generation.endpoint) {
        (_, Endpoint::Responses) => (format!("resp_{}", server.fresh_id()), Vec::new()),
        (Flavor::Sglang, Endpoint::Messages) => (format!("msg_{}", server.fresh_long_id()), Vec::new()),
        (Flavor::Sglang, _) => {
            let own = || generation.id.clone().unwrap_or_else(|| server.fresh_long_id());
            let choices = if generation.stream && planned.len() > 1 {
                (0..planned.len()).map(|_| server.fresh_long_id()).collect()
            } else {
                Vec::new()
            };
            (own(), choices)
        }
        (Flavor::Vllm, endpoint) => {
            let prefix = if endpoint == Endpoint::Completions { "cmpl" } else { "chatcmpl" };
            let own = header.map(str::to_owned).or_else(|| generation.id.clone());
            (format!("{prefix}-{}", own.unwrap_or_else(|| server.fresh_id())), Vec::new())
        }
    };
    let tool_id = || match (config.flavor, generation.endpoint) {
        (_, Endpoint::Messages) => format!("toolu_{}", server.fresh_id()),
        (Flavor::Vllm, _) => format!("chatcmpl-tool-{}", server.fresh_id()),
        (Flavor::Sglang, _) => format!("call_{}", server.fresh_long_id().get(..24).unwrap_or("0")),
    };
    // As captured: vLLM's echo in a stream names the prompt's ids without being asked.
    let echoes = generation.echo && generation.stream && config.flavor == Flavor::Vllm;
    let shows_ids = generation.return_token_ids || echoes;
    let lengths = generation.prompts.iter().map(|prompt| prompt.ids.len());
    let lists = generation.prompts.iter().map(|prompt| id_list(&prompt.ids));
    Head {
        id,
        choice_ids,
        created: super::unix_seconds(),
        model: generation.model.clone(),
        fingerprint: server.fingerprint.clone(),
        choices: planned.len(),
        prompt_tokens: lengths.flat_map(|length| std::iter::repeat_n(length, generation.n)).collect(),
        block_size: config.engine.block_size,
        report_cached: config.report_cached_tokens,
        include_usage: generation.include_usage,
        continuous_usage: generation.continuous_usage,
        max_tokens: generation.asked_tokens,
        temperature: generation.temperature,
        prompt_ids: shows_ids.then(|| lists.flat_map(|list| std::iter::repeat_n(list, generation.n)).collect()),
        tool: generation.tool.as_ref().map(|call| (call.name.clone(), tool_id())),
    }
}

/// Waits for all choices and answers at once. Dropped with its connection, it takes the ticket along.
async fn whole(
    ticket: Ticket,
    wire: Box<dyn wire::Wire>,
    planned: Vec<Planned>,
    token_ids: bool,
    block_size: usize,
) -> Result<Response<SimBody>, ApiError> {
    let (mut seen, mut progress) = (0, Vec::<Progress>::new());
    while progress.is_empty() || progress.iter().any(|progress| !progress.finished) {
        if !std::future::poll_fn(|cx| ticket.outbox.poll(&mut seen, &mut progress, cx)).await {
            return Err(ApiError::dead());
        }
    }
    let usage = usage(planned.iter().map(|planned| planned.prompt_tokens).zip(progress), block_size);
    let choices: Vec<Choice> = planned
        .into_iter()
        .map(|Planned { output, echo, .. }| {
            let ids = if token_ids {
                id_list(&(0..output.length).map(|at| output.token(at)).collect::<Vec<_>>())
            } else {
                "null".to_owned()
            };
            Choice { text: echo + &output.text(), ids, finish: output.finish }
        })
        .collect();
    Ok(json(200, wire.whole(&choices, &usage)))
}
