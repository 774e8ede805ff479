//! `HdrHistogram` V2 interval log: one second an interval, tags `ttft`, `icl`, `e2el`, in microseconds.
//!
//! Histograms of several clients can be merged; percentiles cannot.

use std::{
    io::{self, Write},
    time::{Duration, SystemTime},
};

use hdrhistogram::{
    Histogram,
    serialization::{
        V2DeflateSerializer,
        interval_log::{IntervalLogWriterBuilder, Tag},
    },
};

use crate::loadtest::{
    clock::{Nanos, seconds, whole},
    measure::{Figures, Rules},
    record::Record,
};

/// Writes the log of all records.
///
/// # Errors
/// What the file says.
pub fn write(out: &mut impl Write, records: &[Record], rules: Rules) -> io::Result<()> {
    let mut serializer = V2DeflateSerializer::new();
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment("gateway loadtest, values in microseconds")
        .with_start_time(SystemTime::now())
        .begin_log_with(out, &mut serializer)?;
    let last = records.iter().map(|record| record.ended).max().unwrap_or(0);
    for second in 0..=whole(seconds(last)) {
        for (tag, values) in interval(records, second, rules) {
            let Some(tag) = Tag::new(tag) else { continue };
            let Ok(mut histogram) = Histogram::<u64>::new(3) else { continue };
            for ms in &values {
                // Grows as needed: 3 digits hold any time.
                histogram.record(whole(ms * 1000.0) as u64).map_err(io::Error::other)?;
            }
            let (from, length) = (Duration::from_secs(second as u64), Duration::from_secs(1));
            let written = log.write_histogram(&histogram, from, length, Some(tag));
            written.map_err(|error| io::Error::other(format!("{error:?}")))?;
        }
    }
    Ok(())
}

/// Values whose moment lies in this second of the run.
fn interval(records: &[Record], second: usize, rules: Rules) -> [(&'static str, Vec<f64>); 3] {
    let here = |at: Option<Nanos>| at.is_some_and(|at| at / 1_000_000_000 == second as u64);
    let (mut ttft, mut icl, mut e2el) = (Vec::new(), Vec::new(), Vec::new());
    for record in records {
        let figures = Figures::of(record, rules);
        ttft.extend(figures.ttft_sched.filter(|_| here(record.first_token())));
        e2el.extend(figures.e2el_sched.filter(|_| here(Some(record.ended))));
        let pairs = record.chunks.iter().zip(record.chunks.iter().skip(1)).filter(|(_, b)| here(Some(b.at)));
        icl.extend(pairs.map(|(a, b)| crate::loadtest::clock::ms(b.at.saturating_sub(a.at))));
    }
    [("ttft", ttft), ("icl", icl), ("e2el", e2el)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadtest::record::{Chunk, Outcome};

    #[test]
    fn the_log_is_read_back_by_the_library_that_defines_it() {
        use hdrhistogram::serialization::{
            Deserializer,
            interval_log::{IntervalLogIterator, LogEntry},
        };
        let at = |ms: u64| Chunk { at: ms * 1_000_000, tokens: 1 };
        let record = Record {
            chunks: vec![at(50), at(60)],
            written: Some(1),
            outcome: Outcome::Ok,
            ended: 61_000_000,
            ..Record::default()
        };
        let mut log = Vec::new();
        write(&mut log, &[record], Rules::Own).unwrap();

        let mut found = Vec::new();
        for entry in IntervalLogIterator::new(&log) {
            if let LogEntry::Interval(entry) = entry.unwrap() {
                let bytes = base64_of(entry.encoded_histogram());
                let histogram: Histogram<u64> = Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap();
                found.push((entry.tag().unwrap().as_str().to_owned(), histogram.max()));
            }
        }
        found.truncate(2);
        let near = |value: u64, of: u64| value.abs_diff(of) <= of / 1000;
        assert!(found[0].0 == "ttft" && near(found[0].1, 50_000), "{found:?}");
        assert!(found[1].0 == "icl" && near(found[1].1, 10_000), "{found:?}");
    }

    /// Standard base64, enough for the test.
    fn base64_of(text: &str) -> Vec<u8> {
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let (mut out, mut bits, mut count) = (Vec::new(), 0_u32, 0);
        for letter in text.bytes().filter(|letter| *letter != b'=') {
            bits = bits << 6
                | alphabet.iter().position(|one| *one == letter).map(|at| u32::try_from(at).unwrap()).unwrap();
            count += 6;
            if count >= 8 {
                count -= 8;
                out.push((bits >> count & 255) as u8);
            }
        }
        out
    }
}
