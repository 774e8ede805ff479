//! One replica's word on its load, and whether its process was replaced.
//!
//! A page that is not there (metrics are off) is asked for rarely; one that did not come this time is asked for at the
//! next turn, and in between the old word goes stale. A restart shows in the start time of the process, and where an
//! engine does not tell that (SGLang), in a counter that fell.

use std::{sync::Mutex, sync::PoisonError};

use super::{pages::Pages, probe::METRICS_LIMIT};
use crate::{
    engine::{self, Engine, Samples},
    fleet::EngineLoad,
    types::EngineKind,
};

/// Start times that differ by less are the same, in seconds.
const SAME_START: f64 = 0.01;

/// What came of a scrape.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scraped {
    /// The engine's word.
    Load(EngineLoad),
    /// The engine has no such page, or nothing on it.
    Off,
    /// No answer this time.
    Missed,
}

/// Asks an engine for its load: on its metrics page, else where else it tells.
pub(super) async fn scrape(pages: &Pages, kind: EngineKind) -> Scraped {
    let engine = engine::engine(kind);
    let metrics = match engine.metrics_path() {
        Some(path) => ask(pages, path, |page| of_metrics(engine, page)).await,
        None => Scraped::Off,
    };
    match engine.load_path() {
        Some(path) if metrics == Scraped::Off => ask(pages, path, |page| engine.load_of_page(page)).await,
        _ => metrics,
    }
}

/// Asks for one page, wherever it may be.
async fn ask(pages: &Pages, path: &str, read: impl Fn(&[u8]) -> Option<EngineLoad>) -> Scraped {
    let mut outcome = Scraped::Missed;
    for url in pages.places(path) {
        let Ok(page) = pages.get(&url, METRICS_LIMIT).await else { continue };
        if let Some(load) = page.good_body().and_then(&read) {
            return Scraped::Load(load);
        }
        if page.status < 500 {
            outcome = Scraped::Off;
        }
    }
    outcome
}

fn of_metrics(engine: &dyn Engine, page: &[u8]) -> Option<EngineLoad> {
    let samples = Samples::parse(page, engine.wanted_metrics());
    if samples.rejected() > 0 {
        tracing::debug!(engine = engine.kind().label(), lines = samples.rejected(), "metrics lines that make no sense");
    }
    engine.load(&samples)
}

/// What happened between two words of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Since {
    /// Nothing.
    Same,
    /// The process was replaced.
    Replaced,
    /// Its counters began anew, and it does not tell its start: the cache is empty, at some moment since.
    Emptied,
}

/// What is known of the process behind the address.
#[derive(Debug, Default)]
pub(super) struct Process(Mutex<Known>);

#[derive(Debug, Default, Clone, Copy)]
struct Known {
    start_time: Option<f64>,
    prefix_queries: Option<u64>,
}

impl Process {
    /// Takes the engine's word: does it come from the same process as the word before?
    pub(super) fn compare(&self, load: &EngineLoad) -> Since {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fell = known.prefix_queries.zip(load.prefix_queries).is_some_and(|(before, now)| now < before);
        let since = match (known.start_time, load.start_time) {
            (Some(before), Some(now)) if (before - now).abs() > SAME_START => Since::Replaced,
            (Some(_), Some(_)) => Since::Same,
            _ if fell => Since::Emptied,
            _ => Since::Same,
        };
        *known = Known {
            start_time: load.start_time.or(known.start_time),
            prefix_queries: load.prefix_queries.or(known.prefix_queries),
        };
        since
    }

    /// Whether start times tell a restart.
    pub(super) fn tells_start(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).start_time.is_some()
    }

    /// Forgets the process.
    pub(super) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Known::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(start_time: Option<f64>, prefix_queries: Option<u64>) -> EngineLoad {
        EngineLoad { start_time, prefix_queries, ..EngineLoad::default() }
    }

    #[test]
    fn a_changed_start_time_is_a_restart_and_a_missing_one_is_not() {
        let process = Process::default();

        assert_eq!(process.compare(&word(Some(1_796_062_347.24), Some(10))), Since::Same, "the first word");
        assert_eq!(process.compare(&word(Some(1_796_062_347.24), Some(20))), Since::Same);
        assert_eq!(process.compare(&word(None, Some(30))), Since::Same);
        assert_eq!(process.compare(&word(Some(1_796_062_347.24), None)), Since::Same);
        assert_eq!(process.compare(&word(Some(1_796_062_399.5), Some(0))), Since::Replaced);
        assert_eq!(process.compare(&word(Some(1_796_062_399.5), Some(0))), Since::Same);
    }

    #[test]
    fn without_a_start_time_a_counter_that_fell_tells() {
        let process = Process::default();

        assert_eq!(process.compare(&word(None, Some(1000))), Since::Same);
        assert_eq!(process.compare(&word(None, Some(1000))), Since::Same);
        assert_eq!(process.compare(&word(None, Some(11))), Since::Emptied);
    }
}
