//! The definitions, in words: printed with `--explain` and in the HTML report.

/// One definition a line: name, meaning.
pub const DEFINITIONS: &[(&str, &str)] = &[
    ("intended time", "when the schedule, made from the seed before the run, wants the request sent"),
    ("wire time", "when the first byte of the request was written to an open connection"),
    ("arrival", "when the kernel received the bytes (plain TCP on Linux), else right after the read"),
    (
        "token",
        "a chunk with content, reasoning, tool call or text; role-only, empty, ping, usage and finish chunks are none",
    ),
    ("TTFT", "first token minus intended time (from schedule) or wire time (from wire)"),
    ("TTFO", "first token that is no reasoning minus wire time"),
    (
        "TPOT",
        "(last token - first token) / (tokens - tokens of the first chunk), one a request; none for an answer of one chunk",
    ),
    ("chunk gap", "time between two chunks with tokens, all requests pooled"),
    ("ITL", "chunk gap / tokens in the chunk, pooled; an estimate (~) unless the engine counts on every chunk"),
    ("E2E", "last token or finish reason, not the usage chunk, minus intended or wire time"),
    ("tokens", "usage.completion_tokens of the engine; the number of chunks where it is missing"),
    ("good", "a whole answer that met every objective; failed, timed-out and never-sent requests are not good"),
    ("interval", "95 %: order statistics for percentiles, Wilson on the effective sample size for shares"),
    ("(value)", "a percentile with fewer than ten samples beyond it: do not trust it"),
    ("send lag", "wire time - intended time - wait for the cap - connecting: the client's own delay"),
    ("read lag", "how long arrived bytes lay unread; figures are corrected for it"),
    ("valid", "lags p99 under 1 ms or 2 % of TTFT p50, the planned rate was sent, the host had CPU"),
];

/// The definitions for an 80-column terminal.
#[must_use]
pub fn text() -> String {
    let mut out = String::from("Definitions\n");
    for (name, meaning) in DEFINITIONS {
        let mut line = format!("  {name:<13} ");
        for word in meaning.split(' ') {
            if line.chars().count() + word.chars().count() > 79 {
                out.push_str(line.trim_end());
                out.push('\n');
                line = " ".repeat(16);
            }
            line.push_str(word);
            line.push(' ');
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_definitions_fit_eighty_columns() {
        assert!(super::text().lines().all(|line| line.chars().count() <= 80));
    }
}
