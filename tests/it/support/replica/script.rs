//! What a scripted replica does with one request: any sequence of bytes, pauses and ways to end.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use super::{
    ScriptedReplica,
    conn::{Conn, Received},
};

/// The gateway hung up, or the script closed: nothing more can be played.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gone;

/// How a script ended.
pub(crate) type Played = Result<(), Gone>;

type Playing = Pin<Box<dyn Future<Output = Played> + Send>>;

/// What is played for one request.
#[derive(Clone)]
pub(crate) struct Script(Arc<dyn Fn(Play) -> Playing + Send + Sync>);

impl Script {
    /// A script from a function.
    pub(crate) fn new<F, P>(play: F) -> Self
    where
        F: Fn(Play) -> P + Send + Sync + 'static,
        P: Future<Output = Played> + Send + 'static,
    {
        Self(Arc::new(move |stage| Box::pin(play(stage))))
    }

    /// Plays it.
    pub(crate) async fn run(&self, play: Play) -> Played {
        (self.0)(play).await
    }
}

/// One request while its answer is played.
#[derive(Clone)]
pub(crate) struct Play {
    conn: Arc<Conn>,
    /// What was received.
    pub(crate) request: Arc<Received>,
    /// Who plays.
    pub(crate) replica: ScriptedReplica,
}

impl Play {
    pub(super) fn new(conn: Arc<Conn>, request: Arc<Received>, replica: ScriptedReplica) -> Self {
        Self { conn, request, replica }
    }

    /// Writes these bytes, in one write where the kernel takes them.
    pub(crate) async fn send(&self, bytes: impl AsRef<[u8]>) -> Played {
        self.conn.send(bytes.as_ref()).await
    }

    /// Writes one chunk of a chunked body.
    pub(crate) async fn chunk(&self, bytes: impl AsRef<[u8]>) -> Played {
        self.send(chunk(bytes)).await
    }

    /// Writes an SSE head.
    pub(crate) async fn head(&self) -> Played {
        self.send(head(200, SSE)).await
    }

    /// Waits; ends early when the gateway hangs up.
    pub(crate) async fn pause(&self, time: Duration) -> Played {
        tokio::select! {
            () = self.conn.gone() => Err(Gone),
            () = tokio::time::sleep(time) => Ok(()),
        }
    }

    /// Says nothing until the gateway hangs up.
    pub(crate) async fn hang(&self) -> Played {
        self.conn.gone().await;
        Err(Gone)
    }

    /// Ends the connection with RST.
    pub(crate) fn reset(&self) -> Played {
        self.conn.reset();
        Err(Gone)
    }

    /// Ends the connection with FIN.
    pub(crate) fn close(&self) -> Played {
        self.conn.close();
        Err(Gone)
    }

    /// Sends FIN and goes on reading.
    pub(crate) fn half_close(&self) {
        self.conn.half_close();
    }
}

/// Header lines.
pub(crate) type Headers<'a> = &'a [(&'a str, &'a str)];

/// The head of vLLM's streams.
pub(crate) const SSE: Headers<'static> =
    &[("server", "uvicorn"), ("content-type", "text/event-stream; charset=utf-8"), ("transfer-encoding", "chunked")];

/// The last chunk.
pub(crate) const LAST: &str = "0\r\n\r\n";

/// One chunk of a chunked body.
pub(crate) fn chunk(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// A response head.
pub(crate) fn head(status: u16, headers: Headers<'_>) -> Vec<u8> {
    let reason = http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or("X");
    let mut head = format!("HTTP/1.1 {status} {reason}\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    head.into_bytes()
}

/// A whole answer with a length.
#[derive(Clone)]
pub(crate) struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    after: Duration,
}

/// A JSON answer.
pub(crate) fn reply(status: u16, body: impl Into<Vec<u8>>) -> Reply {
    let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    Reply { status, headers, body: body.into(), after: Duration::ZERO }
}

impl Reply {
    /// Comes this much later.
    pub(crate) fn after(mut self, after: Duration) -> Self {
        self.after = after;
        self
    }

    /// Carries this header too.
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Is not JSON but this.
    pub(crate) fn content_type(mut self, value: &str) -> Self {
        value.clone_into(&mut self.headers[0].1);
        self
    }
}

impl From<Reply> for Script {
    fn from(reply: Reply) -> Self {
        let length = reply.body.len().to_string();
        let mut headers: Vec<(&str, &str)> = vec![("server", "uvicorn"), ("content-length", &length)];
        headers.extend(reply.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let whole: Arc<[u8]> = [head(reply.status, &headers), reply.body.clone()].concat().into();
        Self::new(move |play| {
            let whole = whole.clone();
            async move {
                if !reply.after.is_zero() {
                    play.pause(reply.after).await?;
                }
                play.send(&whole).await
            }
        })
    }
}

/// A streamed answer: one chunk and one write for each element.
#[derive(Clone)]
pub(crate) struct Stream {
    head: Vec<u8>,
    writes: Vec<Vec<u8>>,
    after: Duration,
    gap: Duration,
    piece: Option<usize>,
}

/// A chunked SSE answer.
pub(crate) fn stream<W: Into<Vec<u8>>>(writes: impl IntoIterator<Item = W>) -> Stream {
    let writes = writes.into_iter().map(Into::into).collect();
    Stream { head: head(200, SSE), writes, after: Duration::ZERO, gap: Duration::ZERO, piece: None }
}

impl Stream {
    /// With this gap between writes.
    pub(crate) fn every(mut self, gap: Duration) -> Self {
        self.gap = gap;
        self
    }

    /// Head and all come this much later.
    pub(crate) fn after(mut self, after: Duration) -> Self {
        self.after = after;
        self
    }

    /// With these headers in place of the usual ones; they must say `chunked`.
    pub(crate) fn headers(mut self, headers: Headers<'_>) -> Self {
        self.head = head(200, headers);
        self
    }

    /// The framed body is written in pieces of this size, whatever the chunks are.
    pub(crate) fn in_pieces_of(mut self, size: usize) -> Self {
        self.piece = Some(size);
        self
    }

    async fn play(&self, play: &Play) -> Played {
        if !self.after.is_zero() {
            play.pause(self.after).await?;
        }
        play.send(&self.head).await?;
        if let Some(size) = self.piece {
            let whole = [self.writes.iter().flat_map(chunk).collect(), LAST.as_bytes().to_vec()].concat();
            for piece in whole.chunks(size) {
                play.send(piece).await?;
                tokio::task::yield_now().await;
            }
            return Ok(());
        }
        for (i, write) in self.writes.iter().enumerate() {
            if i > 0 && !self.gap.is_zero() {
                play.pause(self.gap).await?;
            }
            play.chunk(write).await?;
        }
        play.send(LAST).await
    }
}

impl From<Stream> for Script {
    fn from(stream: Stream) -> Self {
        let stream = Arc::new(stream);
        Self::new(move |play| {
            let stream = stream.clone();
            async move { stream.play(&play).await }
        })
    }
}
