//! `gateway simulate`: a trace on a simulated pool, policies side by side.

use std::{io::Write, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, bail};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use tokio::time::Instant;

use crate::{
    simulate::{self, Change, Objectives, Report, Scenario, Trace, chart},
    simulator::{Batching, EngineSpec, Limits, QueueLimit, Timing, presets, timing::Roofline},
};

/// Most replicas: the slots of the prefix index.
const MOST_REPLICAS: usize = 1024;

/// Replay a trace on simulated replicas, in virtual time, and compare policies
#[derive(Debug, Args)]
#[command(after_help = "Example, the first 8,000 requests on eight replicas, 2.5 times as fast:\n  gateway simulate \
                  --trace mooncake_conversation.jsonl --max-requests 8000 \\\n    --replicas 8 --speedup 2.5 --policy \
                  prefix,lmetric")]
pub struct SimulateArgs {
    /// Requests, one JSON object a line: a Mooncake or Bailian trace
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// Replicas at the beginning
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub replicas: usize,
    /// Policies to compare
    #[arg(long, value_delimiter = ',', default_value = "prefix,lmetric", value_name = "A,B")]
    pub policy: Vec<String>,
    /// Read only the first N requests
    #[arg(long, value_name = "N")]
    pub max_requests: Option<usize>,
    /// Play the trace this many times as fast
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    pub speedup: f64,
    /// Gateways side by side that share nothing; each request goes to one of
    /// them by chance
    #[arg(long, default_value_t = 1, value_name = "G")]
    pub gateways: usize,
    /// Replica (from 0) that dies after so many seconds; may be repeated
    #[arg(long, value_name = "REPLICA@T")]
    pub fail: Vec<String>,
    /// Replica that comes with an empty cache after so many seconds: one that
    /// died, or the next new number; may be repeated
    #[arg(long, value_name = "REPLICA@T")]
    pub add: Vec<String>,
    /// Seed of what is left to chance
    #[arg(long, default_value_t = 0)]
    pub seed: u64,

    #[command(flatten)]
    engine: EngineFlags,
    #[command(flatten)]
    output: OutputFlags,
}

/// The engines.
#[derive(Debug, Args)]
#[command(next_help_heading = "Engines")]
struct EngineFlags {
    /// GPU of the replicas; a list is dealt out in turn (h100,l40s)
    #[arg(long, value_delimiter = ',', default_value = "h100")]
    gpu: Vec<String>,
    /// Model that they serve
    #[arg(long, default_value = "llama-3.1-8b")]
    preset: String,
    /// GPUs that share each layer of a replica
    #[arg(long, default_value_t = 1, value_name = "N")]
    tp: usize,
    /// Speeds as shares of the GPU's, dealt out in turn (1,0.4)
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "A,B")]
    gpu_speed: Vec<f64>,
    /// Tokens that the KV pool of one replica holds [default: what fits]
    #[arg(long, value_name = "N")]
    kv_tokens: Option<usize>,
    /// Tokens in one step [default: vLLM's for the GPU]
    #[arg(long, value_name = "N")]
    max_num_batched_tokens: Option<usize>,
    /// Share of the peak operations reached [default: 0.45]
    #[arg(long, value_name = "SHARE")]
    mfu: Option<f64>,
    /// Share of the memory bandwidth reached [default: by model and --tp]
    #[arg(long, value_name = "SHARE")]
    mbu: Option<f64>,
}

/// What is printed.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
struct OutputFlags {
    /// Time to first token that goodput asks for, in seconds
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS")]
    slo_ttft: f64,
    /// Time per output token that goodput asks for, in milliseconds
    #[arg(long, default_value_t = 100.0, value_name = "MS")]
    slo_tpot: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a chart of the times to first token (SVG)
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
}

/// What `--json` prints.
#[derive(Debug, serde::Serialize)]
struct Results {
    requests: usize,
    hit_rate_bound: f64,
    policies: Vec<Report>,
}

