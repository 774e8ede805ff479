//! What the gateway computes for each request (scan, hash, index, placement) and for each event of a stream.
//!
//! Run with `cargo bench --bench hot_path`. Inputs are made once, outside the measured part; figures are for one core.

use std::fmt::Write as _;

use bytes::Bytes;
use divan::{
    Bencher, black_box,
    counter::{BytesCount, ItemsCount},
};
use gateway::{
    dialect::{
        event::Meaning,
        scan,
        sse::{EventSink, Frames, Scanner},
    },
    prompt::{Chain, ChainSeed, chain},
    routing::{PrefixIndex, REGISTRY, ReplicaView, RouteQuery, policy, rendezvous},
    types::{Endpoint, ReplicaSlot},
};

fn main() {
    divan::main();
}

const SIZES: [usize; 4] = [1 << 10, 16 << 10, 220 << 10, 1 << 20];
const BLOCK_BYTES: u32 = 256;

/// A chat of some turns; every `newline` bytes of text there is an escape, as in code and in prose.
fn chat(bytes: usize, newline: usize) -> String {
    let mut body =
        String::from(r#"{"model":"m","messages":[{"role":"system","content":"You are a helpful assistant."}"#);
    let mut number = 0_u64;
    while body.len() < bytes {
        let role = if number.is_multiple_of(2) { "user" } else { "assistant" };
        write!(body, r#",{{"role":"{role}","content":""#).ok();
        let end = (body.len() + bytes / 8).min(bytes);
        while body.len() < end {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let line = newline.saturating_sub(2);
            let words = format!("{number:016x} ").repeat(line / 17 + 1);
            body.extend(words.chars().take(line));
            body.push_str(r"\n");
        }
        body.push_str("\"}");
        number += 1;
    }
    body.push_str(r#"],"max_tokens":64,"stream":true}"#);
    body
}

/// A completion of token ids.
fn ids(bytes: usize, separator: &str) -> String {
    let mut body = String::from(r#"{"model":"m","max_tokens":64,"prompt":[1"#);
    let mut number = 0_u32;
    while body.len() < bytes {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        write!(body, "{separator}{}", (number >> 8) % 128_000).ok();
    }
    body.push_str("]}");
    body
}

fn scan_and_hash(body: &str, endpoint: Endpoint) -> Option<Chain> {
    let fields = scan(black_box(body).as_bytes()).ok()?;
    let seed = ChainSeed { model: "m", ..ChainSeed::default() };
    Some(chain(body.as_bytes(), &fields, endpoint, &seed, BLOCK_BYTES))
}

fn measure(bencher: Bencher<'_, '_>, body: &str, endpoint: Endpoint) {
    bencher.counter(BytesCount::of_str(body)).bench_local(|| scan_and_hash(body, endpoint));
}

/// Text without escapes inside a message.
#[divan::bench(args = SIZES)]
fn scan_hash_chat(bencher: Bencher<'_, '_>, bytes: usize) {
    measure(bencher, &chat(bytes, bytes), Endpoint::Chat);
}

/// Text with `\n` every 80 bytes.
#[divan::bench(args = SIZES)]
fn scan_hash_chat_with_lines(bencher: Bencher<'_, '_>, bytes: usize) {
    measure(bencher, &chat(bytes, 80), Endpoint::Chat);
}

/// Token ids.
#[divan::bench(args = SIZES)]
fn scan_hash_ids(bencher: Bencher<'_, '_>, bytes: usize) {
    measure(bencher, &ids(bytes, ","), Endpoint::Completions);
}

/// Token ids as Python's `json` writes them.
#[divan::bench(args = [1 << 20])]
fn scan_hash_ids_with_spaces(bencher: Bencher<'_, '_>, bytes: usize) {
    measure(bencher, &ids(bytes, ", "), Endpoint::Completions);
}

/// The scan alone.
#[divan::bench(args = [1 << 20])]
fn scan_ids(bencher: Bencher<'_, '_>, bytes: usize) {
    let body = ids(bytes, ",");
    bencher.counter(BytesCount::of_str(&body)).bench_local(|| scan(black_box(&body).as_bytes()).is_ok());
}

/// The scan alone.
#[divan::bench(args = [1 << 20])]
fn scan_chat(bencher: Bencher<'_, '_>, bytes: usize) {
    let body = chat(bytes, bytes);
    bencher.counter(BytesCount::of_str(&body)).bench_local(|| scan(black_box(&body).as_bytes()).is_ok());
}

fn views(count: u16) -> Vec<ReplicaView> {
    let view = |slot: u16| ReplicaView {
        learned: None,
        slot: ReplicaSlot(slot),
        generation: 0,
        id_hash: rendezvous::id_hash(&format!("10.0.0.{slot}:8000")),
        in_flight: u32::from(slot % 5),
        running: 0,
        waiting: 0,
        pending_prefill: u64::from(slot % 7) * 300,
        kv_usage: None,
        capacity_blocks: None,
        clock: 0,
        since_empty: u32::MAX,
        limit: 256,
    };
    (0..count).map(view).collect()
}

/// An 8 KiB prompt of its own.
fn prompt(number: u32) -> Option<Chain> {
    let text = format!("{number:08x}").repeat(1024);
    scan_and_hash(&format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}]}}"#), Endpoint::Chat)
}

/// An index of 1 M entries that is full, and some prompts that it knows.
fn full_index() -> (PrefixIndex, Vec<Chain>) {
    let index = PrefixIndex::new(1 << 20);
    let mut known = Vec::new();
    for number in 0..40_000_u32 {
        let Some(chain) = prompt(number) else { continue };
        index.insert(&chain, ReplicaSlot(u16::try_from(number % 64).unwrap_or(0)), 0, 0);
        if number >= 39_000 {
            known.push(chain);
        }
    }
    (index, known)
}

/// Lookup of a known prompt of 32 blocks among 64 replicas, the table being full.
#[divan::bench]
fn index_lookup(bencher: Bencher<'_, '_>) {
    let (index, known) = full_index();
    let views = views(64);
    let mut chains = known.iter().cycle();
    bencher.bench_local(|| chains.next().map(|chain| index.lookup(chain, &views)));
}

/// Insert of a new prompt of 32 blocks, the table being full: each block evicts another.
#[divan::bench(sample_count = 1000, sample_size = 1)]
fn index_insert(bencher: Bencher<'_, '_>) {
    let (index, _) = full_index();
    let mut number = 1_000_000;
    let next = move || {
        number += 1;
        prompt(number)
    };
    bencher.with_inputs(next).bench_local_values(|chain| chain.map(|chain| index.insert(&chain, ReplicaSlot(1), 0, 0)));
}

/// Lookup and ranking of a known prompt among 64 replicas.
#[divan::bench(args = REGISTRY.iter().map(|entry| entry.name))]
fn place_64(bencher: Bencher<'_, '_>, name: &str) {
    let (index, known) = full_index();
    let views = views(64);
    let Some(policy) = policy(name) else { return };
    let mut chains = known.iter().cycle();
    bencher.bench_local(|| {
        let chain = chains.next()?;
        let query = RouteQuery {
            chain,
            prompt_tokens: chain.bytes() / 4,
            tokens_per_block: 64.0,
            affinity: None,
            random: chain.stable_key(),
        };
        let hits = index.lookup(chain, &views);
        policy.rank(&query, &hits, &views).first().copied()
    });
}

/// Ranking of a prompt that nobody knows, among 64 replicas.
#[divan::bench]
fn place_64_miss(bencher: Bencher<'_, '_>) {
    let index = PrefixIndex::new(1 << 10);
    let views = views(64);
    let (Some(policy), Some(chain)) = (policy("prefix"), prompt(1)) else { return };
    let query = RouteQuery { chain: &chain, prompt_tokens: 2000, tokens_per_block: 64.0, affinity: None, random: 1 };
    bencher.bench_local(|| {
        let hits = index.lookup(&chain, &views);
        policy.rank(&query, &hits, &views).first().copied()
    });
}

/// Counts output, as the request path's own sink does.
#[derive(Default)]
struct Outputs(u64);

impl EventSink for Outputs {
    fn event(&mut self, meaning: &Meaning, _: &[u8]) {
        self.0 += u64::from(meaning.output);
    }
}

/// Events of vLLM's shape, 219 bytes each.
const EVENTS: usize = 1000;

fn stream() -> String {
    let event = r#"data: {"id":"chatcmpl-bd5b9797025737ac","object":"chat.completion.chunk","created":1796062548,"model":"tiny","choices":[{"index":0,"delta":{"content":" inside"},"logprobs":null,"finish_reason":null,"token_ids":null}]}"#;
    format!("{event}\n\n").repeat(EVENTS)
}

fn observe(bencher: Bencher<'_, '_>, frame: usize) {
    let text = Bytes::from(stream());
    let frames: Vec<Bytes> =
        (0..text.len()).step_by(frame).map(|at| text.slice(at..(at + frame).min(text.len()))).collect();
    bencher.counter(BytesCount::new(text.len())).counter(ItemsCount::new(EVENTS)).bench_local(|| {
        let (mut scanner, mut sink) = (Scanner::new(true), Outputs::default());
        for frame in &frames {
            scanner.push(black_box(frame), &mut sink, &mut Frames::new());
        }
        sink.0
    });
}

/// The observer of a stream, several events a frame, as under load.
#[divan::bench]
fn observe_stream_in_large_frames(bencher: Bencher<'_, '_>) {
    observe(bencher, 16 << 10);
}

/// The same with frames that cut every event in two.
#[divan::bench]
fn observe_stream_in_cut_frames(bencher: Bencher<'_, '_>) {
    observe(bencher, 150);
}
