//! Flags to an answer.

use std::path::Path;

use serde_json::Value;

use super::CapacityArgs;
use crate::capacity::{
    Device, Engine, Figures, Fleet, FleetInput, Format, Geometry, Memory, MemoryInput, Problem, Speed, SpeedInput,
    Split, Traffic, device, format_of, geometry, memory, plan_fleet, preset, read_log,
};

/// Decode at one batch.
pub(super) struct Decode {
    pub(super) bound: f64,
    pub(super) estimate: f64,
}

/// Serving at a batch that fits.
pub(super) struct Serving {
    pub(super) batch: u64,
    pub(super) bound: f64,
    pub(super) estimate: f64,
}

/// Everything that is printed.
pub(super) struct Answer {
    pub(super) model: Geometry,
    pub(super) format: Format,
    pub(super) device: Option<Device>,
    pub(super) input: MemoryInput,
    pub(super) memory: Memory,
    pub(super) fits: bool,
    pub(super) decode: Option<Decode>,
    pub(super) prefill_tok_s: Option<f64>,
    pub(super) serving: Option<Serving>,
    pub(super) fleet: Option<Fleet>,
    pub(super) log: Option<Figures>,
    pub(super) solved_overhead: Option<f64>,
    pub(super) mbu: Option<f64>,
    pub(super) warnings: Vec<String>,
}

fn problem(field: &str, problem: impl Into<String>, remedy: &str) -> Problem {
    Problem { field: field.to_owned(), problem: problem.into(), remedy: remedy.to_owned() }
}

/// Most bytes of a configuration that are read.
const LARGEST_CONFIG: u64 = 64 << 20;

fn read(flag: &str, path: &Path) -> Result<String, Problem> {
    let failed = |error: std::io::Error| problem(flag, format!("{}: {error}", path.display()), "give a readable file");
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > LARGEST_CONFIG {
        return Err(problem(flag, format!("{} has {size} bytes", path.display()), "give a file below 64 MiB"));
    }
    std::fs::read_to_string(path).map_err(failed)
}

fn json(flag: &str, path: &Path) -> Result<Value, Problem> {
    serde_json::from_str(&read(flag, path)?)
        .map_err(|error| problem(flag, format!("{}: {error}", path.display()), "give valid JSON"))
}

/// The model, and the bytes that its safetensors index adds up to.
fn model(args: &CapacityArgs) -> Result<(Geometry, Option<f64>), Problem> {
    if let Some(name) = &args.preset {
        return Ok((preset(name)?, None));
    }
    let Some(path) = &args.hf_config else {
        return Err(problem("--preset", "no model is given", "give --preset or --hf-config"));
    };
    let file = if path.is_dir() { path.join("config.json") } else { path.clone() };
    let config = json("--hf-config", &file)?;
    let name =
        config.get("_name_or_path").and_then(Value::as_str).filter(|name| !name.is_empty()).unwrap_or("config.json");
    let model = geometry(name, &config)?;
    let index = path.join("model.safetensors.index.json");
    let total = if path.is_dir() && index.is_file() {
        json("--hf-config", &index)?.pointer("/metadata/total_size").and_then(Value::as_f64)
    } else {
        None
    };
    Ok((model, total))
}

fn checked(args: &CapacityArgs) -> Result<(), Problem> {
    let shares = [
        ("--util", args.util),
        ("--mbu", args.mbu),
        ("--accept-rate", args.accept_rate),
        ("--hit-rate", Some(args.hit_rate)),
    ];
    for (flag, value) in shares {
        if let Some(value) = value.filter(|v| !(0.0..=1.0).contains(v)) {
            return Err(problem(flag, format!("{value} is not between 0 and 1"), "give a share, such as 0.9"));
        }
    }
    let sizes = [
        ("--kv-bytes", Some(args.kv_bytes), 8.0),
        ("--weight-bytes", args.weight_bytes, 8.0),
        ("--weights-gib", args.weights_gib, 1e5),
        ("--kv-pool-gib", args.kv_pool_gib, 1e5),
        ("--gpu-hourly", args.gpu_hourly, 1e5),
        ("--rate", args.rate, 1e6),
        ("--slo-ttft-ms", args.slo_ttft_ms, 1e8),
        ("--slo-tpot-ms", args.slo_tpot_ms, 1e8),
    ];
    for (flag, value, most) in sizes {
        if let Some(value) = value.filter(|v| !(*v > 0.0 && *v <= most)) {
            return Err(problem(flag, format!("{value} is not above 0 and up to {most}"), "correct it"));
        }
    }
    if args.batch == 0 {
        return Err(problem("--batch", "is 0", "give 1 or more"));
    }
    if args.rate.is_some() && (args.prompt_tokens.is_none() || args.output_tokens.is_none()) {
        return Err(problem("--rate", "needs the size of a request", "add --prompt-tokens and --output-tokens"));
    }
    Ok(())
}

