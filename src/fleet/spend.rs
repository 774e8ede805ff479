//! What a hosted target has cost, and whether it may cost more: fixed hours and days, reservations beside them.
//!
//! A request reserves the most that it can cost before it is sent and settles what it did cost, so that many at once
//! do not overrun a limit together. Money is whole pico-dollars: prices of a hundredth of a cent a million tokens are
//! exact and sums have no drift. Pure: the time is an argument, in seconds since 1970.

use serde::{Deserialize, Serialize};

/// Pico-dollars in a dollar.
const PICO: f64 = 1e12;

/// An amount in pico-dollars; the largest is eighteen million dollars.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Usd(pub u64);

impl Usd {
    /// From dollars; what is negative or no number is nothing.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float cast saturates at both ends")]
    pub fn from_dollars(dollars: f64) -> Self {
        Self((dollars * PICO).round() as u64)
    }

    /// As dollars.
    #[must_use]
    pub fn dollars(self) -> f64 {
        self.0 as f64 / PICO
    }

    fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// Prices of a token.
#[derive(Debug, Clone, Copy, Default)]
pub struct Prices {
    /// Of an input token.
    pub input: Usd,
    /// Of an output token.
    pub output: Usd,
}

impl Prices {
    /// From dollars for a million tokens.
    #[must_use]
    pub fn per_million(input: f64, output: f64) -> Self {
        Self { input: Usd::from_dollars(input / 1e6), output: Usd::from_dollars(output / 1e6) }
    }

    /// What so many tokens cost.
    #[must_use]
    pub fn cost(self, input: u64, output: u64) -> Usd {
        Usd(self.input.0.saturating_mul(input)).plus(Usd(self.output.0.saturating_mul(output)))
    }
}

/// Most that may be spent; `None` is no limit.
#[derive(Debug, Clone, Copy, Default)]
pub struct SpendLimits {
    /// In one hour.
    pub hour: Option<Usd>,
    /// In one day.
    pub day: Option<Usd>,
}

/// Spend of one period.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Period {
    /// Number of the period since 1970.
    pub number: u64,
    /// Spent in it.
    pub spent: Usd,
}

impl Period {
    fn turn(&mut self, seconds: u64, length: u64) {
        let number = seconds / length;
        // A clock that was set back does not give money back.
        if number > self.number {
            *self = Self { number, spent: Usd::default() };
        }
    }
}

/// What is kept over a restart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// The hour.
    pub hour: Period,
    /// The day.
    pub day: Period,
}

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// Spend of one target.
#[derive(Debug, Default)]
pub struct Ledger {
    limits: SpendLimits,
    spent: Spent,
    reserved: Usd,
    /// An exhausted budget was told of in this hour.
    told: bool,
}

/// Why a reservation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exhausted {
    /// Nobody was told in this hour.
    pub first: bool,
}

impl Ledger {
    /// A ledger that goes on from what was spent before.
    #[must_use]
    pub fn new(limits: SpendLimits, spent: Spent) -> Self {
        Self { limits, spent, ..Self::default() }
    }

    /// Reserves what a request can cost at most.
    ///
    /// # Errors
    /// When a limit would be passed.
    pub fn reserve(&mut self, most: Usd, seconds: u64) -> Result<(), Exhausted> {
        self.turn(seconds);
        let over =
            |spent: Usd, limit: Option<Usd>| limit.is_some_and(|limit| spent.plus(self.reserved).plus(most) > limit);
        if over(self.spent.hour.spent, self.limits.hour) || over(self.spent.day.spent, self.limits.day) {
            return Err(Exhausted { first: !std::mem::replace(&mut self.told, true) });
        }
        self.reserved = self.reserved.plus(most);
        Ok(())
    }

