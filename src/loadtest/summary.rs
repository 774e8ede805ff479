//! From records to the figures of a report. Pure: the same records give the same summary.

use std::collections::BTreeMap;

use super::{
    arrivals::realised,
    clock::{Nanos, ms, seconds, whole},
    host::Host,
    measure::{Figures, Objective, Rules, gaps, tokens_per_chunk},
    record::{Outcome, Record},
    runner::Measured,
    stats::{Dist, Share},
    verdict::{Evidence, Judged, Objectives, judge},
};

/// Stalls: gaps longer than this many times the median gap, and than 50 ms.
const STALL: f64 = 10.0;

/// What a summary needs to know of the plan.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Whose definitions.
    pub rules: Rules,
    /// Objectives of a request.
    pub objectives: Vec<Objective>,
    /// Share of requests that must meet all of them.
    pub goal: f64,
    /// Planned requests a second; `None` in a closed loop or all at once.
    pub rate: Option<f64>,
    /// Names of tenants.
    pub tenants: Vec<String>,
}

/// Distributions, in ms.
#[derive(Debug, Clone, Default)]
pub struct Dists {
    /// First token from the intended time.
    pub ttft_sched: Dist,
    /// First token from the wire.
    pub ttft: Dist,
    /// First token that is no reasoning.
    pub ttfo: Dist,
    /// First event of any kind.
    pub ttfe: Dist,
    /// Head of the answer.
    pub ttfb: Dist,
    /// Time per output token, one a request.
    pub tpot: Dist,
    /// Gap per token, pooled; an estimate where the engine does not count per chunk.
    pub itl: Dist,
    /// Gaps between chunks, pooled.
    pub icl: Dist,
    /// Whole answer from the intended time.
    pub e2el_sched: Dist,
    /// Whole answer from the wire.
    pub e2el: Dist,
    /// Longest gap of a request.
    pub max_gap: Dist,
    /// Wait for the cap.
    pub cap_wait: Dist,
    /// Connecting.
    pub connect: Dist,
    /// The client's delay in sending.
    pub send_lag: Dist,
    /// The client's delay in reading.
    pub read_lag: Dist,
}

/// One tenant's share.
#[derive(Debug, Clone)]
pub struct TenantRow {
    /// Name.
    pub name: String,
    /// Requests.
    pub requests: usize,
    /// TTFT from the schedule.
    pub ttft: Dist,
    /// Share of good requests.
    pub good: Option<Share>,
}

/// Figures of a run.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Distributions.
    pub dists: Dists,
    /// How requests ended.
    pub outcomes: BTreeMap<Outcome, usize>,
    /// One error of each kind.
    pub examples: BTreeMap<Outcome, String>,
    /// Whole answers.
    pub completed: usize,
    /// Requests that failed.
    pub failed: usize,
    /// Seconds.
    pub duration: f64,
    /// Prompt tokens of whole answers.
    pub input_tokens: u64,
    /// Answer tokens of whole answers.
    pub output_tokens: u64,
    /// Prompt tokens that came from a prefix cache.
    pub cached_tokens: u64,
    /// Whole answers without a token count by the engine.
    pub usage_missing: usize,
    /// ITL is an estimate.
    pub itl_estimated: bool,
    /// Largest number of tokens in a second.
    pub peak_tokens: f64,
    /// Largest number of requests under way.
    pub peak_concurrency: usize,
    /// Gaps that were stalls.
    pub stalls: usize,
    /// Planned and realised rate, and the variation of the realised gaps.
    pub arrivals: (Option<f64>, Option<(f64, f64)>),
    /// Share of requests that met all objectives.
    pub good: Option<Share>,
    /// Requests that missed each objective.
    pub missed: Vec<usize>,
    /// Good requests a second.
    pub goodput: Option<f64>,
    /// Whether the objectives were met.
    pub objectives: Option<Objectives>,
    /// Whether to trust all this.
    pub judged: Judged,
    /// The client's machine.
    pub host: Host,
    /// Tenants.
    pub tenants: Vec<TenantRow>,
    /// TTFT of canaries, from their intended time.
    pub probes: Dist,
    /// Requests of each replica that named itself.
    pub replicas: BTreeMap<String, usize>,
    /// Why the run ended early.
    pub stopped: Option<&'static str>,
}

