//! Prompt files: JSONL with `prompt` or `messages`, or `ShareGPT` JSON with `conversations`.

use serde_json::Value;

/// One prompt of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// Chat messages; a plain prompt is one user message.
    pub messages: Value,
    /// Its own answer length.
    pub output: Option<usize>,
}

/// Why a file of prompts cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry {entry}: {what}")]
pub struct PromptError {
    /// Which entry, from 1.
    pub entry: usize,
    /// What is wrong with it.
    pub what: String,
}

/// Reads the prompts of a file.
///
/// # Errors
/// An entry that is no JSON or has no prompt.
pub fn read(text: &str) -> Result<Vec<Prompt>, PromptError> {
    let fail = |entry: usize, what: String| PromptError { entry: entry + 1, what };
    let entries: Vec<Value> = if text.trim_start().starts_with('[') {
        serde_json::from_str(text).map_err(|error| fail(0, error.to_string()))?
    } else {
        let lines = text.lines().filter(|line| !line.trim().is_empty()).enumerate();
        let read = lines.map(|(at, line)| serde_json::from_str(line).map_err(|error| fail(at, error.to_string())));
        read.collect::<Result<_, _>>()?
    };
    let mut prompts = Vec::with_capacity(entries.len());
    for (at, entry) in entries.iter().enumerate() {
        let Some(messages) = messages(entry) else {
            return Err(fail(at, "has none of `prompt`, `messages`, `conversations`".to_owned()));
        };
        let output = ["output_tokens", "max_tokens"].iter().find_map(|name| entry.get(name)).and_then(Value::as_u64);
        prompts.push(Prompt { messages, output: output.and_then(|tokens| usize::try_from(tokens).ok()) });
    }
    if prompts.is_empty() { Err(fail(0, "the file is empty".to_owned())) } else { Ok(prompts) }
}

fn messages(entry: &Value) -> Option<Value> {
    if let Some(messages) = entry.get("messages").filter(|messages| messages.is_array()) {
        return Some(messages.clone());
    }
    if let Some(prompt) = entry.get("prompt").and_then(Value::as_str) {
        return Some(user(prompt));
    }
    // ShareGPT: what the first person asked; the answers are the model's business.
    let turns = entry.get("conversations").and_then(Value::as_array)?;
    let asked = turns.iter().find(|turn| {
        matches!(turn.get("from").and_then(Value::as_str), Some("human" | "user")) && turn.get("value").is_some()
    })?;
    asked.get("value").and_then(Value::as_str).map(user)
}

/// One user message.
#[must_use]
pub fn user(text: &str) -> Value {
    serde_json::json!([{ "role": "user", "content": text }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_messages_and_sharegpt_are_read() {
        let lines =
            "{\"prompt\":\"a\",\"output_tokens\":7}\n\n{\"messages\":[{\"role\":\"system\",\"content\":\"s\"}]}\n";
        let prompts = read(lines).unwrap();
        assert_eq!(prompts[0], Prompt { messages: user("a"), output: Some(7) });
        assert_eq!(prompts[1].messages[0]["role"], "system");
        let shared = r#"[{"id":"x","conversations":[{"from":"human","value":"hi"},{"from":"gpt","value":"yes"}]}]"#;
        assert_eq!(read(shared).unwrap()[0].messages, user("hi"));
    }

    #[test]
    fn an_entry_without_a_prompt_is_named() {
        assert_eq!(
            read("{\"prompt\":\"a\"}\n{\"text\":\"b\"}").unwrap_err().to_string(),
            "entry 2: has none of `prompt`, `messages`, `conversations`"
        );
    }
}
