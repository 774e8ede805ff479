//! The access log: one JSON line a request, written by a thread of its own.
//!
//! The caller never waits: lines go through a bounded channel, and when the reader of the pipe stops reading, lines
//! are dropped and counted rather than requests held. Never prompts, keys or header values other than ids.

use std::{
    io::{self, Write},
    sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
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
/// How often a flush that finds the queue full tries again.
const FLUSH_TRIES: u32 = 100;
/// Pause between two tries.
const FLUSH_STEP: Duration = Duration::from_millis(5);

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
    /// `replica` or `fallback`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<&'a str>,
    /// Hosted model that was asked last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<&'a str>,
    /// Replica that answered last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<&'a str>,
    /// Why it was picked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'a str>,
    /// Replicas and hosted models tried.
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

/// What goes through the channel.
enum Message {
    Line(String),
    /// Every line before it is to be written, then the sender told.
    Flush(SyncSender<()>),
}

/// The writing end: formats and hands over.
#[derive(Debug)]
pub(super) struct Writer {
    messages: Option<SyncSender<Message>>,
    dropped: Counter,
}

impl Writer {
    /// Writes nothing.
    pub(super) fn off(dropped: Counter) -> Self {
        Self { messages: None, dropped }
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
        let (messages, waiting) = sync_channel(queue);
        let lost = dropped.clone();
        let run = move || write_lines(sink, &waiting, &lost);
        thread::Builder::new().name("access-log".to_owned()).spawn(run)?;
        Ok(Self { messages: Some(messages), dropped })
    }

    /// Hands a record over; drops and counts it when the queue is full. Never blocks.
    pub(super) fn write(&self, record: &AccessRecord<'_>) {
        let Some(messages) = &self.messages else { return };
        let sent = serde_json::to_string(record).map(|mut line| {
            line.push('\n');
            messages.try_send(Message::Line(line))
        });
        if !matches!(sent, Ok(Ok(()))) {
            self.dropped.increment(1);
        }
    }

    /// Waits until the lines so far are written, at most about half a second: a blocked pipe must not hold the exit.
    pub(super) fn flush(&self) {
        let Some(messages) = &self.messages else { return };
        let (finished, done) = sync_channel(1);
        let mut message = Message::Flush(finished);
        for _ in 0..FLUSH_TRIES {
            match messages.try_send(message) {
                Ok(()) => {
                    // Late or gone: nothing is left to do.
                    done.recv_timeout(FLUSH_STEP * FLUSH_TRIES).unwrap_or_default();
                    return;
                }
                Err(TrySendError::Full(back)) => message = back,
                Err(TrySendError::Disconnected(_)) => return,
            }
            thread::park_timeout(FLUSH_STEP);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Writes lines until the sender is gone; what cannot be written is counted.
fn write_lines(mut sink: impl Write, messages: &Receiver<Message>, dropped: &Counter) {
    while let Ok(first) = messages.recv() {
        let mut batch = String::new();
        let mut count = 0;
        let mut flushes = Vec::new();
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                Message::Line(line) => {
                    batch.push_str(&line);
                    count += 1;
                }
                Message::Flush(finished) => flushes.push(finished),
            }
            next = if batch.len() < BATCH_BYTES { messages.try_recv().ok() } else { None };
        }
        if sink.write_all(batch.as_bytes()).and_then(|()| sink.flush()).is_err() {
            dropped.increment(count);
        }
        for finished in flushes {
            // Who asked may have given up.
            finished.try_send(()).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests;
