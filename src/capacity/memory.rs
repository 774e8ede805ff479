//! The memory of one GPU under an engine: weights, overhead, pool, sequences.

use super::{
    Blocks, Format, GIB, Layout, Pool, Problem, Weights,
    geometry::{Attention, Geometry},
    layout, weights,
};

/// An engine and the defaults of its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// vLLM 0.`minor`.
    Vllm {
        /// The number after `0.`.
        minor: u64,
    },
    /// SGLang 0.5.
    Sglang,
}

impl Engine {
    /// Reads `vllm@0.24`, `sglang@0.5`, or a bare name.
    ///
    /// # Errors
    ///
    /// Another engine, or a version that is none.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let (name, version) = text.split_once('@').unwrap_or((text, ""));
        let digits = |part: &str| part.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok();
        match (name.to_ascii_lowercase().as_str(), version) {
            ("vllm", "") => Ok(Self::Vllm { minor: 24 }),
            ("vllm", version) => version
                .trim_start_matches('v')
                .strip_prefix("0.")
                .and_then(digits)
                .map(|minor| Self::Vllm { minor })
                .ok_or_else(|| Problem::new("--engine", format!("{version:?} is no vLLM version"), "write vllm@0.24")),
            ("sglang", _) => Ok(Self::Sglang),
            _ => Err(Problem::new("--engine", format!("{text:?} is not known"), "write vllm@0.24 or sglang@0.5")),
        }
    }

    /// Its name with the version that the rules are of.
    #[must_use]
    pub fn label(&self) -> String {
        match self {
            Self::Vllm { minor } => format!("vllm@0.{minor}"),
            Self::Sglang => "sglang@0.5".to_owned(),
        }
    }

    /// Whether "GPU KV cache size" is concurrency times context.
    #[must_use]
    pub const fn new_size(&self) -> bool {
        matches!(self, Self::Vllm { minor } if *minor >= 20)
    }

    /// Default tokens of a step and sequences, by memory and name of the card.
    #[must_use]
    pub fn batch(&self, total_gib: f64, card: &str) -> (u64, u64) {
        match self {
            Self::Vllm { minor } if *minor >= 24 && total_gib >= 160.0 => (16384, 1024),
            Self::Vllm { .. } if total_gib >= 70.0 && !card.starts_with("a100") && card != "gb10" => (8192, 1024),
            Self::Vllm { .. } => (2048, 256),
            Self::Sglang if total_gib < 20.0 => (2048, 8),
            Self::Sglang if total_gib < 35.0 => (4096, 48),
            Self::Sglang if total_gib < 60.0 => (4096, 32),
            Self::Sglang => (8192, 256),
        }
    }

    /// Default share of the card's memory.
    #[must_use]
    pub fn utilisation(&self, total_gib: f64, ranks: u64) -> f64 {
        match self {
            Self::Vllm { minor } if *minor >= 22 => 0.92,
            Self::Vllm { .. } => 0.90,
            Self::Sglang => {
                let (chunk, batch) = self.batch(total_gib, "");
                let reserved = 512.0 + 1.5 * chunk.max(2048) as f64 + (ranks * 128 + batch * 2) as f64;
                let reserved = if total_gib > 60.0 { reserved.max(10240.0) } else { reserved };
                ((total_gib * 1024.0 - reserved) / (total_gib * 1024.0) * 1000.0).floor() / 1000.0
            }
        }
    }
}

/// How a model is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Tensor parallel ranks.
    pub tp: u64,
    /// Pipeline stages.
    pub pp: u64,
    /// Decode context parallel ranks.
    pub dcp: u64,
    /// Every rank keeps all of attention, and requests of its own.
    pub dp_attention: bool,
    /// Ranks that experts are spread over.
    pub ep: u64,
}

/// A figure with the range that it is known to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// Least.
    pub low: f64,
    /// Likely.
    pub likely: f64,
    /// Most.
    pub high: f64,
}

