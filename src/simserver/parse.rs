//! A generation request of any endpoint, checked as the engine checks it.
//!
//! Order matters to clients: schema errors first, then the model, then values, then lengths. SGLang never checks the
//! model's name: it answers 200 and repeats the name it was asked for.
//! Source: `shared/captures/{vllm,sglang}/errors`.

use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    config::{Flavor, SimConfig},
    errors::ApiError,
    fields::Fields,
    output::StopRules,
    template, tools,
};
use crate::{simulator::text, types::Endpoint};

/// One prompt.
#[derive(Debug)]
pub(super) struct PromptText {
    pub(super) ids: Vec<u32>,
    /// What `echo` repeats.
    pub(super) text: String,
}

/// A checked request.
#[derive(Debug)]
pub(super) struct Generation {
    pub(super) endpoint: Endpoint,
    pub(super) model: String,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) continuous_usage: bool,
    pub(super) n: usize,
    pub(super) rules: StopRules,
    /// `max_tokens` as asked, which some answers repeat.
    pub(super) asked_tokens: Option<usize>,
    pub(super) seed: Option<i64>,
    pub(super) echo: bool,
    pub(super) return_token_ids: bool,
    /// Start of the hash chain: cache salt and adapter.
    pub(super) root: u64,
    pub(super) prompts: Vec<PromptText>,
    pub(super) tool: Option<tools::Call>,
    pub(super) temperature: Option<f64>,
    /// `rid` (SGLang) or `request_id` (vLLM).
    pub(super) id: Option<String>,
}

/// vLLM's `VLLM_MAX_N_SEQUENCES`; SGLang has no bound, which is no behaviour to copy.
const MAX_N: i64 = 16_384;
/// vLLM's bound on characters: the longest piece of its vocabulary has 41.
const CHARS_PER_TOKEN: usize = 41;

/// Checks the body of `endpoint`.
pub(super) fn parse(config: &SimConfig, endpoint: Endpoint, map: &Map<String, Value>) -> Result<Generation, ApiError> {
    let flavor = config.flavor;
    let fields = Fields::new(flavor, map);
    let stream = fields.boolean("stream")?;
    let temperature = fields.number("temperature")?;
    let top_p = fields.number("top_p")?;
    let seed = fields.integer("seed")?;
    let asked = asked_tokens(&fields, endpoint)?;
    let n = fields.integer("n")?.unwrap_or(1);
    let (include_usage, continuous_usage) = stream_options(&fields, stream)?;
    let model = model(config, &fields)?;
    check_values(flavor, temperature, top_p, n)?;
    let salt = fields.text("cache_salt")?;
    if salt == Some("") && flavor == Flavor::Vllm {
        let message = "Parameter 'cache_salt' must be a non-empty string if provided.";
        return Err(ApiError::param(flavor, message, "cache_salt", None));
    }
    let tool = tools::forced(&fields)?;
    let mut prompts = prompts(config, &fields, endpoint)?;
    if flavor == Flavor::Vllm
        && let Some(keep) = fields.integer("truncate_prompt_tokens")?.and_then(|keep| usize::try_from(keep).ok())
    {
        for prompt in &mut prompts {
            let cut = prompt.ids.len().saturating_sub(keep.max(1));
            prompt.ids.drain(..cut);
        }
    }
    // As captured: 0 is refused, unless the prompt is echoed.
    let echo = endpoint == Endpoint::Completions && fields.boolean("echo")?;
    let checked = asked.filter(|asked| !(echo && *asked == 0));
    let limit = max_tokens(config, endpoint, checked, &prompts)?;
    let max_tokens = if checked == asked { limit } else { 0 };
    let rules = StopRules {
        max_tokens,
        min_tokens: fields
            .integer("min_tokens")?
            .and_then(|min| usize::try_from(min).ok())
            .unwrap_or(0)
            .min(max_tokens),
        ignore_eos: fields.boolean("ignore_eos")?,
        strings: stop_strings(&fields, endpoint)?,
        token_ids: token_ids(fields.get("stop_token_ids")).unwrap_or_default(),
        keep_stop_string: fields.boolean("include_stop_str_in_output")?,
        mean: config.output_tokens,
    };
    let root = salt.map_or(0, |salt| xxh3_64(salt.as_bytes())) ^ adapter(config, &model);
    let id = fields.text(if flavor == Flavor::Vllm { "request_id" } else { "rid" })?.map(str::to_owned);
    Ok(Generation {
        endpoint,
        stream,
        include_usage,
        continuous_usage,
        n: usize::try_from(n).unwrap_or(1),
        rules,
        asked_tokens: asked.and_then(|asked| usize::try_from(asked).ok()),
        seed,
        echo,
        return_token_ids: fields.boolean("return_token_ids")?,
        root,
        prompts,
        tool,
        temperature,
        id,
        model,
    })
}

