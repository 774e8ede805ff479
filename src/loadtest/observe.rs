//! Events of one answer into the record of its request.

use serde_json::Value;

use super::{
    clock::Nanos,
    measure::Rules,
    record::{Chunk, Record},
};
use crate::dialect::{event::Meaning, sse::EventSink};

/// Writes what the events say, at the time their bytes came.
#[derive(Debug)]
pub struct Observer<'a> {
    /// The request's record.
    pub record: &'a mut Record,
    /// When the bytes at hand arrived.
    pub now: Nanos,
    /// Whose definition of a token.
    pub rules: Rules,
    /// A finish reason, `[DONE]`, or the dialect's end was seen.
    pub finished: bool,
    /// An error event was seen.
    pub failed: bool,
    /// Tokens that the engine had counted with the chunk before.
    pub counted: u64,
}

impl EventSink for Observer<'_> {
    fn event(&mut self, meaning: &Meaning, payload: &[u8]) {
        let now = self.now;
        if !meaning.done {
            self.record.first_event.get_or_insert(now);
        }
        let token = match self.rules {
            Rules::Own => meaning.output,
            Rules::Vllm => meaning.output || has_choices(payload),
        };
        if token {
            self.token(meaning, payload);
        }
        if let Some(usage) = meaning.usage {
            self.record.usage.update(usage);
        }
        if meaning.finished {
            self.record.finish.get_or_insert(now);
        }
        self.finished |= meaning.finished || meaning.done;
        if meaning.error && !self.failed {
            self.failed = true;
            self.record.error = Some(String::from_utf8_lossy(payload).chars().take(200).collect());
        }
    }
}

impl Observer<'_> {
    fn token(&mut self, meaning: &Meaning, payload: &[u8]) {
        let total = meaning.usage.and_then(|usage| usage.output);
        let tokens = total.map_or(0, |total| total.saturating_sub(self.counted));
        self.counted = total.unwrap_or(self.counted);
        self.record.chunks.push(Chunk { at: self.now, tokens });
        if self.record.first_content.is_none() && is_content(payload) {
            self.record.first_content = Some(self.now);
        }
    }
}

/// vLLM's rule: `choices` is there and not empty, whatever is inside.
fn has_choices(payload: &[u8]) -> bool {
    let parsed = serde_json::from_slice::<Value>(payload).ok();
    parsed.is_some_and(|event| event.get("choices").and_then(Value::as_array).is_some_and(|all| !all.is_empty()))
}

/// Whether an event with output has some that is no reasoning. Asked only until the first that has.
fn is_content(payload: &[u8]) -> bool {
    let Ok(event) = serde_json::from_slice::<Value>(payload) else { return false };
    let full = |value: Option<&Value>| match value {
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        _ => false,
    };
    if let Some(choices) = event.get("choices").and_then(Value::as_array) {
        return choices.iter().any(|choice| {
            let delta = choice.get("delta").unwrap_or(&Value::Null);
            full(choice.get("text")) || full(delta.get("content")) || full(delta.get("tool_calls"))
        });
    }
    let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
    let inner = event.pointer("/delta/type").and_then(Value::as_str).unwrap_or_default();
    !kind.contains("reasoning") && inner != "thinking_delta"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasoning_is_a_token_but_no_content() {
        for (payload, content) in [
            (r#"{"choices":[{"delta":{"reasoning_content":"a"}}]}"#, false),
            (r#"{"choices":[{"delta":{"reasoning":"a","content":""}}]}"#, false),
            (r#"{"choices":[{"delta":{"content":"a"}}]}"#, true),
            (r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#, true),
            (r#"{"choices":[{"text":"a"}]}"#, true),
            (r#"{"type":"response.reasoning_text.delta","delta":"a"}"#, false),
            (r#"{"type":"response.output_text.delta","delta":"a"}"#, true),
            (r#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"a"}}"#, false),
            (r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}"#, true),
        ] {
            assert_eq!(is_content(payload.as_bytes()), content, "{payload}");
        }
    }
}
