//! One run: sessions at their times, every request followed to its end.
//!
//! All tasks run on one thread; only the pacer has its own. A request that waits for the cap is late by the schedule, not
//! by the clock of its own: the wait is a part of its latency from the intended time.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::HeaderValue;
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    body::Api,
    client::{Call, Client},
    clock::{Clock, Nanos, nanos, seconds},
    host::{Host, Reading},
    live::{Live, show},
    pacer,
    record::{Outcome, Record},
    workload::{Request, Session, Spec},
};

/// When sessions start.
#[derive(Debug, Clone)]
pub enum Load {
    /// At these seconds, whatever the target does.
    Open(Vec<f64>),
    /// A user starts the next one when the last is over.
    Closed {
        /// Users.
        users: usize,
        /// Seconds over which they join.
        ramp: f64,
    },
}

/// Limits and habits of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Endpoint.
    pub api: Api,
    /// Most requests under way.
    pub cap: Option<usize>,
    /// No new session after this many seconds.
    pub duration: Option<f64>,
    /// Pause between the turns of a session, in seconds.
    pub think: f64,
    /// Longest request.
    pub timeout: Duration,
    /// Key of each tenant, or the one key at 0.
    pub keys: Vec<Option<HeaderValue>>,
    /// Most prompt and answer tokens of all requests.
    pub max_tokens: Option<u64>,
    /// Most money, and the prices of a million prompt and answer tokens.
    pub max_usd: Option<(f64, f64, f64)>,
    /// Canaries a second beside the load.
    pub probe_rate: f64,
    /// Planned rate, for the live line.
    pub planned: Option<f64>,
    /// Show the live line.
    pub watch: bool,
    /// Prefix of request ids.
    pub id: String,
}

/// What a run brought.
#[derive(Debug)]
pub struct Measured {
    /// All requests, in the order of the schedule.
    pub records: Vec<Record>,
    /// Canaries.
    pub probes: Vec<Record>,
    /// Seconds from the first intended send to the last end.
    pub wall: f64,
    /// The client's machine.
    pub host: Host,
    /// Why it ended early.
    pub stopped: Option<&'static str>,
}

/// What all tasks of a run share.
struct Shared {
    client: Arc<Client>,
    options: Options,
    clock: Clock,
    /// When the schedule's zero is.
    origin: Nanos,
    cap: Option<Semaphore>,
    live: Live,
    records: Mutex<Vec<Record>>,
    /// No new request.
    enough: CancellationToken,
    /// Not even those under way.
    abandon: CancellationToken,
    over_budget: AtomicUsize,
}

impl Shared {
    /// Whether the tokens asked for next would go over a budget.
    fn check_budget(&self, request: &Request) {
        let (prompt, answer) = self.live.tokens();
        let (prompt, answer) = (prompt + request.input as u64, answer + request.output as u64);
        let tokens = self.options.max_tokens.is_some_and(|most| prompt + answer > most);
        let money = self
            .options
            .max_usd
            .is_some_and(|(most, input, output)| (prompt as f64 * input + answer as f64 * output) / 1e6 > most);
        if tokens || money {
            self.over_budget.store(if tokens { 1 } else { 2 }, Ordering::Relaxed);
            self.enough.cancel();
        }
    }

    async fn session(&self, index: usize, session: &Session, mut intended: Nanos) {
        for (turn, request) in session.turns.iter().enumerate() {
            if turn > 0 {
                intended = self.clock.now() + nanos(self.options.think);
                tokio::select! {
                    () = tokio::time::sleep_until(self.clock.instant(intended)) => {}
                    () = self.enough.cancelled() => return,
                }
            }
            if !self.one(index, request, intended).await {
                return;
            }
        }
    }

