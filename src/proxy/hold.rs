//! Reads the beginning of an answer before any of it goes to the client: a refusal inside a 200 is still a refusal.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use crate::{
    dialect::{
        event::Meaning,
        sse::{EventSink, Frames, Scanner},
    },
    engine::error_code,
    error::BoxError,
    proxy::{
        forward::ForwardLimits,
        report::{Meter, Report},
        tap::Observer,
    },
    upstream::body::UpstreamBody,
};

/// A started but incomplete first event is not held longer than this: a client waits for its bytes.
const PARTIAL_HOLD: Duration = Duration::from_millis(40);

/// Comments that are held before the first event at most, in bytes.
const HOLD_BYTES: usize = 64 << 10;

/// Largest error answer that is read to decide on a retry; a longer one is relayed.
const ERROR_CAP: usize = 64 << 10;

/// Longest wait for the body of an error answer.
const ERROR_WAIT: Duration = Duration::from_secs(10);

/// What a relayed body starts with.
pub(super) struct TapStart {
    pub(super) ready: Frames,
    pub(super) first: Option<Bytes>,
    pub(super) observer: Observer,
    pub(super) upstream: Option<UpstreamBody>,
}

impl TapStart {
    pub(super) fn new(observer: Observer, upstream: Option<UpstreamBody>) -> Self {
        Self { ready: Frames::new(), first: None, observer, upstream }
    }
}

/// How the beginning of a stream went.
pub(super) enum Held {
    /// The head may go out.
    Release(Box<TapStart>),
    /// The first event is this error.
    Error(Bytes),
    /// No event within the limit.
    TimedOut,
    /// The connection broke.
    Broke(BoxError),
    /// The stream ended without an event.
    Empty,
}

/// Reads until the first event, the hold limit, or a first event that comes in pieces too slowly.
pub(super) async fn hold(
    mut body: UpstreamBody,
    hide_usage: bool,
    sent: Instant,
    limits: &ForwardLimits,
    report: &mut Report,
) -> Held {
    let mut scanner = Box::new(Scanner::new(hide_usage));
    let mut ready = Frames::new();
    let mut first = None;
    let mut release = sent + limits.first_event_hold;
    let first_token = sent + limits.tap.first_token;
    loop {
        let frame = match timeout_at(release.min(first_token), body.frame()).await {
            Err(_) if Instant::now() >= first_token => return Held::TimedOut,
            Err(_) => break,
            Ok(Some(Err(error))) => return Held::Broke(error),
            Ok(None) if ready.is_empty() && !scanner.inside_event() => return Held::Empty,
            Ok(None) => {
                let start = TapStart { ready, ..TapStart::new(Observer::Events(scanner), None) };
                return Held::Release(Box::new(start));
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        let now = Instant::now();
        let mut sink = First { meter: report.meter(now), first: &mut first };
        let progress = scanner.push(&data, &mut sink, &mut ready);
        match &first {
            Some((meaning, payload)) if meaning.error => return Held::Error(payload.clone()),
            Some(_) => break,
            None if progress.engine => release = release.min(now + PARTIAL_HOLD),
            None if ready.iter().map(Bytes::len).sum::<usize>() > HOLD_BYTES => break,
            None => {}
        }
    }
    Held::Release(Box::new(TapStart { ready, ..TapStart::new(Observer::Events(scanner), Some(body)) }))
}

/// Notes the first event with data, and lets the meter see all.
struct First<'a> {
    meter: Meter<'a>,
    first: &'a mut Option<(Meaning, Bytes)>,
}

impl EventSink for First<'_> {
    fn event(&mut self, meaning: &Meaning, payload: &[u8]) {
        if self.first.is_none() && !payload.trim_ascii().is_empty() {
            let kept = if meaning.error { Bytes::copy_from_slice(payload) } else { Bytes::new() };
            *self.first = Some((*meaning, kept));
        }
        self.meter.event(meaning, payload);
    }

    fn holds(&self) -> bool {
        self.meter.holds()
    }

    fn refuses(&self) -> bool {
        self.meter.refuses()
    }

    fn oversize(&mut self) {
        self.meter.oversize();
    }
}

/// The status that an error object speaks of, 500 if of none.
pub(super) fn status_of(error: &[u8]) -> StatusCode {
    let code = error_code::status_of(error).filter(|code| (400..600).contains(code));
    code.and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Reads an error body up to the cap. The second value is `None` when it is whole, else whether it has ended.
pub(super) async fn read_error(body: &mut UpstreamBody) -> (Bytes, Option<bool>) {
    let mut whole = Vec::new();
    let deadline = Instant::now() + ERROR_WAIT;
    loop {
        match timeout_at(deadline, body.frame()).await {
            Ok(None) => return (whole.into(), None),
            Ok(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    whole.extend_from_slice(data);
                }
                if whole.len() > ERROR_CAP {
                    return (whole.into(), Some(false));
                }
            }
            // A broken error answer: what came of it is still the engine's word.
            Err(_) | Ok(Some(Err(_))) => return (whole.into(), None),
        }
    }
}

/// Seconds of a Retry-After header.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(60)))
}
