//! From flags to a plan; every refusal names the flag, its value, and what to write instead.

use std::{path::Path, time::Duration};

use anyhow::{Context, anyhow, bail};
use http::HeaderValue;

use super::{LoadtestArgs, SearchArg, rules};
use crate::{
    config,
    loadtest::{
        arrivals::{Pattern, Ramp},
        body::Style,
        measure::{Metric, Objective},
        plan::{LoadPlan, Mode, Output, Plan, SearchPlan},
        prompts,
        summary::Asked,
        trace,
        workload::{Spec, Tenant},
    },
};

/// The plan that the flags ask for.
pub(super) fn plan(args: &LoadtestArgs) -> anyhow::Result<Plan> {
    let tenants = args.scenario.tenant.iter().map(|text| tenant(text)).collect::<Result<Vec<_>, _>>()?;
    let tenant_keys = tenants.iter().map(tenant_key).collect::<Result<Vec<_>, _>>()?;
    check(args)?;
    let key = ["LLM_API_KEY", "OPENAI_API_KEY"].iter().find_map(|name| config::environment(name));
    let objectives = objectives(args)?;
    let mode = mode(args, &objectives)?;
    Ok(Plan {
        targets: targets(args)?,
        model: args.target.model.clone(),
        key: key.filter(|key| !key.is_empty()).map(|key| bearer(&key)).transpose()?,
        tenant_keys,
        asked: Asked {
            rules: rules(args.goals.compat),
            objectives,
            goal: args.goals.slo_attainment,
            rate: None,
            tenants: tenants.iter().map(|tenant| tenant.name.clone()).collect(),
        },
        spec: spec(args, tenants)?,
        load: load(args)?,
        mode,
        requests: args.load.num_requests,
        duration: args.load.duration,
        warmup: args.load.warmup,
        cap: args.load.max_concurrency,
        think: args.prompts.think_time,
        timeout: Duration::try_from_secs_f64(args.target.timeout).context("--timeout is no duration")?,
        max_tokens: args.scenario.max_tokens_total,
        max_usd: money(args)?,
        probe_rate: args.scenario.probe_rate,
        scrape: (!args.output.scrape.is_empty()).then(|| args.output.scrape.clone()),
        label: args.output.label.clone(),
        metadata: args.output.metadata.iter().map(|text| pair(text)).collect::<Result<_, _>>()?,
        output: Output {
            json: args.output.json_out.clone(),
            requests: args.output.requests_out.clone(),
            report: args.output.report.clone(),
            hdr: args.output.hdr_out.clone(),
            junit: args.output.junit.clone(),
            explain: args.output.explain,
        },
    })
}

/// Ranges that clap does not know.
fn check(args: &LoadtestArgs) -> anyhow::Result<()> {
    let positive = [
        ("--rate", args.load.rate),
        ("--burstiness", Some(args.load.burstiness)),
        ("--speed", Some(args.load.speed)),
        ("--duration", args.load.duration),
        ("--timeout", Some(args.target.timeout)),
        ("--probe-seconds", Some(args.load.probe_seconds)),
        ("--search-budget", Some(args.load.search_budget)),
        ("--slo-ttft-ms", args.goals.slo_ttft_ms),
        ("--slo-tpot-ms", args.goals.slo_tpot_ms),
        ("--max-usd", args.scenario.max_usd),
    ];
    for (flag, value) in positive {
        if let Some(value) = value.filter(|value| value.is_nan() || *value <= 0.0) {
            bail!("{flag} {value}: must be above 0");
        }
    }
    for rate in &args.load.sweep {
        if !(rate.is_finite() && *rate > 0.0) {
            bail!("--sweep {rate}: each rate must be a number above 0");
        }
    }
    let counts = [
        ("--users", args.load.users),
        ("--max-concurrency", args.load.max_concurrency),
        ("--num-requests", args.load.num_requests),
        ("--input-len", Some(args.prompts.input_len)),
        ("--output-len", Some(args.prompts.output_len)),
        ("--turns", Some(args.prompts.turns)),
        ("--prefix-groups", Some(args.prompts.prefix_groups)),
        ("--sweep-users", args.load.sweep_users.iter().min().copied()),
    ];
    if let Some((flag, _)) = counts.iter().find(|(_, count)| *count == Some(0)) {
        bail!("{flag} 0: must be at least 1");
    }
    let shares = [
        ("--cancel-rate", args.scenario.cancel_rate),
        ("--slow-readers", args.scenario.slow_readers),
        ("--slo-attainment", args.goals.slo_attainment),
    ];
    if let Some((flag, value)) = shares.iter().find(|(_, share)| !(0.0..=1.0).contains(share)) {
        bail!("{flag} {value}: must be a share between 0 and 1");
    }
    for (flag, value) in [
        ("--think-time", args.prompts.think_time),
        ("--probe-rate", args.scenario.probe_rate),
        ("--zipf", args.prompts.zipf),
    ] {
        if !(value.is_finite() && value >= 0.0) {
            bail!("{flag} {value}: must be a number, 0 or more");
        }
    }
    if args.load.rate.is_some_and(f64::is_infinite) && args.load.duration.is_some() {
        bail!("--rate inf sends --num-requests at once; leave --duration out");
    }
    Ok(())
}

