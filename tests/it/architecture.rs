//! The layers of the crate, read from its sources: imports point downwards only, and the decision layer is pure.
//!
//! The order is the one of `ARCHITECTURE.md`, "Layers". A module may use those in front of it in [`LAYERS`], so the list
//! is also the order in which the crate can be read. Test code inside `src/` is held to the same order.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// Modules from the bottom to the top, with the name of their layer.
const LAYERS: &[(&str, &[&str])] = &[
    ("base", &["types", "error"]),
    // What clients and engines write, read as bytes. Pure, and below the decision layer: a prompt is read from spans.
    ("language", &["dialect"]),
    ("decision", &["prompt", "routing", "fleet", "admission", "simulator", "simulate", "capacity"]),
    ("edges", &["engine", "config", "telemetry", "limits", "discovery", "upstream"]),
    ("pipeline", &["proxy"]),
    ("surface", &["simserver", "server", "demo", "loadtest", "cli"]),
];

/// Layers that do no I/O, are not async, do not log and read no clock.
const PURE: [&str; 3] = ["base", "language", "decision"];

/// What a pure file may not say. `tokio::time::Instant` as a type is allowed, `now` is an argument.
const IMPURE: [&str; 12] = [
    "async fn",
    "async move",
    "async {",
    ".await",
    "tracing::",
    "Instant::now",
    "SystemTime",
    "std::net::Tcp",
    "std::net::Udp",
    "std::fs",
    "tokio::spawn",
    "println!",
];

/// Words of [`IMPURE`] that a file may say all the same, with the reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[];

fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    assert!(found.len() > 50, "the sources are found");
    found
}

/// The top-level module of a file; `None` for `lib.rs` and `main.rs`, which use everything.
fn module(path: &Path) -> Option<String> {
    let source = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap();
    let first = source.iter().next().unwrap().to_str().unwrap();
    let name = first.trim_end_matches(".rs");
    (!matches!(name, "lib" | "main")).then(|| name.to_owned())
}

/// The code without comments. A `//` inside a string goes too, which loses imports only where none can be.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Top-level modules that the code names: `crate::a::...` and `crate::{a, b::c, d::{e, f}}`.
fn used(code: &str) -> BTreeSet<String> {
    let mut modules = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        let Some(group) = rest.strip_prefix('{') else {
            modules.insert(word(rest));
            continue;
        };
        let (mut depth, mut fresh) = (1, true);
        for (at, letter) in group.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => fresh = true,
                _ if depth == 1 && fresh && letter.is_alphabetic() => {
                    modules.insert(word(group.get(at..).unwrap_or_default()));
                    fresh = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    modules.remove("");
    modules
}

fn word(text: &str) -> String {
    text.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
}

fn rank(module: &str) -> Option<usize> {
    LAYERS.iter().flat_map(|(_, modules)| *modules).position(|known| *known == module)
}

/// One line for each module that is unknown or not below `from`.
fn upward(from: &str, code: &str) -> Vec<String> {
    let own = rank(from);
    let bad =
        used(code).into_iter().filter(|to| to != from && (own.is_none() || rank(to).is_none_or(|to| Some(to) >= own)));
    bad.map(|to| format!("{from} uses {to}")).collect()
}

/// The part of a file that is not its tests: a test may read a clock.
fn outside_tests(code: &str) -> &str {
    code.split("#[cfg(test)]\nmod ").next().unwrap_or_default()
}

fn impure(file: &str, code: &str) -> Vec<String> {
    let allowed = |word: &str| EXCEPTIONS.iter().any(|(in_file, what, _)| *in_file == file && *what == word);
    let said = IMPURE.iter().filter(|word| code.contains(**word) && !allowed(word));
    said.map(|word| format!("{file} says `{word}`")).collect()
}

fn is_pure(module: &str) -> bool {
    LAYERS.iter().any(|(layer, modules)| PURE.contains(layer) && modules.contains(&module))
}

#[test]
fn imports_point_downwards_only() {
    let mut wrong: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
    for (path, text) in sources() {
        let Some(module) = module(&path) else { continue };
        let found = upward(&module, &code(&text));
        if !found.is_empty() {
            wrong.insert(path, found);
        }
    }

    assert!(wrong.is_empty(), "a module uses only those in front of it in LAYERS: {wrong:#?}");
}

#[test]
fn the_decision_layer_does_no_io_logs_nothing_and_reads_no_clock() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let Some(module) = module(&path).filter(|module| is_pure(module)) else { continue };
        let is_test = path.iter().any(|part| part.to_str().is_some_and(|part| part.contains("test")));
        if !is_test {
            let file = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap().to_str().unwrap();
            let code = code(&text);
            wrong.extend(impure(file, outside_tests(&code)).into_iter().map(|line| format!("{module}: {line}")));
        }
    }

    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_module_has_a_place_in_the_layers_and_the_map_names_it() {
    let map = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("ARCHITECTURE.md")).unwrap();

    let modules: BTreeSet<String> = sources().iter().filter_map(|(path, _)| module(path)).collect();

    for module in modules {
        assert!(rank(&module).is_some(), "{module} is not in LAYERS");
        assert!(map.contains(&format!("`{module}`")), "ARCHITECTURE.md does not name `{module}`");
    }
}

#[test]
fn the_check_finds_what_it_is_for() {
    let grouped = "use crate::{\n    types::Endpoint,\n    proxy::{pool::Pool, tap},\n    error,\n};\nfn f() { crate::server::x() }";

    assert_eq!(used(grouped).into_iter().collect::<Vec<_>>(), ["error", "proxy", "server", "types"]);
    assert_eq!(upward("routing", grouped), ["routing uses proxy", "routing uses server"]);
    assert_eq!(upward("routing", "use crate::fleet::Replica;"), ["routing uses fleet"], "the same layer, but in front");
    assert!(upward("fleet", "use crate::routing::ReplicaView;").is_empty());
    assert_eq!(upward("types", "use crate::helpers::x;"), ["types uses helpers"], "an unknown module has no place");
    assert_eq!(upward("helpers", "use crate::types::x;"), ["helpers uses types"]);
    assert_eq!(impure("src/x.rs", "let now = Instant::now();"), ["src/x.rs says `Instant::now`"]);
    let tested = "fn f() {}\n#[cfg(test)]\nmod tests { fn g() { Instant::now(); } }";
    assert!(impure("src/x.rs", outside_tests(tested)).is_empty());
}