    /// Sends one request; false when its session cannot go on.
    async fn one(&self, index: usize, request: &Request, intended: Nanos) -> bool {
        self.check_budget(request);
        if self.enough.is_cancelled() {
            return false;
        }
        let mut record = Record {
            index,
            turn: request.turn,
            group: request.group,
            tenant: request.tenant,
            input: request.input,
            output: request.output,
            slow: request.slow,
            intended,
            ..Record::default()
        };
        let asked = self.clock.now();
        let _permit = match &self.cap {
            None => None,
            Some(cap) => tokio::select! {
                permit = cap.acquire() => permit.ok(),
                () = self.abandon.cancelled() => None,
            },
        };
        record.started = self.clock.now();
        if self.cap.is_some() {
            record.cap_wait = record.started.saturating_sub(asked);
        }
        if self.enough.is_cancelled() {
            // It was due and had no place: it counts as not served.
            record.ended = record.started;
            self.keep(record);
            return false;
        }
        self.live.sent();
        self.exchange(request, &mut record).await;
        self.live.done(&record);
        let whole = record.outcome == Outcome::Ok;
        self.keep(record);
        whole
    }

    async fn exchange(&self, request: &Request, record: &mut Record) {
        let key = self.options.keys.get(request.tenant.unwrap_or(0)).cloned().flatten();
        let call = Call {
            path: self.options.api.path(),
            body: request.body.clone(),
            key,
            id: format!("{}-{}-{}", self.options.id, record.index, record.turn),
            cancel_after: request.cancel_after,
            slow: request.slow,
        };
        let given_up = tokio::select! {
            () = self.client.exchange(&call, record) => return,
            () = tokio::time::sleep(self.options.timeout) => Outcome::Timeout,
            () = self.abandon.cancelled() => Outcome::Interrupted,
        };
        record.outcome = given_up;
        record.ended = self.clock.now();
    }

    fn keep(&self, record: Record) {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
    }
}

