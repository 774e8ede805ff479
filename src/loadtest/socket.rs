//! A connection that knows when its last bytes arrived and when its first byte left.
//!
//! Over plain TCP on Linux the time is the kernel's (`SO_TIMESTAMPNS`, read with `recvmsg`): a read that comes late
//! still tells when the bytes came, and the difference is the client's own lag. Segments that one late read takes together
//! have the time of the last of them. Elsewhere the stamp is taken right after
//! the read, before any parsing. hyper reads again only once the frame before was taken, so the last stamp belongs to the
//! frame at hand.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::clock::{Clock, Nanos};

/// Times of one connection, read by whoever has the response.
#[derive(Debug, Default)]
pub struct Stamps {
    read: AtomicU64,
    lag: AtomicU64,
    written: AtomicU64,
}

/// No kernel time for this read.
pub const NO_LAG: Nanos = Nanos::MAX;

impl Stamps {
    /// When the last bytes arrived, and how much later they were read; [`NO_LAG`] where the kernel did not tell.
    #[must_use]
    pub fn last_read(&self) -> (Nanos, Nanos) {
        (self.read.load(Ordering::Relaxed), self.lag.load(Ordering::Relaxed))
    }

    /// When the first byte since [`Self::reset`] was written.
    #[must_use]
    pub fn first_write(&self) -> Option<Nanos> {
        Some(self.written.load(Ordering::Relaxed)).filter(|at| *at > 0)
    }

    /// Forgets the write of the request before.
    pub fn reset(&self) {
        self.written.store(0, Ordering::Relaxed);
    }
}

/// The bytes below.
enum Inner {
    Plain(Receiver),
    Tls(Box<TokioIo<MaybeHttpsStream<TokioIo<TcpStream>>>>),
}

/// A stamped connection.
pub struct Stamped {
    inner: Inner,
    clock: Clock,
    stamps: Arc<Stamps>,
}

impl std::fmt::Debug for Stamped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stamped").field("stamps", &self.stamps).finish_non_exhaustive()
    }
}

impl Stamped {
    /// A plain connection; asks the kernel for receive times where it has them.
    #[must_use]
    pub fn plain(stream: TcpStream, clock: Clock) -> (Self, Arc<Stamps>) {
        Self::new(Inner::Plain(Receiver::new(stream)), clock)
    }

    /// A connection under TLS.
    #[must_use]
    pub fn tls(stream: MaybeHttpsStream<TokioIo<TcpStream>>, clock: Clock) -> (Self, Arc<Stamps>) {
        Self::new(Inner::Tls(Box::new(TokioIo::new(stream))), clock)
    }

    fn new(inner: Inner, clock: Clock) -> (Self, Arc<Stamps>) {
        let stamps = Arc::new(Stamps::default());
        (Self { inner, clock, stamps: Arc::clone(&stamps) }, stamps)
    }
}

