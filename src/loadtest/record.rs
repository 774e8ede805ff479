//! What is kept of one request: stamps, counts, and how it ended. Nothing is computed here but times.

use serde::Serialize;

use super::clock::{Nanos, ms};
use crate::dialect::event::Usage;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A whole answer.
    Ok,
    /// An answer without a single token.
    NoTokens,
    /// A status that is not 200.
    Status,
    /// An answer that is no event stream.
    NotAStream,
    /// An error in the stream.
    ErrorEvent,
    /// The stream ended without a finish.
    Truncated,
    /// The connection broke.
    Broken,
    /// No connection.
    Connect,
    /// Longer than the time limit.
    Timeout,
    /// The client left on purpose, as `--cancel-rate` asked.
    Cancelled,
    /// Under way when the run was ended by hand.
    Interrupted,
    /// Never sent: the run was over before its turn.
    #[default]
    Unsent,
}

impl Outcome {
    /// Whether it says something about the target: what the client did to it on purpose does not.
    #[must_use]
    pub const fn counts(self) -> bool {
        !matches!(self, Self::Cancelled | Self::Interrupted)
    }
}

/// One chunk that carried tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// When it arrived.
    pub at: Nanos,
    /// Tokens in it, where the engine said so; else 0.
    pub tokens: u64,
}

/// One request.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// Order in the schedule.
    pub index: usize,
    /// Turn of its conversation.
    pub turn: usize,
    /// Group of its prefix.
    pub group: usize,
    /// Index of its tenant.
    pub tenant: Option<usize>,
    /// Prompt tokens asked for.
    pub input: usize,
    /// Answer tokens asked for.
    pub output: usize,
    /// Read slowly on purpose.
    pub slow: bool,
    /// When it should have been sent.
    pub intended: Nanos,
    /// When it got its place under the cap and asked for a connection.
    pub started: Nanos,
    /// Time spent waiting for the cap.
    pub cap_wait: Nanos,
    /// Time spent connecting; 0 on a connection that was open.
    pub connect: Nanos,
    /// First byte of the request on the wire.
    pub written: Option<Nanos>,
    /// Head of the answer.
    pub head: Option<Nanos>,
    /// First event of any kind.
    pub first_event: Option<Nanos>,
    /// First token that is no reasoning.
    pub first_content: Option<Nanos>,
    /// Last token or finish reason.
    pub finish: Option<Nanos>,
    /// When the exchange was over, whatever came of it.
    pub ended: Nanos,
    /// Chunks that carried tokens.
    pub chunks: Vec<Chunk>,
    /// What the engine counted.
    pub usage: Usage,
    /// Status of the answer.
    pub status: Option<u16>,
    /// `Retry-After`, in seconds.
    pub retry_after: Option<f64>,
    /// How it ended.
    pub outcome: Outcome,
    /// What the error said.
    pub error: Option<String>,
    /// `X-Gateway-Replica`, if the gateway tells.
    pub replica: Option<String>,
    /// Longest time its bytes lay unread; `None` without kernel times.
    pub read_lag: Option<Nanos>,
}

impl Record {
    /// First token.
    #[must_use]
    pub fn first_token(&self) -> Option<Nanos> {
        self.chunks.first().map(|chunk| chunk.at)
    }

    /// Last token.
    #[must_use]
    pub fn last_token(&self) -> Option<Nanos> {
        self.chunks.last().map(|chunk| chunk.at)
    }

    /// Delay that the client itself caused before sending, in ms.
    #[must_use]
    pub fn send_lag(&self) -> Option<f64> {
        let late = self.written?.saturating_sub(self.intended);
        Some(ms(late.saturating_sub(self.cap_wait).saturating_sub(self.connect)))
    }

    /// Answer tokens by the engine's count, else the number of chunks.
    #[must_use]
    pub fn output_tokens(&self) -> u64 {
        self.usage.output.filter(|_| !self.chunks.is_empty()).unwrap_or(self.chunks.len() as u64)
    }

    /// Prompt tokens by the engine's count, else what was asked for.
    #[must_use]
    pub fn input_tokens(&self) -> u64 {
        self.usage.prompt.unwrap_or(self.input as u64)
    }
}
