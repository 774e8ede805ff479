//! The definitions: from the stamps of one request to TTFT, TPOT, ITL and E2E.
//!
//! Every time is known twice: from the intended send time (`*_sched`, what a user of a loaded system waits) and from the
//! first byte on the wire. Role-only, empty, ping, usage and finish chunks are no tokens. TPOT leaves the first chunk's
//! tokens out on both sides of the division, and is undefined for an answer that came in one chunk.
//! Source: reference/loadtest.md F.2 to F.5; vLLM 0.32 `vllm bench serve` for [`Rules::Vllm`].

use serde::Serialize;

use super::{
    clock::{Nanos, ms},
    record::{Outcome, Record},
};

/// Whose definitions are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rules {
    /// This tool's.
    Own,
    /// Those of `vllm bench serve`: any chunk with `choices` is a token, time runs from before the connection.
    Vllm,
}

/// One request's figures, in ms.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Figures {
    /// First token, from the intended time.
    pub ttft_sched: Option<f64>,
    /// First token, from the wire.
    pub ttft: Option<f64>,
    /// First token that is no reasoning, from the wire.
    pub ttfo: Option<f64>,
    /// First event of any kind, from the wire.
    pub ttfe: Option<f64>,
    /// Head of the answer, from the wire.
    pub ttfb: Option<f64>,
    /// Time per output token after the first chunk.
    pub tpot: Option<f64>,
    /// Last token or finish, from the intended time.
    pub e2el_sched: Option<f64>,
    /// Last token or finish, from the wire.
    pub e2el: Option<f64>,
    /// Longest gap between token chunks.
    pub max_gap: Option<f64>,
}

fn since(start: Option<Nanos>, end: Option<Nanos>) -> Option<f64> {
    Some(ms(end?.saturating_sub(start?)))
}

impl Figures {
    /// The figures of a record. A failed one has none but those that its stamps allow.
    #[must_use]
    pub fn of(record: &Record, rules: Rules) -> Self {
        let intended = Some(record.intended);
        let wire = match rules {
            Rules::Own => record.written,
            Rules::Vllm => record.written.map(|_| record.started),
        };
        let (first, last) = (record.first_token(), record.last_token());
        let whole = record.outcome == Outcome::Ok;
        let end = if whole && rules == Rules::Own { record.finish.max(last) } else { last }.filter(|_| whole);
        let gaps = gaps(record).map(|(gap, _)| gap);
        Self {
            ttft_sched: since(intended, first),
            ttft: since(wire, first),
            ttfo: since(wire, record.first_content),
            ttfe: since(wire, record.first_event),
            ttfb: since(wire, record.head),
            tpot: if whole { tpot(record, rules) } else { None },
            e2el_sched: since(intended, end),
            e2el: since(wire, end),
            max_gap: gaps.max_by(f64::total_cmp),
        }
    }
}

/// Time per output token: (last - first) / (tokens - tokens of the first chunk).
fn tpot(record: &Record, rules: Rules) -> Option<f64> {
    let first = record.chunks.first()?;
    let known = if rules == Rules::Own && first.tokens > 0 { first.tokens } else { 1 };
    let rest = record.output_tokens().checked_sub(known).filter(|rest| *rest > 0)?;
    if record.chunks.len() < 2 {
        return None;
    }
    since(Some(first.at), record.last_token()).map(|span| span / rest as f64)
}

/// Gaps between token chunks in ms, each with the tokens that came with its end (0: unknown).
pub fn gaps(record: &Record) -> impl Iterator<Item = (f64, u64)> + '_ {
    let pairs = record.chunks.iter().zip(record.chunks.iter().skip(1));
    pairs.map(|(a, b)| (ms(b.at.saturating_sub(a.at)), b.tokens))
}

/// Tokens a chunk after the first carries, on average; 1 if the engine did not say.
#[must_use]
pub fn tokens_per_chunk(record: &Record) -> f64 {
    let chunks = record.chunks.len() as f64;
    if chunks < 2.0 {
        return 1.0;
    }
    ((record.output_tokens() as f64 - 1.0) / (chunks - 1.0)).max(1.0)
}

