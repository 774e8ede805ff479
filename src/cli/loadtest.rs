//! `gateway loadtest`: flags; `flags.rs` makes the plan of them.

mod flags;

use std::{net::IpAddr, path::PathBuf, process::ExitCode};

use clap::{ArgAction, Args, Subcommand, ValueEnum};
use tokio_util::sync::CancellationToken;

use crate::{
    loadtest::{
        body::Api,
        compare,
        drive::{self, Before},
        lengths::Shape,
        measure::Rules,
    },
    upstream::tls,
};

/// Exit code for flags that make no plan.
pub const USAGE: u8 = 3;

/// Exit code for a test that measured nothing to go by; 1 would say that an objective was missed.
const INVALID: u8 = 2;

/// Endpoint to drive.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ApiArg {
    Chat,
    Completions,
    Responses,
    Messages,
}

impl From<ApiArg> for Api {
    fn from(arg: ApiArg) -> Self {
        match arg {
            ApiArg::Chat => Self::Chat,
            ApiArg::Completions => Self::Completions,
            ApiArg::Responses => Self::Responses,
            ApiArg::Messages => Self::Messages,
        }
    }
}

/// Shape of lengths.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ShapeArg {
    Fixed,
    Uniform,
    Normal,
    Lognormal,
    Exponential,
}

impl From<ShapeArg> for Shape {
    fn from(arg: ShapeArg) -> Self {
        match arg {
            ShapeArg::Fixed => Self::Fixed,
            ShapeArg::Uniform => Self::Uniform,
            ShapeArg::Normal => Self::Normal,
            ShapeArg::Lognormal => Self::Lognormal,
            ShapeArg::Exponential => Self::Exponential,
        }
    }
}

/// Definitions to use.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum CompatArg {
    Vllm,
}

/// What to search.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum SearchArg {
    Concurrency,
}

