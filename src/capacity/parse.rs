//! A `config.json` to a [`Geometry`]: an answer, or an error that names the field.

use serde_json::{Map, Value};

use super::{
    Problem,
    geometry::{Attention, Experts, Geometry, Indexer, Layer, MlaWidths, Mlp},
};

/// No dimension of a model is larger than this.
const LARGEST: u64 = 100_000_000;
/// No model has more layers.
const MOST_LAYERS: u64 = 2_000;

/// Architectures whose caches follow rules that are not modelled, with what is missing.
const UNMODELLED: &[(&str, &str)] = &[
    ("deepseek_v4", "compressed sparse attention has pools of its own"),
    ("kimi_linear", "the order and state of its linear attention is not in the configuration read"),
    ("kimi_k3", "the order and state of its linear attention is not in the configuration read"),
    ("nemotron-nas", "every layer has its own widths"),
    ("gemma3n", "per-layer embeddings are not counted"),
    ("mimo_v2_flash", "its layer kinds are numbered, not named"),
];

/// The fields of one object, with the checks.
struct Fields<'a>(&'a Map<String, Value>);

impl Fields<'_> {
    fn number(&self, name: &str) -> Result<Option<u64>, Problem> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let wrong = || {
                    let shown: String = value.to_string().chars().take(40).collect();
                    Problem::new(
                        name,
                        format!("{shown} is not a whole number up to {LARGEST}"),
                        "correct the configuration file",
                    )
                };
                let number = value.as_u64().ok_or_else(wrong)?;
                if number > LARGEST { Err(wrong()) } else { Ok(Some(number)) }
            }
        }
    }

    fn first(&self, names: &[&str]) -> Result<Option<u64>, Problem> {
        for name in names {
            if let Some(value) = self.number(name)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    fn needed(&self, names: &[&str]) -> Result<u64, Problem> {
        let name = names.first().copied().unwrap_or_default();
        match self.first(names)? {
            Some(0) => Err(Problem::new(name, "is 0", "give the value that the model was trained with")),
            Some(value) => Ok(value),
            None => Err(Problem::new(
                name,
                "is missing, and nothing else in the file tells it",
                "add it to the configuration file, or use --preset",
            )),
        }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str)
    }

    fn flag(&self, name: &str) -> Option<bool> {
        self.0.get(name).and_then(Value::as_bool)
    }
}

