//! `gateway capacity`: flags and files to the inputs of [`crate::capacity`], and the answer to standard output.

mod report;
mod solve;

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use crate::capacity::{devices, preset_names};

/// Exit code of inputs that can't be used; also what clap uses for wrong flags.
const INVALID: u8 = 2;
/// Exit code of a model, context or batch that does not fit.
const UNFIT: u8 = 1;

/// Size a pool: weights, KV cache, concurrency, speed bounds, price and replicas.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct CapacityArgs {
    /// Model that comes with the program, see --list-presets
    #[arg(long, value_name = "NAME", conflicts_with = "hf_config")]
    pub preset: Option<String>,
    /// config.json of a model, or the folder that holds it
    #[arg(long, value_name = "PATH")]
    pub hf_config: Option<PathBuf>,
    /// GPU, see --list-gpus; case and punctuation are ignored
    #[arg(long, value_name = "NAME")]
    pub gpu: Option<String>,
    /// Print the models that come with the program
    #[arg(long)]
    pub list_presets: bool,
    /// Print the GPUs, their figures and sources
    #[arg(long)]
    pub list_gpus: bool,
    /// Engine whose rules apply: vllm@0.24, sglang@0.5
    #[arg(long, value_name = "ENGINE@VERSION", default_value = "vllm@0.24")]
    pub engine: String,
    /// Tensor parallel ranks
    #[arg(long, default_value_t = 1)]
    pub tp: u64,
    /// Pipeline parallel stages
    #[arg(long, default_value_t = 1)]
    pub pp: u64,
    /// Decode context parallel ranks
    #[arg(long, default_value_t = 1)]
    pub dcp: u64,
    /// Every rank keeps all of attention and requests of its own
    #[arg(long)]
    pub dp_attention: bool,
    /// Ranks that experts are spread over (default: --tp)
    #[arg(long)]
    pub ep: Option<u64>,
    /// Bytes of every parameter, instead of counting by module
    #[arg(long)]
    pub weight_bytes: Option<f64>,
    /// Bytes of a cached element: 2, 1 for fp8, 0.5625 for nvfp4
    #[arg(long, default_value_t = 2.0)]
    pub kv_bytes: f64,
    /// Format of the weights: bf16, fp8, fp8-block, awq, gptq, nvfp4, mxfp4
    #[arg(long)]
    pub quant: Option<String>,
    /// Tokens of the longest request (default: the model's own)
    #[arg(long)]
    pub context: Option<u64>,
    /// Sequences of a step (default: the engine's)
    #[arg(long)]
    pub max_num_seqs: Option<u64>,
    /// Tokens of a step (default: the engine's)
    #[arg(long)]
    pub max_num_batched_tokens: Option<u64>,
    /// Tokens of a cache block
    #[arg(long, default_value_t = 16)]
    pub block_size: u64,
    /// Share of the card for the engine (default: the engine's)
    #[arg(long)]
    pub util: Option<f64>,
    /// All overhead of one GPU beside weights, instead of the model of it
    #[arg(long, value_name = "GIB")]
    pub activation_gib: Option<f64>,
    /// The pool as the engine's log gives it
    #[arg(long, value_name = "GIB")]
    pub kv_pool_gib: Option<f64>,
    /// Weights of one GPU as the engine's log gives them
    #[arg(long, value_name = "GIB")]
    pub weights_gib: Option<f64>,
    /// Share of the bandwidth that decode reaches (default: by class)
    #[arg(long)]
    pub mbu: Option<f64>,
    /// Requests in a decode step
    #[arg(long, default_value_t = 1)]
    pub batch: u64,
    /// USD of one GPU for an hour
    #[arg(long, value_name = "USD")]
    pub gpu_hourly: Option<f64>,
    /// Tokens of a prompt
    #[arg(long)]
    pub prompt_tokens: Option<u64>,
    /// Tokens of an answer
    #[arg(long)]
    pub output_tokens: Option<u64>,
    /// Share of prompt tokens found in the cache
    #[arg(long, default_value_t = 0.0)]
    pub hit_rate: f64,
    /// Requests a second of the whole fleet
    #[arg(long)]
    pub rate: Option<f64>,
    /// Objective for the time to the first token
    #[arg(long)]
    pub slo_ttft_ms: Option<f64>,
    /// Objective for the time of an output token
    #[arg(long)]
    pub slo_tpot_ms: Option<f64>,
    /// Replicas that may be lost
    #[arg(long, default_value_t = 1)]
    pub headroom_replicas: u64,
    /// Draft tokens a step; draft layers of the model then cache too
    #[arg(long, default_value_t = 0)]
    pub spec_tokens: u64,
    /// Share of draft tokens accepted
    #[arg(long, requires = "spec_tokens")]
    pub accept_rate: Option<f64>,
    /// Say whether this many output tokens a second are possible at --batch
    #[arg(long, value_name = "TOK_S")]
    pub check_claim: Option<f64>,
    /// Start-up log of vLLM or SGLang to solve the overhead from
    #[arg(long, value_name = "LOG")]
    pub calibrate: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print the formulas with their numbers
    #[arg(long)]
    pub explain: bool,
    /// Print a Markdown table
    #[arg(long)]
    pub markdown: bool,
}

/// Runs the command on the process's standard streams.
#[must_use]
pub fn run(args: &CapacityArgs) -> ExitCode {
    // The reader of a stream went away: nobody is left to tell.
    capacity(args, &mut io::stdout().lock(), &mut io::stderr().lock()).unwrap_or(ExitCode::FAILURE)
}

fn capacity(args: &CapacityArgs, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<ExitCode> {
    if args.list_presets {
        for name in preset_names() {
            writeln!(out, "{name}")?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.list_gpus {
        return list_gpus(out).map(|()| ExitCode::SUCCESS);
    }
    match solve::solve(args) {
        Ok(answer) => {
            report::write(args, &answer, out)?;
            Ok(if answer.fits { ExitCode::SUCCESS } else { ExitCode::from(UNFIT) })
        }
        Err(problem) => {
            writeln!(err, "error: {problem}")?;
            Ok(ExitCode::from(INVALID))
        }
    }
}

fn list_gpus(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{:<14} {:>8} {:>8} {:>7} {:>7} {:>7}", "gpu", "GiB", "GB/s", "bf16", "fp8", "fp4")?;
    let mark = |recalled: bool| if recalled { "*" } else { " " };
    let peak = |tflops: Option<f64>| tflops.map_or_else(|| "-".to_owned(), |t| format!("{t:.0}"));
    for d in devices() {
        writeln!(
            out,
            "{:<14} {:>7.2}{} {:>7.0}{} {:>7} {:>7} {:>7}",
            d.short,
            d.memory_driver_total_gib,
            mark(d.memory_recalled),
            d.hbm_bandwidth_gb_s,
            mark(d.spec_recalled),
            peak(d.bf16_dense_tflops),
            peak(d.fp8_dense_tflops),
            peak(d.fp4_dense_tflops),
        )?;
    }
    writeln!(out, "\nGiB as the driver tells it; peaks are dense TFLOPS.")?;
    writeln!(out, "* recalled or typical, not read from a source: check before you rely on it.")
}
