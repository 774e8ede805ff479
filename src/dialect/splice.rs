//! Changes a body by replacing spans of its text; every other byte stays what and where it was.
//!
//! The result is a list of segments. Those that did not change share the original buffer, so a splice in a 20 MiB
//! body copies nothing of it. Source: DESIGN section 1, rule 2; cases BR-031 to BR-039.

use bytes::Bytes;
use smallvec::SmallVec;

use super::{Fields, Span};

/// The changes to make to one body.
#[derive(Debug, Default)]
pub struct Splices {
    changes: SmallVec<[Change; 4]>,
    /// Members added so far: the first needs no comma in an empty body, the next does.
    added: usize,
}

#[derive(Debug)]
struct Change {
    span: Span,
    with: Bytes,
}

impl Splices {
    /// No change yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Replaces a value. Of two changes to overlapping spans the one that starts first wins; of two to the same
    /// span, the later call.
    pub fn replace(&mut self, span: Span, with: impl Into<Bytes>) {
        let with = with.into();
        match self.changes.iter_mut().find(|change| change.span == span && span.start < span.end) {
            Some(change) => change.with = with,
            None => self.changes.push(Change { span, with }),
        }
    }

    /// Inserts bytes before offset `at`; several at one offset stay in the order of the calls.
    pub fn insert(&mut self, at: usize, bytes: impl Into<Bytes>) {
        self.changes.push(Change { span: Span { start: at, end: at }, with: bytes.into() });
    }

    /// Adds a member at the end of the top-level object. `key` is plain text without quotes or escapes, `raw_value` is JSON.
    pub fn add_member(&mut self, fields: &Fields, key: &str, raw_value: &str) {
        let comma = if fields.empty && self.added == 0 { "" } else { "," };
        self.added += 1;
        self.insert(fields.close, format!("{comma}\"{key}\":{raw_value}"));
    }

    /// The changed body, in segments whose concatenation it is.
    #[must_use]
    pub fn apply(mut self, body: &Bytes) -> SmallVec<[Bytes; 8]> {
        self.changes.sort_by_key(|change| (change.span.start, change.span.end));
        let mut segments = SmallVec::new();
        let mut at = 0;
        for Change { span, with } in self.changes {
            if span.start < at || span.end > body.len() {
                continue;
            }
            push(&mut segments, body.slice(at..span.start));
            push(&mut segments, with);
            at = span.end;
        }
        push(&mut segments, body.slice(at..));
        segments
    }
}

fn push(segments: &mut SmallVec<[Bytes; 8]>, segment: Bytes) {
    if !segment.is_empty() {
        segments.push(segment);
    }
}