/// Reads a configuration: Hugging Face's `config.json`, or a row of the presets, which has the same names.
///
/// # Errors
///
/// The field that is missing or absurd, or the architecture whose rules are not known.
pub fn geometry(name: &str, config: &Value) -> Result<Geometry, Problem> {
    let Some(outer) = config.as_object() else {
        return Err(Problem::new("config", "is not a JSON object", "give the model's config.json"));
    };
    let nested = ["text_config", "language_config", "llm_config"]
        .iter()
        .find_map(|name| outer.get(*name).and_then(Value::as_object));
    let f = Fields(nested.unwrap_or(outer));
    let top = Fields(outer);
    let kind = f.text("model_type").or_else(|| top.text("model_type")).unwrap_or_default().to_owned();
    if kind.is_empty() && f.text("architecture").is_none() && !outer.contains_key("architectures") {
        return Err(Problem::new("model_type", "is missing", "give the model's own config.json"));
    }
    if let Some((_, missing)) = UNMODELLED.iter().find(|(known, _)| kind.starts_with(known)) {
        let problem = format!("{kind} is not modelled: {missing}");
        return Err(Problem::new("model_type", problem, "take the pool and tokens from the engine's start-up log"));
    }
    let hidden = f.needed(&["hidden_size", "n_embd", "d_model"])?;
    let heads = f.needed(&["num_attention_heads", "n_head"])?;
    let mla = f.number("kv_lora_rank")?.is_some_and(|lora| lora > 0);
    let head = match f.first(&["head_dim", "attention_head_dim"])? {
        // MLA has widths of its own; this one is not used.
        Some(0) | None if mla || hidden.is_multiple_of(heads) => hidden / heads,
        Some(0) | None => {
            let problem = format!("is missing, and hidden_size {hidden} is no multiple of {heads} heads");
            return Err(Problem::new("head_dim", problem, "add head_dim to the configuration file"));
        }
        Some(head) => head,
    };
    let experts = experts(&f)?;
    let layers = layers(&f, &kind, heads, head, experts.count)?;
    let quant = ["quantization_config", "compression_config"]
        .iter()
        .find_map(|name| outer.get(*name).or_else(|| f.0.get(*name)).and_then(Value::as_object));
    let block = quant.and_then(|q| q.get("weight_block_size")).or_else(|| f.0.get("quant_weight_block_size"));
    let block = block.and_then(Value::as_array).and_then(|b| Some((b.first()?.as_u64()?, b.get(1)?.as_u64()?)));
    let uncounted = ["vision_config", "audio_config"].iter().find(|part| outer.contains_key(**part));
    Ok(Geometry {
        name: name.to_owned(),
        source: top.text("source").unwrap_or("config.json").to_owned(),
        hidden,
        heads,
        head,
        vocab: f.needed(&["vocab_size"])?,
        tied: f
            .flag("tie_word_embeddings")
            .or_else(|| top.flag("tie_word_embeddings"))
            .unwrap_or(kind.contains("gemma")),
        gated: !ungated(&kind),
        q_gate: kind.starts_with("qwen3_5") || kind.starts_with("qwen3_next"),
        k_eq_v: f.flag("attention_k_eq_v").unwrap_or(false),
        order_assumed: f.0.contains_key("layer_type_counts"),
        layers,
        experts,
        mla: MlaWidths {
            q_lora: f.number("q_lora_rank")?.unwrap_or(0),
            nope: f.number("qk_nope_head_dim")?.unwrap_or(0),
            v: f.number("v_head_dim")?.unwrap_or(0),
        },
        mtp: f.first(&["num_nextn_predict_layers", "mtp_num_hidden_layers"])?.unwrap_or(0),
        max_context: f.number("max_position_embeddings")?,
        quant: quant.map(quant_name).or_else(|| f.text("quant_method").map(str::to_owned)),
        attention_16: quant.is_some_and(keeps_attention),
        quant_block: block.filter(|(rows, columns)| *rows > 0 && *columns > 0),
        uncounted: uncounted.map(|part| (*part).trim_end_matches("_config").to_owned()),
        kind,
    })
}

/// The format of a `quantization_config`: its algorithm where one name covers several.
fn quant_name(quant: &Map<String, Value>) -> String {
    let text = |name: &str| quant.get(name).and_then(Value::as_str).map(str::to_ascii_lowercase);
    let method = text("quant_method").unwrap_or_else(|| "unnamed".to_owned());
    if let Some(algorithm) = text("quant_algo") {
        return algorithm;
    }
    let group = quant.get("config_groups").and_then(Value::as_object).and_then(|groups| groups.values().next());
    let weights = group.and_then(|group| group.get("weights"));
    let bits = weights.and_then(|w| w.get("num_bits")).and_then(Value::as_u64);
    match (bits, weights.and_then(|w| w.get("type")).and_then(Value::as_str)) {
        (Some(8), Some("float")) => "fp8".to_owned(),
        (Some(8), Some("int")) => "int8".to_owned(),
        (Some(4), Some("float")) => "nvfp4".to_owned(),
        (Some(4), Some("int")) => "int4".to_owned(),
        _ => method,
    }
}

/// Whether the list of excluded modules names attention.
fn keeps_attention(quant: &Map<String, Value>) -> bool {
    ["modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules"].iter().any(|name| {
        let listed = quant.get(*name).and_then(Value::as_array);
        listed.is_some_and(|l| l.iter().filter_map(Value::as_str).any(|module| module.contains("self_attn")))
    })
}

/// Families whose feed-forward block has two matrices.
fn ungated(kind: &str) -> bool {
    ["starcoder2", "opt", "gpt2", "gpt_bigcode", "falcon", "nemotron_h"].contains(&kind)
}

