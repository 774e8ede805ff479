//! Judgements that many cases share; each states its rule in the message.

use serde_json::Value;

use super::{
    client::{Answer, End},
    short, sse,
};

/// The answer is a whole 200 with exactly these bytes.
pub(crate) fn same(answer: &Answer, want: impl AsRef<[u8]>, note: &str) {
    let (want, got) = (want.as_ref(), answer.body.as_slice());
    assert_eq!(answer.status, 200, "{note}: {}", short(got));
    if want != got {
        let at = want.iter().zip(got).take_while(|(a, b)| a == b).count();
        panic!(
            "{note}: bytes must arrive as they were sent; {} sent, {} received, end {:?}; from byte {at} want {:?}, got {:?}",
            want.len(),
            got.len(),
            answer.end,
            short(&want[at..]),
            short(&got[at..])
        );
    }
    assert_eq!(answer.end, Some(End::Clean), "{note}: all bytes came, so the end must be clean");
}

/// A stream that was cut after its 200 tells so: no mark of a complete answer, and an error event or an unclean end.
pub(crate) fn honest(answer: &Answer) {
    let body = &answer.body;
    assert_eq!(answer.status, 200, "{}", short(body));
    assert_ne!(answer.end, Some(End::Timeout), "a broken stream must end at the client: {}", short(body));
    assert_eq!(sse::looks_finished(body), None, "a cut stream must not look complete: {}", answer.text());
    let told = sse::error_event(body).is_some() || answer.end != Some(End::Clean);
    assert!(told, "a cut stream needs an error event or an unclean end: {}", answer.text());
}

/// An error of this status in OpenAI's shape; its error object.
pub(crate) fn json_error(answer: &Answer, status: u16) -> Value {
    assert_eq!(answer.status, status, "{}", short(&answer.body));
    assert_eq!(answer.end, Some(End::Clean), "an error answer is complete");
    let kind = answer.header("content-type").unwrap_or_default();
    assert!(kind.starts_with("application/json"), "an error is JSON, not {kind:?}: {}", short(&answer.body));
    let error = answer.json()["error"].clone();
    for field in ["message", "type", "param", "code"] {
        assert!(error.get(field).is_some(), "an error names its {field}: {}", short(&answer.body));
    }
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "an error says what is wrong");
    error
}

/// Every answer is a whole 200.
pub(crate) fn all_good(answers: &[Answer], rule: &str) {
    let bad: Vec<String> = answers
        .iter()
        .filter(|answer| !answer.is_good())
        .map(|answer| format!("{} {:?} {}", answer.status, answer.end, short(&answer.body)))
        .collect();
    assert!(bad.is_empty(), "{rule}: {} of {} failed, first {:?}", bad.len(), answers.len(), &bad[..bad.len().min(3)]);
}
