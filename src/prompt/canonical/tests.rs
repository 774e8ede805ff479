use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::dialect::scan;

const BLOCK: u32 = 16;

fn chain_of(body: &str, endpoint: Endpoint) -> Chain {
    seeded(body, endpoint, &ChainSeed { model: "m", ..ChainSeed::default() })
}

fn seeded(body: &str, endpoint: Endpoint, seed: &ChainSeed<'_>) -> Chain {
    chain(body.as_bytes(), &scan(body.as_bytes()).unwrap(), endpoint, seed, BLOCK)
}

fn chat(body: &Value) -> Chain {
    chain_of(&body.to_string(), Endpoint::Chat)
}

fn shared(a: &Chain, b: &Chain) -> usize {
    a.hashes().iter().zip(b.hashes()).take_while(|(a, b)| a == b).count()
}

#[test]
fn space_key_order_and_escapes_make_no_difference() {
    let a = r#"{"model":"m","tools":[{"a":"é","b":[1,2]}],"messages":[{"role":"user","name":"n","content":"grüße an alle, und noch mehr"},{"role":"tool","tool_call_id":"t1","content":"ok","x":{"y":1},"z":2}]}"#;
    let b = r#"{ "messages" : [ { "content" : "gr\u00fc\u00dfe an alle, und noch mehr" , "name":"n", "role" : "user" } ,
        { "z": 2, "x" : { "y" : 1 }, "content" : [ {"text":"ok", "type":"text"} ] , "tool_call_id" : "t1" , "role":"tool"} ] ,
        "tools" : [ { "a" : "\u00e9", "b" : [ 1 , 2 ] } ] , "model":"m" }"#;
    let (a, b) = (chain_of(a, Endpoint::Chat), chain_of(b, Endpoint::Chat));

    assert_eq!(a.hashes(), b.hashes());
    assert_eq!((a.bytes(), a.stable_key()), (b.bytes(), b.stable_key()));
    assert!(a.blocks() > 4);
}

#[test]
fn tools_come_first() {
    let messages = json!([{"role":"user","content":"a question that is long enough for some blocks"}]);
    let tools = json!([{"type":"function","function":{"name":"f","description":"long enough for some blocks"}}]);
    let other = json!([{"role":"user","content":"another one"}]);

    let a = chat(&json!({"messages":messages, "tools":tools}));
    assert!(shared(&a, &chat(&json!({"messages":other, "tools":tools}))) >= 5);
    assert_eq!(shared(&a, &chat(&json!({"messages":messages}))), 0);
}

#[test]
fn what_separates_caches_separates_chains() {
    let body = json!({"messages":[{"role":"user","content":"x".repeat(100)}]}).to_string();
    let base = ChainSeed { model: "m", ..ChainSeed::default() };
    let seeds = [
        base,
        ChainSeed { model: "n", ..base },
        ChainSeed { lora: Some(b"\"a\""), ..base },
        ChainSeed { cache_salt: Some(b"\"a\""), ..base },
        ChainSeed { group: Some("\"a\""), ..base },
        ChainSeed { chat_template_kwargs: Some(b"\"a\""), ..base },
        ChainSeed { lora: Some(b""), ..base },
    ];
    let chains: Vec<_> = seeds.iter().map(|seed| seeded(&body, Endpoint::Chat, seed)).collect();

    for (number, chain) in chains.iter().enumerate() {
        assert!(chains.iter().skip(number + 1).all(|other| shared(chain, other) == 0), "seed {number}");
    }
}

#[test]
fn images_count_by_digest() {
    let with = |url: &str| {
        chat(&json!({"messages":[{"role":"user","content":[
            {"type":"text","text":"what is on this picture, please?"},
            {"type":"image_url","image_url":{"url":url}},
            {"type":"text","text":"answer in one sentence, it is urgent"}]}]}))
    };
    let (cat, dog) = (with(&"c".repeat(10_000)), with(&"d".repeat(10_000)));

    assert_eq!(cat.hashes(), with(&"c".repeat(10_000)).hashes());
    assert!(cat.bytes() < 200, "an image is eight bytes");
    let same = shared(&cat, &dog);
    assert!((2..6).contains(&same), "the text before is shared, what follows is not: {same} of {}", cat.blocks());
}

