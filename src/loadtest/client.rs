//! A small HTTP/1.1 client over hyper: one connection a stream, reused when a stream has ended, stamped by its socket.
//!
//! It never retries a request that may have run. One that a closed idle connection handed back unsent is put on a fresh
//! connection with its old times, so the delay shows.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;
use tower::{Service, ServiceExt};

use super::{
    clock::{Clock, ms},
    measure::Rules,
    observe::Observer,
    record::{Outcome, Record},
    socket::{NO_LAG, Stamped, Stamps},
};
use crate::{
    dialect::sse::{Frames, Scanner},
    fleet::BaseUrl,
    upstream::tls,
};

/// Longest error body that is read.
const ERROR_BODY: usize = 4096;
/// Pause of a slow reader between two frames.
const SLOW_PAUSE: Duration = Duration::from_millis(100);

/// An open connection.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    stamps: Arc<Stamps>,
}

/// A client for one target.
pub struct Client {
    base: BaseUrl,
    clock: Clock,
    rules: Rules,
    idle: Mutex<Vec<Connection>>,
    drivers: TaskTracker,
    https: HttpsConnector<HttpConnector>,
    connect_limit: Duration,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("base", &self.base).finish_non_exhaustive()
    }
}

/// What is sent.
#[derive(Debug)]
pub struct Call {
    /// Path below the base URL.
    pub path: &'static str,
    /// The body.
    pub body: Bytes,
    /// `authorization`, if there is a key.
    pub key: Option<HeaderValue>,
    /// `x-request-id`.
    pub id: String,
    /// Leave after this many token chunks.
    pub cancel_after: Option<usize>,
    /// Read slowly.
    pub slow: bool,
}

impl Client {
    /// A client for `base`.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn new(base: BaseUrl, clock: Clock, rules: Rules) -> anyhow::Result<Self> {
        let https =
            HttpsConnectorBuilder::new().with_tls_config(tls::client_config()?).https_or_http().enable_http1().build();
        Ok(Self {
            base,
            clock,
            rules,
            idle: Mutex::default(),
            drivers: TaskTracker::new(),
            https,
            connect_limit: Duration::from_secs(10),
        })
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes what is idle.
    pub fn close(&self) {
        self.idle().clear();
    }

    /// Opens connections beforehand, so that no request of the run pays for a handshake.
    pub async fn open(&self, count: usize) {
        for _ in 0..count {
            let Ok(connection) = self.connect().await else { return };
            self.idle().push(connection);
        }
    }

    async fn connect(&self) -> anyhow::Result<Connection> {
        let connected = tokio::time::timeout(self.connect_limit, self.stream()).await;
        let (stream, stamps) = connected.map_err(|_| anyhow::anyhow!("no connection within 10 s"))??;
        let (sender, driver) = http1::Builder::new().handshake(TokioIo::new(stream)).await?;
        // An error of the connection reaches the request as well.
        self.drivers.spawn(async move { driver.await.unwrap_or_default() });
        Ok(Connection { sender, stamps })
    }

    async fn stream(&self) -> anyhow::Result<(Stamped, Arc<Stamps>)> {
        if self.base.scheme == http::uri::Scheme::HTTP {
            let host = self.base.host().trim_matches(['[', ']']);
            let stream = TcpStream::connect((host, self.base.port())).await?;
            stream.set_nodelay(true)?;
            return Ok(Stamped::plain(stream, self.clock));
        }
        let mut https = self.https.clone();
        let connected = https.ready().await.map_err(anyhow::Error::from_boxed)?.call(self.base.uri("/")?).await;
        Ok(Stamped::tls(connected.map_err(anyhow::Error::from_boxed)?, self.clock))
    }

