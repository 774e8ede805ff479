//! Reads traces: when requests come, how long they are, and which prompt blocks they share.
//!
//! One JSON object a line. Mooncake: `timestamp` in milliseconds, `hash_ids` of 512-token blocks. Bailian (told by its
//! `chat_id`): `timestamp` in seconds, 16-token blocks. A trace says nothing of the text of a prompt, so what serves
//! as a block for the gateway is a block of the trace.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Tokens in a block of a Mooncake trace.
const MOONCAKE_BLOCK: usize = 512;
/// Tokens in a block of a Bailian trace.
const BAILIAN_BLOCK: usize = 16;
/// Longest prompt and output that is believed: beyond every model.
const MOST_TOKENS: u64 = 1 << 24;

/// One request of a trace.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// Time after the first one.
    pub at: Duration,
    /// Prompt tokens, at least 1.
    pub input: usize,
    /// Output tokens, at least 1.
    pub output: usize,
    /// Chained hash of each whole block.
    pub hashes: Arc<[u64]>,
}

/// Requests in the order in which they come.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// Tokens in a block.
    pub block_tokens: usize,
    /// The requests.
    pub arrivals: Vec<Arrival>,
}

/// A line that is no request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct TraceError {
    /// Number of the line, from 1.
    pub line: usize,
    /// The field, its value, and what it should be.
    pub what: String,
}

impl Trace {
    /// Reads at most `most` requests.
    ///
    /// # Errors
    /// A line is no JSON object, a field is missing or has the wrong kind of value, or there is no request at all.
    pub fn parse(text: &str, most: usize) -> Result<Self, TraceError> {
        let mut trace = Self::default();
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        for (number, line) in lines.take(most) {
            let fail = |what| TraceError { line: number + 1, what };
            let (block, arrival) = request(line, trace.block_tokens).map_err(fail)?;
            trace.block_tokens = block;
            trace.arrivals.push(arrival);
        }
        if trace.arrivals.is_empty() {
            return Err(TraceError { line: 1, what: "the trace has no request".to_owned() });
        }
        trace.arrivals.sort_by_key(|arrival| arrival.at);
        let first = trace.arrivals.first().map_or(Duration::ZERO, |arrival| arrival.at);
        for arrival in &mut trace.arrivals {
            arrival.at -= first;
        }
        Ok(trace)
    }

    /// The same requests, `factor` times as fast.
    #[must_use]
    pub fn faster(mut self, factor: f64) -> Self {
        for arrival in &mut self.arrivals {
            arrival.at = arrival.at.div_f64(factor);
        }
        self
    }
}

fn request(line: &str, before: usize) -> Result<(usize, Arrival), String> {
    let value: Value = serde_json::from_str(line).map_err(|error| format!("no JSON: {error}"))?;
    let Value::Object(fields) = value else { return Err("not a JSON object".to_owned()) };
    let bailian = fields.contains_key("chat_id");
    let block = if bailian { BAILIAN_BLOCK } else { MOONCAKE_BLOCK };
    if before != 0 && before != block {
        return Err("a Mooncake and a Bailian trace in one file; split it".to_owned());
    }
    let timestamp = number(&fields, "timestamp")?;
    let seconds = if bailian { timestamp } else { timestamp / 1e3 };
    let at = Duration::try_from_secs_f64(seconds).map_err(|_| format!("timestamp is {timestamp}, not a time"))?;
    let input = tokens(&fields, "input_length")?.max(1);
    let output = tokens(&fields, "output_length")?.max(1);
    let ids = ids(&fields)?;
    if ids.len() > input.div_ceil(block) {
        let most = input.div_ceil(block);
        return Err(format!(
            "hash_ids has {} blocks of {block} tokens, input_length {input} has room for {most}",
            ids.len()
        ));
    }
    let mut hash = 0;
    let whole = ids.iter().take(input / block).map(|id| {
        hash = xxh3_64_with_seed(&id.to_le_bytes(), hash);
        hash
    });
    Ok((block, Arrival { at, input, output, hashes: whole.collect() }))
}

fn field<'a>(fields: &'a Map<String, Value>, name: &str) -> Result<&'a Value, String> {
    let known = || fields.keys().take(12).map(String::as_str).collect::<Vec<_>>().join(", ");
    fields.get(name).ok_or_else(|| format!("no field {name}; it has {}", known()))
}

