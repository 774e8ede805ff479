//! Traces: who arrived when, with how long a prompt and answer. None of the formats carries text.
//!
//! Told apart by their first line: Mooncake and Bailian JSONL (`timestamp`, `input_length`, `output_length`,
//! `hash_ids`; Mooncake in milliseconds and blocks of 512 tokens, Bailian in seconds and blocks of 16, with `type` or
//! `chat_id`), vLLM timed traces (the same keys in seconds, no hash or blocks of 16), Azure CSV
//! (`TIMESTAMP,ContextTokens,GeneratedTokens`) and BurstGPT CSV (`Timestamp`, `Request tokens`, `Response tokens`).

use serde_json::Value;

/// One arrival.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Seconds from the first row.
    pub at: f64,
    /// Prompt tokens.
    pub input: usize,
    /// Answer tokens.
    pub output: usize,
    /// Hashes of the prompt's blocks: equal beginnings are equal text.
    pub blocks: Vec<u64>,
    /// Tokens of one block.
    pub block_tokens: usize,
}

/// Why a trace cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// No format has such a first line.
    #[error("its first line is no Mooncake, Bailian or vLLM JSON, nor an Azure or BurstGPT CSV header: {0:?}")]
    Unknown(String),
    /// A row lacks something.
    #[error("line {line}: {what}")]
    Row {
        /// Line number, from 1.
        line: usize,
        /// What is missing or wrong.
        what: String,
    },
    /// Nothing in it.
    #[error("it has no rows")]
    Empty,
}

/// Reads a trace of any known format; rows sorted by time, the first at zero.
///
/// # Errors
/// An unknown format, a broken row, or no rows.
pub fn read(text: &str) -> Result<Vec<Row>, TraceError> {
    let first = text.lines().find(|line| !line.trim().is_empty()).ok_or(TraceError::Empty)?;
    let mut rows = if first.trim_start().starts_with('{') { json_rows(text)? } else { csv_rows(first, text)? };
    rows.sort_by(|a, b| a.at.total_cmp(&b.at));
    let start = rows.first().ok_or(TraceError::Empty)?.at;
    rows.iter_mut().for_each(|row| row.at -= start);
    Ok(rows)
}

fn json_rows(text: &str) -> Result<Vec<Row>, TraceError> {
    let mut rows = Vec::new();
    let mut seconds = None;
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let fail = |what: &str| TraceError::Row { line: at + 1, what: what.to_owned() };
        let row: Value = serde_json::from_str(line).map_err(|error| fail(&error.to_string()))?;
        let number = |name: &str| row.get(name).and_then(Value::as_f64).ok_or_else(|| fail(&format!("no `{name}`")));
        let time = number("timestamp")?;
        let blocks: Vec<u64> = row
            .get("hash_ids")
            .and_then(Value::as_array)
            .map(|ids| ids.iter().filter_map(Value::as_u64).collect())
            .unwrap_or_default();
        let input = super::clock::whole(number("input_length")?);
        // Mooncake alone has 512-token blocks, and it counts milliseconds.
        let small = *seconds.get_or_insert_with(|| {
            row.get("chat_id").is_some() || row.get("type").is_some() || blocks.is_empty() || blocks.len() * 64 > input
        });
        let (unit, block_tokens) = if small { (1.0, 16) } else { (1000.0, 512) };
        let output = super::clock::whole(number("output_length")?).max(1);
        rows.push(Row { at: time / unit, input: input.max(1), output, blocks, block_tokens });
    }
    Ok(rows)
}

/// Columns of a CSV by the words in its header.
struct Columns {
    time: usize,
    input: usize,
    output: usize,
    kind: Option<usize>,
}

fn columns(header: &str) -> Option<Columns> {
    let names: Vec<String> = header.split(',').map(|name| name.trim().to_ascii_lowercase()).collect();
    let find = |all: &[&str]| names.iter().position(|name| all.contains(&name.as_str()));
    Some(Columns {
        time: find(&["timestamp"])?,
        input: find(&["contexttokens", "request tokens"])?,
        output: find(&["generatedtokens", "response tokens"])?,
        kind: find(&["log type"]),
    })
}

