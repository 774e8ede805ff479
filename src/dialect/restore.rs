//! Puts the model name that the client knows back into an answer that carries another one.
//!
//! The one place where bytes of an answer change: hosted models call themselves by other names, and a client that
//! compares names would see the switch. Only the value of `model` is replaced, at the top of the object and inside
//! `response` and `message`, where the Responses and Messages dialects keep it; all other bytes stay. However the
//! stream is cut, an event is passed on when it is whole.

use bytes::Bytes;
use memchr::memchr2;
use smallvec::SmallVec;

use super::{
    json::{Cursor, Kind},
    scan::{Span, member},
};

/// Longest event or answer that is kept to be changed; longer ones pass as they are.
const KEPT: usize = 32 << 20;

/// Changes one answer as its bytes come.
#[derive(Debug)]
pub struct Restore {
    /// The name as JSON text, quotes included.
    name: Vec<u8>,
    events: bool,
    kept: Vec<u8>,
    /// Start of the current line in `kept`.
    line: usize,
    /// Bytes of `kept` that hold no line end behind `line`.
    seen: usize,
    blind: bool,
}

impl Restore {
    /// For a server-sent-event stream.
    #[must_use]
    pub fn events(model: &str) -> Self {
        Self::new(model, true)
    }

    /// For one JSON answer.
    #[must_use]
    pub fn whole(model: &str) -> Self {
        Self::new(model, false)
    }

    fn new(model: &str, events: bool) -> Self {
        let name = serde_json::Value::from(model).to_string().into_bytes();
        Self { name, events, kept: Vec::new(), line: 0, seen: 0, blind: false }
    }

    /// Takes the next bytes; gives what may be passed on.
    pub fn push(&mut self, data: &[u8]) -> Bytes {
        if self.blind {
            return Bytes::copy_from_slice(data);
        }
        self.kept.extend_from_slice(data);
        let out = if self.events { self.whole_events() } else { Vec::new() };
        if self.kept.len() > KEPT {
            // What is read as an event later begins in the middle of one: nothing is changed any more.
            self.blind = true;
            return [out, std::mem::take(&mut self.kept)].concat().into();
        }
        out.into()
    }

    /// The answer has ended: the rest.
    pub fn finish(&mut self) -> Bytes {
        let rest = std::mem::take(&mut self.kept);
        let mut out = Vec::with_capacity(rest.len() + self.name.len());
        if self.events {
            event(&rest, &self.name, &mut out);
        } else {
            renamed(&rest, &self.name, &mut out);
        }
        out.into()
    }

    fn whole_events(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        let (mut start, mut at, mut from) = (0, self.line, self.seen.max(self.line));
        while let Some(found) = memchr2(b'\n', b'\r', self.kept.get(from..).unwrap_or_default()) {
            let end = from + found;
            let pair = self.kept.get(end..end + 2) == Some(b"\r\n");
            let next = end + if pair { 2 } else { 1 };
            if end == at {
                event(self.kept.get(start..next).unwrap_or_default(), &self.name, &mut out);
                start = next;
            }
            (at, from) = (next, next);
        }
        self.kept.drain(..start);
        self.line = at - start;
        self.seen = self.kept.len();
        out
    }
}

/// Writes a whole event with its model renamed.
fn event(event: &[u8], name: &[u8], out: &mut Vec<u8>) {
    let data: SmallVec<[Span; 2]> = lines(event).filter_map(|line| data_of(event, line)).collect();
    match data.as_slice() {
        [] => out.extend_from_slice(event),
        [only] => {
            out.extend_from_slice(event.get(..only.start).unwrap_or_default());
            renamed(only.of(event), name, out);
            out.extend_from_slice(event.get(only.end..).unwrap_or_default());
        }
        [first, .., last] => {
            // JSON over several data lines: joined by the spaces that a line end is inside it.
            let joined = data.iter().map(|span| span.of(event)).collect::<Vec<_>>().join(&b' ');
            if models(&joined).is_empty() {
                out.extend_from_slice(event);
                return;
            }
            out.extend_from_slice(event.get(..first.start).unwrap_or_default());
            renamed(&joined, name, out);
            out.extend_from_slice(event.get(last.end..).unwrap_or_default());
        }
    }
}

/// Lines without their ends.
fn lines(text: &[u8]) -> impl Iterator<Item = Span> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
        let length = memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        let line = Span { start: at, end: at + length };
        at += length + if rest.get(length..length + 2) == Some(b"\r\n") { 2 } else { 1 };
        Some(line)
    })
}

/// The value of a data line.
fn data_of(event: &[u8], line: Span) -> Option<Span> {
    let value = line.of(event).strip_prefix(b"data:")?;
    let value = value.strip_prefix(b" ").unwrap_or(value);
    Some(Span { start: line.end - value.len(), end: line.end })
}

