use eventsource_stream::Eventsource;
use futures_util::{FutureExt, StreamExt, stream};
use proptest::prelude::*;

use super::*;

#[derive(Default)]
struct Seen {
    payloads: Vec<Vec<u8>>,
    outputs: usize,
    malformed: usize,
    oversize: usize,
}

impl EventSink for Seen {
    fn event(&mut self, meaning: &Meaning, payload: &[u8]) {
        self.payloads.push(payload.to_vec());
        self.outputs += usize::from(meaning.output);
        self.malformed += usize::from(meaning.malformed);
    }

    fn oversize(&mut self) {
        self.oversize += 1;
    }
}

/// Feeds the pieces, returns what was passed on and what was seen.
fn run<'a>(hide: bool, pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, Seen) {
    let (mut scanner, mut seen, mut passed) = (Scanner::new(hide), Seen::default(), Vec::new());
    for piece in pieces {
        let mut out = Frames::new();
        scanner.push(&Bytes::copy_from_slice(piece), &mut seen, &mut out);
        out.iter().for_each(|frame| passed.extend_from_slice(frame));
    }
    if let Some(held) = scanner.finish(&mut seen) {
        passed.extend_from_slice(&held);
    }
    (passed, seen)
}

const ROLE: &str = r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;
const TEXT: &str = r#"{"choices":[{"index":0,"delta":{"content":"北a"},"finish_reason":null}]}"#;
const LAST: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}"#;

fn events(end: &str, payloads: &[&str]) -> String {
    payloads.iter().map(|payload| format!("data: {payload}{end}{end}")).collect()
}

#[test]
fn every_line_end_and_every_cut_gives_the_same_events_and_bytes() {
    for end in ["\n", "\r\n", "\r"] {
        let text = events(end, &[ROLE, TEXT, TEXT, LAST, USAGE, "[DONE]"]);
        for cut in 0..=text.len() {
            let (head, tail) = text.as_bytes().split_at(cut);
            let (passed, seen) = run(false, [head, tail]);
            assert_eq!(passed, text.as_bytes(), "{end:?} cut at {cut}");
            assert_eq!((seen.payloads.len(), seen.outputs, seen.malformed), (6, 2, 0), "{end:?} cut at {cut}");
        }
    }
}

#[test]
fn the_usage_chunk_and_nothing_else_is_taken_out_whatever_the_cut() {
    for end in ["\n", "\r\n", "\r"] {
        let text = events(end, &[ROLE, TEXT, LAST, USAGE, "[DONE]"]);
        let want = events(end, &[ROLE, TEXT, LAST, "[DONE]"]);
        for cut in 0..=text.len() {
            let (head, tail) = text.as_bytes().split_at(cut);
            let (passed, _) = run(true, [head, tail]);
            assert_eq!(String::from_utf8_lossy(&passed), want, "{end:?} cut at {cut}");
        }
        let (passed, seen) = run(true, text.as_bytes().chunks(1));
        assert_eq!(passed, want.as_bytes(), "{end:?} byte by byte");
        assert_eq!(seen.payloads.len(), 5, "the meter still sees the usage chunk");
    }
}

#[test]
fn a_piece_of_an_event_is_passed_on_at_once() {
    let (mut scanner, mut seen, mut out) = (Scanner::new(true), Seen::default(), Frames::new());

    scanner.push(&Bytes::from_static(b"da"), &mut seen, &mut out);

    assert_eq!(out.as_slice(), [Bytes::from_static(b"da")]);
    assert!(scanner.inside_event());
}

#[test]
fn comments_are_no_events_and_no_progress() {
    let (mut scanner, mut seen, mut out) = (Scanner::new(false), Seen::default(), Frames::new());

    let idle = scanner.push(&Bytes::from_static(b": keep-al"), &mut seen, &mut out);
    let still = scanner.push(&Bytes::from_static(b"ive\n\n: more\r\n\r\n"), &mut seen, &mut out);
    let work = scanner.push(&Bytes::from_static(b"data: {}\n\n"), &mut seen, &mut out);

    assert!(!idle.engine && !still.engine && work.engine);
    assert_eq!(seen.payloads, [b"{}".to_vec()]);
}

#[test]
fn empty_data_fields_are_no_progress() {
    let (mut scanner, mut seen, mut out) = (Scanner::new(false), Seen::default(), Frames::new());
    for idle in ["data:\n\n", "data: \n\n", "data\r\n\r\n", ": x\ndata:\n\n"] {
        let progress = scanner.push(&Bytes::from_static(idle.as_bytes()), &mut seen, &mut out);
        assert!(!progress.engine, "{idle:?}");
    }
    assert!(scanner.push(&Bytes::from_static(b"data: x\n\n"), &mut seen, &mut out).engine);
}

