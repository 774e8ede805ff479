//! Step 5: the key's rates, and the headers that tell a client how much is left.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::{
    error::{ErrorKind, GatewayError, Stage},
    limits::{Excess, Remaining, Resource, Standing},
    proxy::{auth::Tenant, report::Report},
    types::Asked,
};

/// Charges a request to its key.
///
/// # Errors
/// `RateLimited` naming the limit; with a `Retry-After`, unless the request can never fit.
pub fn charge(tenant: Option<&Arc<Tenant>>, asked: Asked, report: &mut Report) -> Result<(), GatewayError> {
    let Some(limits) = tenant.and_then(|tenant| tenant.limits.as_ref()) else { return Ok(()) };
    match limits.charge(asked) {
        Ok(permit) => {
            report.permitted(permit, asked.prompt);
            Ok(())
        }
        Err(excess) => Err(refusal(&excess, asked)),
    }
}

fn refusal(excess: &Excess, asked: Asked) -> GatewayError {
    let Excess { resource, limit, retry_after } = *excess;
    let (key, prompt) = (resource.key(), asked.prompt);
    let message = match (resource, retry_after) {
        (Resource::Concurrent, _) => format!("this key has {limit} requests running, as many as its rate.{key} allows"),
        (_, None) => format!("the prompt has about {prompt} tokens; this key's rate.{key} of {limit} never allows it"),
        (_, Some(_)) => format!("this key is above its rate.{key} of {limit}; try again after the time in Retry-After"),
    };
    let error = GatewayError::new(ErrorKind::RateLimited, Stage::Admit, message);
    match retry_after {
        Some(after) => error.retry_after(after),
        None => error,
    }
}

/// Adds the `x-ratelimit-*` headers of the key's limits, as OpenAI's API has them.
pub fn tell(tenant: &Tenant, answer: &mut HeaderMap) {
    let Some(limits) = &tenant.limits else { return };
    let Standing { requests, tokens } = limits.standing();
    let parts = [
        (requests, ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"]),
        (tokens, ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"]),
    ];
    for (left, [limit, remaining, reset]) in parts {
        let Some(left) = left else { continue };
        let Remaining { limit: most, remaining: rest, reset: after } = left;
        answer.insert(HeaderName::from_static(limit), HeaderValue::from(most));
        answer.insert(HeaderName::from_static(remaining), HeaderValue::from(rest));
        if let Ok(after) = HeaderValue::from_str(&duration(after)) {
            answer.insert(HeaderName::from_static(reset), after);
        }
    }
}

/// As OpenAI writes it: `1s`, `6m0s`, `120ms`.
fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 60, seconds % 60) {
        (0, 0) => format!("{}ms", time.as_millis()),
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_reads_like_openais() {
        for (time, text) in [(0, "0ms"), (120, "120ms"), (1000, "1s"), (59_900, "59s"), (360_000, "6m0s")] {
            assert_eq!(duration(Duration::from_millis(time)), text);
        }
    }
}
