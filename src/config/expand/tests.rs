//! Placeholders: where they work, what they refuse, and that no value changes the structure of the file.

use proptest::prelude::*;

use super::*;

fn env(name: &str) -> Option<String> {
    match name {
        "HOST" => Some("10.0.0.1".to_owned()),
        "PORT" => Some("8080".to_owned()),
        "URL" => Some("http://10.0.0.1:8000/v1".to_owned()),
        "EMPTY" => Some(String::new()),
        "EVIL" => Some("x\nadmin: true # \"'\\ }] &a *a !t".to_owned()),
        _ => None,
    }
}

fn read(text: &str) -> serde_json::Value {
    serde_saphyr::from_str(&expand(text, &env).unwrap().text).unwrap()
}

fn faults(text: &str) -> Vec<Fault> {
    expand(text, &env).unwrap_err()
}

#[test]
fn placeholders_expand_in_plain_quoted_and_flow_scalars() {
    let value = read(
        "a: ${HOST}\nb: \"http://${HOST}:${PORT}\"\nc: 'x${HOST}'\nd: { url: ${URL}, p: ${PORT} }\ne: [${HOST}]\n",
    );

    assert_eq!(value["a"], "10.0.0.1");
    assert_eq!(value["b"], "http://10.0.0.1:8080");
    assert_eq!(value["c"], "x10.0.0.1");
    assert_eq!(value["d"]["url"], "http://10.0.0.1:8000/v1");
    assert_eq!(value["d"]["p"], 8080, "a plain number stays a number");
    assert_eq!(value["e"][0], "10.0.0.1");
}

#[test]
fn a_default_stands_in_for_an_unset_or_empty_variable() {
    let value = read("a: ${NONE:-http://x:1}\nb: ${EMPTY:-dflt}\nc: \"${NONE:-}\"\nd: ${NONE:-}\n");

    assert_eq!(value["a"], "http://x:1");
    assert_eq!(value["b"], "dflt");
    assert_eq!(value["c"], "");
    assert_eq!(value["d"], "");
}

#[test]
fn an_unset_or_empty_variable_without_default_names_its_line() {
    let found = faults("a: 1\nb: ${NONE}\nc: ${EMPTY}\n");

    assert_eq!(found.len(), 2, "all of them are reported");
    assert_eq!(found[0].0, 2);
    assert!(found[0].1.contains("`NONE` is not set"), "{}", found[0].1);
    assert_eq!(found[1].0, 3);
    assert!(found[1].1.contains("`EMPTY` is empty"), "{}", found[1].1);
}

#[test]
fn comments_and_escaped_dollars_are_left_alone() {
    let value = read("# ${NONE} $${x} ${broken\na: $${HOST} # ${NONE}\nb: pa$$word\nc: $5\n");

    assert_eq!(value["a"], "${HOST}");
    assert_eq!(value["b"], "pa$word");
    assert_eq!(value["c"], "$5");
}

#[test]
fn what_only_looks_like_a_placeholder_is_refused() {
    assert!(faults("a: ${HOST\n")[0].1.contains("has no `}`"));
    assert!(faults("a: ${}\n")[0].1.contains("no placeholder"));
    assert!(faults("a: ${1A}\n")[0].1.contains("no placeholder"));
    assert!(faults("a: ${HOST-x}\n")[0].1.contains("no placeholder"));
    let (line, message) = &faults("a: 1\nb: |\n  ${HOST}\n")[0];
    assert_eq!(*line, 3);
    assert!(message.contains("one-line"));
}

#[test]
fn lines_after_an_expansion_keep_their_numbers() {
    let text = "a: ${EVIL}\nb: [\n";

    let expanded = expand(text, &env);

    assert_eq!(expanded.unwrap_err()[0].0, 2, "the unclosed list");
    let text = expand("a: ${EVIL}\nb: 1\n", &env).unwrap().text;
    assert_eq!(text.lines().count(), 2);
}

#[test]
fn a_value_with_yaml_inside_stays_one_value() {
    for text in ["a: ${EVIL}\n", "a: \"${EVIL}\"\n", "a: '${EVIL}'\n"] {
        let value = read(text);
        assert_eq!(value["a"], env("EVIL").unwrap(), "{text}");
        assert_eq!(value.as_object().unwrap().len(), 1, "{text}");
    }
    assert_eq!(read("a: [ ${EVIL} ]\n")["a"][0], env("EVIL").unwrap());
}

#[test]
fn values_from_the_environment_are_masked_in_messages() {
    let expanded = expand("a: ${URL}\n", &env).unwrap();

    assert_eq!(expanded.scrub("a is http://10.0.0.1:8000/v1"), "a is ${URL}");
}

proptest! {
    #[test]
    fn any_value_is_read_back_as_itself_in_any_quoting(value in "\\PC{0,12}|[ :#\\-\\[\\]{}\"'\\\\\n\t&*!|>%@`,?~a1]{1,8}") {
        let env = |_: &str| Some(value.clone());
        prop_assume!(!value.is_empty() && !value.contains(['\u{E000}', '\u{E001}']));
        for text in ["a: \"${V}\"\nz: 1\n", "a: '${V}'\nz: 1\n", "{ a: \"${V}\", z: 1 }\n", "a: x ${V}\nz: 1\n"] {
            let expanded = expand(text, &env).unwrap();
            let read: serde_json::Value = serde_saphyr::from_str(&expanded.text).unwrap();
            let prefix = if text.contains("x ") { "x " } else { "" };
            let found = match &read["a"] {
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            prop_assert_eq!(found, format!("{}{}", prefix, value));
            prop_assert_eq!(&read["z"], 1);
        }
    }

    #[test]
    fn a_plain_value_never_adds_or_removes_a_key(value in "[ :#\\-\\[\\]{}\"'\\\\\n\t&*!|>%@`,?~a1.=+_/]{1,8}") {
        let env = |_: &str| Some(value.clone());
        for text in ["a: ${V}\nz: 1\n", "{ a: ${V}, z: 1 }\n", "a: [ ${V} ]\nz: 1\n"] {
            let expanded = expand(text, &env).unwrap();
            let read: serde_json::Value = serde_saphyr::from_str(&expanded.text).unwrap();
            prop_assert_eq!(read.as_object().map(serde_json::Map::len), Some(2));
            prop_assert_eq!(&read["z"], 1);
        }
    }
}
