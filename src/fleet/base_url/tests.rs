//! What is accepted, and how what is not is named.

use super::*;

fn parse(text: &str) -> BaseUrl {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn a_trailing_v1_is_folded_so_that_it_is_never_doubled() {
    for (text, path, chat) in [
        ("http://h:8000", "", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/", "", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1", "", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1//", "", "http://h:8000/v1/chat/completions"),
        ("http://h/openai/v1", "/openai", "http://h/openai/v1/chat/completions"),
        ("https://H.Example/a/b/", "/a/b", "https://h.example/a/b/v1/chat/completions"),
        ("http://h/v1/models-api", "/v1/models-api", "http://h/v1/models-api/v1/chat/completions"),
        ("http://h/apiv1", "/apiv1", "http://h/apiv1/v1/chat/completions"),
        ("http://[::1]:8000/v1", "", "http://[::1]:8000/v1/chat/completions"),
    ] {
        let base = parse(text);

        assert_eq!(base.path, path, "{text}");
        assert_eq!(base.url("/v1/chat/completions"), chat, "{text}");
        assert_eq!(base.uri("/v1/chat/completions").unwrap().to_string(), chat, "{text}");
    }
}

#[test]
fn the_label_always_names_the_port() {
    assert_eq!(parse("http://a").label(), "a:80");
    assert_eq!(parse("https://a/openai/v1").label(), "a:443/openai");
    assert_eq!(parse("http://127.0.0.1:8001/v1").label(), "127.0.0.1:8001");
}

#[test]
fn what_cannot_be_a_replica_is_named_with_its_remedy() {
    for (text, remedy) in [
        ("", "write http://host:port"),
        ("localhost:8000", "write http://localhost:8000"),
        ("10.0.0.1", "no scheme"),
        ("ftp://h:1", "only http and https"),
        ("http://", "no valid host"),
        ("http://:8000", "no host"),
        ("http://h:0", "port 0"),
        ("http://h:99999", "1 to 65535"),
        ("http://h:", "1 to 65535"),
        ("http://h:80a", "no"),
        ("http://h:8000?x=1", "query"),
        ("http://h:8000/#top", "fragment"),
        ("http://h/a//b", "segment"),
        ("http://h/../b", "segment"),
        ("http://h /b", "white space"),
    ] {
        let error = text.parse::<BaseUrl>().unwrap_err();

        assert!(error.to_string().contains(remedy), "{text:?}: {error}");
        assert!(error.to_string().contains(&format!("{text:?}")), "names the value: {error}");
    }
}

#[test]
fn a_password_in_a_url_is_refused_and_not_repeated() {
    for text in ["http://bob:hunter2@h:8000/v1", "bob:hunter2@h:8000", "ftp://bob:hunter2@h"] {
        let error = text.parse::<BaseUrl>().unwrap_err().to_string();

        assert!(!error.contains("hunter2"), "{error}");
    }
    let error = "http://bob:hunter2@h".parse::<BaseUrl>().unwrap_err().to_string();
    assert!(error.contains("set `api_key`"), "{error}");
}

proptest::proptest! {
    #[test]
    fn what_is_accepted_reads_the_same_again(text in "(http|https|HTTP)://[a-zA-Z0-9.@:\\[\\]-]{0,20}(/[a-z0-9%./-]{0,12})?(/v1)?/{0,2}") {
        if let Ok(base) = text.parse::<BaseUrl>() {
            proptest::prop_assert_eq!(&base.to_string().parse::<BaseUrl>().unwrap_or_else(|e| panic!("{e}")), &base);
            proptest::prop_assert!(base.uri("/v1/models?x=1").is_ok());
        }
    }

    #[test]
    fn any_text_is_answered(text in ".{0,40}") {
        drop(text.parse::<BaseUrl>());
    }
}
