//! One attempt's weight on a replica, released on drop, whatever happened.
//!
//! It lives inside the response body, so a client that leaves, a replica that dies and a stream that ends all take the
//! same way out. It cannot be cloned: a second copy would release twice.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::{Replica, ttft::Wait};

/// The charge of one attempt.
#[must_use = "dropping it at once releases the charge"]
#[derive(Debug)]
pub struct InFlight {
    replica: Arc<Replica>,
    /// Prompt tokens still counted as waiting for prefill.
    pending: u64,
    /// Prompt tokens that waited there when it was charged, its own included.
    backlog: u64,
    charged: Instant,
    wait: Wait,
    /// This attempt is the probe of an ejected replica.
    probe: bool,
}

impl InFlight {
    /// Charges a request whose prompt has `pending` tokens that the replica must compute; its place among those in
    /// flight is taken already.
    pub(super) fn new(replica: Arc<Replica>, pending: u64, wait: Wait, probe: bool, now: Instant) -> Self {
        let state = replica.counters();
        let backlog = state.pending_prefill.fetch_add(pending, Ordering::Relaxed).saturating_add(pending);
        Self { replica, pending, backlog, charged: now, wait, probe }
    }

    /// The first output token came at `now`: the prefill is done. Later calls do nothing. Gives how far the prediction
    /// of this moment was off, if there was one.
    pub fn first_token(&mut self, now: Instant) -> Option<Duration> {
        let mut off = None;
        if self.pending > 0 {
            let waited = now.saturating_duration_since(self.charged);
            self.replica.saw_first_token(self.backlog, waited);
            self.replica.ttft().first_token(&self.wait, waited, now);
            off = self.wait.predicted().map(|predicted| predicted.abs_diff(waited));
        }
        if self.take_pending() {
            self.replica.freed();
        }
        off
    }

    /// The prefill is done, nobody knows since when: the answer is no stream. Later calls do nothing.
    pub fn prefilled(&mut self) {
        if self.release_prefill() {
            self.replica.freed();
        }
    }

    fn release_prefill(&mut self) -> bool {
        let pending = self.take_pending();
        if pending {
            self.replica.ttft().gone(&self.wait);
        }
        pending
    }

    fn take_pending(&mut self) -> bool {
        let pending = std::mem::take(&mut self.pending);
        self.replica.counters().pending_prefill.fetch_sub(pending, Ordering::Relaxed);
        pending > 0
    }

    /// The charged replica.
    #[must_use]
    pub fn replica(&self) -> &Arc<Replica> {
        &self.replica
    }

    /// Whether this attempt probes an ejected replica.
    #[must_use]
    pub fn is_probe(&self) -> bool {
        self.probe
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.release_prefill();
        self.replica.counters().in_flight.fetch_sub(1, Ordering::Relaxed);
        if self.probe {
            self.replica.probe_ended();
        }
        self.replica.freed();
    }
}