/// The model's name; `base:adapter` is an adapter of SGLang.
fn model(config: &SimConfig, fields: &Fields<'_>) -> Result<String, ApiError> {
    let asked = fields.text("model")?.unwrap_or(&config.model);
    if config.flavor == Flavor::Vllm && asked != config.model {
        return Err(ApiError::unknown_model(asked, &config.model));
    }
    Ok(asked.to_owned())
}

fn adapter(config: &SimConfig, model: &str) -> u64 {
    model
        .strip_prefix(config.model.as_str())
        .filter(|rest| rest.starts_with(':'))
        .map_or(0, |name| xxh3_64(name.as_bytes()))
}

fn stream_options(fields: &Fields<'_>, stream: bool) -> Result<(bool, bool), ApiError> {
    let Some(options) = fields.get("stream_options") else { return Ok((false, false)) };
    if !stream && fields.flavor == Flavor::Vllm {
        let message = "Stream options can only be defined when `stream=True`.";
        return Err(ApiError::param(fields.flavor, message, "stream_options", None));
    }
    let Some(map) = options.as_object() else { return Ok((false, false)) };
    let options = Fields::new(fields.flavor, map);
    Ok((options.boolean("include_usage")?, options.boolean("continuous_usage_stats")?))
}

fn asked_tokens(fields: &Fields<'_>, endpoint: Endpoint) -> Result<Option<i64>, ApiError> {
    Ok(match endpoint {
        Endpoint::Chat => fields.integer("max_completion_tokens")?.or(fields.integer("max_tokens")?),
        Endpoint::Responses => fields.integer("max_output_tokens")?,
        Endpoint::Messages => {
            fields.required("max_tokens")?;
            fields.integer("max_tokens")?
        }
        _ => fields.integer("max_tokens")?,
    })
}

fn check_values(flavor: Flavor, temperature: Option<f64>, top_p: Option<f64>, n: i64) -> Result<(), ApiError> {
    if let Some(value) = temperature.filter(|value| *value < 0.0) {
        let message = match flavor {
            Flavor::Vllm => format!("temperature must be non-negative, got {value:?}."),
            Flavor::Sglang => format!("temperature must be a non-negative finite number, got {value:?}."),
        };
        return Err(ApiError::param(flavor, &message, "temperature", Some(format!("{value:?}"))));
    }
    if let Some(value) = top_p.filter(|value| *value <= 0.0 || *value > 1.0) {
        let message = format!("top_p must be in (0, 1], got {value:?}.");
        return Err(ApiError::param(flavor, &message, "top_p", Some(format!("{value:?}"))));
    }
    match (flavor, n) {
        (Flavor::Vllm, ..1) => Err(ApiError::bad(format!("n must be at least 1, got {n}."))),
        (Flavor::Sglang, ..1) => {
            Err(ApiError { kind: "BadRequest", ..ApiError::bad("range() arg 3 must not be zero") })
        }
        (_, 1..=MAX_N) => Ok(()),
        _ => Err(ApiError::bad(format!(
            "n must be at most {MAX_N}, got {n}. To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
        ))),
    }
}

