//! The engines against pages and errors captured from real ones.

use std::path::Path;

use serde_json::Value;

use super::*;

fn load(kind: EngineKind, page: &[u8]) -> EngineLoad {
    let engine = engine(kind);
    let samples = Samples::parse(page, engine.wanted_metrics());
    assert_eq!(samples.rejected(), 0, "every wanted line of a real page is read");
    engine.load(&samples).expect("a real page tells its load")
}

macro_rules! data {
    ($path:literal) => {
        include_bytes!(concat!("../../tests/data/", $path))
    };
}

#[test]
fn an_idle_vllm_is_read_exactly() {
    assert_eq!(
        load(EngineKind::Vllm, data!("vllm/metrics-idle.prom")),
        EngineLoad {
            running: 0,
            waiting: 0,
            kv_usage: Some(0.0),
            cache_tokens: Some(16_384),
            prefix_hits: Some(1504),
            prefix_queries: Some(3904),
            start_time: Some(1_796_062_347.24),
        }
    );
}

#[test]
fn a_queueing_vllm_is_read_exactly() {
    let load = load(EngineKind::Vllm, data!("vllm/metrics-queueing.prom"));

    assert_eq!((load.running, load.waiting), (4, 8));
    assert_eq!(load.kv_usage, Some(0.234_833_66));
    assert_eq!((load.prefix_hits, load.prefix_queries), (Some(1504), Some(7524)));
}

#[test]
fn an_idle_sglang_is_read_exactly() {
    assert_eq!(
        load(EngineKind::Sglang, data!("sglang/metrics-idle.prom")),
        EngineLoad {
            running: 0,
            waiting: 0,
            kv_usage: Some(0.0),
            cache_tokens: Some(16_384),
            prefix_hits: Some(0),
            prefix_queries: Some(11),
            start_time: None,
        }
    );
}

#[test]
fn a_full_sglang_is_read_exactly() {
    assert_eq!(
        load(EngineKind::Sglang, data!("sglang/metrics-queue-full.prom")),
        EngineLoad {
            running: 4,
            waiting: 6,
            kv_usage: Some(0.09),
            cache_tokens: Some(16_384),
            prefix_hits: Some(656),
            prefix_queries: Some(1111),
            start_time: None,
        }
    );
}

#[test]
fn old_vllm_names_are_read_and_engines_of_one_server_are_summed() {
    let page = br#"
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m"} 2.0
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:gpu_cache_usage_perc{engine="1",model_name="m"} 0.7
vllm:gpu_prefix_cache_hits_total{engine="0",model_name="m"} 10.0
vllm:gpu_prefix_cache_queries_total{engine="0",model_name="m"} 20.0
vllm:gpu_prefix_cache_queries_created{engine="0",model_name="m"} 1.7e9
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="1000"} 1.0
"#;

    let load = load(EngineKind::Vllm, page);

    assert_eq!((load.running, load.waiting, load.kv_usage), (7, 2, Some(0.6)));
    assert_eq!((load.prefix_hits, load.prefix_queries), (Some(10), Some(20)));
    assert_eq!(load.cache_tokens, Some(32_000));
}

#[test]
fn a_cache_that_is_not_sized_yet_is_unknown() {
    let page = b"vllm:num_requests_running 0\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1.0\n";

    assert_eq!(load(EngineKind::Vllm, page).cache_tokens, None);
}

#[test]
fn sglang_sums_data_parallel_ranks_and_counts_tensor_parallel_ones_once() {
    let page = br#"
sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 1.0
sglang:num_running_reqs{dp_rank="0",tp_rank="1"} 1.0
sglang:num_running_reqs{dp_rank="1",tp_rank="0"} 2.0
sglang:num_running_reqs{dp_rank="1",tp_rank="1"} 2.0
sglang:max_total_num_tokens{dp_rank="0",tp_rank="0"} 100.0
sglang:max_total_num_tokens{dp_rank="0",tp_rank="1"} 100.0
sglang:max_total_num_tokens{dp_rank="1",tp_rank="0"} 100.0
"#;

    let load = load(EngineKind::Sglang, page);

    assert_eq!((load.running, load.cache_tokens), (3, Some(200)));
}

#[test]
fn sglang_tells_its_load_without_metrics_too() {
    assert_eq!(
        Sglang.load_of_page(data!("sglang/loads.json")),
        Some(EngineLoad { kv_usage: Some(0.0), cache_tokens: Some(16_384), ..EngineLoad::default() })
    );
    let ranks =
        br#"{"loads":[{"num_running_reqs":2,"num_waiting_reqs":1},{"num_running_reqs":3,"num_waiting_reqs":0}]}"#;
    let load = Sglang.load_of_page(ranks).unwrap();
    assert_eq!((load.running, load.waiting, load.cache_tokens), (5, 1, None));
    for page in [&b"[]"[..], b"{}", br#"{"loads":[]}"#, br#"{"loads":[{"dp_rank":0}]}"#, b"x"] {
        assert_eq!(Sglang.load_of_page(page), None);
    }
}

