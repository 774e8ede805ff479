//! The access log: one JSON line a request, written by a thread of its own.
//!
//! The caller never waits: lines go through a bounded channel, and when the reader of the pipe stops reading, lines
//! are dropped and counted rather than requests held. Never prompts, keys or header values other than ids.

use std::{
    io::{self, Write},
    sync::{
        Mutex,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, SystemTime},
};

use humantime_serde::re::humantime;
use metrics::Counter;
use serde::Serialize;

use crate::config::AccessLog;

/// Lines that may wait: two seconds at 4,000 requests a second, about 4 MiB.
const QUEUED_LINES: usize = 8192;
/// Bytes written at once at most, when lines wait.
const BATCH_BYTES: usize = 64 << 10;
/// Longest wait for the last lines at exit; a blocked pipe must not hold the process.
const FLUSH: Duration = Duration::from_millis(500);

/// One request, for the log. Absent values are left out of the line.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct AccessRecord<'a> {
    /// When the request was complete.
    #[serde(serialize_with = "rfc3339")]
    pub time: SystemTime,
    /// `X-Request-Id`
    pub request_id: &'a str,
    /// Trace id of `traceparent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<&'a str>,
    /// Configured name of the model; never a name that only a client knows.
    pub model: &'a str,
    /// Label of the endpoint.
    pub endpoint: &'a str,
    /// Whether the client asked for a stream.
    pub stream: bool,
    /// Id of the client's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<&'a str>,
    /// Replica that answered last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<&'a str>,
    /// Why it was picked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'a str>,
    /// Replicas tried.
    pub attempts: u32,
    /// Cached prompt tokens, predicted at dispatch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_cached_tokens: Option<u64>,
    /// Cached prompt tokens, by the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reported_cached_tokens: Option<u64>,
    /// Prompt tokens, by the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Time to first token.
    #[serde(rename = "ttft_ms", skip_serializing_if = "Option::is_none", serialize_with = "optional_millis")]
    pub ttft: Option<Duration>,
    /// Time per output token.
    #[serde(rename = "tpot_ms", skip_serializing_if = "Option::is_none", serialize_with = "optional_millis")]
    pub tpot: Option<Duration>,
    /// Last request byte to last answer byte.
    #[serde(rename = "duration_ms", serialize_with = "millis")]
    pub duration: Duration,
    /// Status that the client read; 0 when it left before one.
    pub status: u16,
    /// Label of the outcome.
    pub outcome: &'a str,
    /// What went wrong: the message that the client read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'a str>,
}

fn rfc3339<S: serde::Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_millis(*time))
}

/// Milliseconds with microsecond precision.
fn millis<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_micros() as f64 / 1000.0)
}

fn optional_millis<S: serde::Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    millis(&duration.unwrap_or_default(), serializer)
}

/// The writing end: formats and hands over.
#[derive(Debug)]
pub(super) struct Writer {
    lines: Option<SyncSender<String>>,
    dropped: Counter,
    /// A `Receiver` alone would make every holder `!Sync`.
    done: Option<Mutex<Receiver<()>>>,
}

impl Writer {
    /// Writes nothing.
    pub(super) fn off(dropped: Counter) -> Self {
        Self { lines: None, dropped, done: None }
    }

    /// Starts the thread that writes to where the log goes; none for [`AccessLog::Off`].
    pub(super) fn start(target: AccessLog, dropped: Counter) -> io::Result<Self> {
        match target {
            AccessLog::Off => Ok(Self::off(dropped)),
            AccessLog::Stdout => Self::to(io::stdout(), dropped, QUEUED_LINES),
            AccessLog::Stderr => Self::to(io::stderr(), dropped, QUEUED_LINES),
        }
    }

    fn to(sink: impl Write + Send + 'static, dropped: Counter, queue: usize) -> io::Result<Self> {
        let (lines, waiting) = sync_channel(queue);
        let (finished, done) = sync_channel(1);
        let lost = dropped.clone();
        thread::Builder::new().name("access-log".to_owned()).spawn(move || {
            write_lines(sink, &waiting, &lost);
            // Nobody may be waiting.
            finished.try_send(()).unwrap_or_default();
        })?;
        Ok(Self { lines: Some(lines), dropped, done: Some(Mutex::new(done)) })
    }

    /// Hands a record over; drops and counts it when the queue is full. Never blocks.
    pub(super) fn write(&self, record: &AccessRecord<'_>) {
        let Some(lines) = &self.lines else { return };
        let sent = serde_json::to_string(record).map(|mut line| {
            line.push('\n');
            lines.try_send(line)
        });
        match sent {
            Ok(Ok(())) => {}
            Ok(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) | Err(_) => self.dropped.increment(1),
        }
    }
}

impl Drop for Writer {
    /// Lets the last lines out, within a limit.
    fn drop(&mut self) {
        drop(self.lines.take());
        if let Some(done) = self.done.take().and_then(|done| done.into_inner().ok()) {
            // Late or gone: nothing is left to do.
            done.recv_timeout(FLUSH).unwrap_or_default();
        }
    }
}

/// Writes lines until the sender is gone; what cannot be written is counted.
fn write_lines(mut sink: impl Write, lines: &Receiver<String>, dropped: &Counter) {
    while let Ok(mut batch) = lines.recv() {
        let mut count = 1;
        while batch.len() < BATCH_BYTES
            && let Ok(line) = lines.try_recv()
        {
            batch.push_str(&line);
            count += 1;
        }
        if sink.write_all(batch.as_bytes()).and_then(|()| sink.flush()).is_err() {
            dropped.increment(count);
        }
    }
}

#[cfg(test)]
mod tests;
