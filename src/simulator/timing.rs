//! How long a step takes: from two rates, or from the roofline of a GPU and a model.
//!
//! The roofline is a bound: the larger of bytes moved over bandwidth and operations over peak. What real engines reach
//! of it (`mbu`, `mfu`) is a setting with measured defaults. Prefill and decode are not told apart: a step that mixes
//! them reads the weights once, which is why chunked prefill is nearly free beside a small decode batch.
//! Source: `shared/reference/capacity.md` section 3 (formulas, measured shares) and section 6 (reference values).

use std::time::Duration;

use super::presets::{Gpu, Model};

/// What one step computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Sequences that decode one token.
    pub decodes: usize,
    /// Prompt tokens (or tokens computed again).
    pub prefill_tokens: usize,
    /// All tokens.
    pub tokens: usize,
    /// Tokens whose KV is read, over all sequences.
    pub context: usize,
    /// Pairs of (query, key) tokens that attention computes.
    pub pairs: usize,
}

impl Work {
    /// Adds `tokens` new tokens of a sequence that has `context` tokens in the cache.
    pub fn add(&mut self, context: usize, tokens: usize, decode: bool) {
        if decode {
            self.decodes += 1;
        } else {
            self.prefill_tokens += tokens;
        }
        self.tokens += tokens;
        self.context += context + tokens;
        self.pairs += tokens * context + tokens * (tokens + 1) / 2;
    }
}

/// Step time as a function of the step's work.
#[derive(Debug, Clone)]
pub enum Timing {
    /// Two rates and a fixed part; easy to reason about in tests.
    Rates(Rates),
    /// Bytes and operations of a model on a GPU.
    Roofline(Box<Roofline>),
}

/// Step time = overhead + prefill tokens / rate + (decode + slope x sequences, if any decodes).
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    /// Prefill speed, tokens a second.
    pub prefill_tokens_per_second: f64,
    /// Time of a decode step of an empty batch.
    pub decode: Duration,
    /// More for each sequence that decodes.
    pub decode_per_sequence: Duration,
    /// Added to each step.
    pub overhead: Duration,
}

impl Default for Rates {
    /// About Llama-3.1-8B in bf16 on one H100: 7 ms a token alone, 10 ms in a batch of 64, 25,000 prompt tokens a second.
    fn default() -> Self {
        Self {
            prefill_tokens_per_second: 25_000.0,
            decode: Duration::from_micros(6500),
            decode_per_sequence: Duration::from_micros(50),
            overhead: Duration::from_micros(500),
        }
    }
}

/// A model on a GPU, or on `tp` of them.
#[derive(Debug, Clone)]
pub struct Roofline {
    /// The model.
    pub model: Model,
    /// The GPU.
    pub gpu: Gpu,
    /// GPUs that share each layer.
    pub tp: usize,
    /// Share of the memory bandwidth that is reached.
    pub mbu: f64,
    /// Share of the peak operations that is reached.
    pub mfu: f64,
    /// Added to each step: scheduling, launch, sampling.
    pub overhead: Duration,
}

/// Prefill share of the peak: capacity.md section 3, "Defaults to ship".
pub const DEFAULT_MFU: f64 = 0.45;
/// Fixed part of a step: vLLM v1 on a dense 8B spends 0.3 to 1 ms outside the kernels.
pub const DEFAULT_OVERHEAD: Duration = Duration::from_micros(500);

impl Roofline {
    /// With the shares measured for this kind of model: 0.65 dense, 0.55 dense on 4 GPUs or more, 0.40 mixture of experts.
    #[must_use]
    pub fn new(model: Model, gpu: Gpu, tp: usize) -> Self {
        let mbu = match (model.experts, tp) {
            (Some(_), _) => 0.40,
            (None, 4..) => 0.55,
            (None, _) => 0.65,
        };
        Self { model, gpu, tp: tp.max(1), mbu, mfu: DEFAULT_MFU, overhead: DEFAULT_OVERHEAD }
    }

    /// Bytes that one GPU moves in the step: weights that are touched, and the KV of every context.
    #[must_use]
    pub fn bytes(&self, work: &Work) -> f64 {
        self.model.weight_bytes_touched(work.tokens) / self.tp as f64
            + work.context as f64 * self.model.kv_bytes_per_token(self.tp)
    }

    /// Operations that one GPU does in the step: 2 for each active parameter and token, 4 for each pair and channel.
    #[must_use]
    pub fn flops(&self, work: &Work) -> f64 {
        let linear = 2.0 * self.model.active_params * work.tokens as f64;
        let attention = 4.0 * (self.model.layers * self.model.heads * self.model.head_dim) as f64 * work.pairs as f64;
        (linear + attention) / self.tp as f64
    }

    /// Time of the step.
    #[must_use]
    pub fn step(&self, work: &Work) -> Duration {
        let memory = self.bytes(work) / (self.gpu.bandwidth * self.mbu);
        let compute = self.flops(work) / (self.gpu.flops(self.model.weight_bits) * self.mfu);
        self.overhead + Duration::from_secs_f64(memory.max(compute))
    }

