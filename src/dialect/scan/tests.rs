use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn text_of(body: &str, field: impl Fn(&Fields) -> Option<Span>) -> Option<String> {
    let fields = scan(body.as_bytes()).unwrap();
    field(&fields).map(|span| String::from_utf8(span.of(body.as_bytes()).to_vec()).unwrap())
}

#[test]
fn fields_are_found_whatever_is_around_them() {
    let body = "\t{ \"x\" : [1, {\"model\":\"no\"}, [[]]] ,\r\n\"model\" : \"m\", \"stream_options\":{\"a\":{},\"include_usage\" : true } , \"n\":2} \n";
    let fields = scan(body.as_bytes()).unwrap();

    assert_eq!(string_value(body.as_bytes(), fields.model.unwrap()).unwrap(), "m");
    assert_eq!(bool_value(body.as_bytes(), fields.include_usage.unwrap()), Some(true));
    assert_eq!(int_value(body.as_bytes(), fields.n.unwrap()), Some(2));
    assert_eq!(body.split_at(fields.close).1, "} \n");
    assert!(!fields.empty && !fields.duplicates);
    assert!(fields.messages.is_none());
}

#[test]
fn the_last_of_duplicates_counts_and_earlier_ones_are_known() {
    let body = r#"{"max_tokens":1,"n":1,"max_tokens":22,"max_\u0074okens":333}"#;
    let fields = scan(body.as_bytes()).unwrap();

    assert_eq!(int_value(body.as_bytes(), fields.max_tokens.unwrap()), Some(333));
    let earlier: Vec<_> = fields.duplicates_of("max_tokens").map(|span| span.of(body.as_bytes())).collect();
    assert_eq!(earlier, [&b"1"[..], b"22"]);
    assert!(fields.duplicates);
    assert_eq!(fields.duplicates_of("n").count(), 0);
}

