//! Watches against a small server on a loopback socket.

use std::{
    net::SocketAddr,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering},
    },
};

use axum::{
    Router,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use http::StatusCode;
use secrecy::SecretString;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use super::*;
use crate::{
    fleet::{FailureCause, ReplicaSpec},
    types::ReplicaSlot,
};

const MODELS: &str = r#"{"object":"list","data":[{"id":"m","owned_by":"OWNER","max_model_len":4096}]}"#;
const SECOND: Duration = Duration::from_secs(1);

/// What the server answers.
struct Script {
    health: AtomicU16,
    health_path: &'static str,
    hang: AtomicBool,
    prefix: &'static str,
    owner: &'static str,
    metrics: Mutex<Option<String>>,
    key: Option<&'static str>,
    huge: bool,
    probes: AtomicUsize,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            health: AtomicU16::new(200),
            health_path: "/health",
            hang: AtomicBool::new(false),
            prefix: "",
            owner: "vllm",
            metrics: Mutex::new(None),
            key: None,
            huge: false,
            probes: AtomicUsize::new(0),
        }
    }
}

fn vllm_metrics(running: u32, start: f64) -> Option<String> {
    Some(format!(
        "vllm:num_requests_running{{engine=\"0\"}} {running}\nvllm:num_requests_waiting{{engine=\"0\"}} 0\n\
         vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"100\"}} 1.0\nprocess_start_time_seconds {start}\n"
    ))
}

async fn answer(State(script): State<Arc<Script>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    if path == script.health_path {
        script.probes.fetch_add(1, Ordering::Relaxed);
        if script.hang.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        return StatusCode::from_u16(script.health.load(Ordering::Relaxed)).unwrap().into_response();
    }
    let models = format!("{}/v1/models", script.prefix);
    if path == models {
        let bearer = request.headers().get(http::header::AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned());
        if script.key.is_some_and(|key| bearer != Some(format!("Bearer {key}"))) {
            return (StatusCode::UNAUTHORIZED, r#"{"error":"Unauthorized"}"#).into_response();
        }
        if script.huge {
            return vec![b' '; probe::MODELS_LIMIT + 1].into_response();
        }
        return MODELS.replace("OWNER", script.owner).into_response();
    }
    let metrics = script.metrics.lock().unwrap().clone();
    match metrics {
        Some(page) if path == "/metrics" => page.into_response(),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

/// A server that can be stopped and started on its port.
struct Server {
    at: SocketAddr,
    script: Arc<Script>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Server {
    async fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let server = Self { at, script: Arc::new(script), stop: CancellationToken::new(), tasks: TaskTracker::new() };
        server.serve(listener);
        server
    }

    fn serve(&self, listener: TcpListener) {
        let router = Router::new().fallback(answer).with_state(Arc::clone(&self.script));
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                _ = axum::serve(listener, router).into_future() => {}
            }
        });
    }

    async fn die(&mut self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.stop = CancellationToken::new();
        self.tasks.reopen();
    }

    async fn rise(&self) {
        self.serve(TcpListener::bind(self.at).await.unwrap());
    }
}

