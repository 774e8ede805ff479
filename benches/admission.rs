//! What admission costs a request: scan, caps, block chain, prompt tokens, splices. Median and 99th percentile.
//!
//! Run with `cargo bench --bench admission`. The tokenizer is the small one of the tests, 4,096 entries and a chat
//! template with tools; each request is another one, as in a conversation that grows by a turn.

use std::{fmt::Write as _, path::Path};

use bytes::Bytes;
use gateway::{
    config::{Caps, OnExcess},
    dialect::splice::Splices,
    prompt::{
        ChainSeed, PromptCounter, chain,
        count::{self, Request},
        estimate::Ratio,
        template::{ChatTemplate, TokenizerConfig},
        tokenizer::{Tokenizer, TokenizerError},
    },
    proxy::admit::{
        self,
        caps::{Limits, Output},
    },
    types::{Endpoint, EngineKind},
};
use tokio::time::Instant;

const RUNS: usize = 1000;

/// How the prompt is counted.
#[derive(Clone, Copy)]
enum Mode<'a> {
    /// Surely under the cap: not at all.
    Bytes,
    Estimate(&'a Ratio),
    Tokenizer(&'a PromptCounter),
}

fn counter() -> Result<PromptCounter, TokenizerError> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizer");
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap_or_default();
    let config: TokenizerConfig = serde_json::from_slice(&read("tokenizer_config.json")).unwrap_or_default();
    let template = config.template().and_then(|source| ChatTemplate::new(source, &config).ok());
    Ok(PromptCounter::new(Tokenizer::from_json(&read("tokenizer.json"))?, template))
}

/// A conversation of about `bytes` bytes in turns of 1 KiB, all of them named by `conversation`, and a last turn of 200
/// bytes that is named by `turn`.
fn chat(bytes: usize, conversation: usize, turn: usize) -> Bytes {
    let mut body = String::from(r#"{"model":"m","max_tokens":64,"messages":[{"role":"system","content":"Be brief."}"#);
    let mut number = 0;
    while body.len() + 300 < bytes {
        let role = if number % 2 == 0 { "user" } else { "assistant" };
        write!(body, r#",{{"role":"{role}","content":"{conversation} {number} "#).unwrap_or_default();
        body.push_str(&"The quick brown fox jumps over the lazy dog, again.\\n".repeat((bytes / 64).clamp(1, 19)));
        body.push_str("\"}");
        number += 1;
    }
    write!(body, r#",{{"role":"user","content":"{turn} {}"}}]}}"#, "what then, and why? ".repeat(10))
        .unwrap_or_default();
    Bytes::from(body)
}

/// One admission.
fn admit(body: &Bytes, mode: Mode<'_>) -> usize {
    let caps = Caps { max_output_tokens: Some(32), on_excess: OnExcess::Clamp, ..Caps::default() };
    let Ok(fields) = admit::fields(body) else { return 0 };
    let Ok(output) = Output::judge(body, &fields, Endpoint::Chat, Limits::new(&caps, None)) else { return 0 };
    let blocks = chain(body, &fields, Endpoint::Chat, &ChainSeed { model: "m", ..ChainSeed::default() }, 256);
    let request = Request { body, fields: &fields, endpoint: Endpoint::Chat, engine: EngineKind::Vllm, now: 0 };
    let tokens = match mode {
        Mode::Bytes => blocks.bytes() / 4,
        Mode::Estimate(ratio) => count::estimate(body, &fields, Endpoint::Chat, ratio).tokens,
        Mode::Tokenizer(counter) => counter.count(&request).map_or(0, |counted| counted.tokens),
    };
    let mut splices = Splices::new();
    output.splice(&mut splices);
    splices.apply(body).len() + usize::try_from(tokens).unwrap_or_default()
}

/// Median and 99th percentile in microseconds.
fn measure(bodies: impl Iterator<Item = Bytes>, mode: Mode<'_>) -> (f64, f64) {
    let mut times: Vec<f64> = bodies
        .map(|body| {
            let start = Instant::now();
            std::hint::black_box(admit(std::hint::black_box(&body), mode));
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
        let index = (times.len() as f64 * share) as usize;
        times.get(index.min(times.len() - 1)).copied().unwrap_or_default()
    };
    (at(0.5), at(0.99))
}

fn main() -> Result<(), TokenizerError> {
    let ratio = Ratio::default();
    let counter = counter()?;
    let rows = [
        ("under the cap by its bytes", Mode::Bytes),
        ("estimate", Mode::Estimate(&ratio)),
        ("tokenizer, next turn", Mode::Tokenizer(&counter)),
    ];
    let mut table = format!("{:<30}{:>10}{:>12}{:>12}\n", "admission of one request", "bytes", "p50 us", "p99 us");
    let mut row = |name: &str, bytes: usize, (p50, p99): (f64, f64)| {
        writeln!(table, "{name:<30}{bytes:>10}{p50:>12.1}{p99:>12.1}").unwrap_or_default();
    };
    for bytes in [1 << 10, 16 << 10, 100 << 10] {
        for (name, mode) in rows {
            // The conversation is known, the last turn is new each time.
            admit(&chat(bytes, 0, RUNS), mode);
            row(name, bytes, measure((0..RUNS).map(|turn| chat(bytes, 0, turn)), mode));
        }
        let cold = (1..=RUNS / 10).map(|conversation| chat(bytes, conversation, 0));
        row("tokenizer, new conversation", bytes, measure(cold, Mode::Tokenizer(&counter)));
    }
    #[expect(clippy::print_stdout, reason = "the result of a bench")]
    {
        println!("{table}");
    }
    Ok(())
}