#[test]
fn look_alike_keys_are_other_keys() {
    let body = r#"{"Model":"a","model ":"b","modelx":"c","m\u006fdel":"d"}"#;

    assert_eq!(text_of(body, |fields| fields.model).as_deref(), Some(r#""d""#));
}

#[test]
fn what_python_accepts_is_accepted() {
    for body in [
        r#"{"x":NaN,"y":[Infinity,-Infinity]}"#,
        "{}",
        " { } ",
        "\u{feff}{\"model\":1}",
        r#"{"x":"\ud83d cut"}"#,
        r#"{"x":18446744073709551617e-0005}"#,
        "{\"prompt\":[1,\n  22,\t333 , 4444444444, -5, 1.5]}",
        "{\"prompt\":[ 1, 22,3]}",
    ] {
        assert!(scan(body.as_bytes()).is_ok(), "{body}: {:?}", scan(body.as_bytes()));
    }
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    for (body, message) in [
        ("", "byte 0: expected a JSON object"),
        ("[]", "byte 0: expected a JSON object"),
        (r#"{"model":"m""#, "byte 12: expected ',' or '}'"),
        (r#"{"model" "m"}"#, "byte 9: expected ':'"),
        (r#"{"model":}"#, "byte 9: expected a value"),
        (r#"{"model":1,}"#, "byte 11: expected a member name in quotes"),
        (r#"{"a":[1,]}"#, "byte 8: expected a value"),
        (r#"{"a":[1 2]}"#, "byte 8: expected ',' or ']'"),
        (r#"{"a":01}"#, "byte 5: expected a value"),
        (r#"{"a":"x}"#, "byte 8: the string does not end"),
        ("{\"a\":\"x\ny\"}", "byte 7: control character inside a string"),
        (r#"{"a":"\x"}"#, "byte 6: bad escape inside a string"),
        (r#"{} {}"#, "byte 3: text after the end of the JSON object"),
    ] {
        assert_eq!(scan(body.as_bytes()).unwrap_err().to_string(), message, "{body}");
    }
    assert_eq!(scan(b"{\"a\":\"\xff\"}").unwrap_err().to_string(), "byte 6: not UTF-8");
}

#[test]
fn numbers_are_read_as_whole_if_they_are() {
    let int = |text: &str| int_value(text.as_bytes(), Span { start: 0, end: text.len() });

    assert_eq!([int("5"), int("5.0"), int("1e3"), int("-2")], [Some(5), Some(5), Some(1000), Some(-2)]);
    assert_eq!([int("1e999"), int("99999999999999999999")], [Some(i64::MAX), Some(i64::MAX)]);
    assert_eq!([int("5.5"), int("\"5\""), int("true"), int("NaN"), int("null")], [None; 5]);
}

/// JSON text of any shape, with any white space, duplicates, escaped keys and raw or escaped strings.
fn json(depth: u32) -> BoxedStrategy<String> {
    let scalar = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        any::<i64>().prop_map(|number| number.to_string()),
        (0_u32..200_000).prop_map(|number| number.to_string()),
        any::<f32>().prop_filter("finite", |number| number.is_finite()).prop_map(|number| format!("{number:e}")),
        string(),
    ];
    scalar
        .prop_recursive(depth, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec((space(), inner.clone(), space()), 0..8).prop_map(|elements| {
                    let elements: Vec<_> = elements.iter().map(|(a, b, c)| format!("{a}{b}{c}")).collect();
                    format!("[{}]", elements.join(","))
                }),
                prop::collection::vec((space(), key(), inner), 0..6).prop_map(|members| object(&members)),
                prop::collection::vec(0_u32..300_000, 0..40).prop_map(|ids| serde_json::to_string(&ids).unwrap()),
            ]
        })
        .boxed()
}

fn object(members: &[(String, String, String)]) -> String {
    let members: Vec<_> =
        members.iter().map(|(space, key, value)| format!("{space}{key}{space}:{space}{value}")).collect();
    format!("{{{}}}", members.join(","))
}

fn space() -> impl Strategy<Value = String> {
    prop_oneof![4 => Just(String::new()), 1 => "[ \t\r\n]{1,3}"]
}

fn string() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
        Just(r#""\u00e9\ud83d\ude00\/""#.to_owned()),
    ]
}

const KEYS: [&str; 8] = ["model", "stream", "stream_options", "max_tokens", "messages", "n", "include_usage", "x"];

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        (0..KEYS.len()).prop_map(|number| format!("\"{}\"", KEYS[number])),
        (0..KEYS.len()).prop_map(|number| format!(
            "\"\\u{:04x}{}\"",
            KEYS[number].as_bytes()[0],
            KEYS[number].split_at(1).1
        )),
        string(),
    ]
}

fn body() -> impl Strategy<Value = String> {
    prop::collection::vec((space(), key(), json(4)), 0..10).prop_map(|members| object(&members))
}

fn value_of(body: &str, span: Option<Span>) -> Option<Value> {
    span.map(|span| serde_json::from_slice(span.of(body.as_bytes())).unwrap())
}

proptest! {
    #[test]
    fn values_are_those_that_serde_json_sees(body in body()) {
        let oracle: Value = serde_json::from_str(&body).unwrap();
        let fields = scan(body.as_bytes()).unwrap();

        for (name, span) in [
            ("model", fields.model),
            ("stream", fields.stream),
            ("stream_options", fields.stream_options),
            ("max_tokens", fields.max_tokens),
            ("messages", fields.messages),
            ("n", fields.n),
        ] {
            prop_assert_eq!(value_of(&body, span), oracle.get(name).cloned(), "{}", name);
        }
        let usage = oracle.get("stream_options").and_then(|options| options.get("include_usage"));
        prop_assert_eq!(value_of(&body, fields.include_usage), usage.cloned());
        prop_assert_eq!(fields.empty, oracle.as_object().unwrap().is_empty());
    }

    #[test]
    fn every_truncation_is_an_error(body in body()) {
        for end in 0..body.trim_end().len() {
            prop_assert!(scan(&body.as_bytes()[..end]).is_err(), "cut at {}", end);
        }
    }

    #[test]
    fn one_changed_byte_is_judged_as_serde_json_judges_it(body in body(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = body.into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let oracle = serde_json::from_slice::<serde_json::Map<String, Value>>(&bytes);
        let tolerated = [&b"\\ud"[..], b"\\uD", b"NaN", b"Inf"].iter().any(|word| memchr::memmem::find(&bytes, word).is_some());
        // serde_json refuses numbers that no f64 can hold, Python does not.
        let huge = oracle.as_ref().is_err_and(|error| error.to_string().contains("number out of range"));

        prop_assert!(tolerated || huge || scan(&bytes).is_ok() == oracle.is_ok(), "{:?} {:?}", scan(&bytes), oracle);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        scan(&bytes).ok();
    }

    #[test]
    fn no_json_like_bytes_panic(text in r#"[\[\]{}:,"\\u0-9dea.\- tfn]{0,60}"#) {
        scan(format!("{{\"a\":{text}").as_bytes()).ok();
        scan(text.as_bytes()).ok();
    }
}

#[test]
fn a_body_of_duplicates_is_refused_early() {
    let body = |times: usize| format!("{{{}\"model\":\"m\"}}", r#""model":"m","#.repeat(times));

    assert_eq!(scan(body(16).as_bytes()).unwrap().duplicates_of("model").count(), 16);
    let error = scan(body(100_000).as_bytes()).unwrap_err();
    assert_eq!(error.what, "too many duplicate fields");
    assert!(error.offset < 300, "not the whole body is read: {error}");
}
