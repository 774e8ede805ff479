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
        self.changes.push(Change { span, with: with.into() });
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
        // Stable: changes of one span stay in the order of the calls.
        self.changes.sort_by_key(|change| (change.span.start, change.span.end));
        let mut segments = SmallVec::new();
        let mut at = 0;
        let mut changes = self.changes.into_iter().peekable();
        while let Some(Change { span, with }) = changes.next() {
            let again = span.start < span.end && changes.peek().is_some_and(|next| next.span == span);
            if again || span.start < at || span.end > body.len() {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dialect::scan;

    fn apply(splices: Splices, body: &str) -> String {
        let segments = splices.apply(&Bytes::copy_from_slice(body.as_bytes()));
        String::from_utf8(segments.concat()).unwrap()
    }

    #[test]
    fn a_value_is_replaced_and_members_are_added() {
        let body = r#"{"model" : "fast","zz":1.50 } "#;
        let fields = scan(body.as_bytes()).unwrap();
        let mut splices = Splices::new();
        splices.replace(fields.model.unwrap(), r#""m""#);
        splices.add_member(&fields, "max_tokens", "5");
        splices.add_member(&fields, "n", "1");

        assert_eq!(apply(splices, body), r#"{"model" : "m","zz":1.50 ,"max_tokens":5,"n":1} "#);
    }

    #[test]
    fn an_empty_body_gets_members_without_a_leading_comma() {
        let fields = scan(b"{ }").unwrap();
        let mut splices = Splices::new();
        splices.add_member(&fields, "a", "1");
        splices.add_member(&fields, "b", "2");

        assert_eq!(apply(splices, "{ }"), r#"{ "a":1,"b":2}"#);
    }

    #[test]
    fn unchanged_parts_share_the_buffer() {
        let body = Bytes::from(format!(r#"{{"x":"{}","n":2}}"#, "y".repeat(1000)));
        let fields = scan(&body).unwrap();
        let mut splices = Splices::new();
        splices.replace(fields.n.unwrap(), "1");

        let segments = splices.apply(&body);

        assert_eq!(segments[0].as_ptr(), body.as_ptr());
        assert_eq!(segments.len(), 3);
    }

    #[test]
    fn a_later_replacement_of_a_span_wins_and_nonsense_is_left_out() {
        let mut splices = Splices::new();
        splices.replace(Span { start: 1, end: 2 }, "X");
        splices.replace(Span { start: 1, end: 2 }, "Y");
        splices.replace(Span { start: 0, end: 99 }, "Z");

        assert_eq!(apply(splices, "abc"), "aYc");
    }

    proptest! {
        #[test]
        fn every_other_byte_is_left_alone(text in "[a-z]{0,40}", cuts in prop::collection::vec((0_usize..40, 0_usize..40, "[A-Z]{0,3}"), 0..6)) {
            // The oracle: changes that do not overlap, applied from the end.
            let mut taken: Vec<(usize, usize, String)> = Vec::new();
            for (a, b, with) in cuts {
                let (start, end) = (a.min(b).min(text.len()), a.max(b).min(text.len()));
                if start < end && taken.iter().all(|(from, to, _)| end <= *from || *to <= start) {
                    taken.push((start, end, with));
                }
            }
            let mut splices = Splices::new();
            for (start, end, with) in &taken {
                splices.replace(Span { start: *start, end: *end }, with.clone());
            }
            let mut expected = text.clone();
            taken.sort();
            for (start, end, with) in taken.iter().rev() {
                expected.replace_range(start..end, with);
            }

            prop_assert_eq!(apply(splices, &text), expected);
        }
    }
}
