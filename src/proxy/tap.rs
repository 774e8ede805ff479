//! Step 8: the response body. Passes the replica's frames on and watches them; owns the charge and the report.
//!
//! Pulled by the client's connection, so a slow reader slows the replica. However it goes away, by its end, by an
//! error, or because the client left, dropping it releases the replica's load, closes the upstream connection (which
//! is how an engine learns to stop) and ends the report.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::{
    dialect::{
        event::{self, Meaning},
        sse::{Frames, Scanner},
    },
    error::{self, BoxError, ErrorKind, GatewayError, Stage},
    fleet::{FailureCause, InFlight},
    proxy::{isolate::Mask, report::Report},
    types::{Endpoint, Outcome},
    upstream::{body::UpstreamBody, client},
};

/// Bytes that are enough for one write: no more is waited for.
const BATCH: usize = 16 << 10;

/// Looks for more before frames are passed on.
const LOOKS: u8 = 2;

/// Longest non-streaming answer that is kept to read its usage.
const ANSWER_CAP: usize = 1 << 20;

/// How the bytes are read on the side.
#[derive(Debug)]
pub enum Observer {
    /// A server-sent-event stream.
    Events(Box<Scanner>),
    /// One JSON answer; its pieces so far.
    Json(Vec<u8>),
    /// Not read: another coding, or too long.
    Blind,
}

/// Limits of the time after the head.
#[derive(Debug, Clone, Copy)]
pub struct TapLimits {
    /// From sending to the first output of a stream.
    pub first_token: Duration,
    /// Between two signs of life of the engine; comments are none.
    pub idle: Duration,
    /// From sending to the end of an answer that is no stream.
    pub total: Duration,
}

/// The body of a relayed answer.
#[derive(Debug)]
pub struct Tap {
    upstream: Option<UpstreamBody>,
    /// What may be passed on already.
    ready: Ready,
    observer: Observer,
    report: Report,
    charge: Option<InFlight>,
    deadline: Deadline,
    limits: TapLimits,
    /// Whether an idle limit applies, not a total.
    streaming: bool,
    /// What ends the body when all is passed on.
    error: Option<BoxError>,
    /// Whether it was cut.
    over: bool,
}

/// What a tap starts with.
#[derive(Debug)]
pub struct TapParts {
    /// The rest of the answer.
    pub upstream: Option<UpstreamBody>,
    /// Frames read while the head was held, already watched.
    pub ready: Frames,
    /// A frame read while the head was held, not watched yet.
    pub first: Option<Bytes>,
    /// How to read.
    pub observer: Observer,
    /// The load on the replica; `None` for a hosted model.
    pub charge: Option<InFlight>,
    /// Limits.
    pub limits: TapLimits,
    /// Whether the request asked for a stream.
    pub streaming: bool,
    /// What hides the counts of cached tokens, if they are to be hidden.
    pub mask: Option<Mask>,
    /// When the request was sent.
    pub sent: Instant,
}

impl Tap {
    /// A body at its start.
    #[must_use]
    pub fn new(parts: TapParts, report: Report) -> Self {
        let first_limit = if parts.streaming { parts.limits.first_token } else { parts.limits.total };
        let mut deadline = Deadline::new(parts.sent + first_limit);
        if parts.streaming && report.has_output() {
            deadline.at = Instant::now() + parts.limits.idle;
        }
        let mut tap = Self {
            upstream: parts.upstream,
            ready: Ready::new(parts.ready, parts.mask),
            observer: parts.observer,
            report,
            charge: parts.charge,
            deadline,
            limits: parts.limits,
            streaming: parts.streaming,
            error: None,
            over: false,
        };
        if let Some(first) = parts.first {
            tap.observe(first);
        }
        tap.cut();
        if tap.upstream.as_ref().is_none_or(Body::is_end_stream) && !tap.over {
            tap.ended();
        }
        tap
    }

    fn observe(&mut self, data: Bytes) {
        let now = Instant::now();
        let progress = match &mut self.observer {
            Observer::Events(scanner) => {
                let mut out = Frames::new();
                let progress = scanner.push(&data, &mut self.report.meter(now), &mut out);
                self.ready.extend(out);
                progress.engine
            }
            Observer::Json(kept) => {
                if kept.len() + data.len() > ANSWER_CAP {
                    self.observer = Observer::Blind;
                } else {
                    kept.extend_from_slice(&data);
                }
                self.ready.push(data);
                true
            }
            Observer::Blind => {
                self.ready.push(data);
                true
            }
        };
        if self.streaming && progress {
            // Before the first output the limit to it holds, unless bytes flow for longer.
            let idle = now + self.limits.idle;
            self.deadline.at = if self.report.has_output() { idle } else { self.deadline.at.max(idle) };
        }
        if self.report.has_output()
            && let Some(charge) = &mut self.charge
            && let Some(off) = charge.first_token(now)
        {
            self.report.mispredicted(off);
        }
    }