/// One objective of a request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Objective {
    /// Which figure.
    pub metric: Metric,
    /// Largest good value, in ms.
    pub limit_ms: f64,
}

/// A figure that may have an objective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// First token.
    Ttft,
    /// Time per output token.
    Tpot,
    /// Whole answer.
    E2el,
}

impl Metric {
    /// Name in flags and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Tpot => "tpot",
            Self::E2el => "e2el",
        }
    }
}

impl Objective {
    /// Whether this request met it. A failed request meets none; an answer of one chunk has no TPOT to miss.
    #[must_use]
    pub fn met(&self, record: &Record, figures: &Figures, rules: Rules) -> bool {
        if record.outcome != Outcome::Ok {
            return false;
        }
        let own = rules == Rules::Own;
        let value = match self.metric {
            Metric::Ttft if own => figures.ttft_sched,
            Metric::Ttft => figures.ttft,
            Metric::Tpot => return figures.tpot.is_none_or(|value| value <= self.limit_ms),
            Metric::E2el if own => figures.e2el_sched,
            Metric::E2el => figures.e2el,
        };
        value.is_some_and(|value| value <= self.limit_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Chunk;
    use super::*;
    use crate::dialect::event::Usage;

    const MS: Nanos = 1_000_000;

    fn record(chunks: &[(u64, u64)], tokens: Option<u64>) -> Record {
        Record {
            intended: 10 * MS,
            started: 12 * MS,
            written: Some(15 * MS),
            chunks: chunks.iter().map(|(at, tokens)| Chunk { at: at * MS, tokens: *tokens }).collect(),
            usage: Usage { output: tokens, ..Usage::default() },
            finish: chunks.last().map(|(at, _)| at * MS),
            outcome: Outcome::Ok,
            ..Record::default()
        }
    }

    #[test]
    fn times_run_from_the_intended_time_and_from_the_wire() {
        let figures = Figures::of(&record(&[(66, 0), (76, 0), (96, 0)], Some(3)), Rules::Own);
        assert_eq!((figures.ttft_sched, figures.ttft), (Some(56.0), Some(51.0)));
        assert_eq!((figures.e2el_sched, figures.e2el), (Some(86.0), Some(81.0)));
        assert_eq!((figures.tpot, figures.max_gap), (Some(15.0), Some(20.0)));
        assert_eq!(Figures::of(&record(&[(66, 0)], Some(1)), Rules::Vllm).ttft, Some(54.0));
    }

    #[test]
    fn the_tokens_of_the_first_chunk_are_left_out_where_they_are_known() {
        let four = [(50, 4), (90, 4), (130, 4)];
        assert_eq!(Figures::of(&record(&four, Some(12)), Rules::Own).tpot, Some(10.0));
        assert_eq!(Figures::of(&record(&four, Some(12)), Rules::Vllm).tpot, Some(80.0 / 11.0));
    }

    #[test]
    fn an_answer_of_one_token_has_no_tpot_and_misses_no_objective_on_it() {
        let one = record(&[(50, 0)], Some(1));
        let figures = Figures::of(&one, Rules::Own);
        assert_eq!(figures.tpot, None);
        let objective = Objective { metric: Metric::Tpot, limit_ms: 1.0 };
        assert!(objective.met(&one, &figures, Rules::Own));
    }

    #[test]
    fn no_token_is_no_ttft_rather_than_a_negative_one() {
        let silent = Record { outcome: Outcome::NoTokens, ..record(&[], Some(0)) };
        assert_eq!(Figures::of(&silent, Rules::Own).ttft, None);
        let objective = Objective { metric: Metric::Ttft, limit_ms: 1e9 };
        assert!(!objective.met(&silent, &Figures::of(&silent, Rules::Own), Rules::Own));
    }
}
