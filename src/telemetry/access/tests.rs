//! The access log: the line, and what happens when its reader stops.

use std::sync::{
    Arc,
    mpsc::{Sender, channel},
};

use metrics::{CounterFn, atomics::AtomicU64};

use super::*;

fn record(request_id: &str) -> AccessRecord<'_> {
    AccessRecord {
        time: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
        request_id,
        trace_id: Some("4bf92f3577b34da6a3ce929d0e0e4736"),
        model: "docs \"chat\"\n",
        endpoint: "chat",
        stream: true,
        key: None,
        route: Some("replica"),
        target: None,
        replica: Some("10.0.0.1:8000"),
        reason: Some("hit"),
        attempts: 1,
        predicted_cached_tokens: Some(64),
        reported_cached_tokens: None,
        prompt_tokens: Some(100),
        output_tokens: Some(7),
        ttft: Some(Duration::from_micros(120_500)),
        tpot: None,
        duration: Duration::from_secs(2),
        status: 200,
        outcome: "success",
        error: None,
    }
}

/// Hands each write on, and waits for leave first.
struct Sink {
    allowed: Receiver<()>,
    written: Sender<Vec<u8>>,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.allowed.recv().map_err(io::Error::other)?;
        self.written.send(bytes.to_vec()).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn counter() -> (Counter, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    CounterFn::increment(&*count, 0);
    (Counter::from_arc(Arc::clone(&count)), count)
}

fn value(count: &AtomicU64) -> u64 {
    count.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn a_record_is_one_json_line_without_its_absent_fields() {
    let (dropped, _) = counter();
    let (allow, allowed) = channel();
    let (written, lines) = channel();
    let writer = Writer::to(Sink { allowed, written }, dropped, 4).unwrap();
    allow.send(()).unwrap();

    writer.write(&record("r-1"));

    let line = String::from_utf8(lines.recv().unwrap()).unwrap();
    assert!(line.ends_with('\n') && line.matches('\n').count() == 1, "{line}");
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(value["time"], "2023-11-14T22:13:20.123Z");
    assert_eq!(value["model"], "docs \"chat\"\n");
    assert_eq!(value["ttft_ms"], 120.5);
    assert_eq!(value["duration_ms"], 2000.0);
    assert!(value.get("tpot_ms").is_none() && value.get("error").is_none());
}

#[test]
fn a_blocked_reader_costs_lines_not_time() {
    let (dropped, count) = counter();
    let (allow, allowed) = channel();
    let (written, lines) = channel();
    let writer = Writer::to(Sink { allowed, written }, dropped, 4).unwrap();

    // One batch is in the blocked write, four lines wait, the rest is dropped; how many the batch took is a race.
    for _ in 0..100 {
        writer.write(&record("r"));
    }
    let lost = value(&count);

    assert!((90..=96).contains(&lost), "{lost} of 100 lines dropped");
    for _ in 0..100 {
        allow.send(()).unwrap();
    }
    drop(writer);
    let kept = lines.try_iter().map(|bytes| bytes.iter().filter(|byte| **byte == b'\n').count() as u64).sum::<u64>();
    assert_eq!(kept + lost, 100, "every line is written or counted");
}

#[test]
fn lines_that_cannot_be_written_are_counted() {
    let (dropped, count) = counter();
    let (written, lines) = channel();
    drop(lines);
    let (allow, allowed) = channel();
    allow.send(()).unwrap();
    let writer = Writer::to(Sink { allowed, written }, dropped, 4).unwrap();

    writer.write(&record("r"));
    drop(writer);

    assert_eq!(value(&count), 1);
}

#[test]
fn dropping_the_writer_lets_the_last_lines_out() {
    let (dropped, count) = counter();
    let (allow, allowed) = channel();
    let (written, lines) = channel();
    let writer = Writer::to(Sink { allowed, written }, dropped, 64).unwrap();
    for _ in 0..64 {
        allow.send(()).unwrap();
    }
    for _ in 0..10 {
        writer.write(&record("r"));
    }

    drop(writer);

    let kept = lines.try_iter().flatten().filter(|byte| *byte == b'\n').count();
    assert_eq!((kept, value(&count)), (10, 0));
}
