use super::*;
use crate::proxy::admit;

fn capped(text: &'static str, on_excess: OnExcess) -> Result<String, GatewayError> {
    let caps = Caps { max_output_tokens: Some(100), on_excess, ..Caps::default() };
    let body = Bytes::from_static(text.as_bytes());
    let fields = admit::fields(&body)?;
    let output = Output::judge(&body, &fields, Endpoint::Chat, Limits::new(&caps, None))?;
    let mut splices = Splices::new();
    output.splice(&mut splices);
    Ok(splices.apply(&body).iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect())
}

#[test]
fn a_cap_holds_against_every_spelling() {
    for text in [
        r#"{"max_tokens":101}"#,
        r#"{"max_tokens":5,"max_completion_tokens":101}"#,
        r#"{"max_tokens":999,"max_tokens":5}"#,
        r#"{"max_tokens":5,"max_tokens":999}"#,
        r#"{"max\u005ftokens":999}"#,
        r#"{"max_tokens":1e3}"#,
        r#"{"max_tokens":100,"n":2}"#,
        r#"{"max_tokens":50,"n":2,"n":3}"#,
        r#"{"max_tokens":1,"best_of":101}"#,
    ] {
        let error = capped(text, OnExcess::Reject).unwrap_err();
        assert_eq!(error.kind, ErrorKind::OverCap, "{text}");
        assert!(error.message.contains("100"), "{text}: {error}");
    }
    for text in [
        r#"{"max_tokens":"50"}"#,
        r#"{"max_tokens":-1}"#,
        r#"{"max_tokens":0}"#,
        r#"{"max_tokens":1.5}"#,
        r#"{"max_tokens":5,"n":"5000"}"#,
        r#"{"max_tokens":5,"n":-1}"#,
        r#"{"max_tokens":99999999999999999999999}"#,
    ] {
        assert!(capped(text, OnExcess::Reject).is_err(), "{text}");
    }
}

#[test]
fn a_clamp_changes_the_value_only_and_absence_gets_the_cap() {
    assert_eq!(capped(r#"{"max_tokens": 999 ,"x":1.0}"#, OnExcess::Clamp).unwrap(), r#"{"max_tokens": 100 ,"x":1.0}"#);
    assert_eq!(capped(r#"{"x":1}"#, OnExcess::Reject).unwrap(), r#"{"x":1,"max_tokens":100}"#);
    assert_eq!(capped(r#"{"max_tokens":null}"#, OnExcess::Reject).unwrap(), r#"{"max_tokens":100}"#);
    for (text, want) in [
        (r#"{"max_tokens":5,"max_tokens":null}"#, r#"{"max_tokens":5,"max_tokens":100}"#),
        (r#"{"max_tokens":null,"max_tokens":5}"#, r#"{"max_tokens":100,"max_tokens":5}"#),
        (r#"{"max_tokens":5,"max_completion_tokens":null}"#, r#"{"max_tokens":5,"max_completion_tokens":null}"#),
        (r#"{"n":4}"#, r#"{"n":4,"max_tokens":25}"#),
        (r#"{"n":4,"max_tokens":25}"#, r#"{"n":4,"max_tokens":25}"#),
    ] {
        assert_eq!(capped(text, OnExcess::Reject).unwrap(), want, "{text}");
    }
    assert_eq!(capped(r#"{"max_tokens":80,"n":4}"#, OnExcess::Clamp).unwrap(), r#"{"max_tokens":25,"n":4}"#);
    assert_eq!(capped(r#"{"max_tokens":100}"#, OnExcess::Reject).unwrap(), r#"{"max_tokens":100}"#);
}
