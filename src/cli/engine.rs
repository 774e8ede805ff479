//! `gateway engine`: a simulated vLLM or SGLang on a port.

use std::{
    io::Write,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};

use crate::{
    simserver::{self, Faults, Flavor, SimConfig},
    simulator::{
        QueueLimit, Timing, presets,
        timing::{Rates, Roofline},
    },
};

/// Which engine is imitated.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum FlavorArg {
    /// vLLM 0.32
    Vllm,
    /// SGLang 0.5
    Sglang,
}

/// Run a simulated vLLM or SGLang: real HTTP, real batching, no GPU
#[derive(Debug, Args)]
#[command(
    after_help = "Example, an 8B model on an H100:\n  gateway engine --port 8000 --gpu h100 --preset llama-3.1-8b"
)]
pub struct EngineArgs {
    /// Port to listen on; 0 takes any free one
    #[arg(long)]
    pub port: u16,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Engine to imitate
    #[arg(long, value_enum, default_value = "vllm")]
    pub flavor: FlavorArg,
    /// Served model name [default: the preset's, or "sim"]
    #[arg(long)]
    pub model: Option<String>,
    /// Key that clients must send as a bearer token
    #[arg(long)]
    pub api_key: Option<String>,
    /// Seed of the generated text; equal seeds answer alike
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Mean length of answers that end by themselves, in tokens
    #[arg(long, default_value_t = 128, value_name = "TOKENS")]
    pub output_tokens: usize,

    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    timing: TimingArgs,
    #[command(flatten)]
    wire: WireArgs,
    #[command(flatten)]
    faults: FaultArgs,
}

/// Scheduler and cache.
#[derive(Debug, Args)]
#[command(next_help_heading = "Scheduler and cache")]
struct LimitArgs {
    /// Sequences that run at once [default: the GPU's, or 256]
    #[arg(long, value_name = "N")]
    max_num_seqs: Option<usize>,
    /// Tokens in one step; sglang: of prefill [default: the GPU's, or 2048;
    /// sglang 8192]
    #[arg(long, value_name = "N")]
    max_num_batched_tokens: Option<usize>,
    /// Refuse requests beyond N queued (vllm: waiting and running, sglang:
    /// waiting) [default: no limit]
    #[arg(long, value_name = "N")]
    max_num_queued_reqs: Option<usize>,
    /// Tokens in one block of the KV pool
    #[arg(long, default_value_t = 16, value_name = "N")]
    block_size: usize,
    /// Tokens the KV pool holds [default: what fits on the GPU, or 131072]
    #[arg(long, value_name = "N")]
    kv_tokens: Option<usize>,
    /// Longest prompt and output together [default: 32768, or less if the
    /// model or the pool is smaller]
    #[arg(long, value_name = "N")]
    max_model_len: Option<usize>,
    /// Forget every prefix at once
    #[arg(long)]
    no_prefix_caching: bool,
}

/// Step time: two rates, or the roofline of a GPU and a model.
#[derive(Debug, Args)]
#[command(next_help_heading = "Step time")]
struct TimingArgs {
    /// GPU whose roofline gives the step time (h100, h200, a100-80, l4, ...)
    #[arg(long, requires = "preset")]
    gpu: Option<String>,
    /// Model for the roofline (llama-3.1-8b, llama-3.1-70b, qwen2.5-7b,
    /// mixtral-8x7b, deepseek-v3, ...)
    #[arg(long, requires = "gpu")]
    preset: Option<String>,
    /// GPUs that share each layer
    #[arg(long, default_value_t = 1, requires = "gpu", value_name = "N")]
    tp: usize,
    /// Share of the memory bandwidth reached [default: 0.65 dense, 0.55 from
    /// 4 GPUs on, 0.40 mixture of experts]
    #[arg(long, requires = "gpu", value_name = "SHARE")]
    mbu: Option<f64>,
    /// Share of the peak operations reached [default: 0.45]
    #[arg(long, requires = "gpu", value_name = "SHARE")]
    mfu: Option<f64>,
    /// Prefill speed in tokens a second [default: 25000]
    #[arg(long, conflicts_with = "gpu", value_name = "RATE")]
    prefill_tok_s: Option<f64>,
    /// Time of a decode step in milliseconds [default: 6.5]
    #[arg(long, conflicts_with = "gpu", value_name = "MS")]
    decode_ms: Option<f64>,
    /// More for each sequence that decodes, in milliseconds [default: 0.05]
    #[arg(long, conflicts_with = "gpu", value_name = "MS")]
    decode_per_seq_ms: Option<f64>,
    /// Fixed part of every step in milliseconds [default: 0.5]
    #[arg(long, value_name = "MS")]
    step_overhead_ms: Option<f64>,
}

