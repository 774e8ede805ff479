//! Step 4, the prompt: how many tokens it has, by the means that the model's configuration names.
//!
//! Nothing is counted that need not be: a prompt whose bytes are fewer than the tokens it may have is under its cap.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use http::{HeaderValue, Request as HttpRequest, Uri, header, uri::PathAndQuery};
use http_body_util::{BodyExt, Limited};
use secrecy::ExposeSecret;
use tokio::time::timeout;

use crate::{
    dialect::{Fields, splice::Splices},
    fleet::Replica,
    prompt::{
        Counted, PromptCounter,
        count::{self, Request},
        estimate::Ratio,
    },
    proxy::{admit, pool::Pool},
    types::{Endpoint, EngineKind},
    upstream::client::{Segments, UpstreamClient},
};

/// Bodies above this are tokenised beside the worker: its streams do not wait for it.
const BESIDE: usize = 64 << 10;

/// Longest wait for an engine's count.
const ASK: Duration = Duration::from_secs(2);

/// Longest answer of an engine that is read: a token takes some eight bytes.
const ANSWER: usize = 32 << 20;

/// What a prompt needs around it when no template says how much: system text and marks.
const OVERHEAD: u64 = 1024;

/// How a model's prompts are counted.
#[derive(Debug, Clone, Default)]
pub enum Mode {
    /// By weight, with a ratio that is learned.
    #[default]
    Estimate,
    /// A replica is asked; while none answers, by weight.
    Engine,
    /// With the model's own tokenizer.
    Tokenizer(Arc<PromptCounter>),
}

/// Counts the prompts of one model.
#[derive(Debug, Default)]
pub struct Counter {
    mode: Mode,
    ratio: Ratio,
}

/// What is to be counted.
#[derive(Debug, Clone, Copy)]
pub struct Prompt<'a> {
    /// The body.
    pub body: &'a Bytes,
    /// Its fields.
    pub fields: &'a Fields,
    /// Where it goes.
    pub endpoint: Endpoint,
    /// Canonical bytes of the prompt.
    pub bytes: u64,
}

impl Counter {
    /// A counter.
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        Self { mode, ratio: Ratio::default() }
    }

    /// Learns from an answer's own count of a prompt that was estimated.
    pub fn learn(&self, weight: u64, tokens: u64) {
        if weight > 0 {
            self.ratio.learn(weight, tokens);
        }
    }

    /// Counts a prompt as exactly as it matters: `enough` tokens make no difference; `None` if no number of them does.
    pub async fn count(
        &self,
        pool: &Pool,
        client: &UpstreamClient,
        prompt: Prompt<'_>,
        enough: Option<u64>,
    ) -> Counted {
        if enough.is_none_or(|enough| self.surely_under(&prompt, enough)) {
            return Counted::about(pool.prompt_tokens(prompt.bytes));
        }
        let estimated = || count::estimate(prompt.body, prompt.fields, prompt.endpoint, &self.ratio);
        match &self.mode {
            Mode::Estimate => estimated(),
            Mode::Engine => match ask(pool, client, &prompt).await {
                Some(tokens) => Counted::exactly(tokens),
                None => estimated(),
            },
            Mode::Tokenizer(counter) => match tokenize(counter, &prompt, engine(pool)).await {
                Ok(counted) if counted.exact => counted,
                // Beside what could be counted there is more, as images, or the engine makes another text of it.
                Ok(counted) => Counted { most: counted.most.max(estimated().tokens), longest: 0, ..counted },
                Err(error) => {
                    tracing::debug!(model = %pool.name(), error, "a prompt is estimated, not counted");
                    estimated()
                }
            },
        }
    }

    /// Whether the prompt cannot have more tokens than this: a token has at least a byte.
    fn surely_under(&self, prompt: &Prompt<'_>, enough: u64) -> bool {
        let bytes = prompt.bytes.min(prompt.body.len() as u64);
        if bytes > enough {
            return false;
        }
        let around = match &self.mode {
            Mode::Tokenizer(counter) => counter.overhead(prompt.body),
            Mode::Estimate | Mode::Engine => OVERHEAD,
        };
        // What Python's JSON adds to tools is less than they have already.
        let tools = prompt.fields.tools.map_or(0, |tools| tools.of(prompt.body).len() as u64);
        bytes.saturating_add(tools).saturating_add(around) <= enough
    }
}

/// The engine of a pool, as far as it is known.
#[must_use]
pub fn engine(pool: &Pool) -> EngineKind {
    pool.members()
        .iter()
        .find(|member| member.replica.engine_known())
        .map_or(EngineKind::Vllm, |member| member.replica.engine())
}

async fn tokenize(counter: &Arc<PromptCounter>, prompt: &Prompt<'_>, engine: EngineKind) -> Result<Counted, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let now = i64::try_from(now).unwrap_or_default();
    let endpoint = prompt.endpoint;
    if prompt.body.len() <= BESIDE {
        let request = Request { body: prompt.body, fields: prompt.fields, endpoint, engine, now };
        return counter.count(&request).map_err(|error| error.to_string());
    }
    let (counter, body, fields) = (counter.clone(), prompt.body.clone(), prompt.fields.clone());
    let counted = tokio::task::spawn_blocking(move || {
        counter
            .count(&Request { body: &body, fields: &fields, endpoint, engine, now })
            .map_err(|error| error.to_string())
    });
    counted.await.unwrap_or_else(|error| Err(error.to_string()))
}

/// Asks a replica's `/tokenize`. `None` when it cannot say.
async fn ask(pool: &Pool, client: &UpstreamClient, prompt: &Prompt<'_>) -> Option<u64> {
    // Of the others it makes a text that `/tokenize` does not know.
    let known = match prompt.endpoint {
        Endpoint::Chat => prompt.fields.messages.is_some(),
        Endpoint::Completions => prompt.fields.prompt.is_some_and(|span| span.of(prompt.body).starts_with(b"\"")),
        _ => false,
    };
    let member = pool.members().iter().find(|member| member.replica.up()).cloned().filter(|_| known)?;
    let mut splices = Splices::new();
    admit::rename(&mut splices, prompt.body, prompt.fields, pool.upstream_model());
    let body = Segments::new(splices.apply(prompt.body));
    let request = request(&member.replica, body)?;
    let asked = timeout(ASK, async {
        let response = client.send(request).await.ok().filter(|response| response.status().is_success())?;
        Some(Limited::new(response.into_body(), ANSWER).collect().await.ok()?.to_bytes())
    });
    let answer = asked.await.ok().flatten();
    let tokens = answer.and_then(|body| tokens(&body));
    if tokens.is_none() {
        tracing::debug!(model = %pool.name(), replica = member.replica.label(), "the replica counts no tokens");
    }
    tokens
}

fn request(replica: &Replica, body: Segments) -> Option<HttpRequest<Segments>> {
    let base = replica.base();
    let path = PathAndQuery::try_from(format!("{}{}", base.path, Endpoint::Tokenize.path())).ok()?;
    let uri = Uri::builder().scheme(base.scheme.clone()).authority(base.authority.clone()).path_and_query(path);
    let mut request = HttpRequest::post(uri.build().ok()?).header(header::CONTENT_TYPE, "application/json");
    if let Some(key) = replica.api_key() {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose_secret())).ok()?;
        value.set_sensitive(true);
        request = request.header(header::AUTHORIZATION, value);
    }
    request.body(body).ok()
}

/// The count of a `/tokenize` answer.
fn tokens(answer: &[u8]) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct Answer {
        count: u64,
    }
    serde_json::from_slice::<Answer>(answer).ok().map(|answer| answer.count)
}