pub(super) fn solve(args: &CapacityArgs) -> Result<Answer, Problem> {
    checked(args)?;
    let engine = Engine::parse(&args.engine)?;
    let (model, index_bytes) = model(args)?;
    let device = args.gpu.as_deref().map(device).transpose()?;
    if device.is_none() && args.kv_pool_gib.is_none() {
        return Err(problem("--gpu", "is not given", "give --gpu, or --kv-pool-gib from the engine's log"));
    }
    let mut warnings = Vec::new();
    let known = args.weights_gib.is_some()
        || args.weight_bytes.is_some()
        || args.kv_pool_gib.is_some()
        || index_bytes.is_some();
    let format = match format_of(args.quant.as_deref(), &model) {
        Ok(format) => format,
        // The pool or the weights are told: the format then only matters for arithmetic, of which the slowest is taken.
        Err(error) if known && args.quant.is_none() => {
            warnings.push(format!("{error}: speed is of 16-bit arithmetic"));
            format_of(Some("bf16"), &model)?
        }
        Err(error) => return Err(error),
    };
    let input = input(args, engine, &model, device.as_ref(), index_bytes)?;
    let mut answer = answer(args, input, (model, format), device, warnings)?;
    if let Some(path) = &args.calibrate {
        calibrate(&mut answer, read_log(&read("--calibrate", path)?))?;
    }
    finish(args, &mut answer)?;
    Ok(answer)
}

fn input(
    args: &CapacityArgs,
    engine: Engine,
    model: &Geometry,
    device: Option<&Device>,
    index_bytes: Option<f64>,
) -> Result<MemoryInput, Problem> {
    let total_gib = device.map_or(0.0, |d| d.memory_driver_total_gib);
    let (batched, sequences) = engine.batch(total_gib, device.map_or("", |d| d.short.as_str()));
    let context = args.context.or(model.max_context).filter(|n| *n > 0 && *n <= 1 << 32);
    let context =
        context.ok_or_else(|| problem("--context", "the model does not tell its longest request", "give --context"))?;
    let ranks = (args.tp * args.pp) as f64;
    Ok(MemoryInput {
        engine,
        split: Split {
            tp: args.tp,
            pp: args.pp,
            dcp: args.dcp,
            dp_attention: args.dp_attention,
            ep: args.ep.unwrap_or(args.tp),
        },
        total_gib,
        utilisation: args.util.unwrap_or_else(|| engine.utilisation(total_gib, args.tp * args.pp)),
        context,
        batched: args.max_num_batched_tokens.unwrap_or(batched),
        sequences: args.max_num_seqs.unwrap_or(sequences),
        block: args.block_size,
        kv_bytes: args.kv_bytes,
        spec: args.spec_tokens,
        draft_layers: if args.spec_tokens > 0 { model.mtp } else { 0 },
        weight_bytes: args.weight_bytes,
        weights_gib: args.weights_gib.or(index_bytes.map(|bytes| bytes / ranks / crate::capacity::GIB)),
        overhead_gib: args.activation_gib,
        pool_gib: args.kv_pool_gib,
        extra_gib: 0.0,
    })
}

