//! What one client connection is doing: heads seen, requests that run, and when the last one ended.
//!
//! Written by the service, read by the guard of the socket and by the idle timer. All of a connection runs on one
//! thread; the atomics are there because hyper's futures must be `Send`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

/// The counts of one connection.
#[derive(Debug)]
pub(super) struct Activity {
    opened: Instant,
    heads: AtomicUsize,
    running: AtomicUsize,
    /// Microseconds after `opened`.
    ended: AtomicU64,
}

impl Activity {
    /// A connection that just opened.
    pub(super) fn new() -> Arc<Self> {
        let (heads, running, ended) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicU64::new(0));
        Arc::new(Self { opened: Instant::now(), heads, running, ended })
    }

    /// A head is complete: its request runs until the turn is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Turn {
        self.heads.fetch_add(1, Relaxed);
        self.running.fetch_add(1, Relaxed);
        Turn(self.clone())
    }

    /// Heads that were complete so far.
    pub(super) fn heads(&self) -> usize {
        self.heads.load(Relaxed)
    }

    /// Whether a request runs: it was begun and its answer's body is not dropped.
    pub(super) fn is_running(&self) -> bool {
        self.running.load(Relaxed) > 0
    }

    /// Since when no request runs; `None` while one does.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        (!self.is_running()).then(|| self.opened + Duration::from_micros(self.ended.load(Relaxed)))
    }
}

/// A running request in the counts.
#[derive(Debug)]
pub(super) struct Turn(Arc<Activity>);

impl Drop for Turn {
    fn drop(&mut self) {
        let micros = u64::try_from(self.0.opened.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.0.ended.store(micros, Relaxed);
        self.0.running.fetch_sub(1, Relaxed);
    }
}
