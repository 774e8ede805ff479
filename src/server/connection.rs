//! One client connection: how hyper is set up for it, and when it is idle for too long.
//!
//! Two limits meet: a head that has begun has `timeouts.header` ([`Guarded`]), a connection without a request has
//! [`IDLE`]. Both hold for HTTP/1; HTTP/2 has the idle limit, pings, and a limit for each stream ([`Streams`]).

use std::{pin::pin, time::Duration};

use axum::{Router, body::Body};
use http::Request;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;
use tracing::debug;

use crate::{
    config::Timeouts,
    server::{
        activity::Activity,
        guarded::{Guarded, Peer},
        stream::{Answer, Streams},
    },
};

/// How long a connection may be without a request: longer than the 60 s after which common load balancers let go of an
/// idle connection, so that the gateway does not close one that they just took for a request.
const IDLE: Duration = Duration::from_secs(75);
/// From the notice that an idle connection ends until it is dropped, for requests that crossed the notice.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long a new connection may still begin a request when the gateway stops.
const LATE: Duration = Duration::from_millis(250);
/// Concurrent streams of one HTTP/2 connection.
const H2_STREAMS: u32 = 100;
/// Pings find HTTP/2 clients that vanished.
const H2_PING: Duration = Duration::from_secs(30);
/// How long the answer to a ping may take.
const H2_PONG: Duration = Duration::from_secs(20);
/// Bytes buffered of a client's request, and of an answer that it does not read fast enough.
const BUFFER: usize = 64 << 10;

/// What a connection needs of its worker.
#[derive(Debug, Clone)]
pub(super) struct Context {
    /// The data port.
    pub(super) router: Router,
    /// Begins the drain.
    pub(super) stop: CancellationToken,
    /// What the worker waits for.
    pub(super) tasks: TaskTracker,
    /// Most bytes of a request head.
    pub(super) head_bytes: usize,
}

/// Serves one connection to its end.
pub(super) async fn serve<T>(stream: T, context: Context, timeouts: &Timeouts)
where
    T: AsyncRead + AsyncWrite + Peer + Unpin + Send + 'static,
{
    let idle = IDLE.max(timeouts.header);
    let activity = Activity::new();
    let io = TokioIo::new(Guarded::new(stream, activity.clone(), timeouts.header, timeouts.client_idle));
    let builder = builder(&context, timeouts.client_idle, idle);
    let (router, counts) = (context.router, activity.clone());
    let serving = builder.serve_connection(
        io,
        service_fn(move |request: Request<Incoming>| {
            let (turn, router) = (counts.begin(), router.clone());
            async move {
                Ok::<_, std::convert::Infallible>(answered(router, request).await.map(|body| Answer::new(body, turn)))
            }
        }),
    );
    let (mut serving, mut stopped, mut timer) = (pin!(serving), pin!(context.stop.cancelled()), pin!(sleep(idle)));
    let (mut stopping, mut closing) = (false, false);
    let served = loop {
        tokio::select! {
            biased;
            served = &mut serving => break served,
            () = &mut stopped, if !stopping => {
                stopping = true;
                if activity.heads() > 0 {
                    serving.as_mut().graceful_shutdown();
                    closing = true;
                } else {
                    timer.as_mut().reset(Instant::now() + LATE);
                }
            }
            () = &mut timer => match activity.idle_since() {
                _ if stopping && !closing => {
                    serving.as_mut().graceful_shutdown();
                    closing = true;
                    timer.as_mut().reset(Instant::now() + idle);
                }
                None => timer.as_mut().reset(Instant::now() + idle),
                Some(since) if since + idle > Instant::now() => timer.as_mut().reset(since + idle),
                Some(_) if closing => break Err("idle after its end was announced".into()),
                Some(_) => {
                    serving.as_mut().graceful_shutdown();
                    closing = true;
                    timer.as_mut().reset(Instant::now() + FAREWELL);
                }
            }
        }
    };
    if let Err(error) = served {
        debug!(error = %crate::error::chain(error.as_ref()), "connection ended");
    }
}

fn builder(context: &Context, stalled: Duration, idle: Duration) -> auto::Builder<Streams> {
    let mut builder = auto::Builder::new(Streams { limit: stalled, tasks: context.tasks.clone() });
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .max_buf_size(BUFFER)
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(H2_PING)
        .keep_alive_timeout(H2_PONG)
        .max_concurrent_streams(H2_STREAMS)
        .max_header_list_size(u32::try_from(context.head_bytes).unwrap_or(u32::MAX));
    builder
}

/// A router's answer; it has no error.
async fn answered(router: Router, request: Request<Incoming>) -> http::Response<Body> {
    match router.oneshot(request.map(Body::new)).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use http_body_util::Empty;
    use hyper_util::rt::TokioExecutor;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn serving(stop: &CancellationToken) -> (DuplexStream, tokio::task::JoinHandle<()>) {
        let (client, server) = duplex(64 << 10);
        let router = Router::new().route("/", get(async || "here"));
        let context = Context { router, stop: stop.clone(), tasks: TaskTracker::new(), head_bytes: 32 << 10 };
        (client, TaskTracker::new().spawn(async move { serve(server, context, &Timeouts::default()).await }))
    }

    #[tokio::test(start_paused = true)]
    async fn an_http2_connection_without_a_request_is_closed_when_idle() {
        let (client, served) = serving(&CancellationToken::new());
        let start = Instant::now();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(client)).await.unwrap();
        let connection = TaskTracker::new().spawn(connection);
        sleep(Duration::from_secs(20)).await;
        let request = Request::get("http://x/").body(Empty::<bytes::Bytes>::new()).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        drop(http_body_util::BodyExt::collect(answer.into_body()).await.unwrap());

        served.await.unwrap();

        assert!((95..=101).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
        connection.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_http2_client_that_says_no_more_than_its_preface_is_dropped() {
        let (mut client, served) = serving(&CancellationToken::new());
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let start = Instant::now();

        served.await.unwrap();

        assert_eq!(start.elapsed().as_secs(), (H2_PING + H2_PONG).as_secs(), "the ping finds it before the idle limit");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_new_when_the_gateway_stops_is_still_answered() {
        let stop = CancellationToken::new();
        stop.cancel();
        let (mut client, served) = serving(&stop);
        sleep(Duration::from_millis(100)).await;
        client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();

        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();

        assert!(text.ends_with("here"), "{text}");
        served.await.unwrap();
    }
}
