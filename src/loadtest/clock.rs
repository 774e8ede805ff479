//! Time as nanoseconds since the run's start, on the monotonic clock.

use std::time::Duration;

use tokio::time::Instant;

/// Nanoseconds since the start of the run.
pub type Nanos = u64;

/// The run's clock. Copies share one start.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    base: Instant,
}

impl Clock {
    /// A clock that stands at zero now.
    #[must_use]
    pub fn start() -> Self {
        Self { base: Instant::now() }
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub fn now(&self) -> Nanos {
        u64::try_from(self.base.elapsed().as_nanos()).unwrap_or(Nanos::MAX)
    }

    /// The instant at which the clock shows `at`.
    #[must_use]
    pub fn instant(&self, at: Nanos) -> Instant {
        self.base + Duration::from_nanos(at)
    }
}

/// Seconds to nanoseconds; negative and absurd values saturate.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
pub fn nanos(seconds: f64) -> Nanos {
    (seconds * 1e9).round() as Nanos
}

/// A rounded, non-negative whole number.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
pub fn whole(value: f64) -> usize {
    value.round() as usize
}

/// Nanoseconds to milliseconds.
#[must_use]
pub fn ms(at: Nanos) -> f64 {
    at as f64 / 1e6
}

/// Nanoseconds to seconds.
#[must_use]
pub fn seconds(at: Nanos) -> f64 {
    at as f64 / 1e9
}
