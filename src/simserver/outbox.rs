//! What the engine tells the reader of one request, in constant space.
//!
//! The text of token i is a function of the seed, so a counter per sequence is the whole queue: a slow reader never
//! blocks the engine and finds several tokens at once when it comes back. That is also what vLLM does: outputs that were
//! not read yet are merged, and one chunk has several tokens.
//! Source: vLLM `v1/engine/output_processor.py`, `RequestOutputCollector`.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

/// How far one sequence is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) generated: usize,
    pub(super) cached: usize,
    pub(super) finished: bool,
}

#[derive(Debug)]
struct Inner {
    progress: Vec<Progress>,
    version: u64,
    dead: bool,
    waker: Option<Waker>,
}

/// Counters of all sequences of one request.
#[derive(Debug)]
pub(super) struct Outbox(Mutex<Inner>);

impl Outbox {
    pub(super) fn new(sequences: usize) -> Self {
        Self(Mutex::new(Inner { progress: vec![Progress::default(); sequences], version: 0, dead: false, waker: None }))
    }

    /// Stores news of sequence `index` and wakes the reader.
    pub(super) fn put(&self, index: usize, news: Progress) {
        let waker = {
            let mut inner = self.lock();
            if let Some(slot) = inner.progress.get_mut(index) {
                *slot = news;
            }
            inner.version += 1;
            inner.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The engine died: nothing more will come.
    pub(super) fn kill(&self) {
        let waker = {
            let mut inner = self.lock();
            inner.dead = true;
            inner.version += 1;
            inner.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ready when there is news since `seen`: copies it to `into` and answers whether the engine is alive.
    pub(super) fn poll(&self, seen: &mut u64, into: &mut Vec<Progress>, cx: &Context<'_>) -> Poll<bool> {
        let mut inner = self.lock();
        if inner.version == *seen {
            inner.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        *seen = inner.version;
        into.clone_from(&inner.progress);
        Poll::Ready(!inner.dead)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
