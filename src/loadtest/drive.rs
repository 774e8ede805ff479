//! A whole load test: target, levels, reports, exit code.

use std::{
    fs::File,
    io::{self, BufWriter, IsTerminal, Write},
    path::Path,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use tokio_util::sync::CancellationToken;

use super::{
    ab, capacity,
    client::Client,
    clock::Clock,
    host::Facts,
    level::{Bench, Level, short},
    plan::{LoadPlan, Mode, Output, Plan},
    report::{self, Setup, explain, hdr, html, json, junit, requests, table, table::Ink},
    scrape::Scraper,
    search::Found,
    target::{Mock, first_model},
    verdict::exit_code,
};

/// What is about to be loaded.
#[derive(Debug)]
pub struct Before {
    /// Host and port.
    pub target: String,
}

/// Asks whether a target that is not on this machine may be loaded.
///
/// # Errors
/// When there is nobody to ask, or the answer is no.
pub fn ask(before: &Before) -> anyhow::Result<()> {
    let target = &before.target;
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        bail!("{target} is not on this machine; add --yes to load it");
    }
    write!(io::stderr(), "Load {target}, which is not on this machine? [y/N] ")?;
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    if answer.trim().eq_ignore_ascii_case("y") { Ok(()) } else { bail!("not loaded; --yes skips the question") }
}

/// A message for a person.
pub fn complain(text: &str) {
    // Standard error may be closed; then there is nobody to tell.
    writeln!(io::stderr(), "gateway loadtest: {text}").unwrap_or_default();
}

fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Everything that a test found.
#[derive(Debug)]
pub struct Results {
    /// What was tested.
    pub setup: Setup,
    /// Levels, in the order in which they were run.
    pub levels: Vec<Level>,
    /// What a search found.
    pub found: Option<Found>,
    /// What the target's metrics said.
    pub server: Option<super::scrape::Seen>,
}

/// Runs a plan; the exit code. `stop` ends it early with what was measured.
///
/// # Errors
/// When the target cannot be asked for its model, or a file cannot be written.
pub async fn run(mut plan: Plan, stop: CancellationToken) -> anyhow::Result<u8> {
    // Many streams need many descriptors; a lower limit shows as failed connections.
    drop(rlimit::increase_nofile_limit(u64::MAX));
    if plan.output.explain {
        say(&format!("{}\n", explain::text()))?;
    }
    let mock = if plan.targets.is_empty() { Some(Mock::start().await?) } else { None };
    if let Some(mock) = &mock {
        plan.targets.push(mock.base.clone());
    }
    let clock = Clock::start();
    let mut clients = Vec::new();
    for base in &plan.targets {
        clients.push(Arc::new(Client::new(base.clone(), clock, plan.asked.rules)?));
    }
    let client = clients.first().context("a load test has a target")?;
    plan.spec.style.model = match &plan.model {
        Some(model) => model.clone(),
        None => first_model(client, plan.key.as_ref()).await?,
    };
    let setup = setup(&plan, mock.is_some());
    let (plan, watch) = (Arc::new(plan), io::stderr().is_terminal());
    let bench = |client: &Arc<Client>| Bench {
        client: Arc::clone(client),
        plan: Arc::clone(&plan),
        clock,
        stop: stop.clone(),
        watch,
    };
    if let (Mode::Ab, Some(second)) = (&plan.mode, clients.get(1)) {
        let compared = ab::run(&bench(client), &bench(second)).await?;
        say(&compared.text)?;
        return Ok(compared.code);
    }
    let scraper = Scraper::start(client, plan.scrape.as_deref()).await;
    let (levels, found) = levels(&bench(client), &setup).await?;
    let server = match scraper {
        Some(scraper) => Some(scraper.finish().await),
        None => None,
    };
    let results = Results { setup, levels, found, server };
    finish(&results, &plan.output)
}

fn setup(plan: &Plan, mock: bool) -> Setup {
    let target = plan.targets.first().map(|base| base.url("")).unwrap_or_default();
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let words = plan.asked.objectives.iter().map(|one| format!("{}<={} ms", one.metric.name(), short(one.limit_ms)));
    Setup {
        target: if mock { "simulated engine".to_owned() } else { target },
        model: plan.spec.style.model.clone(),
        api: plan.spec.style.api,
        seed: plan.spec.seed,
        label: plan.label.clone(),
        metadata: plan.metadata.clone(),
        cap: plan.cap,
        date: report::date(unix),
        objectives: words.collect(),
        goal: plan.asked.goal,
        rules: plan.asked.rules,
        facts: Facts::read(),
    }
}

