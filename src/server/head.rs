//! How long a client may take to complete a request head, from its first byte on.
//!
//! hyper cannot say it alone: its server waits without a limit for the 24 bytes that tell HTTP/2 from HTTP/1 (and
//! `POST` begins like them), and its own limit on a head counts the idle time before the head as well. A head is
//! complete when the service was called. Bytes of a next head that came while a request ran cannot be told from its
//! body; for those hyper's limit, the idle limit, holds.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Sleep, sleep};

use crate::server::activity::Activity;

/// What an HTTP/2 client sends first (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// All bytes so far, this many, begin the preface.
    Unknown(usize),
    Http1,
    Http2,
}

/// The state of the head that is being read.
#[derive(Debug)]
pub(super) struct Head {
    limit: Duration,
    version: Version,
    /// A head has begun, or the connection is new.
    begun: bool,
    /// Heads that were complete when last looked.
    seen: usize,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Head {
    /// The first head of a connection, which must be complete within `limit` from now.
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, version: Version::Unknown(0), begun: true, seen: 0, timer: Some(Box::pin(sleep(limit))) }
    }

    /// Whether the connection speaks HTTP/2.
    pub(super) fn is_http2(&self) -> bool {
        self.version == Version::Http2
    }

    /// Bytes came in.
    pub(super) fn read(&mut self, bytes: &[u8], activity: &Activity) {
        if let Version::Unknown(matched) = self.version {
            let expected = PREFACE.get(matched..).unwrap_or_default();
            let length = bytes.len().min(expected.len());
            self.version = if bytes.get(..length) != expected.get(..length) {
                Version::Http1
            } else if length == expected.len() {
                Version::Http2
            } else {
                Version::Unknown(matched + length)
            };
        }
        self.settle(activity);
        self.begun |= !bytes.is_empty() && !self.is_http2() && !activity.is_running();
    }

    /// Whether a head has begun and no request was made of it.
    pub(super) fn is_open(&mut self, activity: &Activity) -> bool {
        self.settle(activity);
        self.begun
    }

    /// Ready when the head took too long. To be called when there is nothing to read.
    pub(super) fn poll_late(&mut self, activity: &Activity, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_open(activity) {
            return Poll::Pending;
        }
        let limit = self.limit;
        self.timer.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(cx)
    }

    /// Forgets a head that is complete. HTTP/2 has no heads here: the idle limit and the pings are for it.
    fn settle(&mut self, activity: &Activity) {
        if activity.heads() != self.seen || self.is_http2() {
            self.seen = activity.heads();
            self.begun = false;
            self.timer = None;
        }
    }
}
