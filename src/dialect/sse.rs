//! Watches a server-sent-event stream as its bytes pass, and takes out the one chunk that the gateway itself asked for.
//!
//! Bytes are never decoded and encoded again: what leaves are slices of what came. A piece of an event is passed on at
//! once; only after a finish reason, when the usage chunk may be next, is an incomplete event held until it is whole.
//! Lines end with LF, CRLF or CR (WHATWG HTML, 9.2.5); comments are no events. Past [`EVENT_CAP`] bytes without a blank
//! line the observer gives that event up and the relay goes on.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use memchr::memchr2;
use smallvec::SmallVec;

use crate::dialect::event::{self, Meaning};

/// Longest event that is read; longer ones are relayed unread.
pub const EVENT_CAP: usize = 1 << 20;

/// Frames to pass on for one frame received; rarely more than one.
pub type Frames = SmallVec<[Bytes; 2]>;

/// Receives what the events of a stream mean, in order.
pub trait EventSink {
    /// A whole event with data. `payload` is its data lines joined with LF.
    fn event(&mut self, meaning: &Meaning, payload: &[u8]);
    /// An event too long to be read.
    fn oversize(&mut self) {}
    /// Whether an event must be whole before any of it is passed on: the next one may be refused.
    fn holds(&self) -> bool {
        false
    }
    /// Whether the event just read, and all behind it, must not be passed on.
    fn refuses(&self) -> bool {
        false
    }
}

/// What became of a whole event.
enum Ended {
    /// It is taken out of the stream.
    Hidden,
    /// It goes to the client; first its part from earlier frames that was held.
    Passed(Option<Bytes>),
}

/// Incremental scanner of one stream.
#[derive(Debug)]
pub struct Scanner {
    /// Take out the usage-only chunk: the client did not ask for it.
    hide_usage: bool,
    /// The bytes of the current, incomplete event.
    carry: BytesMut,
    /// How many of them were passed on already.
    passed: usize,
    /// The current event is over the cap: count lines, read nothing.
    blind: bool,
    /// The current line has bytes.
    line_open: bool,
    /// First byte of the current line was a colon.
    comment: bool,
    /// The last byte was CR: an LF that follows belongs to it.
    after_cr: bool,
    /// Whether the bytes of `after_cr`'s event were dropped, so that its LF is dropped too.
    dropped_last: bool,
    finish_seen: bool,
    /// The next event must be whole before any of it is passed on.
    whole: bool,
    scratch: Vec<u8>,
}

/// What a push saw beside events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that belong to no comment: the engine is working. Keep-alive comments do not set it.
    pub engine: bool,
}

impl Scanner {
    /// A scanner at the start of a stream.
    #[must_use]
    pub fn new(hide_usage: bool) -> Self {
        Self {
            hide_usage,
            carry: BytesMut::new(),
            passed: 0,
            blind: false,
            line_open: false,
            comment: false,
            after_cr: false,
            dropped_last: false,
            finish_seen: false,
            whole: false,
            scratch: Vec::new(),
        }
    }

    /// Whether the client has a part of an event and misses the rest.
    #[must_use]
    pub fn inside_event(&self) -> bool {
        self.blind || self.passed > 0
    }

    /// Reads one frame; adds what may be passed on to `out`.
    pub fn push(&mut self, frame: &Bytes, sink: &mut impl EventSink, out: &mut Frames) -> Progress {
        let mut progress = Progress::default();
        // `kept` starts the run that will be passed on, `event` the current event inside this frame.
        let (mut kept, mut event, mut at) = (0, 0, 0);
        if self.after_cr && frame.first() == Some(&b'\n') {
            at = 1;
            if self.carry.is_empty() {
                event = 1;
                kept = usize::from(self.dropped_last);
            }
        }
        self.after_cr &= frame.is_empty();
        while let Some(line) = frame.get(at..).filter(|rest| !rest.is_empty()) {
            if !self.line_open {
                self.comment = line.first() == Some(&b':');
            }
            let Some(end) = memchr2(b'\n', b'\r', line) else {
                progress.engine |= !self.comment && (self.line_open || is_work(line));
                self.line_open = true;
                break;
            };
            let blank = end == 0 && !self.line_open;
            let whole = line.get(..end).unwrap_or_default();
            progress.engine |= !blank && !self.comment && (self.line_open || is_work(whole));
            self.line_open = false;
            at += end + 1;
            if line.get(end) == Some(&b'\r') {
                match frame.get(at) {
                    Some(b'\n') => at += 1,
                    Some(_) => {}
                    None => self.after_cr = true,
                }
            }
            if blank {
                match self.complete(frame, event..at, sink) {
                    Ended::Hidden => {
                        pass(frame, kept..event, out);
                        kept = at;
                        self.dropped_last = true;
                    }
                    Ended::Passed(held) => {
                        out.extend(held);
                        self.dropped_last = false;
                    }
                }
                event = at;
            }
        }
        self.whole = sink.holds();
        self.keep_tail(frame, event, kept, out);
        progress
    }

