//! Speed: a roofline that no run exceeds, and an estimate beside it.

use super::{
    Device, Format, Layout, Split, Weights,
    geometry::{Attention, Geometry},
};

/// What requests look like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Traffic {
    /// Tokens of a prompt.
    pub prompt: f64,
    /// Tokens of an answer.
    pub output: f64,
    /// Share of prompt tokens found in the cache.
    pub hit: f64,
}

/// What speed depends on.
#[derive(Debug)]
pub struct SpeedInput<'a> {
    /// The model.
    pub model: &'a Geometry,
    /// Its weights on one GPU.
    pub weights: &'a Weights,
    /// Uniform bytes of a parameter, if weights are told so.
    pub weight_bytes: Option<f64>,
    /// Their format.
    pub format: &'a Format,
    /// The cache.
    pub layout: &'a Layout,
    /// The GPU.
    pub device: &'a Device,
    /// The split.
    pub split: Split,
    /// Share of the bandwidth that decode reaches, if not the table's.
    pub mbu: Option<f64>,
    /// Draft tokens a step.
    pub spec: u64,
    /// Share of draft tokens accepted.
    pub accept: f64,
    /// Bytes of the draft model on one GPU, read once a draft token.
    pub draft_bytes: f64,
    /// Bytes of one adapter on one GPU, and how many are loaded.
    pub lora: (f64, u64),
}

/// The roofline of a model on a GPU.
#[derive(Debug, Clone, Copy)]
pub struct Speed<'a> {
    input: &'a SpeedInput<'a>,
    bandwidth: f64,
    flops: f64,
    decode_flops: f64,
}

/// Shares of the bound that runs reached (`MBU`, prefill `MFU`, saturated serving), and their class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Efficiency {
    /// Of the bandwidth in decode.
    pub mbu: f64,
    /// Of the arithmetic in prefill.
    pub mfu: f64,
    /// Of the bound at saturation.
    pub serving: f64,
    /// Which class of runs.
    pub class: &'static str,
}

impl<'a> Speed<'a> {
    /// `None` when the GPU's row has no arithmetic peak.
    #[must_use]
    pub fn new(input: &'a SpeedInput<'a>) -> Option<Self> {
        let device = input.device;
        let bf16 = device.bf16_dense_tflops?;
        let fp8 = device.fp8_dense_tflops.unwrap_or(bf16);
        let peak = match input.format.math {
            4 => device.fp4_dense_tflops.unwrap_or(fp8),
            8 => fp8,
            _ => bf16,
        };
        let ranks = input.split.tp as f64;
        let flops = peak * 1e12 * ranks;
        Some(Self { input, bandwidth: device.hbm_bandwidth_gb_s * 1e9, flops, decode_flops: flops })
    }

    /// The efficiency table, by class.
    #[must_use]
    pub fn efficiency(&self) -> Efficiency {
        let (mbu, serving, class) = if self.input.model.is_moe() {
            (0.40, 0.20, "mixture of experts")
        } else if self.input.split.tp >= 4 {
            (0.55, 0.35, "dense, TP of 4 and more")
        } else {
            (0.65, 0.55, "dense")
        };
        Efficiency { mbu: self.input.mbu.unwrap_or(mbu), mfu: 0.45, serving, class }
    }

    /// Experts of a layer that `tokens` tokens touch, if each picks at random.
    #[must_use]
    pub fn touched(&self, tokens: f64) -> f64 {
        let e = self.input.model.experts;
        if e.count == 0 {
            return 0.0;
        }
        let all = e.count as f64;
        all * (1.0 - (1.0 - e.active as f64 / all).powf(tokens))
    }

    /// Bytes of weights that a step over `tokens` tokens reads on one GPU.
    #[must_use]
    pub fn weight_bytes(&self, tokens: f64) -> f64 {
        let w = self.input.weights;
        let (step, expert) = match self.input.weight_bytes {
            None => (w.step_bytes, w.expert_bytes),
            Some(bytes) => {
                let expert = w.expert_bytes / self.input.format.bytes;
                let routed = expert * (w.expert_layers * self.input.model.experts.count) as f64;
                let input_table = if self.input.model.tied { 0.0 } else { w.params_head as f64 };
                let stages = (self.input.split.tp * self.input.split.pp) as f64;
                ((w.params as f64 - input_table - routed) * bytes / stages, expert * bytes)
            }
        };
        step + w.expert_layers as f64 * self.touched(tokens) * expert / self.input.split.ep as f64
    }

    fn step(&self, batch: f64, context: f64, mbu: f64, mfu: f64) -> f64 {
        let i = self.input;
        let tokens = batch * (1 + i.spec) as f64;
        let adapters = i.lora.0 * batch.min(i.lora.1 as f64);
        let share = if i.split.dp_attention { 1.0 / i.split.tp as f64 } else { 1.0 };
        let moved = self.weight_bytes(tokens)
            + adapters
            + share * batch * i.layout.read_bytes(context)
            + i.draft_bytes * i.spec as f64;
        let work = 2.0 * i.weights.params_active as f64 * tokens;
        // Stages of a pipeline run one after the other for one token.
        i.split.pp as f64 * (moved / (self.bandwidth * mbu)).max(work / i.split.pp as f64 / (self.decode_flops * mfu))
    }

