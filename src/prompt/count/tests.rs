use std::{collections::BTreeSet, path::Path};

use serde_json::value::RawValue;

use super::{super::template::TokenizerConfig, *};
use crate::dialect::scan;

/// One pair as an engine answered it.
#[derive(serde::Deserialize)]
struct Pair {
    request: Box<RawValue>,
    status: u16,
    response: serde_json::Value,
    #[serde(default)]
    chat_prompt_token_ids: Option<Vec<u32>>,
}

fn data(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizer").join(name);
    std::fs::read_to_string(path).unwrap()
}

fn pairs(engine: EngineKind) -> Vec<Pair> {
    let name = if engine == EngineKind::Sglang { "sglang.jsonl" } else { "vllm.jsonl" };
    data(name).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn counter() -> PromptCounter {
    let tokenizer = Tokenizer::from_json(data("tokenizer.json").as_bytes()).unwrap();
    let config: TokenizerConfig = serde_json::from_str(&data("tokenizer_config.json")).unwrap();
    let template = ChatTemplate::new(config.template().unwrap(), &config).unwrap();
    PromptCounter::new(tokenizer, Some(template))
}

fn ids_of(pair: &Pair) -> Vec<u32> {
    let tokens = pair.response["tokens"].as_array().unwrap();
    tokens.iter().map(|token| u32::try_from(token.as_u64().unwrap()).unwrap()).collect()
}

fn with<T>(body: &str, engine: EngineKind, read: impl FnOnce(&Request<'_>) -> T) -> T {
    let fields = scan(body.as_bytes()).unwrap();
    let endpoint = if fields.messages.is_some() { Endpoint::Chat } else { Endpoint::Completions };
    read(&Request { body: body.as_bytes(), fields: &fields, endpoint, engine, now: 0 })
}

/// Every pair that an engine answered has the same token ids here; the others it refused for reasons of its own.
#[test]
fn token_ids_equal_those_of_the_engines() {
    let counter = counter();
    for (engine, answered) in [(EngineKind::Vllm, 33), (EngineKind::Sglang, 33)] {
        let mut equal = 0;
        for pair in pairs(engine).iter().filter(|pair| pair.status == 200) {
            let body = pair.request.get();
            let want = ids_of(pair);
            let ids = with(body, engine, |request| counter.ids(request)).unwrap();
            assert_eq!(ids, want, "{engine:?}: {body}");
            if let Some(chat) = &pair.chat_prompt_token_ids {
                assert_eq!(&ids, chat, "the chat endpoint reads the same: {body}");
            }
            if !body.contains("add_special_tokens") {
                let counted = with(body, engine, |request| counter.count(request)).unwrap();
                assert_eq!(counted, Counted::exactly(want.len() as u64), "{body}");
            }
            equal += 1;
        }
        assert_eq!(equal, answered, "{engine:?}");
    }
}

/// A fresh estimate, one that has learned from the pairs before it, and one of another order: none is ever too low by
/// more than the margin.
#[test]
fn estimates_are_never_too_low_by_more_than_the_margin() {
    for engine in [EngineKind::Vllm, EngineKind::Sglang] {
        let (fresh, learning) = (Ratio::default(), Ratio::default());
        for pair in pairs(engine).iter().filter(|pair| pair.status == 200) {
            let body = pair.request.get();
            let truth = ids_of(pair).len() as u64;
            for ratio in [&fresh, &learning] {
                let counted =
                    with(body, engine, |request| estimate(request.body, request.fields, request.endpoint, ratio));
                assert!(counted.most >= truth, "{counted:?} for {truth} tokens: {body}");
                assert!(counted.longest <= truth, "{counted:?} for {truth} tokens: {body}");
                assert!(!counted.exact);
            }
            let weight =
                with(body, engine, |request| estimate(request.body, request.fields, request.endpoint, &fresh)).weight;
            learning.learn(weight, truth);
        }
    }
}

#[test]
fn token_ids_are_counted_in_every_mode() {
    let ratio = Ratio::default();
    for (prompt, tokens, longest) in
        [("[1,2,3]", 3, 3), ("[[1,2,3],[4, 5]]", 5, 3), ("[ 1 , 22 ,333333333 ]", 3, 3), ("[7]", 1, 1)]
    {
        let body = format!(r#"{{"prompt":{prompt}}}"#);
        let counted =
            with(&body, EngineKind::Vllm, |request| estimate(request.body, request.fields, request.endpoint, &ratio));
        assert_eq!(
            (counted.tokens, counted.most, counted.longest, counted.exact),
            (tokens, tokens, longest, true),
            "{prompt}"
        );
    }
}

/// A conversation of `turns` turns with all that splits a text: marks of the template in it, other scripts, white space.
fn conversation(turns: usize) -> String {
    let words = ["alpha", "naïve", "世界", "<|im_end|>", "\\n\\n  ", "x=1;", "<tool_call>", "🙂", "Ж", "the the"];
    let messages = (0..turns).map(|turn| {
        let role = if turn % 2 == 0 { "user" } else { "assistant" };
        let text: Vec<&str> = (0..turn * 7 % 50 + 1).map(|at| words[(turn * 31 + at * at) % words.len()]).collect();
        format!(r#"{{"role":"{role}","content":"{}"}}"#, text.join(" "))
    });
    format!(r#"{{"messages":[{}]}}"#, messages.collect::<Vec<_>>().join(","))
}

#[test]
fn a_remembered_beginning_changes_no_count() {
    let remembering = counter();
    for turns in [1, 2, 3, 40, 41, 42, 43, 7, 41] {
        let body = conversation(turns);
        let ids = with(&body, EngineKind::Vllm, |request| counter().ids(request)).unwrap();
        let counted = with(&body, EngineKind::Vllm, |request| remembering.count(request)).unwrap();
        assert_eq!(counted.tokens, ids.len() as u64, "{turns} turns");
    }
}

#[test]
fn what_only_the_engine_can_count_is_told_apart() {
    let counter = counter();
    for (body, exact) in [
        (r#"{"messages":[{"role":"user","content":"x"}]}"#, true),
        (r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]}"#, false),
        (r#"{"prompt":"x"}"#, true),
        (r#"{"prompt":"x","truncate_prompt_tokens":5}"#, false),
        (r#"{"prompt":["x","y z"]}"#, true),
    ] {
        assert_eq!(with(body, EngineKind::Vllm, |request| counter.count(request)).unwrap().exact, exact, "{body}");
    }
    for body in [r#"{"messages":3}"#, r#"{"prompt":null}"#, r#"{"messages":[]}"#] {
        assert!(with(body, EngineKind::Vllm, |request| counter.count(request)).is_err(), "{body}");
    }
    let engines: BTreeSet<u64> = [EngineKind::Vllm, EngineKind::Sglang]
        .map(|engine| {
            let body =
                r#"{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}]}"#;
            with(body, engine, |request| counter.count(request)).unwrap().tokens
        })
        .into();
    assert_eq!(engines.len(), 2, "the engines put different tools into the prompt");
}