/// Runs the levels of the plan's mode and tells of each as it ends.
async fn levels(bench: &Bench, setup: &Setup) -> anyhow::Result<(Vec<Level>, Option<Found>)> {
    let (plan, seed) = (&bench.plan, bench.plan.spec.seed);
    let loads: Vec<LoadPlan> = match (&plan.mode, &plan.load) {
        (Mode::Sweep(rates), LoadPlan::Open(pattern)) => {
            rates.iter().map(|rate| LoadPlan::Open(super::arrivals::Pattern { rate: *rate, ..*pattern })).collect()
        }
        (Mode::SweepUsers(users), _) => {
            users.iter().map(|users| LoadPlan::Closed { users: *users, ramp: 0.0 }).collect()
        }
        (Mode::FindCapacity(search) | Mode::SearchConcurrency(search), load) => {
            let (levels, found) = capacity::search(bench, *search, load).await?;
            return Ok((levels, Some(found)));
        }
        (_, load) => vec![load.clone()],
    };
    let ink = Ink { colour: io::stdout().is_terminal() };
    let mut levels = Vec::new();
    for (at, load) in loads.iter().enumerate() {
        if at > 0 && bench.stop.is_cancelled() {
            break;
        }
        // Each level has prompts of its own, so that none finds the cache of the one before.
        let level = bench.level(load, seed.wrapping_add(at as u64 * 0x9e37_79b9)).await?;
        say(&format!("{}{}", if at > 0 { "\n" } else { "" }, table::level(&level, setup, ink)))?;
        levels.push(level);
    }
    Ok((levels, None))
}

fn create(path: &Path) -> anyhow::Result<BufWriter<File>> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(BufWriter::new(file))
}

/// Prints what comes last, writes the files, and says how it went.
fn finish(results: &Results, output: &Output) -> anyhow::Result<u8> {
    let ink = Ink { colour: io::stdout().is_terminal() };
    if let Some(found) = &results.found {
        say(&format!("\n{}\n", found.text()))?;
    }
    if results.levels.len() > 1 {
        say(&table::sweep(&results.levels, ink))?;
    }
    if let Some(server) = &results.server {
        say(&server.text())?;
    }
    write_files(results, output)?;
    let worst = results.levels.iter().map(|level| exit_code(level.summary.judged.verdict, level.summary.objectives));
    Ok(match &results.found {
        Some(found) => found.exit_code(),
        // A sweep looks for the limit: a level beyond it is no failure, an invalid one is.
        None if results.levels.len() > 1 => worst.filter(|code| *code == 2).max().unwrap_or(0),
        None => worst.max().unwrap_or(2),
    })
}

fn write_files(results: &Results, output: &Output) -> anyhow::Result<()> {
    let (levels, setup) = (&results.levels, &results.setup);
    if let Some(path) = &output.json {
        let mut out = create(path)?;
        write_json(&mut out, results, path.extension().is_some_and(|kind| kind == "jsonl"))?;
        out.flush()?;
    }
    if let Some(path) = &output.requests {
        let mut out = create(path)?;
        for level in levels {
            requests::write(&mut out, &level.records, &level.name, setup.rules)?;
        }
        out.flush()?;
    }
    if let Some(path) = &output.hdr {
        let mut out = create(path)?;
        let records: Vec<_> = levels.iter().flat_map(|level| level.records.iter().cloned()).collect();
        hdr::write(&mut out, &records, setup.rules)?;
        out.flush()?;
    }
    if let Some(path) = &output.junit {
        create(path)?.write_all(junit::xml(levels, setup).as_bytes())?;
    }
    if let Some(path) = &output.report {
        create(path)?.write_all(html::page(results).as_bytes())?;
    }
    Ok(())
}

/// One object for one run, a line a level for `.jsonl`, else an object with all levels.
fn write_json(out: &mut impl Write, results: &Results, lines: bool) -> anyhow::Result<()> {
    let mut objects = Vec::new();
    for level in &results.levels {
        let mut object = json::result(level, &results.setup);
        if let (Some(members), Some(server)) = (object.get_mut("gateway"), &results.server) {
            members["server"] = server.json();
        }
        objects.push(object);
    }
    if lines {
        for object in &objects {
            writeln!(out, "{object}")?;
        }
        if let Some(found) = &results.found {
            writeln!(out, "{}", found.json())?;
        }
        return Ok(());
    }
    let whole = match (objects.len(), &results.found) {
        (1, None) => objects.remove(0),
        (_, found) => serde_json::json!({ "levels": objects, "capacity": found.as_ref().map(Found::json) }),
    };
    serde_json::to_writer_pretty(&mut *out, &whole)?;
    writeln!(out)?;
    Ok(())
}
