//! Weights by module, for one rank.

use super::{
    GIB, Problem, Split,
    geometry::{Attention, Geometry, Layer, Mlp},
    plain,
};

/// How the weights are stored, and the arithmetic that format allows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Format {
    /// Its name.
    pub name: &'static str,
    /// Bytes of a quantised parameter, scales included.
    pub bytes: f64,
    /// Attention stays in 16 bits.
    pub attention_16: bool,
    /// Everything but experts stays in 16 bits.
    pub experts_only: bool,
    /// Bits of the fastest arithmetic: 16, 8 or 4.
    pub math: u8,
}

/// The format that a name stands for: `--quant`, or the model's own.
///
/// # Errors
///
/// The format is not known; `--weights-gib` answers instead.
pub fn format_of(wanted: Option<&str>, model: &Geometry) -> Result<Format, Problem> {
    let name = wanted.or(model.quant.as_deref()).unwrap_or("bf16");
    let block = |(rows, columns): (u64, u64)| 4.0 / (rows * columns) as f64;
    let scales = if wanted.is_none() || plain(name) == "fp8block" { model.quant_block.map_or(0.0, block) } else { 0.0 };
    let format =
        |name, bytes, math| Format { name, bytes, attention_16: model.attention_16, experts_only: false, math };
    Ok(match plain(name).as_str() {
        "bf16" | "fp16" | "none" | "bfloat16" | "float16" => format("bf16", 2.0, 16),
        "fp32" | "float32" => format("fp32", 4.0, 16),
        "fp8" | "fp8pertensor" | "modeloptfp8" => format("fp8", 1.0 + scales, 8),
        "fp8block" => format("fp8-block", 1.0 + if scales > 0.0 { scales } else { 4.0 / 16384.0 }, 8),
        "fbgemmfp8" => Format { attention_16: true, ..format("fbgemm_fp8", 1.0, 8) },
        "int8" | "w8a8int8" => format("int8", 1.0, 8),
        "awq" | "gptq" | "int4" | "awqmarlin" | "gptqmarlin" | "w4a16" => format("int4 (groups of 128)", 0.5195, 16),
        "int4experts" => Format { experts_only: true, ..format("int4 experts (groups of 32)", 0.5625, 16) },
        "nvfp4" => format("nvfp4", 0.5625, 4),
        "mxfp4" => Format { experts_only: true, ..format("mxfp4 experts", 0.53125, 4) },
        _ => {
            let problem = format!("{name:?} is not a format whose size is known");
            return Err(Problem::new(
                "--quant",
                problem,
                "give --weights-gib from the engine's log, or --weight-bytes",
            ));
        }
    })
}

/// Weights of one rank.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Weights {
    /// Parameters of the whole model, without layers of multi-token prediction.
    pub params: u64,
    /// Parameters that one token meets, output projection included, input embedding not.
    pub params_active: u64,
    /// Of those, in the output projection.
    pub params_head: u64,
    /// Bytes on one GPU by module.
    pub modules: Vec<(&'static str, f64)>,
    /// Bytes of one routed expert over the whole group.
    pub expert_bytes: f64,
    /// Layers with experts.
    pub expert_layers: u64,
    /// Bytes on one GPU that every decode step reads: all but the input embedding and routed experts.
    pub step_bytes: f64,
    /// Bytes on one GPU for the input embedding.
    pub embedding_bytes: f64,
}

impl Weights {
    /// Bytes on one GPU.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        self.modules.iter().map(|(_, bytes)| bytes).sum()
    }

    /// GiB on one GPU.
    #[must_use]
    pub fn gib(&self) -> f64 {
        self.bytes() / GIB
    }
}

/// Parameters of one attention: divided over the ranks, on each rank, and of keys and values.
fn attention(model: &Geometry, layer: &Layer) -> (u64, u64, u64, u64) {
    let (hidden, heads) = (model.hidden, model.heads);
    let grouped = |kv_heads: u64, head: u64, v_head: u64| {
        let q = hidden * heads * head * if model.q_gate { 2 } else { 1 };
        let norms = if model.kind.starts_with("qwen3") || model.kind.starts_with("gemma") { 2 * head } else { 0 };
        (q + heads * v_head * hidden, norms, hidden * kv_heads * (head + v_head), kv_heads)
    };
    match layer.attention {
        Attention::Full { kv_heads, head, v_head }
        | Attention::Sliding { kv_heads, head, v_head, .. }
        | Attention::Chunked { kv_heads, head, v_head, .. } => {
            let (q, norms, kv, kv_heads) = grouped(kv_heads, head, v_head);
            // Gemma 4 projects keys once and uses them as values where heads are the wide ones.
            let kv = if model.k_eq_v && head > model.head { kv / 2 } else { kv };
            (q, norms, kv, kv_heads)
        }
        Attention::Shared { head, .. } => (hidden * heads * head * 2, 0, 0, 1),
        Attention::Mla { lora, rope, indexer } => {
            let widths = model.mla;
            let q_width = heads * (widths.nope + rope);
            let (q_repl, q) = if widths.q_lora > 0 {
                (hidden * widths.q_lora + widths.q_lora, widths.q_lora * q_width)
            } else {
                (0, hidden * q_width)
            };
            let kv_up = lora * heads * (widths.nope + widths.v);
            let index = indexer.map_or(0, |i| widths.q_lora * i.heads * i.dim + hidden * (i.dim + i.heads) + 2 * i.dim);
            (q + kv_up + heads * widths.v * hidden, q_repl + hidden * (lora + rope) + lora + index, 0, 1)
        }
        Attention::Gdn { k_heads, v_heads, k_dim, v_dim, kernel } => {
            let (keys, values) = (k_heads * k_dim, v_heads * v_dim);
            let mixed = hidden * (2 * keys + 2 * values + 2 * v_heads) + (2 * keys + values) * kernel;
            (mixed + values * hidden + 2 * v_heads, v_dim, 0, 1)
        }
        Attention::Mamba { heads, head, state, groups, kernel } => {
            let inner = heads * head;
            let wide = inner + 2 * groups * state;
            (hidden * (inner + wide + heads) + wide * (kernel + 1) + inner * hidden + 3 * heads + inner, 0, 0, 1)
        }
        Attention::None => (0, 0, 0, 1),
    }
}

