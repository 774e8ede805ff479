//! HTTP face of the simulated engine: what vLLM and SGLang do on the wire, on top of [`crate::simulator`].
//!
//! A real server on a real socket, in real time. Several may run in one process. What a reader would get wrong: the
//! answer's text and length are known before the first step; the engine model only decides when each token comes.
//! Source: `shared/reference/engines.md`, `shared/captures/{vllm,sglang}`.

mod answer;
mod body;
mod config;
mod driver;
mod errors;
mod fields;
mod generate;
mod info;
mod meter;
mod metrics_sglang;
mod metrics_vllm;
mod outbox;
mod output;
mod parse;
mod route;
mod template;
mod tokens;
mod tools;
mod wire;

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

pub use config::{ConfigError, Faults, Flavor, SimConfig};
use driver::Driver;

/// Pause after a failed accept, so that a process without free descriptors does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Why a simulated engine could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot run.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// What the system says.
        #[source]
        cause: io::Error,
    },
}

/// A running simulated engine. Dropping the handle stops it.
#[derive(Debug)]
pub struct SimHandle {
    /// Where it listens.
    pub addr: SocketAddr,
    stop: CancellationToken,
    tasks: TaskTracker,
    server: Arc<Server>,
}

impl SimHandle {
    /// Stops at once: nothing listens any more, open connections are closed, streams are cut.
    pub async fn shutdown(self) {
        self.stop.cancel();
        self.tasks.wait().await;
    }

    /// Waits until the engine has died of `--die-after-tokens`; forever if it never does.
    pub async fn died(&self) {
        self.stop.cancelled().await;
    }

    /// State of the engine model.
    #[must_use]
    pub fn stats(&self) -> crate::simulator::Stats {
        self.server.driver.stats()
    }
}

impl Drop for SimHandle {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// What all requests share.
#[derive(Debug)]
struct Server {
    config: Arc<SimConfig>,
    driver: Arc<Driver>,
    fingerprint: String,
    start_time: f64,
    id_seed: u64,
    next_id: AtomicU64,
}

impl Server {
    /// 16 hex digits that were not handed out before.
    fn fresh_id(&self) -> String {
        let number = self.next_id.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}", xxh3_64_with_seed(&number.to_le_bytes(), self.id_seed))
    }

    /// 32 of them.
    fn fresh_long_id(&self) -> String {
        self.fresh_id() + &self.fresh_id()
    }
}

/// Starts an engine on `listen` (port 0 for any) inside the current runtime.
///
/// # Errors
/// A configuration that cannot run, or an address that cannot be listened on.
pub async fn start(config: SimConfig, listen: SocketAddr) -> Result<SimHandle, StartError> {
    config.check()?;
    let failed = |cause| StartError::Listen { addr: listen, cause };
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let addr = listener.local_addr().map_err(failed)?;
    let config = Arc::new(config);
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let server = Arc::new(Server {
        driver: Driver::new(Arc::clone(&config)),
        fingerprint: fingerprint(&config),
        start_time: since_epoch.as_secs_f64(),
        id_seed: xxh3_64(&since_epoch.as_nanos().to_le_bytes()) ^ u64::from(addr.port()),
        next_id: AtomicU64::new(0),
        config,
    });
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    tasks.spawn(Arc::clone(&server.driver).run(stop.clone()));
    tasks.spawn(accept(listener, Arc::clone(&server), tasks.clone(), stop.clone()));
    tasks.close();
    Ok(SimHandle { addr, stop, tasks, server })
}

/// vLLM names the hash of its configuration, so that unlike replicas can be told apart. The seed is not part of it here.
fn fingerprint(config: &SimConfig) -> String {
    let hash = xxh3_64(format!("{:?} {} {}", config.engine, config.max_model_len, config.model).as_bytes());
    format!("vllm-{}-{:08x}", info::VLLM_VERSION, hash >> 32)
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

async fn accept(listener: TcpListener, server: Arc<Server>, tasks: TaskTracker, stop: CancellationToken) {
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        // Out of descriptors, or the client left in the queue: the next one may do better.
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        tasks.spawn(serve(stream, Arc::clone(&server), stop.clone()));
    }
}

/// Serves one connection until it closes or the engine stops.
async fn serve(stream: TcpStream, server: Arc<Server>, stop: CancellationToken) {
    // Without it a token waits for the client's delayed acknowledgement, 40 ms.
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let service = service_fn(move |request| {
        let server = Arc::clone(&server);
        async move { Ok::<_, Infallible>(route::handle(server, request).await) }
    });
    let connection = http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        () = stop.cancelled() => {}
        // A connection that ends badly is the client's affair.
        _ended = connection => {}
    }
}
