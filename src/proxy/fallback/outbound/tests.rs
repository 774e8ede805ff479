use super::*;
use crate::config::{FallbackOn, HostedEndpoint, Roots, defaults};

fn plan(token_field: TokenField) -> FallbackPlan {
    FallbackPlan {
        url: "https://api.example.com/v1".parse().unwrap(),
        model: "hosted-x".to_owned(),
        api_key: Some("sk-hosted".into()),
        on: vec![FallbackOn::Down],
        budget: None,
        context: None,
        drop_fields: defaults::DROP_FIELDS.iter().map(|field| (*field).to_owned()).collect(),
        token_field,
        content: Vec::new(),
        endpoints: vec![HostedEndpoint::Chat],
        roots: Roots::Webpki,
        ca_file: None,
    }
}

fn sent(token_field: TokenField, endpoint: Endpoint, body: &str) -> (String, u64) {
    let (body, dropped) = super::body(&plan(token_field), endpoint, body.as_bytes()).unwrap();
    (String::from_utf8(body.to_vec()).unwrap(), dropped)
}

#[test]
fn engine_only_fields_go_and_the_rest_keeps_its_text() {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"top_k \u00e9"}],"top_k":5,"guided_json":{"a":[1]},"temperature":0.10,"cache_salt":"s","vendor":{"x":1},"min\u005fp":0.1}"#;
    let want = r#"{"model":"hosted-x","messages":[{"role":"user","content":"top_k \u00e9"}],"temperature":0.10,"vendor":{"x":1}}"#;
    assert_eq!(sent(TokenField::AsSent, Endpoint::Chat, body), (want.to_owned(), 4));
}

#[test]
fn a_chat_has_exactly_one_output_limit_or_none() {
    use TokenField::{AsSent, MaxCompletionTokens, MaxTokens};
    for (field, body, want) in [
        (AsSent, r#"{"max_tokens":50}"#, r#"{"max_tokens":50}"#),
        (AsSent, r#"{"max_completion_tokens":50}"#, r#"{"max_completion_tokens":50}"#),
        (AsSent, r#"{"max_tokens":5,"max_completion_tokens":50}"#, r#"{"max_completion_tokens":50}"#),
        (AsSent, r#"{"max_tokens":5,"max_completion_tokens":null}"#, r#"{"max_tokens":5}"#),
        (MaxTokens, r#"{"max_completion_tokens":50,"n":1}"#, r#"{"n":1,"max_tokens":50}"#),
        (MaxCompletionTokens, r#"{"max_tokens":50}"#, r#"{"max_completion_tokens":50}"#),
        (MaxCompletionTokens, r#"{"max_tokens":1,"max_tokens":50}"#, r#"{"max_completion_tokens":50}"#),
        (MaxCompletionTokens, r#"{"n":1}"#, r#"{"n":1}"#),
    ] {
        assert_eq!(sent(field, Endpoint::Chat, body).0, want, "{field:?} {body}");
    }
    let text = r#"{"max_tokens":50}"#;
    assert_eq!(sent(MaxCompletionTokens, Endpoint::Completions, text).0, text, "only chats know two names");
}

#[test]
fn running_usage_is_an_engines_own() {
    let body = r#"{"stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#;
    assert_eq!(
        sent(TokenField::AsSent, Endpoint::Chat, body),
        (r#"{"stream_options":{"include_usage":true}}"#.to_owned(), 1)
    );
}

#[test]
fn a_third_party_gets_its_own_key_and_no_other_header_than_it_needs() {
    let mut from = HeaderMap::new();
    for (name, value) in [
        ("authorization", "Bearer gw-key"),
        ("x-team-secret", "s"),
        ("user-agent", "team/1"),
        ("traceparent", "00-1-2-01"),
        ("tracestate", "a=1"),
        ("x-request-id", "r1"),
    ] {
        from.insert(name, HeaderValue::from_static(value));
    }

    let (request, _) = request(&plan(TokenField::AsSent), Endpoint::Chat, &from, b"{}").unwrap();

    let mut names: Vec<&str> = request.headers().keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["authorization", "content-type", "traceparent", "tracestate", "x-request-id"]);
    assert_eq!(request.headers()[header::AUTHORIZATION], "Bearer sk-hosted");
    assert!(request.headers()[header::AUTHORIZATION].is_sensitive());
    assert_eq!(request.uri(), "https://api.example.com/v1/chat/completions");
}

#[test]
fn content_is_known_by_its_parts_and_not_by_words() {
    let kinds = |body: &str| {
        let fields = scan::scan(body.as_bytes()).unwrap();
        contents(body.as_bytes(), &fields).into_vec()
    };
    assert_eq!(
        kinds(
            r#"{"messages":[{"content":"\"type\":\"image_url\""},{"content":[{"type":"text"},{"type":"image_url"},{"type":"input_audio"},{"type":"image"}]}]}"#
        ),
        [Content::Image, Content::Audio]
    );
    assert_eq!(kinds(r#"{"input":[{"content":[{"type":"input_file"}]}]}"#), [Content::File]);
    assert!(kinds(r#"{"input":"image_url","messages":{"type":"image"}}"#).is_empty());
}
