//! What one key may use in a minute and at a time.
//!
//! Requests and prompt tokens are charged when a request is admitted; output tokens when it ended, by the engine's own
//! count, and what that leaves owing must be paid before the next request: `max_tokens` says little about what an
//! answer costs. Requests at a time are counted by a guard inside the request's report.
//!
//! In one process the buckets are governor's (GCRA); with `server.redis` they are in Redis, one for all gateways, and
//! the local ones step in when it is away and `on_failure` is `fail_open`. Requests at a time stay local.

mod local;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

pub use local::Bucket;

use crate::{config::Rate, types::Asked};

/// What ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// `requests_per_minute`
    Requests,
    /// `prompt_tokens_per_minute`
    PromptTokens,
    /// `output_tokens_per_minute`
    OutputTokens,
    /// `concurrent`
    Concurrent,
}

impl Resource {
    /// Its key under `rate`.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Requests => "requests_per_minute",
            Self::PromptTokens => "prompt_tokens_per_minute",
            Self::OutputTokens => "output_tokens_per_minute",
            Self::Concurrent => "concurrent",
        }
    }
}

/// A request above a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excess {
    /// Of what.
    pub resource: Resource,
    /// The configured limit.
    pub limit: u64,
    /// When it may come again; `None`: never, it asks for more than a minute's worth.
    pub retry_after: Option<Duration>,
}

/// What is left of a minute's worth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Remaining {
    /// A minute's worth.
    pub limit: u64,
    /// Left now.
    pub remaining: u64,
    /// Until all of it is back.
    pub reset: Duration,
}

/// What is left, for the `x-ratelimit-*` headers; `None` where there is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    /// Requests.
    pub requests: Option<Remaining>,
    /// Prompt tokens.
    pub tokens: Option<Remaining>,
}

/// The limits of one key.
#[derive(Debug)]
pub struct KeyLimits {
    rate: Rate,
    requests: Option<Bucket>,
    prompt: Option<Bucket>,
    output: Option<Bucket>,
    running: AtomicU32,
}

impl KeyLimits {
    /// Limits of which nothing is used.
    #[must_use]
    pub fn new(rate: &Rate) -> Self {
        Self {
            requests: rate.requests_per_minute.map(Bucket::per_minute),
            prompt: rate.prompt_tokens_per_minute.map(Bucket::per_minute),
            output: rate.output_tokens_per_minute.map(Bucket::per_minute),
            running: AtomicU32::new(0),
            rate: rate.clone(),
        }
    }

    /// What it is limited to.
    #[must_use]
    pub fn rate(&self) -> &Rate {
        &self.rate
    }

    /// What is left now.
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing {
            requests: self.requests.as_ref().map(Bucket::remaining),
            tokens: self.prompt.as_ref().map(Bucket::remaining),
        }
    }

    /// Charges one request, or says what it is above. A refused request is charged for nothing.
    ///
    /// # Errors
    /// The first limit that it is above.
    pub fn charge(self: &Arc<Self>, asked: Asked) -> Result<Permit, Excess> {
        let permit = self.begin()?;
        let charges = [
            (Resource::OutputTokens, &self.output, 0),
            (Resource::PromptTokens, &self.prompt, asked.prompt),
            (Resource::Requests, &self.requests, 1),
        ];
        for (at, (resource, bucket, amount)) in charges.iter().enumerate() {
            let Some(bucket) = bucket else { continue };
            if let Err(retry_after) = bucket.take(*amount) {
                for (_, taken, amount) in charges.iter().take(at) {
                    if let Some(taken) = taken {
                        taken.give_back(*amount);
                    }
                }
                return Err(Excess { resource: *resource, limit: bucket.limit(), retry_after });
            }
        }
        Ok(permit)
    }

    /// Takes one of the places of `concurrent`.
    fn begin(self: &Arc<Self>) -> Result<Permit, Excess> {
        let most = self.rate.concurrent.unwrap_or(u32::MAX);
        let one_more = |running: u32| (running < most).then(|| running + 1);
        match self.running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(Permit { limits: Arc::clone(self) }),
            Err(_) => Err(Excess {
                resource: Resource::Concurrent,
                limit: most.into(),
                retry_after: Some(Duration::from_secs(1)),
            }),
        }
    }
}