impl Summary {
    /// Summarises a run.
    #[must_use]
    pub fn of(measured: &Measured, asked: &Asked) -> Self {
        let records = &measured.records;
        let figures: Vec<Figures> = records.iter().map(|record| Figures::of(record, asked.rules)).collect();
        let dists = dists(records, &figures, asked.rules);
        let met = |objective: &Objective, at: usize| {
            let pair = records.get(at).zip(figures.get(at));
            pair.is_some_and(|(record, figures)| objective.met(record, figures, asked.rules))
        };
        let judged_at: Vec<usize> = records
            .iter()
            .enumerate()
            .filter(|(_, record)| record.outcome.counts() && !record.slow)
            .map(|(at, _)| at)
            .collect();
        let all_met = |at: &usize| asked.objectives.iter().all(|objective| met(objective, *at));
        let good: Vec<bool> = judged_at.iter().map(all_met).collect();
        let share = if asked.objectives.is_empty() { None } else { Share::of(&good) };
        let whole_ones = || records.iter().filter(|record| record.outcome == Outcome::Ok);
        let mut outcomes = BTreeMap::new();
        let mut examples = BTreeMap::new();
        let mut replicas = BTreeMap::new();
        for record in records {
            *outcomes.entry(record.outcome).or_insert(0) += 1;
            if let Some(error) = &record.error {
                examples.entry(record.outcome).or_insert_with(|| error.clone());
            }
            if let Some(replica) = &record.replica {
                *replicas.entry(replica.clone()).or_insert(0) += 1;
            }
        }
        let rates = arrivals(records, asked.rate);
        let evidence = Evidence {
            send_lag: dists.send_lag.at(0.99),
            read_lag: dists.read_lag.at(0.99),
            ttft: dists.ttft.at(0.5),
            host: measured.host,
            rates: rates.0.zip(rates.1.map(|(rate, _)| rate)).filter(|_| measured.stopped.is_none()),
            answered: records.iter().filter(|record| record.head.is_some()).count(),
        };
        let tenants = tenant_rows(records, &figures, asked, &all_met);
        Self {
            completed: whole_ones().count(),
            failed: records.iter().filter(|record| record.outcome.counts() && record.outcome != Outcome::Ok).count(),
            duration: measured.wall,
            input_tokens: whole_ones().map(Record::input_tokens).sum(),
            output_tokens: whole_ones().map(Record::output_tokens).sum(),
            cached_tokens: whole_ones().filter_map(|record| record.usage.cached).sum(),
            usage_missing: whole_ones().filter(|record| record.usage.output.is_none()).count(),
            itl_estimated: whole_ones().any(|record| record.chunks.iter().any(|chunk| chunk.tokens == 0)),
            peak_tokens: peak_tokens(records),
            peak_concurrency: in_flight(records).iter().map(|(_, n)| *n).max().unwrap_or(0),
            stalls: stalls(records, &dists.icl),
            arrivals: rates,
            goodput: share.map(|_| good.iter().filter(|one| **one).count() as f64 / measured.wall.max(1e-9)),
            objectives: share.map(|share| Objectives::of(&share, asked.goal)),
            good: share,
            missed: asked
                .objectives
                .iter()
                .map(|objective| judged_at.iter().filter(|at| !met(objective, **at)).count())
                .collect(),
            judged: judge(&evidence),
            host: measured.host,
            tenants,
            probes: probes(&measured.probes),
            stopped: measured.stopped,
            dists,
            outcomes,
            examples,
            replicas,
        }
    }

    /// Whole answers a second.
    #[must_use]
    pub fn request_throughput(&self) -> f64 {
        self.completed as f64 / self.duration.max(1e-9)
    }

    /// Answer tokens a second.
    #[must_use]
    pub fn output_throughput(&self) -> f64 {
        self.output_tokens as f64 / self.duration.max(1e-9)
    }
}

fn probes(records: &[Record]) -> Dist {
    Dist::new(records.iter().filter_map(|record| Figures::of(record, Rules::Own).ttft_sched))
}