/// Everything that memory depends on.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryInput {
    /// The engine.
    pub engine: Engine,
    /// How it is divided.
    pub split: Split,
    /// Memory of the card as the driver tells it.
    pub total_gib: f64,
    /// Share of it for the engine.
    pub utilisation: f64,
    /// Longest request.
    pub context: u64,
    /// Tokens of a step.
    pub batched: u64,
    /// Sequences of a step.
    pub sequences: u64,
    /// Tokens of a block.
    pub block: u64,
    /// Bytes of a cached element.
    pub kv_bytes: f64,
    /// Draft tokens a step.
    pub spec: u64,
    /// Draft layers that cache.
    pub draft_layers: u64,
    /// Uniform bytes a parameter instead of counting by module.
    pub weight_bytes: Option<f64>,
    /// Weights of one GPU from a log.
    pub weights_gib: Option<f64>,
    /// All overhead beside weights, given.
    pub overhead_gib: Option<f64>,
    /// The pool from a log.
    pub pool_gib: Option<f64>,
    /// Adapters and draft weights on one GPU.
    pub extra_gib: f64,
}

/// The answer, for the worst pipeline stage.
#[derive(Debug, Clone, PartialEq)]
pub struct Memory {
    /// Weights by module.
    pub weights: Weights,
    /// GiB of weights on one GPU, adapters and draft included.
    pub weights_gib: f64,
    /// Share of the card for the engine, GiB.
    pub requested_gib: f64,
    /// Overhead.
    pub overhead: Range,
    /// Pool.
    pub pool: Range,
    /// Cache layout.
    pub layout: Layout,
    /// Pool in blocks.
    pub blocks: Blocks,
    /// Tokens as this engine prints them.
    pub tokens: u64,
    /// Requests of full length at once.
    pub sequences: u64,
}

/// Activations, communication and graphs of one rank: the range by class of model and split.
#[must_use]
pub fn overhead(model: &Geometry, input: &MemoryInput) -> Range {
    let tp = input.split.tp as f64;
    let non_torch = if input.split.tp * input.split.pp > 1 { 1.0 } else { 0.35 };
    if input.engine == Engine::Sglang {
        let likely = non_torch * input.utilisation;
        return Range { low: likely * 0.5, likely, high: likely + 4.0 };
    }
    let tokens = input.batched as f64;
    let hidden = model.hidden as f64;
    let width = model.layers.iter().filter_map(|layer| match layer.mlp {
        super::Mlp::Dense { width } => Some(width),
        _ => None,
    });
    let width = width.max().unwrap_or(0) as f64;
    let per_token = if model.is_moe() {
        let e = model.experts;
        (e.active as f64 * (3.0 * e.width as f64 / tp + 2.0 * hidden) + 4.0 * hidden) * 2.0
    } else {
        (3.0 * width / tp + 2.0 * hidden) * 2.0
    };
    let logits = input.sequences as f64 * model.vocab as f64 * 10.0;
    let likely = (tokens * per_token + logits) / GIB + non_torch + 0.25;
    Range { low: likely, likely, high: likely }
}

/// Layers of each stage, as vLLM cuts them: what is left over goes to the stages before the last.
fn stages(layers: usize, pp: usize) -> Vec<(usize, usize)> {
    let mut sizes = vec![layers / pp; pp];
    for place in 0..layers % pp {
        let from_end = (place + usize::from(pp > 1)) % pp;
        if let Some(size) = sizes.get_mut(pp - 1 - from_end) {
            *size += 1;
        }
    }
    let mut from = 0;
    sizes
        .into_iter()
        .map(|size| {
            from += size;
            (from - size, from)
        })
        .collect()
}

/// Solves memory. The pool may come out negative: then the model does not start.
///
/// # Errors
///
/// A split that the model does not allow.
pub fn memory(model: &Geometry, format: &Format, input: &MemoryInput) -> Result<Memory, Problem> {
    let split = &input.split;
    check(model, input)?;
    let pp = usize::try_from(split.pp).unwrap_or(usize::MAX);
    let mut worst: Option<Memory> = None;
    for stage in stages(model.layers.len(), pp) {
        let solved = stage_memory(model, format, input, stage);
        if worst.as_ref().is_none_or(|w| solved.blocks.blocks < w.blocks.blocks || solved.pool.likely < 0.0) {
            worst = Some(solved);
        }
    }
    worst.ok_or_else(|| Problem::new("--pp", "leaves no layers", "use fewer stages"))
}

