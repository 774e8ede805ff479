//! What layers cache, and how an engine lays it out in blocks.

use super::{
    GIB,
    geometry::{Attention, Geometry, Layer},
    whole,
};

/// What a cache depends on beside the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pool {
    /// Ranks that attention is divided over.
    pub tp: u64,
    /// Decode context parallel ranks.
    pub dcp: u64,
    /// Bytes of one cached element.
    pub kv_bytes: f64,
    /// Tokens of a block.
    pub block: u64,
    /// Draft tokens a step.
    pub spec: u64,
    /// Full-attention layers of multi-token prediction beside the model's own.
    pub draft_layers: u64,
    /// Tokens of one scheduler step.
    pub batched: u64,
    /// A state keeps one block more, for prefix caching.
    pub aligned: bool,
}

/// One kind of layer in the cache.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Need {
    Tokens,
    Window(u64),
    Chunk(u64),
    State,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Kind {
    need: Need,
    /// Bytes of a token, or of a state.
    bytes: f64,
    layers: u64,
    block: u64,
}

/// A cache cut into blocks and groups.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    kinds: Vec<Kind>,
    pool: Pool,
    /// Bytes that one more token of a long request costs on one GPU, all full-attention layers.
    pub bytes_per_token: f64,
    /// Bytes that one more token costs while windows are not yet full: all layers with a cache.
    pub bytes_per_token_all: f64,
    /// Bytes of the states of one request on one GPU.
    pub state_bytes: f64,
    /// Bytes of a page.
    pub page: f64,
    /// Layers of a group.
    pub group: u64,
    /// Groups.
    pub groups: u64,
    /// Layers that only fill groups up.
    pub padding: u64,
}

/// What a pool comes to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Blocks {
    /// Blocks.
    pub blocks: u64,
    /// Blocks that one request of full length needs.
    pub per_request: u64,
    /// Requests of full length at once.
    pub concurrency: f64,
    /// Tokens as engines up to about 0.19 print them.
    pub tokens_old: u64,
    /// Tokens as engines from about 0.20 print them.
    pub tokens_new: u64,
}

fn kind(layer: &Layer, p: &Pool) -> Option<(Need, f64)> {
    let grouped = |kv_heads: u64, head: u64, v_head: u64| {
        kv_heads.div_ceil(p.tp).max(1) as f64 * (head + v_head) as f64 * p.kv_bytes
    };
    match layer.attention {
        Attention::Full { kv_heads, head, v_head } => Some((Need::Tokens, grouped(kv_heads, head, v_head))),
        Attention::Sliding { kv_heads, head, v_head, window } => {
            Some((Need::Window(window), grouped(kv_heads, head, v_head)))
        }
        Attention::Chunked { kv_heads, head, v_head, chunk } => {
            Some((Need::Chunk(chunk), grouped(kv_heads, head, v_head)))
        }
        Attention::Mla { lora, rope, indexer: None } => Some((Need::Tokens, (lora + rope) as f64 * p.kv_bytes)),
        Attention::Mla { lora, rope, indexer: Some(indexer) } => {
            // One byte means fp8_ds_mla: fp8 latent, a 4-byte scale for each 128 of it, the rotary part in 16 bits.
            let latent = if p.kv_bytes <= 1.0 {
                (lora + lora / 32 + 2 * rope) as f64
            } else {
                (lora + rope) as f64 * p.kv_bytes
            };
            Some((Need::Tokens, latent + (indexer.dim + 4) as f64))
        }
        Attention::Gdn { k_heads, v_heads, k_dim, v_dim, kernel } => {
            let conv =
                (2 * k_heads * k_dim + v_heads * v_dim) as f64 / p.tp as f64 * (kernel - 1 + p.spec) as f64 * 2.0;
            Some((Need::State, conv + v_heads as f64 / p.tp as f64 * (k_dim * v_dim) as f64 * 4.0))
        }
        Attention::Mamba { heads, head, state, groups, kernel } => {
            let conv =
                (heads * head + 2 * groups.max(p.tp) * state) as f64 / p.tp as f64 * (kernel - 1 + p.spec) as f64;
            Some((Need::State, 2.0 * (conv + (heads * head * state) as f64 / p.tp as f64)))
        }
        Attention::Shared { .. } | Attention::None => None,
    }
}

