//! Figures out of an engine's start-up log.

/// What a log said; the last line that says a thing counts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// `vllm` or `sglang`, with its version if the log has it.
    pub engine: Option<String>,
    /// Weights on one GPU, GiB.
    pub weights_gib: Option<f64>,
    /// Pool on one GPU, GiB.
    pub pool_gib: Option<f64>,
    /// Tokens.
    pub tokens: Option<u64>,
    /// "Maximum concurrency".
    pub concurrency: Option<f64>,
    /// The length it is for.
    pub context: Option<u64>,
    /// Blocks.
    pub blocks: Option<u64>,
    /// CUDA graphs, GiB.
    pub graphs_gib: Option<f64>,
    /// Memory of the card, GiB.
    pub total_gib: Option<f64>,
    /// Share of the card.
    pub utilisation: Option<f64>,
    /// Ranks.
    pub tp: Option<u64>,
    /// Tokens of a block.
    pub block: Option<u64>,
    /// Type of the cache.
    pub kv_dtype: Option<String>,
    /// Tokens of a step.
    pub batched: Option<u64>,
    /// GiB for one request of full length.
    pub needed_gib: Option<f64>,
}

/// The number that follows `mark`, past blanks, signs and quotes; thousands may be grouped.
fn after(line: &str, mark: &str) -> Option<f64> {
    let lower = line.to_ascii_lowercase();
    let rest = lower.split_once(mark)?.1.trim_start_matches([' ', '=', ':', '~', '\'', '"', '#']);
    let digits: String =
        rest.chars().take_while(|c| c.is_ascii_digit() || matches!(c, '.' | ',')).filter(|c| *c != ',').collect();
    digits.trim_end_matches('.').parse().ok()
}

/// The word that follows `mark`.
fn word(line: &str, mark: &str) -> Option<String> {
    let rest = line.split_once(mark)?.1.trim_start_matches([' ', '=', ':', '\'', '"']);
    let word: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.')).collect();
    (!word.is_empty()).then_some(word)
}

fn set<T>(slot: &mut Option<T>, value: Option<T>) {
    if value.is_some() {
        *slot = value;
    }
}

/// Reads a start-up log of vLLM or SGLang.
#[must_use]
pub fn read_log(log: &str) -> Figures {
    let mut f = Figures::default();
    let count = |value: Option<f64>| value.map(super::whole);
    for line in log.lines() {
        let low = line.to_ascii_lowercase();
        // Arguments, as both engines print them.
        set(&mut f.utilisation, after(line, "gpu_memory_utilization").filter(|u| *u > 0.0));
        set(&mut f.utilisation, after(line, "mem_fraction_static").filter(|u| *u > 0.0));
        set(&mut f.tp, count(after(line, "tensor_parallel_size").or_else(|| after(line, "tp_size"))));
        set(&mut f.context, count(after(line, "max_model_len").or_else(|| after(line, "max_seq_len"))));
        set(&mut f.batched, count(after(line, "max_num_batched_tokens")));
        set(&mut f.kv_dtype, word(line, "kv_cache_dtype"));
        set(&mut f.block, count(after(line, "attention block size to")));
        vllm_line(&mut f, line, &low);
        sglang_line(&mut f, line, &low);
    }
    f
}

fn vllm_line(f: &mut Figures, line: &str, low: &str) {
    if low.contains("vllm api server version") || low.contains("initializing a v1 llm engine (v") {
        let version = word(low, "version").or_else(|| word(low, "engine (v"));
        set(&mut f.engine, version.map(|version| format!("vllm@{version}")));
    }
    let weights = after(line, "model loading took").or_else(|| after(line, "loading model weights took"));
    set(&mut f.weights_gib, weights.or_else(|| after(line, "model weights take")));
    set(&mut f.pool_gib, after(line, "available kv cache memory"));
    set(&mut f.pool_gib, after(line, "the rest of the memory reserved for kv cache is"));
    let tokens = after(line, "gpu kv cache size");
    if tokens.is_some() || f.weights_gib.is_some() || f.pool_gib.is_some() {
        f.engine.get_or_insert_with(|| "vllm".to_owned());
    }
    set(&mut f.tokens, tokens.map(super::whole));
    if let Some(length) = after(line, "maximum concurrency for") {
        f.context = Some(super::whole(length));
        let rest = low.split_once("maximum concurrency for").map_or("", |(_, rest)| rest);
        set(&mut f.concurrency, after(rest, "request").or_else(|| after(rest, ":")));
    }
    set(&mut f.blocks, after(line, "# gpu blocks").map(super::whole));
    set(&mut f.graphs_gib, after(line, "graph capturing finished in").and_then(|_| after(low, "took")));
    set(
        &mut f.needed_gib,
        low.contains("to serve at least one request").then(|| gib_before(low, "kv cache is needed")).flatten(),
    );
    set(&mut f.total_gib, after(line, "total_gpu_memory"));
}

/// The number in front of ` gib <mark>`.
fn gib_before(low: &str, mark: &str) -> Option<f64> {
    let before = low.split_once(mark)?.0.trim_end().trim_end_matches("gib").trim_end();
    before.rsplit([' ', '(', ',']).next()?.parse().ok()
}

fn sglang_line(f: &mut Figures, line: &str, low: &str) {
    let loaded = low.contains("load weight end");
    if loaded || low.contains("kv cache is allocated") || low.contains("max_total_num_tokens") {
        f.engine = Some("sglang".to_owned());
    }
    if loaded {
        set(&mut f.weights_gib, after(line, "mem usage"));
    }
    if low.contains("kv cache is allocated") {
        set(&mut f.tokens, after(line, "#tokens").map(super::whole));
        let combined = after(line, "kv size");
        let parts = after(line, "k size").map(|k| k + after(line, "v size").unwrap_or(0.0));
        set(&mut f.pool_gib, combined.or(parts));
    }
    set(&mut f.tokens, after(line, "max_total_num_tokens").filter(|tokens| *tokens > 0.0).map(super::whole));
    set(&mut f.context, after(line, "context_len").map(super::whole));
}