/// Weights of the layers `from..to` on one rank; the first stage holds the input embedding, the last the output.
#[must_use]
pub fn weights(model: &Geometry, format: &Format, split: &Split, stage: (usize, usize)) -> Weights {
    let tp = split.tp as f64;
    let attention_tp = if split.dp_attention { 1 } else { split.tp };
    let matrices = if model.gated { 3 } else { 2 };
    let linear = if format.experts_only { 2.0 } else { format.bytes };
    let attention_bytes = if format.attention_16 { 2.0 } else { linear };
    let bias = |heads: u64| if model.kind == "qwen2" { heads * model.head } else { 0 };
    let mut w = Weights::default();
    let (mut attn, mut dense, mut experts, mut shared, mut small) = (0.0, 0.0, 0.0, 0.0, 0.0);
    let e = model.experts;
    let expert = matrices * model.hidden * e.width;
    let resident = (e.count as f64 / split.ep as f64).ceil() / e.count.max(1) as f64;
    for (index, layer) in model.layers.iter().enumerate() {
        let here = index >= stage.0 && index < stage.1;
        let (sharded, replicated, kv, kv_heads) = attention(model, layer);
        let kv_share = 1.0 / attention_tp.min(kv_heads).max(1) as f64;
        let mut params = sharded + replicated + kv + bias(model.heads + 2 * kv_heads);
        let norms = model.hidden * norms(model, layer);
        let mut layer_small = 2.0 * (norms + bias(model.heads + 2 * kv_heads)) as f64;
        params += norms;
        let mut active = params;
        let (mut d, mut x, mut s) = (0.0, 0.0, 0.0);
        match layer.mlp {
            Mlp::Dense { width } => {
                let block = matrices * model.hidden * width;
                params += block;
                active += block;
                d = block as f64 * linear / tp;
            }
            Mlp::Moe => {
                let shared_block = matrices * model.hidden * e.shared;
                let router = model.hidden * e.count + if model.mla.q_lora > 0 { e.count } else { 0 };
                let gate = if e.shared > 0 && model.kind.starts_with("qwen") { model.hidden } else { 0 };
                params += e.count * expert + shared_block + router + gate;
                active += e.active * expert + shared_block + router + gate;
                x = e.count as f64 * expert as f64 * format.bytes * resident;
                s = shared_block as f64 * linear / tp;
                layer_small += 2.0 * (router + gate) as f64;
                w.expert_layers += u64::from(here);
            }
            Mlp::None => {}
        }
        w.params += params;
        w.params_active += active;
        if here {
            attn += attention_bytes * (sharded as f64 / attention_tp as f64 + replicated as f64 + kv as f64 * kv_share);
            dense += d;
            experts += x;
            shared += s;
            small += layer_small;
        }
    }
    let vocab = model.vocab.div_ceil(64) * 64;
    let table = 2.0 * (vocab * model.hidden) as f64 / tp;
    w.params_head = model.vocab * model.hidden;
    w.params += w.params_head * if model.tied { 1 } else { 2 } + model.hidden;
    w.params_active += w.params_head + model.hidden;
    let (first, last) = (stage.0 == 0, stage.1 == model.layers.len());
    let head = if last && !(model.tied && first) { table } else { 0.0 };
    w.embedding_bytes = if first { table } else { 0.0 };
    w.expert_bytes = expert as f64 * format.bytes;
    w.modules = vec![
        ("embedding", w.embedding_bytes),
        ("output", head),
        ("attention", attn),
        ("feed-forward", dense),
        ("routed experts", experts),
        ("shared experts", shared),
        ("norms, router", small),
    ];
    // A tied table is read for the output, not for the input.
    let unread = if model.tied && last { 0.0 } else { w.embedding_bytes };
    w.step_bytes = w.bytes() - experts - unread;
    w
}

fn norms(model: &Geometry, layer: &Layer) -> u64 {
    match (layer.attention, layer.mlp) {
        (Attention::None, _) | (_, Mlp::None) => 1,
        _ if model.kind.starts_with("gemma") && model.kind != "gemma" => 4,
        _ => 2,
    }
}
