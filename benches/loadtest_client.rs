//! What the load test's client costs: CPU time of its one thread per streamed chunk, against a server that does nothing.
//!
//! `cargo bench --bench loadtest_client`. Linux only: the CPU time is that of `/proc/thread-self/schedstat`.

#![expect(clippy::unwrap_used, reason = "a bench that cannot run may stop")]

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

use gateway::loadtest::{
    body::{Api, Style},
    client::Client,
    clock::Clock,
    lengths::Shape,
    measure::Rules,
    record::Outcome,
    runner::{self, Load, Options},
    workload::Spec,
};
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CHUNKS: usize = 64;
const REQUESTS: usize = 4000;
const USERS: usize = 32;

fn event(data: &str) -> Vec<u8> {
    let text = format!("data: {data}\n\n");
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}

/// Answers every read with a head and one write for each chunk. A request is one read: its body is small.
fn serve(mut stream: TcpStream) {
    stream.set_nodelay(true).unwrap();
    let token = event(
        r#"{"id":"chatcmpl-0","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}"#,
    );
    let end = [
        event(r#"{"id":"chatcmpl-0","choices":[{"index":0,"delta":{},"finish_reason":"length"}]}"#),
        event(
            r#"{"id":"chatcmpl-0","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":64,"total_tokens":73}}"#,
        ),
        event("[DONE]"),
        b"0\r\n\r\n".to_vec(),
    ]
    .concat();
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut request = [0; 16_384];
    while stream.read(&mut request).is_ok_and(|read| read > 0) {
        let mut written = stream.write_all(head);
        for _ in 0..CHUNKS {
            written = written.and_then(|()| stream.write_all(&token));
        }
        if written.and_then(|()| stream.write_all(&end)).is_err() {
            return;
        }
    }
}

fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || serve(stream.unwrap()));
        }
    });
    address
}

/// Nanoseconds that this thread has run.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

fn main() -> std::io::Result<()> {
    let style = Style {
        api: Api::Chat,
        model: "m".into(),
        ignore_eos: false,
        per_chunk_usage: false,
        extra: serde_json::Map::new(),
    };
    let spec = Spec {
        style,
        input: 16,
        output: CHUNKS,
        shape: Shape::Fixed,
        shared_prefix: 0,
        groups: (1, 1.0),
        turns: 1,
        nonce: true,
        prompts: Vec::new(),
        tenants: Vec::new(),
        cancel_rate: 0.0,
        slow_readers: 0.0,
        seed: 0,
    };
    let options = Options {
        api: Api::Chat,
        cap: None,
        duration: None,
        think: 0.0,
        timeout: Duration::from_secs(60),
        keys: vec![None],
        max_tokens: None,
        max_usd: None,
        probe_rate: 0.0,
        planned: None,
        watch: false,
        id: "bench".into(),
    };
    gateway::upstream::tls::install_provider();
    let address = server();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (spent, chunks, wall) = runtime.block_on(async {
        let clock = Clock::start();
        let client = Arc::new(Client::new(format!("http://{address}").parse().unwrap(), clock, Rules::Own).unwrap());
        client.open(USERS).await;
        let (sessions, stop) = (spec.sessions(REQUESTS), CancellationToken::new());
        let before = cpu();
        let load = Load::Closed { users: USERS, ramp: 0.0 };
        let measured = runner::run(&client, sessions, load, (options, &spec), (&stop, clock)).await.unwrap();
        assert!(measured.records.iter().all(|record| record.outcome == Outcome::Ok));
        let chunks: usize = measured.records.iter().map(|record| record.chunks.len()).sum();
        (cpu() - before, chunks, measured.wall)
    });
    writeln!(
        std::io::stdout(),
        "{chunks} chunks in {wall:.2} s: {:.2} us of CPU a chunk, {:.0} chunks/s",
        spent / 1e3 / chunks as f64,
        chunks as f64 / wall
    )
}
