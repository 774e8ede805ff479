//! What of a model decides its memory and speed.

/// The sparse-attention indexer beside an MLA cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Indexer {
    /// Heads of the indexer's queries.
    pub heads: u64,
    /// Width of its key, which is cached.
    pub dim: u64,
}

/// How one layer attends, which is what it caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attention {
    /// Every earlier token.
    Full {
        /// Heads of keys and values.
        kv_heads: u64,
        /// Width of a key.
        head: u64,
        /// Width of a value.
        v_head: u64,
    },
    /// The last `window` tokens.
    Sliding {
        /// Heads of keys and values.
        kv_heads: u64,
        /// Width of a key.
        head: u64,
        /// Width of a value.
        v_head: u64,
        /// Tokens seen.
        window: u64,
    },
    /// The tokens of the same chunk.
    Chunked {
        /// Heads of keys and values.
        kv_heads: u64,
        /// Width of a key.
        head: u64,
        /// Width of a value.
        v_head: u64,
        /// Tokens of a chunk.
        chunk: u64,
    },
    /// One compressed latent, the same on every rank.
    Mla {
        /// Width of the latent.
        lora: u64,
        /// Width of the rotary part.
        rope: u64,
        /// Sparse attention's indexer.
        indexer: Option<Indexer>,
    },
    /// Gated delta net: a state a request.
    Gdn {
        /// Heads of keys.
        k_heads: u64,
        /// Heads of values.
        v_heads: u64,
        /// Width of a key.
        k_dim: u64,
        /// Width of a value.
        v_dim: u64,
        /// Convolution kernel.
        kernel: u64,
    },
    /// Mamba 2: a state a request.
    Mamba {
        /// Heads.
        heads: u64,
        /// Width of a head.
        head: u64,
        /// State size.
        state: u64,
        /// Groups.
        groups: u64,
        /// Convolution kernel.
        kernel: u64,
    },
    /// Reads the cache of an earlier layer.
    Shared {
        /// Heads of keys and values.
        kv_heads: u64,
        /// Width of a head.
        head: u64,
    },
    /// No attention in this layer.
    None,
}

/// The feed-forward part of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mlp {
    /// One block for all tokens.
    Dense {
        /// Intermediate width.
        width: u64,
    },
    /// A router and experts.
    Moe,
    /// None in this layer.
    None,
}

/// One layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// Attention or state.
    pub attention: Attention,
    /// Feed-forward.
    pub mlp: Mlp,
}

/// Experts, the same in every layer that has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Experts {
    /// Routed experts.
    pub count: u64,
    /// Routed experts of one token.
    pub active: u64,
    /// Intermediate width of one.
    pub width: u64,
    /// Intermediate width of all shared experts together.
    pub shared: u64,
}

/// Widths of the MLA projections that no cache shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MlaWidths {
    /// Query compression; 0 without.
    pub q_lora: u64,
    /// Head width without rotary part.
    pub nope: u64,
    /// Value head width.
    pub v: u64,
}

/// A model.
#[derive(Debug, Clone, PartialEq)]
pub struct Geometry {
    /// Name of the preset, or what the configuration calls itself.
    pub name: String,
    /// Its `model_type`.
    pub kind: String,
    /// Where the numbers come from.
    pub source: String,
    /// Width.
    pub hidden: u64,
    /// Query heads.
    pub heads: u64,
    /// Width of a head.
    pub head: u64,
    /// Vocabulary.
    pub vocab: u64,
    /// Input embedding is the output projection.
    pub tied: bool,
    /// Feed-forward blocks have a gate (three matrices instead of two).
    pub gated: bool,
    /// Attention's query projection is doubled by an output gate.
    pub q_gate: bool,
    /// Full layers of Gemma 4 reuse the key as the value.
    pub k_eq_v: bool,
    /// Layers in order.
    pub layers: Vec<Layer>,
    /// The order was spread from counts, not read.
    pub order_assumed: bool,
    /// Experts.
    pub experts: Experts,
    /// MLA projections.
    pub mla: MlaWidths,
    /// Layers of multi-token prediction in the checkpoint.
    pub mtp: u64,
    /// Longest context that the model states.
    pub max_context: Option<u64>,
    /// `quant_method` of the configuration.
    pub quant: Option<String>,
    /// The checkpoint leaves attention in 16 bits.
    pub attention_16: bool,
    /// Blocks of fp8 scales, as `[rows, columns]`.
    pub quant_block: Option<(u64, u64)>,
    /// Parts of a multimodal model that the counter does not know.
    pub uncounted: Option<String>,
}

impl Geometry {
    /// Whether it has experts.
    #[must_use]
    pub fn is_moe(&self) -> bool {
        self.layers.iter().any(|layer| layer.mlp == Mlp::Moe)
    }

    /// Heads of keys and values of the widest attention; 0 with MLA or without attention.
    #[must_use]
    pub fn kv_heads(&self) -> u64 {
        let heads = |layer: &Layer| match layer.attention {
            Attention::Full { kv_heads, .. }
            | Attention::Sliding { kv_heads, .. }
            | Attention::Chunked { kv_heads, .. } => kv_heads,
            _ => 0,
        };
        self.layers.iter().map(heads).max().unwrap_or(0)
    }
}
