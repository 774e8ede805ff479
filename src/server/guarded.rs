//! A client socket with limits: heads must come soon, writes may not stall for ever, a client that left is noticed.
//!
//! A reader that stops reading keeps the replica's stream, its slot and its KV cache waiting: after the limit the
//! connection fails, the body is dropped, and with it the charge. The same holds for a client that left: hyper sees
//! that as long as it reads, and it does not read while bytes of a next request wait. hyper's bare 400, 414 and 431 to a
//! head that it cannot parse get a body here. The request path limits the body.

use std::{
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use http::StatusCode;
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::TcpStream,
    time::{Sleep, sleep},
};

use crate::{
    error::{ErrorKind, GatewayError, Stage},
    server::{activity::Activity, answer, head::Head},
};

/// How often a connection that hyper does not read is asked whether its client is still there.
const LOOK: Duration = Duration::from_millis(200);

/// Whether the other side closed, though bytes of it may wait to be read.
pub(super) trait Peer {
    /// Whether it is known to have closed. No system call.
    fn has_left(&self) -> bool;
}

impl Peer for TcpStream {
    fn has_left(&self) -> bool {
        // What epoll last said. Not awaited: the bytes that wait make it ready at once, again and again.
        let known = pin!(self.ready(Interest::READABLE)).poll(&mut Context::from_waker(Waker::noop()));
        matches!(known, Poll::Ready(Ok(state)) if state.is_read_closed())
    }
}

/// A socket and its limits.
#[derive(Debug)]
pub(super) struct Guarded<T> {
    inner: T,
    activity: Arc<Activity>,
    head: Head,
    /// Longest time without progress of a write.
    limit: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    /// hyper waits for bytes since the last flush, so it sees a close.
    reading: bool,
    look: Option<Pin<Box<Sleep>>>,
    /// What is left of the answer that takes the place of hyper's.
    refusal: Option<Vec<u8>>,
}

impl<T> Guarded<T> {
    /// Guards `inner`: it fails with `TimedOut` when a head is not complete after `head`, or when a write makes no
    /// progress for `limit`.
    pub(super) fn new(inner: T, activity: Arc<Activity>, head: Duration, limit: Duration) -> Self {
        let head = Head::new(head);
        Self { inner, activity, head, limit, stalled: None, reading: false, look: None, refusal: None }
    }

    /// A write is pending: starts or checks the timer.
    fn stall(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let limit = self.limit;
        ready!(self.stalled.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(cx));
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "the client stopped reading"))
    }

    fn settle<R>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        match result {
            Poll::Ready(done) => {
                self.stalled = None;
                Poll::Ready(done)
            }
            Poll::Pending => self.stall(cx).map(Err),
        }
    }

    /// The answer to write instead of `head`, if that is hyper's own word on a head that it could not parse.
    fn refusal(&mut self, head: &[u8]) -> Option<Vec<u8>> {
        // A request that was served is no open head, whatever its status.
        if !self.head.is_open(&self.activity) || !head.ends_with(b"\r\n\r\n") {
            return None;
        }
        let (status, message) = match head.get(..12)? {
            b"HTTP/1.1 400" => (StatusCode::BAD_REQUEST, "the request head is not valid HTTP/1.1"),
            b"HTTP/1.1 414" => (StatusCode::URI_TOO_LONG, "the URL is too long"),
            b"HTTP/1.1 431" => {
                (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "the request head is too large, or has over 100 fields")
            }
            _ => return None,
        };
        Some(answer::last(&GatewayError::new(ErrorKind::BadRequest, Stage::Accept, message), status))
    }
}

impl<T: Peer> Guarded<T> {
    /// While a request runs and hyper does not read: looks from time to time whether its client left.
    fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if std::mem::take(&mut self.reading) || self.head.is_http2() || !self.activity.is_running() {
            self.look = None;
            return Poll::Pending;
        }
        loop {
            ready!(self.look.get_or_insert_with(|| Box::pin(sleep(LOOK))).as_mut().poll(cx));
            self.look = None;
            if self.inner.has_left() {
                return Poll::Ready(io::Error::new(io::ErrorKind::ConnectionReset, "the client left"));
            }
        }
    }
}

impl<T: AsyncWrite + Unpin> Guarded<T> {
    /// Writes the refusal in place of `length` bytes of hyper's, if there is one.
    fn poll_refusal(&mut self, cx: &mut Context<'_>, first: &[u8], length: usize) -> Option<Poll<io::Result<usize>>> {
        if self.refusal.is_none() {
            self.refusal = self.refusal(first);
        }
        let mut left = self.refusal.take()?;
        while !left.is_empty() {
            match Pin::new(&mut self.inner).poll_write(cx, &left) {
                Poll::Ready(Ok(0)) => return Some(Poll::Ready(Err(io::ErrorKind::WriteZero.into()))),
                Poll::Ready(Ok(written)) => drop(left.drain(..written.min(left.len()))),
                Poll::Ready(Err(error)) => return Some(Poll::Ready(Err(error))),
                Poll::Pending => {
                    self.refusal = Some(left);
                    return Some(self.stall(cx).map(Err));
                }
            }
        }
        Some(Poll::Ready(Ok(length)))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Guarded<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let read = Pin::new(&mut this.inner).poll_read(cx, buf);
        this.reading = read.is_pending();
        if read.is_ready() {
            this.head.read(buf.filled().get(before..).unwrap_or_default(), &this.activity);
            return read;
        }
        ready!(this.head.poll_late(&this.activity, cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the request head did not come in time")))
    }
}

impl<T: AsyncWrite + Peer + Unpin> AsyncWrite for Guarded<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if let Some(refused) = self.poll_refusal(cx, buf, buf.len()) {
            return refused;
        }
        let result = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.settle(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = bufs.first().map_or(&[][..], |first| first);
        if let Some(refused) = self.poll_refusal(cx, first, first.len()) {
            return refused;
        }
        let result = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.settle(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Poll::Ready(left) = self.poll_left(cx) {
            return Poll::Ready(Err(left));
        }
        let result = Pin::new(&mut self.inner).poll_flush(cx);
        self.settle(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.settle(cx, result)
    }
}

#[cfg(test)]
mod tests;