    /// Ends a stream that went on beyond its output cap; closing the connection tells the engine to stop.
    fn cut(&mut self) {
        let Some(end) = self.report.cut() else { return };
        self.upstream = None;
        self.ready.push(end);
        self.over = true;
        self.report.note("the replica went on beyond the output cap; its stream was cut".to_owned());
        self.succeed();
        self.charge = None;
    }

    /// The replica's answer is complete.
    fn ended(&mut self) {
        self.upstream = None;
        let now = Instant::now();
        match &mut self.observer {
            Observer::Events(scanner) => {
                let held = scanner.finish(&mut self.report.meter(now));
                self.ready.extend(held);
                self.ready.extend(self.report.cut());
                if self.report.has_error_event() {
                    self.report.end(Outcome::UpstreamStreamError);
                    self.blame(FailureCause::StreamError);
                } else if self.report.is_complete() {
                    self.succeed();
                } else {
                    // `[DONE]` alone, or an end without a finish reason, is no complete answer.
                    self.report.note("the stream ended without a finish reason".to_owned());
                    self.report.end(Outcome::UpstreamStreamError);
                }
            }
            Observer::Json(kept) => {
                let meaning = event::read(kept);
                if let Some(usage) = meaning.usage {
                    self.report.used(usage);
                }
                let fault = if self.report.is_open() { nonsense(&meaning, kept, self.report.endpoint()) } else { None };
                match fault {
                    Some((outcome, cause)) => {
                        self.report.note("the answer is no result that the endpoint could have".to_owned());
                        self.report.end(outcome);
                        self.blame(cause);
                    }
                    None => self.succeed(),
                }
            }
            Observer::Blind => self.succeed(),
        }
        self.charge = None;
    }

    /// The replica's answer broke off. A stream is told so by an event, any other answer by an unclean end.
    fn broken(&mut self, kind: ErrorKind, cause: FailureCause, why: String) {
        self.upstream = None;
        self.blame(cause);
        self.charge = None;
        self.report.note(why);
        self.report.end(kind.outcome());
        let message = match kind {
            ErrorKind::ReplicaTimeout => "the replica was silent for too long; the answer is incomplete",
            _ => "the replica's stream broke off; the answer is incomplete",
        };
        let error = GatewayError::new(kind, Stage::Tap, message);
        let Observer::Events(scanner) = &self.observer else {
            self.error = Some(Box::new(error));
            return;
        };
        if scanner.inside_event() {
            self.ready.push(Bytes::from_static(b"\n\n"));
        }
        self.ready.push(error_event(&error, self.report.endpoint()));
    }

    fn blame(&self, cause: FailureCause) {
        if let Some(charge) = &self.charge {
            charge.replica().failed(cause, Instant::now());
        }
    }

    /// The whole answer came, and it was none of an error.
    fn succeed(&mut self) {
        if self.report.is_open()
            && let Some(charge) = &self.charge
        {
            charge.replica().succeeded(Instant::now());
        }
        self.report.end(Outcome::Success);
    }
}

/// Why a whole answer with a success status is none, if it is none: no JSON object, or an error object.
///
/// Judged only where tokens are generated; the shapes of other answers are the engines' own affair.
pub(super) fn nonsense(meaning: &Meaning, body: &[u8], endpoint: Endpoint) -> Option<(Outcome, FailureCause)> {
    if !endpoint.generates() {
        return None;
    }
    if meaning.error {
        return Some((Outcome::UpstreamError, FailureCause::StreamError));
    }
    let empty = body.trim_ascii().is_empty();
    (meaning.malformed || empty).then_some((Outcome::UpstreamProtocolError, FailureCause::Protocol))
}

/// The SSE event that tells a client of a broken stream, in its own dialect.
fn error_event(error: &GatewayError, endpoint: Endpoint) -> Bytes {
    let (_, kind, code) = error.kind.answer();
    let object = serde_json::json!({ "message": error.message, "type": kind, "param": null, "code": code });
    let text = match endpoint {
        Endpoint::Messages => {
            format!("event: error\ndata: {}\n\n", serde_json::json!({ "type": "error", "error": object }))
        }
        Endpoint::Responses => format!(
            "event: error\ndata: {}\n\n",
            serde_json::json!({ "type": "error", "code": code, "message": error.message, "param": null, "error": object })
        ),
        _ => format!("data: {}\n\n", serde_json::json!({ "error": object })),
    };
    Bytes::from(text)
}

impl Body for Tap {
    type Data = Bytes;
    type Error = BoxError;