fn answer(
    args: &CapacityArgs,
    input: MemoryInput,
    (model, format): (Geometry, Format),
    device: Option<Device>,
    mut warnings: Vec<String>,
) -> Result<Answer, Problem> {
    let memory = memory(&model, &format, &input)?;
    if let Some(part) = model.uncounted.as_ref().filter(|_| input.weights_gib.is_none()) {
        warnings.push(format!("the {part} part of the model is not counted; give --weights-gib from the engine's log"));
    }
    if model.order_assumed && args.pp > 1 {
        warnings.push("the order of layer kinds is spread evenly, not read: stages may differ".to_owned());
    }
    if !args.dp_attention && model.kv_heads() > 0 && args.tp > model.kv_heads() {
        let heads = model.kv_heads();
        warnings.push(format!(
            "TP {} is above the {heads} KV heads: the KV cache is replicated; TP {heads} avoids that",
            args.tp
        ));
    }
    if args.spec_tokens > 0 && model.mtp == 0 {
        warnings.push(
            "the model has no draft layers of its own: weights and cache of a draft model are not counted".to_owned(),
        );
    }
    if device.as_ref().is_some_and(|d| d.spec_recalled || d.memory_recalled) {
        warnings.push("the GPU's row is recalled or typical, not read from a source (see --list-gpus)".to_owned());
    }
    let empty = Answer {
        model,
        format,
        device,
        input,
        memory,
        fits: true,
        decode: None,
        prefill_tok_s: None,
        serving: None,
        fleet: None,
        log: None,
        solved_overhead: None,
        mbu: None,
        warnings,
    };
    Ok(empty)
}

/// Compares a log with the inputs, and solves the overhead from its pool and weights.
fn calibrate(answer: &mut Answer, log: Figures) -> Result<(), Problem> {
    let input = &answer.input;
    let pool = log.pool_gib.ok_or_else(|| {
        problem(
            "--calibrate",
            "the log does not tell the pool",
            "give a log with \"Available KV cache memory\" or \"KV Cache is allocated\"",
        )
    })?;
    let differs = |name: &str, flag: f64, told: Option<f64>| {
        told.filter(|told| (told - flag).abs() > 1e-6)
            .map(|told| format!("{name} is {flag} here and {told} in the log"))
    };
    let count = |value: Option<u64>| value.map(|value| value as f64);
    answer.warnings.extend(differs("--util", input.utilisation, log.utilisation));
    answer.warnings.extend(differs("--tp", input.split.tp as f64, count(log.tp)));
    answer.warnings.extend(differs("--context", input.context as f64, count(log.context)));
    answer.warnings.extend(differs("--max-num-batched-tokens", input.batched as f64, count(log.batched)));
    let weights = log.weights_gib.unwrap_or(answer.memory.weights_gib);
    if (weights / answer.memory.weights_gib - 1.0).abs() > 0.01 {
        answer.warnings.push(format!("weights are {:.2} GiB here and {weights} in the log", answer.memory.weights_gib));
    }
    // The log's own run: its tokens from its pool tell whether geometry and cache type agree.
    let at_log = MemoryInput { pool_gib: Some(pool), context: log.context.unwrap_or(input.context), ..input.clone() };
    let told = memory(&answer.model, &answer.format, &at_log)?;
    if let Some(tokens) = log.tokens.filter(|tokens| (told.tokens as f64 / *tokens as f64 - 1.0).abs() > 0.02) {
        let text = "the log's pool gives {} tokens with these inputs, and the log says {}: --kv-bytes, --tp, --engine or the model differ";
        answer.warnings.push(text.replacen("{}", &told.tokens.to_string(), 1).replacen("{}", &tokens.to_string(), 1));
    }
    let util = log.utilisation.unwrap_or(input.utilisation);
    let overhead = answer.input.total_gib * util - weights - pool;
    if input.total_gib > 0.0 {
        answer.input.overhead_gib = Some(overhead);
        answer.input.weights_gib = log.weights_gib.or(answer.input.weights_gib);
        answer.memory = memory(&answer.model, &answer.format, &answer.input)?;
        answer.solved_overhead = Some(overhead);
    } else {
        answer.input.pool_gib = Some(pool);
        answer.memory = told;
    }
    answer.log = Some(log);
    Ok(())
}

