//! The event loop: arrivals, ends of steps, metrics pages, replicas that come and go, in the order of their times.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Trace,
    gateway::{Asked, Gateway, at, chain},
    node::{Active, Node},
    report::{Ended, Objectives, Report, Run},
};
use crate::{
    fleet::ReplicaSpec,
    routing::{self, rendezvous},
    simulator::{EngineSpec, Event, Prompt, Request},
};

/// How often a gateway reads the metrics page of an engine.
const SCRAPE: Duration = Duration::from_secs(1);
/// Requests that one replica may have: the default of `concurrency.per_replica`.
const PER_REPLICA: u32 = 256;

/// A replica that leaves or comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The replica of this number (from 0) dies with all that is on it.
    Fail(usize),
    /// The replica of this number comes with an empty cache: one that failed, or a new one.
    Add(usize),
}

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The requests.
    pub trace: Trace,
    /// One engine a replica, those that come later included.
    pub engines: Vec<EngineSpec>,
    /// Of them, those that are up at the beginning.
    pub up: usize,
    /// Gateways, each of which gets a random part of the requests.
    pub gateways: usize,
    /// Replicas that leave and come.
    pub changes: Vec<(Duration, Change)>,
    /// What the random parts are drawn from.
    pub seed: u64,
    /// Objectives that goodput is counted at.
    pub objectives: Objectives,
}

/// No policy has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no policy {0}; one of {known}", known = names())]
pub struct UnknownPolicy(pub String);

fn names() -> String {
    routing::REGISTRY.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    StepEnd { node: usize, life: u32 },
    Change(usize),
    Scrape(usize),
    Arrival(usize),
}

struct World<'a> {
    scenario: &'a Scenario,
    origin: Instant,
    nodes: Vec<Node>,
    gateways: Vec<Gateway>,
    due: BinaryHeap<Reverse<(Duration, u64, Due)>>,
    order: u64,
    run: Run,
    /// Requests that are still to come or to end.
    open: usize,
}

/// Runs the scenario under a policy. `origin` is any moment: the fleet's code counts in moments, not in times.
///
/// # Errors
/// No policy has that name.
pub fn run(scenario: &Scenario, policy: &str, origin: Instant) -> Result<Report, UnknownPolicy> {
    let build = || routing::policy(policy).ok_or_else(|| UnknownPolicy(policy.to_owned()));
    let policies = (0..scenario.gateways.max(1)).map(|_| build()).collect::<Result<Vec<_>, _>>()?;
    let specs: Vec<_> = (0..scenario.engines.len()).filter_map(spec).collect();
    let block = scenario.trace.block_tokens;
    let mut world = World {
        scenario,
        origin,
        nodes: scenario.engines.iter().enumerate().map(|(n, spec)| Node::new(spec.clone(), n < scenario.up)).collect(),
        gateways: policies.into_iter().map(|policy| Gateway::new(policy, &specs, scenario.up, block)).collect(),
        due: BinaryHeap::new(),
        order: 0,
        run: Run::default(),
        open: scenario.trace.arrivals.len(),
    };
    world.start();
    while world.open > 0 {
        let Some(Reverse((now, _, due))) = world.due.pop() else { break };
        world.meet(now, due);
    }
    let sent = world.nodes.iter().map(|node| node.sent).collect();
    Ok(world.run.report(policy, sent, &scenario.objectives))
}

fn spec(number: usize) -> Option<ReplicaSpec> {
    let base = format!("http://replica-{number}:8000").parse().ok()?;
    Some(ReplicaSpec { base, api_key: None, engine: None, limit: PER_REPLICA })
}