#[test]
fn tgi_tells_its_queue_and_batch_and_nothing_else() {
    let load = load(EngineKind::Tgi, b"# TYPE tgi_queue_size gauge\ntgi_queue_size 5\ntgi_batch_current_size 8\n");

    assert_eq!(load, EngineLoad { running: 8, waiting: 5, ..EngineLoad::default() });
}

#[test]
fn a_page_without_the_engines_metrics_is_no_word_rather_than_zero() {
    for engine in REGISTRY {
        let samples = Samples::parse(b"python_info{x=\"1\"} 1.0\n", engine.wanted_metrics());

        assert_eq!(engine.load(&samples), None, "{engine:?}");
    }
}

#[test]
fn the_registry_and_the_lookup_agree() {
    for entry in REGISTRY {
        assert_eq!(engine(entry.kind()).kind(), entry.kind());
    }
}

#[test]
fn captured_model_lists_are_read() {
    for (body, owner) in [(&data!("vllm/models.json")[..], "vllm"), (&data!("sglang/models.json")[..], "sglang")] {
        let list = models::parse(body).expect("a list");

        assert_eq!(&*list.models[0].id, "tiny");
        assert_eq!(list.models[0].max_model_len, Some(4096));
        assert_eq!(list.owned_by.as_deref(), Some(owner));
    }
}

/// One captured error of `tests/data/*/errors.jsonl`.
struct Captured {
    name: String,
    status: u16,
    body: String,
}

fn captured(file: &str) -> Vec<Captured> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| {
            let value: Value = serde_json::from_str(line).unwrap();
            Captured {
                name: value["name"].as_str().unwrap().to_owned(),
                status: u16::try_from(value["status"].as_u64().unwrap()).unwrap(),
                body: value["body"].as_str().unwrap().to_owned(),
            }
        })
        .collect()
}

#[test]
fn every_captured_error_has_its_class() {
    let mut seen = 0;
    for (file, kind) in [("vllm/errors.jsonl", EngineKind::Vllm), ("sglang/errors.jsonl", EngineKind::Sglang)] {
        for error in captured(file) {
            let want = match error.name.as_str() {
                "queue-full" | "queue-full-event" => Failure::Saturated,
                "after-sigterm" | "health-503" => Failure::ShuttingDown,
                "engine-killed" | "engine-killed-event" | "json_array" if error.status != 400 => Failure::Broken,
                _ => Failure::Client,
            };

            let got = engine(kind).failure(error.status, error.body.as_bytes());

            assert_eq!(got, want, "{file} {}: {} {}", error.name, error.status, error.body);
            // An engine that was not recognised is read the same way.
            assert_eq!(engine(EngineKind::Openai).failure(error.status, error.body.as_bytes()), want);
            seen += 1;
        }
    }
    assert!(seen > 60, "{seen} captured errors");
}

#[test]
fn errors_that_no_capture_shows_have_their_class() {
    for (status, body, want) in [
        (429, "", Failure::Saturated),
        (429, r#"{"error":"Model is overloaded","error_type":"overloaded"}"#, Failure::Saturated),
        (200, r#"{"error":"Model is overloaded","error_type":"overloaded"}"#, Failure::Saturated),
        (503, r#"{"error":{"message":"overloaded"}}"#, Failure::Saturated),
        (503, "", Failure::ShuttingDown),
        (503, "<html>upstream connect error</html>", Failure::ShuttingDown),
        (503, "The server is overloaded", Failure::Saturated),
        (424, r#"{"error":"Request failed during generation","error_type":"generation"}"#, Failure::Broken),
        (422, r#"{"error":"too long","error_type":"validation"}"#, Failure::Client),
        (200, r#"{"error":{"message":"too many tokens","type":"BadRequestError","code":400}}"#, Failure::Client),
        (200, r#"{"error":{"message":"boom"}}"#, Failure::Broken),
        (500, r#"{"error":{"message":"internal"}}"#, Failure::Broken),
        (502, "", Failure::Broken),
        (504, "", Failure::Broken),
        (501, "", Failure::Client),
        (400, r#"{"error":{"message":"the prompt says: queue is full","code":400}}"#, Failure::Client),
        (500, r#"{"error":{"message":"the queue is full"}}"#, Failure::Broken),
    ] {
        assert_eq!(engine(EngineKind::Vllm).failure(status, body.as_bytes()), want, "{status} {body}");
    }
    assert!(Failure::Saturated.never_ran() && !Failure::Saturated.blames());
    assert!(Failure::ShuttingDown.never_ran() && Failure::ShuttingDown.blames());
    assert!(!Failure::Broken.never_ran() && Failure::Broken.blames());
    assert!(!Failure::Client.never_ran() && !Failure::Client.blames());
}