#[test]
fn token_ids_take_four_bytes_however_they_are_written() {
    let ids: Vec<u32> = (0..1000).map(|number| number * 7919 % 200_000).collect();
    let dense = json!({"prompt": ids}).to_string();
    let loose = format!("{{\"prompt\":{}}}", serde_json::to_string_pretty(&ids).unwrap());
    let spaced = dense.replace(',', ", ");
    let chain = chain_of(&dense, Endpoint::Completions);

    assert_eq!(chain.bytes(), 4000);
    for other in [&loose, &spaced] {
        assert_eq!(chain.hashes(), chain_of(other, Endpoint::Completions).hashes());
    }
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let mut hasher = Hasher::new(&ChainSeed { model: "m", ..ChainSeed::default() }, BLOCK, 0);
    hasher.put(&bytes);
    assert_eq!(chain.hashes(), hasher.finish().hashes());
}

#[test]
fn batches_are_one_prompt_after_the_other() {
    let completions = |prompt: Value| chain_of(&json!({ "prompt": prompt }).to_string(), Endpoint::Completions);

    let strings = completions(json!(["a".repeat(64), "b".repeat(64)]));
    assert_eq!(shared(&strings, &completions(json!("a".repeat(64)))), 4);
    assert_eq!(strings.bytes(), 132);
    assert_eq!(completions(json!([[1, 2, 3], [4, 5, 6]])).bytes(), 28);
    assert_ne!(
        completions(json!([[1, 2, 3], [4, 5, 6]])).hashes(),
        completions(json!([[1, 2], [3, 4, 5, 6]])).hashes()
    );
}

#[test]
fn each_endpoint_has_its_own_prompt() {
    let long = "some text that is longer than one block";
    for (endpoint, body) in [
        (Endpoint::Chat, json!({"messages":[{"role":"user","content":long}]})),
        (Endpoint::Messages, json!({"system":[{"type":"text","text":long}],"messages":[]})),
        (Endpoint::Responses, json!({"instructions":long})),
        (Endpoint::Responses, json!({"input":long})),
        (Endpoint::Responses, json!({"input":[{"role":"user","content":[{"type":"input_text","text":long}]}]})),
        (Endpoint::Completions, json!({"prompt":long})),
        (Endpoint::Embeddings, json!({"input":[long, long]})),
        (Endpoint::Rerank, json!({"query":"q","documents":[long]})),
        (Endpoint::Score, json!({"text_1":long,"text_2":[long]})),
        (Endpoint::Tokenize, json!({"prompt":long})),
        (Endpoint::Detokenize, json!({"tokens":[1, 2, 3, 4, 5, 6, 7, 8]})),
    ] {
        assert!(chain_of(&body.to_string(), endpoint).blocks() >= 2, "{endpoint:?} {body}");
    }
}

#[test]
fn the_stable_key_is_the_same_for_all_turns_of_what_belongs_together() {
    let system = json!({"role":"system","content":"s".repeat(64)});
    let ask = |question: &str| chat(&json!({"messages":[system, {"role":"user","content":question}]})).stable_key();
    assert_eq!(ask(&"a".repeat(50)), ask("b"), "one system prompt, one home");

    let user = |text: &str, more: &[Value]| {
        let mut messages = vec![json!({"role":"system","content":"short"}), json!({"role":"user","content":text})];
        messages.extend_from_slice(more);
        chat(&json!({ "messages": messages })).stable_key()
    };
    let first = "u".repeat(64);
    let turn = [json!({"role":"assistant","content":"yes ".repeat(20)}), json!({"role":"user","content":"next"})];
    assert_eq!(user(&first, &[]), user(&first, &turn), "all turns of a conversation, one home");
    assert_ne!(user(&first, &[]), user(&"v".repeat(64), &[]));
    let document = "d".repeat(200);
    assert_eq!(user(&format!("{document} one"), &[]), user(&format!("{document} two"), &[]), "one document, one home");
    assert_eq!(user("hi", &[]), user("hi", &[]));
}