/// Lays out the layers `from..to` of a model.
#[must_use]
pub fn layout(model: &Geometry, stage: (usize, usize), pool: Pool) -> Layout {
    let mut kinds: Vec<Kind> = Vec::new();
    let mut add = |need: Need, bytes: f64, layers: u64| match kinds
        .iter_mut()
        .find(|kind| kind.need == need && kind.bytes.total_cmp(&bytes).is_eq())
    {
        Some(kind) => kind.layers += layers,
        None => kinds.push(Kind { need, bytes, layers, block: pool.block }),
    };
    let here = model.layers.get(stage.0..stage.1).unwrap_or_default();
    for layer in here {
        if let Some((need, bytes)) = kind(layer, &pool) {
            add(need, bytes, 1);
        }
    }
    let full = here.iter().filter_map(|layer| kind(layer, &pool)).find(|(need, _)| *need == Need::Tokens);
    if let (Some((need, bytes)), true) = (full, pool.draft_layers > 0) {
        add(need, bytes, pool.draft_layers);
    }
    let per = |wanted: &dyn Fn(&Need) -> bool| {
        kinds.iter().filter(|kind| wanted(&kind.need)).map(|kind| kind.bytes * kind.layers as f64).sum::<f64>()
    };
    let bytes_per_token = per(&|need| *need == Need::Tokens);
    let bytes_per_token_all = per(&|need| *need != Need::State);
    let state_bytes = per(&|need| *need == Need::State);
    let page = pages(&mut kinds, pool.block);
    let sizes: Vec<u64> = kinds.iter().map(|kind| kind.layers).collect();
    let (least, most) = (sizes.iter().copied().min().unwrap_or(1), sizes.iter().copied().max().unwrap_or(1));
    let group = if (most as f64) < 1.5 * least as f64 { most } else { least }.max(1);
    let groups: u64 = sizes.iter().map(|n| n.div_ceil(group)).sum();
    let padding = groups * group - sizes.iter().sum::<u64>();
    Layout { kinds, pool, bytes_per_token, bytes_per_token_all, state_bytes, page, group, groups, padding }
}

/// Gives all kinds one page size, by the tokens of their blocks; returns it.
fn pages(kinds: &mut [Kind], block: u64) -> f64 {
    let state = kinds.iter().filter(|k| k.need == Need::State).map(|k| k.bytes).fold(0.0, f64::max);
    let token = kinds.iter().filter(|k| k.need != Need::State).map(|k| k.bytes).fold(0.0, f64::max);
    if token <= 0.0 {
        return state;
    }
    // The attention page holds the state; blocks grow in steps of 16 tokens.
    let widest = if state > token * block as f64 { whole((state / token / 16.0).ceil()) * 16 } else { block };
    let page = token * widest as f64;
    for kind in kinds.iter_mut().filter(|kind| kind.need != Need::State) {
        let times = page / (kind.bytes * widest as f64);
        kind.block = widest * whole(times).max(1);
    }
    page
}

impl Layout {
    /// Tokens of the smallest block.
    #[must_use]
    pub fn block(&self) -> u64 {
        self.kinds.iter().filter(|k| k.need != Need::State).map(|k| k.block).min().unwrap_or(self.pool.block)
    }

    /// Whether layers of different kinds share the pool.
    #[must_use]
    pub const fn mixed(&self) -> bool {
        self.kinds.len() > 1
    }

    /// Blocks that one request of `length` tokens needs.
    #[must_use]
    pub fn request_blocks(&self, length: u64) -> u64 {
        let p = &self.pool;
        let blocks = |kind: &Kind| match kind.need {
            Need::Tokens => length.div_ceil(p.dcp).div_ceil(kind.block),
            Need::Window(window) => (window - 1 + p.batched).min(length).div_ceil(kind.block) + 1,
            Need::Chunk(chunk) => (chunk + p.batched).min(length).div_ceil(kind.block),
            Need::State => 1 + u64::from(p.aligned) + p.spec,
        };
        self.kinds.iter().map(|kind| kind.layers.div_ceil(self.group) * blocks(kind)).sum::<u64>().max(1)
    }

    /// GiB that one request of `length` tokens needs.
    #[must_use]
    pub fn request_gib(&self, length: u64) -> f64 {
        self.request_blocks(length) as f64 * self.page * self.group as f64 / GIB
    }

    /// What a pool of so many GiB comes to, for requests of `length` tokens.
    #[must_use]
    pub fn blocks(&self, pool_gib: f64, length: u64) -> Blocks {
        let blocks = whole(whole((pool_gib.max(0.0) * GIB) / self.page.max(1.0)) as f64 / self.group as f64);
        self.count(blocks, length)
    }

    /// The same from a number of blocks.
    #[must_use]
    pub fn count(&self, blocks: u64, length: u64) -> Blocks {
        let per_request = self.request_blocks(length);
        let concurrency = blocks as f64 / per_request as f64;
        let tokens_old = blocks / self.groups.max(1) * self.block() * self.pool.dcp;
        Blocks { blocks, per_request, concurrency, tokens_old, tokens_new: whole(concurrency * length as f64) }
    }

    /// Bytes of cache and states that a decode step of one request reads at `context` tokens.
    #[must_use]
    pub fn read_bytes(&self, context: f64) -> f64 {
        let bytes = |kind: &Kind| {
            let tokens = match kind.need {
                Need::Tokens => context / self.pool.dcp as f64,
                Need::Window(most) | Need::Chunk(most) => context.min(most as f64),
                Need::State => 1.0,
            };
            kind.bytes * tokens * kind.layers as f64
        };
        self.kinds.iter().map(bytes).sum()
    }
}
