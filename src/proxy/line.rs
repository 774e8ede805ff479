//! Those who wait for a place at a model: their order, who was told to go, and how long the rest will take.
//!
//! Nobody polls. [`Line::pump`] is called when a replica may have room (a request ended or began to answer, a probe or a
//! load report came) and tells as many to go as replicas take one more; each of them then takes its place itself, on
//! its own thread, with the freshest view. Whoever leaves, told or not, hands the turn on in [`Waiting`]'s drop.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use crate::{
    admission::{FairQueue, Place, ServiceRate, Ticket},
    fleet::Freed,
    proxy::pool::{Pool, Room},
};

/// Limits of a line.
#[derive(Debug, Clone, Copy)]
pub struct LineLimits {
    /// Most that wait; 0: nobody does.
    pub length: usize,
    /// Longest wait.
    pub timeout: Duration,
    /// A request that would wait longer than this, as far as anybody can tell, does not begin to.
    pub patience: Duration,
}

/// What one who waits is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// There may be a place.
    Go,
    /// No replica is usable any more.
    Down,
    /// The line is full, and somebody with less in it came.
    Evicted,
}

/// Why somebody may not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turned {
    /// The line is full.
    Full,
    /// The line is full, mostly with this tenant's own requests, and others wait too.
    OwnFault,
    /// It would take too long.
    TooLong,
}

/// The line of one model.
#[derive(Debug)]
pub struct Line {
    limits: LineLimits,
    /// Those who wait or are on the way to their place. 0: a newcomer need not line up.
    busy: AtomicU32,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    queue: FairQueue<oneshot::Sender<Word>>,
    /// Told to go, not placed yet.
    told: u32,
    rate: ServiceRate,
}

impl Line {
    /// An empty line.
    #[must_use]
    pub fn new(limits: LineLimits) -> Self {
        Self { limits, busy: AtomicU32::new(0), inner: Mutex::default() }
    }

    /// Its limits.
    #[must_use]
    pub fn limits(&self) -> &LineLimits {
        &self.limits
    }

    /// Whether anybody waits or is on the way to a place.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire) > 0
    }

    /// Requests that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner().queue.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner().queue.is_empty()
    }

    /// When a client that is refused now may come back: after what waits is served, from 1 to 60 s.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        let inner = self.inner();
        let wait = inner.rate.wait_for(inner.queue.cost()).unwrap_or_default();
        wait.clamp(Duration::from_secs(1), Duration::from_secs(60))
    }

    /// Lines up.
    ///
    /// # Errors
    /// Why that is of no use.
    pub fn enter(pool: &Arc<Pool>, ticket: Ticket, now: Instant) -> Result<Waiting, Turned> {
        let line = pool.line();
        let mut inner = line.inner();
        if line.limits.length == 0 {
            return Err(Turned::Full);
        }
        let ahead = inner.queue.ahead(ticket);
        if inner.rate.wait_for(ahead).is_some_and(|wait| wait > line.limits.patience) {
            return Err(Turned::TooLong);
        }
        if inner.queue.len() >= line.limits.length {
            let Some(evicted) = inner.queue.evict_for(ticket) else {
                return Err(if inner.queue.is_shared() { Turned::OwnFault } else { Turned::Full });
            };
            // Its receiver lives: it would have left the queue otherwise.
            evicted.send(Word::Evicted).ok();
        }
        if inner.queue.is_empty() {
            inner.rate.began(now);
        }
        let (sender, word) = oneshot::channel();
        let place = inner.queue.push(ticket, sender);
        line.busy.fetch_add(1, Ordering::Release);
        drop(inner);
        pool.metrics().queue_depth(1);
        Ok(Waiting { pool: Arc::clone(pool), ticket, place, word, since: now, told: false })
    }

    /// Tells those to go for whom there is room.
    pub fn pump(&self, room: Room) {
        let mut inner = self.inner();
        if room.usable == 0 {
            for sender in inner.queue.drain() {
                sender.send(Word::Down).ok();
            }
        }
        while inner.told < room.open {
            let Some((sender, _)) = inner.queue.pop() else { break };
            inner.told += u32::from(sender.send(Word::Go).is_ok());
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One who waits. Dropping it leaves the line and hands on the turn that it may have.
#[derive(Debug)]
pub struct Waiting {
    pool: Arc<Pool>,
    ticket: Ticket,
    place: Place,
    word: oneshot::Receiver<Word>,
    since: Instant,
    /// Whether it was told to go and knows.
    told: bool,
}

impl Waiting {
    /// Waits for the word. Cancel-safe.
    pub async fn word(&mut self) -> Word {
        // A sender is never dropped without a word while its receiver lives; were it, nobody would come.
        let word = (&mut self.word).await.unwrap_or(Word::Down);
        self.told = word == Word::Go;
        word
    }

    /// There was no place after all: lines up again, in front.
    pub fn again(&mut self) {
        let (sender, word) = oneshot::channel();
        let mut inner = self.pool.line().inner();
        inner.told = inner.told.saturating_sub(u32::from(std::mem::take(&mut self.told)));
        self.place = inner.queue.push_front(self.ticket, sender);
        self.word = word;
    }

    /// It has a place: the line moved on by its tokens.
    pub fn placed(self, now: Instant) {
        self.pool.line().inner().rate.served(self.ticket.cost, now);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let line = self.pool.line();
        let mut inner = line.inner();
        if inner.queue.remove(self.place).is_none() {
            // It was told something that it may not have read yet.
            let told = self.told || self.word.try_recv() == Ok(Word::Go);
            inner.told = inner.told.saturating_sub(u32::from(told));
        }
        line.busy.fetch_sub(1, Ordering::Release);
        drop(inner);
        self.pool.metrics().queue_depth(-1);
        self.pool.metrics().queue_wait(self.since.elapsed());
        self.pool.freed();
    }
}
