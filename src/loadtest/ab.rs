//! Two targets in turns, A B B A, on the same schedule and prompts.

use anyhow::bail;

use super::{
    compare::{Pair, report},
    level::Bench,
    measure::Figures,
    record::Record,
    verdict::Validity,
};

/// Margin within which targets count as equal.
const MARGIN: f64 = 0.05;

/// Reads one figure.
type Pick = fn(&Figures) -> Option<f64>;

/// The comparison.
#[derive(Debug)]
pub struct Compared {
    /// As text.
    pub text: String,
    /// 0 B is not worse, 1 worse, 2 a run was invalid, 4 nothing sure.
    pub code: u8,
}

/// Runs both and compares.
///
/// # Errors
/// When no thread can be started, or the runs were ended by hand.
pub async fn run(a: &Bench, b: &Bench) -> anyhow::Result<Compared> {
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    let mut worst = Validity::Valid;
    let seed = a.plan.spec.seed;
    for (turn, (bench, records, seed)) in
        [(a, true, seed), (b, false, seed), (b, false, seed + 1), (a, true, seed + 1)].into_iter().enumerate()
    {
        let level = bench.level(&a.plan.load, seed).await?;
        if a.stop.is_cancelled() {
            bail!("ended by hand in run {} of 4: nothing to compare", turn + 1);
        }
        worst = worst.max(level.summary.judged.verdict);
        if records { &mut of_a } else { &mut of_b }.push(level.records);
    }
    // B ran the two seeds in the order of A.
    let (of_a, of_b): (Vec<Record>, Vec<Record>) = (of_a.concat(), of_b.concat());
    let rules = a.plan.asked.rules;
    let column = |records: &[Record], pick: fn(&Figures) -> Option<f64>| {
        records.iter().map(|record| pick(&Figures::of(record, rules))).collect::<Vec<_>>()
    };
    let metrics: [(&'static str, Pick); 4] = [
        ("TTFT sched", |one| one.ttft_sched),
        ("TTFT wire", |one| one.ttft),
        ("TPOT", |one| one.tpot),
        ("E2E sched", |one| one.e2el_sched),
    ];
    let pairs: Vec<Pair> =
        metrics.iter().map(|(name, pick)| Pair { name, a: column(&of_a, *pick), b: column(&of_b, *pick) }).collect();
    let (table, code) = report(&pairs, MARGIN);
    let text = format!(
        "A {}\nB {}\nfour runs A B B A of the same requests, {}\n\n{table}",
        a.client.base().url(""),
        b.client.base().url(""),
        worst.name()
    );
    Ok(Compared { text, code: if worst == Validity::Invalid { 2 } else { code } })
}