fn finish(args: &CapacityArgs, a: &mut Answer) -> Result<(), Problem> {
    if a.memory.sequences == 0 {
        a.fits = false;
        advise(a);
        return Ok(());
    }
    let Some(device) = a.device.clone() else { return Ok(()) };
    let speed_input = SpeedInput {
        model: &a.model,
        weights: &a.memory.weights,
        weight_bytes: a.input.weight_bytes,
        format: &a.format,
        layout: &a.memory.layout,
        device: &device,
        split: a.input.split,
        mbu: args.mbu,
        spec: args.spec_tokens,
        accept: args.accept_rate.unwrap_or(0.0),
        draft_bytes: 0.0,
        lora: (0.0, 0),
    };
    let Some(speed) = Speed::new(&speed_input) else {
        a.warnings.push(format!("{} has no arithmetic peak in the table: no speeds", device.short));
        return Ok(());
    };
    a.mbu = Some(speed.efficiency().mbu);
    let ctx = a.input.context as f64;
    let most = a.memory.sequences * if args.dp_attention { args.tp } else { 1 };
    if args.batch <= most {
        let b = args.batch as f64;
        a.decode = Some(Decode { bound: b / speed.tpot_bound(b, ctx), estimate: b / speed.tpot_estimate(b, ctx) });
    } else {
        a.fits = false;
        a.warnings
            .push(format!("a batch of {} does not fit at {} tokens: at most {most}", args.batch, a.input.context));
    }
    let prompt = args.prompt_tokens.unwrap_or(a.input.context) as f64;
    a.prefill_tok_s = Some(prompt / speed.prefill_bound(prompt, 0.0));
    if let (Some(prompt), Some(output)) = (args.prompt_tokens, args.output_tokens) {
        let traffic = Traffic { prompt: prompt as f64, output: output.max(1) as f64, hit: args.hit_rate };
        let held = MemoryInput { context: prompt + output.max(1), ..a.input.clone() };
        let pool = memory(&a.model, &a.format, &held)?.sequences.min(a.input.sequences);
        let batch = args.slo_tpot_ms.map_or(pool, |ms| speed.largest_batch(pool, ms / 1e3, &traffic));
        if batch == 0 {
            a.warnings.push("no batch holds --slo-tpot-ms".to_owned());
        } else {
            let b = batch as f64;
            a.serving = Some(Serving {
                batch,
                bound: speed.serving_bound(b, &traffic),
                estimate: speed.serving_estimate(b, &traffic),
            });
        }
        if let Some(rate) = args.rate {
            let fleet = FleetInput {
                rate,
                slots: batch,
                service_s: traffic.output * speed.tpot_serving(batch.max(1) as f64, &traffic),
                prefill_s: speed.prefill_estimate(traffic.prompt, traffic.hit),
                ttft_s: args.slo_ttft_ms.map(|ms| ms / 1e3),
                spare: args.headroom_replicas,
            };
            a.fleet = Some(plan_fleet(&fleet)?);
        }
    }
    Ok(())
}

/// What to change when not one request fits.
fn advise(a: &mut Answer) {
    let need = a.memory.layout.request_gib(a.input.context);
    if a.memory.pool.likely < 0.0 {
        let held = a.memory.weights_gib + a.memory.overhead.likely;
        a.warnings.push(format!("does not start: weights and overhead need {held:.2} GiB a GPU"));
    }
    a.warnings.push(format!(
        "does not fit: one request of {} tokens needs {need:.2} GiB, the pool is {:.2} GiB",
        a.input.context, a.memory.pool.likely
    ));
    let held = a.memory.weights_gib + a.memory.overhead.likely;
    if a.input.total_gib > 0.0 && held + need <= a.input.total_gib {
        a.warnings.push(format!("try --util {:.2}", ((held + need) / a.input.total_gib * 100.0).ceil() / 100.0));
    }
    let fits = |input: &MemoryInput| memory(&a.model, &a.format, input).is_ok_and(|m| m.sequences > 0);
    let (mut low, mut high) = (0, a.input.context);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(&MemoryInput { context: middle, ..a.input.clone() }) { low = middle } else { high = middle - 1 }
    }
    let mut tried = Vec::new();
    if low > 0 {
        tried.push(format!("try --context {low}, the largest that fits"));
    }
    if a.input.kv_bytes > 1.0 && fits(&MemoryInput { kv_bytes: 1.0, ..a.input.clone() }) {
        tried.push("try --kv-bytes 1 (fp8)".to_owned());
    }
    let tp = [2, 4, 8, 16].into_iter().filter(|tp| *tp > a.input.split.tp).find(|tp| {
        fits(&MemoryInput {
            split: Split { tp: *tp, ep: *tp, ..a.input.split },
            weights_gib: None,
            pool_gib: None,
            ..a.input.clone()
        })
    });
    if let Some(tp) = tp.filter(|_| a.input.total_gib > 0.0 && a.input.pool_gib.is_none()) {
        tried.push(format!("try --tp {tp}"));
    }
    a.warnings.extend(tried);
}
