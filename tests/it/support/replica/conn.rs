//! One connection of a scripted replica: HTTP/1.1 parsed by hand, and the moment at which the peer hung up.

use std::{
    io::ErrorKind,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use socket2::SockRef;
use tokio::{net::TcpStream, sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    super::beside,
    ScriptedReplica,
    script::{Gone, Played},
};

/// A request as it came over the wire.
pub(crate) struct Received {
    pub(crate) method: String,
    /// Request target as sent.
    pub(crate) target: String,
    /// Names as sent.
    pub(crate) headers: Vec<(String, String)>,
    /// The head, byte for byte.
    pub(crate) head: Vec<u8>,
    /// The connection it came on.
    pub(crate) conn: Arc<Conn>,
    body: OnceLock<Vec<u8>>,
}

impl Received {
    fn parse(head: Vec<u8>, conn: Arc<Conn>) -> Option<Self> {
        let text = String::from_utf8_lossy(&head).into_owned();
        let mut lines = text.trim_end_matches("\r\n").split("\r\n");
        let mut first = lines.next()?.split(' ');
        let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
        let headers = lines.filter_map(|line| line.split_once(':'));
        let headers = headers.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect();
        Some(Self { method, target, headers, head, conn, body: OnceLock::new() })
    }

    /// The target without its query.
    pub(crate) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The values of one header, joined with commas; `None` if it is absent.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let values = self.headers.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
        let values: Vec<&str> = values.map(|(_, value)| value.as_str()).collect();
        (!values.is_empty()).then(|| values.join(","))
    }

    /// Whether the body has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.body.get().is_some()
    }

    /// The body; empty while it is incomplete or if the replica forgets bodies.
    pub(crate) fn body(&self) -> &[u8] {
        self.body.get().map_or(&[], Vec::as_slice)
    }

    /// Whether the body holds this text.
    pub(crate) fn has(&self, text: &str) -> bool {
        memchr::memmem::find(self.body(), text.as_bytes()).is_some()
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(self.body()).unwrap_or_default()
    }
}

#[derive(Default)]
struct Inbox {
    bytes: Vec<u8>,
    hung_up: Option<Instant>,
    closed: bool,
}

/// One accepted connection.
pub(crate) struct Conn {
    stream: Mutex<Option<Arc<TcpStream>>>,
    inbox: Mutex<Inbox>,
    changed: Notify,
    closing: CancellationToken,
    sent: AtomicU64,
}

impl Conn {
    pub(super) fn open(stream: TcpStream) -> Arc<Self> {
        let stream = Arc::new(stream);
        let conn = Arc::new(Self {
            stream: Mutex::new(Some(stream.clone())),
            inbox: Mutex::default(),
            changed: Notify::new(),
            closing: CancellationToken::new(),
            sent: AtomicU64::new(0),
        });
        beside(conn.clone().receive(stream));
        conn
    }

    async fn receive(self: Arc<Self>, stream: Arc<TcpStream>) {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let readable = tokio::select! {
                biased;
                () = self.closing.cancelled() => return,
                readable = stream.readable() => readable,
            };
            let read = readable.and_then(|()| stream.try_read(&mut buffer));
            let mut inbox = self.inbox.lock().unwrap();
            match read {
                Ok(n) if n > 0 => inbox.bytes.extend_from_slice(&buffer[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Ok(_) | Err(_) => inbox.hung_up = Some(Instant::now()),
            }
            let ended = inbox.hung_up.is_some();
            drop(inbox);
            self.changed.notify_waiters();
            if ended {
                return;
            }
        }
    }

    async fn wait<T>(&self, mut test: impl FnMut(&mut Inbox) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = test(&mut self.inbox.lock().unwrap()) {
                return found;
            }
            changed.await;
        }
    }

    /// When the peer hung up.
    pub(crate) fn hung_up(&self) -> Option<Instant> {
        self.inbox.lock().unwrap().hung_up
    }