fn number(fields: &Map<String, Value>, name: &str) -> Result<f64, String> {
    let value = field(fields, name)?;
    value.as_f64().ok_or_else(|| format!("{name} is {}, not a number", shown(value)))
}

fn tokens(fields: &Map<String, Value>, name: &str) -> Result<usize, String> {
    let value = field(fields, name)?;
    let count = value.as_u64().filter(|count| *count <= MOST_TOKENS).and_then(|count| usize::try_from(count).ok());
    count.ok_or_else(|| format!("{name} is {}, not a whole number from 0 to {MOST_TOKENS}", shown(value)))
}

fn ids(fields: &Map<String, Value>) -> Result<Vec<u64>, String> {
    let value = field(fields, "hash_ids")?;
    let list = value.as_array().ok_or_else(|| format!("hash_ids is {}, not a list", shown(value)))?;
    let id = |(at, id): (usize, &Value)| {
        id.as_u64()
            .or_else(|| id.as_i64().map(i64::cast_unsigned))
            .ok_or_else(|| format!("hash_ids[{at}] is {}, not a whole number", shown(id)))
    };
    list.iter().enumerate().map(id).collect()
}

/// A value for an error message, cut short.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"timestamp": 500, "input_length": 1100, "output_length": 3, "hash_ids": [7, 8, 9]}"#;

    #[test]
    fn a_mooncake_line_has_milliseconds_and_whole_blocks_of_512() {
        let later = GOOD.replace("500", "2500").replace("8, 9", "8, 10");
        let trace = Trace::parse(&format!("{later}\n\n{GOOD}\n"), 9).unwrap();

        assert_eq!(trace.block_tokens, 512);
        let [first, second] = &trace.arrivals[..] else { panic!("{trace:?}") };
        assert_eq!((first.at, second.at), (Duration::ZERO, Duration::from_secs(2)), "in order, from zero");
        assert_eq!((first.input, first.output, first.hashes.len()), (1100, 3, 2), "1,100 tokens are two whole blocks");
        assert_eq!(first.hashes, second.hashes, "they differ in the partial block only");
        assert_eq!(trace.faster(4.0).arrivals[1].at, Duration::from_millis(500));
    }

    #[test]
    fn a_bailian_line_has_seconds_and_blocks_of_16() {
        let line = |time: f64, ids: &str| {
            format!(
                r#"{{"chat_id": 1, "parent_chat_id": -1, "timestamp": {time}, "input_length": 33, "output_length": 2,
                "type": "text", "turn": 1, "hash_ids": {ids}}}"#
            )
            .replace('\n', " ")
        };
        let trace = Trace::parse(&[line(0.25, "[1, 2, 3]"), line(1.5, "[2, 1, 3]")].join("\n"), 9).unwrap();

        assert_eq!(trace.block_tokens, 16);
        assert_eq!(trace.arrivals[1].at, Duration::from_millis(1250));
        assert_eq!(trace.arrivals[0].hashes.len(), 2);
        assert_ne!(trace.arrivals[0].hashes[1], trace.arrivals[1].hashes[1], "equal hashes mean equal beginnings");
    }

    #[test]
    fn a_bad_line_is_named_with_its_field() {
        let cases = [
            ("{", "line 2: no JSON"),
            ("[1]", "line 2: not a JSON object"),
            (r#"{"timestamp": 1, "input_length": 2, "hash_ids": []}"#, "no field output_length; it has hash_ids"),
            (&GOOD.replace("1100", "-4"), "input_length is -4, not a whole number"),
            (&GOOD.replace("500", "\"x\""), "timestamp is \"x\", not a number"),
            (&GOOD.replace("500", "-1"), "timestamp is -1, not a time"),
            (&GOOD.replace("[7, 8, 9]", "7"), "hash_ids is 7, not a list"),
            (&GOOD.replace("8,", "null,"), "hash_ids[1] is null"),
            (&GOOD.replace("1100", "600"), "hash_ids has 3 blocks of 512 tokens, input_length 600 has room for 2"),
        ];
        for (line, words) in cases {
            let error = Trace::parse(&format!("{GOOD}\n{line}"), 9).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(Trace::parse("\n", 9).unwrap_err().to_string(), "line 1: the trace has no request");
        assert_eq!(Trace::parse(&format!("{GOOD}\nrubbish"), 1).unwrap().arrivals.len(), 1, "the rest is not read");
    }
}