/// A request that runs under a key's limits. Dropping it ends that.
#[must_use = "dropping it at once frees its place"]
#[derive(Debug)]
pub struct Permit {
    limits: Arc<KeyLimits>,
}

impl Permit {
    /// The request ended: `prompt` and `output` tokens by the engine's count, of which `charged` prompt tokens were
    /// charged before.
    pub fn settle(&self, charged: u64, prompt: Option<u64>, output: u64) {
        if let Some(bucket) = &self.limits.output {
            bucket.owe(output);
        }
        if let (Some(bucket), Some(prompt)) = (&self.limits.prompt, prompt) {
            match prompt.checked_sub(charged) {
                Some(more) => bucket.owe(more),
                None => bucket.give_back(charged - prompt),
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limits.running.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(rate: &Rate) -> Arc<KeyLimits> {
        Arc::new(KeyLimits::new(rate))
    }

    fn asked(prompt: u64) -> Asked {
        Asked { prompt, output: 0 }
    }

    #[test]
    fn each_limit_refuses_by_name_and_a_refused_request_costs_nothing() {
        let limits =
            limits(&Rate { requests_per_minute: Some(3), prompt_tokens_per_minute: Some(1000), ..Rate::default() });
        let _first = limits.charge(asked(600)).unwrap();
        let excess = limits.charge(asked(600)).unwrap_err();
        assert_eq!((excess.resource, excess.limit), (Resource::PromptTokens, 1000));
        let wait = excess.retry_after.unwrap();
        assert!(
            wait > Duration::from_secs(11) && wait <= Duration::from_secs(12),
            "200 tokens at 16.7 a second: {wait:?}"
        );
        let _second = limits.charge(asked(1)).unwrap();
        let _third = limits.charge(asked(1)).unwrap();
        assert_eq!(limits.charge(asked(1)).unwrap_err().resource, Resource::Requests, "the refused one took no turn");
        assert_eq!(limits.standing().requests.unwrap().remaining, 0);
    }

    #[test]
    fn more_than_a_minutes_worth_never_fits() {
        let limits = limits(&Rate { prompt_tokens_per_minute: Some(100), ..Rate::default() });
        assert_eq!(limits.charge(asked(101)).unwrap_err().retry_after, None);
        assert!(limits.charge(asked(100)).is_ok());
    }

    #[test]
    fn output_is_paid_by_the_next_request() {
        let limits = limits(&Rate { output_tokens_per_minute: Some(600), ..Rate::default() });
        limits.charge(asked(1)).unwrap().settle(0, None, 500);
        limits.charge(asked(1)).unwrap().settle(0, None, 700);
        let excess = limits.charge(asked(1)).unwrap_err();
        assert_eq!(excess.resource, Resource::OutputTokens);
        let wait = excess.retry_after.unwrap();
        assert!(
            (Duration::from_secs(49)..=Duration::from_secs(50)).contains(&wait),
            "500 short, 10 a second: {wait:?}"
        );
    }

    #[test]
    fn an_estimate_is_corrected_by_the_engines_count() {
        let limits = limits(&Rate { prompt_tokens_per_minute: Some(1000), ..Rate::default() });
        limits.charge(asked(900)).unwrap().settle(900, Some(300), 0);
        assert!(limits.charge(asked(600)).is_ok(), "only 300 were used");
    }

    #[test]
    fn requests_at_a_time_are_freed_by_the_drop() {
        let limits = limits(&Rate { concurrent: Some(2), ..Rate::default() });
        let first = limits.charge(asked(1)).unwrap();
        let _second = limits.charge(asked(1)).unwrap();
        assert_eq!(limits.charge(asked(1)).unwrap_err().resource, Resource::Concurrent);
        drop(first);
        assert!(limits.charge(asked(1)).is_ok());
    }
}