/// Writes a JSON object with its model renamed; anything else as it is.
fn renamed(json: &[u8], name: &[u8], out: &mut Vec<u8>) {
    let mut at = 0;
    for span in models(json) {
        out.extend_from_slice(json.get(at..span.start).unwrap_or_default());
        out.extend_from_slice(name);
        at = span.end;
    }
    out.extend_from_slice(json.get(at..).unwrap_or_default());
}

/// The values of `model` that name the model, in order; none in what is no JSON object.
fn models(json: &[u8]) -> SmallVec<[Span; 2]> {
    let mut start = Cursor::new(json, 0);
    start.space();
    let mut found = SmallVec::new();
    if start.kind() != Kind::Object {
        return found;
    }
    let top = Span { start: start.offset(), end: json.len() };
    let nested = [&b"response"[..], b"message"].into_iter().filter_map(|key| member(json, top, key));
    for object in std::iter::once(top).chain(nested) {
        found.extend(member(json, object, b"model").filter(|span| span.of(json).first() == Some(&b'"')));
    }
    found.sort_by_key(|span| span.start);
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn through(mut restore: Restore, parts: &[&[u8]]) -> String {
        let mut out = Vec::new();
        for part in parts {
            out.extend_from_slice(&restore.push(part));
        }
        out.extend_from_slice(&restore.finish());
        String::from_utf8(out).unwrap()
    }

    const STREAM: &str = concat!(
        ": hello\n\n",
        "data: {\"id\":\"1\",\"model\" : \"gpt-x-2026\",\"choices\":[{\"delta\":{\"content\":\"say \\\"model\\\":\\\"gpt-x\\\" é\"}}]}\n\n",
        "event: response.created\r\ndata: {\"type\":\"a\",\"response\":{\"model\":\"gpt-x\",\"n\":1}}\r\n\r\n",
        "data: {\"type\":\"message_start\",\ndata: \"message\":{\"model\":\"gpt-x\"}}\n\n",
        "data:{\"model\":null}\r\rdata: [DONE]\n\n",
        "data: {\"model\":\"gpt-x\"}",
    );
    const RESTORED: &str = concat!(
        ": hello\n\n",
        "data: {\"id\":\"1\",\"model\" : \"m \\\"1\\\"\",\"choices\":[{\"delta\":{\"content\":\"say \\\"model\\\":\\\"gpt-x\\\" é\"}}]}\n\n",
        "event: response.created\r\ndata: {\"type\":\"a\",\"response\":{\"model\":\"m \\\"1\\\"\",\"n\":1}}\r\n\r\n",
        "data: {\"type\":\"message_start\", \"message\":{\"model\":\"m \\\"1\\\"\"}}\n\n",
        "data:{\"model\":null}\r\rdata: [DONE]\n\n",
        "data: {\"model\":\"m \\\"1\\\"\"}",
    );

    #[test]
    fn every_cut_of_a_stream_gives_the_same_bytes() {
        for cut in 0..=STREAM.len() {
            let (head, tail) = STREAM.as_bytes().split_at(cut);
            assert_eq!(through(Restore::events("m \"1\""), &[head, tail]), RESTORED, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = STREAM.as_bytes().chunks(1).collect();
        assert_eq!(through(Restore::events("m \"1\""), &bytes), RESTORED);
    }

    #[test]
    fn an_event_is_passed_on_when_it_is_whole_and_not_before() {
        let mut restore = Restore::events("m");
        assert_eq!(restore.push(b"data: {\"model\":\"x\"}\n"), "");
        assert_eq!(restore.push(b"\ndata: {"), "data: {\"model\":\"m\"}\n\n");
    }

    #[test]
    fn a_whole_answer_has_its_name_at_the_top_only() {
        let answer = r#" {"choices":[{"message":{"model":"deep"}}],"model":"gpt-x","usage":{"model":"x"}} "#;
        assert_eq!(
            through(Restore::whole("m"), &[&answer.as_bytes()[..9], &answer.as_bytes()[9..]]),
            r#" {"choices":[{"message":{"model":"deep"}}],"model":"m","usage":{"model":"x"}} "#
        );
        for other in ["", "not json", "[1]", r#"{"model":3}"#, r#"{"a":"#] {
            assert_eq!(through(Restore::whole("m"), &[other.as_bytes()]), other);
        }
    }

    proptest! {
        #[test]
        fn what_names_no_model_is_left_alone(bytes in prop::collection::vec(prop::sample::select(b"data: {}[]\"\r\n:1,x".to_vec()), 0..80), cut in 0_usize..80) {
            let cut = cut.min(bytes.len());
            let mut restore = Restore::events("m");
            let mut out = restore.push(&bytes[..cut]).to_vec();
            out.extend_from_slice(&restore.push(&bytes[cut..]));
            out.extend_from_slice(&restore.finish());
            prop_assert_eq!(out, bytes);
        }
    }
}