/// Runs the command.
///
/// # Errors
/// Bad flags, a trace that cannot be read, or a chart that cannot be written.
pub fn run(args: &SimulateArgs) -> anyhow::Result<ExitCode> {
    let scenario = args.scenario()?;
    let blocks = scenario.engines.iter().take(scenario.up).map(|spec| spec.kv_tokens / spec.block_size).sum();
    let results = Results {
        requests: scenario.trace.arrivals.len(),
        hit_rate_bound: simulate::shared_lru(&scenario.trace, blocks),
        policies: args
            .policy
            .iter()
            .map(|policy| simulate::run(&scenario, policy, Instant::now()).context("--policy"))
            .collect::<Result<_, _>>()?,
    };
    if let Some(file) = &args.output.chart {
        let svg = chart::svg(&results.policies, results.hit_rate_bound);
        std::fs::write(file, svg).with_context(|| format!("--chart {}", file.display()))?;
    }
    let text = if args.output.json {
        serde_json::to_string_pretty(&results)? + "\n"
    } else {
        render(&results, scenario.up, &scenario.objectives)
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

impl SimulateArgs {
    fn scenario(&self) -> anyhow::Result<Scenario> {
        positive("--speedup", self.speedup)?;
        positive("--slo-ttft", self.output.slo_ttft)?;
        positive("--slo-tpot", self.output.slo_tpot)?;
        if !(1..=MOST_REPLICAS).contains(&self.replicas) {
            bail!("--replicas {}: from 1 to {MOST_REPLICAS}", self.replicas);
        }
        if !(1..=64).contains(&self.gateways) {
            bail!("--gateways {}: from 1 to 64", self.gateways);
        }
        let (changes, total) = self.changes()?;
        let text = std::fs::read_to_string(&self.trace).with_context(|| format!("--trace {}", self.trace.display()))?;
        let trace = Trace::parse(&text, self.max_requests.unwrap_or(usize::MAX))
            .with_context(|| format!("--trace {}", self.trace.display()))?
            .faster(self.speedup);
        let engines = (0..total).map(|replica| self.engine.spec(replica, trace.block_tokens));
        Ok(Scenario {
            engines: engines.collect::<Result<_, _>>()?,
            trace,
            up: self.replicas,
            gateways: self.gateways,
            changes,
            seed: self.seed,
            objectives: Objectives { ttft: self.output.slo_ttft, tpot: self.output.slo_tpot / 1e3 },
        })
    }

    /// Replicas that leave and come, and the number of all there will have been.
    fn changes(&self) -> anyhow::Result<(Vec<(Duration, Change)>, usize)> {
        let mut changes = Vec::new();
        for text in &self.fail {
            let (replica, time) = moment("--fail", text)?;
            changes.push((time, Change::Fail(replica)));
        }
        for text in &self.add {
            let (replica, time) = moment("--add", text)?;
            changes.push((time, Change::Add(replica)));
        }
        changes.sort_by_key(|(time, _)| *time);
        let mut up: Vec<bool> = vec![true; self.replicas];
        for (time, change) in &changes {
            let seconds = time.as_secs_f64();
            match *change {
                Change::Fail(replica) => match up.get_mut(replica) {
                    Some(state) if *state => *state = false,
                    _ => bail!("--fail {replica}@{seconds}: no replica {replica} is up then"),
                },
                Change::Add(replica) if replica == up.len() && replica < MOST_REPLICAS => up.push(true),
                Change::Add(replica) => match up.get_mut(replica) {
                    Some(state) if !*state => *state = true,
                    Some(_) => bail!("--add {replica}@{seconds}: replica {replica} is up then"),
                    None => bail!("--add {replica}@{seconds}: the next new replica is {}", up.len()),
                },
            }
        }
        Ok((changes, up.len()))
    }
}

impl EngineFlags {
    /// The engine of a replica; its blocks are those of the trace.
    fn spec(&self, replica: usize, block_size: usize) -> anyhow::Result<EngineSpec> {
        let turn = |count: usize| replica % count.max(1);
        let name = self.gpu.get(turn(self.gpu.len())).context("--gpu: at least one")?;
        let speed = *self.gpu_speed.get(turn(self.gpu_speed.len())).context("--gpu-speed: at least one")?;
        positive("--gpu-speed", speed)?;
        let names = |all: Vec<&str>| all.join(", ");
        let mut gpu = presets::gpu(name).with_context(|| {
            format!("--gpu {name}: one of {}", names(presets::GPUS.iter().map(|gpu| gpu.name).collect()))
        })?;
        let preset = &self.preset;
        let model = presets::model(preset).with_context(|| {
            format!("--preset {preset}: one of {}", names(presets::MODELS.iter().map(|m| m.name).collect()))
        })?;
        let (budget, sequences) = gpu.vllm_limits();
        (gpu.bandwidth, gpu.bf16, gpu.fp8) = (gpu.bandwidth * speed, gpu.bf16 * speed, gpu.fp8 * speed);
        let mut roofline = Roofline::new(model, gpu, self.tp);
        roofline.overhead = roofline.overhead.div_f64(speed);
        roofline.mfu = share("--mfu", self.mfu.unwrap_or(roofline.mfu))?;
        roofline.mbu = share("--mbu", self.mbu.unwrap_or(roofline.mbu))?;
        let kv_tokens = self.kv_tokens.unwrap_or_else(|| roofline.kv_tokens(block_size));
        if kv_tokens < block_size {
            bail!("{preset} leaves no room for KV on {} x {name}; raise --tp or give --kv-tokens", self.tp);
        }
        let tokens = self.max_num_batched_tokens.unwrap_or(budget);
        if tokens == 0 {
            bail!("--max-num-batched-tokens must be at least 1");
        }
        Ok(EngineSpec {
            limits: Limits {
                max_num_seqs: sequences,
                max_num_batched_tokens: tokens,
                queue: QueueLimit::Unlimited,
                batching: Batching::Mixed,
            },
            kv_tokens,
            block_size,
            prefix_caching: true,
            timing: Timing::Roofline(Box::new(roofline)),
        })
    }
}

fn positive(flag: &str, value: f64) -> anyhow::Result<()> {
    if value > 0.0 && value.is_finite() { Ok(()) } else { bail!("{flag} {value}: must be above 0") }
}

fn share(flag: &str, value: f64) -> anyhow::Result<f64> {
    if value > 0.0 && value <= 1.0 { Ok(value) } else { bail!("{flag} {value}: above 0 and at most 1") }
}

/// `REPLICA@T`
fn moment(flag: &str, text: &str) -> anyhow::Result<(usize, Duration)> {
    let parsed = || {
        let (replica, seconds) = text.split_once('@')?;
        let seconds: f64 = seconds.trim_end_matches('s').parse().ok()?;
        Some((replica.parse().ok()?, Duration::try_from_secs_f64(seconds).ok()?))
    };
    parsed().with_context(|| format!("{flag} {text}: must be REPLICA@SECONDS, such as 2@600"))
}

/// The policies side by side, 80 columns at most.
fn render(results: &Results, replicas: usize, slo: &Objectives) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["policy", "hits", "TTFT", "p90", "p99 s", "TPOT", "p99 ms", "good/s"]);
    for report in &results.policies {
        table.add_row([
            report.policy.clone(),
            format!("{:.1} %", 100.0 * report.hit_rate),
            format!("{:.3}", report.ttft_p50_s),
            format!("{:.3}", report.ttft_p90_s),
            format!("{:.2}", report.ttft_p99_s),
            format!("{:.1}", report.tpot_p50_ms),
            format!("{:.1}", report.tpot_p99_ms),
            format!("{:.2}", report.goodput),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let details: Vec<String> = results.policies.iter().map(detail).collect();
    let bound = 100.0 * results.hit_rate_bound;
    let head =
        format!("{} requests, {replicas} replicas; one shared LRU cache would hit {bound:.1} %", results.requests);
    let goal = format!("good: first token within {} s, {:.0} ms per output token", slo.ttft, slo.tpot * 1e3);
    format!("{head}\nTTFT and TPOT: median, then p90 and p99\n{table}\n{goal}\n{}", details.concat())
}

fn detail(report: &Report) -> String {
    let picks: Vec<String> = report.picks.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    let failed = if report.failed > 0 { format!("; {} not served", report.failed) } else { String::new() };
    let error =
        report.ttft_prediction_error.map_or_else(String::new, |e| format!("; TTFT foreseen to {:.0} %", 100.0 * e));
    format!(
        "{}: load CV {:.3}, max/mean {:.2}{failed}{error}\n  picks: {}\n",
        report.policy,
        report.load_cv,
        report.load_max_over_mean,
        picks.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        simulate: SimulateArgs,
    }

    fn args(flags: &str) -> SimulateArgs {
        let words = format!("simulate --trace {}/tests/data/trace.jsonl {flags}", env!("CARGO_MANIFEST_DIR"));
        Line::try_parse_from(words.split_whitespace()).unwrap().simulate
    }

    #[test]
    fn nonsense_is_refused_with_a_word_on_what_to_do() {
        for (flags, words) in [
            ("--replicas 0", "--replicas 0: from 1"),
            ("--gateways 0", "--gateways 0: from 1"),
            ("--speedup 0", "--speedup 0: must be above 0"),
            ("--gpu h1", "--gpu h1: one of t4"),
            ("--preset gpt-9", "one of llama-3.1-8b"),
            ("--preset llama-3.1-70b", "raise --tp"),
            ("--mfu 2", "--mfu 2: above 0"),
            ("--fail 1", "REPLICA@SECONDS"),
            ("--fail 9@1", "no replica 9 is up"),
            ("--add 1@1", "replica 1 is up then"),
            ("--add 12@1", "the next new replica is 8"),
        ] {
            let error = format!("{:#}", args(flags).scenario().unwrap_err());
            assert!(error.contains(words), "{flags}: {error}");
        }
        let unknown = Line::try_parse_from(["x", "--trace", "nowhere.jsonl"]).unwrap().simulate;
        assert!(format!("{:#}", unknown.scenario().unwrap_err()).starts_with("--trace nowhere.jsonl: "));
    }

    #[test]
    fn a_replica_that_died_may_come_back_and_new_ones_may_come() {
        let scenario = args("--replicas 2 --fail 1@10 --add 2@20 --add 1@30").scenario().unwrap();

        assert_eq!((scenario.up, scenario.engines.len()), (2, 3));
        assert_eq!(scenario.changes[0], (Duration::from_secs(10), Change::Fail(1)));
    }

    #[test]
    fn table_and_help_fit_eighty_columns() {
        let args = args("--replicas 2 --policy prefix,round_robin");
        let scenario = args.scenario().unwrap();
        let policies =
            args.policy.iter().map(|policy| simulate::run(&scenario, policy, Instant::now()).unwrap()).collect();
        let results = Results { requests: scenario.trace.arrivals.len(), hit_rate_bound: 0.5, policies };
        let text = render(&results, 2, &scenario.objectives);
        let help = Line::command().term_width(80).render_long_help().to_string();

        assert!(text.lines().chain(help.lines()).all(|line| line.chars().count() <= 80), "{text}{help}");
        assert!(text.contains("round_robin") && text.contains("good: first token within 2 s, 100 ms"), "{text}");
    }
}
