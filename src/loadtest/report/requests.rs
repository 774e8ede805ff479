//! One line of JSON a request, with all its stamps: enough to compute every figure anew.

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::loadtest::{
    clock::ms,
    measure::{Figures, Rules},
    record::Record,
};

/// A record as JSON. Times are in ms from the start of the schedule.
#[must_use]
pub fn line(record: &Record, level: &str, rules: Rules) -> Value {
    let figures = Figures::of(record, rules);
    json!({
        "level": level, "index": record.index, "turn": record.turn, "group": record.group, "tenant": record.tenant,
        "outcome": record.outcome, "status": record.status, "error": record.error, "retry_after": record.retry_after,
        "replica": record.replica, "slow": record.slow,
        "input_asked": record.input, "output_asked": record.output,
        "input_tokens": record.usage.prompt, "output_tokens": record.usage.output, "cached_tokens": record.usage.cached,
        "intended_ms": ms(record.intended), "started_ms": ms(record.started), "wire_ms": record.written.map(ms),
        "head_ms": record.head.map(ms), "first_event_ms": record.first_event.map(ms),
        "first_content_ms": record.first_content.map(ms), "ended_ms": ms(record.ended),
        "cap_wait_ms": ms(record.cap_wait), "connect_ms": ms(record.connect),
        "send_lag_ms": record.send_lag(), "read_lag_ms": record.read_lag.map(ms),
        "ttft_sched_ms": figures.ttft_sched, "ttft_ms": figures.ttft, "tpot_ms": figures.tpot,
        "e2el_sched_ms": figures.e2el_sched, "e2el_ms": figures.e2el, "max_gap_ms": figures.max_gap,
        "chunks_ms": record.chunks.iter().map(|chunk| ms(chunk.at)).collect::<Vec<_>>(),
        "chunk_tokens": record.chunks.iter().map(|chunk| chunk.tokens).collect::<Vec<_>>(),
    })
}

/// Writes all records of a level.
///
/// # Errors
/// What the file says.
pub fn write(out: &mut impl Write, records: &[Record], level: &str, rules: Rules) -> io::Result<()> {
    for record in records {
        writeln!(out, "{}", line(record, level, rules))?;
    }
    Ok(())
}
