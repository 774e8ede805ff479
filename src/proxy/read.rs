//! Step 2: the request body into one piece of memory, under a size, a pace and a memory limit.
//!
//! The memory is reserved before it is used, for all bodies together, and given back when the last attempt let go of
//! the body. A body over the limit is answered at once but read on for a moment: a client that still writes would see
//! a reset instead of the 413.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout};

use crate::error::{ErrorKind, GatewayError, Stage};

/// A body slower than this, after `PACE_GRACE`, is no client's network: 1 KiB/s.
const SLOWEST: u64 = 1024;
/// How long a body may be slower.
const PACE_GRACE: Duration = Duration::from_secs(30);
/// How much of a refused body is read and thrown away, and how long.
const DRAIN_BYTES: u64 = 64 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(2);
/// Step in which memory is reserved, as the bytes come: an announced length is a promise.
const STEP: u64 = 64 << 10;
/// Address space that a body gets in one piece before its bytes are there; the system gives memory as they come.
const FIRST_STEP: u64 = 4 << 20;

/// Memory that all request bodies share.
#[derive(Debug)]
pub struct BodyBudget {
    limit: u64,
    used: AtomicU64,
}

impl BodyBudget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicU64::new(0) })
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn lease(self: &Arc<Self>) -> BodyLease {
        BodyLease { budget: self.clone(), bytes: 0 }
    }
}

/// A part of the budget, given back on drop.
#[derive(Debug)]
pub struct BodyLease {
    budget: Arc<BodyBudget>,
    bytes: u64,
}

impl BodyLease {
    fn grow_to(&mut self, bytes: u64) -> Result<(), GatewayError> {
        let more = bytes.saturating_sub(self.bytes);
        let before = self.budget.used.fetch_add(more, Ordering::Relaxed);
        if before + more > self.budget.limit {
            self.budget.used.fetch_sub(more, Ordering::Relaxed);
            let message = "the gateway holds as many request bodies as server.limits.body_memory allows; try again";
            return Err(
                GatewayError::new(ErrorKind::Overloaded, Stage::Read, message).retry_after(Duration::from_secs(1))
            );
        }
        self.bytes += more;
        Ok(())
    }
}

impl Drop for BodyLease {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Limits of one body.
#[derive(Debug, Clone, Copy)]
pub struct ReadLimits {
    /// Most bytes.
    pub size: u64,
    /// Longest gap between two pieces.
    pub idle: Duration,
}

/// Reads the whole body.
///
/// # Errors
/// `TooLarge`, `BodyTimeout`, `Overloaded`, or `ClientGone` when the client leaves before the end.
pub async fn read<B>(body: B, limits: ReadLimits, budget: &Arc<BodyBudget>) -> Result<(Bytes, BodyLease), GatewayError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<crate::error::BoxError>,
{
    let mut body = body;
    let mut lease = budget.lease();
    let announced = body.size_hint().exact();
    if announced.is_some_and(|length| length > limits.size) {
        drain(&mut body).await;
        return Err(too_large(limits.size));
    }
    let expected = announced.unwrap_or(STEP).min(FIRST_STEP);
    let mut whole = BytesMut::with_capacity(usize::try_from(expected).unwrap_or(0));
    let started = Instant::now();
    loop {
        let frame = match timeout(limits.idle, body.frame()).await {
            Err(_) => return Err(too_slow()),
            Ok(None) => return Ok((whole.freeze(), lease)),
            Ok(Some(Err(cause))) => {
                return Err(
                    GatewayError::new(ErrorKind::ClientGone, Stage::Read, "the request body broke off").cause(cause)
                );
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        let length = (whole.len() + data.len()) as u64;
        if length > limits.size {
            drain(&mut body).await;
            return Err(too_large(limits.size));
        }
        lease.grow_to(length.next_multiple_of(STEP))?;
        whole.extend_from_slice(&data);
        let elapsed = started.elapsed();
        if elapsed > PACE_GRACE && length < SLOWEST * elapsed.as_secs() {
            return Err(too_slow());
        }
    }
}

async fn drain<B>(body: &mut B)
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut left = DRAIN_BYTES;
    let all = async {
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len) as u64);
            if left == 0 {
                break;
            }
        }
    };
    // Out of time: the client gets its answer and a closed connection.
    timeout(DRAIN_TIME, all).await.unwrap_or_default();
}

fn too_large(limit: u64) -> GatewayError {
    let message = format!("the request body is larger than {limit} bytes (server.limits.body)");
    GatewayError::new(ErrorKind::TooLarge, Stage::Read, message)
}

fn too_slow() -> GatewayError {
    GatewayError::new(ErrorKind::BodyTimeout, Stage::Read, "the request body did not arrive in time")
}

#[cfg(test)]
mod tests {
    use http_body_util::{Full, StreamBody};

    use super::*;

    fn limits(size: u64) -> ReadLimits {
        ReadLimits { size, idle: Duration::from_secs(1) }
    }

    #[tokio::test]
    async fn a_body_at_the_limit_passes_and_one_byte_more_is_413() {
        let budget = BodyBudget::new(1 << 20);

        let (body, lease) = read(Full::new(Bytes::from(vec![1; 100])), limits(100), &budget).await.unwrap();
        assert_eq!((body.len(), budget.used()), (100, STEP));
        drop(lease);

        let error = read(Full::new(Bytes::from(vec![1; 101])), limits(100), &budget).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::TooLarge);
        assert_eq!(budget.used(), 0, "a refused body leaves no reservation behind");
    }

    #[tokio::test]
    async fn a_chunked_body_is_bounded_and_accounted_too() {
        let budget = BodyBudget::new(128 << 10);
        let frames = |n: usize| {
            let frame = || Ok::<_, std::io::Error>(http_body::Frame::data(Bytes::from(vec![0; 1000])));
            StreamBody::new(futures_util::stream::iter((0..n).map(move |_| frame()).collect::<Vec<_>>()))
        };

        let (body, _lease) = read(frames(10), limits(10_000), &budget).await.unwrap();
        assert_eq!((body.len(), budget.used()), (10_000, STEP));
        assert_eq!(read(frames(11), limits(10_000), &budget).await.unwrap_err().kind, ErrorKind::TooLarge);
        assert_eq!(read(frames(100), limits(1 << 20), &budget).await.unwrap_err().kind, ErrorKind::Overloaded);
    }

    /// A body that announces a length and sends nothing.
    struct Promise(u64);

    impl Body for Promise {
        type Data = Bytes;
        type Error = std::io::Error;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
            std::task::Poll::Pending
        }

        fn size_hint(&self) -> http_body::SizeHint {
            http_body::SizeHint::with_exact(self.0)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_announced_body_takes_nothing_from_others_before_it_comes() {
        let budget = BodyBudget::new(1 << 20);
        let promises = (0..4).map(|_| read(Promise(1 << 20), limits(1 << 20), &budget));
        let honest = async { read(Full::new(Bytes::from(vec![1; 1 << 20])), limits(1 << 20), &budget).await.is_ok() };

        let (_, served) = tokio::join!(futures_util::future::join_all(promises), honest);

        assert!(served);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_body_is_given_up() {
        let budget = BodyBudget::new(1 << 20);
        let silent =
            StreamBody::new(futures_util::stream::pending::<Result<http_body::Frame<Bytes>, std::io::Error>>());

        assert_eq!(read(silent, limits(100), &budget).await.unwrap_err().kind, ErrorKind::BodyTimeout);
    }
}
