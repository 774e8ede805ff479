//! A replica on raw sockets whose every byte, pause and reset is scripted, and which records all that it receives.

pub(crate) mod conn;
pub(crate) mod engine;
pub(crate) mod script;

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use socket2::{Domain, Socket, Type};
use tokio::{net::TcpListener, task::JoinHandle};

use self::{
    conn::{Conn, Received},
    script::{Play, Script},
};
use super::{beside, until};

/// Which engine's GET endpoints a replica answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavor {
    Vllm,
    Sglang,
}

/// What a health probe gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    Status(u16),
    Hang,
}

/// Everything that tests set and read while connections run.
struct State {
    script: Script,
    gets: HashMap<String, Script>,
    health: Health,
    reset_on_accept: bool,
    keep_bodies: bool,
    most_records: usize,
    posts: Vec<Arc<Received>>,
    probes: Vec<Arc<Received>>,
    conns: Vec<Arc<Conn>>,
    accepting: Option<JoinHandle<()>>,
    /// Holds the port while nobody listens: connections are refused, and no other test gets the port.
    reserved: Option<Socket>,
    active: usize,
    peak: usize,
    started: f64,
}

/// A replica that plays scripts.
#[derive(Clone)]
pub(crate) struct ScriptedReplica {
    address: SocketAddr,
    flavor: Flavor,
    model: Arc<str>,
    state: Arc<Mutex<State>>,
}

impl ScriptedReplica {
    /// A vLLM replica that serves the model `m`.
    pub(crate) fn start() -> Self {
        Self::start_as(Flavor::Vllm, "m")
    }

    /// Several vLLM replicas that serve the model `m`.
    pub(crate) fn fleet(n: usize) -> Vec<Self> {
        (0..n).map(|_| Self::start()).collect()
    }

    /// A replica of this engine and model.
    pub(crate) fn start_as(flavor: Flavor, model: &str) -> Self {
        let listener = listening(bound(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap()).unwrap();
        let state = State {
            script: engine::small(),
            gets: HashMap::new(),
            health: Health::Status(200),
            reset_on_accept: false,
            keep_bodies: true,
            most_records: usize::MAX,
            posts: Vec::new(),
            probes: Vec::new(),
            conns: Vec::new(),
            accepting: None,
            reserved: None,
            active: 0,
            peak: 0,
            started: seconds_since_epoch(),
        };
        let address = listener.local_addr().unwrap();
        let replica = Self { address, flavor, model: model.into(), state: Arc::new(Mutex::new(state)) };
        replica.accept_from(listener);
        replica
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn accept_from(&self, listener: TcpListener) {
        let replica = self.clone();
        let task = beside(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                stream.set_nodelay(true).unwrap();
                let conn = Conn::open(stream);
                if replica.state().reset_on_accept {
                    conn.reset();
                    continue;
                }
                replica.state().conns.push(conn.clone());
                beside(conn.serve(replica.clone()));
            }
        });
        self.state().accepting = Some(task);
    }

    /// Its base URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What every POST gets from now on.
    pub(crate) fn plays(&self, script: impl Into<Script>) {
        self.state().script = script.into();
    }

    /// What GETs of this path get from now on.
    pub(crate) fn answers_get(&self, path: &str, script: impl Into<Script>) {
        self.state().gets.insert(path.to_owned(), script.into());
    }

    /// What health probes get from now on.
    pub(crate) fn set_health(&self, health: Health) {
        self.state().health = health;
    }

    /// Whether connections are reset as soon as they are accepted.
    pub(crate) fn set_reset_on_accept(&self, on: bool) {
        self.state().reset_on_accept = on;
    }

    /// Keeps only the newest records, for tests that send very many requests.
    pub(crate) fn forget_when_full(&self) {
        self.state().most_records = 256;
    }

    /// Stops keeping request bodies, for tests that send many large ones.
    pub(crate) fn forget_bodies(&self) {
        self.state().keep_bodies = false;
    }

