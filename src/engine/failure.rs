//! What an error answer says about the request and the replica.
//!
//! Three questions: may another replica be asked (did it run?), is the replica to blame, is it merely full? A 4xx is the
//! client's. A 503 never ran; with overload text the replica is full, without it is going away. Some 500s of a vLLM that
//! shuts down never ran either, and only their text tells.
//! Source: reference/engines.md sections 3, 6 and 7; DESIGN.md rule 7.

use super::error_code;

/// The class of an error answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The request is wrong, and would be anywhere. Nobody is blamed.
    Client,
    /// Full: the request never ran, another replica may have it. Nobody is blamed.
    Saturated,
    /// Going away: the request never ran, another replica may have it. Counts against the replica.
    ShuttingDown,
    /// It failed and may have run. Counts against the replica.
    Broken,
}

impl Failure {
    /// Whether the request certainly did not run.
    #[must_use]
    pub const fn never_ran(self) -> bool {
        matches!(self, Self::Saturated | Self::ShuttingDown)
    }

    /// Whether it counts against the replica.
    #[must_use]
    pub const fn blames(self) -> bool {
        matches!(self, Self::ShuttingDown | Self::Broken)
    }
}

/// Words of a replica that is full, in lower case.
const FULL: &[&str] = &[
    "currently busy",
    "queue is full",
    "overloaded",
    "too many requests",
    "at capacity",
    "rate limit",
    "higher priority request",
    "server is busy",
    "no capacity",
];

/// Words of a process that has stopped taking requests, in lower case.
const LEAVING: &[&str] = &["after shutdown", "shutting down", "server is draining"];

/// Most of a plain-text body that is searched.
const SEARCHED: usize = 8 * 1024;

/// The class of a status and body, or of status 200 and the data of an error event.
pub(super) fn classify(status: u16, body: &[u8]) -> Failure {
    let error = error_code::read(body);
    let message = error.as_ref().map_or_else(
        || String::from_utf8_lossy(body.get(..SEARCHED).unwrap_or(body)).to_lowercase(),
        |error| error.message.to_lowercase(),
    );
    let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
    let status = if status >= 400 { status } else { error.and_then(|error| error.status).unwrap_or(500) };
    match status {
        429 | 529 => Failure::Saturated,
        503 if says(FULL) => Failure::Saturated,
        503 => Failure::ShuttingDown,
        500 if says(LEAVING) => Failure::ShuttingDown,
        // TGI: a generation that failed is a 424. An engine that lacks an endpoint says 501.
        424 => Failure::Broken,
        400..=499 | 501 => Failure::Client,
        _ => Failure::Broken,
    }
}
