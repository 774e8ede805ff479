//! What a simulated engine is started with.
//!
//! Defaults are those of the engines where they have one, except that cached token counts are reported: a router wants
//! them and both engines have a flag for it.
//! Source: vLLM and SGLang command lines, `shared/captures/*/README.md`.

use std::time::Duration;

use crate::simulator::{Batching, EngineSpec, Limits, QueueLimit, Timing, timing::Rates};

/// Which engine's wire behaviour is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavor {
    /// vLLM 0.32.
    Vllm,
    /// SGLang 0.5.
    Sglang,
}

/// Failures on request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// Generation requests after the first N are answered 500.
    pub fail_after: Option<u64>,
    /// The engine freezes when request N + 1 arrives: no step runs any more. vLLM's `/health` stays 200, SGLang's hangs.
    pub hang_after: Option<u64>,
    /// The engine process dies once it has generated N tokens: streams get an error event, then nothing listens.
    pub die_after_tokens: Option<u64>,
    /// `/health` answers this much later.
    pub health_delay: Duration,
}

/// A simulated engine.
#[derive(Debug, Clone)]
pub struct SimConfig {
    /// Which engine's wire behaviour is shown.
    pub flavor: Flavor,
    /// Served model name.
    pub model: String,
    /// Scheduler, pool and step time.
    pub engine: EngineSpec,
    /// Longest prompt and output together.
    pub max_model_len: usize,
    /// Names the output text; equal seeds answer alike.
    pub seed: u64,
    /// Mean tokens of an answer that may end by itself.
    pub output_tokens: usize,
    /// Key that requests must carry.
    pub api_key: Option<String>,
    /// vLLM `--enable-request-id-headers`.
    pub request_id_headers: bool,
    /// vLLM `--enable-prompt-tokens-details`, SGLang `--enable-cache-report`.
    pub report_cached_tokens: bool,
    /// vLLM `--sse-keep-alive-interval`.
    pub keep_alive: Option<Duration>,
    /// Failures on request.
    pub faults: Faults,
}

/// The configuration cannot run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// One request of full length would not fit.
    #[error(
        "the KV pool holds {kv_tokens} tokens but one request may have {max_model_len}; raise --kv-tokens or lower --max-model-len"
    )]
    PoolTooSmall {
        /// Tokens the pool holds.
        kv_tokens: usize,
        /// Longest request.
        max_model_len: usize,
    },
    /// A limit is zero.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
}

const DEFAULT_KV_TOKENS: usize = 131_072;
const DEFAULT_MODEL_LEN: usize = 32_768;
const DEFAULT_OUTPUT_TOKENS: usize = 128;

impl SimConfig {
    /// vLLM's defaults: blocks of 16, 256 sequences, 2,048 tokens a step. (0.33 has 8,192 and 1,024 on large cards.)
    #[must_use]
    pub fn vllm(model: &str) -> Self {
        Self::new(Flavor::Vllm, model, Batching::Mixed, 2048)
    }

    /// SGLang's defaults: prefill in steps of its own, chunks of 8,192.
    #[must_use]
    pub fn sglang(model: &str) -> Self {
        Self::new(Flavor::Sglang, model, Batching::PrefillFirst, 8192)
    }

    fn new(flavor: Flavor, model: &str, batching: Batching, max_num_batched_tokens: usize) -> Self {
        let limits = Limits { max_num_seqs: 256, max_num_batched_tokens, queue: QueueLimit::Unlimited, batching };
        Self {
            flavor,
            model: model.to_owned(),
            engine: EngineSpec {
                limits,
                kv_tokens: DEFAULT_KV_TOKENS,
                block_size: 16,
                prefix_caching: true,
                timing: Timing::Rates(Rates::default()),
            },
            max_model_len: DEFAULT_MODEL_LEN,
            seed: 0,
            output_tokens: DEFAULT_OUTPUT_TOKENS,
            api_key: None,
            request_id_headers: false,
            report_cached_tokens: true,
            keep_alive: None,
            faults: Faults::default(),
        }
    }

    /// Checks that every request can run to its end.
    ///
    /// # Errors
    /// A limit of zero, or a pool in which one request of full length would not fit (engines refuse to start then).
    pub fn check(&self) -> Result<(), ConfigError> {
        let limits = &self.engine.limits;
        for (value, name) in [
            (limits.max_num_seqs, "--max-num-seqs"),
            (limits.max_num_batched_tokens, "--max-num-batched-tokens"),
            (self.engine.block_size, "--block-size"),
            (self.max_model_len, "--max-model-len"),
        ] {
            if value == 0 {
                return Err(ConfigError::Zero(name));
            }
        }
        let kv_tokens = self.engine.kv_tokens / self.engine.block_size * self.engine.block_size;
        if kv_tokens < self.max_model_len {
            return Err(ConfigError::PoolTooSmall { kv_tokens, max_model_len: self.max_model_len });
        }
        Ok(())
    }
}
