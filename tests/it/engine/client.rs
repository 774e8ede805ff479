//! A raw HTTP/1.1 client: one connection a request, chunked framing undone, nothing hidden.

use std::{net::SocketAddr, time::Duration};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};

const LIMIT: Duration = Duration::from_secs(20);

/// A connection on which a request was sent.
pub(super) struct Exchange {
    stream: TcpStream,
    pub(super) raw: Vec<u8>,
    pub(super) sent: Instant,
}

/// An answer read to its end.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// Sends a request with these header lines (each with its CRLF).
pub(super) async fn send(addr: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> Exchange {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    // A server may refuse on the head alone and close.
    let written = async {
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await
    };
    written.await.unwrap();
    Exchange { stream, raw: Vec::new(), sent: Instant::now() }
}

impl Exchange {
    /// Reads once more; false at the end of the connection.
    pub(super) async fn read(&mut self) -> bool {
        let read = timeout(LIMIT, self.stream.read_buf(&mut self.raw)).await.expect("silent for 20 s");
        read.is_ok_and(|bytes| bytes > 0)
    }

    /// Reads until `text` has been seen; how long that took.
    pub(super) async fn until(&mut self, text: &str) -> Duration {
        while !String::from_utf8_lossy(&self.raw).contains(text) {
            assert!(self.read().await, "closed without {text:?}: {}", String::from_utf8_lossy(&self.raw));
        }
        self.sent.elapsed()
    }

    /// Reads to the end.
    pub(super) async fn finish(mut self) -> Answer {
        while self.read().await {}
        answer(&self.raw)
    }
}

fn answer(raw: &[u8]) -> Answer {
    let split = raw.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head");
    let head = String::from_utf8(raw[..split].to_vec()).unwrap().to_ascii_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body = &raw[split + 4..];
    let body = if head.contains("transfer-encoding: chunked") { dechunk(body) } else { body.to_vec() };
    Answer { status, head, body: String::from_utf8(body).unwrap() }
}

fn dechunk(mut rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(line) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            break;
        }
        out.extend_from_slice(&rest[line + 2..line + 2 + size]);
        rest = &rest[line + 4 + size..];
    }
    out
}

const JSON: &str = "content-type: application/json\r\n";

/// Sends JSON.
pub(super) async fn open(addr: SocketAddr, path: &str, body: &Value) -> Exchange {
    send(addr, "POST", path, JSON, &body.to_string()).await
}

/// Sends JSON and reads the answer.
pub(super) async fn post(addr: SocketAddr, path: &str, body: &Value) -> Answer {
    open(addr, path, body).await.finish().await
}

/// Gets.
pub(super) async fn get(addr: SocketAddr, path: &str) -> Answer {
    send(addr, "GET", path, "", "").await.finish().await
}

/// One value of a metrics page; the family must be there.
pub(super) async fn metric(addr: SocketAddr, name: &str) -> f64 {
    let page = get(addr, "/metrics").await.body;
    let line = page
        .lines()
        .find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{') || rest.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("no {name} in\n{page}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}
