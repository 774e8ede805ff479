//! One attempt's weight on a replica, released on drop, whatever happened.
//!
//! It lives inside the response body, so a client that leaves, a replica that dies and a stream that ends all take the
//! same way out. It cannot be cloned: a second copy would release twice.

use std::sync::{Arc, atomic::Ordering};

use super::Replica;

/// The charge of one attempt.
#[must_use = "dropping it at once releases the charge"]
#[derive(Debug)]
pub struct InFlight {
    replica: Arc<Replica>,
    /// Prompt tokens still counted as waiting for prefill.
    pending: u64,
    /// This attempt is the probe of an ejected replica.
    probe: bool,
}

impl InFlight {
    /// Charges a request whose prompt has `pending` tokens that the replica must compute.
    pub(super) fn new(replica: Arc<Replica>, pending: u64, probe: bool) -> Self {
        let state = replica.counters();
        let in_flight = state.in_flight.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        state.peak.fetch_max(in_flight, Ordering::Relaxed);
        state.pending_prefill.fetch_add(pending, Ordering::Relaxed);
        Self { replica, pending, probe }
    }

    /// The first output token came: the prefill is done. Later calls do nothing.
    pub fn first_token(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        if pending > 0 {
            self.replica.counters().pending_prefill.fetch_sub(pending, Ordering::Relaxed);
        }
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
        self.first_token();
        self.replica.counters().in_flight.fetch_sub(1, Ordering::Relaxed);
        if self.probe {
            self.replica.probe_ended();
        }
    }
}
