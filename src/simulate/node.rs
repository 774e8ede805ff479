//! One engine of the pool, and the requests that are on it.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    fleet::{EngineLoad, InFlight},
    simulator::{EngineSpec, Event, SeqId, SimEngine},
};

/// A request on an engine.
#[derive(Debug)]
pub(super) struct Active {
    /// Its number in the trace.
    pub(super) number: usize,
    pub(super) arrived: Duration,
    pub(super) first: Option<Duration>,
    pub(super) output: usize,
    pub(super) charge: InFlight,
    /// Tokens and seconds that were foreseen.
    pub(super) foreseen: Foreseen,
    /// Prompt tokens that were in the cache.
    pub(super) cached: usize,
}

/// What was foreseen of a request.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Foreseen {
    pub(super) cached: u64,
    pub(super) ttft: Option<f64>,
}

/// An engine, if it is up.
#[derive(Debug)]
pub(super) struct Node {
    spec: EngineSpec,
    pub(super) engine: Option<SimEngine>,
    /// Life of the process: the end of a step of an earlier one means nothing.
    pub(super) life: u32,
    pub(super) active: BTreeMap<SeqId, Active>,
    /// Requests it was sent.
    pub(super) sent: u64,
    events: Vec<Event>,
}

impl Node {
    pub(super) fn new(spec: EngineSpec, up: bool) -> Self {
        let engine = up.then(|| SimEngine::new(&spec));
        Self { spec, engine, life: 0, active: BTreeMap::new(), sent: 0, events: Vec::new() }
    }

    /// The process ends; what was on it is given back.
    pub(super) fn stop(&mut self) -> BTreeMap<SeqId, Active> {
        self.engine = None;
        self.life += 1;
        std::mem::take(&mut self.active)
    }

    /// A new process with an empty cache.
    pub(super) fn start(&mut self) {
        self.engine = Some(SimEngine::new(&self.spec));
        self.life += 1;
    }

    /// Begins a step, if none runs and there is work.
    pub(super) fn begin(&mut self) -> Option<Duration> {
        self.engine.as_mut()?.begin()
    }

    /// Ends the step; the events are to be handed back with [`Self::recycle`].
    pub(super) fn finish(&mut self) -> Vec<Event> {
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        if let Some(engine) = &mut self.engine {
            engine.finish(&mut events);
        }
        events
    }

    pub(super) fn recycle(&mut self, events: Vec<Event>) {
        self.events = events;
    }

    /// What its metrics page says.
    #[expect(clippy::cast_possible_truncation, reason = "a share, 0 to 1")]
    pub(super) fn load(&self) -> Option<EngineLoad> {
        let stats = self.engine.as_ref()?.stats();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Some(EngineLoad {
            running: count(stats.running),
            waiting: count(stats.waiting),
            kv_usage: Some(stats.kv_usage() as f32),
            cache_tokens: Some(self.spec.kv_tokens as u64),
            prefix_hits: Some(stats.totals.hits),
            prefix_queries: Some(stats.totals.queries),
            start_time: Some(f64::from(self.life)),
        })
    }
}