    /// Tokens of KV that fit beside the weights, in whole blocks; 0 when the weights alone do not fit.
    ///
    /// Total memory x 0.90 - weights - 2 GiB on each GPU, as in capacity.md section 6. A real engine prints its own
    /// figure at start, which is within 3 % of this for a dense model on one GPU.
    #[must_use]
    pub fn kv_tokens(&self, block_size: usize) -> usize {
        const GIB: f64 = 1_073_741_824.0;
        let pool = (self.gpu.memory_gib * 0.90 - 2.0) * GIB - self.model.weight_bytes() / self.tp as f64;
        let tokens = (pool / self.model.kv_bytes_per_token(self.tp)).max(0.0);
        let tokens = usize::try_from(Duration::from_secs_f64(tokens.floor()).as_secs()).unwrap_or(usize::MAX);
        tokens / block_size * block_size
    }
}

impl Timing {
    /// Time of a step with this work.
    #[must_use]
    pub fn step(&self, work: &Work) -> Duration {
        match self {
            Self::Rates(rates) => {
                let prefill = Duration::from_secs_f64(work.prefill_tokens as f64 / rates.prefill_tokens_per_second);
                let decodes = u32::try_from(work.decodes).unwrap_or(u32::MAX);
                let decode = if decodes == 0 { Duration::ZERO } else { rates.decode };
                rates.overhead + prefill + decode + rates.decode_per_sequence * decodes
            }
            Self::Roofline(roofline) => roofline.step(work),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulator::presets::{gpu, model};

    /// Bound, not estimate: all shares 1, no overhead.
    fn bound(model_name: &str, gpu_name: &str, tp: usize) -> Roofline {
        let roofline = Roofline::new(model(model_name).unwrap(), gpu(gpu_name).unwrap(), tp);
        Roofline { mbu: 1.0, mfu: 1.0, overhead: Duration::ZERO, ..roofline }
    }

    fn decode_ms(roofline: &Roofline, batch: usize, context: usize) -> f64 {
        let mut work = Work::default();
        for _ in 0..batch {
            work.add(context - 1, 1, true);
        }
        roofline.step(&work).as_secs_f64() * 1e3
    }

    fn near(value: f64, expected: f64, share: f64) {
        assert!((value - expected).abs() <= expected * share, "{value} is not {expected}");
    }

    #[test]
    fn decode_bounds_agree_with_the_reference_values() {
        // capacity.md section 6, points 1, 2, 3 and 5.
        let one = bound("llama-3.1-8b", "h100", 1);
        near(decode_ms(&one, 1, 1024), 4.52, 0.002);
        near(decode_ms(&one, 32, 8192), 14.74, 0.002);
        near(decode_ms(&one, 64, 8192), 24.99, 0.002);
        let two = bound("llama-3.1-8b-fp8", "h100", 1);
        near(decode_ms(&two, 32, 8192), 7.53, 0.07);
        let three = bound("llama-3.1-70b", "h100", 4);
        near(decode_ms(&three, 1, 1024), 10.40, 0.005);
        near(decode_ms(&three, 32, 8192), 16.78, 0.005);
        let five = bound("deepseek-v3", "h200", 8);
        near(decode_ms(&five, 32, 32768), 18.97, 0.02);
    }

    #[test]
    fn kv_tokens_agree_with_the_reference_values() {
        near(bound("llama-3.1-8b", "h100", 1).kv_tokens(16) as f64, 445_008.0, 0.003);
        near(bound("llama-3.1-70b", "h100", 4).kv_tokens(16) as f64, 477_440.0, 0.003);
        assert_eq!(bound("llama-3.1-70b", "h100", 1).kv_tokens(16), 0, "140 GB do not fit on 80");
    }

    #[test]
    fn prefill_is_bound_by_operations_and_grows_with_the_square() {
        let roofline = bound("llama-3.1-8b", "h100", 1);
        let mut short = Work::default();
        short.add(0, 2048, false);
        let mut long = Work::default();
        long.add(0, 16384, false);

        // 2 x 7.505e9 x 2048 + 4 x 32 x 32 x 128 x 2048 x 2049 / 2 = 3.184e13 over 989e12.
        near(roofline.step(&short).as_secs_f64() * 1e3, 32.2, 0.01);
        assert!(roofline.step(&long) > roofline.step(&short) * 9, "8 times the tokens, more than 9 times the time");
    }

    #[test]
    fn rates_add_up() {
        let timing = Timing::Rates(Rates {
            prefill_tokens_per_second: 10_000.0,
            decode: Duration::from_millis(8),
            decode_per_sequence: Duration::from_micros(100),
            overhead: Duration::from_millis(1),
        });
        let mut work = Work::default();
        work.add(100, 1, true);
        work.add(100, 1, true);
        work.add(0, 500, false);

        assert_eq!(timing.step(&work), Duration::from_micros(1000 + 8000 + 200 + 50_000));
    }
}
