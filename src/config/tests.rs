//! The loader from outside: texts in, plans or messages out.

use std::{collections::BTreeSet, io::Write as _, path::PathBuf, time::Duration};

use secrecy::ExposeSecret;

use super::*;

const HASH: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

fn env(name: &str) -> Option<String> {
    match name {
        "KEY" => Some("sk-from-the-environment".to_owned()),
        "LOOPBACK" => Some("127.0.0.1".to_owned()),
        _ => None,
    }
}

/// A file with this text, removed when dropped.
struct TempFile(PathBuf);

impl TempFile {
    fn new(text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gateway-config-{}.yaml", uuid::Uuid::now_v7()));
        std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

fn with(text: &str, overrides: Overrides) -> Result<Plan, ConfigError> {
    let file = TempFile::new(text);
    load(&Overrides { config: Some(file.0.clone()), ..overrides }, &env)
}

fn plan(text: &str) -> Plan {
    with(text, Overrides::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// Messages as `line: message`.
fn problems(text: &str) -> Vec<String> {
    let error = with(text, Overrides::default()).unwrap_err();
    let cut = |problem: &Problem| {
        let line = problem.place.rsplit_once(".yaml:").map_or("?", |(_, line)| line);
        format!("{line}: {}", problem.message)
    };
    error.problems.iter().map(cut).collect()
}

/// A valid model with more keys.
fn model(more: &str) -> String {
    format!("models:\n  - name: m\n    replicas: [ {{ url: http://127.0.0.1:8000 }} ]\n{more}")
}

#[test]
fn flags_alone_are_a_configuration() {
    let overrides = Overrides {
        replicas: vec!["http://127.0.0.1:8000".to_owned(), "http://127.0.0.1:8001/v1".to_owned()],
        listen: Some("127.0.0.1:0".parse().unwrap()),
        policy: Some("least_load".to_owned()),
        ..Overrides::default()
    };

    let plan = load(&overrides, &env).unwrap();

    let open = plan.open.unwrap();
    assert_eq!(open.replicas.len(), 2);
    assert_eq!(open.replicas[1].url.to_string(), "http://127.0.0.1:8001");
    assert_eq!(open.routing.policy, "least_load");
    assert_eq!(plan.server.listen.port(), 0);
    assert_eq!(plan.server.admin_listen, defaults::ADMIN_LISTEN);
    assert!(plan.models.is_empty());
}

#[test]
fn nothing_to_serve_is_an_error() {
    for text in ["", "# nothing\n", "models: []\n"] {
        assert!(problems(text)[0].contains("nothing to serve"), "{text:?}");
    }
    assert!(load(&Overrides::default(), &env).unwrap_err().to_string().contains("--replica URL"));
}

#[test]
fn a_file_with_conformance_keys_loads() {
    let text = "server:\n  listen: 127.0.0.1:1\n  admin_listen: 127.0.0.1:2\n  limits: { body: 1048576 }\n  timeouts: { \
                first_token: 2s, stream_idle: 2s, client_idle: 2s, total: 2s, drain: 3s }\nmodels:\n  - name: m\n    \
                aliases: [fast]\n    routing: { index_entries: 524288 }\n    replicas: [ { url: http://127.0.0.1:8 }, { \
                url: http://127.0.0.1:9 } ]\n    caps: { max_output_tokens: 100, on_excess: reject }\n    concurrency: \
                { per_replica: 2, queue: 64, queue_timeout: 5s }\n    fallback: [ { url: http://127.0.0.1:7, model: \
                hosted-x, api_key: \"${KEY}\", on: [saturated,down] } ]\nkeys:\n  - { id: team-a, sha256: HASH }\n";

    let plan = plan(&text.replace("HASH", HASH));

    assert_eq!(plan.server.limits.body, 1 << 20);
    assert_eq!(plan.server.timeouts.first_event_hold, Duration::from_secs(2), "a default gives way to a shorter limit");
    assert_eq!(plan.models[0].caps.max_output_tokens, Some(100));
    assert_eq!(plan.models[0].fallback[0].api_key.as_ref().unwrap().expose_secret(), "sk-from-the-environment");
    assert_eq!(plan.keys[0].sha256[0], 0x9f);
    assert!(!plan.warnings.iter().any(|w| w.starts_with("models[0].fallback")), "{:?}", plan.warnings);
}

#[test]
fn defaults_are_those_of_the_commented_example() {
    let text = std::fs::read_to_string("config/gateway.yaml").unwrap();
    let bare = plan(
        "models:\n  - name: docsassistant-chat\n    replicas: [ { url: http://127.0.0.1:8000 } ]\n    \
                     slo: { ttft: 1s }\n",
    );

    // An objective that is written is held to; else its value is the default.
    assert_eq!(effective_yaml(&plan(&text)), effective_yaml(&bare));
}

#[test]
fn the_seed_scenario_loads_without_warnings() {
    let plan = plan(&std::fs::read_to_string("config/docsassistant.yaml").unwrap());

    assert_eq!(plan.models[0].replicas.len(), 3);
    assert_eq!(plan.warnings, Vec::<String>::new());
}

const TOKENIZER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer/tokenizer.json");

#[test]
fn a_tokenizer_that_cannot_be_read_is_named() {
    let cases =
        [("path: no.json", "tokenizer.path is `"), ("path: TOKENIZER, chat_template: no.jinja", "chat_template is `")];
    for (file, want) in cases {
        let text = model(&format!("    tokenizer: {{ {file} }}\n")).replace("TOKENIZER", TOKENIZER);
        let error = with(&text, Overrides::default()).unwrap_err().to_string();
        assert!(error.contains(want) && error.contains("cannot be read"), "{error}");
    }
    let plan = plan(&model(&format!("    tokenizer: {{ path: {TOKENIZER} }}\n")));
    assert!(plan.models[0].counter.is_some());
}

#[test]
fn the_effective_configuration_reads_back_as_itself() {
    let text = model(
        "    engine: sglang\n    tokenizer: estimate\n    slo: { ttft: null }\n    caps: { max_output_tokens: 9 }\n    \
         fallback: [ { url: https://api.example.com/v1, model: x, on: [down], budget: { usd_per_day: 1.5 } } ]\n  - \
         name: n\n    discovery: { dns: { host: a.b, interval: 3s, path: /x/ } }\n    tokenizer: { path: TOKENIZER }\n",
    )
    .replace("TOKENIZER", TOKENIZER);
    let shown = effective_yaml(&plan(&text));

    assert_eq!(effective_yaml(&plan(&shown)), shown, "{shown}");
}

#[test]
fn secrets_are_masked() {
    let text = model(
        "    api_key: sk-literal\n    fallback: [ { url: http://h, model: x, api_key: \"${KEY}\" } ]\nkeys: [ { id: a, sha256: HASH } ]\n",
    );
    let plan = plan(&text.replace("HASH", HASH));

    for shown in [effective_yaml(&plan), format!("{plan:?}")] {
        assert!(!shown.contains("sk-literal") && !shown.contains("sk-from") && !shown.contains("9f86d081"), "{shown}");
    }
    assert!(effective_yaml(&plan).contains("api_key: \"***\"") || effective_yaml(&plan).contains("api_key: '***'"));
}

#[test]
fn an_empty_api_key_is_none() {
    assert!(plan(&model("    api_key: ${NOT_SET:-}\n")).models[0].api_key.is_none());
    assert!(plan(&model("    api_key: \"\"\n")).models[0].api_key.is_none());
    assert!(plan(&model("    api_key: 12345\n")).models[0].api_key.is_some(), "a key of digits is a text");
}

#[test]
fn an_unknown_key_names_its_line_and_the_nearest_known_key() {
    for (text, expected) in [
        (
            model("    caps: { max_output_tokenz: 3 }\n"),
            "4: models[0].caps.max_output_tokenz is not a known key; did you mean `max_output_tokens`?",
        ),
        (model("    replica: []\n"), "4: models[0].replica is not a known key; did you mean `replicas`?"),
        ("sever: {}\n".to_owned(), "1: sever is not a known key; did you mean `server`?"),
        (
            "server:\n  listen: 127.0.0.1:1\n  colour: red\n".to_owned(),
            "3: server.colour is not a known key; known here: listen, ",
        ),
    ] {
        let found = problems(&text);
        assert!(found[0].starts_with(expected), "{found:?}");
    }
}

#[test]
fn a_value_of_the_wrong_type_names_line_key_and_remedy() {
    for (text, expected) in [
        (
            "models:\n  - name: m\n    replicas: disabled\n".to_owned(),
            "3: models[0].replicas is `disabled`; write a list",
        ),
        ("server:\n  limits: 5\n".to_owned(), "2: server.limits is `5`; write a map"),
        (
            model("    routing: { block_bytes: many }\n"),
            "4: models[0].routing.block_bytes is `many`; write a whole number, 0 or more",
        ),
        (
            model("    routing: { block_bytes: -1 }\n"),
            "4: models[0].routing.block_bytes is `-1`; write a whole number, 0 or more",
        ),
        (model("    engine: vlm\n"), "4: models[0].engine is `vlm`; write `auto`, `vllm`, `sglang`, `tgi` or `openai`"),
        (model("    tokenizer: engin\n"), "4: models[0].tokenizer is `engin`; write `engine` or `estimate`"),
        (
            "server: { timeouts: { connect: 2 } }\n".to_owned(),
            "1: server.timeouts.connect: `2` has no unit; write it as in 50ms, 2s or 5m",
        ),
        ("server: { limits: { body: 3 parsecs } }\n".to_owned(), "1: server.limits.body: `3 parsecs` is not a size"),
        (
            "server: { expose_routing: perhaps }\n".to_owned(),
            "1: server.expose_routing is `perhaps`; write true or false",
        ),
        ("models:\n  - replicas: []\n".to_owned(), "2: models[0] lacks `name`; add it"),
        ("server: {}\nserver: {}\n".to_owned(), "2: server is given twice; keep one"),
        ("server: {}\n---\nmodels: []\n".to_owned(), "3: the file holds a second document after `---`; keep one"),
        ("models:\n\t- name: m\n".to_owned(), "2: is not YAML: "),
        (model("    api_key: { a: sk-literal }\n"), "4: models[0].api_key is "),
    ] {
        let found = problems(&text);
        assert!(found[0].starts_with(expected), "expected {expected}\nfound    {found:?}");
        assert!(!found[0].contains("sk-literal"));
    }
}

#[test]
fn cross_checks_name_line_key_value_and_remedy() {
    let two = "models:\n  - name: a\n    replicas: [ { url: http://h:1 } ]\n  - name: b\n    aliases: [a]\n    replicas: [ { url: http://h:1 } ]\n";
    for (text, expected) in [
        ("models:\n  - name: m\n".to_owned(), "2: models[0].replicas is empty; add a url or set `discovery`"),
        (two.to_owned(), "5: models[1].aliases[0] is `a`, which models[0].name already is; rename one"),
        (
            model("    routing: { policy: prefex }\n"),
            "4: models[0].routing.policy is `prefex`, which is no policy; did you mean `prefix`?",
        ),
        (model("    routing: { block_bytes: 32 }\n"), "4: models[0].routing.block_bytes is 32; write 64 to 4096"),
        (model("    routing: { index_entries: 1 }\n"), "4: models[0].routing.index_entries is 1; write 1024 to"),
        (model("    concurrency: { per_replica: 0 }\n"), "4: models[0].concurrency.per_replica is 0; write 1 to"),
        (model("    slo: { ttft: 0s }\n"), "4: models[0].slo.ttft is 0s; write a time above zero"),
        (model("    caps: { max_output_tokens: 0 }\n"), "4: models[0].caps.max_output_tokens is 0;"),
        (
            model("    caps: { max_output_tokens: 5, default_output_tokens: 6 }\n"),
            "4: models[0].caps.default_output_tokens is 6, above",
        ),
        (model("    discovery: {}\n"), "4: models[0].discovery is empty; write"),
        (
            model("    discovery: { dns: { host: \"http://x\" } }\n"),
            "4: models[0].discovery.dns.host is `http://x`; write a DNS name",
        ),
        (
            model("    discovery: { kubernetes: { namespace: a, service: b } }\n"),
            "4: models[0].discovery.kubernetes is not implemented",
        ),
        (
            model("    fallback: [ { url: http://h, model: x, drop_fields: [top_k, model] } ]\n"),
            "4: models[0].fallback[0].drop_fields[1] is `model`, without which there is no request; remove it",
        ),
        (
            model("    fallback: [ { url: http://h, model: x, context: 0 } ]\n"),
            "4: models[0].fallback[0].context is 0; write 1 or more, or null for no limit",
        ),
        (
            model("    fallback: [ { url: nope, model: x } ]\n"),
            "4: models[0].fallback[0].url is `nope`, which has no scheme",
        ),
        (model("server: { timeouts: { total: 0s } }\n"), "4: server.timeouts.total is 0s;"),
        (
            model("server: { timeouts: { first_event_hold: 9s, first_token: 5s } }\n"),
            "4: server.timeouts.first_event_hold is 9s, longer than first_token 5s",
        ),
        (model("server: { listen: \"127.0.0.1:9090\" }\n"), "4: server.admin_listen is 127.0.0.1:9090, the data port"),
        (
            model("server: { listen: 127.0.0.1:1, admin_listen: 0.0.0.0:1 }\n"),
            "4: server.admin_listen is 0.0.0.0:1, the data port",
        ),
        (model("server: { listen: somewhere }\n"), "4: server.listen is `somewhere`; write an IP address and a port"),
        (model("server: { listen: \"0.0.0.0:80\" }\n"), "4: server.listen is 0.0.0.0:80, which other machines reach"),
        (model("server: { limits: { body: 2GiB } }\n"), "4: server.limits.body_memory is 1GiB, below body 2GiB"),
        (model("keys: [ { id: a, sha256: abc } ]\n"), "4: keys[0].sha256 is not a SHA-256 (3 characters)"),
    ] {
        let found = problems(&text);
        assert!(found[0].starts_with(expected), "expected {expected}\nfound    {found:?}");
    }
}

#[test]
fn all_problems_of_a_file_are_reported_together() {
    let found = problems("models:\n  - name: \"\"\n    replicas: []\n    routing: { policy: x }\n");

    assert_eq!(found.len(), 3, "{found:?}");
}

#[test]
fn an_open_data_port_needs_keys_or_the_flag() {
    let text = model("server: { listen: \"0.0.0.0:8080\" }\n");

    let refused = with(&text, Overrides::default()).unwrap_err().to_string();
    let flagged = with(&text, Overrides { insecure_no_auth: true, ..Overrides::default() }).unwrap();
    let keyed = plan(&format!("{text}keys: [ {{ id: a, sha256: {HASH} }} ]\n"));

    assert!(refused.contains("--insecure-no-auth"), "{refused}");
    assert!(flagged.warnings[0].contains("there are no keys"));
    assert!(keyed.warnings.is_empty());
}

#[test]
fn the_models_of_a_key_are_held_by_name_and_checked() {
    let keys = |models: &str| {
        model(&format!("    aliases: [fast]\nkeys: [ {{ id: a, sha256: {HASH}, models: {models} }} ]\n"))
    };

    assert_eq!(plan(&keys("[fast]")).keys[0].models, Some(vec!["m".to_owned()]), "an alias stands for its model");
    assert!(problems(&keys("[other]"))[0].contains("keys[0].models[0] is `other`, no model here; write m"));
    assert!(problems(&keys("[]"))[0].contains("keys[0].models is empty"));
}

#[test]
fn a_group_that_no_entry_names_is_warned_about() {
    let text = model(&format!("keys: [ {{ id: a, sha256: {HASH}, group: g }} ]\ngroups: [ {{ name: h }} ]\n"));

    assert!(plan(&text).warnings[0].contains("keys[0].group is `g`, which no entry of groups names"));
}

#[test]
fn a_group_that_isolates_needs_a_secret() {
    let text =
        model(&format!("keys: [ {{ id: a, sha256: {HASH}, group: g }} ]\ngroups: [ {{ name: g, isolate: true }} ]\n"));

    assert!(problems(&text)[0].contains("groups[0].isolate is true without server.isolation_secret"));
    let plan = plan(&format!("server: {{ isolation_secret: s }}\n{text}"));
    assert!(plan.keys[0].isolate);
    assert!(!effective_yaml(&plan).contains("isolation_secret: s\n"), "a secret is masked");
}

#[test]
fn replica_flags_do_not_mix_with_models() {
    let overrides = Overrides { replicas: vec!["http://h:1".to_owned()], ..Overrides::default() };

    assert!(with(&model(""), overrides).unwrap_err().to_string().starts_with("--replica: cannot be combined"));
}

#[test]
fn wrong_flags_are_named() {
    let overrides = |replica: &str, policy: Option<&str>| Overrides {
        replicas: vec![replica.to_owned()],
        policy: policy.map(str::to_owned),
        ..Overrides::default()
    };

    let url = load(&overrides("localhost:8000", None), &env).unwrap_err().to_string();
    let policy = load(&overrides("http://h:1", Some("leastload")), &env).unwrap_err().to_string();

    assert!(url.starts_with("--replica: is `localhost:8000`"), "{url}");
    assert!(policy.starts_with("--policy: is `leastload`"), "{policy}");
    assert!(policy.contains("least_load"), "{policy}");
}

#[test]
fn an_open_port_given_by_flag_is_reported_as_the_flag() {
    let overrides = Overrides {
        replicas: vec!["http://h:1".to_owned()],
        listen: Some("0.0.0.0:8080".parse().unwrap()),
        ..Overrides::default()
    };

    let error = load(&overrides, &env).unwrap_err().to_string();

    assert!(error.starts_with("--listen: is 0.0.0.0:8080, which other machines reach"), "{error}");
    assert!(load(&Overrides { insecure_no_auth: true, ..overrides }, &env).is_ok());
}

#[test]
fn a_missing_file_is_named() {
    let overrides = Overrides { config: Some("/nowhere/g.yaml".into()), ..Overrides::default() };

    let error = load(&overrides, &env).unwrap_err().to_string();

    assert!(error.starts_with("/nowhere/g.yaml: cannot be read: "), "{error}");
}

#[test]
fn a_secret_from_the_environment_is_never_in_a_message() {
    for text in [
        "models:\n  - name: m\n    replicas: [ { url: \"${KEY}\" } ]\n",
        "models:\n  - name: m\n    engine: \"${KEY}\"\n",
        "server: { listen: \"${KEY}\" }\n",
        "server: { timeouts: { connect: \"${KEY}\" } }\n",
    ] {
        let found = problems(text).join("\n");
        assert!(!found.contains("sk-from"), "{found}");
        assert!(found.contains("${KEY}"), "{found}");
    }
}

#[test]
fn credentials_in_a_url_are_masked() {
    let found = problems("models:\n  - name: m\n    replicas: [ { url: \"http://u:hunter2@h:1\" } ]\n").join("\n");

    assert!(found.contains("has credentials") && !found.contains("hunter2"), "{found}");
}

#[test]
fn anchors_and_merge_keys_work() {
    let text = "models:\n  - name: a\n    slo: &slo { ttft: 3s }\n    replicas: &r [ { url: http://h:1 } ]\n  - name: b\n    \
                slo: *slo\n    replicas: *r\n";

    assert_eq!(plan(text).models[1].slo.ttft, Some(Duration::from_secs(3)));
}

/// Key paths that a section may have, as the parser lists them when it meets a key that it does not know.
fn known_keys(section: &str, filled: &str) -> Vec<String> {
    let text = filled.replace("%", "zzzzzzzzzzzzzzzz: 1");
    let found = problems(&text);
    let (_, list) = found[0].split_once("known here: ").unwrap_or_else(|| panic!("{section}: {found:?}"));
    list.split(", ").map(|key| if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") }).collect()
}

#[test]
fn the_full_example_has_every_key_and_no_other() {
    let text = std::fs::read_to_string("config/full.yaml").unwrap();
    let source = read::read("full", &text, &env).unwrap_or_else(|error| panic!("a key that does not exist: {error}"));
    let present = source.outline.keys();

    let known: BTreeSet<String> = [
        ("", "%\n"),
        ("server", "server: { % }\n"),
        ("server.limits", "server: { limits: { % } }\n"),
        ("server.timeouts", "server: { timeouts: { % } }\n"),
        ("server.health", "server: { health: { % } }\n"),
        ("models", "models: [ { % } ]\n"),
        ("models.replicas", "models: [ { replicas: [ { % } ] } ]\n"),
        ("models.discovery", "models: [ { discovery: { % } } ]\n"),
        ("models.discovery.dns", "models: [ { discovery: { dns: { % } } } ]\n"),
        ("models.discovery.kubernetes", "models: [ { discovery: { kubernetes: { % } } } ]\n"),
        ("models.routing", "models: [ { routing: { % } } ]\n"),
        ("models.tokenizer", "models: [ { tokenizer: { % } } ]\n"),
        ("models.caps", "models: [ { caps: { % } } ]\n"),
        ("models.slo", "models: [ { slo: { % } } ]\n"),
        ("models.concurrency", "models: [ { concurrency: { % } } ]\n"),
        ("models.fallback", "models: [ { fallback: [ { % } ] } ]\n"),
        ("models.fallback.budget", "models: [ { fallback: [ { budget: { % } } ] } ]\n"),
        ("keys", "keys: [ { % } ]\n"),
        ("keys.caps", "keys: [ { caps: { % } } ]\n"),
        ("keys.rate", "keys: [ { rate: { % } } ]\n"),
        ("groups", "groups: [ { % } ]\n"),
    ]
    .into_iter()
    .flat_map(|(section, filled)| known_keys(section, filled))
    .collect();

    assert_eq!(present, known);
}

proptest::proptest! {
    #[test]
    fn no_text_panics_the_loader(text in "[a-z:{}\\[\\],\"'$#&*!|>\n -]{0,60}") {
        let refused = read::read("f", &text, &env).err();
        proptest::prop_assert!(refused.is_none_or(|error| !error.problems.is_empty()));
    }

    #[test]
    fn no_change_to_a_good_file_panics_the_loader(at in 0_usize..2000, with in "[a-z0-9:{}\\[\\],\"'$#\n -]{0,6}", cut in 0_usize..8) {
        let mut text = include_str!("../../config/full.yaml").to_owned();
        let at = at.min(text.len() - cut);
        proptest::prop_assume!(text.is_char_boundary(at) && text.is_char_boundary(at + cut));
        text.replace_range(at..at + cut, &with);
        let loaded = read::read("f", &text, &env).and_then(|source| check::plan(source, &Overrides::default()));
        proptest::prop_assert!(loaded.err().is_none_or(|error| !error.problems.is_empty()));
    }
}

#[test]
fn the_policies_are_those_of_the_registry() {
    let registered: Vec<&str> = crate::routing::REGISTRY.iter().map(|entry| entry.name).collect();

    assert_eq!(POLICIES, registered);
}
