//! GPUs and models as data: what the roofline needs to know of each.
//!
//! `active_params` counts the language head but not the input embedding, which is looked up and not multiplied.
//! `weight_params` counts both. MLA keeps one latent for all heads, so its KV is not divided by tensor parallelism.
//! Source: `shared/reference/gpus.jsonl` (bandwidth, peak, driver totals), `model_configs.jsonl` (geometry, counts).

/// One GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gpu {
    /// Name on the command line.
    pub name: &'static str,
    /// Memory as the driver reports it.
    pub memory_gib: f64,
    /// Bytes a second.
    pub bandwidth: f64,
    /// Dense bf16 operations a second.
    pub bf16: f64,
    /// Dense fp8 operations a second; 0 where the card has none.
    pub fp8: f64,
}

impl Gpu {
    /// What vLLM sets on this card when it is told nothing: tokens in a step, sequences.
    ///
    /// 16,384 and 1,024 from 160 GiB on, 8,192 and 1,024 from 70 GiB on but not on A100, else 2,048 and 256.
    /// Source: capacity.md section 1.1 (vLLM 0.33, server).
    #[must_use]
    pub fn vllm_limits(&self) -> (usize, usize) {
        if self.memory_gib >= 160.0 {
            (16_384, 1024)
        } else if self.memory_gib >= 70.0 && !self.name.starts_with("a100") {
            (8192, 1024)
        } else {
            (2048, 256)
        }
    }

    /// What SGLang sets on this card for `chunked_prefill_size`. Source: capacity.md section 1.5; 8,192 on large cards.
    #[must_use]
    pub fn sglang_chunk(&self) -> usize {
        if self.memory_gib < 20.0 {
            2048
        } else if self.memory_gib < 60.0 {
            4096
        } else {
            8192
        }
    }

    /// Peak for weights of this width.
    #[must_use]
    pub fn flops(&self, weight_bits: u32) -> f64 {
        if weight_bits <= 8 && self.fp8 > 0.0 { self.fp8 } else { self.bf16 }
    }
}

const fn card(name: &'static str, memory_gib: f64, gb_per_second: f64, bf16_tflops: f64, fp8_tflops: f64) -> Gpu {
    Gpu { name, memory_gib, bandwidth: gb_per_second * 1e9, bf16: bf16_tflops * 1e12, fp8: fp8_tflops * 1e12 }
}

/// Every GPU that has a preset.
pub const GPUS: &[Gpu] = &[
    card("t4", 14.58, 320.0, 65.0, 0.0),
    card("l4", 22.03, 300.0, 121.0, 242.0),
    card("a10g", 22.06, 600.0, 70.0, 0.0),
    card("a100-40", 39.39, 1555.0, 312.0, 0.0),
    card("a100-80", 79.15, 2039.0, 312.0, 0.0),
    card("l40s", 44.46, 864.0, 362.05, 733.0),
    card("h100", 79.22, 3350.0, 989.0, 1978.0),
    card("h200", 139.8, 4800.0, 989.0, 1978.0),
    card("b200", 178.4, 7700.0, 2250.0, 4500.0),
    card("mi300x", 191.98, 5300.0, 1307.0, 2615.0),
];

/// Experts of a mixture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experts {
    /// Layers that have experts.
    pub layers: usize,
    /// Experts in such a layer.
    pub count: usize,
    /// Experts that a token uses.
    pub per_token: usize,
    /// Parameters of one expert.
    pub params: f64,
}

/// How a layer keeps keys and values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Attention {
    /// Keys and values of each KV head.
    Grouped {
        /// KV heads.
        kv_heads: usize,
    },
    /// One latent for all heads, as in `DeepSeek`.
    Latent {
        /// Width of latent and rope part together.
        width: usize,
    },
}

/// One model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Model {
    /// Name on the command line.
    pub name: &'static str,
    /// Parameters in memory.
    pub weight_params: f64,
    /// Parameters a token is multiplied with.
    pub active_params: f64,
    /// Parameters of the input embedding, which no step reads as a whole.
    pub embedding_params: f64,
    /// Bits of a weight.
    pub weight_bits: u32,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// How a layer keeps keys and values.
    pub attention: Attention,
    /// Bytes of one element of the KV cache.
    pub kv_bytes: usize,
    /// Experts, for a mixture.
    pub experts: Option<Experts>,
    /// Longest context.
    pub max_model_len: usize,
}

impl Model {
    /// Bytes of all weights.
    #[must_use]
    pub fn weight_bytes(&self) -> f64 {
        self.weight_params * f64::from(self.weight_bits) / 8.0
    }

    /// Bytes of the weights that a step of `tokens` tokens reads: all but the embedding, and of each layer's experts
    /// those that any token uses, E x (1 - (1 - k/E)^tokens) on average.
    #[must_use]
    pub fn weight_bytes_touched(&self, tokens: usize) -> f64 {
        let read = match self.experts {
            None => self.weight_params - self.embedding_params,
            Some(experts) => {
                let all = (experts.layers * experts.count) as f64;
                let unused = 1.0 - experts.per_token as f64 / experts.count as f64;
                let touched = all * (1.0 - unused.powf(tokens as f64));
                self.weight_params - self.embedding_params - (all - touched) * experts.params
            }
        };
        read * f64::from(self.weight_bits) / 8.0
    }