    fn is_end_stream(&self) -> bool {
        self.upstream.is_none() && self.ready.frames.is_empty() && self.error.is_none()
    }

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        loop {
            let Some(upstream) = this.upstream.as_mut().filter(|_| this.ready.bytes < BATCH) else {
                let data = this.ready.take().map(|data| Ok(Frame::data(data)));
                return Poll::Ready(data.or_else(|| this.error.take().map(Err)));
            };
            match Pin::new(&mut *upstream).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers are hop business here: no engine sends any.
                    // A body of known length is not polled again after its last byte.
                    let last = upstream.is_end_stream();
                    if let Ok(data) = frame.into_data() {
                        this.observe(data);
                        this.cut();
                    }
                    if last && !this.over {
                        this.ended();
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    let (kind, cause) = client::classify_body(&*error);
                    this.broken(kind, cause, error::chain(&*error));
                }
                Poll::Ready(None) => this.ended(),
                Poll::Pending => {
                    if this.ready.linger() {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    if let Some(data) = this.ready.take() {
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                    ready!(this.deadline.poll(cx));
                    let why = "no sign of life within the limit".to_owned();
                    this.broken(ErrorKind::ReplicaTimeout, FailureCause::Timeout, why);
                }
            }
        }
    }
}

/// Frames on their way to the client, gathered into one write where they come in a burst.
///
/// hyper's connection hands over one chunk each time it runs, so chunks that arrived together would leave in a write
/// each, which costs twice what the rest of the relay does. So after a frame the task lets the connection run once
/// more, and passes on what it has when nothing new came: a round of the scheduler, no timer, and never more than
/// [`BATCH`]. hyper's server polls a pending body twice before it yields, hence [`LOOKS`].
#[derive(Debug, Default)]
struct Ready {
    frames: VecDeque<Bytes>,
    bytes: usize,
    /// Bytes that were there at the last look.
    seen: usize,
    /// Looks without anything new.
    idle: u8,
    mask: Option<Mask>,
}

impl Ready {
    fn new(frames: Frames, mask: Option<Mask>) -> Self {
        let bytes = frames.iter().map(Bytes::len).sum();
        // What was read while the head was held goes with the head.
        Self { frames: frames.into_iter().collect(), bytes, seen: bytes, idle: LOOKS, mask }
    }

    fn push(&mut self, frame: Bytes) {
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    fn extend(&mut self, frames: impl IntoIterator<Item = Bytes>) {
        frames.into_iter().for_each(|frame| self.push(frame));
    }

    /// Whether to look once more before passing on what is here.
    fn linger(&mut self) -> bool {
        if self.bytes > self.seen {
            self.seen = self.bytes;
            self.idle = 0;
        }
        self.idle = self.idle.saturating_add(1);
        self.bytes > 0 && self.idle <= LOOKS
    }

    /// The next frame: a large one as it is, small ones as one.
    fn take(&mut self) -> Option<Bytes> {
        let first = self.frames.pop_front()?;
        let taken = match self.frames.front() {
            Some(_) if first.len() < BATCH => {
                let mut joined = BytesMut::with_capacity(self.bytes.min(2 * BATCH));
                joined.extend_from_slice(&first);
                while let Some(next) = self.frames.front().filter(|next| joined.len() + next.len() <= 2 * BATCH) {
                    joined.extend_from_slice(next);
                    self.frames.pop_front();
                }
                joined.freeze()
            }
            _ => first,
        };
        self.bytes -= taken.len();
        self.seen = self.bytes;
        Some(match &mut self.mask {
            Some(mask) => mask.apply(taken),
            None => taken,
        })
    }
}

/// A point in time that moves with each frame; the timer follows only when it fires.
#[derive(Debug)]
struct Deadline {
    at: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl Deadline {
    fn new(at: Instant) -> Self {
        Self { at, sleep: Box::pin(sleep_until(at)) }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.at < self.sleep.deadline() {
                self.sleep.as_mut().reset(self.at);
            }
            ready!(self.sleep.as_mut().poll(cx));
            if self.at <= Instant::now() {
                return Poll::Ready(());
            }
            self.sleep.as_mut().reset(self.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_moved_fires_at_its_last_place() {
        let start = Instant::now();
        let mut deadline = Deadline::new(start + Duration::from_secs(1));
        deadline.at = start + Duration::from_secs(3);

        std::future::poll_fn(|cx| deadline.poll(cx)).await;
        assert_eq!(start.elapsed().as_secs(), 3);

        deadline.at = start + Duration::from_secs(60);
        deadline.sleep.as_mut().reset(deadline.at);
        deadline.at = start + Duration::from_secs(5);
        std::future::poll_fn(|cx| deadline.poll(cx)).await;
        assert_eq!(start.elapsed().as_secs(), 5);
    }
}