    /// Bytes that the kernel took from the script.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    fn is_closed(&self) -> bool {
        self.inbox.lock().unwrap().closed
    }

    /// Waits until either side has closed.
    pub(super) async fn gone(&self) {
        self.wait(|inbox| (inbox.hung_up.is_some() || inbox.closed).then_some(())).await;
    }

    pub(super) async fn send(&self, mut bytes: &[u8]) -> Played {
        let Some(stream) = self.stream.lock().unwrap().clone() else { return Err(Gone) };
        while !bytes.is_empty() {
            let writable = tokio::select! {
                biased;
                () = self.gone() => return Err(Gone),
                writable = stream.writable() => writable,
            };
            match writable.and_then(|()| stream.try_write(&bytes[..bytes.len().min(1 << 16)])) {
                Ok(n) => {
                    self.sent.fetch_add(n as u64, Ordering::Relaxed);
                    bytes = &bytes[n..];
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Err(Gone),
            }
        }
        Ok(())
    }

    /// Ends the connection with FIN.
    pub(crate) fn close(&self) {
        self.end(false);
    }

    /// Ends the connection with RST.
    pub(crate) fn reset(&self) {
        self.end(true);
    }

    fn end(&self, reset: bool) {
        let Some(stream) = self.stream.lock().unwrap().take() else { return };
        if reset {
            SockRef::from(&*stream).set_linger(Some(Duration::ZERO)).unwrap();
        }
        self.inbox.lock().unwrap().closed = true;
        self.closing.cancel();
        self.changed.notify_waiters();
    }

    /// Ends the sending side only.
    pub(super) fn half_close(&self) {
        if let Some(stream) = &*self.stream.lock().unwrap() {
            SockRef::from(&**stream).shutdown(std::net::Shutdown::Write).unwrap();
        }
    }

    pub(super) async fn serve(self: Arc<Self>, replica: ScriptedReplica) {
        while let Some(received) = self.request(&replica).await {
            let played = replica.play(&self, &received).await;
            let close = received.header("connection").is_some_and(|value| value.to_ascii_lowercase().contains("close"));
            if played.is_err() || self.is_closed() || close {
                break;
            }
        }
        self.close();
    }

    /// The first `n` bytes once `find` knows `n`; `None` when the peer left before.
    async fn take(&self, find: impl Fn(&[u8]) -> Option<usize>) -> Option<Vec<u8>> {
        self.wait(|inbox| match find(&inbox.bytes) {
            Some(n) => Some(Some(inbox.bytes.drain(..n).collect())),
            None if inbox.hung_up.is_some() || inbox.closed => Some(None),
            None => None,
        })
        .await
    }

    async fn line(&self) -> Option<Vec<u8>> {
        self.take(|bytes| memchr::memchr(b'\n', bytes).map(|at| at + 1)).await
    }

    async fn request(self: &Arc<Self>, replica: &ScriptedReplica) -> Option<Arc<Received>> {
        let head = self.take(|bytes| memchr::memmem::find(bytes, b"\r\n\r\n").map(|at| at + 4)).await?;
        let received = Arc::new(Received::parse(head, self.clone())?);
        replica.record(&received);
        let chunked = received.header("transfer-encoding").is_some_and(|value| value.contains("chunked"));
        let body = if chunked { self.chunks().await? } else { self.sized(&received).await? };
        let kept = if replica.state().keep_bodies { body } else { Vec::new() };
        assert!(received.body.set(kept).is_ok(), "a body is set once");
        Some(received)
    }

    async fn sized(&self, received: &Received) -> Option<Vec<u8>> {
        let size: usize = received.header("content-length").map_or(Some(0), |value| value.parse().ok())?;
        self.take(|bytes| (bytes.len() >= size).then_some(size)).await
    }

    async fn chunks(&self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = String::from_utf8(self.line().await?).ok()?;
            let size = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
            if size == 0 {
                while self.line().await?.len() > 2 {}
                return Some(body);
            }
            body.extend(self.take(|bytes| (bytes.len() >= size).then_some(size)).await?);
            self.line().await?;
        }
    }
}