fn stop_strings(fields: &Fields<'_>, endpoint: Endpoint) -> Result<Vec<String>, ApiError> {
    let mut strings = fields.strings(if endpoint == Endpoint::Messages { "stop_sequences" } else { "stop" })?;
    strings.retain(|stop| !stop.is_empty());
    Ok(strings)
}

/// Non-negative integers of a JSON list, if it is one.
pub(super) fn token_ids(value: Option<&Value>) -> Option<Vec<u32>> {
    value?.as_array()?.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
}

fn prompts(config: &SimConfig, fields: &Fields<'_>, endpoint: Endpoint) -> Result<Vec<PromptText>, ApiError> {
    let flavor = config.flavor;
    match endpoint {
        Endpoint::Completions => completion_prompts(config, fields),
        Endpoint::Responses => {
            let mut messages = Vec::new();
            if let Some(text) = fields.text("instructions")? {
                messages.push(serde_json::json!({"role": "system", "content": text}));
            }
            match fields.required("input")? {
                Value::Array(items) => messages.extend(items.iter().cloned()),
                input => messages.push(serde_json::json!({"role": "user", "content": input})),
            }
            let text = template::chat(flavor, &config.model, fields.get("tools"), &messages, true)?;
            Ok(vec![encode(config, text)?])
        }
        _ => {
            fields.required("messages")?;
            let list = fields.list("messages")?.unwrap_or_default();
            if list.is_empty() {
                return Err(ApiError::bad(match flavor {
                    Flavor::Vllm => {
                        "Cannot apply chat template to an empty conversation. Provide at least one message."
                    }
                    Flavor::Sglang => "Messages cannot be empty.",
                }));
            }
            let mut messages = Vec::with_capacity(list.len() + 1);
            if endpoint == Endpoint::Messages
                && let Some(system) = fields.get("system")
            {
                messages.push(serde_json::json!({"role": "system", "content": system}));
            }
            messages.extend(list.iter().cloned());
            let cue = fields.get("add_generation_prompt").and_then(Value::as_bool).unwrap_or(true);
            if cue && fields.get("add_generation_prompt").is_some() && fields.boolean("continue_final_message")? {
                let message = "Cannot set both `continue_final_message` and `add_generation_prompt` to True.";
                return Err(ApiError::bad(message));
            }
            let text = template::chat(flavor, &config.model, fields.get("tools"), &messages, cue)?;
            Ok(vec![encode(config, text)?])
        }
    }
}

fn completion_prompts(config: &SimConfig, fields: &Fields<'_>) -> Result<Vec<PromptText>, ApiError> {
    let empty = || {
        let message = "Either prompt or prompt_embeds must be provided and non-empty.";
        ApiError::param(config.flavor, message, "prompt", None)
    };
    match fields.required("prompt")? {
        Value::String(text) if text.is_empty() => Err(empty()),
        Value::String(text) => Ok(vec![encode(config, text.clone())?]),
        Value::Array(list) if list.is_empty() => Err(empty()),
        Value::Array(list) if list.iter().all(Value::is_string) => {
            list.iter().filter_map(Value::as_str).map(|text| encode(config, text.to_owned())).collect()
        }
        Value::Array(list) if list.iter().all(Value::is_array) => {
            list.iter().map(|ids| from_ids(fields, ids)).collect()
        }
        ids => Ok(vec![from_ids(fields, ids)?]),
    }
}

fn encode(config: &SimConfig, text: String) -> Result<PromptText, ApiError> {
    let most = config.max_model_len.saturating_mul(CHARS_PER_TOKEN);
    if config.flavor == Flavor::Vllm && text.len() > most {
        let (chars, limit) = (text.len(), config.max_model_len);
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, your prompt contains {chars} characters \
             (more than {most} characters, which is the upper bound for {limit} input tokens). Please reduce the length \
             of the input prompt."
        );
        return Err(ApiError::param(config.flavor, &message, "input_text", Some(chars.to_string())));
    }
    Ok(PromptText { ids: text::tokenize(&text), text })
}

