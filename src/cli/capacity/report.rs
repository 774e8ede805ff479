//! The answer as a table, Markdown, JSON, or formulas.

use std::io::{self, Write};

use serde_json::json;

use super::{CapacityArgs, solve::Answer};

/// USD for a million tokens.
fn per_million(hourly: f64, gpus: u64, tok_s: f64) -> f64 {
    hourly * gpus as f64 / (3600.0 * tok_s) * 1e6
}

fn round(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

pub(super) fn write(args: &CapacityArgs, a: &Answer, out: &mut dyn Write) -> io::Result<()> {
    if args.json {
        return writeln!(out, "{:#}", values(args, a));
    }
    let rows = rows(args, a);
    if args.markdown {
        writeln!(out, "| {} | value |\n|---|---|", a.model.name)?;
        for (name, value) in &rows {
            writeln!(out, "| {name} | {value} |")?;
        }
    } else {
        writeln!(out, "{} ({})", a.model.name, a.format.name)?;
        for (name, value) in &rows {
            writeln!(out, "  {name:<26}{value}")?;
        }
    }
    if args.explain {
        writeln!(out, "\nformulas")?;
        for line in formulas(args, a) {
            writeln!(out, "  {line}")?;
        }
    }
    for warning in &a.warnings {
        wrapped(out, "warning: ", warning)?;
    }
    if let Some(claim) = args.check_claim {
        claimed(claim, args, a, out)?;
    }
    Ok(())
}

/// Breaks a text at 80 columns, continued under its start.
fn wrapped(out: &mut dyn Write, mark: &str, text: &str) -> io::Result<()> {
    let mut line = mark.to_owned();
    for word in text.split(' ') {
        if line.len() + word.len() + 1 > 80 && line.trim().len() > mark.trim().len() {
            writeln!(out, "{}", line.trim_end())?;
            line = " ".repeat(mark.len());
        }
        line.push_str(word);
        line.push(' ');
    }
    writeln!(out, "{}", line.trim_end())
}

fn claimed(claim: f64, args: &CapacityArgs, a: &Answer, out: &mut dyn Write) -> io::Result<()> {
    let Some(decode) = &a.decode else { return writeln!(out, "claim: can't be judged, see the warnings") };
    let verdict = if claim > decode.bound { "impossible" } else { "possible" };
    let share = claim / decode.bound * 100.0;
    writeln!(out, "claim: {claim} tok/s at batch {} is {verdict}: {share:.0} % of the bound", args.batch)
}

fn values(args: &CapacityArgs, a: &Answer) -> serde_json::Value {
    let m = &a.memory;
    let gpus = a.input.split.tp * a.input.split.pp;
    let usd = |tok_s: Option<f64>| {
        args.gpu_hourly.zip(tok_s).map(|(hourly, tok_s)| round(per_million(hourly, gpus, tok_s), 4))
    };
    let claim = args.check_claim.zip(a.decode.as_ref()).map(|(claim, decode)| claim <= decode.bound);
    let modules: serde_json::Map<String, serde_json::Value> = m
        .weights
        .modules
        .iter()
        .map(|(name, bytes)| ((*name).to_owned(), json!(round(bytes / crate::capacity::GIB, 4))))
        .collect();
    json!({
        "model": a.model.name,
        "source": a.model.source,
        "engine": a.input.engine.label(),
        "gpu": a.device.as_ref().map(|d| &d.short),
        "gpus_per_replica": gpus,
        "context_tokens": a.input.context,
        "batch": args.batch,
        "fits": a.fits,
        "parameters": m.weights.params,
        "parameters_active": m.weights.params_active,
        "weights_gib_per_gpu": round(m.weights_gib, 4),
        "weights_gib_per_gpu_by_module": modules,
        "kv_bytes_per_token_per_gpu": m.layout.bytes_per_token_all,
        "state_bytes_per_request_per_gpu": m.layout.state_bytes,
        "overhead_gib_per_gpu": round(m.overhead.likely, 4),
        "overhead_gib_per_gpu_solved": a.solved_overhead.map(|gib| round(gib, 4)),
        "kv_pool_gib_per_gpu": round(m.pool.likely, 4),
        "kv_pool_gib_per_gpu_low": round(m.pool.low, 4),
        "kv_pool_gib_per_gpu_high": round(m.pool.high, 4),
        "kv_pool_blocks": m.blocks.blocks,
        "kv_pool_tokens": m.tokens,
        "kv_pool_tokens_before_020": m.blocks.tokens_old,
        "kv_pool_tokens_from_020": m.blocks.tokens_new,
        "max_concurrency": round(m.blocks.concurrency, 2),
        "max_sequences": m.sequences,
        "decode_tok_s_bound": a.decode.as_ref().map(|d| round(d.bound, 1)),
        "decode_tok_s_estimate": a.decode.as_ref().map(|d| round(d.estimate, 1)),
        "prefill_tok_s_bound": a.prefill_tok_s.map(|t| round(t, 1)),
        "serving_batch": a.serving.as_ref().map(|s| s.batch),
        "serving_tok_s_bound": a.serving.as_ref().map(|s| round(s.bound, 1)),
        "serving_tok_s_estimate": a.serving.as_ref().map(|s| round(s.estimate, 1)),
        "usd_per_million_output_tokens_bound": usd(a.decode.as_ref().map(|d| d.bound)),
        "usd_per_million_output_tokens_estimate": usd(a.decode.as_ref().map(|d| d.estimate)),
        "usd_per_million_output_tokens_serving_bound": usd(a.serving.as_ref().map(|s| s.bound)),
        "usd_per_million_output_tokens_serving_estimate": usd(a.serving.as_ref().map(|s| s.estimate)),
        "replicas": a.fleet.map(|f| f.replicas),
        "utilisation": a.fleet.map(|f| round(f.utilisation, 4)),
        "utilisation_after_loss": a.fleet.map(|f| round(f.utilisation_after_loss, 4)),
        "claim_possible": claim,
        "warnings": a.warnings,
    })
}

fn rows(args: &CapacityArgs, a: &Answer) -> Vec<(String, String)> {
    let m = &a.memory;
    let mut rows = Vec::new();
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    let gpus = a.input.split.tp * a.input.split.pp;
    let card = a.device.as_ref().map_or("a known pool", |d| d.name.as_str());
    row("runs on", format!("{gpus} x {card}, {}", a.input.engine.label()));
    row("weights", format!("{:.2} GiB a GPU", m.weights_gib));
    row("KV cache of a token", format!("{} B a GPU", m.layout.bytes_per_token_all));
    if m.layout.state_bytes > 0.0 {
        row("state of a request", format!("{:.1} MiB a GPU", m.layout.state_bytes / 1_048_576.0));
    }
    let range =
        if m.pool.high > m.pool.low { format!(" ({:.2} to {:.2})", m.pool.low, m.pool.high) } else { String::new() };
    row("KV pool", format!("{:.2} GiB a GPU{range}", m.pool.likely));
    row("KV pool, tokens", format!("{}", m.tokens));
    row("sequences", format!("{} of {} tokens", m.sequences, a.input.context));
    if let Some(d) = &a.decode {
        row(
            &format!("decode at batch {}", args.batch),
            format!("bound {:.0} tok/s, estimate {:.0} tok/s", d.bound, d.estimate),
        );
    }
    if let Some(tok_s) = a.prefill_tok_s {
        row("prefill", format!("bound {tok_s:.0} tok/s"));
    }
    if let Some(s) = &a.serving {
        row(
            &format!("serving at batch {}", s.batch),
            format!("bound {:.0} tok/s, estimate {:.0} tok/s", s.bound, s.estimate),
        );
    }
    if let Some(hourly) = args.gpu_hourly {
        let pairs = [
            ("1M output, decode", a.decode.as_ref().map(|d| (d.bound, d.estimate))),
            ("1M output, serving", a.serving.as_ref().map(|s| (s.bound, s.estimate))),
        ];
        for (name, pair) in pairs {
            if let Some((bound, estimate)) = pair {
                let usd = |tok_s| per_million(hourly, gpus, tok_s);
                row(name, format!("bound ${:.3}, estimate ${:.3}", usd(bound), usd(estimate)));
            }
        }
    }
    if let Some(f) = &a.fleet {
        row("replicas", format!("{}, {} of them spare", f.replicas, args.headroom_replicas));
        row(
            "slots in use",
            format!("{:.0} %, {:.0} % after the loss", f.utilisation * 100.0, f.utilisation_after_loss * 100.0),
        );
        row(
            "waiting after the loss",
            format!("{:.1} % of requests, {:.2} s on average", f.waiting * 100.0, f.mean_wait_s),
        );
    }
    if let Some(gib) = a.solved_overhead {
        row("overhead from the log", format!("{gib:.2} GiB a GPU"));
    }
    rows
}

fn formulas(args: &CapacityArgs, a: &Answer) -> Vec<String> {
    let (m, i) = (&a.memory, &a.input);
    let mut lines = vec![format!("parameters {}, of a token {}", m.weights.params, m.weights.params_active)];
    for (name, bytes) in m.weights.modules.iter().filter(|(_, bytes)| *bytes > 0.0) {
        lines.push(format!("weights, {name}: {:.3} GiB", bytes / crate::capacity::GIB));
    }
    if i.pool_gib.is_none() {
        lines.push(format!(
            "pool = {:.2} x {:.3} - {:.3} - {:.3} = {:.3} GiB",
            i.total_gib, i.utilisation, m.weights_gib, m.overhead.likely, m.pool.likely
        ));
        lines.push("     = card x utilisation - weights - overhead".to_owned());
    }
    let l = &m.layout;
    lines.push(format!("blocks = pool / page {} B / {} layers = {}", l.page, l.group, m.blocks.blocks));
    lines.push(format!("groups {}, padding layers {}, block {} tokens", l.groups, l.padding, l.block()));
    lines.push(format!("blocks of a request of {} tokens: {}", i.context, m.blocks.per_request));
    lines.push(format!("concurrency = {} / {} = {:.2}", m.blocks.blocks, m.blocks.per_request, m.blocks.concurrency));
    if let (Some(d), Some(mbu)) = (&a.decode, a.mbu) {
        lines.push(format!(
            "step = max(bytes / bandwidth, operations / peak) = {:.2} ms",
            args.batch as f64 / d.bound * 1e3
        ));
        lines.push(format!("estimate: {mbu:.2} of the bandwidth, 0.45 of the peak (measured shares)"));
    }
    if let crate::capacity::Engine::Vllm { .. } = i.engine {
        lines.push("the engine should print:".to_owned());
        lines.push(format!("Available KV cache memory: {:.2} GiB", m.pool.likely));
        lines.push(format!("GPU KV cache size: {} tokens", m.tokens));
        lines.push(format!("Maximum concurrency for {} tokens per request: {:.2}x", i.context, m.blocks.concurrency));
    } else {
        lines.push(format!("the engine should print: max_total_num_tokens={}", m.tokens));
    }
    lines
}