impl World<'_> {
    fn start(&mut self) {
        if let Some(first) = self.scenario.trace.arrivals.first() {
            self.push(first.at, Due::Arrival(0));
        }
        for (number, (time, _)) in self.scenario.changes.iter().enumerate() {
            self.push(*time, Due::Change(number));
        }
        let count = self.nodes.len();
        for node in 0..count {
            self.push(SCRAPE.mul_f64(node as f64 / count.max(1) as f64), Due::Scrape(node));
        }
    }

    fn push(&mut self, time: Duration, due: Due) {
        self.order += 1;
        self.due.push(Reverse((time, self.order, due)));
    }

    fn meet(&mut self, now: Duration, due: Due) {
        match due {
            Due::Arrival(number) => self.arrive(number, now),
            Due::StepEnd { node, life } => self.step_end(node, life, now),
            Due::Scrape(node) => self.scrape(node, now),
            Due::Change(number) => match self.scenario.changes.get(number) {
                Some((_, Change::Fail(node))) => self.fail(*node, now),
                Some((_, Change::Add(node))) => self.add(*node),
                None => {}
            },
        }
    }

    fn arrive(&mut self, number: usize, now: Duration) {
        let arrivals = &self.scenario.trace.arrivals;
        if let Some(next) = arrivals.get(number + 1) {
            self.push(next.at, Due::Arrival(number + 1));
        }
        let Some(arrival) = arrivals.get(number) else { return };
        let random = rendezvous::weight(number as u64, self.scenario.seed);
        let which = usize::try_from(random % self.gateways.len().max(1) as u64).unwrap_or(0);
        let block = self.scenario.trace.block_tokens;
        let chain = chain(&arrival.hashes, block);
        let asked = Asked { chain: &chain, tokens: arrival.input, random: rendezvous::weight(random, 1) };
        let placed = self.gateways.get_mut(which).and_then(|gateway| gateway.place(&asked, at(self.origin, now)));
        let ended = Ended::new(now, arrival.input, arrival.output);
        let Some(placed) = placed else {
            self.end(ended);
            return;
        };
        self.run.pick(placed.reason);
        let prompt = Prompt {
            tokens: arrival.input,
            hashes: Arc::clone(&arrival.hashes),
            tail: Arc::default(),
            root: number as u64,
        };
        let request = Request { prompt, output_tokens: arrival.output, output_seed: number as u64 };
        let Some(node) = self.nodes.get_mut(placed.node) else { return };
        let taken = node.engine.as_mut().and_then(|engine| engine.submit(request, now).ok());
        let Some(id) = taken else {
            self.end(ended);
            return;
        };
        node.sent += 1;
        let active = Active {
            number,
            arrived: now,
            first: None,
            output: arrival.output,
            charge: placed.charge,
            foreseen: placed.foreseen,
            cached: 0,
        };
        node.active.insert(id, active);
        self.begin(placed.node, now);
    }

    fn end(&mut self, ended: Ended) {
        self.open -= 1;
        self.run.ended(ended);
    }

    fn begin(&mut self, number: usize, now: Duration) {
        let Some(node) = self.nodes.get_mut(number) else { return };
        let life = node.life;
        if let Some(step) = node.begin() {
            self.push(now + step, Due::StepEnd { node: number, life });
        }
    }

    fn step_end(&mut self, number: usize, life: u32, now: Duration) {
        let moment = at(self.origin, now);
        let Some(node) = self.nodes.get_mut(number).filter(|node| node.life == life) else { return };
        let events = node.finish();
        for event in &events {
            let Event::Token { id, generated, cached, finished } = *event else { continue };
            let Some(active) = node.active.get_mut(&id) else { continue };
            if generated == 1 && active.first.is_none() {
                active.first = Some(now);
                active.cached = cached;
                active.charge.first_token(moment);
            }
            if finished && let Some(active) = node.active.remove(&id) {
                self.open -= 1;
                self.run.ended(done(self.scenario, &active, number, Some(now)));
            }
        }
        node.recycle(events);
        self.begin(number, now);
    }

    fn scrape(&mut self, number: usize, now: Duration) {
        let moment = at(self.origin, now);
        if let Some(load) = self.nodes.get(number).and_then(Node::load) {
            for replica in self.gateways.iter().filter_map(|gateway| gateway.replica(number)) {
                replica.set_load(load, moment);
            }
        }
        self.push(now + SCRAPE, Due::Scrape(number));
    }

    fn fail(&mut self, number: usize, _now: Duration) {
        let Some(node) = self.nodes.get_mut(number) else { return };
        for active in node.stop().into_values() {
            self.open -= 1;
            self.run.ended(done(self.scenario, &active, number, None));
        }
        for gateway in &mut self.gateways {
            gateway.set_usable(number, false);
        }
    }

    fn add(&mut self, number: usize) {
        let Some(node) = self.nodes.get_mut(number) else { return };
        if node.engine.is_none() {
            node.start();
            for gateway in &mut self.gateways {
                gateway.set_usable(number, true);
            }
        }
    }
}

/// What is known of a request that ended, at its last token or with its replica.
fn done(scenario: &Scenario, active: &Active, node: usize, last: Option<Duration>) -> Ended {
    let input = scenario.trace.arrivals.get(active.number).map_or(1, |arrival| arrival.input);
    Ended {
        node: Some(node),
        cached: active.cached,
        ttft: active.first.map(|first| first - active.arrived),
        decode: active.first.zip(last).map(|(first, last)| last - first),
        whole: last.is_some(),
        foreseen: active.foreseen,
        ..Ended::new(active.arrived, input, active.output)
    }
}
