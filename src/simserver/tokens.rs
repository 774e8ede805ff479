//! `/tokenize`, `/detokenize` and `/v1/messages/count_tokens`.
//!
//! Key order and names differ: vLLM detokenizes to `prompt`, SGLang to `text`, and SGLang ignores the model's name.
//! Source: `shared/captures/{vllm,sglang}/tokenize`.

use http::Response;
use serde_json::Value;

use super::{
    Server, answer::json, body::SimBody, config::Flavor, errors::ApiError, fields::Fields, parse::token_ids, template,
    wire::id_list,
};
use crate::simulator::text;

fn fields<'a>(server: &Server, body: &'a Value) -> Result<Fields<'a>, ApiError> {
    let flavor = server.config.flavor;
    let map = body.as_object().ok_or_else(|| {
        ApiError::schema(flavor, "model_attributes_type", &[], "Input should be a valid dictionary", "'...'")
    })?;
    let fields = Fields::new(flavor, map);
    let model = fields.text("model")?.unwrap_or(&server.config.model);
    if flavor == Flavor::Vllm && model != server.config.model {
        return Err(ApiError::unknown_model(model, &server.config.model));
    }
    Ok(fields)
}

fn prompt(server: &Server, fields: &Fields<'_>) -> Result<String, ApiError> {
    let Some(messages) = fields.list("messages")? else {
        return Ok(fields.text("prompt")?.ok_or_else(|| fields.missing("prompt"))?.to_owned());
    };
    let cue = fields.get("add_generation_prompt").and_then(Value::as_bool).unwrap_or(true);
    let config = &server.config;
    template::chat(config.flavor, &config.model, fields.get("tools"), messages, cue)
}

/// `POST /tokenize`
pub(super) fn tokenize(server: &Server, body: &Value) -> Result<Response<SimBody>, ApiError> {
    let fields = fields(server, body)?;
    let ids = text::tokenize(&prompt(server, &fields)?);
    let (count, longest, list) = (ids.len(), server.config.max_model_len, id_list(&ids));
    Ok(json(
        200,
        match server.config.flavor {
            Flavor::Vllm => {
                let strings = if fields.boolean("return_token_strs")? {
                    let strings: Vec<String> = ids.iter().map(|id| text::detokenize(&[*id])).collect();
                    serde_json::json!(strings).to_string()
                } else {
                    "null".to_owned()
                };
                format!("{{\"count\":{count},\"max_model_len\":{longest},\"tokens\":{list},\"token_strs\":{strings}}}")
            }
            Flavor::Sglang => format!("{{\"tokens\":{list},\"count\":{count},\"max_model_len\":{longest}}}"),
        },
    ))
}

/// `POST /detokenize`
pub(super) fn detokenize(server: &Server, body: &Value) -> Result<Response<SimBody>, ApiError> {
    let fields = fields(server, body)?;
    let Some(ids) = token_ids(Some(fields.required("tokens")?)) else {
        let message = "Input should be a valid integer, unable to parse string as an integer";
        return Err(ApiError::schema(server.config.flavor, "int_parsing", &["tokens", "0"], message, "'...'"));
    };
    let words = serde_json::json!(text::detokenize(&ids));
    Ok(json(
        200,
        match server.config.flavor {
            Flavor::Vllm => format!("{{\"prompt\":{words}}}"),
            Flavor::Sglang => format!("{{\"text\":{words}}}"),
        },
    ))
}

/// `POST /v1/messages/count_tokens`
pub(super) fn count(server: &Server, body: &Value) -> Result<Response<SimBody>, ApiError> {
    let fields = fields(server, body)?;
    let mut messages: Vec<Value> = Vec::new();
    messages.extend(fields.get("system").map(|system| serde_json::json!({"role": "system", "content": system})));
    fields.required("messages")?;
    messages.extend(fields.list("messages")?.unwrap_or_default().iter().cloned());
    let config = &server.config;
    let prompt = template::chat(config.flavor, &config.model, fields.get("tools"), &messages, true)?;
    let count = text::tokenize(&prompt).len();
    Ok(json(
        200,
        match config.flavor {
            Flavor::Vllm => {
                format!("{{\"input_tokens\":{count},\"context_management\":{{\"original_input_tokens\":{count}}}}}")
            }
            Flavor::Sglang => format!("{{\"input_tokens\":{count}}}"),
        },
    ))
}