/// Wire behaviour.
#[derive(Debug, Args)]
#[command(next_help_heading = "Wire behaviour")]
struct WireArgs {
    /// Echo X-Request-Id on every answer (vllm)
    #[arg(long)]
    enable_request_id_headers: bool,
    /// Leave cached token counts out of usage
    #[arg(long)]
    no_cache_report: bool,
    /// Send a comment after this many silent seconds of a stream
    #[arg(long, value_name = "SECONDS")]
    sse_keep_alive_interval: Option<f64>,
}

/// Failures to try a gateway on.
#[derive(Debug, Args)]
#[command(next_help_heading = "Faults")]
struct FaultArgs {
    /// Answer 500 after N requests
    #[arg(long, value_name = "N")]
    fail_after: Option<u64>,
    /// Freeze the engine after N requests; vllm's /health stays 200
    #[arg(long, value_name = "N")]
    hang_after: Option<u64>,
    /// Die after N generated tokens: streams end with an error event, then
    /// nothing listens
    #[arg(long, value_name = "N")]
    die_after_tokens: Option<u64>,
    /// Answer /health this much later
    #[arg(long, default_value_t = 0, value_name = "MS")]
    health_delay_ms: u64,
}

impl EngineArgs {
    /// The configuration these flags ask for.
    ///
    /// # Errors
    /// An unknown preset, a number out of range, or a model that does not fit on the GPU.
    pub fn config(&self) -> anyhow::Result<SimConfig> {
        let named = self.model.clone().or_else(|| self.timing.preset.clone()).unwrap_or_else(|| "sim".to_owned());
        let mut config = match self.flavor {
            FlavorArg::Vllm => SimConfig::vllm(&named),
            FlavorArg::Sglang => SimConfig::sglang(&named),
        };
        self.set_timing(&mut config)?;
        self.set_limits(&mut config);
        config.api_key.clone_from(&self.api_key);
        config.seed = self.seed;
        config.output_tokens = self.output_tokens;
        config.request_id_headers = self.wire.enable_request_id_headers;
        config.report_cached_tokens = !self.wire.no_cache_report;
        config.keep_alive = self.wire.sse_keep_alive_interval.map(seconds).transpose()?;
        config.faults = Faults {
            fail_after: self.faults.fail_after,
            hang_after: self.faults.hang_after,
            die_after_tokens: self.faults.die_after_tokens,
            health_delay: Duration::from_millis(self.faults.health_delay_ms),
        };
        Ok(config)
    }

    fn set_timing(&self, config: &mut SimConfig) -> anyhow::Result<()> {
        let flags = &self.timing;
        let overhead = flags.step_overhead_ms.map(millis).transpose()?;
        let (Some(gpu), Some(preset)) = (&flags.gpu, &flags.preset) else {
            let mut rates = Rates::default();
            rates.prefill_tokens_per_second = flags.prefill_tok_s.unwrap_or(rates.prefill_tokens_per_second);
            if rates.prefill_tokens_per_second.is_nan() || rates.prefill_tokens_per_second < 1.0 {
                bail!("--prefill-tok-s must be at least 1");
            }
            rates.decode = flags.decode_ms.map(millis).transpose()?.unwrap_or(rates.decode);
            rates.decode_per_sequence =
                flags.decode_per_seq_ms.map(millis).transpose()?.unwrap_or(rates.decode_per_sequence);
            rates.overhead = overhead.unwrap_or(rates.overhead);
            config.engine.timing = Timing::Rates(rates);
            return Ok(());
        };
        let names = |all: Vec<&str>| all.join(", ");
        let gpu = presets::gpu(gpu).with_context(|| {
            format!("--gpu {gpu}: one of {}", names(presets::GPUS.iter().map(|g| g.name).collect()))
        })?;
        let model = presets::model(preset).with_context(|| {
            format!("--preset {preset}: one of {}", names(presets::MODELS.iter().map(|m| m.name).collect()))
        })?;
        let mut roofline = Roofline::new(model, gpu, flags.tp);
        roofline.mbu = share("--mbu", flags.mbu.unwrap_or(roofline.mbu))?;
        roofline.mfu = share("--mfu", flags.mfu.unwrap_or(roofline.mfu))?;
        roofline.overhead = overhead.unwrap_or(roofline.overhead);
        config.engine.kv_tokens = roofline.kv_tokens(self.limits.block_size.max(1));
        if config.engine.kv_tokens == 0 && self.limits.kv_tokens.is_none() {
            bail!("{preset} does not fit on {} x {}; raise --tp or give --kv-tokens", flags.tp, gpu.name);
        }
        let limits = &mut config.engine.limits;
        match config.flavor {
            Flavor::Vllm => (limits.max_num_batched_tokens, limits.max_num_seqs) = gpu.vllm_limits(),
            Flavor::Sglang => limits.max_num_batched_tokens = gpu.sglang_chunk(),
        }
        config.max_model_len = config.max_model_len.min(model.max_model_len);
        config.engine.timing = Timing::Roofline(Box::new(roofline));
        Ok(())
    }

