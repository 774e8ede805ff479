//! The gateway as a child process, its configuration, and what its metrics say.

mod config;
mod metrics;
mod process;

use std::{net::SocketAddr, time::Duration};

use futures_util::{StreamExt, future::join_all, stream};

use self::process::Process;
pub(crate) use self::{config::Config, metrics::Samples};
use super::{
    client::{self, Answer, Call, Request},
    replica::ScriptedReplica,
    until,
};

/// How long the gateway may take to be ready.
const START: Duration = Duration::from_secs(20);

/// A running gateway; it dies with the value.
pub(crate) struct TestGateway {
    process: Process,
    config: Config,
}

impl TestGateway {
    /// In front of these replicas, with flags only.
    pub(crate) async fn over(replicas: &[ScriptedReplica]) -> Self {
        Self::with(Config::new(replicas)).await
    }

    /// With this configuration, ready and with every replica up that listens.
    pub(crate) async fn with(config: Config) -> Self {
        let gateway = Self::unready(config).await;
        gateway.ready().await;
        gateway
    }

    /// With this configuration; only listening.
    pub(crate) async fn unready(config: Config) -> Self {
        let mut log = String::new();
        for _ in 0..3 {
            let mut process = Process::start(&config, None);
            if process.listens(START).await {
                return Self { process, config };
            }
            log = process.program_log();
        }
        panic!("the gateway does not listen: {log}");
    }

    /// With this configuration it must not start; what it says instead.
    pub(crate) async fn refused(config: Config) -> String {
        let mut process = Process::start(&config, None);
        assert!(until(START, async || !process.is_alive()).await, "the gateway runs");
        process.program_log()
    }

    /// Waits until the gateway is ready and counts every listening replica as up.
    pub(crate) async fn ready(&self) {
        let up = self.config.listening();
        let ready = until(START, async || {
            client::send(self.process.admin, &Request::get("/readyz")).await.status == 200
                && self.metrics().await.total("gateway_replica_up", &[]) >= up
        });
        assert!(ready.await, "the gateway is not ready with {up} replicas up within {START:?}");
    }

    /// Kills the process and starts it again on the same ports.
    pub(crate) async fn restart(&mut self) {
        let ports = (self.process.data, self.process.admin);
        self.process.kill();
        self.process = Process::start(&self.config, Some(ports));
        assert!(self.process.listens(START).await, "the gateway listens again within {START:?}");
        self.ready().await;
    }

    /// What its configuration file says.
    pub(crate) fn config_text(&self) -> String {
        std::fs::read_to_string(self.process.config()).unwrap()
    }

    /// Writes its configuration file anew.
    pub(crate) fn write_config(&self, text: &str) {
        std::fs::write(self.process.config(), text).unwrap();
    }

    /// Tells it to read its configuration again.
    pub(crate) fn hang_up(&self) {
        self.process.signal("HUP");
    }

    /// Address of the data port.
    pub(crate) fn address(&self) -> SocketAddr {
        self.process.data
    }

    /// Sends a request on its own connection and reads the answer to its end.
    pub(crate) async fn send(&self, request: &Request) -> Answer {
        client::send(self.process.data, request).await
    }

    /// Sends these requests, so many at a time; answers in the order of the requests.
    pub(crate) async fn send_all(&self, requests: impl IntoIterator<Item = Request>, at_once: usize) -> Vec<Answer> {
        let calls = requests.into_iter().map(|request| async move { self.send(&request).await });
        stream::iter(calls).buffered(at_once).collect().await
    }

    /// Sends a request and leaves the answer to be read.
    pub(crate) async fn start(&self, request: &Request) -> Call {
        Call::start(self.process.data, request).await
    }

    /// A GET of the admin port.
    pub(crate) async fn admin(&self, path: &str) -> Answer {
        client::send(self.process.admin, &Request::get(path)).await
    }

    /// Every sample now.
    pub(crate) async fn metrics(&self) -> Samples {
        Samples::parse(&self.admin("/metrics").await.text())
    }

    /// Waits until the sum of the matching series is this.
    pub(crate) async fn reaches(&self, name: &str, labels: &[(&str, &str)], want: f64) {
        let mut last = 0.0;
        let reached = until(Duration::from_secs(5), async || {
            last = self.metrics().await.total(name, labels);
            (last - want).abs() < 1e-9
        });
        let reached = reached.await;
        assert!(reached, "{name}{labels:?} must be {want}, and is {last}: {}", self.metrics().await.series(name));
    }

    /// Waits until every request that was started has this outcome.
    pub(crate) async fn only_outcome(&self, outcome: &str, count: u32) {
        self.reaches("gateway_requests_total", &[("outcome", outcome)], f64::from(count)).await;
        self.reaches("gateway_requests_total", &[], f64::from(count)).await;
    }

    /// Waits until no request is in flight anywhere.
    pub(crate) async fn idle(&self) {
        self.reaches("gateway_replica_inflight", &[], 0.0).await;
        self.reaches("gateway_queue_depth", &[], 0.0).await;
    }

    /// Resident memory in bytes.
    pub(crate) fn resident(&self) -> u64 {
        self.process.resident()
    }

    /// Whether the process runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        self.process.is_alive()
    }

    /// What it has written to stdout: the access log.
    pub(crate) fn access_log(&self) -> String {
        self.process.access_log()
    }

    /// What it has written to stderr: the program's log.
    pub(crate) fn program_log(&self) -> String {
        self.process.program_log()
    }
}

/// One replica and a gateway in front of it.
pub(crate) async fn pair() -> (ScriptedReplica, TestGateway) {
    let replica = ScriptedReplica::start();
    let gateway = TestGateway::over(std::slice::from_ref(&replica)).await;
    (replica, gateway)
}

/// Several replicas and a gateway in front of them.
pub(crate) async fn fleet(n: usize) -> (Vec<ScriptedReplica>, TestGateway) {
    let replicas = ScriptedReplica::fleet(n);
    let gateway = TestGateway::over(&replicas).await;
    (replicas, gateway)
}

/// POSTs that the replicas have seen.
pub(crate) fn attempts(replicas: &[ScriptedReplica]) -> usize {
    replicas.iter().map(ScriptedReplica::count).sum()
}

/// Open loop over distinct prompts: one each `gap`, whatever the answers do.
pub(crate) async fn paced(gateway: &TestGateway, n: u32, gap: Duration) -> Vec<Answer> {
    let requests = (0..n).map(|i| Request::chat(&format!("u{i} ").repeat(40)));
    open_loop(gateway, requests.collect(), gap).await
}

/// Open loop over these requests.
pub(crate) async fn open_loop(gateway: &TestGateway, requests: Vec<Request>, gap: Duration) -> Vec<Answer> {
    let calls = requests.into_iter().zip(0..).map(|(request, n)| async move {
        tokio::time::sleep(gap * n).await;
        gateway.send(&request).await
    });
    join_all(calls).await
}
