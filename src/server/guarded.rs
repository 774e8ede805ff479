//! A client connection that must speak soon and whose writes may not stall for ever.
//!
//! A reader that stops reading keeps the replica's stream, its slot and its KV cache waiting: after the limit the
//! connection fails, the body is dropped, and with it the charge. Of reading only the first byte is limited here (the
//! protocol is not known before it); hyper limits the head and the request path limits the body.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

/// An I/O object with limits on its first byte and on stalled writes.
#[derive(Debug)]
pub(super) struct Guarded<T> {
    inner: T,
    limit: Duration,
    /// Until the first byte came.
    silent: Option<Pin<Box<Sleep>>>,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<T> Guarded<T> {
    /// Guards `inner`: it fails with `TimedOut` when nothing was read after `first`, or when a write makes no progress
    /// for `limit`.
    pub(super) fn new(inner: T, first: Duration, limit: Duration) -> Self {
        Self { inner, limit, silent: Some(Box::pin(sleep_until(Instant::now() + first))), stalled: None }
    }

    /// A write is pending: starts or checks the timer.
    fn stall(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let sleep = self.stalled.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + self.limit)));
        ready!(sleep.as_mut().poll(cx));
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
}

impl<T: AsyncRead + Unpin> AsyncRead for Guarded<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.inner).poll_read(cx, buf);
        if read.is_ready() {
            self.silent = None;
        } else if let Some(silent) = &mut self.silent {
            ready!(silent.as_mut().poll(cx));
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client sent nothing")));
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Guarded<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.settle(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.settle(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_flush(cx);
        self.settle(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.settle(cx, result)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_fails_the_write_after_the_limit() {
        let (mut client, server) = duplex(8);
        let mut guarded = Guarded::new(server, Duration::from_secs(10), Duration::from_secs(60));
        let start = Instant::now();

        guarded.write_all(b"12345678").await.unwrap();
        let error = guarded.write_all(b"9").await.unwrap_err();

        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed().as_secs(), 60);
        let mut seen = [0; 8];
        client.read_exact(&mut seen).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_says_nothing_is_closed_and_one_that_spoke_is_not() {
        let (mut client, server) = duplex(8);
        let mut guarded = Guarded::new(server, Duration::from_secs(10), Duration::from_secs(60));
        let start = Instant::now();
        assert_eq!(guarded.read_u8().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed().as_secs(), 10);

        let (mut other, server) = duplex(8);
        let mut guarded = Guarded::new(server, Duration::from_secs(10), Duration::from_secs(60));
        other.write_all(b"P").await.unwrap();
        assert_eq!(guarded.read_u8().await.unwrap(), b'P');
        let later = tokio::time::timeout(Duration::from_secs(100), guarded.read_u8()).await;
        assert!(later.is_err(), "only the first byte has a limit");
        drop(client.write_all(b"x").await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_not_cut_while_it_reads() {
        let (mut client, server) = duplex(1);
        let mut guarded = Guarded::new(server, Duration::from_secs(10), Duration::from_secs(60));
        let reader = async {
            let mut seen = Vec::new();
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_secs(50)).await;
                seen.push(client.read_u8().await.unwrap());
            }
            seen
        };

        let (written, seen) = tokio::join!(guarded.write_all(b"hello"), reader);

        written.unwrap();
        assert_eq!(seen, b"hello");
    }
}