/// Measure what an OpenAI-compatible streaming endpoint really does
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "The key comes from LLM_API_KEY or OPENAI_API_KEY.\n\
        Exit code: 0 pass, 1 objective missed, 2 run invalid, 3 usage, 4 undecided.\n\n\
        Examples:\n  gateway loadtest --mock --rate 8 --slo-ttft-ms 200 --slo-tpot-ms 20\n  \
        gateway loadtest --mock --sweep 2,8,32 --output-len 48 --report r.html\n  \
        gateway loadtest --base-url http://127.0.0.1:8000 --users 16 --duration 60"
)]
pub struct LoadtestArgs {
    #[command(subcommand)]
    command: Option<LoadtestCommand>,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    prompts: PromptArgs,
    #[command(flatten)]
    goals: GoalArgs,
    #[command(flatten)]
    scenario: ScenarioArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Other things than a run.
#[derive(Debug, Subcommand)]
enum LoadtestCommand {
    /// Compare two files of --requests-out: is B better, worse, or equal?
    Diff {
        /// The file before
        a: PathBuf,
        /// The file after
        b: PathBuf,
        /// Differences of less than this share count as equal
        #[arg(long, default_value_t = 0.05, value_name = "SHARE")]
        margin: f64,
    },
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Target")]
struct TargetArgs {
    /// Where requests go, with or without /v1
    #[arg(long, env = "LLM_BASE_URL", value_name = "URL")]
    base_url: Option<String>,
    /// Load a simulated engine in this process instead; offline
    #[arg(long, conflicts_with = "ab")]
    mock: bool,
    /// Model [default: the first of /v1/models]
    #[arg(long, env = "LLM_MODEL")]
    model: Option<String>,
    /// Endpoint
    #[arg(long, value_enum, default_value = "chat")]
    endpoint: ApiArg,
    /// Compare two targets, run in turns (A B B A) on the same requests
    #[arg(long, num_args = 2, value_names = ["URL1", "URL2"], conflicts_with_all = ["base_url", "sweep", "sweep_users", "find_capacity", "search"])]
    ab: Vec<String>,
    /// Longest request, in seconds
    #[arg(long, default_value_t = 600.0, value_name = "SECONDS")]
    timeout: f64,
    /// Load a target that is not on this machine without asking
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
struct LoadArgs {
    /// Requests a second, whatever the target does; inf: all at once
    /// [default: 1]
    #[arg(long, alias = "request-rate", value_name = "R", conflicts_with_all = ["users", "trace"])]
    rate: Option<f64>,
    /// Scatter of the gaps: 1 Poisson, below 1 burstier, inf constant
    #[arg(long, default_value_t = 1.0, value_name = "SHAPE")]
    burstiness: f64,
    /// Users that each wait for an answer before they ask again
    #[arg(long, value_name = "N", conflicts_with = "trace")]
    users: Option<usize>,
    /// Most requests under way; the wait counts as latency
    #[arg(long, value_name = "N")]
    max_concurrency: Option<usize>,
    /// Grow to the rate from FROM within SECONDS (FROM:SECONDS, or
    /// exp:FROM:SECONDS); with --users, SECONDS over which they join
    #[arg(long, value_name = "RAMP")]
    ramp: Option<String>,
    /// Arrivals and lengths of a trace (Mooncake, Bailian, vLLM, Azure,
    /// BurstGPT)
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Play the trace this much faster
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR", requires = "trace")]
    speed: f64,
    /// One run at each of these rates
    #[arg(long, value_name = "R,R,...", value_delimiter = ',', conflicts_with_all = ["users", "rate", "trace"])]
    sweep: Vec<f64>,
    /// One run with each of these numbers of users
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', conflicts_with_all = ["users", "rate", "trace", "sweep"])]
    sweep_users: Vec<usize>,
    /// Search the largest rate that is stable and inside the objectives
    #[arg(long, conflicts_with_all = ["users", "trace", "sweep", "sweep_users"])]
    find_capacity: bool,
    /// Search the largest number of users inside the objectives
    #[arg(long, value_enum, conflicts_with_all = ["users", "rate", "trace", "sweep", "sweep_users", "find_capacity"])]
    search: Option<SearchArg>,
    /// Seconds of one probe of a search
    #[arg(long, default_value_t = 20.0, value_name = "SECONDS")]
    probe_seconds: f64,
    /// Seconds that a search may take
    #[arg(long, default_value_t = 900.0, value_name = "SECONDS")]
    search_budget: f64,
    /// Requests of a run [default: 100, or what --duration holds]
    #[arg(long, alias = "num-prompts", value_name = "N")]
    num_requests: Option<usize>,
    /// Seconds of a run; requests under way are followed to their end
    #[arg(long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Requests before each run, not counted
    #[arg(long, alias = "num-warmups", default_value_t = 4, value_name = "N")]
    warmup: usize,
    /// Seed of times, lengths and prompts: equal seeds send equal bytes
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Prompts")]
struct PromptArgs {
    /// Prompts of a file: JSONL with prompt or messages, or ShareGPT
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Mean prompt length in tokens, shared prefix not counted
    #[arg(long, default_value_t = 512, value_name = "TOKENS")]
    input_len: usize,
    /// Mean answer length in tokens
    #[arg(long, default_value_t = 128, value_name = "TOKENS")]
    output_len: usize,
    /// Shape of both lengths
    #[arg(long, value_enum, default_value = "fixed")]
    len_dist: ShapeArg,
    /// Tokens in front of each prompt that a group of requests shares
    #[arg(long, default_value_t = 0, value_name = "TOKENS")]
    shared_prefix_len: usize,
    /// Groups with a shared prefix of their own
    #[arg(long, default_value_t = 1, value_name = "N", requires = "shared_prefix_len")]
    prefix_groups: usize,
    /// Exponent of the groups' popularity (Zipf); 0 for even
    #[arg(long, default_value_t = 1.0, value_name = "EXPONENT")]
    zipf: f64,
    /// Turns of each conversation
    #[arg(long, default_value_t = 1, value_name = "N")]
    turns: usize,
    /// Pause between turns, in seconds
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS")]
    think_time: f64,
    /// Make each prompt unlike all others behind the shared prefix
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    unique_nonce: bool,
    /// Ask for the full answer length
    #[arg(long)]
    ignore_eos: bool,
    /// Ask for token counts on every chunk, which makes ITL exact
    #[arg(long)]
    per_chunk_usage: bool,
    /// Members to add to each body
    #[arg(long, value_name = "JSON")]
    extra_body: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Objectives")]
struct GoalArgs {
    /// Time to first token, from the intended time
    #[arg(long, value_name = "MS")]
    slo_ttft_ms: Option<f64>,
    /// Time per output token
    #[arg(long, value_name = "MS")]
    slo_tpot_ms: Option<f64>,
    /// Objectives as ttft:MS tpot:MS e2el:MS
    #[arg(long, num_args = 1.., value_name = "METRIC:MS")]
    goodput: Vec<String>,
    /// Share of requests that must meet all objectives
    #[arg(long, default_value_t = 0.95, value_name = "SHARE")]
    slo_attainment: f64,
    /// Definitions of `vllm bench serve` instead of ours
    #[arg(long, value_enum)]
    compat: Option<CompatArg>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Scenarios and limits")]
struct ScenarioArgs {
    /// Share of requests that are cancelled after some tokens
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    cancel_rate: f64,
    /// Share of requests whose answers are read slowly
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    slow_readers: f64,
    /// A tenant: NAME=WEIGHT, or NAME=WEIGHT:VARIABLE with its key in an
    /// environment variable; repeat for more
    #[arg(long, value_name = "TENANT")]
    tenant: Vec<String>,
    /// Canaries of one token a second beside the load
    #[arg(long, default_value_t = 0.0, value_name = "R")]
    probe_rate: f64,
    /// Stop before this many prompt and answer tokens
    #[arg(long, value_name = "TOKENS")]
    max_tokens_total: Option<u64>,
    /// Stop before this many dollars; needs --price
    #[arg(long, value_name = "USD", requires = "price")]
    max_usd: Option<f64>,
    /// Dollars for a million prompt tokens and a million answer tokens
    #[arg(long, value_name = "IN:OUT")]
    price: Option<String>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
struct OutputArgs {
    /// Write results: an object, or one line a level if it ends in .jsonl
    #[arg(long, value_name = "FILE")]
    json_out: Option<PathBuf>,
    /// Write one line of JSON a request
    #[arg(long, value_name = "FILE")]
    requests_out: Option<PathBuf>,
    /// Write an HTML report
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write an HdrHistogram interval log
    #[arg(long, value_name = "FILE")]
    hdr_out: Option<PathBuf>,
    /// Write JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Read this metrics page during the run; repeat for more [default:
    /// the target's own /metrics, if it has one]
    #[arg(long, value_name = "URL")]
    scrape: Vec<String>,
    /// Print the definitions of all figures
    #[arg(long)]
    explain: bool,
    /// Name of the run in the results
    #[arg(long)]
    label: Option<String>,
    /// Members to add to the results
    #[arg(long, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
}

/// Runs a load test, or compares two.
///
/// # Errors
/// None: bad flags and files are exit code 3, a target that cannot be asked or a report that cannot be written 2, each
/// with a line on standard error.
pub async fn run(args: LoadtestArgs) -> anyhow::Result<ExitCode> {
    tls::install_provider();
    if let Some(LoadtestCommand::Diff { a, b, margin }) = &args.command {
        return Ok(code_of(compare::files(a, b, *margin), USAGE));
    }
    let plan = match flags::plan(&args).and_then(|plan| allowed(&plan, args.target.yes).map(|()| plan)) {
        Ok(plan) => plan,
        Err(error) => {
            drive::complain(&format!("{error:#}"));
            return Ok(ExitCode::from(USAGE));
        }
    };
    let stop = CancellationToken::new();
    let test = drive::run(plan, stop.clone());
    tokio::pin!(test);
    let code = tokio::select! {
        code = &mut test => code,
        _ = tokio::signal::ctrl_c() => {
            stop.cancel();
            test.await
        }
    };
    Ok(code_of(code, INVALID))
}

/// The code of what went well, else `otherwise` and a line on what did not.
fn code_of(result: anyhow::Result<u8>, otherwise: u8) -> ExitCode {
    ExitCode::from(result.unwrap_or_else(|error| {
        drive::complain(&format!("{error:#}"));
        otherwise
    }))
}

/// A target that is not this machine is loaded only on purpose.
fn allowed(plan: &crate::loadtest::plan::Plan, yes: bool) -> anyhow::Result<()> {
    let far = plan.targets.iter().find(|target| {
        let host = target.host().trim_matches(['[', ']']);
        host != "localhost" && !host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    });
    match far {
        Some(far) if !yes => drive::ask(&Before { target: far.label() }),
        _ => Ok(()),
    }
}

/// Definitions that a flag names.
fn rules(compat: Option<CompatArg>) -> Rules {
    compat.map_or(Rules::Own, |CompatArg::Vllm| Rules::Vllm)
}

#[cfg(test)]
mod tests;