fn targets(args: &LoadtestArgs) -> anyhow::Result<Vec<crate::fleet::BaseUrl>> {
    let texts: Vec<&String> = if args.target.mock {
        Vec::new()
    } else if args.target.ab.is_empty() {
        vec![args.target.base_url.as_ref().context("nothing to load: give --base-url URL, --ab URL1 URL2, or --mock")?]
    } else {
        args.target.ab.iter().collect()
    };
    texts.into_iter().map(|text| text.parse().map_err(|error| anyhow!("--base-url: {error}"))).collect()
}

fn bearer(key: &str) -> anyhow::Result<HeaderValue> {
    // The error of a bad value would repeat the key.
    let value = HeaderValue::from_str(&format!("Bearer {}", key.trim()));
    let mut value = value.map_err(|_| anyhow!("the API key has characters that no header can carry"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn tenant(text: &str) -> anyhow::Result<Tenant> {
    let wrong = || format!("--tenant {text}: write NAME=WEIGHT or NAME=WEIGHT:VARIABLE");
    let (name, rest) = text.split_once('=').with_context(wrong)?;
    let (share, variable) = rest.split_once(':').map_or((rest, None), |(share, name)| (share, Some(name.to_owned())));
    let share: f64 = share.parse().ok().filter(|share: &f64| share.is_finite() && *share > 0.0).with_context(wrong)?;
    Ok(Tenant { name: name.to_owned(), share, key_variable: variable })
}

fn tenant_key(tenant: &Tenant) -> anyhow::Result<Option<HeaderValue>> {
    let Some(variable) = &tenant.key_variable else { return Ok(None) };
    let missing = || format!("--tenant {}: the environment variable {variable} is not set", tenant.name);
    config::environment(variable).with_context(missing).and_then(|key| bearer(&key)).map(Some)
}

fn pair(text: &str) -> anyhow::Result<(String, String)> {
    let (key, value) = text.split_once('=').with_context(|| format!("--metadata {text}: write KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}

fn money(args: &LoadtestArgs) -> anyhow::Result<Option<(f64, f64, f64)>> {
    let (Some(most), Some(price)) = (args.scenario.max_usd, &args.scenario.price) else { return Ok(None) };
    let prices = price.split_once(':').and_then(|(input, output)| Some((input.parse().ok()?, output.parse().ok()?)));
    let (input, output): (f64, f64) =
        prices.with_context(|| format!("--price {price}: write dollars a million tokens as IN:OUT, like 0.5:1.5"))?;
    Ok(Some((most, input, output)))
}

fn objectives(args: &LoadtestArgs) -> anyhow::Result<Vec<Objective>> {
    let mut all = Vec::new();
    let flags = [(Metric::Ttft, args.goals.slo_ttft_ms), (Metric::Tpot, args.goals.slo_tpot_ms)];
    all.extend(flags.iter().filter_map(|(metric, limit)| Some(Objective { metric: *metric, limit_ms: (*limit)? })));
    for text in args.goals.goodput.iter().flat_map(|text| text.split_whitespace()) {
        let wrong = || format!("--goodput {text}: write METRIC:MS with ttft, tpot or e2el, like ttft:500");
        let (name, limit) = text.split_once(':').with_context(wrong)?;
        let metric = [Metric::Ttft, Metric::Tpot, Metric::E2el].into_iter().find(|metric| metric.name() == name);
        let limit_ms: f64 = limit.parse().ok().filter(|limit: &f64| *limit > 0.0).with_context(wrong)?;
        let metric = metric.with_context(wrong)?;
        if all.iter().any(|one: &Objective| one.metric == metric) {
            bail!("--goodput {text}: there is an objective on {name} already");
        }
        all.push(Objective { metric, limit_ms });
    }
    Ok(all)
}

fn ramp(text: &str) -> anyhow::Result<(f64, f64, bool)> {
    let wrong = || format!("--ramp {text}: write FROM:SECONDS, exp:FROM:SECONDS, or SECONDS with --users");
    let (exponential, rest) = text.strip_prefix("exp:").map_or((false, text), |rest| (true, rest));
    let number = |text: &str| text.parse::<f64>().ok().filter(|value| value.is_finite() && *value > 0.0);
    let (from, seconds) = match rest.split_once(':') {
        Some((from, seconds)) => (number(from).with_context(wrong)?, number(seconds).with_context(wrong)?),
        None => (f64::NAN, number(rest).with_context(wrong)?),
    };
    Ok((from, seconds, exponential))
}

fn load(args: &LoadtestArgs) -> anyhow::Result<LoadPlan> {
    let flags = &args.load;
    let ramp = flags.ramp.as_deref().map(ramp).transpose()?;
    if let Some(users) = flags.users {
        return Ok(LoadPlan::Closed { users, ramp: ramp.map_or(0.0, |(_, seconds, _)| seconds) });
    }
    if let Some(path) = &flags.trace {
        let rows = trace::read(&read("--trace", path)?).with_context(|| format!("--trace {}", path.display()))?;
        return Ok(LoadPlan::Trace { rows, speed: flags.speed });
    }
    let ramp = match ramp {
        Some((from, _, _)) if from.is_nan() => bail!("--ramp: with a rate, write FROM:SECONDS"),
        Some((from, seconds, exponential)) => Some(Ramp { from, seconds, exponential }),
        None => None,
    };
    // vLLM's meaning: a cap without a rate is load as fast as the cap lets it through.
    let default = if flags.max_concurrency.is_some() { f64::INFINITY } else { 1.0 };
    Ok(LoadPlan::Open(Pattern { rate: flags.rate.unwrap_or(default), burstiness: flags.burstiness, ramp }))
}

fn mode(args: &LoadtestArgs, objectives: &[Objective]) -> anyhow::Result<Mode> {
    let flags = &args.load;
    let search = |from: f64, to: f64| SearchPlan { from, to, probe: flags.probe_seconds, budget: flags.search_budget };
    if !args.target.ab.is_empty() {
        return Ok(Mode::Ab);
    }
    if flags.find_capacity || flags.search.is_some() {
        if objectives.is_empty() {
            bail!("a search needs an objective: give --slo-ttft-ms, --slo-tpot-ms or --goodput");
        }
        if flags.num_requests.is_some() || flags.duration.is_some() {
            bail!("a search chooses the size of its probes: give --probe-seconds instead");
        }
        let finite = flags.rate.filter(|rate| rate.is_finite());
        return Ok(match flags.search {
            Some(SearchArg::Concurrency) => Mode::SearchConcurrency(search(1.0, 4096.0)),
            None => Mode::FindCapacity(search(finite.unwrap_or(1.0), 100_000.0)),
        });
    }
    if !flags.sweep.is_empty() {
        return Ok(Mode::Sweep(flags.sweep.clone()));
    }
    if !flags.sweep_users.is_empty() {
        return Ok(Mode::SweepUsers(flags.sweep_users.clone()));
    }
    Ok(Mode::Single)
}

fn read(flag: &str, path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{flag} {}: cannot be read", path.display()))
}

fn spec(args: &LoadtestArgs, tenants: Vec<Tenant>) -> anyhow::Result<Spec> {
    let flags = &args.prompts;
    let extra = match &flags.extra_body {
        None => serde_json::Map::new(),
        Some(text) => serde_json::from_str(text).with_context(|| format!("--extra-body {text}: is no JSON object"))?,
    };
    let prompts = match &flags.prompts {
        None => Vec::new(),
        Some(path) => {
            prompts::read(&read("--prompts", path)?).with_context(|| format!("--prompts {}", path.display()))?
        }
    };
    Ok(Spec {
        style: Style {
            api: args.target.endpoint.into(),
            model: String::new(),
            ignore_eos: flags.ignore_eos,
            per_chunk_usage: flags.per_chunk_usage,
            extra,
        },
        input: flags.input_len,
        output: flags.output_len,
        shape: flags.len_dist.into(),
        shared_prefix: flags.shared_prefix_len,
        groups: (flags.prefix_groups, flags.zipf),
        turns: flags.turns,
        nonce: flags.unique_nonce,
        prompts,
        tenants,
        cancel_rate: args.scenario.cancel_rate,
        slow_readers: args.scenario.slow_readers,
        seed: args.load.seed,
    })
}