fn from_ids(fields: &Fields<'_>, value: &Value) -> Result<PromptText, ApiError> {
    let Some(ids) = token_ids(Some(value)).filter(|ids| !ids.is_empty()) else {
        return Err(ApiError::schema(
            fields.flavor,
            "string_type",
            &["prompt"],
            "Input should be a valid string",
            "'...'",
        ));
    };
    if let Some(id) = ids.iter().find(|id| **id >= text::VOCABULARY) {
        return Err(ApiError::bad(format!("Token id {id} is out of vocabulary")));
    }
    Ok(PromptText { text: text::detokenize(&ids), ids })
}

/// Checks lengths; the output limit that holds for the longest prompt.
fn max_tokens(
    config: &SimConfig,
    endpoint: Endpoint,
    asked: Option<i64>,
    prompts: &[PromptText],
) -> Result<usize, ApiError> {
    let (flavor, limit) = (config.flavor, config.max_model_len);
    if let Some(asked) = asked {
        check_asked(flavor, endpoint, asked, limit)?;
    }
    let longest = prompts.iter().map(|prompt| prompt.ids.len()).max().unwrap_or(0);
    if longest >= limit {
        let at_least = limit + 1;
        let message = match flavor {
            Flavor::Vllm => format!(
                "This model's maximum context length is {limit} tokens. However, your prompt contains at least {at_least} \
                 input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the \
                 input prompt."
            ),
            Flavor::Sglang => {
                format!("The input ({longest} tokens) is longer than the model's context length ({limit} tokens).")
            }
        };
        return Err(ApiError::param(flavor, &message, "input_tokens", Some(at_least.to_string())));
    }
    let Some(asked) = asked.and_then(|asked| usize::try_from(asked).ok()) else {
        let default = if endpoint == Endpoint::Completions { 16 } else { usize::MAX };
        return Ok(default.min(limit - longest));
    };
    if longest + asked > limit {
        let total = longest + asked;
        let message = match flavor {
            Flavor::Vllm => format!(
                "This model's maximum context length is {limit} tokens. However, you requested {asked} output tokens and \
                 your prompt contains at least {longest} input tokens, for a total of at least {total} tokens. Please \
                 reduce the length of the input prompt or the number of requested output tokens."
            ),
            Flavor::Sglang => format!(
                "Requested token count exceeds the model's maximum context length of {limit} tokens. You requested a \
                 total of {total} tokens: {longest} tokens from the input messages and {asked} tokens for the \
                 completion. Please reduce the number of tokens in the input messages or the completion to fit within \
                 the limit."
            ),
        };
        return Err(ApiError::param(flavor, &message, "input_tokens", Some(longest.to_string())));
    }
    Ok(asked)
}

fn check_asked(flavor: Flavor, endpoint: Endpoint, asked: i64, limit: usize) -> Result<(), ApiError> {
    let over = usize::try_from(asked).is_ok_and(|asked| asked > limit);
    match flavor {
        Flavor::Vllm if asked < 1 => {
            let message = format!("max_tokens must be at least 1, got {asked}.");
            Err(ApiError::param(flavor, &message, "max_tokens", Some(asked.to_string())))
        }
        Flavor::Vllm if over => {
            let message = format!(
                "max_tokens={asked} cannot be greater than max_model_len={limit}. Please request fewer output tokens."
            );
            Err(ApiError::param(flavor, &message, "max_tokens", Some(asked.to_string())))
        }
        Flavor::Sglang if asked < 0 && endpoint == Endpoint::Completions => Err(ApiError::schema(
            flavor,
            "value_error",
            &["max_tokens"],
            "Value error, max_tokens must be positive",
            &asked.to_string(),
        )),
        Flavor::Sglang if asked < 0 => Err(ApiError::bad(format!("max_new_tokens must be at least 0, got {asked}."))),
        Flavor::Sglang if over && endpoint == Endpoint::Chat => Err(ApiError::bad(format!(
            "max_completion_tokens is too large: {asked}.This model supports at most {limit} completion tokens."
        ))),
        _ => Ok(()),
    }
}
