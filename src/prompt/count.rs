//! How many tokens a request's prompt has.

use std::borrow::Cow;

use super::{
    chat::Conversation,
    estimate::Ratio,
    template::{ChatTemplate, TemplateError},
    tokenizer::{Tokenizer, TokenizerError},
};
use crate::{
    dialect::{
        Fields, Span,
        ids::plain_ids,
        json::{Cursor, Kind},
        scan::{member, string_value},
    },
    types::{Endpoint, EngineKind},
};

/// Tokens of a prompt: what they are, or between what they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// The count, or the likeliest one. Over all prompts of a batch.
    pub tokens: u64,
    /// Not more than this, as far as can be told.
    pub most: u64,
    /// Surely no fewer in the longest prompt of the request.
    pub longest: u64,
    /// Whether the engine counts just this.
    pub exact: bool,
    /// The weight that it was estimated from; 0 if it was not.
    pub weight: u64,
}

impl Counted {
    /// A count of one prompt that the engine shares.
    #[must_use]
    pub const fn exactly(tokens: u64) -> Self {
        Self { tokens, most: tokens, longest: tokens, exact: true, weight: 0 }
    }

    /// A prompt that nobody needed to count: it is under every limit.
    #[must_use]
    pub const fn about(tokens: u64) -> Self {
        Self { tokens, most: 0, longest: 0, exact: false, weight: 0 }
    }
}

/// Why a prompt could not be counted.
#[derive(Debug, thiserror::Error)]
pub enum CountError {
    /// The template said no.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The tokenizer said no.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The body has no prompt of a known shape, or the model no chat template.
    #[error("there is no prompt that the tokenizer could count")]
    Shape,
}

/// A model's tokenizer and chat template.
#[derive(Debug)]
pub struct PromptCounter {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
}

impl PromptCounter {
    /// A counter; without a template it counts completions only.
    #[must_use]
    pub fn new(tokenizer: Tokenizer, template: Option<ChatTemplate>) -> Self {
        Self { tokenizer, template }
    }

    /// Bytes that the template can add to a body of this many objects.
    #[must_use]
    pub fn overhead(&self, body: &[u8]) -> u64 {
        let length = self.template.as_ref().map_or(0, ChatTemplate::length) as u64;
        // Each message, tool, call and part is an object, and a template is a loop over some of them.
        length.saturating_mul(1 + memchr::memchr_iter(b'{', body).count() as u64)
    }

    /// The text that the model reads for a conversation, and whether the engine makes just this of it.
    ///
    /// # Errors
    /// When there is no template, no conversation, or the template refuses it.
    pub fn render(&self, request: &Request<'_>) -> Result<(String, bool), CountError> {
        let template = self.template.as_ref().ok_or(CountError::Shape)?;
        let Request { body, fields, endpoint, engine, now } = *request;
        let conversation =
            Conversation::read(body, fields, endpoint, engine, template.format()).ok_or(CountError::Shape)?;
        let text = template.render(conversation.variables.clone(), now)?;
        Ok((conversation.finish(text), conversation.exact))
    }

    /// The token ids of a request's prompt, as the engine's `/tokenize` gives them.
    ///
    /// # Errors
    /// As [`Self::count`]; also for a batch.
    pub fn ids(&self, request: &Request<'_>) -> Result<Vec<u32>, CountError> {
        if request.fields.messages.is_some() {
            return Ok(self.tokenizer.encode(&self.render(request)?.0, false)?);
        }
        let text = request.fields.prompt.and_then(|span| string_value(request.body, span)).ok_or(CountError::Shape)?;
        let special = get(request, b"add_special_tokens") != Some(b"false");
        Ok(self.tokenizer.encode(&text, special)?)
    }

    /// How many tokens the prompt of a request has.
    ///
    /// # Errors
    /// When the template or the tokenizer refuses it, or there is nothing to count.
    pub fn count(&self, request: &Request<'_>) -> Result<Counted, CountError> {
        let Request { body, fields, endpoint, .. } = *request;
        let cut = get(request, b"truncate_prompt_tokens").is_some_and(|value| value != b"null");
        if matches!(endpoint, Endpoint::Chat | Endpoint::Responses | Endpoint::Messages) {
            let (text, exact) = self.render(request)?;
            let tokens = self.tokenizer.count(&text, false)?;
            return Ok(Counted { exact: exact && !cut, ..Counted::exactly(tokens) });
        }
        let prompts = Prompts::read(body, fields, endpoint).ok_or(CountError::Shape)?;
        let mut sum = prompts.ids;
        let mut longest = prompts.longest;
        for text in &prompts.texts {
            let tokens = self.tokenizer.count(text, true)?;
            sum += tokens;
            longest = longest.max(tokens);
        }
        let exact = endpoint == Endpoint::Completions && !cut;
        Ok(Counted { longest, exact, ..Counted::exactly(sum) })
    }
}