fn csv_rows(header: &str, text: &str) -> Result<Vec<Row>, TraceError> {
    let columns = columns(header).ok_or_else(|| TraceError::Unknown(header.chars().take(60).collect()))?;
    let mut rows = Vec::new();
    for (at, line) in text.lines().enumerate().skip(1).filter(|(_, line)| !line.trim().is_empty()) {
        let fail = |what: String| TraceError::Row { line: at + 1, what };
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let cell = |index: usize| cells.get(index).copied().ok_or_else(|| fail("too few columns".to_owned()));
        let count = |index: usize| {
            let text = cell(index)?;
            text.parse::<f64>().map(super::clock::whole).map_err(|_| fail(format!("{text:?} is no token count")))
        };
        let time = cell(columns.time)?;
        let time = seconds(time).ok_or_else(|| fail(format!("{time:?} is no time")))?;
        let output = count(columns.output)?;
        // BurstGPT marks a failed call by an answer of no tokens.
        if columns.kind.is_some() && output == 0 {
            continue;
        }
        let input = count(columns.input)?.max(1);
        rows.push(Row { at: time, input, output: output.max(1), blocks: Vec::new(), block_tokens: 16 });
    }
    Ok(rows)
}

/// `12.5`, or `2023-11-16 18:17:03.9799600` (Azure) as seconds since the month of year 0.
fn seconds(text: &str) -> Option<f64> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut parts = date.split('-').map(str::parse::<i64>);
    let (year, month, day) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
    let time = time.split(['+', 'Z']).next()?;
    let mut clock = time.split(':');
    let (hour, minute): (f64, f64) = (clock.next()?.parse().ok()?, clock.next()?.parse().ok()?);
    let second: f64 = clock.next()?.parse().ok()?;
    Some(days(year, month, day) as f64 * 86_400.0 + hour * 3600.0 + minute * 60.0 + second)
}

/// Days of the proleptic Gregorian calendar, from a fixed origin (Howard Hinnant's `days_from_civil`).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year - era * 400;
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mooncake_line_has_milliseconds_and_512_token_blocks() {
        let text = "{\"timestamp\": 1000, \"input_length\": 6758, \"output_length\": 500, \"hash_ids\": [0,1,2,3,4,5,6,7,8,9,10,11,12,13]}\n\
                    {\"timestamp\": 4000, \"input_length\": 7322, \"output_length\": 490, \"hash_ids\": [0, 14]}\n";
        let rows = read(text).unwrap();
        assert_eq!((rows[0].at, rows[1].at), (0.0, 3.0));
        assert_eq!((rows[0].input, rows[0].output, rows[0].blocks.len(), rows[0].block_tokens), (6758, 500, 14, 512));
    }

    #[test]
    fn bailian_and_vllm_timed_traces_have_seconds() {
        let bailian = "{\"chat_id\":1,\"parent_chat_id\":-1,\"timestamp\":0.5,\"input_length\":32,\"output_length\":9,\"type\":\"text\",\"turn\":1,\"hash_ids\":[5,6]}\n{\"chat_id\":2,\"timestamp\":2.0,\"input_length\":16,\"output_length\":1,\"hash_ids\":[7]}";
        let rows = read(bailian).unwrap();
        assert_eq!((rows[1].at, rows[1].block_tokens), (1.5, 16));
        let vllm = "{\"timestamp\":3,\"input_length\":100,\"output_length\":10}\n{\"timestamp\":4,\"input_length\":100,\"output_length\":10}";
        assert_eq!(read(vllm).unwrap()[1].at, 1.0);
    }

    #[test]
    fn an_azure_row_is_read_across_a_month() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-02-29 23:59:59.5000000,374,44\n2024-03-01 00:00:01.0000000,396,109\n";
        let rows = read(text).unwrap();
        assert!((rows[1].at - 1.5).abs() < 1e-3, "{rows:?}");
        assert_eq!((rows[1].input, rows[1].output), (396, 109));
        let offset = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n";
        assert_eq!(read(offset).unwrap()[0].input, 2162);
    }

    #[test]
    fn burstgpt_failures_are_left_out() {
        let text = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n118,GPT-4,417,276,693,API log\n";
        let rows = read(text).unwrap();
        assert_eq!(rows.iter().map(|row| (row.at, row.input)).collect::<Vec<_>>(), [(0.0, 472), (113.0, 417)]);
    }

    #[test]
    fn a_broken_trace_says_which_line() {
        assert!(read("time,tokens\n1,2").unwrap_err().to_string().contains("first line"));
        let error = read("{\"timestamp\":1,\"input_length\":2,\"output_length\":3}\n{\"timestamp\":1}").unwrap_err();
        assert_eq!(error.to_string(), "line 2: no `input_length`");
        assert_eq!(read("\n"), Err(TraceError::Empty));
    }
}