    /// As `kill -9`: the listener is gone and every connection is reset.
    pub(crate) async fn kill(&self) {
        self.refuse().await;
        let conns = std::mem::take(&mut self.state().conns);
        for conn in &conns {
            conn.reset();
        }
    }

    /// As a stopped process that closes its connections in order.
    pub(crate) async fn stop(&self) {
        self.refuse().await;
        let conns = std::mem::take(&mut self.state().conns);
        for conn in &conns {
            conn.close();
        }
    }

    /// New connections are refused, running ones stay.
    pub(crate) async fn refuse(&self) {
        let task = self.state().accepting.take();
        if let Some(task) = task {
            task.abort();
            assert!(task.await.is_err(), "the accept loop never ends by itself");
            let reserved = bound(self.address).unwrap();
            self.state().reserved = Some(reserved);
        }
    }

    /// Listens again on the same port, as a new process.
    pub(crate) fn restart(&self) {
        let reserved = self.state().reserved.take();
        let listener = listening(reserved.unwrap()).unwrap();
        self.state().started = seconds_since_epoch();
        self.accept_from(listener);
    }

    /// Whether it listens.
    pub(crate) fn is_listening(&self) -> bool {
        self.state().accepting.is_some()
    }

    /// Every POST so far, in the order of their heads.
    pub(crate) fn posts(&self) -> Vec<Arc<Received>> {
        self.state().posts.clone()
    }

    /// Every GET so far.
    pub(crate) fn probes(&self) -> Vec<Arc<Received>> {
        self.state().probes.clone()
    }

    /// Number of POSTs so far.
    pub(crate) fn count(&self) -> usize {
        self.state().posts.len()
    }

    /// POSTs that are being played.
    pub(crate) fn active(&self) -> usize {
        self.state().active
    }

    /// Most POSTs that were played at one time.
    pub(crate) fn peak(&self) -> usize {
        self.state().peak
    }

    /// Forgets what was received, and the peak.
    pub(crate) fn forget(&self) {
        let mut state = self.state();
        state.posts.clear();
        state.probes.clear();
        state.peak = state.active;
    }

    /// The POST number `n` with its whole body; waits for it.
    pub(crate) async fn post(&self, n: usize) -> Arc<Received> {
        let arrived =
            until(Duration::from_secs(5), async || self.posts().get(n).is_some_and(|post| post.is_complete()));
        assert!(arrived.await, "POST number {n} did not reach the replica; it has {}", self.count());
        self.posts()[n].clone()
    }

    fn record(&self, received: &Arc<Received>) {
        let mut state = self.state();
        let most = state.most_records;
        let records = if received.method == "POST" { &mut state.posts } else { &mut state.probes };
        if records.len() >= most {
            records.drain(..most / 2);
        }
        records.push(received.clone());
    }

    fn script_for(&self, received: &Received) -> Script {
        let state = self.state();
        match state.gets.get(received.path()) {
            _ if received.method == "POST" => state.script.clone(),
            Some(script) => script.clone(),
            None => engine::get(self.flavor, &self.model, received.path(), &state),
        }
    }

    fn enter(&self) -> Playing {
        let mut state = self.state();
        state.active += 1;
        state.peak = state.peak.max(state.active);
        Playing(self.state.clone())
    }

    async fn play(&self, conn: &Arc<Conn>, received: &Arc<Received>) -> script::Played {
        let script = self.script_for(received);
        let _playing = (received.method == "POST").then(|| self.enter());
        script.run(Play::new(conn.clone(), received.clone(), self.clone())).await
    }
}

/// One POST in flight.
struct Playing(Arc<Mutex<State>>);

impl Drop for Playing {
    fn drop(&mut self) {
        self.0.lock().unwrap().active -= 1;
    }
}

fn bound(address: SocketAddr) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn listening(socket: Socket) -> std::io::Result<TcpListener> {
    socket.listen(4096)?;
    TcpListener::from_std(socket.into())
}

fn seconds_since_epoch() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}
