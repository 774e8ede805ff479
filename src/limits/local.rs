//! A bucket of so many a minute in this process: governor's GCRA, and beside it what was used before it was paid for.

use std::{
    num::NonZeroU32,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use governor::{
    Quota, RateLimiter,
    clock::{Clock, DefaultClock},
    middleware::StateInformationMiddleware,
    state::{InMemoryState, NotKeyed},
};

use super::Remaining;

type Limiter = RateLimiter<NotKeyed, InMemoryState, DefaultClock, StateInformationMiddleware>;

/// A minute's worth at once, and back at that pace.
#[derive(Debug)]
pub struct Bucket {
    limiter: Limiter,
    clock: DefaultClock,
    limit: NonZeroU32,
    owed: Mutex<Owed>,
}

/// What governor does not know.
#[derive(Debug, Default)]
struct Owed {
    /// Used and not paid.
    debt: u64,
    /// Paid and not used.
    credit: u64,
    /// What it had left when it was last asked.
    left: u32,
}

impl Bucket {
    /// So many a minute, at least one, at most 2^32 - 1.
    #[must_use]
    pub fn per_minute(limit: u64) -> Self {
        let limit = NonZeroU32::new(u32::try_from(limit).unwrap_or(u32::MAX)).unwrap_or(NonZeroU32::MIN);
        let clock = DefaultClock::default();
        let limiter = RateLimiter::direct_with_clock(Quota::per_minute(limit), clock.clone());
        let owed = Mutex::new(Owed { left: limit.get(), ..Owed::default() });
        Self { limiter: limiter.with_middleware(), clock, limit, owed }
    }

    /// A minute's worth.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit.get().into()
    }

    /// Takes `amount`, and with it what is owed. With an amount of 0 it is enough that the debt can be paid.
    ///
    /// # Errors
    /// When it may be tried again; `None`: never, it is more than a minute's worth. Nothing is taken.
    pub fn take(&self, amount: u64) -> Result<(), Option<Duration>> {
        if amount > self.limit() {
            return Err(None);
        }
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        let due = (amount + owed.debt).saturating_sub(owed.credit);
        // A debt beyond a minute's worth is paid in parts, a minute's worth at a time.
        let now = due.min(self.limit());
        if let Some(part) = u32::try_from(now).ok().and_then(NonZeroU32::new) {
            match self.limiter.check_n(part) {
                Ok(Ok(state)) => owed.left = state.remaining_burst_capacity(),
                Ok(Err(wait)) => return Err(Some(wait.wait_time_from(self.clock.now()))),
                Err(_) => return Err(None),
            }
        }
        owed.credit = owed.credit.saturating_sub(amount + owed.debt);
        owed.debt = due - now;
        Ok(())
    }

    /// Notes what was used without being taken.
    pub fn owe(&self, amount: u64) {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        let paid = owed.credit.min(amount);
        owed.credit -= paid;
        owed.debt = owed.debt.saturating_add(amount - paid);
    }

    /// Takes back what was taken and not used.
    pub fn give_back(&self, amount: u64) {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        let paid = owed.debt.min(amount);
        owed.debt -= paid;
        owed.credit = owed.credit.saturating_add(amount - paid).min(self.limit());
    }

    /// What is left, as of the last time it was taken from.
    #[must_use]
    pub fn remaining(&self) -> Remaining {
        let owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = self.limit();
        let remaining = (u64::from(owed.left) + owed.credit).saturating_sub(owed.debt).min(limit);
        let missing = limit - remaining;
        Remaining { limit, remaining, reset: Duration::from_secs_f64(missing as f64 * 60.0 / limit as f64) }
    }
}
