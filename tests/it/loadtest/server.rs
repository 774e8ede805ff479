//! A blocking server that plays a script and notes when.

#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "it has threads of its own, and real time")]

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// What a script does.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Wait.
    Pause(f64),
    /// Write one chunk that carries tokens.
    Token(String),
    /// Write one chunk that carries none.
    Other(String),
    /// Write bytes as they are, in one chunk, without counting.
    Part(Vec<u8>),
    /// End the body properly.
    End,
    /// Reset the connection.
    Reset,
    /// Write bytes outside of any framing.
    Raw(String),
}

/// When the server did what, in ms from the end of the request.
#[derive(Debug, Clone, Default)]
pub(super) struct Truth {
    pub(super) tokens: Vec<f64>,
}

impl Truth {
    pub(super) fn ttft(&self) -> f64 {
        self.tokens[0]
    }

    pub(super) fn span(&self) -> f64 {
        self.tokens.last().unwrap() - self.tokens[0]
    }
}

#[derive(Default)]
pub(super) struct Seen {
    pub(super) truths: Mutex<Vec<Truth>>,
    pub(super) bodies: Mutex<Vec<String>>,
    pub(super) connections: AtomicUsize,
    pub(super) active: AtomicUsize,
    pub(super) peak: AtomicUsize,
}

/// A server that plays one script for every request.
pub(super) struct Scripted {
    pub(super) address: SocketAddr,
    pub(super) seen: Arc<Seen>,
}

pub(super) const SSE: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// A chat chunk with this content.
pub(super) fn chat(content: &str) -> String {
    format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{content}\"}},\"finish_reason\":null}}]}}\n\n"
    )
}

pub(super) const ROLE: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n";
pub(super) const FINISH: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n";
pub(super) const DONE: &str = "data: [DONE]\n\n";

pub(super) fn usage(tokens: u32) -> String {
    format!("data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":{tokens}}}}}\n\n")
}

/// Head, a wait, tokens with gaps between them, then the given end.
pub(super) fn stream(first: f64, gap: f64, tokens: &[String], end: &[Step]) -> Vec<Step> {
    let mut steps = vec![Step::Raw(SSE.into()), Step::Pause(first)];
    for (at, token) in tokens.iter().enumerate() {
        if at > 0 {
            steps.push(Step::Pause(gap));
        }
        steps.push(Step::Token(token.clone()));
    }
    steps.extend_from_slice(end);
    steps
}

/// The usual end.
pub(super) fn end(tokens: u32) -> Vec<Step> {
    vec![Step::Other(FINISH.into()), Step::Other(usage(tokens)), Step::Other(DONE.into()), Step::End]
}

impl Scripted {
    pub(super) fn start(script: Vec<Step>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let (script, own) = (Arc::new(script), Arc::clone(&seen));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(stream), script, seen) = (stream, Arc::clone(&script), Arc::clone(&own)) else { return };
                seen.connections.fetch_add(1, Ordering::Relaxed);
                thread::Builder::new().stack_size(128 * 1024).spawn(move || serve(stream, &script, &seen)).unwrap();
            }
        });
        Self { address, seen }
    }

    pub(super) fn truth(&self) -> Truth {
        self.seen.truths.lock().unwrap().last().unwrap().clone()
    }
}

/// Reads one request; `None` at the end of the connection.
fn request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 65_536];
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return Some(text.into_owned());
            }
        }
        let read = stream.read(&mut buffer).ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&buffer[..read]);
    }
}

fn serve(mut stream: TcpStream, script: &[Step], seen: &Seen) {
    stream.set_nodelay(true).unwrap();
    while let Some(body) = request(&mut stream) {
        let start = Instant::now();
        seen.bodies.lock().unwrap().push(body);
        let active = seen.active.fetch_add(1, Ordering::Relaxed) + 1;
        seen.peak.fetch_max(active, Ordering::Relaxed);
        let (truth, goes_on) = play(&mut stream, script, start);
        seen.active.fetch_sub(1, Ordering::Relaxed);
        seen.truths.lock().unwrap().push(truth);
        if !goes_on {
            return;
        }
    }
}

fn play(stream: &mut TcpStream, script: &[Step], start: Instant) -> (Truth, bool) {
    let mut truth = Truth::default();
    let framed = |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
    let mut due = start;
    for step in script {
        let written = match step {
            Step::Pause(ms) => {
                due = due.max(start) + Duration::from_secs_f64(ms / 1e3);
                thread::sleep(due.saturating_duration_since(Instant::now()));
                Ok(())
            }
            Step::Token(text) => {
                let at = start.elapsed();
                truth.tokens.push(at.as_secs_f64() * 1e3);
                stream.write_all(&framed(text.as_bytes()))
            }
            Step::Other(text) => stream.write_all(&framed(text.as_bytes())),
            Step::Part(bytes) => stream.write_all(&framed(bytes)),
            Step::Raw(text) => stream.write_all(text.as_bytes()),
            Step::End => stream.write_all(b"0\r\n\r\n"),
            Step::Reset => {
                socket2::SockRef::from(&*stream).set_linger(Some(Duration::ZERO)).unwrap();
                return (truth, false);
            }
        };
        if written.is_err() {
            return (truth, false);
        }
    }
    (truth, true)
}