fn experts(f: &Fields<'_>) -> Result<Experts, Problem> {
    let Some(count) = f.first(&["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"])? else {
        return Ok(Experts::default());
    };
    if count == 0 {
        return Ok(Experts::default());
    }
    let active = f.needed(&["num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"])?;
    if active > count {
        let problem = format!("{active} is more than the {count} experts");
        return Err(Problem::new("num_experts_per_tok", problem, "correct the configuration file"));
    }
    let width = f.needed(&["moe_intermediate_size", "intermediate_size"])?;
    let shared = match f.number("shared_expert_intermediate_size")? {
        Some(width) => width,
        None => f.first(&["n_shared_experts", "moe_num_shared_experts"])?.unwrap_or(0) * width,
    };
    // Llama 4 names no shared expert, and has one.
    let shared = if f.text("model_type").is_some_and(|kind| kind.starts_with("llama4")) { width } else { shared };
    Ok(Experts { count, active, width, shared })
}

/// One word for each layer, in order.
fn words(f: &Fields<'_>, count: u64) -> Result<Option<Vec<String>>, Problem> {
    if let Some(listed) =
        ["layer_types", "layers_block_type"].iter().find_map(|n| f.0.get(*n).and_then(Value::as_array))
    {
        let words: Vec<String> = listed.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        if words.len() as u64 != count {
            let problem = format!("has {} names for {count} layers", words.len());
            return Err(Problem::new("layer_types", problem, "give one name a layer"));
        }
        return Ok(Some(words));
    }
    if let Some(pattern) = f.text("hybrid_override_pattern") {
        if pattern.chars().count() as u64 != count {
            let problem = format!("has {} letters for {count} layers", pattern.chars().count());
            return Err(Problem::new("hybrid_override_pattern", problem, "give one letter a layer"));
        }
        return Ok(Some(pattern.chars().map(String::from).collect()));
    }
    let Some(counts) = f.0.get("layer_type_counts").and_then(Value::as_object) else { return Ok(None) };
    let total: u64 = counts.values().filter_map(Value::as_u64).sum();
    if total != count {
        let problem = format!("adds up to {total}, not to {count} layers");
        return Err(Problem::new("layer_type_counts", problem, "count every layer once"));
    }
    // Spread each kind evenly: the next layer is of the kind that lags most behind its share.
    let mut left: Vec<(&String, u64, u64)> = counts.iter().map(|(k, v)| (k, v.as_u64().unwrap_or(0), 0)).collect();
    let mut spread = Vec::new();
    for place in 1..=count {
        let lag = |(_, all, placed): &(&String, u64, u64)| {
            i128::from(*all) * i128::from(place) - i128::from(*placed) * i128::from(count)
        };
        if let Some(next) = left.iter_mut().max_by_key(|entry| lag(entry)) {
            next.2 += 1;
            spread.push(next.0.clone());
        }
    }
    Ok(Some(spread))
}

fn layers(f: &Fields<'_>, kind: &str, heads: u64, head: u64, experts: u64) -> Result<Vec<Layer>, Problem> {
    let count = f.needed(&["num_hidden_layers", "n_layer"])?;
    if count > MOST_LAYERS {
        let problem = format!("{count} is more than {MOST_LAYERS}");
        return Err(Problem::new("num_hidden_layers", problem, "correct the configuration file"));
    }
    let words = words(f, count)?;
    let kv_heads = f.first(&["num_key_value_heads", "num_kv_heads"])?.filter(|n| *n > 0).unwrap_or(heads);
    if kv_heads > heads {
        let problem = format!("{kv_heads} is more than the {heads} attention heads");
        return Err(Problem::new("num_key_value_heads", problem, "correct the configuration file"));
    }
    let dense = f.first(&["intermediate_size_mlp", "intermediate_size", "ffn_dim"])?;
    let first_dense = f.first(&["first_k_dense_replace", "moe_layer_start_index"])?.unwrap_or(0);
    let step =
        f.first(&["interleave_moe_layer_step", "decoder_sparse_step", "expert_layer_period"])?.unwrap_or(1).max(1);
    let step = if kind == "jamba" { 2 } else { step };
    let mut layers = Vec::new();
    for index in 0..count {
        let word = words.as_ref().and_then(|w| w.get(usize::try_from(index).unwrap_or(0))).map(String::as_str);
        let attention = attention(f, kind, word, (index, count), (kv_heads, head))?;
        let moe = experts > 0 && index >= first_dense && (index + 1).is_multiple_of(step);
        let mlp = match word {
            Some("M" | "*") => Mlp::None,
            Some("E") => Mlp::Moe,
            _ if moe => Mlp::Moe,
            _ => match dense {
                Some(width) if width > 0 => Mlp::Dense { width },
                _ => return Err(Problem::new("intermediate_size", "is missing", "add it to the configuration file")),
            },
        };
        layers.push(Layer { attention, mlp });
    }
    Ok(layers)
}

