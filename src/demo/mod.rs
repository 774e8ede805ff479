//! `gateway demo`: the main job on simulated replicas, side by side with round robin, in one process.
//!
//! Both runs get the same requests at the same times and replicas with cold caches, so the difference is placement
//! alone. The replicas are real HTTP servers with a step-by-step engine model; no GPU is needed, and no figure here is
//! one of a GPU.

mod table;
mod traffic;

use std::{
    io::{self, IsTerminal, Write},
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use crate::{
    config::{self, AccessLog, Overrides, Plan},
    demo::traffic::{Seen, Traffic},
    server::{self, Running},
    simserver::{self, SimConfig, SimHandle},
};

/// Simulated replicas.
const REPLICAS: usize = 3;
/// Model that they serve.
const MODEL: &str = "demo";
/// KV cache of one replica: about half of what all system prompts need, so one replica alone cannot hold them.
const KV_TOKENS: usize = 24_576;
/// Longest request.
const MODEL_LEN: usize = 8192;
/// Policies that are compared; the last one stays up.
const POLICIES: [&str; 2] = ["round_robin", "prefix"];
/// Longest wait for the replicas to be seen as up.
const READY: Duration = Duration::from_secs(5);

/// Where the gateway that stays up listens.
#[derive(Debug, Clone, Copy)]
pub struct Ports {
    /// Data port.
    pub listen: SocketAddr,
    /// Admin port.
    pub admin_listen: SocketAddr,
}

/// What one policy did.
#[derive(Debug)]
struct Run {
    policy: &'static str,
    seen: Seen,
}

/// A gateway in front of its own simulated replicas.
struct Stage {
    engines: Vec<SimHandle>,
    gateway: Running,
}

impl Stage {
    async fn start(policy: &str, ports: Ports) -> anyhow::Result<Self> {
        let mut engines = Vec::with_capacity(REPLICAS);
        for _ in 0..REPLICAS {
            let mut config = SimConfig::vllm(MODEL);
            config.engine.kv_tokens = KV_TOKENS;
            config.max_model_len = MODEL_LEN;
            let engine = simserver::start(config, SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await;
            engines.push(engine.context("cannot start a simulated replica")?);
        }
        let gateway = server::start(plan(&engines, policy, ports)?).await?;
        let stage = Self { engines, gateway };
        stage.ready().await?;
        Ok(stage)
    }

    async fn ready(&self) -> anyhow::Result<()> {
        let all_up = async {
            loop {
                let directory = self.gateway.shared().directory.load_full();
                let up = directory
                    .pools()
                    .first()
                    .map_or(0, |pool| pool.members().iter().filter(|member| member.replica.up()).count());
                if up == REPLICAS {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(READY, all_up).await.context("the simulated replicas did not come up")
    }

    async fn stop(self) {
        self.gateway.shutdown(CancellationToken::new()).await;
        for engine in self.engines {
            engine.shutdown().await;
        }
    }
}

fn plan(engines: &[SimHandle], policy: &str, ports: Ports) -> anyhow::Result<Plan> {
    let overrides = Overrides {
        replicas: engines.iter().map(|engine| format!("http://{}", engine.addr)).collect(),
        listen: Some(ports.listen),
        admin_listen: Some(ports.admin_listen),
        policy: Some(policy.to_owned()),
        ..Overrides::default()
    };
    let mut plan = config::load(&overrides, &config::environment)?;
    plan.server.access_log = AccessLog::Off;
    Ok(plan)
}

/// Runs the comparison, prints the table, and stays up until `stop` unless `exit` is set.
///
/// # Errors
/// When a port is taken or a simulated replica cannot start.
pub async fn run(ports: Ports, exit: bool, stop: CancellationToken) -> anyhow::Result<()> {
    let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let traffic = Traffic::new();
    say(&format!("{}\n", traffic.describe(REPLICAS, KV_TOKENS)))?;
    let mut runs = Vec::new();
    let mut last = None;
    for (at, policy) in POLICIES.into_iter().enumerate() {
        let stays = at + 1 == POLICIES.len();
        let ports = if stays { ports } else { Ports { listen: free, admin_listen: free } };
        let stage = Stage::start(policy, ports).await?;
        let progress = |share: f64| progress(policy, share);
        let seen = tokio::select! {
            seen = traffic.run(stage.gateway.address, MODEL, progress) => seen?,
            () = stop.cancelled() => {
                stage.stop().await;
                return Ok(());
            }
        };
        runs.push(Run { policy, seen });
        if stays {
            last = Some(stage);
        } else {
            stage.stop().await;
        }
    }
    clear_progress();
    say(&table::render(&runs))?;
    let Some(stage) = last else { return Ok(()) };
    if !exit {
        say(&farewell(&stage.gateway))?;
        stop.cancelled().await;
    }
    stage.stop().await;
    Ok(())
}

fn farewell(gateway: &Running) -> String {
    let (data, admin) = (gateway.address, gateway.admin_address);
    format!(
        r#"
The gateway and its {REPLICAS} simulated replicas stay up. Try:

  curl http://{data}/v1/chat/completions \
    -H 'Content-Type: application/json' \
    -d '{{"model":"{MODEL}","stream":true,"max_tokens":16,
         "messages":[{{"role":"user","content":"hello"}}]}}'

  metrics   http://{admin}/metrics
  replicas  http://{admin}/

Ctrl-C stops everything.
"#
    )
}

fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// One line that is overwritten; nothing when nobody watches.
fn progress(policy: &str, share: f64) {
    let mut err = io::stderr().lock();
    if err.is_terminal() {
        let percent = share * 100.0;
        // A terminal that is gone needs no progress.
        write!(err, "\r{policy:<12} {percent:>3.0} %").and_then(|()| err.flush()).unwrap_or_default();
    }
}

fn clear_progress() {
    let mut err = io::stderr().lock();
    if err.is_terminal() {
        write!(err, "\r\x1b[K").and_then(|()| err.flush()).unwrap_or_default();
    }
}
