//! Whether a replica may be used: its own word (active probes), the gateway's experience (passive ejection), and load.
//!
//! The two judges are independent. An engine whose `/health` says 200 may hang (vLLM does), so a good probe does *not*
//! end an ejection; only a probe that brings a replica back from down does, since that is a new process. An explicit
//! refusal, a non-2xx or nobody listening, is believed at once; only silence has to repeat itself.
//! Client errors and saturation never come here.
//! Source: reliability.md section 2, "our default"; reference/engines.md section 3, "Failures".

use std::time::Duration;

use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Silent probes in a row that take a replica down.
const FALL: u8 = 2;
/// Failed requests in a row that eject a replica.
const EJECT_AFTER: u8 = 5;
/// First ejection; doubles with each one that follows.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// Longest ejection.
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// A replica that stayed in for this long after an ejection starts over with the shortest one.
const FORGIVEN_AFTER: Duration = Duration::from_secs(60);
/// A probe request that has not ended after this time no longer keeps others from trying.
const PROBE_LEASE: Duration = Duration::from_secs(5);

/// What went wrong with a health probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeFailure {
    /// Nobody listens, or the connection was reset.
    Refused,
    /// No answer in time.
    Timeout,
    /// An answer other than 2xx.
    Status(u16),
}

/// What went wrong with a request, as far as the replica is to blame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureCause {
    /// No connection.
    Connect,
    /// The connection was reset or closed before the end.
    Reset,
    /// Silent for longer than a limit.
    Timeout,
    /// A 5xx that is not saturation.
    Status5xx,
    /// Broken HTTP.
    Protocol,
    /// An error event after output had begun.
    StreamError,
}

impl FailureCause {
    /// Word for logs and labels.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Reset => "reset",
            Self::Timeout => "timeout",
            Self::Status5xx => "status_5xx",
            Self::Protocol => "protocol",
            Self::StreamError => "stream_error",
        }
    }
}

/// What the probes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Active {
    /// Not probed yet.
    Unknown,
    /// The last probe was good, or too few were silent.
    Up,
    /// Silent.
    Silent,
    /// It refused: by status, or nobody listens.
    Refused,
}

/// A replica's standing at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// What the probes say.
    pub active: Active,
    /// Ejected, and not due for its probe request, until then.
    pub ejected_until: Option<Instant>,
    /// It refused for load a moment ago.
    pub saturated: bool,
    /// It refused or broke a connection, and no probe has been good since.
    pub suspect: bool,
    /// It leaves: no new requests.
    pub draining: bool,
}

impl Standing {
    /// Up, not ejected, not draining. Saturation does not count: that is the caller's choice.
    #[must_use]
    pub fn usable(&self) -> bool {
        self.active == Active::Up && self.ejected_until.is_none() && !self.draining
    }
}

#[derive(Debug, Clone, Copy)]
struct Ejection {
    until: Instant,
    /// A request was charged while ejected, and has not ended.
    probing: bool,
    /// Until when that request keeps others away; set by the first look at it after the ejection's end.
    probing_until: Option<Instant>,
}

/// The state machine of one replica. Deterministic by its seed.
#[derive(Debug)]
pub(super) struct Health {
    active: Active,
    silent: u8,
    failures: u8,
    ejection: Option<Ejection>,
    strikes: u8,
    readmitted_at: Option<Instant>,
    saturated_until: Option<Instant>,
    suspect: bool,
    draining: bool,
    seed: u64,
}