impl AsyncRead for Stamped {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let lag = match &mut self.inner {
            Inner::Plain(receiver) => std::task::ready!(receiver.poll(cx, buf))?,
            Inner::Tls(stream) => {
                std::task::ready!(Pin::new(stream.as_mut()).poll_read(cx, buf))?;
                None
            }
        };
        if buf.filled().len() > before {
            let now = self.clock.now();
            self.stamps.read.store(now.saturating_sub(lag.unwrap_or(0)), Ordering::Relaxed);
            self.stamps.lag.store(lag.unwrap_or(NO_LAG), Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl Stamped {
    fn wrote(&self, at: Nanos) {
        // Only the first write of a request counts; a failed exchange is no error here.
        self.stamps.written.compare_exchange(0, at, Ordering::Relaxed, Ordering::Relaxed).unwrap_or_default();
    }
}

impl AsyncWrite for Stamped {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let now = self.clock.now();
        let wrote = match &mut self.inner {
            Inner::Plain(receiver) => Pin::new(&mut receiver.stream).poll_write(cx, buf),
            Inner::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, buf),
        };
        if wrote.is_ready() {
            self.wrote(now);
        }
        wrote
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let now = self.clock.now();
        let wrote = match &mut self.inner {
            Inner::Plain(receiver) => Pin::new(&mut receiver.stream).poll_write_vectored(cx, bufs),
            Inner::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(cx, bufs),
        };
        if wrote.is_ready() {
            self.wrote(now);
        }
        wrote
    }

    fn is_write_vectored(&self) -> bool {
        match &self.inner {
            Inner::Plain(receiver) => receiver.stream.is_write_vectored(),
            Inner::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.inner {
            Inner::Plain(receiver) => Pin::new(&mut receiver.stream).poll_flush(cx),
            Inner::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.inner {
            Inner::Plain(receiver) => Pin::new(&mut receiver.stream).poll_shutdown(cx),
            Inner::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
        }
    }
}

/// The reading side of a plain connection.
#[cfg(not(target_os = "linux"))]
struct Receiver {
    stream: TcpStream,
}

#[cfg(not(target_os = "linux"))]
impl Receiver {
    fn new(stream: TcpStream) -> Self {
        Self { stream }
    }

    fn poll(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<Option<Nanos>>> {
        Pin::new(&mut self.stream).poll_read(cx, buf).map_ok(|()| None)
    }
}

/// The reading side of a plain connection, with the kernel's receive times.
#[cfg(target_os = "linux")]
struct Receiver {
    stream: TcpStream,
    /// Space for one control message; empty if the kernel gives no times.
    control: Vec<u8>,
}

#[cfg(target_os = "linux")]
impl Receiver {
    fn new(stream: TcpStream) -> Self {
        use nix::sys::{
            socket::{setsockopt, sockopt::ReceiveTimestampns},
            time::TimeSpec,
        };
        let stamped = setsockopt(&stream, ReceiveTimestampns, &true).is_ok();
        let control = if stamped { nix::cmsg_space!(TimeSpec) } else { Vec::new() };
        Self { stream, control }
    }

    fn poll(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<Option<Nanos>>> {
        if self.control.capacity() == 0 {
            return Pin::new(&mut self.stream).poll_read(cx, buf).map_ok(|()| None);
        }
        loop {
            std::task::ready!(self.stream.poll_read_ready(cx))?;
            let (stream, control) = (&self.stream, &mut self.control);
            let unfilled = buf.initialize_unfilled();
            match stream.try_io(tokio::io::Interest::READABLE, || receive(stream, unfilled, control)) {
                Ok((bytes, lag)) => {
                    buf.advance(bytes);
                    return Poll::Ready(Ok(lag));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

/// One `recvmsg`: bytes read, and how long they had lain in the socket.
#[cfg(target_os = "linux")]
fn receive(stream: &TcpStream, into: &mut [u8], control: &mut [u8]) -> io::Result<(usize, Option<Nanos>)> {
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

    let mut slices = [io::IoSliceMut::new(into)];
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut slices, Some(control), MsgFlags::empty())?;
    let arrived = message.cmsgs().ok().and_then(|mut all| {
        all.find_map(|one| match one {
            ControlMessageOwned::ScmTimestampns(at) => Some(std::time::Duration::from(at)),
            _ => None,
        })
    });
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    // A clock that was stepped gives no lag rather than a negative one.
    let lag = arrived.and_then(|at| now.checked_sub(at)).and_then(|lag| Nanos::try_from(lag.as_nanos()).ok());
    Ok((message.bytes, lag))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_late_read_still_tells_when_the_bytes_came() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let clock = Clock::start();
        let (mut stamped, stamps) = Stamped::plain(client, clock);
        // The kernel begins to stamp a moment after the first socket asked for it.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let sent = clock.now();
        server.write_all(b"hello").await.unwrap();
        tokio::time::sleep(Duration::from_millis(60)).await;

        let mut bytes = [0; 5];
        stamped.read_exact(&mut bytes).await.unwrap();

        let (arrived, lag) = stamps.last_read();
        assert!(lag >= 55_000_000, "{lag}");
        assert!(arrived.abs_diff(sent) < 20_000_000, "{arrived} {sent}");
    }
}
