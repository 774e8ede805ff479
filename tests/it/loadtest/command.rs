//! The command as a user or a script sees it.

use std::{
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
};

use serde_json::Value;

fn gateway() -> Command {
    let binary =
        std::env::var_os("GATEWAY_BIN").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_gateway")), PathBuf::from);
    let mut command = Command::new(binary);
    for name in ["LLM_BASE_URL", "LLM_MODEL", "LLM_API_KEY", "OPENAI_API_KEY"] {
        command.env_remove(name);
    }
    command
}

fn loadtest(flags: &str) -> Output {
    gateway().arg("loadtest").args(flags.split_whitespace()).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("gateway-loadtest-{}-{name}", std::process::id()))
}

fn json(path: &PathBuf) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Keys that `vllm bench serve --save-result --save-detailed` writes (0.32).
const VLLM_KEYS: &str = "date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness \
    max_concurrency duration completed failed total_input_tokens total_output_tokens request_throughput request_goodput \
    output_throughput total_token_throughput max_output_tokens_per_s max_concurrent_requests rtfx input_lens output_lens \
    ttfts itls start_times errors latencies queue_times \
    mean_ttft_ms median_ttft_ms std_ttft_ms p99_ttft_ms mean_tpot_ms median_tpot_ms std_tpot_ms p99_tpot_ms \
    mean_itl_ms median_itl_ms std_itl_ms p99_itl_ms mean_e2el_ms median_e2el_ms std_e2el_ms p99_e2el_ms \
    mean_client_queue_time_ms p99_client_queue_time_ms mean_e2el_including_client_queue_ms";

#[test]
fn a_run_fits_eighty_columns_and_writes_every_file() {
    let [result, requests, page, hdr, junit] = ["r.json", "r.jsonl", "r.html", "r.hlog", "r.xml"].map(file);
    let flags = format!(
        "--mock --rate 20 --num-requests 40 --output-len 8 --input-len 64 --slo-ttft-ms 2000 --tenant a=1 --tenant b=2 \
         --metadata team=docs --json-out {} --requests-out {} --report {} --hdr-out {} --junit {} --explain",
        result.display(),
        requests.display(),
        page.display(),
        hdr.display(),
        junit.display()
    );
    let output = loadtest(&flags);
    let shown = text(&output);
    // 40 good ones of 40 do not prove 95 %; a busy machine makes the run invalid.
    assert!(matches!(output.status.code(), Some(4 | 2)), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");

    let value = json(&result);
    for key in VLLM_KEYS.split_whitespace() {
        assert!(value.get(key).is_some(), "{key}");
    }
    assert_eq!(
        (&value["completed"], &value["team"], &value["endpoint_type"]),
        (&40.into(), &"docs".into(), &"chat".into())
    );
    assert_eq!(value["gateway"]["objectives"], "undecided");
    assert_eq!(value["ttfts"].as_array().unwrap().len(), 40);
    assert_eq!(std::fs::read_to_string(&requests).unwrap().lines().count(), 40);
    let page = std::fs::read_to_string(&page).unwrap();
    assert!(page.contains("<svg") && !page.contains("src=") && !page.contains("<script") && !page.contains("href="));
    assert!(std::fs::read_to_string(&hdr).unwrap().contains("Tag=ttft"));
    assert!(std::fs::read_to_string(&junit).unwrap().contains("<skipped"));
}

#[test]
fn usage_errors_exit_with_3_and_name_the_flag() {
    for (flags, words) in [
        ("", "--base-url URL"),
        ("--mock --rate 0", "--rate 0: must be above 0"),
        ("--mock --no-such-flag", "--no-such-flag"),
        ("--base-url http://198.51.100.7:8000", "add --yes"),
        ("--mock --find-capacity", "needs an objective"),
    ] {
        let output = loadtest(flags);
        assert_eq!(output.status.code(), Some(3), "{flags}: {}", text(&output));
        assert!(text(&output).contains(words), "{flags}: {}", text(&output));
    }
    assert_eq!(loadtest("--help").status.code(), Some(0));
}

#[test]
fn an_objective_that_is_missed_exits_with_1_and_a_target_that_is_gone_with_2() {
    let missed = loadtest("--mock --rate 40 --num-requests 60 --output-len 4 --slo-ttft-ms 0.01");
    let invalid = text(&missed).contains("INVALID");
    assert_eq!(missed.status.code(), Some(if invalid { 2 } else { 1 }), "{}", text(&missed));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let gone = loadtest(&format!("--base-url http://{address} --model m --rate 50 --num-requests 5 --warmup 0"));
    assert_eq!(gone.status.code(), Some(2), "{}", text(&gone));
    assert!(text(&gone).contains("connect"), "{}", text(&gone));
    let unasked = loadtest(&format!("--base-url http://{address} --rate 50 --num-requests 5"));
    assert_eq!(unasked.status.code(), Some(2), "{}", text(&unasked));
    assert!(text(&unasked).contains("give --model"), "{}", text(&unasked));
    assert_eq!(loadtest("diff nothing.jsonl nowhere.jsonl").status.code(), Some(3));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the run is another process")]
fn an_interrupted_run_reports_what_was_measured() {
    let mut run = gateway();
    run.args("loadtest --mock --rate 10 --duration 60 --output-len 4".split_whitespace());
    let child = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(4));
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let shown = text(&output);
    assert!(shown.contains("stopped early: interrupted") && shown.contains("TTFT, from schedule"), "{shown}");
}

#[test]
fn two_runs_are_compared() {
    let [a, b] = ["a.jsonl", "b.jsonl"].map(file);
    for (path, scale) in [(&a, 1.0), (&b, 1.5)] {
        let lines: Vec<String> = (0..300)
            .map(|at| {
                let ttft = scale * (50.0 + f64::from(at * 7919 % 100) / 10.0);
                format!("{{\"intended_ms\":{at},\"ttft_sched_ms\":{ttft},\"ttft_ms\":{ttft},\"tpot_ms\":8.0,\"e2el_sched_ms\":200.0}}")
            })
            .collect();
        std::fs::write(path, lines.join("\n")).unwrap();
    }
    let compared = |a: &PathBuf, b: &PathBuf| loadtest(&format!("diff {} {}", a.display(), b.display()));
    let worse = compared(&a, &b);
    assert_eq!(worse.status.code(), Some(1), "{}", text(&worse));
    assert!(text(&worse).contains("WORSE") && text(&worse).contains("equal"), "{}", text(&worse));
    assert_eq!(compared(&b, &a).status.code(), Some(0));
    assert!(text(&worse).lines().all(|line| line.chars().count() <= 80), "{}", text(&worse));
}

/// Loops that keep a core busy, ended when dropped.
struct Burners(Vec<Child>);

impl Drop for Burners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().unwrap_or_default();
            child.wait().map(drop).unwrap_or_default();
        }
    }
}

#[test]
fn a_starved_client_says_that_its_run_is_invalid() {
    let burn = || Command::new("taskset").args(["-c", "0", "sh", "-c", "while :; do :; done"]).spawn().unwrap();
    let _burners = Burners((0..8).map(|_| burn()).collect());
    let binary = gateway();
    let mut starved = Command::new("taskset");
    starved.args(["-c", "0"]).arg(binary.get_program());
    starved.args("loadtest --mock --rate 30 --num-requests 60 --output-len 4 --warmup 0".split_whitespace());
    let output = starved.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(text(&output).contains("INVALID") && text(&output).contains("late"), "{}", text(&output));
}