fn get<'a>(request: &Request<'a>, key: &[u8]) -> Option<&'a [u8]> {
    let start = request.body.iter().position(|byte| *byte == b'{')?;
    member(request.body, Span { start, end: request.body.len() }, key).map(|span| span.of(request.body))
}

/// What is counted.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The body, valid JSON.
    pub body: &'a [u8],
    /// Its fields.
    pub fields: &'a Fields,
    /// Where it goes.
    pub endpoint: Endpoint,
    /// Who reads it: engines make different texts of one conversation.
    pub engine: EngineKind,
    /// Seconds since 1970, for templates that print the date.
    pub now: i64,
}

/// Estimates a prompt. Token ids are counted and not estimated.
#[must_use]
pub fn estimate(body: &[u8], fields: &Fields, endpoint: Endpoint, ratio: &Ratio) -> Counted {
    let prompts = Prompts::read(body, fields, endpoint).filter(|prompts| prompts.ids > 0);
    if let Some(prompts) = prompts.filter(|prompts| prompts.texts.is_empty()) {
        let exact = endpoint == Endpoint::Completions;
        return Counted { longest: prompts.longest, exact, ..Counted::exactly(prompts.ids) };
    }
    let weigher = super::canonical::weigh(body, fields, endpoint);
    let weight = weigher.weight(fields.tools.is_some());
    let least = if batch(body, fields, endpoint) { 0 } else { weigher.least() };
    Counted { tokens: ratio.tokens(weight), most: ratio.most(weight), longest: least, exact: false, weight }
}

/// Whether a request has several prompts.
fn batch(body: &[u8], fields: &Fields, endpoint: Endpoint) -> bool {
    Prompts::read(body, fields, endpoint).is_some_and(|prompts| prompts.count > 1)
}

/// The prompts of an endpoint without roles.
#[derive(Debug, Default)]
struct Prompts<'a> {
    texts: Vec<Cow<'a, str>>,
    /// Token ids in all.
    ids: u64,
    /// Token ids in the longest prompt of ids.
    longest: u64,
    count: u64,
}

impl<'a> Prompts<'a> {
    fn read(body: &'a [u8], fields: &Fields, endpoint: Endpoint) -> Option<Self> {
        let spans: [Option<Span>; 2] = match endpoint {
            Endpoint::Completions => [fields.prompt, None],
            Endpoint::Embeddings => [fields.input, fields.prompt],
            Endpoint::Rerank => [fields.query, fields.documents],
            Endpoint::Score => [fields.text_1, fields.text_2],
            _ => return None,
        };
        let mut prompts = Self::default();
        for span in spans.into_iter().flatten() {
            prompts.value(body, span)?;
        }
        (prompts.count > 0).then_some(prompts)
    }

    fn value(&mut self, body: &'a [u8], span: Span) -> Option<()> {
        let mut cursor = Cursor::new(body, span.start);
        match cursor.kind() {
            Kind::Text => {
                self.count += 1;
                self.texts.push(string_value(body, span)?);
            }
            Kind::Array => {
                let mut more = cursor.open(b'[', b']').ok()?;
                while more {
                    match cursor.kind() {
                        Kind::Scalar => {
                            // A prompt of ids, which ends with the array.
                            let ids = ids(body, &mut cursor)?;
                            self.tokens(ids);
                            return Some(());
                        }
                        Kind::Text | Kind::Array => {
                            let value = cursor.value().ok()?;
                            self.value(body, value)?;
                        }
                        Kind::Object => return None,
                    }
                    more = cursor.more(b']').ok()?;
                }
            }
            Kind::Scalar | Kind::Object => return None,
        }
        Some(())
    }

    fn tokens(&mut self, ids: u64) {
        self.count += 1;
        self.ids += ids;
        self.longest = self.longest.max(ids);
    }
}

/// Counts the scalars up to the end of an array.
fn ids(body: &[u8], cursor: &mut Cursor<'_>) -> Option<u64> {
    let mut bytes = 0;
    let mut count = 0;
    let at = plain_ids(body, cursor.offset(), |piece| bytes += piece.len() as u64);
    cursor.skip(at - cursor.offset());
    loop {
        cursor.space();
        if cursor.kind() != Kind::Scalar {
            return None;
        }
        cursor.value().ok()?;
        count += 1;
        if !cursor.more(b']').ok()? {
            return Some(bytes / 4 + count);
        }
    }
}

#[cfg(test)]
mod tests;
