//! What one piece of an engine's answer means: output, usage, finish, error, or nothing.
//!
//! Works on the JSON of one SSE event or of a whole non-streaming answer, in any of the four generating dialects, and
//! without knowing which: the shapes do not collide. A role-only chunk or an empty delta is no output; a vLLM chunk may
//! carry several tokens, so tokens are counted from `usage` only (reference: vLLM 0.32 and SGLang 0.5.23 on the wire).

use crate::dialect::walk::Walk;

/// Token counts as the engine reports them. The last report of a stream is the valid one, never the sum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, cached ones included.
    pub prompt: Option<u64>,
    /// Output tokens over all choices.
    pub output: Option<u64>,
    /// Prompt tokens that came from the prefix cache.
    pub cached: Option<u64>,
}

impl Usage {
    /// Takes over what a later report says; keeps what it does not mention.
    pub fn update(&mut self, later: Self) {
        self.prompt = later.prompt.or(self.prompt);
        self.output = later.output.or(self.output);
        self.cached = later.cached.or(self.cached);
    }
}

/// What one event says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Meaning {
    /// Content, reasoning, text or tool-call output, not empty.
    pub output: bool,
    /// A finish reason, or the dialect's own end event.
    pub finished: bool,
    /// An error object.
    pub error: bool,
    /// `[DONE]`
    pub done: bool,
    /// Usage numbers.
    pub usage: Option<Usage>,
    /// `choices` is there and empty, and there is usage: the chunk that `include_usage` asks for.
    pub usage_only: bool,
    /// The payload was not JSON.
    pub malformed: bool,
}

/// Reads the payload of one event, or a whole JSON answer.
#[must_use]
pub fn read(payload: &[u8]) -> Meaning {
    let payload = payload.trim_ascii();
    if payload == b"[DONE]" {
        return Meaning { done: true, ..Meaning::default() };
    }
    if payload.is_empty() {
        return Meaning::default();
    }
    let mut meaning = Meaning::default();
    let mut top = Top::default();
    let walked = Walk::new(payload).object(|key, at| top.member(key, at, &mut meaning));
    if walked.is_none() {
        return Meaning { malformed: true, ..Meaning::default() };
    }
    top.conclude(&mut meaning);
    meaning
}

/// What only the whole object can tell.
#[derive(Default)]
struct Top<'a> {
    kind: &'a [u8],
    empty_choices: bool,
    delta_has_text: bool,
    object_is_error: bool,
}

impl<'a> Top<'a> {
    fn member(&mut self, key: &'a [u8], at: &mut Walk<'a>, meaning: &mut Meaning) -> Option<()> {
        match key {
            b"choices" => self.choices(at, meaning)?,
            b"usage" => merge(&mut meaning.usage, usage(at)?),
            b"error" => meaning.error |= !matches!(at.skip()?, b"null" | b"false" | b"\"\""),
            b"type" => self.kind = string_or_skip(at)?,
            b"object" => self.object_is_error = string_or_skip(at)? == b"error",
            b"delta" => self.delta_has_text = self.delta(at, meaning)?,
            // The Responses and Messages dialects nest usage one level down.
            b"response" | b"message" if at.peek()? == b'{' => at.object(|inner, at| {
                if inner == b"usage" {
                    merge(&mut meaning.usage, usage(at)?);
                } else {
                    at.skip()?;
                }
                Some(())
            })?,
            // TGI's own stream: one token an event.
            b"token" => meaning.output |= at.skip()? != b"null",
            b"generated_text" => meaning.finished |= at.skip()? != b"null",
            _ => {
                at.skip()?;
            }
        }
        Some(())
    }

    fn choices(&mut self, at: &mut Walk<'a>, meaning: &mut Meaning) -> Option<()> {
        if at.peek()? != b'[' {
            return at.skip().map(|_| ());
        }
        let mut count = 0_u32;
        at.array(|at| {
            count += 1;
            if at.peek()? != b'{' {
                return at.skip().map(|_| ());
            }
            at.object(|key, at| {
                match key {
                    b"delta" | b"message" => meaning.output |= fills(at)?,
                    b"text" => meaning.output |= has_content(at.skip()?),
                    b"finish_reason" => meaning.finished |= has_content(at.skip()?),
                    _ => {
                        at.skip()?;
                    }
                }
                Some(())
            })
        })?;
        self.empty_choices = count == 0;
        Some(())
    }

    /// `delta` at top level: an object in the Messages dialect, a string in the Responses dialect.
    fn delta(&mut self, at: &mut Walk<'a>, meaning: &mut Meaning) -> Option<bool> {
        if at.peek()? != b'{' {
            return Some(has_content(at.skip()?));
        }
        let mut text = false;
        at.object(|key, at| {
            let value = at.skip()?;
            match key {
                b"text" | b"thinking" | b"partial_json" => text |= has_content(value),
                b"stop_reason" => meaning.finished |= has_content(value),
                _ => {}
            }
            Some(())
        })?;
        Some(text)
    }

    fn conclude(&self, meaning: &mut Meaning) {
        meaning.error |= self.object_is_error || matches!(self.kind, b"error" | b"response.failed");
        meaning.finished |= matches!(self.kind, b"response.completed" | b"response.incomplete" | b"message_stop");
        let delta_kind = self.kind == b"content_block_delta"
            || (self.kind.starts_with(b"response.") && self.kind.ends_with(b".delta"));
        meaning.output |= self.delta_has_text && delta_kind;
        meaning.usage_only = self.empty_choices && meaning.usage.is_some() && !meaning.error;
    }
}