/// Runs sessions against a target. `stop` ends it by hand: what is under way is abandoned and what was seen is kept.
///
/// # Errors
/// When no thread can be started.
pub async fn run(
    client: &Arc<Client>,
    sessions: Vec<Session>,
    load: Load,
    plan: (Options, &Spec),
    stop: (&CancellationToken, Clock),
) -> anyhow::Result<Measured> {
    let ((options, spec), (stop, clock)) = (plan, stop);
    let total = sessions.iter().map(|session| session.turns.len()).sum();
    let shared = Arc::new(Shared {
        client: Arc::clone(client),
        cap: options.cap.map(Semaphore::new),
        options,
        clock,
        origin: clock.now() + nanos(0.02),
        live: Live::default(),
        records: Mutex::default(),
        enough: stop.child_token(),
        abandon: stop.clone(),
        over_budget: AtomicUsize::new(0),
    });
    let before = Reading::now(clock);
    let sessions: Arc<[Session]> = sessions.into();
    let watch = CancellationToken::new();
    let side = TaskTracker::new();
    if shared.options.watch {
        side.spawn(show_line(Arc::clone(&shared), total, watch.clone()));
    }
    let probes = Arc::new(Mutex::new(Vec::new()));
    if shared.options.probe_rate > 0.0 {
        side.spawn(probe(Arc::clone(&shared), spec.clone(), Arc::clone(&probes), watch.clone()));
    }
    match load {
        Load::Open(times) => open(&shared, &sessions, &times).await?,
        Load::Closed { users, ramp } => closed(&shared, &sessions, users, ramp).await,
    }
    watch.cancel();
    side.close();
    side.wait().await;
    let host = Reading::now(clock).since(&before);
    let records = std::mem::take(&mut *shared.records.lock().unwrap_or_else(PoisonError::into_inner));
    let probes = std::mem::take(&mut *probes.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(measured(&shared, records, probes, host))
}

fn measured(shared: &Shared, mut records: Vec<Record>, mut probes: Vec<Record>, host: Host) -> Measured {
    records.sort_by_key(|record| (record.index, record.turn));
    for record in records.iter_mut().chain(&mut probes) {
        shift(record, shared.origin);
    }
    let end = records.iter().map(|record| record.ended).max().unwrap_or(0);
    let stopped = match shared.over_budget.load(Ordering::Relaxed) {
        1 => Some("--max-tokens-total"),
        2 => Some("--max-usd"),
        _ if shared.abandon.is_cancelled() => Some("interrupted"),
        _ => None,
    };
    Measured { records, probes, wall: seconds(end), host, stopped }
}

/// Moves a record's zero to the start of the schedule.
fn shift(record: &mut Record, origin: Nanos) {
    let to = |at: &mut Nanos| *at = at.saturating_sub(origin);
    to(&mut record.intended);
    to(&mut record.started);
    to(&mut record.ended);
    let stamps =
        [&mut record.written, &mut record.head, &mut record.first_event, &mut record.first_content, &mut record.finish];
    stamps.into_iter().flatten().for_each(to);
    record.chunks.iter_mut().for_each(|chunk| to(&mut chunk.at));
}

async fn open(shared: &Arc<Shared>, sessions: &Arc<[Session]>, times: &[f64]) -> anyhow::Result<()> {
    let due: Arc<[Nanos]> = times.iter().map(|at| shared.origin + nanos(*at)).collect();
    let mut starts = pacer::start(shared.clock, Arc::clone(&due), shared.enough.clone())?;
    let tasks = TaskTracker::new();
    while let Some(index) = starts.recv().await {
        let Some(at) = due.get(index).copied() else { continue };
        let (shared, sessions) = (Arc::clone(shared), Arc::clone(sessions));
        tasks.spawn(async move {
            if let Some(session) = sessions.get(index) {
                shared.session(index, session, at).await;
            }
        });
    }
    tasks.close();
    tasks.wait().await;
    Ok(())
}

async fn closed(shared: &Arc<Shared>, sessions: &Arc<[Session]>, users: usize, ramp: f64) {
    let next = Arc::new(AtomicUsize::new(0));
    let end = shared.options.duration.map(|limit| shared.origin + nanos(limit));
    let tasks = TaskTracker::new();
    for user in 0..users {
        let (shared, sessions, next) = (Arc::clone(shared), Arc::clone(sessions), Arc::clone(&next));
        let joins = shared.origin + nanos(ramp * user as f64 / users as f64);
        tasks.spawn(async move {
            tokio::time::sleep_until(shared.clock.instant(joins)).await;
            loop {
                let now = shared.clock.now();
                if shared.enough.is_cancelled() || end.is_some_and(|end| now >= end) {
                    return;
                }
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(session) = sessions.get(index) else { return };
                shared.session(index, session, now).await;
            }
        });
    }
    tasks.close();
    tasks.wait().await;
}

async fn show_line(shared: Arc<Shared>, total: usize, over: CancellationToken) {
    let mut every = tokio::time::interval(Duration::from_millis(250));
    loop {
        tokio::select! {
            () = over.cancelled() => break,
            _ = every.tick() => {}
        }
        let now = shared.clock.now().saturating_sub(shared.origin);
        show(&shared.live.line(now, shared.options.planned, total));
    }
    show("");
}

/// Canaries: one token each, at even distances, one at a time. A slow one delays the next, which then shows it.
async fn probe(shared: Arc<Shared>, spec: Spec, into: Arc<Mutex<Vec<Record>>>, over: CancellationToken) {
    let mut number: u64 = 0;
    loop {
        let intended = shared.origin + nanos(number as f64 / shared.options.probe_rate);
        tokio::select! {
            () = over.cancelled() => return,
            () = tokio::time::sleep_until(shared.clock.instant(intended)) => {}
        }
        let mut record = Record { intended, started: shared.clock.now(), output: 1, ..Record::default() };
        let call = Call {
            path: shared.options.api.path(),
            body: spec.probe(number),
            key: shared.options.keys.first().cloned().flatten(),
            id: format!("{}-probe-{number}", shared.options.id),
            cancel_after: None,
            slow: false,
        };
        tokio::select! {
            () = over.cancelled() => return,
            () = shared.client.exchange(&call, &mut record) => {}
        }
        into.lock().unwrap_or_else(PoisonError::into_inner).push(record);
        number += 1;
    }
}