#[test]
fn long_prompts_keep_sparse_checkpoints() {
    let blocks = 10_000;
    let body = json!({"prompt": "x".repeat(blocks * BLOCK as usize)}).to_string();
    let chain = chain_of(&body, Endpoint::Completions);

    assert_eq!(chain.blocks() as usize, blocks);
    let depths: Vec<_> = (0..chain.hashes().len()).map(|checkpoint| chain.depth(checkpoint)).collect();
    assert_eq!(depths.len(), 512 + (4096 - 512) / 8 + (10_000 - 4096) / 64);
    assert_eq!([depths[0], depths[511], depths[512], depths[959], depths[960]], [1, 512, 520, 4096, 4160]);
    // A shorter prompt has the same hashes at the same depths.
    let shorter = chain_of(&json!({"prompt": "x".repeat(5_000 * BLOCK as usize)}).to_string(), Endpoint::Completions);
    assert_eq!(shared(&chain, &shorter), shorter.hashes().len());
}

fn weird() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<f32>().prop_filter("finite", |number| number.is_finite()).prop_map(Value::from),
        ".{0,40}".prop_map(Value::from),
        Just(json!("user")),
        Just(json!("text")),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        let key = prop_oneof![
            Just("role".to_owned()),
            Just("content".to_owned()),
            Just("type".to_owned()),
            Just("text".to_owned()),
            Just("tool_calls".to_owned()),
            Just("name".to_owned()),
            Just("image_url".to_owned()),
            ".{0,3}",
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..6).prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn message() -> impl Strategy<Value = Value> {
    let role = prop_oneof![Just("user"), Just("assistant"), Just("system"), Just("tool")];
    prop_oneof![
        3 => (role, ".{0,60}").prop_map(|(role, text)| json!({"role":role,"content":text})),
        1 => weird(),
    ]
}

proptest! {
    #[test]
    fn no_shape_panics(value in weird()) {
        let body = json!({"messages":value,"prompt":value,"input":value,"system":value,"tools":value,"documents":value,"text_1":value});
        let pretty = serde_json::to_string_pretty(&body).unwrap();
        for endpoint in Endpoint::ALL {
            let compact = chain_of(&body.to_string(), endpoint);
            let loose = chain_of(&pretty, endpoint);
            prop_assert_eq!(compact.hashes(), loose.hashes(), "white space made a difference");
            prop_assert_eq!(compact.stable_key(), loose.stable_key());
        }
    }

    #[test]
    fn appending_a_message_keeps_all_earlier_hashes(messages in prop::collection::vec(message(), 1..8)) {
        let all = chat(&json!({ "messages": messages }));
        for count in 0..messages.len() {
            let fewer = chat(&json!({ "messages": messages[..count] }));
            prop_assert_eq!(shared(&all, &fewer), fewer.hashes().len(), "{} of {}", count, messages.len());
        }
    }

    #[test]
    fn escaped_and_raw_text_are_the_same(text in ".{0,80}") {
        let raw = json!({"messages":[{"role":"user","content":text}]}).to_string();
        let escaped: String = raw.chars().flat_map(|letter| {
            let mut units = [0; 2];
            let units = if letter.is_ascii() { Vec::new() } else { letter.encode_utf16(&mut units).to_vec() };
            if units.is_empty() { vec![letter.to_string()] } else { units.iter().map(|unit| format!("\\u{unit:04x}")).collect() }
        }).collect();

        let (raw, escaped) = (chain_of(&raw, Endpoint::Chat), chain_of(&escaped, Endpoint::Chat));
        prop_assert_eq!(raw.hashes(), escaped.hashes());
        prop_assert_eq!(raw.stable_key(), escaped.stable_key());
    }

    #[test]
    fn cuts_make_no_difference(text in "[a-z]{0,200}", cuts in prop::collection::vec(1_usize..40, 1..20)) {
        let seed = ChainSeed::default();
        let mut whole = Hasher::new(&seed, BLOCK, 0);
        whole.put(text.as_bytes());
        let mut pieces = Hasher::new(&seed, BLOCK, 0);
        let mut rest = text.as_bytes();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() { break; }
            let (piece, after) = rest.split_at((*cut).min(rest.len()));
            pieces.put(piece);
            rest = after;
        }
        let (whole, pieces) = (whole.finish(), pieces.finish());
        prop_assert_eq!(whole.hashes(), pieces.hashes());
        prop_assert_eq!(whole.stable_key(), pieces.stable_key());
    }
}