    /// Tokens that a request gains in a step.
    #[must_use]
    pub fn tokens_per_step(&self) -> f64 {
        let (k, a) = (self.input.spec as f64, self.input.accept.clamp(0.0, 1.0));
        if a >= 1.0 { k + 1.0 } else { (1.0 - a.powf(k + 1.0)) / (1.0 - a) }
    }

    /// Seconds an output token takes, at the least.
    #[must_use]
    pub fn tpot_bound(&self, batch: f64, context: f64) -> f64 {
        self.step(batch, context, 1.0, 1.0) / self.tokens_per_step()
    }

    /// Seconds an output token likely takes.
    #[must_use]
    pub fn tpot_estimate(&self, batch: f64, context: f64) -> f64 {
        let e = self.efficiency();
        self.step(batch, context, e.mbu, e.mfu) / self.tokens_per_step()
    }

    /// Seconds that a prompt's tokens take at the least, `hit` of them found in the cache.
    #[must_use]
    pub fn prefill_bound(&self, prompt: f64, hit: f64) -> f64 {
        let w = self.input.weights;
        let new = prompt * (1.0 - hit.clamp(0.0, 1.0));
        let linear = 2.0 * w.params_active.saturating_sub(w.params_head) as f64 * new;
        (linear + self.attention_work(prompt, prompt - new)) / self.flops
    }

    /// Operations of attention over a prompt whose first `cached` tokens are not computed.
    fn attention_work(&self, prompt: f64, cached: f64) -> f64 {
        let heads = self.input.model.heads as f64;
        // Pairs of tokens: half of the square, without the cached square, or a band.
        let pairs = |most: f64| {
            let seen = prompt.min(most);
            (prompt - cached) * if most < prompt { seen / 2.0 } else { f64::midpoint(prompt, cached) }
        };
        let work = |attention: &Attention| match *attention {
            Attention::Full { head, v_head, .. } => 2.0 * (head + v_head) as f64 * pairs(f64::INFINITY),
            Attention::Sliding { head, v_head, window, .. } => 2.0 * (head + v_head) as f64 * pairs(window as f64),
            Attention::Chunked { head, v_head, chunk, .. } => 2.0 * (head + v_head) as f64 * pairs(chunk as f64),
            Attention::Shared { head, .. } => 4.0 * head as f64 * pairs(f64::INFINITY),
            // The indexer keeps sparse attention below this; without a count of it, nothing is added.
            Attention::Mla { indexer: Some(_), .. }
            | Attention::Gdn { .. }
            | Attention::Mamba { .. }
            | Attention::None => 0.0,
            Attention::Mla { rope, .. } => {
                2.0 * (self.input.model.mla.nope + rope + self.input.model.mla.v) as f64 * pairs(f64::INFINITY)
            }
        };
        self.input.model.layers.iter().map(|layer| heads * work(&layer.attention)).sum()
    }

    /// Seconds that a prompt likely takes.
    #[must_use]
    pub fn prefill_estimate(&self, prompt: f64, hit: f64) -> f64 {
        self.prefill_bound(prompt, hit) / self.efficiency().mfu
    }

    /// Output tokens a second with `batch` requests in flight, prompts included, at the most.
    #[must_use]
    pub fn serving_bound(&self, batch: f64, traffic: &Traffic) -> f64 {
        let context = traffic.prompt + traffic.output / 2.0;
        let decode = traffic.output * self.tpot_bound(batch, context);
        batch * traffic.output / (decode + batch * self.prefill_bound(traffic.prompt, traffic.hit))
    }

    /// The same, likely.
    #[must_use]
    pub fn serving_estimate(&self, batch: f64, traffic: &Traffic) -> f64 {
        let context = traffic.prompt + traffic.output / 2.0;
        let decode = traffic.output * self.tpot_estimate(batch, context);
        let single = batch * traffic.output / (decode + batch * self.prefill_estimate(traffic.prompt, traffic.hit));
        // Saturated runs lose more than either phase alone.
        single.min(self.serving_bound(batch, traffic) * self.saturation(batch))
    }

    /// Share of the serving bound, from the batch-1 share down to the saturated share at 64 requests.
    fn saturation(&self, batch: f64) -> f64 {
        let e = self.efficiency();
        let high = e.mbu.max(e.serving);
        let full = (batch.max(1.0).log2() / 6.0).min(1.0);
        high - (high - e.serving) * full
    }

    /// Time between tokens of a request in a running batch, the prompts of others included.
    #[must_use]
    pub fn tpot_serving(&self, batch: f64, traffic: &Traffic) -> f64 {
        batch / self.serving_estimate(batch, traffic).max(f64::MIN_POSITIVE)
    }

    /// The largest batch up to `most` that keeps a time between tokens; 0 if none does.
    #[must_use]
    pub fn largest_batch(&self, most: u64, tpot_s: f64, traffic: &Traffic) -> u64 {
        let holds = |batch: u64| self.tpot_serving(batch as f64, traffic) <= tpot_s;
        let (mut low, mut high) = (0, most);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if holds(middle) { low = middle } else { high = middle - 1 }
        }
        low
    }
}
