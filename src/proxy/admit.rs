//! Steps 3 and 4: what the request asks for, whether it may, and the splices that make the engine read the same.
//!
//! Every occurrence of a field is judged and rewritten, not only the last: whichever duplicate an engine takes, the
//! cap holds. A body that cannot be read is refused, never passed without limits.

use bytes::Bytes;

use crate::{
    config::{Caps, OnExcess},
    dialect::{
        scan::{self, Fields, Span},
        splice::Splices,
    },
    error::{ErrorKind, GatewayError, Stage},
    proxy::{auth::Tenant, pool::Pool},
    types::Endpoint,
};

/// Takes the earlier occurrences of a repeated field out, so that what an engine reads does not depend on its parser.
pub fn drop_duplicates(splices: &mut Splices, body: &[u8], fields: &Fields) {
    for value in fields.earlier() {
        // A later member follows, so there is a comma behind; a wanted key holds no quote, escaped or not.
        let before = body.get(..value.start).unwrap_or_default();
        let key_end = memchr::memrchr(b'"', before).unwrap_or_default();
        let key = memchr::memrchr(b'"', before.get(..key_end).unwrap_or_default());
        let comma = body.get(value.end..).and_then(|rest| memchr::memchr(b',', rest));
        if let (Some(start), Some(comma)) = (key, comma) {
            splices.replace(Span { start, end: value.end + comma + 1 }, Bytes::new());
        }
    }
}

/// Reads the fields of a body.
///
/// # Errors
/// `BadRequest` naming the byte at which the body stops being a JSON object.
pub fn fields(body: &[u8]) -> Result<Fields, GatewayError> {
    scan::scan(body).map_err(|error| {
        let message = format!("the request body is not a JSON object that an engine would read: {error}");
        GatewayError::new(ErrorKind::BadRequest, Stage::Scan, message)
    })
}

/// The requested model; `None` when the body names none.
///
/// # Errors
/// `BadRequest` when `model` is not a string.
pub fn model<'a>(body: &'a [u8], fields: &Fields) -> Result<Option<std::borrow::Cow<'a, str>>, GatewayError> {
    let Some(span) = fields.model else { return Ok(None) };
    if span.of(body) == b"null" {
        return Ok(None);
    }
    scan::string_value(body, span)
        .map(Some)
        .ok_or_else(|| GatewayError::new(ErrorKind::BadRequest, Stage::Scan, "model must be a string").param("model"))
}

/// Whether the key may use the model.
///
/// # Errors
/// `Forbidden`.
pub fn allowed(tenant: Option<&Tenant>, pool: &Pool) -> Result<(), GatewayError> {
    if tenant.is_none_or(|tenant| tenant.may_use(pool.name())) {
        return Ok(());
    }
    let message = format!("this key may not use the model `{}`; GET /v1/models lists those that it may", pool.name());
    Err(GatewayError::new(ErrorKind::Forbidden, Stage::Admit, message).param("model"))
}

/// Whether the engine will stream.
#[must_use]
pub fn wants_stream(body: &[u8], fields: &Fields) -> bool {
    fields.stream.is_some_and(|span| is_true(span.of(body)))
}

/// What pydantic reads as true, the parser of both engines: `true`, 1, and some words in any case.
fn is_true(value: &[u8]) -> bool {
    match value {
        b"true" | b"1" | b"1.0" => true,
        [b'"', word @ .., b'"'] => {
            [&b"1"[..], b"true", b"t", b"yes", b"y", b"on"].iter().any(|truth| truth.eq_ignore_ascii_case(word))
        }
        _ => false,
    }
}

/// Rewrites the model name when the replicas know it by another.
pub fn rename(splices: &mut Splices, body: &[u8], fields: &Fields, upstream: &str) {
    let quoted = serde_json::Value::from(upstream).to_string();
    for span in occurrences(fields, "model", fields.model) {
        let same = scan::string_value(body, span).is_some_and(|name| name == upstream);
        if !same {
            splices.replace(span, Bytes::from(quoted.clone()));
        }
    }
}