impl Health {
    /// Not probed, not blamed. `seed` spreads the ejection times of gateways side by side.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            active: Active::Unknown,
            silent: 0,
            failures: 0,
            ejection: None,
            strikes: 0,
            readmitted_at: None,
            saturated_until: None,
            suspect: false,
            draining: false,
            seed,
        }
    }

    /// Where the replica stands.
    pub(super) fn standing(&mut self, now: Instant) -> Standing {
        let ejected_until = self.ejection.as_mut().and_then(|ejection| {
            if now < ejection.until {
                return Some(ejection.until);
            }
            if !ejection.probing {
                return None;
            }
            let until = *ejection.probing_until.get_or_insert(now + PROBE_LEASE);
            (now < until).then_some(until)
        });
        let saturated = self.saturated_until.is_some_and(|until| now < until);
        Standing { active: self.active, ejected_until, saturated, suspect: self.suspect, draining: self.draining }
    }

    /// What the probes say.
    pub(super) fn active(&self) -> Active {
        self.active
    }

    /// Whether it is ejected, its probe request due or not.
    pub(super) fn ejected(&self) -> bool {
        self.ejection.is_some()
    }

    /// A good probe. True when that changed the replica to up.
    pub(super) fn probe_ok(&mut self) -> bool {
        self.silent = 0;
        self.suspect = false;
        if self.active == Active::Up {
            return false;
        }
        if matches!(self.active, Active::Silent | Active::Refused) {
            self.forgive();
        }
        self.active = Active::Up;
        true
    }

    /// A bad probe. True when that took the replica down.
    pub(super) fn probe_failed(&mut self, failure: ProbeFailure) -> bool {
        let was_up = self.active == Active::Up;
        match failure {
            ProbeFailure::Refused | ProbeFailure::Status(_) => {
                self.active = Active::Refused;
                self.silent = 0;
            }
            ProbeFailure::Timeout => {
                self.silent = self.silent.saturating_add(1);
                if self.silent >= FALL && self.active != Active::Refused {
                    self.active = Active::Silent;
                }
            }
        }
        was_up && self.active != Active::Up
    }

    /// A request ended well.
    pub(super) fn succeeded(&mut self, now: Instant) {
        self.failures = 0;
        self.saturated_until = None;
        self.suspect = false;
        if self.ejection.is_some() {
            self.ejection = None;
            self.readmitted_at = Some(now);
        }
    }

    /// It refused or broke a connection: others are preferred until a probe is good. One reset so costs one request, not
    /// as many as an ejection takes.
    pub(super) fn suspect(&mut self) {
        self.suspect = true;
    }

    /// A request failed by the replica's fault. True when that ejected it.
    pub(super) fn failed(&mut self, now: Instant) -> bool {
        if let Some(ejection) = self.ejection {
            // Requests from before the ejection go on failing; only one that ended after its end was the probe.
            if now >= ejection.until {
                self.eject(now);
                return true;
            }
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures < EJECT_AFTER {
            return false;
        }
        self.eject(now);
        true
    }

    fn eject(&mut self, now: Instant) {
        if self.readmitted_at.is_some_and(|at| now.saturating_duration_since(at) > FORGIVEN_AFTER) {
            self.strikes = 0;
        }
        let backoff = BACKOFF_MIN.saturating_mul(1 << self.strikes.min(6)).min(BACKOFF_MAX);
        self.ejection = Some(Ejection { until: now + self.jittered(backoff), probing_until: None, probing: false });
        self.strikes = self.strikes.saturating_add(1);
        self.readmitted_at = None;
        self.failures = 0;
    }

    /// Between 0.8 and 1.2 of the time.
    fn jittered(&self, time: Duration) -> Duration {
        let random = xxh3_64_with_seed(&[self.strikes], self.seed) % 401;
        time * (800 + u32::try_from(random).unwrap_or(200)) / 1000
    }

    /// A request goes there. True when it is the probe of an ejected replica, to be told by [`Self::probe_ended`].
    pub(super) fn begin_probe(&mut self) -> bool {
        match &mut self.ejection {
            Some(ejection) if !ejection.probing => {
                ejection.probing = true;
                true
            }
            _ => false,
        }
    }

    /// The probe request ended; without a verdict before, another may try.
    pub(super) fn probe_ended(&mut self) {
        if let Some(ejection) = &mut self.ejection {
            ejection.probing = false;
            ejection.probing_until = None;
        }
    }

    /// It refused for load: others are preferred until then.
    pub(super) fn saturated(&mut self, until: Instant) {
        self.saturated_until = Some(until);
    }

    /// No new requests, or new ones again.
    pub(super) fn set_draining(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// A new process: what the old one did is not held against it.
    pub(super) fn forgive(&mut self) {
        self.failures = 0;
        self.strikes = 0;
        self.saturated_until = None;
        self.suspect = false;
        self.readmitted_at = None;
        self.ejection = None;
    }
}

#[cfg(test)]
mod tests;