    /// A request that had reserved `most` ended and did cost `cost`.
    pub fn settle(&mut self, most: Usd, cost: Usd, seconds: u64) {
        self.turn(seconds);
        self.reserved = Usd(self.reserved.0.saturating_sub(most.0));
        self.spent.hour.spent = self.spent.hour.spent.plus(cost);
        self.spent.day.spent = self.spent.day.spent.plus(cost);
    }

    /// What was spent in the hour and the day of now.
    pub fn spent(&mut self, seconds: u64) -> Spent {
        self.turn(seconds);
        self.spent
    }

    fn turn(&mut self, seconds: u64) {
        let hour = self.spent.hour.number;
        self.spent.hour.turn(seconds, HOUR);
        self.spent.day.turn(seconds, DAY);
        self.told &= hour == self.spent.hour.number;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits(hour: f64, day: f64) -> SpendLimits {
        SpendLimits { hour: Some(Usd::from_dollars(hour)), day: Some(Usd::from_dollars(day)) }
    }

    #[test]
    fn prices_are_exact() {
        let prices = Prices::per_million(0.0375, 1.5);
        assert_eq!(prices.cost(1_000_000, 0).dollars(), 0.0375);
        assert_eq!(prices.cost(2_000, 1_000), Usd(2_000 * 37_500 + 1_000 * 1_500_000));
        assert_eq!(Usd::from_dollars(-1.0), Usd(0));
    }

    #[test]
    fn a_limit_holds_with_what_is_reserved_and_a_new_hour_is_new_money() {
        let mut ledger = Ledger::new(limits(1.0, 1.5), Spent::default());
        let half = Usd::from_dollars(0.5);
        let start = 100 * DAY;
        assert!(ledger.reserve(half, start).is_ok());
        assert!(ledger.reserve(half, start).is_ok());
        assert_eq!(ledger.reserve(Usd(1), start), Err(Exhausted { first: true }));
        assert_eq!(ledger.reserve(Usd(1), start), Err(Exhausted { first: false }));
        ledger.settle(half, half, start);
        ledger.settle(half, Usd::from_dollars(0.25), start);
        assert_eq!(ledger.spent(start).hour.spent.dollars(), 0.75);

        assert!(ledger.reserve(half, start + HOUR).is_ok(), "a new hour");
        ledger.settle(half, half, start + HOUR);
        assert_eq!(ledger.reserve(half, start + HOUR + 1), Err(Exhausted { first: true }), "the day's limit");
        assert!(ledger.reserve(half, start + DAY).is_ok(), "a new day");
        assert!(ledger.spent(start).day.spent == Usd(0), "a clock set back changes nothing");
    }

    #[test]
    fn a_restart_goes_on() {
        let mut first = Ledger::new(limits(1.0, 9.0), Spent::default());
        first.settle(Usd(0), Usd::from_dollars(0.9), 5 * DAY);
        let kept = serde_json::to_string(&first.spent(5 * DAY)).unwrap();

        let mut second = Ledger::new(limits(1.0, 9.0), serde_json::from_str(&kept).unwrap());

        assert!(second.reserve(Usd::from_dollars(0.2), 5 * DAY + 60).is_err());
        assert!(second.reserve(Usd::from_dollars(0.1), 5 * DAY + 60).is_ok());
    }

    proptest! {
        #[test]
        fn what_is_settled_within_its_reservation_never_passes_a_limit(
            steps in prop::collection::vec((0_u64..400, 0_u64..100, 0_u64..30), 1..200),
        ) {
            let limit = Usd(1000);
            let mut ledger = Ledger::new(SpendLimits { hour: Some(limit), day: None }, Spent::default());
            let (mut now, mut open) = (0, Vec::new());
            for (most, part, pause) in steps {
                now += pause * 10;
                if ledger.reserve(Usd(most), now).is_ok() {
                    open.push((most, most * part / 100));
                }
                if open.len() > 3 {
                    let (most, cost) = open.remove(0);
                    ledger.settle(Usd(most), Usd(cost), now);
                }
                prop_assert!(ledger.spent(now).hour.spent <= limit);
            }
        }
    }
}