    fn request(&self, call: &Call) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut request = Request::post(format!("{}{}", self.base.path, call.path))
            .header(header::HOST, self.base.authority.as_str())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "text/event-stream")
            .header(header::USER_AGENT, concat!("gateway-loadtest/", env!("CARGO_PKG_VERSION")))
            .header("x-request-id", &call.id)
            .body(Full::new(call.body.clone()))?;
        if let Some(key) = &call.key {
            request.headers_mut().insert(header::AUTHORIZATION, key.clone());
        }
        Ok(request)
    }

    /// Sends a request and follows its answer to the end, all of it into `record`. Safe to drop at any time.
    pub async fn exchange(&self, call: &Call, record: &mut Record) {
        let outcome = self.ask(call, record).await;
        record.ended = self.clock.now();
        record.outcome = outcome.unwrap_or_else(|(outcome, error)| {
            record.error.get_or_insert(error);
            outcome
        });
    }

    async fn ask(&self, call: &Call, record: &mut Record) -> Result<Outcome, (Outcome, String)> {
        let broken = |error: &dyn std::fmt::Display| (Outcome::Broken, error.to_string());
        let mut request = self.request(call).map_err(|error| broken(&error))?;
        loop {
            let (mut connection, reused) = self.checkout(record).await?;
            connection.stamps.reset();
            let response = match connection.sender.try_send_request(request).await {
                Ok(response) => response,
                Err(mut error) => match error.take_message() {
                    Some(unsent) if reused => {
                        request = unsent;
                        continue;
                    }
                    _ => {
                        record.written = connection.stamps.first_write();
                        return Err(broken(error.error()));
                    }
                },
            };
            record.written = connection.stamps.first_write();
            let (arrived, lag) = connection.stamps.last_read();
            record.head = Some(arrived);
            note_lag(record, lag);
            read_head(record, &response);
            let outcome = self.answer(call, record, response, &connection.stamps).await?;
            if outcome != Outcome::Cancelled && connection.sender.ready().await.is_ok() {
                self.idle().push(connection);
            }
            return Ok(outcome);
        }
    }

    /// An open connection, and whether it had been used.
    async fn checkout(&self, record: &mut Record) -> Result<(Connection, bool), (Outcome, String)> {
        let idle = loop {
            let Some(connection) = self.idle().pop() else { break None };
            if !connection.sender.is_closed() {
                break Some(connection);
            }
        };
        if let Some(connection) = idle {
            return Ok((connection, true));
        }
        let from = self.clock.now();
        let connected = self.connect().await;
        record.connect += self.clock.now().saturating_sub(from);
        connected.map(|connection| (connection, false)).map_err(|error| (Outcome::Connect, format!("{error:#}")))
    }

    async fn answer(
        &self,
        call: &Call,
        record: &mut Record,
        response: Response<Incoming>,
        stamps: &Stamps,
    ) -> Result<Outcome, (Outcome, String)> {
        let status = response.status();
        let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
        let streams = kind.trim_start().to_ascii_lowercase().starts_with("text/event-stream");
        if status != http::StatusCode::OK || !streams {
            let kind = kind.to_owned();
            let text = excerpt(response.into_body()).await;
            let refused = status != http::StatusCode::OK;
            return Err(if refused {
                (Outcome::Status, format!("status {}: {text}", status.as_u16()))
            } else {
                (Outcome::NotAStream, format!("content-type {kind:?} instead of text/event-stream"))
            });
        }
        let mut body = response.into_body();
        let mut scanner = Scanner::new(false);
        let mut passed = Frames::new();
        let mut observer = Observer { record, now: 0, rules: self.rules, finished: false, failed: false, counted: 0 };
        while let Some(frame) = body.frame().await {
            let (arrived, lag) = stamps.last_read();
            let frame = match frame {
                Ok(frame) => frame,
                // What comes after the end of the answer is no loss.
                Err(_) if observer.finished && !observer.failed => break,
                Err(error) => return Err((Outcome::Broken, error.to_string())),
            };
            let Ok(bytes) = frame.into_data() else { continue };
            observer.now = arrived;
            note_lag(observer.record, lag);
            scanner.push(&bytes, &mut observer, &mut passed);
            passed.clear();
            if call.cancel_after.is_some_and(|most| observer.record.chunks.len() >= most) {
                return Ok(Outcome::Cancelled);
            }
            if call.slow {
                tokio::time::sleep(SLOW_PAUSE).await;
            }
        }
        Ok(match &observer {
            Observer { failed: true, .. } => Outcome::ErrorEvent,
            Observer { finished: false, .. } => Outcome::Truncated,
            Observer { record, .. } if record.chunks.is_empty() => Outcome::NoTokens,
            _ => Outcome::Ok,
        })
    }

    /// Fetches a page; for model lists and metrics, not for measuring.
    ///
    /// # Errors
    /// No connection, or a status that is not 200.
    pub async fn get(&self, path: &str, key: Option<&HeaderValue>) -> anyhow::Result<Bytes> {
        let mut connection = self.connect().await?;
        let mut request =
            Request::get(path).header(header::HOST, self.base.authority.as_str()).body(Full::new(Bytes::new()))?;
        if let Some(key) = key {
            request.headers_mut().insert(header::AUTHORIZATION, key.clone());
        }
        let response = connection.sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        if status == http::StatusCode::OK { Ok(body) } else { Err(anyhow::anyhow!("status {}", status.as_u16())) }
    }

    /// Where it points.
    #[must_use]
    pub const fn base(&self) -> &BaseUrl {
        &self.base
    }
}

fn note_lag(record: &mut Record, lag: u64) {
    if lag != NO_LAG {
        record.read_lag = Some(record.read_lag.unwrap_or(0).max(lag));
    }
}

fn read_head(record: &mut Record, response: &Response<Incoming>) {
    record.status = Some(response.status().as_u16());
    let text = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    record.retry_after = text("retry-after").and_then(|value| value.parse().ok());
    record.replica = text("x-gateway-replica").map(str::to_owned);
}

/// The beginning of an error body, on one line.
async fn excerpt(mut body: Incoming) -> String {
    let mut text = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        text.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        if text.len() > ERROR_BODY {
            break;
        }
    }
    String::from_utf8_lossy(&text).split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect()
}

/// Milliseconds of the longest unread time of a record.
#[must_use]
pub fn lag_ms(record: &Record) -> Option<f64> {
    record.read_lag.map(ms)
}
