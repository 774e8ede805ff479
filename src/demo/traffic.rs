//! The demo's requests: shared system prompts, own questions, Poisson arrivals; all drawn from one seed.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::{Instant, sleep_until};

use crate::dialect::{
    event::{Meaning, Usage},
    sse::{EventSink, Frames, Scanner},
};

/// Shared system prompts.
const PROMPTS: usize = 24;
/// Bytes of one system prompt: about 2,000 tokens.
const PROMPT_BYTES: usize = 8192;
/// Bytes of one question.
const QUESTION_BYTES: usize = 160;
/// Requests of one run.
const REQUESTS: usize = 160;
/// Requests a second.
const RATE: f64 = 32.0;
/// Tokens of one answer.
const ANSWER_TOKENS: usize = 16;
/// Every run draws the same.
const SEED: u64 = 24;
/// Longest request.
const PATIENCE: Duration = Duration::from_secs(20);

/// Requests and when to send them.
#[derive(Debug)]
pub(super) struct Traffic {
    requests: Vec<(Duration, Bytes)>,
}

/// What the clients saw.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// From sending to the first output, per request.
    pub(super) ttft: Vec<Duration>,
    /// Prompt tokens, by the engines' own count.
    pub(super) prompt_tokens: u64,
    /// Of these, from a prefix cache.
    pub(super) cached_tokens: u64,
}

impl Traffic {
    pub(super) fn new() -> Self {
        let mut rng = StdRng::seed_from_u64(SEED);
        let systems: Vec<String> = (0..PROMPTS).map(|_| words(&mut rng, PROMPT_BYTES)).collect();
        let mut at = Duration::ZERO;
        let requests = (0..REQUESTS)
            .map(|_| {
                let gap = -(1.0 - rng.random::<f64>()).ln() / RATE;
                at += Duration::from_secs_f64(gap);
                let system = systems.get(rng.random_range(0..PROMPTS)).map_or("", String::as_str);
                (at, body(system, &words(&mut rng, QUESTION_BYTES)))
            })
            .collect();
        Self { requests }
    }

    pub(super) fn describe(&self, replicas: usize, kv_tokens: usize) -> String {
        format!(
            "{} requests at {RATE} a second over {PROMPTS} shared system prompts of 2,000 tokens,\n\
             {replicas} simulated replicas with a KV cache of {kv_tokens} tokens each.",
            self.requests.len()
        )
    }

    /// Sends everything at its time and waits for the answers.
    pub(super) async fn run(&self, to: SocketAddr, model: &str, progress: impl Fn(f64)) -> anyhow::Result<Seen> {
        let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build()?;
        let url: Arc<str> = format!("http://{to}/v1/chat/completions").into();
        let start = Instant::now();
        let mut answers: FuturesUnordered<_> = self
            .requests
            .iter()
            .map(|(at, body)| {
                let text = String::from_utf8_lossy(body).replace("MODEL", model);
                one(client.clone(), url.clone(), text, start + *at)
            })
            .collect();
        let mut seen = Seen::default();
        while let Some(answer) = answers.next().await {
            let (ttft, usage) = answer?;
            seen.ttft.push(ttft);
            seen.prompt_tokens += usage.prompt.unwrap_or(0);
            seen.cached_tokens += usage.cached.unwrap_or(0);
            progress(seen.ttft.len() as f64 / self.requests.len() as f64);
        }
        Ok(seen)
    }
}

fn words(rng: &mut StdRng, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        let length = rng.random_range(2..9);
        text.extend((0..length).map(|_| char::from(rng.random_range(b'a'..=b'z'))));
        text.push(' ');
    }
    text
}

fn body(system: &str, question: &str) -> Bytes {
    let body = serde_json::json!({
        "model": "MODEL", "stream": true, "stream_options": { "include_usage": true },
        "max_tokens": ANSWER_TOKENS, "ignore_eos": true,
        "messages": [{ "role": "system", "content": system }, { "role": "user", "content": question }],
    });
    Bytes::from(body.to_string())
}

/// One request: time to first token, and what the engine reports.
async fn one(client: reqwest::Client, url: Arc<str>, body: String, at: Instant) -> anyhow::Result<(Duration, Usage)> {
    sleep_until(at).await;
    let sent = Instant::now();
    let request = client.post(&*url).header("content-type", "application/json").body(body);
    let mut response = request.send().await.context("the gateway did not answer")?;
    if !response.status().is_success() {
        bail!("the gateway answered {}: {}", response.status(), response.text().await.unwrap_or_default());
    }
    let mut answer = Answer::default();
    let mut scanner = Scanner::new(false);
    while let Some(chunk) = response.chunk().await? {
        answer.now = Some(Instant::now());
        scanner.push(&chunk, &mut answer, &mut Frames::new());
    }
    let first = answer.first.context("the answer has no output")?;
    Ok((first - sent, answer.usage))
}

#[derive(Default)]
struct Answer {
    now: Option<Instant>,
    first: Option<Instant>,
    usage: Usage,
}

impl EventSink for Answer {
    fn event(&mut self, meaning: &Meaning, _: &[u8]) {
        if meaning.output {
            self.first = self.first.or(self.now);
        }
        if let Some(usage) = meaning.usage {
            self.usage.update(usage);
        }
    }
}
