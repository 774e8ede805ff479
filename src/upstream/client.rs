//! The client of the relay path: hyper-util's pooled client, one per worker.
//!
//! reqwest costs 1.7 times the CPU on short exchanges (measured, see `ARCHITECTURE.md`), so it stays with probes. The
//! idle limit lies below uvicorn's keep-alive of 5 s: a connection that the engine is about to close is not used again.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, Error, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::ClientConfig;
use smallvec::SmallVec;

use crate::{
    error::{ErrorKind, GatewayError, Stage},
    fleet::FailureCause,
};

/// Idle connections are closed after this; uvicorn's default keep-alive is 5 s.
const POOL_IDLE: Duration = Duration::from_secs(4);

/// Idle connections kept to one replica by one worker.
const POOL_SIZE: usize = 512;

/// Bytes read ahead of a slow client, and the largest response head that a replica may send.
const READ_AHEAD: usize = 16 << 10;

/// Pooled HTTP/1.1 client with a body of shared segments.
#[derive(Debug, Clone)]
pub struct UpstreamClient {
    inner: Client<HttpsConnector<HttpConnector>, Segments>,
}

impl UpstreamClient {
    /// A client with its own pool. `connect` bounds TCP and TLS set-up.
    #[must_use]
    pub fn new(connect: Duration, tls: ClientConfig) -> Self {
        let mut http = HttpConnector::new();
        http.set_nodelay(true);
        http.set_connect_timeout(Some(connect));
        http.set_keepalive(Some(Duration::from_secs(60)));
        http.enforce_http(false);
        let https = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        let inner = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(POOL_IDLE)
            .pool_max_idle_per_host(POOL_SIZE)
            .pool_timer(TokioTimer::new())
            .http1_max_buf_size(READ_AHEAD)
            .build(https);
        Self { inner }
    }

    /// Sends one request. The future resolves with the response head.
    ///
    /// # Errors
    /// What hyper reports; [`classify`] says what it means.
    pub async fn send(&self, request: Request<Segments>) -> Result<Response<Incoming>, Error> {
        self.inner.request(request).await
    }
}

/// What a transport error means for the client and for the replica.
#[must_use]
pub fn classify(error: &Error) -> (ErrorKind, FailureCause) {
    if error.is_connect() {
        return (ErrorKind::ReplicaReset, FailureCause::Connect);
    }
    match hyper_cause(error) {
        Some(cause) if cause.is_parse() || cause.is_parse_too_large() || cause.is_parse_status() => {
            (ErrorKind::ReplicaProtocol, FailureCause::Protocol)
        }
        _ => (ErrorKind::ReplicaReset, FailureCause::Reset),
    }
}

/// What an error in the middle of a response body means.
#[must_use]
pub fn classify_body(error: &(dyn std::error::Error + 'static)) -> (ErrorKind, FailureCause) {
    if source_of::<hyper::Error>(error).is_some_and(hyper::Error::is_parse) {
        return (ErrorKind::ReplicaProtocol, FailureCause::Protocol);
    }
    // hyper reports a broken chunk as an I/O error of kind InvalidData or InvalidInput.
    let framing = source_of::<std::io::Error>(error)
        .is_some_and(|io| matches!(io.kind(), std::io::ErrorKind::InvalidData | std::io::ErrorKind::InvalidInput));
    if framing {
        (ErrorKind::ReplicaProtocol, FailureCause::Protocol)
    } else {
        (ErrorKind::ReplicaReset, FailureCause::Reset)
    }
}

/// The transport error as the client reads it.
#[must_use]
pub fn transport_error(error: Error, stage: Stage) -> (GatewayError, FailureCause) {
    let (kind, cause) = classify(&error);
    let message = match cause {
        FailureCause::Connect => "the replica refused the connection",
        FailureCause::Protocol => "the replica answered with broken HTTP",
        _ => "the replica closed the connection before it answered",
    };
    // Broken before it was written: hyper still had the whole request.
    let unsent = hyper_cause(&error).is_some_and(hyper::Error::is_canceled);
    let mut answer = GatewayError::new(kind, stage, message).cause(error);
    if cause == FailureCause::Connect || unsent {
        answer = answer.elsewhere();
    }
    (answer, cause)
}

fn hyper_cause(error: &Error) -> Option<&hyper::Error> {
    source_of(error)
}

fn source_of<'a, E: std::error::Error + 'static>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(current) = next {
        if let Some(found) = current.downcast_ref::<E>() {
            return Some(found);
        }
        next = current.source();
    }
    None
}

/// A request body of segments that share the client's bytes: a splice copies nothing but what it adds.
#[derive(Debug, Clone, Default)]
pub struct Segments {
    parts: SmallVec<[Bytes; 8]>,
    next: usize,
    left: u64,
}

impl Segments {
    /// A body of these parts, in order.
    #[must_use]
    pub fn new(parts: SmallVec<[Bytes; 8]>) -> Self {
        let left = parts.iter().map(|part| part.len() as u64).sum();
        Self { parts, next: 0, left }
    }
}

impl Body for Segments {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        while let Some(part) = this.parts.get_mut(this.next) {
            this.next += 1;
            if !part.is_empty() {
                let part = std::mem::take(part);
                this.left -= part.len() as u64;
                return Poll::Ready(Some(Ok(Frame::data(part))));
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