#[test]
fn no_byte_is_lost_behind_a_hidden_event() {
    let mut text = events("\r\n", &[LAST, USAGE]).into_bytes();
    let hidden = text.len();
    text.extend_from_slice(b"data: ");
    text.resize(hidden + EVENT_CAP + 99, b'x');
    let cut = text.len() + 1;
    text.extend_from_slice(b"\r\n\r\n");

    let (head, tail) = text.split_at(cut);
    let (start, middle) = head.split_at(hidden);
    let (passed, _) = run(true, [start, middle, tail]);

    assert_eq!(passed.len(), text.len() - format!("data: {USAGE}\r\n\r\n").len());
}

#[test]
fn a_hidden_usage_event_without_its_blank_line_stays_hidden() {
    let (passed, seen) = run(true, [events("\n", &[LAST]).as_bytes(), format!("data: {USAGE}").as_bytes()]);
    assert_eq!(passed, events("\n", &[LAST]).as_bytes());
    assert_eq!(seen.payloads.len(), 2);
}

#[test]
fn data_lines_are_joined_and_other_fields_ignored() {
    let text = b"retry: 3000\nid: 7\nevent: message\ndata:{\"choices\":[{\"index\":0,\ndata: \"delta\":{\"content\":\"a\"}}]}\n\ndata:[DONE]\n\n";

    let (passed, seen) = run(false, [&text[..]]);

    assert_eq!(passed, text);
    assert_eq!(seen.payloads[0], b"{\"choices\":[{\"index\":0,\n\"delta\":{\"content\":\"a\"}}]}");
    assert_eq!((seen.outputs, seen.malformed), (1, 0));
}

#[test]
fn an_endless_event_is_relayed_and_given_up() {
    let mut text = b"data: ".to_vec();
    text.resize(3 * EVENT_CAP, b'x');
    text.extend_from_slice(b"\n\n");
    text.extend_from_slice(events("\n", &[TEXT]).as_bytes());

    let (passed, seen) = run(true, text.chunks(65_536));

    assert!(passed == text, "no byte is lost");
    assert_eq!((seen.oversize, seen.outputs), (1, 1));
}

#[test]
fn a_last_event_without_its_blank_line_counts_at_the_clean_end() {
    let (passed, seen) = run(true, [events("\n", &[LAST]).as_bytes(), b"data: [DONE]"]);
    assert!(passed.ends_with(b"data: [DONE]"));
    assert_eq!(seen.payloads.last().unwrap(), b"[DONE]");
}

/// A stream of a few odd lines, and how it is cut.
fn streams() -> impl Strategy<Value = (String, Vec<usize>)> {
    let line = prop_oneof![
        Just("data: {\"choices\":[{\"text\":\"é\"}]}".to_owned()),
        Just(format!("data: {USAGE}")),
        Just(format!("data: {LAST}")),
        Just("data".to_owned()),
        Just("data:x".to_owned()),
        Just(": comment".to_owned()),
        Just("id: 1".to_owned()),
        Just(String::new()),
    ];
    let end = prop_oneof![Just("\n"), Just("\r\n"), Just("\r")];
    let text = prop::collection::vec((line, end), 0..24)
        .prop_map(|lines| lines.into_iter().map(|(line, end)| line + end).collect::<String>() + ":\n"); // a last CR alone is ambiguous to the oracle
    text.prop_flat_map(|text| {
        let len = text.len();
        (Just(text), prop::collection::vec(0..=len, 0..6))
    })
}

proptest! {
    #[test]
    fn events_equal_those_of_a_known_parser((text, cuts) in streams()) {
        let mut cuts = cuts;
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &text.as_bytes()[pair[0]..pair[1]]).collect();

        let (mut scanner, mut seen, mut passed) = (Scanner::new(false), Seen::default(), Vec::new());
        for piece in &pieces {
            let mut out = Frames::new();
            scanner.push(&Bytes::copy_from_slice(piece), &mut seen, &mut out);
            out.iter().for_each(|frame| passed.extend_from_slice(frame));
        }

        prop_assert_eq!(passed, text.as_bytes());
        let oracle: Vec<Vec<u8>> = stream::iter([Ok::<_, std::io::Error>(text.clone().into_bytes())])
            .eventsource()
            .map(|event| event.unwrap().data.into_bytes())
            .collect::<Vec<_>>()
            .now_or_never()
            .unwrap();
        // The known parser drops events whose data is empty; so do we when counting, but we report them.
        let ours: Vec<Vec<u8>> = seen.payloads.into_iter().filter(|payload| !payload.is_empty()).collect();
        prop_assert_eq!(ours, oracle.into_iter().filter(|data| !data.is_empty()).collect::<Vec<_>>());
    }

    #[test]
    fn arbitrary_bytes_pass_unchanged_without_hiding(bytes in prop::collection::vec(any::<u8>(), 0..400), step in 1_usize..40) {
        let (passed, _) = run(false, bytes.chunks(step));
        prop_assert_eq!(passed, bytes);
    }
}