fn dists(records: &[Record], figures: &[Figures], rules: Rules) -> Dists {
    // Slow readers and those who left measure themselves.
    let fair = |record: &&Record| !record.slow && record.outcome.counts();
    let own: Vec<(&Record, &Figures)> = records.iter().zip(figures).filter(|(record, _)| fair(record)).collect();
    let of = |pick: fn(&Figures) -> Option<f64>| Dist::new(own.iter().filter_map(|(_, figures)| pick(figures)));
    let whole_ones = || own.iter().map(|(record, _)| *record).filter(|record| record.outcome == Outcome::Ok);
    let icl = Dist::new(whole_ones().flat_map(|record| gaps(record).map(|(gap, _)| gap)));
    let itl = match rules {
        Rules::Vllm => icl.clone(),
        Rules::Own => Dist::new(whole_ones().flat_map(per_token_gaps)),
    };
    Dists {
        ttft_sched: of(|one| one.ttft_sched),
        ttft: of(|one| one.ttft),
        ttfo: of(|one| one.ttfo),
        ttfe: of(|one| one.ttfe),
        ttfb: of(|one| one.ttfb),
        tpot: of(|one| one.tpot),
        e2el_sched: of(|one| one.e2el_sched),
        e2el: of(|one| one.e2el),
        max_gap: of(|one| one.max_gap),
        itl,
        icl,
        cap_wait: Dist::new(records.iter().map(|record| ms(record.cap_wait))),
        connect: Dist::new(records.iter().filter(|record| record.connect > 0).map(|record| ms(record.connect))),
        send_lag: Dist::new(records.iter().filter_map(Record::send_lag)),
        read_lag: Dist::new(records.iter().filter(|record| !record.slow).filter_map(|one| one.read_lag.map(ms))),
    }
}

/// Gaps divided by the tokens that came with their ends, once for each token.
fn per_token_gaps(record: &Record) -> impl Iterator<Item = f64> + '_ {
    let average = tokens_per_chunk(record);
    gaps(record).flat_map(move |(gap, tokens)| {
        let each = if tokens > 0 { tokens as f64 } else { average };
        std::iter::repeat_n(gap / each, whole(each).clamp(1, 64))
    })
}

/// Planned rate, and what was sent: rate and variation of the gaps.
fn arrivals(records: &[Record], planned: Option<f64>) -> (Option<f64>, Option<(f64, f64)>) {
    let mut sent: Vec<f64> =
        records.iter().filter(|record| record.turn == 0).filter_map(|record| record.written).map(seconds).collect();
    sent.sort_by(f64::total_cmp);
    let mut intended: Vec<f64> =
        records.iter().filter(|record| record.turn == 0).map(|record| seconds(record.intended)).collect();
    intended.sort_by(f64::total_cmp);
    // A short schedule's own rate scatters around the asked one: the client is held to the schedule.
    let planned = planned.and_then(|_| realised(&intended)).map(|(rate, _)| rate);
    (planned, realised(&sent))
}

/// Steps of the number of requests under way: time in seconds, and the number from then on.
#[must_use]
pub fn in_flight(records: &[Record]) -> Vec<(f64, usize)> {
    let sent = records.iter().filter_map(|record| Some((record.written?, record.ended)));
    let mut steps: Vec<(Nanos, bool)> = sent.flat_map(|(from, to)| [(from, true), (to, false)]).collect();
    // At the same time an end comes first: `false` sorts before `true`.
    steps.sort_unstable();
    let mut now = 0_usize;
    let counted = steps.into_iter().map(|(at, begins)| {
        now = if begins { now + 1 } else { now.saturating_sub(1) };
        (seconds(at), now)
    });
    counted.collect()
}

fn peak_tokens(records: &[Record]) -> f64 {
    let mut each: BTreeMap<u64, f64> = BTreeMap::new();
    for record in records {
        let average = record.output_tokens() as f64 / record.chunks.len().max(1) as f64;
        for chunk in &record.chunks {
            let tokens = if chunk.tokens > 0 { chunk.tokens as f64 } else { average };
            *each.entry(chunk.at / 1_000_000_000).or_default() += tokens;
        }
    }
    each.values().copied().fold(0.0, f64::max)
}

fn stalls(records: &[Record], icl: &Dist) -> usize {
    let limit = (icl.at(0.5).unwrap_or(0.0) * STALL).max(50.0);
    records.iter().flat_map(gaps).filter(|(gap, _)| *gap > limit).count()
}

fn tenant_rows(
    records: &[Record],
    figures: &[Figures],
    asked: &Asked,
    good: &dyn Fn(&usize) -> bool,
) -> Vec<TenantRow> {
    let rows = asked.tenants.iter().enumerate().map(|(tenant, name)| {
        let own: Vec<usize> =
            records.iter().enumerate().filter(|(_, one)| one.tenant == Some(tenant)).map(|(at, _)| at).collect();
        let met: Vec<bool> = own.iter().map(good).collect();
        TenantRow {
            name: name.clone(),
            requests: own.len(),
            ttft: Dist::new(own.iter().filter_map(|at| figures.get(*at)?.ttft_sched)),
            good: if asked.objectives.is_empty() { None } else { Share::of(&met) },
        }
    });
    rows.collect()
}
