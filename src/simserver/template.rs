//! Messages to prompt text, in the order a `ChatML` template puts them: tools, system, turns, the assistant's cue.
//!
//! What a reader would get wrong: the engines do not agree. vLLM joins the text parts of one message with a newline,
//! SGLang with a space, so the same chat has other tokens on each.
//! Source: `shared/captures/*/tokenize/pairs.jsonl`, `shared/reference/engines.md` section 6.

use serde_json::Value;

use super::{config::Flavor, errors::ApiError};

/// Appends one turn.
fn turn(out: &mut String, role: &str, content: &str) {
    for part in ["<|im_start|>", role, "\n", content, "<|im_end|>\n"] {
        out.push_str(part);
    }
}

/// Renders a chat. `cue` adds the start of the assistant's turn.
pub(super) fn chat(
    flavor: Flavor,
    model: &str,
    tools: Option<&Value>,
    messages: &[Value],
    cue: bool,
) -> Result<String, ApiError> {
    let mut out = String::new();
    if let Some(tools) = tools.filter(|tools| tools.as_array().is_some_and(|list| !list.is_empty())) {
        turn(&mut out, "system", &format!("# Tools\n<tools>\n{tools}\n</tools>"));
    }
    for message in messages {
        let role = message.get("role").and_then(Value::as_str).unwrap_or("user");
        let mut content = content(flavor, model, message.get("content").unwrap_or(&Value::Null))?;
        if let Some(calls) = message.get("tool_calls").filter(|calls| !calls.is_null()) {
            content.push_str(&format!("<tool_call>{calls}</tool_call>"));
        }
        turn(&mut out, role, &content);
    }
    if cue {
        out.push_str("<|im_start|>assistant\n");
    }
    Ok(out)
}

/// Text of a message's content: a string, parts, or nothing.
pub(super) fn content(flavor: Flavor, model: &str, content: &Value) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        _ => return Ok(String::new()),
    };
    let mut texts = Vec::new();
    for part in parts {
        match part {
            Value::String(text) => texts.push(text.as_str()),
            Value::Object(map) => {
                let kind = map.get("type").and_then(Value::as_str).unwrap_or("text");
                if kind.contains("image") || kind.contains("audio") || kind.contains("video") {
                    return Err(ApiError::bad(format!("{model} is not a multimodal model")));
                }
                texts.extend(map.get("text").or_else(|| map.get("content")).and_then(Value::as_str));
            }
            _ => {}
        }
    }
    Ok(texts.join(match flavor {
        Flavor::Vllm => "\n",
        Flavor::Sglang => " ",
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_chat_reads_like_the_captured_one() {
        let messages = [json!({"role": "user", "content": "Hi."})];

        let text = chat(Flavor::Vllm, "tiny", None, &messages, true).unwrap();

        assert_eq!(text, "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n");
    }

    #[test]
    fn parts_are_joined_as_each_engine_joins_them() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);

        assert_eq!(content(Flavor::Vllm, "tiny", &parts).unwrap(), "a\nb");
        assert_eq!(content(Flavor::Sglang, "tiny", &parts).unwrap(), "a b");
        let image = json!([{"type": "image_url", "image_url": {"url": "data:"}}]);
        assert_eq!(content(Flavor::Vllm, "tiny", &image).unwrap_err().message, "tiny is not a multimodal model");
    }
}
