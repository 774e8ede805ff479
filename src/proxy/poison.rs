//! Requests that break replicas, as the request path sees them: a digest only when somebody is under suspicion.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use tokio::time::Instant;
use xxhash_rust::xxh3::Xxh3Default;

use crate::{
    error::{ErrorKind, GatewayError, Stage},
    fleet::Poison,
    proxy::forward::Outgoing,
    types::{Endpoint, ReplicaSlot},
};

/// The suspects of a gateway.
#[derive(Debug, Default)]
pub struct Suspects {
    inner: Mutex<Poison>,
    /// Whether there are any, so that requests need no digest and no lock while there are none.
    any: AtomicBool,
}

impl Suspects {
    fn inner(&self) -> MutexGuard<'_, Poison> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a request that broke two replicas.
    ///
    /// # Errors
    /// `ReplicaReset`, which nobody else is asked about.
    pub fn check(&self, endpoint: Endpoint, out: &Outgoing) -> Result<(), GatewayError> {
        if !self.any.load(Ordering::Relaxed) || !self.inner().is_poisonous(digest(endpoint, out), Instant::now()) {
            return Ok(());
        }
        let message = "this request broke the connection at two replicas; it is not sent to a third";
        Err(GatewayError::new(ErrorKind::ReplicaReset, Stage::Forward, message))
    }

    /// A replica broke the connection before its answer began.
    pub fn broke(&self, endpoint: Endpoint, out: &Outgoing, replica: ReplicaSlot, sent: Instant) {
        self.inner().broke(digest(endpoint, out), replica, sent, Instant::now());
        self.any.store(true, Ordering::Relaxed);
    }

    /// A replica's answer began.
    pub fn answered(&self, endpoint: Endpoint, out: &Outgoing) {
        if self.any.load(Ordering::Relaxed) {
            let mut inner = self.inner();
            inner.answered(digest(endpoint, out));
            self.any.store(!inner.is_empty(), Ordering::Relaxed);
        }
    }
}

/// What replicas were sent.
fn digest(endpoint: Endpoint, out: &Outgoing) -> u64 {
    let mut hash = Xxh3Default::new();
    hash.update(endpoint.path().as_bytes());
    for part in &out.body {
        hash.update(part);
    }
    hash.digest()
}
