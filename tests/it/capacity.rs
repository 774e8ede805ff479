//! `gateway capacity` against reference cases worked by hand, and against start-up logs of real engines.

use std::process::Command;

use gateway::capacity::{device, devices, erlang_c, preset, preset_names, read_log};
use serde_json::Value;

use crate::compose::text;

fn run(line: &str) -> (Option<i32>, String, String) {
    let out =
        Command::new(env!("CARGO_BIN_EXE_gateway")).arg("capacity").args(line.split_whitespace()).output().unwrap();
    (out.status.code(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
}

fn answer(line: &str) -> Value {
    let (_, out, err) = run(&format!("{line} --json"));
    serde_json::from_str(&out).unwrap_or_else(|_| panic!("{line}: {err}"))
}

/// Options, then GiB of weights, tokens, sequences, decode tok/s, USD per 1M.
type Case = (&'static str, f64, u64, u64, f64, Option<f64>);

#[test]
fn the_reference_cases_come_out_to_the_digit() {
    const CASES: &[Case] = &[
        (
            "--preset llama-3.1-8b --gpu h100 --context 8192 --batch 32 --gpu-hourly 2.5",
            14.958,
            445_008,
            54,
            2171.0,
            Some(0.320),
        ),
        ("--preset llama-3.1-8b --gpu h100 --context 1024", 14.958, 445_008, 434, 221.0, None),
        (
            "--preset llama-3.1-8b --gpu h100 --weight-bytes 1 --kv-bytes 1 --context 8192",
            7.479,
            1_012_544,
            123,
            0.0,
            None,
        ),
        (
            "--preset llama-3.1-8b --gpu h100 --quant fp8 --kv-bytes 1 --context 8192 --batch 32 --gpu-hourly 2.5",
            8.457,
            996_512,
            121,
            4252.0,
            Some(0.163),
        ),
        (
            "--preset llama-3.1-70b --gpu h100 --tp 4 --weight-bytes 2 --context 8192 --batch 32 --gpu-hourly 2.5",
            32.854,
            477_440,
            58,
            1907.0,
            Some(1.457),
        ),
        (
            "--preset llama-3.1-70b --gpu h100 --tp 2 --weight-bytes 1 --kv-bytes 1 --context 8192",
            32.854,
            477_440,
            58,
            0.0,
            None,
        ),
        (
            "--preset deepseek-v3 --gpu h200 --tp 8 --weight-bytes 1 --kv-bytes 1 --context 32768",
            78.118,
            1_396_640,
            42,
            0.0,
            None,
        ),
        (
            "--preset deepseek-v3 --gpu h200 --tp 8 --weights-gib 79.739 --kv-bytes 1 --context 32768",
            79.739,
            1_347_088,
            41,
            0.0,
            None,
        ),
    ];
    for (line, weights, tokens, sequences, tok_s, usd) in CASES {
        let a = answer(&format!("{line} --util 0.9 --activation-gib 2"));
        assert!((a["weights_gib_per_gpu"].as_f64().unwrap() - weights).abs() < 0.001, "{line}: {a:#}");
        assert_eq!(a["kv_pool_tokens"], *tokens, "{line}");
        assert_eq!(a["max_sequences"], *sequences, "{line}");
        if *tok_s > 0.0 {
            assert!((a["decode_tok_s_bound"].as_f64().unwrap() - tok_s).abs() < 1.0, "{line}: {a:#}");
        }
        if let Some(usd) = usd {
            assert!((a["usd_per_million_output_tokens_bound"].as_f64().unwrap() - usd).abs() < 0.001, "{line}: {a:#}");
        }
    }
}

#[test]
fn a_batch_that_does_not_fit_is_refused() {
    let line = "--preset deepseek-v3 --gpu h200 --tp 8 --kv-bytes 1 --context 32768 --batch 128 --json";
    let (code, out, _) = run(line);
    let a: Value = serde_json::from_str(&out).unwrap();

    assert_eq!(code, Some(1));
    assert!(a["decode_tok_s_bound"].is_null() && a["usd_per_million_output_tokens_bound"].is_null());
    assert!(a["warnings"][0].as_str().unwrap().contains("a batch of 128 does not fit"), "{a:#}");
}

/// Tokens from the pool that a log prints, within 0.2 %, or within what the log's rounding of the pool to 0.01 GiB allows.
#[test]
fn tokens_follow_from_the_pool_of_real_logs() {
    let logs = [
        ("--preset llama-3.1-8b --engine vllm@0.10 --context 20000 --kv-pool-gib 3.81", 31_232),
        ("--preset qwen3-14b --engine vllm@0.10 --context 32768 --kv-pool-gib 6.51", 42_656),
        (
            "--preset qwen3.6-35b-a3b-nvfp4 --context 131072 --kv-bytes 1 --max-num-batched-tokens 8192 --kv-pool-gib 6.01",
            569_878,
        ),
        ("--preset qwen3.6-27b-nvfp4 --tp 2 --context 131072 --kv-bytes 1 --kv-pool-gib 4.99", 302_921),
        (
            "--preset qwen3.6-27b-nvfp4 --tp 2 --context 262144 --kv-bytes 1 --spec-tokens 3 --kv-pool-gib 11.05",
            623_873,
        ),
        ("--preset qwen3.5-35b-a3b --engine vllm@0.17 --context 32768 --kv-bytes 1 --kv-pool-gib 5.69", 148_816),
        (
            "--preset kimi-k2-instruct --engine vllm@0.11 --tp 8 --block-size 64 --quant int4-experts --kv-pool-gib 46.8",
            715_072,
        ),
        (
            "--preset kimi-k2-instruct --engine vllm@0.11 --tp 8 --dcp 8 --block-size 64 --quant int4-experts --kv-pool-gib 46.8",
            5_721_088,
        ),
        ("--preset deepseek-r1 --engine vllm@0.11 --tp 8 --block-size 64 --context 8192 --kv-pool-gib 41.60", 635_648),
        ("--preset qwen2-0-5b --context 4096 --kv-pool-gib 4.17", 364_592),
        ("--preset qwen3-vl-2b-instruct --engine vllm@0.11 --context 2048 --kv-pool-gib 8.13", 76_144),
        ("--preset qwen3-235b-a22b-fp8 --engine sglang --tp 4 --block-size 1 --kv-pool-gib 16.46", 367_404),
        ("--preset kimi-k2.5 --engine sglang --tp 8 --block-size 1 --kv-pool-gib 160.63", 2_454_421),
        ("--preset deepseek-v3 --engine sglang --tp 8 --kv-bytes 1 --block-size 1 --kv-pool-gib 17.16", 524_288),
        ("--preset glm-5 --engine sglang --tp 4 --kv-bytes 1 --block-size 1 --kv-pool-gib 7.51", 131_072),
    ];
    for (line, told) in logs {
        let (start, pool) = line.rsplit_once(' ').unwrap();
        let tokens = |pool: f64| answer(&format!("{start} {pool}"))["kv_pool_tokens"].as_f64().unwrap();
        let (pool, told) = (pool.parse::<f64>().unwrap(), f64::from(told));
        let share = tokens(pool) / told - 1.0;
        let rounding = tokens(pool - 0.005) <= told && told <= tokens(pool + 0.005);
        assert!(share.abs() < 0.002 || rounding, "{line}: {} and {told}, {:.3} %", tokens(pool), share * 100.0);
    }
}

#[test]
fn weights_are_those_of_real_logs_within_a_percent() {
    let logs = [
        ("--preset llama-3.1-8b", 14.9888),
        ("--preset llama-3.1-8b --tp 2", 7.48),
        ("--preset qwen3-8b", 15.27),
        ("--preset qwen3-14b", 27.5185),
        ("--preset qwen3-8b --quant awq", 5.71),
        ("--preset deepseek-r1 --tp 8", 79.739),
        ("--preset gpt-oss-20b", 12.8848),
    ];
    for (line, told) in logs {
        let gib = answer(&format!("{line} --gpu b300 --context 4096"))["weights_gib_per_gpu"].as_f64().unwrap();
        assert!((gib / told - 1.0).abs() < 0.01, "{line}: {gib} and {told}");
    }
}

#[test]
fn every_preset_and_gpu_is_readable_and_has_a_source() {
    let names = preset_names();
    assert!(names.len() >= 40, "{}", names.len());
    for name in names {
        let model = preset(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!model.source.is_empty() && model.source != "config.json", "{name}");
    }
    let rows = devices();
    assert_eq!(rows.len(), 28);
    assert!(rows.iter().all(|d| !d.spec_source.is_empty() && !d.memory_source.is_empty()));
    assert!(device("H100-SXM").is_ok() && device("a100 80").is_ok() && device("L4").is_ok() && device("x9").is_err());
}

#[test]
fn bad_input_names_the_field() {
    for (line, said) in [
        ("--preset llama-3.1-8b", "--gpu"),
        ("--gpu h100", "--preset"),
        ("--preset llama-3.1-8b --gpu h100 --quant q4_k_m", "--weights-gib"),
        ("--preset llama-3.1-8b --gpu h100 --tp 3", "--tp"),
        ("--preset llama-3.1-8b --gpu h100 --util 90", "--util"),
        ("--preset llama-3.1-8b --gpu h100 --rate 5", "--prompt-tokens"),
    ] {
        let (code, out, err) = run(line);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{line}");
        assert!(err.starts_with("error: ") && err.contains(said), "{line}: {err}");
    }
}

/// The bound is a bound: published points stay below it at the largest batch of an unlimited scheduler.
#[test]
fn no_published_throughput_exceeds_the_bound() {
    let (mut errors, mut rows) = (Vec::new(), 0);
    for row in text("tests/data/capacity/perf_ground_truth.jsonl").lines() {
        let row: Value = serde_json::from_str(row).unwrap();
        let name = row["model"].as_str().unwrap();
        let preset = match name {
            "Llama-3.1-8B-Instruct" => "llama-3.1-8b",
            "Llama-3.3-70B-Instruct" => "llama-3.1-70b",
            "Llama-3.1-405B-Instruct" => "llama-3.1-405b",
            "Qwen3-235B-A22B" => "qwen3-235b-a22b",
            "Qwen3-30B-A3B" => "qwen3-30b-a3b",
            _ => continue,
        };
        let gpu = row["gpu"].as_str().unwrap().replace(' ', "");
        let line = format!(
            "--preset {preset} --gpu {gpu} --tp {} --quant {} --kv-bytes 1 --context 1024 --max-num-seqs 4096 --activation-gib 2 \
             --prompt-tokens {} --output-tokens {}",
            row["tp"],
            row["quantization"].as_str().unwrap(),
            row["isl"],
            row["osl"],
        );
        let a = answer(&line);
        let (told, bound) = (row["output_tok_s"].as_f64().unwrap(), a["serving_tok_s_bound"].as_f64().unwrap());
        assert!(told <= bound, "{line}: {told} above {bound}");
        errors.push((a["serving_tok_s_estimate"].as_f64().unwrap() / told - 1.0).abs());
        rows += 1;
    }
    errors.sort_by(f64::total_cmp);
    assert!(rows >= 40, "{rows}");
    assert!(errors[rows / 2] < 0.35, "median error {:.2}", errors[rows / 2]);
}

#[test]
fn erlang_c_is_the_one_of_the_tables() {
    // One server waits with the load itself; two servers at one erlang: 1/3; ten at eight: 0.4092.
    assert!((erlang_c(1, 0.5) - 0.5).abs() < 1e-12);
    assert!((erlang_c(2, 1.0) - 1.0 / 3.0).abs() < 1e-12);
    assert!((erlang_c(10, 8.0) - 0.4092).abs() < 1e-4);
}

#[test]
fn a_start_up_log_is_read() {
    let log = "Model loading took 14.9888 GiB and 3.2 seconds\nAvailable KV cache memory: 54.32 GiB\n\
               GPU KV cache size: 445,008 tokens\nMaximum concurrency for 8,192 tokens per request: 54.32x\n";
    let f = read_log(log);

    assert_eq!((f.weights_gib, f.pool_gib, f.tokens), (Some(14.9888), Some(54.32), Some(445_008)));
    assert_eq!((f.context, f.concurrency), (Some(8192), Some(54.32)));
    let f = read_log("KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB");
    assert_eq!((f.engine.as_deref(), f.pool_gib, f.tokens), (Some("sglang"), Some(16.46), Some(367_404)));
}

#[test]
fn more_context_never_raises_concurrency_and_a_hit_rate_never_costs() {
    let one = |context: u64| {
        answer(&format!("--preset gpt-oss-20b --gpu h100 --context {context}"))["max_concurrency"].as_f64().unwrap()
    };
    let cost = |hit: &str| {
        let line =
            "--preset llama-3.1-8b --gpu h100 --context 8192 --prompt-tokens 4000 --output-tokens 200 --gpu-hourly 2.5";
        answer(&format!("{line} --hit-rate {hit}"))["usd_per_million_output_tokens_serving_estimate"].as_f64().unwrap()
    };

    assert!([1024, 4096, 16384, 131_072].map(one).windows(2).all(|pair| pair[0] >= pair[1]));
    assert!(["0", "0.3", "0.6", "0.9"].map(cost).windows(2).all(|pair| pair[0] > pair[1]));
}