/// A watched replica and what its watch told.
struct Watched {
    replica: Arc<Replica>,
    changes: Arc<Mutex<Vec<Change>>>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Watched {
    fn new(url: &str, interval: Duration, key: Option<&str>) -> Self {
        let spec =
            ReplicaSpec { base: url.parse().unwrap(), api_key: key.map(SecretString::from), engine: None, limit: 256 };
        let replica = Replica::new(ReplicaSlot(0), spec);
        let changes = Arc::new(Mutex::new(Vec::new()));
        let stop = CancellationToken::new();
        let mut watch = Watch::new(client(SECOND).unwrap(), stop.clone());
        watch.interval = interval;
        watch.timeout = Duration::from_millis(300);
        let told = Arc::clone(&changes);
        let on_change: OnChange = Arc::new(move |_, change| told.lock().unwrap().push(change));
        let tasks = TaskTracker::new();
        tasks.spawn(watch_replica(Arc::clone(&replica), watch, on_change));
        Self { replica, changes, stop, tasks }
    }

    fn quick(server: &Server) -> Self {
        Self::new(&format!("http://{}", server.at), Duration::from_millis(20), None)
    }

    fn told(&self, change: Change) -> usize {
        self.changes.lock().unwrap().iter().filter(|told| **told == change).count()
    }

    async fn until(&self, limit: Duration, what: &str, mut test: impl FnMut(&Self) -> bool) -> Duration {
        let began = Instant::now();
        while !test(self) {
            assert!(began.elapsed() < limit, "not within {limit:?}: {what}; {:?}", self.changes.lock().unwrap());
            sleep(Duration::from_millis(2)).await;
        }
        began.elapsed()
    }

    async fn until_up(&self) {
        self.until(5 * SECOND, "up", |w| w.replica.up()).await;
    }
}

#[tokio::test]
async fn a_vllm_is_up_known_and_measured_right_after_the_start() {
    let server = Server::start(Script { metrics: Mutex::new(vllm_metrics(3, 1.0)), ..Script::default() }).await;
    // The default interval: nothing may wait for a second turn.
    let watched = Watched::new(&format!("http://{}/v1", server.at), INTERVAL, None);

    watched.until(SECOND, "load", |w| w.told(Change::Load) > 0).await;

    assert!(watched.replica.usable(Instant::now()));
    assert!(watched.replica.serves("m"));
    assert_eq!(watched.replica.engine(), EngineKind::Vllm);
    let view = watched.replica.view(Instant::now(), 4.0, 256);
    assert_eq!((view.running, view.capacity_blocks), (3, Some(25)));
    assert_eq!(watched.told(Change::Restarted), 0);
}

#[tokio::test]
async fn a_refusing_health_check_takes_a_replica_out_and_its_return_is_no_restart() {
    let server = Server::start(Script::default()).await;
    let watched = Watched::quick(&server);
    watched.until_up().await;

    server.script.health.store(503, Ordering::Relaxed);
    watched.until(SECOND, "down", |w| !w.replica.up()).await;
    server.script.health.store(200, Ordering::Relaxed);
    watched.until(SECOND, "up again", |w| w.replica.up()).await;

    assert_eq!(watched.replica.generation(), 0, "the process was there all the time");
    assert_eq!((watched.told(Change::Up), watched.told(Change::Down)), (2, 1));
}

#[tokio::test]
async fn a_replica_that_comes_up_late_is_noticed_within_a_second_at_the_default_pace() {
    let mut server = Server::start(Script::default()).await;
    server.die().await;
    let watched = Watched::new(&format!("http://{}", server.at), INTERVAL, None);
    sleep(Duration::from_millis(700)).await;
    assert!(!watched.replica.up());

    server.rise().await;

    watched.until(SECOND, "up", |w| w.replica.up()).await;
    assert_eq!(watched.replica.generation(), 0, "it was never there before");
}

#[tokio::test]
async fn a_replica_that_was_gone_and_came_back_is_a_new_process() {
    let mut server = Server::start(Script::default()).await;
    let watched = Watched::quick(&server);
    watched.until_up().await;

    server.die().await;
    watched.until(SECOND, "down", |w| !w.replica.up()).await;
    sleep(Duration::from_millis(150)).await;
    server.rise().await;
    watched.until(SECOND, "up again", |w| w.replica.up()).await;

    assert_eq!(watched.replica.generation(), 1);
    assert_eq!(watched.told(Change::Restarted), 1);
}

#[tokio::test]
async fn a_changed_start_time_is_a_restart_even_when_no_probe_saw_it_down() {
    let server = Server::start(Script { metrics: Mutex::new(vllm_metrics(0, 100.5)), ..Script::default() }).await;
    let watched = Watched::quick(&server);
    watched.until(SECOND, "load", |w| w.told(Change::Load) > 2).await;
    assert_eq!(watched.replica.generation(), 0);

    *server.script.metrics.lock().unwrap() = vllm_metrics(0, 200.5);

    watched.until(SECOND, "restart", |w| w.replica.generation() == 1).await;
    watched.until(SECOND, "load", |w| w.told(Change::Load) > 8).await;
    assert_eq!(watched.told(Change::Restarted), 1);
}

#[tokio::test]
async fn an_interruption_with_the_same_start_time_after_it_is_no_restart() {
    let script = Script { metrics: Mutex::new(vllm_metrics(0, 100.5)), ..Script::default() };
    let mut server = Server::start(script).await;
    let watched = Watched::quick(&server);
    watched.until(SECOND, "load", |w| w.told(Change::Load) > 0).await;

    server.die().await;
    watched.until(SECOND, "down", |w| !w.replica.up()).await;
    sleep(Duration::from_millis(150)).await;
    server.rise().await;
    watched.until(SECOND, "up again", |w| w.replica.up()).await;

    assert_eq!(watched.replica.generation(), 0, "the network was gone, not the process");
}

#[tokio::test]
async fn silence_takes_two_probes() {
    let server = Server::start(Script::default()).await;
    let watched = Watched::quick(&server);
    watched.until_up().await;

    server.script.hang.store(true, Ordering::Relaxed);
    let took = watched.until(3 * SECOND, "down", |w| !w.replica.up()).await;

    assert!(took >= Duration::from_millis(500), "two limits of 300 ms, not one: {took:?}");
}

#[tokio::test]
async fn a_failed_request_brings_the_next_probe_forward() {
    let mut server = Server::start(Script::default()).await;
    let watched = Watched::new(&format!("http://{}", server.at), 60 * SECOND, None);
    watched.until_up().await;

    server.die().await;
    watched.replica.failed(FailureCause::Connect, Instant::now());

    watched.until(SECOND, "down", |w| !w.replica.up()).await;
}

#[tokio::test]
async fn many_failed_requests_do_not_make_many_probes() {
    let server = Server::start(Script::default()).await;
    let watched = Watched::new(&format!("http://{}", server.at), 60 * SECOND, None);
    watched.until_up().await;
    let before = server.script.probes.load(Ordering::Relaxed);

    for _ in 0..100 {
        watched.replica.failed(FailureCause::Reset, Instant::now());
        sleep(Duration::from_millis(4)).await;
    }

    let probes = server.script.probes.load(Ordering::Relaxed) - before;
    assert!((1..=8).contains(&probes), "{probes} probes in 0.4 s");
}

#[tokio::test]
async fn below_a_base_path_health_is_found_below_the_root() {
    let server = Server::start(Script { prefix: "/openai", owner: "kserve", ..Script::default() }).await;
    let watched = Watched::new(&format!("http://{}/openai/v1", server.at), Duration::from_millis(20), None);
    watched.until_up().await;

    watched.until(SECOND, "engine", |w| w.replica.engine_known()).await;
    assert!(watched.replica.serves("m"));
    assert_eq!(watched.replica.engine(), EngineKind::Openai);
    server.script.health.store(503, Ordering::Relaxed);
    watched.until(SECOND, "down", |w| !w.replica.up()).await;
}

#[tokio::test]
async fn without_a_health_check_the_model_list_is_one() {
    let script = Script { health_path: "/none", prefix: "/openai", owner: "me", ..Script::default() };
    let mut server = Server::start(script).await;
    let watched = Watched::new(&format!("http://{}/openai", server.at), Duration::from_millis(20), None);

    watched.until_up().await;
    server.die().await;

    watched.until(SECOND, "down", |w| !w.replica.up()).await;
}

#[tokio::test]
async fn a_key_is_sent_and_its_lack_hides_the_models_but_neither_health_nor_engine() {
    let metrics = || Mutex::new(vllm_metrics(1, 1.0));
    let server = Server::start(Script { key: Some("sk-1"), metrics: metrics(), ..Script::default() }).await;
    let url = format!("http://{}", server.at);
    let with = Watched::new(&url, Duration::from_millis(20), Some("sk-1"));
    let without = Watched::new(&url, Duration::from_millis(20), None);

    with.until(SECOND, "models", |w| w.replica.serves("m")).await;
    without.until(SECOND, "engine", |w| w.replica.engine_known()).await;

    assert!(without.replica.up());
    assert!(!without.replica.models_known());
    assert_eq!(without.replica.engine(), EngineKind::Vllm, "by its metrics");
}

#[tokio::test]
async fn an_engine_without_metrics_is_used_by_its_own_count() {
    let server = Server::start(Script { owner: "sglang", ..Script::default() }).await;
    let watched = Watched::quick(&server);
    watched.until_up().await;

    sleep(Duration::from_millis(100)).await;

    assert_eq!(watched.replica.engine(), EngineKind::Sglang);
    assert!(watched.replica.load(Instant::now()).is_none(), "unknown is not zero");
    assert!(watched.replica.usable(Instant::now()));
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off() {
    let server = Server::start(Script { huge: true, ..Script::default() }).await;
    let watched = Watched::quick(&server);
    watched.until_up().await;

    sleep(Duration::from_millis(100)).await;

    assert!(!watched.replica.models_known());
    assert!(watched.replica.up());
}

#[tokio::test]
async fn a_cancelled_watch_ends() {
    let server = Server::start(Script::default()).await;
    let watched = Watched::quick(&server);
    watched.until_up().await;

    watched.stop.cancel();
    watched.tasks.close();

    timeout(SECOND, watched.tasks.wait()).await.expect("the watch ended");
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_silence_and_not_a_refusal() {
    let watched = Watched::new("http://no-such-host.invalid:1", Duration::from_millis(20), None);

    watched
        .until(10 * SECOND, "silent", |w| w.replica.standing(Instant::now()).active == crate::fleet::Active::Silent)
        .await;
}
