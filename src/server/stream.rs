//! The streams of an HTTP/2 connection: one whose client takes nothing for the limit is cut.
//!
//! With HTTP/1 a client that does not read blocks the socket, which `Guarded` limits. An HTTP/2 client can read the
//! connection and still open no window for a stream; hyper then leaves the answer's body alone and waits without a
//! limit. So each stream's task notes when its body last gave something that is not taken yet, and ends when that is
//! too long ago; dropping the task resets the stream and releases the replica.

use std::{
    cell::Cell,
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, sleep_until};
use tokio_util::task::TaskTracker;
use tracing::debug;

use crate::server::activity::Turn;

tokio::task_local! {
    /// Since when the stream of this task waits for its client; `None` while it waits for the replica.
    static WAITING: Cell<Option<Instant>>;
}

/// Notes it for the stream of this task. HTTP/1 has none, and needs none.
fn waiting(for_client: bool) {
    WAITING.try_with(|since| since.set(for_client.then(Instant::now))).unwrap_or_default();
}

/// An answer's body that keeps its request in the counts and says when it waits for its client.
#[derive(Debug)]
pub(super) struct Answer {
    inner: Body,
    _turn: Turn,
}

impl Answer {
    /// The body of an answer that is about to be sent.
    pub(super) fn new(inner: Body, turn: Turn) -> Self {
        waiting(true);
        Self { inner, _turn: turn }
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        waiting(polled.is_ready());
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Runs the streams of a connection.
#[derive(Debug, Clone)]
pub(super) struct Streams {
    /// Longest time that a client may take nothing of a stream.
    pub(super) limit: Duration,
    /// What the worker waits for when it stops.
    pub(super) tasks: TaskTracker,
}

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, stream: F) {
        self.tasks.spawn(WAITING.scope(Cell::new(None), bounded(stream, self.limit)));
    }
}

/// Runs `stream` until it ends, or until it waited for its client for `limit`.
async fn bounded<F: Future>(stream: F, limit: Duration) {
    let mut stream = pin!(stream);
    let mut timer = None;
    let end = poll_fn(|cx| {
        if stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready("done");
        }
        while let Some(since) = WAITING.with(Cell::get) {
            let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(since + limit)));
            // The timer follows the progress only when it fires: no cost a frame.
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if since + limit <= Instant::now() {
                return Poll::Ready("the client takes nothing of a stream");
            }
            timer.as_mut().reset(since + limit);
        }
        Poll::Pending
    });
    let reason = end.await;
    debug!(reason, "stream ended");
}