/// Asks the engine for usage in a stream. Returns whether the usage chunk must be hidden from the client.
pub fn ask_for_usage(splices: &mut Splices, body: &[u8], fields: &Fields) -> bool {
    let Some(options) = fields.stream_options.filter(|span| span.of(body) != b"null") else {
        match fields.stream_options {
            Some(null) => splices.replace(null, &br#"{"include_usage":true}"#[..]),
            None => splices.add_member(fields, "stream_options", r#"{"include_usage":true}"#),
        }
        return true;
    };
    let continuous = scan::member(body, options, b"continuous_usage_stats");
    match fields.include_usage {
        Some(asked) if is_true(asked.of(body)) => false,
        // With it, asking for usage would put a running count on every chunk that the client sees.
        _ if continuous.is_some_and(|span| !matches!(span.of(body), b"false" | b"null")) => false,
        Some(asked) => {
            splices.replace(asked, &b"true"[..]);
            true
        }
        None => match options.of(body) {
            [b'{', inner @ .., b'}'] => {
                let comma = if inner.trim_ascii().is_empty() { "" } else { "," };
                splices.insert(options.start + 1, format!(r#""include_usage":true{comma}"#));
                true
            }
            // Not an object: the engine refuses it in its own words.
            _ => false,
        },
    }
}

/// Holds the output caps over all choices of a request. A request without a limit of its own gets the default.
///
/// Gives the most output tokens that the engine will then generate over all choices; 0 if nothing bounds them.
///
/// # Errors
/// `OverCap` naming field, value and cap, or `BadRequest` for a value that is no whole number above zero.
pub fn cap_output(
    splices: &mut Splices,
    body: &[u8],
    fields: &Fields,
    endpoint: Endpoint,
    caps: &Caps,
) -> Result<u64, GatewayError> {
    if !endpoint.generates() {
        return Ok(0);
    }
    let names: &[(&'static str, Option<Span>)] = match endpoint {
        Endpoint::Responses => &[("max_output_tokens", fields.max_output_tokens)],
        Endpoint::Chat => &[("max_tokens", fields.max_tokens), ("max_completion_tokens", fields.max_completion_tokens)],
        _ => &[("max_tokens", fields.max_tokens)],
    };
    let asked = |span: Option<Span>| span.and_then(|span| whole(body, span));
    let last = names.iter().filter_map(|(_, last)| asked(*last)).min();
    if caps.max_output_tokens.is_none() && caps.default_output_tokens.is_none() {
        return Ok(last.unwrap_or(0).saturating_mul(choices(body, fields).unwrap_or(1)));
    }
    let choices = choices(body, fields)?;
    let cap = Cap { each: caps.max_output_tokens.map(|cap| cap / choices), choices, caps };
    if cap.each == Some(0) {
        return Err(cap.excess("n", choices));
    }
    let fill = caps.default_output_tokens.map_or(cap.each, |fill| Some(cap.each.map_or(fill, |each| fill.min(each))));
    // The last occurrence is what an engine reads; one that is null is no limit.
    let set = names.iter().any(|(_, last)| last.is_some_and(|span| span.of(body) != b"null"));
    for &(name, last) in names {
        for span in occurrences(fields, name, last) {
            match (span.of(body) == b"null", fill) {
                (false, _) => cap.hold(splices, body, span, name)?,
                (true, Some(fill)) if !set || last != Some(span) => {
                    splices.replace(span, Bytes::from(fill.to_string()));
                }
                (true, _) => {}
            }
        }
    }
    if let (true, Some(fill), Some((name, _))) = (names.iter().all(|(_, last)| last.is_none()), fill, names.first()) {
        splices.add_member(fields, name, &fill.to_string());
    }
    let held = last.map(|last| cap.each.map_or(last, |each| last.min(each))).or(fill);
    Ok(held.unwrap_or(0).saturating_mul(choices))
}

/// Answers that the engine generates for one request: the largest of `n` and `best_of`, in any occurrence.
fn choices(body: &[u8], fields: &Fields) -> Result<u64, GatewayError> {
    let mut most = 1;
    for (name, last) in [("n", fields.n), ("best_of", fields.best_of)] {
        for span in occurrences(fields, name, last).filter(|span| span.of(body) != b"null") {
            let value = whole(body, span).ok_or_else(|| {
                let message = format!("{name} must be a whole number of at least 1");
                GatewayError::new(ErrorKind::BadRequest, Stage::Admit, message).param(name)
            })?;
            most = most.max(value);
        }
    }
    Ok(most)
}

/// A whole number above zero.
fn whole(body: &[u8], span: Span) -> Option<u64> {
    scan::int_value(body, span).and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0)
}

/// The cap of one request.
struct Cap<'a> {
    /// Output tokens of each choice.
    each: Option<u64>,
    choices: u64,
    caps: &'a Caps,
}

impl Cap<'_> {
    fn hold(&self, splices: &mut Splices, body: &[u8], span: Span, name: &'static str) -> Result<(), GatewayError> {
        let Some(each) = self.each else { return Ok(()) };
        match whole(body, span) {
            Some(value) if value <= each => Ok(()),
            Some(_) if self.caps.on_excess == OnExcess::Clamp => {
                splices.replace(span, Bytes::from(each.to_string()));
                Ok(())
            }
            Some(value) => Err(self.excess(name, value)),
            // Beyond 64 bits, negative, fractional, a string: no engine reads it as a number under the cap for sure.
            None => {
                let message = format!("{name} must be a whole number from 1 to {each}");
                Err(GatewayError::new(ErrorKind::BadRequest, Stage::Admit, message).param(name))
            }
        }
    }

    fn excess(&self, name: &'static str, value: u64) -> GatewayError {
        let cap = self.caps.max_output_tokens.unwrap_or_default();
        let over = if self.choices > 1 { format!(" over all {} choices", self.choices) } else { String::new() };
        let message = format!("{name} is {value}; this gateway allows at most {cap} output tokens{over}");
        GatewayError::new(ErrorKind::OverCap, Stage::Admit, message).param(name)
    }
}

/// All value spans of a field, earlier duplicates first.
fn occurrences<'a>(fields: &'a Fields, name: &'a str, last: Option<Span>) -> impl Iterator<Item = Span> + 'a {
    fields.duplicates_of(name).chain(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(text: &'static str) -> (String, bool) {
        let body = Bytes::from_static(text.as_bytes());
        let fields = fields(&body).unwrap();
        let mut splices = Splices::new();
        let hide = ask_for_usage(&mut splices, &body, &fields);
        (joined(splices, &body), hide)
    }

    fn joined(splices: Splices, body: &Bytes) -> String {
        splices.apply(body).iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect()
    }

    fn capped(text: &'static str, on_excess: OnExcess) -> Result<String, GatewayError> {
        let body = Bytes::from_static(text.as_bytes());
        let caps = Caps { max_output_tokens: Some(100), on_excess, ..Caps::default() };
        let mut splices = Splices::new();
        cap_output(&mut splices, &body, &fields(&body)?, Endpoint::Chat, &caps)?;
        Ok(joined(splices, &body))
    }

    #[test]
    fn usage_is_asked_for_and_hidden_unless_the_client_asked() {
        let cases = [
            (r#"{"a":1}"#, r#"{"a":1,"stream_options":{"include_usage":true}}"#, true),
            (r#"{"stream_options":null}"#, r#"{"stream_options":{"include_usage":true}}"#, true),
            (r#"{"stream_options":{}}"#, r#"{"stream_options":{"include_usage":true}}"#, true),
            (r#"{"stream_options":{"x":1}}"#, r#"{"stream_options":{"include_usage":true,"x":1}}"#, true),
            (
                r#"{"stream_options":{"include_usage":false,"x":1}}"#,
                r#"{"stream_options":{"include_usage":true,"x":1}}"#,
                true,
            ),
            (r#"{"stream_options":{"include_usage":true}}"#, r#"{"stream_options":{"include_usage":true}}"#, false),
            (r#"{"stream_options":7}"#, r#"{"stream_options":7}"#, false),
            (r#"{"stream_options":{"include_usage":"Yes"}}"#, r#"{"stream_options":{"include_usage":"Yes"}}"#, false),
            (
                r#"{"stream_options":{"continuous_usage_stats":true}}"#,
                r#"{"stream_options":{"continuous_usage_stats":true}}"#,
                false,
            ),
        ];
        for (text, want, hide) in cases {
            assert_eq!(usage(text), (want.to_owned(), hide), "{text}");
        }
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
    fn of_a_repeated_field_the_engine_reads_the_last_only() {
        for (text, want) in [
            (r#"{"max_tokens":5,"max_tokens":9}"#, r#"{"max_tokens":9}"#),
            (r#"{"a":1, "model" : "x" , "n":2,"mod\u0065l":"y"}"#, r#"{"a":1,  "n":2,"mod\u0065l":"y"}"#),
            (r#"{"n":1,"n":2,"n":3,"stop":","}"#, r#"{"n":3,"stop":","}"#),
            (r#"{"messages":[{"content":"a,\"b"}],"messages":[]}"#, r#"{"messages":[]}"#),
        ] {
            let body = Bytes::copy_from_slice(text.as_bytes());
            let fields = fields(&body).unwrap();
            let mut splices = Splices::new();
            drop_duplicates(&mut splices, &body, &fields);
            assert_eq!(splices.apply(&body).concat(), want.as_bytes(), "{text}");
        }
    }

    #[test]
    fn a_clamp_changes_the_value_only_and_absence_gets_the_cap() {
        assert_eq!(
            capped(r#"{"max_tokens": 999 ,"x":1.0}"#, OnExcess::Clamp).unwrap(),
            r#"{"max_tokens": 100 ,"x":1.0}"#
        );
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
}