/// Whether a delta (or message) carries anything but its role.
fn fills(at: &mut Walk<'_>) -> Option<bool> {
    if at.peek()? != b'{' {
        return at.skip().map(|_| false);
    }
    let mut output = false;
    at.object(|key, at| {
        let value = at.skip()?;
        output |= key != b"role" && has_content(value);
        Some(())
    })?;
    Some(output)
}

/// A string, array or object that is not empty; a number or boolean is no content.
fn has_content(value: &[u8]) -> bool {
    match value {
        [b'"', inner @ .., b'"'] => !inner.is_empty(),
        [b'[', inner @ .., b']'] | [b'{', inner @ .., b'}'] => !inner.trim_ascii().is_empty(),
        _ => false,
    }
}

fn string_or_skip<'a>(at: &mut Walk<'a>) -> Option<&'a [u8]> {
    if at.peek()? == b'"' { at.string() } else { at.skip().map(|_| &b""[..]) }
}

fn merge(into: &mut Option<Usage>, later: Option<Usage>) {
    if let Some(later) = later {
        into.get_or_insert_default().update(later);
    }
}

/// A usage object of any dialect; `null` and other shapes give `None`.
fn usage(at: &mut Walk<'_>) -> Option<Option<Usage>> {
    if at.peek()? != b'{' {
        return at.skip().map(|_| None);
    }
    let mut usage = Usage::default();
    // Anthropic counts cached prompt tokens beside `input_tokens`, not inside.
    let mut beside = 0;
    at.object(|key, at| {
        match key {
            b"prompt_tokens" | b"input_tokens" => usage.prompt = at.number()?,
            b"completion_tokens" | b"output_tokens" => usage.output = at.number()?,
            b"cache_read_input_tokens" => {
                usage.cached = at.number()?;
                beside += usage.cached.unwrap_or(0);
            }
            b"cache_creation_input_tokens" => beside += at.number()?.unwrap_or(0),
            b"prompt_tokens_details" | b"input_tokens_details" if at.peek()? == b'{' => at.object(|key, at| {
                let value = at.number()?;
                if key == b"cached_tokens" {
                    usage.cached = value.or(usage.cached);
                }
                Some(())
            })?,
            _ => {
                at.skip()?;
            }
        }
        Some(())
    })?;
    usage.prompt = usage.prompt.map(|prompt| prompt.saturating_add(beside));
    Some((usage != Usage::default()).then_some(usage))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_chunk_and_an_empty_delta_are_no_output() {
        for text in [
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":null}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"","reasoning_content":null}}]}"#,
            r#"{"choices":[{"index":0,"text":""}]}"#,
        ] {
            assert_eq!(read(text.as_bytes()), Meaning::default(), "{text}");
        }
    }

    #[test]
    fn content_reasoning_tool_calls_and_text_are_output() {
        for text in [
            r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"reasoning_content":"a"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}"#,
            r#"{"choices":[{"index":0,"text":"a"}]}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}"#,
            r#"{"type":"response.output_text.delta","delta":"x"}"#,
        ] {
            assert!(read(text.as_bytes()).output, "{text}");
        }
    }

    #[test]
    fn usage_is_found_in_every_dialect() {
        let chat = read(br#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}"#);
        assert_eq!(chat.usage, Some(Usage { prompt: Some(5), output: Some(2), cached: Some(4) }));
        assert!(chat.usage_only);

        let responses = read(br#"{"type":"response.completed","response":{"id":"r","usage":{"input_tokens":3,"output_tokens":1,"input_tokens_details":{"cached_tokens":2}}}}"#);
        assert_eq!(responses.usage, Some(Usage { prompt: Some(3), output: Some(1), cached: Some(2) }));
        assert!(responses.finished && !responses.usage_only);

        let messages = read(br#"{"type":"message_start","message":{"usage":{"input_tokens":13,"cache_read_input_tokens":16,"output_tokens":0}}}"#);
        assert_eq!(messages.usage, Some(Usage { prompt: Some(29), output: Some(0), cached: Some(16) }));
    }

    #[test]
    fn running_usage_beside_choices_is_not_the_usage_chunk() {
        let meaning =
            read(br#"{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":5,"completion_tokens":1}}"#);
        assert!(meaning.output && !meaning.usage_only && meaning.usage.is_some());
        assert_eq!(read(br#"{"choices":[{"text":"a"}],"usage":null}"#).usage, None);
    }

    #[test]
    fn errors_are_seen_in_every_shape() {
        for text in [
            r#"{"error":{"message":"boom","code":500}}"#,
            r#"{"object":"error","message":"The request queue is full.","code":503}"#,
            r#"{"type":"error","error":{"type":"overloaded_error"}}"#,
            r#"{"type":"response.failed","response":{}}"#,
        ] {
            assert!(read(text.as_bytes()).error, "{text}");
        }
        assert!(!read(br#"{"choices":[{"delta":{"content":"error"}}],"error":null}"#).error);
    }

    #[test]
    fn nonsense_is_malformed_and_nothing_else() {
        for text in ["{", "[1]", "hello", r#"{"choices":[{"delta":"#, "{\"a\":1}}x{"] {
            let meaning = read(text.as_bytes());
            assert!(meaning.malformed || meaning == Meaning::default(), "{text}: {meaning:?}");
        }
        assert_eq!(read(b"  "), Meaning::default());
        assert!(read(b" [DONE] ").done);
    }
}