    /// An event ended: `range` of this frame is its last or only piece.
    fn complete(&mut self, frame: &Bytes, range: Range<usize>, sink: &mut impl EventSink) -> Ended {
        if self.blind {
            self.blind = false;
            sink.oversize();
            return Ended::Passed(None);
        }
        let piece = frame.get(range).unwrap_or_default();
        let before = self.carry.len();
        let meaning = if before == 0 {
            read_event(piece, &mut self.scratch, sink)
        } else {
            self.carry.extend_from_slice(piece);
            read_event(&self.carry, &mut self.scratch, sink)
        };
        self.finish_seen |= meaning.finished;
        let hidden = self.passed == 0 && (sink.refuses() || (self.hide_usage && meaning.usage_only));
        let held = self.carry.get(self.passed..before).filter(|held| !hidden && !held.is_empty());
        let held = held.map(Bytes::copy_from_slice);
        self.carry.clear();
        self.passed = 0;
        if hidden { Ended::Hidden } else { Ended::Passed(held) }
    }

    /// Deals with the bytes behind the last whole event of a frame.
    fn keep_tail(&mut self, frame: &Bytes, event: usize, kept: usize, out: &mut Frames) {
        let tail = frame.get(event..).unwrap_or_default();
        if tail.is_empty() || self.blind {
            pass(frame, kept..frame.len(), out);
            return;
        }
        if self.carry.len() + tail.len() > EVENT_CAP {
            let carry = std::mem::take(&mut self.carry).freeze();
            pass(&carry, self.passed..carry.len(), out);
            pass(frame, kept..frame.len(), out);
            self.passed = 0;
            self.blind = true;
            self.dropped_last = false;
            return;
        }
        // An event of which the client has a part is passed on to its end.
        let hold = ((self.hide_usage && self.finish_seen) || self.whole) && self.passed == 0;
        self.carry.extend_from_slice(tail);
        if hold {
            pass(frame, kept..event, out);
        } else {
            pass(frame, kept..frame.len(), out);
            self.passed = self.carry.len();
        }
    }

    /// The stream ended: gives back what was held, and reads a last event that no blank line closed.
    pub fn finish(&mut self, sink: &mut impl EventSink) -> Option<Bytes> {
        let carry = self.carry.split().freeze();
        let held = carry.slice(self.passed.min(carry.len())..);
        let untouched = self.passed == 0;
        self.passed = 0;
        self.line_open = false;
        self.blind = false;
        let mut hidden = false;
        if !carry.is_empty() {
            let meaning = read_event(&carry, &mut self.scratch, sink);
            hidden = untouched && (sink.refuses() || (self.hide_usage && meaning.usage_only));
        }
        (!held.is_empty() && !hidden).then_some(held)
    }
}

fn pass(frame: &Bytes, range: Range<usize>, out: &mut Frames) {
    if range.start == 0 && range.end == frame.len() {
        if !frame.is_empty() {
            out.push(frame.clone());
        }
    } else if range.start < range.end {
        out.push(frame.slice(range));
    }
}

/// Reads a whole event: joins its data lines and tells the sink. Events without data are none.
fn read_event(event: &[u8], scratch: &mut Vec<u8>, sink: &mut impl EventSink) -> Meaning {
    let mut lines = Lines { rest: event.strip_prefix(b"\xef\xbb\xbf").unwrap_or(event) };
    let mut first: Option<&[u8]> = None;
    let mut joined = false;
    for line in &mut lines {
        let Some(data) = data_of(line) else { continue };
        match first {
            None => first = Some(data),
            Some(before) => {
                if !joined {
                    joined = true;
                    scratch.clear();
                    scratch.extend_from_slice(before);
                }
                scratch.push(b'\n');
                scratch.extend_from_slice(data);
            }
        }
    }
    let Some(payload) = (if joined { Some(scratch.as_slice()) } else { first }) else { return Meaning::default() };
    let meaning = event::read(payload);
    sink.event(&meaning, payload);
    meaning
}

/// Whether a line (or the start of one) says that the engine works: an empty data field is a keep-alive in disguise.
fn is_work(line: &[u8]) -> bool {
    !matches!(line, b"data" | b"data:" | b"data: ")
}

/// The value of a `data` line: `data:x`, `data: x` or `data`.
fn data_of(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(b"data")?;
    match rest.split_first() {
        None => Some(rest),
        Some((b':', value)) => Some(value.strip_prefix(b" ").unwrap_or(value)),
        Some(_) => None,
    }
}

/// Lines of a whole event, ends taken off.
struct Lines<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let end = memchr2(b'\n', b'\r', self.rest).unwrap_or(self.rest.len());
        let line = self.rest.get(..end)?;
        let rest = self.rest.get(end..).unwrap_or_default();
        self.rest = rest.strip_prefix(b"\r\n").or_else(|| rest.get(1..)).unwrap_or_default();
        Some(line)
    }
}

#[cfg(test)]
mod tests;