fn check(model: &Geometry, input: &MemoryInput) -> Result<(), Problem> {
    let Split { tp, pp, dcp, ep, .. } = input.split;
    for (flag, value) in [("--tp", tp), ("--pp", pp), ("--dcp", dcp), ("--ep", ep), ("--block-size", input.block)] {
        if value == 0 || value > 4096 {
            return Err(Problem::new(flag, format!("{value} is not between 1 and 4096"), "correct it"));
        }
    }
    if pp > model.layers.len() as u64 {
        return Err(Problem::new("--pp", format!("{pp} stages for {} layers", model.layers.len()), "use fewer stages"));
    }
    if !input.split.dp_attention && !model.heads.is_multiple_of(tp) {
        let fits: Vec<String> =
            [1, 2, 4, 8, 16].iter().filter(|n| model.heads.is_multiple_of(**n)).map(u64::to_string).collect();
        let problem = format!("{} attention heads can't be divided over {tp} ranks", model.heads);
        return Err(Problem::new("--tp", problem, format!("use {}", fits.join(", "))));
    }
    let mla = model.layers.iter().any(|layer| matches!(layer.attention, Attention::Mla { .. }));
    if mla && model.mla.v == 0 && input.weights_gib.is_none() && input.weight_bytes.is_none() {
        return Err(Problem::new(
            "v_head_dim",
            "is missing, so the projections can't be counted",
            "give --weights-gib",
        ));
    }
    Ok(())
}

fn stage_memory(model: &Geometry, format: &Format, input: &MemoryInput, stage: (usize, usize)) -> Memory {
    let split = &input.split;
    let counted = weights(model, format, split, stage);
    let uniform = input.weight_bytes.map(|bytes| counted.params as f64 * bytes / (split.tp * split.pp) as f64 / GIB);
    let weights_gib = input.weights_gib.or(uniform).unwrap_or_else(|| counted.gib()) + input.extra_gib;
    let requested_gib = input.total_gib * input.utilisation;
    let mut loss = overhead(model, input);
    if let Some(given) = input.overhead_gib {
        loss = Range { low: given, likely: given, high: given };
    }
    let likely = input.pool_gib.unwrap_or(requested_gib - weights_gib - loss.likely);
    let spread = match (input.pool_gib.or(input.overhead_gib), model.is_moe() || split.tp * split.pp > 1) {
        (Some(_), _) => 0.0,
        (None, true) => 4.0,
        (None, false) => 0.03 * likely.max(0.0),
    };
    let pool = Range { low: (likely - spread).max(0.0), likely, high: likely + spread };
    if input.overhead_gib.is_none() && input.engine != Engine::Sglang {
        loss = Range { low: (loss.likely - spread).max(0.0), likely: loss.likely, high: loss.likely + spread };
    }
    let tp = if split.dp_attention { 1 } else { split.tp };
    let aligned = matches!(input.engine, Engine::Vllm { minor } if minor >= 15);
    let layout = layout(
        model,
        stage,
        Pool {
            tp,
            dcp: split.dcp,
            kv_bytes: input.kv_bytes,
            block: input.block,
            spec: input.spec,
            draft_layers: input.draft_layers,
            batched: input.batched,
            aligned,
        },
    );
    let blocks = layout.blocks(likely, input.context);
    let (tokens, sequences) = match input.engine {
        Engine::Sglang => sglang(&layout, likely, input),
        Engine::Vllm { .. } if input.engine.new_size() => (blocks.tokens_new, super::whole(blocks.concurrency)),
        Engine::Vllm { .. } => (blocks.tokens_old, super::whole(blocks.concurrency)),
    };
    Memory { weights: counted, weights_gib, requested_gib, overhead: loss, pool, layout, blocks, tokens, sequences }
}

/// SGLang's own split: states take 0.9 / 1.9 of the rest, tokens the remainder, in pages.
fn sglang(layout: &Layout, pool_gib: f64, input: &MemoryInput) -> (u64, u64) {
    let bytes = pool_gib.max(0.0) * GIB;
    let (states, rest) = if layout.state_bytes > 0.0 && input.pool_gib.is_none() {
        (bytes * 0.9 / 1.9, bytes / 1.9)
    } else {
        (f64::INFINITY, bytes)
    };
    let cell = layout.bytes_per_token_all.max(1.0);
    let tokens = super::whole(rest / cell) / input.block * input.block;
    let slots = if layout.state_bytes > 0.0 { states / layout.state_bytes } else { f64::INFINITY };
    let sequences = (tokens as f64 / input.context.max(1) as f64).min(slots);
    (tokens, super::whole(sequences))
}
