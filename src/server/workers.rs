//! Workers: one thread, one single-threaded runtime and one upstream pool each; and the loop that deals connections.
//!
//! A request lives on one thread from its first byte to its last: no wake-up crosses cores, which is what keeps the
//! CPU per event near that of a plain proxy (measured in `ARCHITECTURE.md`). The dealer gives each connection to the
//! worker that has the fewest.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use axum::Router;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;

use crate::{
    proxy::{Proxy, Shared},
    server::{
        connection::{self, Context},
        data,
        refuse::Refusals,
    },
    upstream::{client::UpstreamClient, tls},
};

/// Connections that may wait for a worker to pick them up.
const HANDOVER: usize = 1024;
/// Pause after a failed accept: out of file descriptors, most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Length of the listen queue.
const BACKLOG: i32 = 1024;

/// A connection on its way to a worker; the permit bounds all connections.
struct Accepted {
    stream: std::net::TcpStream,
    permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct Worker {
    queue: mpsc::Sender<Accepted>,
    connections: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

/// The data port.
#[derive(Debug)]
pub(super) struct Workers {
    address: SocketAddr,
    workers: Vec<Worker>,
}

impl Workers {
    /// Binds the data port and starts the workers. `stop` ends accepting and begins the drain; `cut` ends what is left.
    ///
    /// # Errors
    /// When the address cannot be bound or a thread cannot be started.
    pub(super) fn start(
        shared: &Arc<Shared>,
        tasks: &TaskTracker,
        stop: &CancellationToken,
        cut: &CancellationToken,
    ) -> io::Result<Self> {
        let listener = bind(shared.server.listen)?;
        let address = listener.local_addr()?;
        let tls = tls::client_config().map_err(io::Error::other)?;
        let count = match shared.server.worker_threads {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            set => set,
        };
        let workers: Vec<Worker> = (0..count)
            .map(|number| {
                let client = UpstreamClient::new(shared.server.timeouts.connect, tls.clone());
                let router = data::router(Proxy::new(
                    shared.clone(),
                    client,
                    shared.fallbacks.clients().map_err(io::Error::other)?,
                ));
                Worker::start(number, Serving { shared: shared.clone(), router, stop: stop.clone(), cut: cut.clone() })
            })
            .collect::<io::Result<_>>()?;
        let deals = workers.iter().map(|worker| (worker.queue.clone(), worker.connections.clone())).collect();
        let permits = Arc::new(Semaphore::new(shared.server.limits.connections));
        let refusals = Refusals::new(shared.telemetry.clone(), tasks.clone());
        tasks.spawn(deal(listener, deals, permits, refusals, stop.clone()));
        Ok(Self { address, workers })
    }

    /// Where the data port listens.
    #[must_use]
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until every connection has ended. To be called after `stop`.
    pub(super) async fn join(self) {
        let threads = self.workers.into_iter().map(|worker| {
            drop(worker.queue);
            worker.thread
        });
        for thread in threads.collect::<Vec<_>>() {
            let joined = tokio::task::spawn_blocking(move || thread.join().is_ok()).await;
            if !joined.unwrap_or(false) {
                warn!("a worker thread ended by a panic");
            }
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let domain = if address.is_ipv4() { socket2::Domain::IPV4 } else { socket2::Domain::IPV6 };
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Accepts and hands over until stopped. Over the limit a connection is answered with 503 and closed.
async fn deal(
    listener: TcpListener,
    workers: Vec<(mpsc::Sender<Accepted>, Arc<AtomicUsize>)>,
    permits: Arc<Semaphore>,
    refusals: Refusals,
    stop: CancellationToken,
) {
    let next = async {
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(permit) = permits.clone().try_acquire_owned() else {
                refusals.refuse(stream);
                continue;
            };
            let Ok(stream) = prepare(stream) else { continue };
            let Some((queue, connections)) = workers.iter().min_by_key(|(_, open)| open.load(Ordering::Relaxed)) else {
                return;
            };
            connections.fetch_add(1, Ordering::Relaxed);
            if queue.send(Accepted { stream, permit }).await.is_err() {
                connections.fetch_sub(1, Ordering::Relaxed);
            }
        }
    };
    stop.run_until_cancelled(next).await;
}

/// Without `TCP_NODELAY` the first event of a kept-alive stream waits for a delayed ACK, 40 ms.
fn prepare(stream: TcpStream) -> io::Result<std::net::TcpStream> {
    stream.set_nodelay(true)?;
    stream.into_std()
}

impl Worker {
    fn start(number: usize, serving: Serving) -> io::Result<Self> {
        let (queue, accepted) = mpsc::channel(HANDOVER);
        let connections = Arc::new(AtomicUsize::new(0));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let open = connections.clone();
        let thread = std::thread::Builder::new()
            .name(format!("worker-{number}"))
            .spawn(move || runtime.block_on(serving.work(accepted, open)))?;
        Ok(Self { queue, connections, thread })
    }
}

/// What a worker serves, and how it is told to end.
struct Serving {
    shared: Arc<Shared>,
    router: Router,
    stop: CancellationToken,
    cut: CancellationToken,
}

impl Serving {
    /// Serves connections until stopped and the last has ended, or until cut.
    async fn work(self, mut accepted: mpsc::Receiver<Accepted>, open: Arc<AtomicUsize>) {
        let connections = TaskTracker::new();
        while let Some(Some(next)) = self.stop.run_until_cancelled(accepted.recv()).await {
            self.spawn(next, &connections, &open);
        }
        // What was handed over before the stop is served; no more is taken.
        accepted.close();
        while let Some(next) = accepted.recv().await {
            self.spawn(next, &connections, &open);
        }
        connections.close();
        self.cut.run_until_cancelled(connections.wait()).await;
    }

    fn spawn(&self, next: Accepted, connections: &TaskTracker, open: &Arc<AtomicUsize>) {
        let counted = Counted { open: open.clone(), shared: self.shared.clone(), _permit: next.permit };
        counted.shared.telemetry.connections(1);
        let Ok(stream) = TcpStream::from_std(next.stream) else { return };
        let (router, stop, tasks) = (self.router.clone(), self.stop.clone(), connections.clone());
        let context = Context { router, stop, tasks, head_bytes: self.shared.server.limits.headers };
        connections.spawn(async move {
            connection::serve(stream, context, &counted.shared.server.timeouts).await;
        });
    }
}

/// One open connection, in the counts.
struct Counted {
    open: Arc<AtomicUsize>,
    shared: Arc<Shared>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.shared.telemetry.connections(-1);
    }
}