    /// Bytes of KV that one token takes on each of `tp` GPUs.
    #[must_use]
    pub fn kv_bytes_per_token(&self, tp: usize) -> f64 {
        let elements = match self.attention {
            Attention::Grouped { kv_heads } => 2.0 * (kv_heads as f64 / tp as f64).max(1.0) * self.head_dim as f64,
            Attention::Latent { width } => width as f64,
        };
        self.layers as f64 * elements * self.kv_bytes as f64
    }
}

const LLAMA_8B: Model = Model {
    name: "llama-3.1-8b",
    weight_params: 8.030e9,
    active_params: 7.505e9,
    embedding_params: 0.525e9, // 128,256 x 4,096
    weight_bits: 16,
    layers: 32,
    heads: 32,
    head_dim: 128,
    attention: Attention::Grouped { kv_heads: 8 },
    kv_bytes: 2,
    experts: None,
    max_model_len: 131_072,
};

const LLAMA_70B: Model = Model {
    name: "llama-3.1-70b",
    weight_params: 70.552e9,
    active_params: 69.502e9,
    embedding_params: 1.051e9, // 128,256 x 8,192
    layers: 80,
    heads: 64,
    ..LLAMA_8B
};

/// Every model that has a preset.
pub const MODELS: &[Model] = &[
    LLAMA_8B,
    Model { name: "llama-3.1-8b-fp8", weight_bits: 8, kv_bytes: 1, ..LLAMA_8B },
    LLAMA_70B,
    Model { name: "llama-3.1-70b-fp8", weight_bits: 8, kv_bytes: 1, ..LLAMA_70B },
    Model {
        name: "qwen2.5-7b",
        weight_params: 7.615e9,
        active_params: 7.070e9,
        embedding_params: 0.545e9, // 152,064 x 3,584
        layers: 28,
        heads: 28,
        attention: Attention::Grouped { kv_heads: 4 },
        max_model_len: 32_768,
        ..LLAMA_8B
    },
    Model {
        name: "qwen3-32b",
        weight_params: 32.761e9,
        active_params: 31.984e9,
        embedding_params: 0.778e9, // 151,936 x 5,120
        layers: 64,
        heads: 64,
        max_model_len: 40_960,
        ..LLAMA_8B
    },
    Model {
        name: "qwen3-30b-a3b",
        weight_params: 30.532e9,
        active_params: 3.042e9,
        embedding_params: 0.311e9, // 151,936 x 2,048
        layers: 48,
        heads: 32,
        attention: Attention::Grouped { kv_heads: 4 },
        experts: Some(Experts { layers: 48, count: 128, per_token: 8, params: 4.719e6 }), // 3 x 2,048 x 768
        max_model_len: 40_960,
        ..LLAMA_8B
    },
    Model {
        name: "mixtral-8x7b",
        weight_params: 46.703e9,
        active_params: 12.749e9,
        embedding_params: 0.131e9, // 32,000 x 4,096
        experts: Some(Experts { layers: 32, count: 8, per_token: 2, params: 176.16e6 }), // 3 x 4,096 x 14,336
        max_model_len: 32_768,
        ..LLAMA_8B
    },
    Model {
        name: "deepseek-v3",
        weight_params: 671.026e9,
        active_params: 36.625e9,
        embedding_params: 0.927e9, // 129,280 x 7,168
        weight_bits: 8,
        layers: 61,
        heads: 128,
        head_dim: 128,
        attention: Attention::Latent { width: 576 }, // kv_lora_rank 512 + rope 64
        kv_bytes: 1,
        experts: Some(Experts { layers: 58, count: 256, per_token: 8, params: 44.04e6 }), // 3 x 7,168 x 2,048
        max_model_len: 163_840,
    },
];

/// The GPU of that name.
#[must_use]
pub fn gpu(name: &str) -> Option<Gpu> {
    GPUS.iter().find(|gpu| gpu.name == name).copied()
}

/// The model of that name.
#[must_use]
pub fn model(name: &str) -> Option<Model> {
    MODELS.iter().find(|model| model.name == name).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kv_bytes_per_token_are_those_of_the_reference() {
        // capacity.md section 6: 131,072 (8B), 81,920 a GPU (70B on four), 35,136 on every GPU (V3, not divided).
        assert!((model("llama-3.1-8b").unwrap().kv_bytes_per_token(1) - 131_072.0).abs() < 0.5);
        assert!((model("llama-3.1-70b").unwrap().kv_bytes_per_token(4) - 81_920.0).abs() < 0.5);
        assert!((model("deepseek-v3").unwrap().kv_bytes_per_token(8) - 35_136.0).abs() < 0.5);
    }

    #[test]
    fn a_large_batch_touches_all_experts_and_one_token_only_its_own() {
        let model = model("deepseek-v3").unwrap();
        let one = model.weight_bytes_touched(1);
        let many = model.weight_bytes_touched(4096);

        assert!((one / 36.6e9 - 1.0).abs() < 0.05, "one token reads about the active parameters: {one}");
        assert!((many / 670.1e9 - 1.0).abs() < 0.01, "{many}");
    }
}