    fn set_limits(&self, config: &mut SimConfig) {
        let flags = &self.limits;
        let limits = &mut config.engine.limits;
        limits.max_num_seqs = flags.max_num_seqs.unwrap_or(limits.max_num_seqs);
        limits.max_num_batched_tokens = flags.max_num_batched_tokens.unwrap_or(limits.max_num_batched_tokens);
        limits.queue = match (flags.max_num_queued_reqs, config.flavor) {
            (None, _) => QueueLimit::Unlimited,
            (Some(limit), Flavor::Vllm) => QueueLimit::Total(limit),
            (Some(limit), Flavor::Sglang) => QueueLimit::Waiting(limit),
        };
        config.engine.block_size = flags.block_size;
        config.engine.kv_tokens = flags.kv_tokens.unwrap_or(config.engine.kv_tokens);
        config.engine.prefix_caching = !flags.no_prefix_caching;
        let whole_blocks = config.engine.kv_tokens / flags.block_size.max(1) * flags.block_size.max(1);
        config.max_model_len = flags.max_model_len.unwrap_or(config.max_model_len.min(whole_blocks));
    }
}

fn millis(value: f64) -> anyhow::Result<Duration> {
    seconds(value / 1e3)
}

fn seconds(value: f64) -> anyhow::Result<Duration> {
    Duration::try_from_secs_f64(value).with_context(|| format!("{value} s is no duration"))
}

fn share(flag: &str, value: f64) -> anyhow::Result<f64> {
    if value > 0.0 && value <= 1.0 { Ok(value) } else { bail!("{flag} must be above 0 and at most 1") }
}

/// Runs until SIGINT or SIGTERM, or until the engine dies of `--die-after-tokens`.
///
/// # Errors
/// Bad flags, an address in use, or the engine's death.
pub async fn run(args: EngineArgs) -> anyhow::Result<()> {
    let config = args.config()?;
    let line = describe(&config);
    let engine = simserver::start(config, SocketAddr::new(args.host, args.port)).await?;
    writeln!(std::io::stdout(), "{line} ready on http://{}", engine.addr)?;
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        _ = terminate.recv() => {}
        () = engine.died() => bail!("the simulated engine died (--die-after-tokens)"),
    }
    engine.shutdown().await;
    Ok(())
}

fn describe(config: &SimConfig) -> String {
    let flavor = match config.flavor {
        Flavor::Vllm => "vLLM",
        Flavor::Sglang => "SGLang",
    };
    let engine = &config.engine;
    format!(
        "simulated {flavor} serving {} ({} sequences, {} KV tokens in blocks of {}, context {})",
        config.model, engine.limits.max_num_seqs, engine.kv_tokens, engine.block_size, config.max_model_len
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        engine: EngineArgs,
    }

    fn config(flags: &str) -> anyhow::Result<SimConfig> {
        let words = format!("engine --port 1 {flags}");
        Line::try_parse_from(words.split_whitespace())?.engine.config()
    }

    #[test]
    fn a_gpu_and_a_preset_give_the_pool_and_the_name() {
        let config = config("--gpu h100 --preset llama-3.1-8b").unwrap();

        assert_eq!(config.model, "llama-3.1-8b");
        assert!((440_000..450_000).contains(&config.engine.kv_tokens), "{}", config.engine.kv_tokens);
        assert!(matches!(config.engine.timing, Timing::Roofline(_)));
        config.check().unwrap();
    }

    #[test]
    fn a_small_pool_shortens_the_context_unless_it_was_asked_for() {
        assert_eq!(config("--kv-tokens 1000").unwrap().max_model_len, 992);
        assert!(config("--kv-tokens 1000 --max-model-len 2000").unwrap().check().is_err());
    }

    #[test]
    fn the_queue_limit_means_what_each_engine_means() {
        assert_eq!(config("--max-num-queued-reqs 6").unwrap().engine.limits.queue, QueueLimit::Total(6));
        let sglang = config("--flavor sglang --max-num-queued-reqs 6").unwrap();
        assert_eq!(sglang.engine.limits.queue, QueueLimit::Waiting(6));
    }

    #[test]
    fn nonsense_is_refused_with_a_word_on_what_to_do() {
        for (flags, words) in [
            ("--gpu h1000 --preset llama-3.1-8b", "one of t4, l4"),
            ("--gpu h100 --preset gpt-9", "one of llama-3.1-8b"),
            ("--gpu h100 --preset llama-3.1-70b", "raise --tp"),
            ("--gpu h100", "--preset"),
            ("--decode-ms=-1", "no duration"),
            ("--prefill-tok-s 0", "at least 1"),
            ("--gpu h100 --preset llama-3.1-8b --mbu 1.5", "at most 1"),
        ] {
            let error = format!("{:#}", config(flags).unwrap_err());
            assert!(error.contains(words), "{flags}: {error}");
        }
    }

    #[test]
    fn help_fits_eighty_columns() {
        let help = Line::command().term_width(80).render_long_help().to_string();

        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
    }
}