fn attention(
    f: &Fields<'_>,
    kind: &str,
    word: Option<&str>,
    (index, count): (u64, u64),
    (kv_heads, head): (u64, u64),
) -> Result<Attention, Problem> {
    if let Some(lora) = f.number("kv_lora_rank")?.filter(|lora| *lora > 0) {
        let indexer = match f.number("index_head_dim")? {
            Some(dim) => Some(Indexer { heads: f.needed(&["index_n_heads"])?, dim }),
            None => None,
        };
        return Ok(Attention::Mla { lora, rope: f.needed(&["qk_rope_head_dim"])?, indexer });
    }
    let v_head = f.number("v_head_dim")?.unwrap_or(head);
    let full = Attention::Full { kv_heads, head, v_head };
    let shared = f.number("num_kv_shared_layers")?.unwrap_or(0);
    if index >= count.saturating_sub(shared) {
        return Ok(Attention::Shared { kv_heads, head });
    }
    let sliding =
        || Ok::<_, Problem>(Attention::Sliding { kv_heads, head, v_head, window: f.needed(&["sliding_window"])? });
    let interval = f.number("full_attention_interval")?.filter(|n| *n > 0);
    match word {
        Some("full_attention" | "attention" | "*") => {
            let head = f.number("global_head_dim")?.unwrap_or(head);
            let kv_heads = f.number("num_global_key_value_heads")?.unwrap_or(kv_heads);
            Ok(Attention::Full { kv_heads, head, v_head: head.max(if head == v_head { v_head } else { head }) })
        }
        Some("sliding_attention") => sliding(),
        Some("chunked_attention") => {
            Ok(Attention::Chunked { kv_heads, head, v_head, chunk: f.needed(&["attention_chunk_size"])? })
        }
        Some("linear_attention") => gdn(f),
        Some("M" | "mamba" | "mamba2") => mamba(f),
        Some("E" | "-" | "moe" | "mlp") => Ok(Attention::None),
        Some(other) => Err(Problem::new(
            "layer_types",
            format!("{:?} is not a known kind of layer", other.chars().take(40).collect::<String>()),
            "known are full_attention, sliding_attention, chunked_attention, linear_attention, mamba",
        )),
        None if interval.is_some_and(|n| !(index + 1).is_multiple_of(n)) => gdn(f),
        None if kind.starts_with("llama4") && !(index + 1).is_multiple_of(4) => {
            Ok(Attention::Chunked { kv_heads, head, v_head, chunk: f.needed(&["attention_chunk_size"])? })
        }
        None if kind == "gemma2" && index.is_multiple_of(2) => sliding(),
        None if kind.starts_with("gemma3")
            && !(index + 1).is_multiple_of(f.number("sliding_window_pattern")?.unwrap_or(6).max(1)) =>
        {
            sliding()
        }
        // Mistral's first model slides in all layers; Qwen writes a window and switches it off.
        None if kind == "mistral" && f.number("sliding_window")?.is_some() => sliding(),
        None => Ok(full),
    }
}

fn gdn(f: &Fields<'_>) -> Result<Attention, Problem> {
    Ok(Attention::Gdn {
        k_heads: f.needed(&["linear_num_key_heads"])?,
        v_heads: f.needed(&["linear_num_value_heads"])?,
        k_dim: f.needed(&["linear_key_head_dim"])?,
        v_dim: f.needed(&["linear_value_head_dim"])?,
        kernel: f.needed(&["linear_conv_kernel_dim"])?,
    })
}

fn mamba(f: &Fields<'_>) -> Result<Attention, Problem> {
    Ok(Attention::Mamba {
        heads: f.needed(&["mamba_num_heads", "mamba_n_heads"])?,
        head: f.needed(&["mamba_head_dim", "mamba_d_head"])?,
        state: f.needed(&["ssm_state_size", "mamba_d_state"])?,
        groups: f.needed(&["mamba_n_groups", "n_groups"])?,
        kernel: f.needed(&["conv_kernel", "mamba_d_conv"])?,
    })
}
