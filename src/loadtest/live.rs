//! What is known while a run goes on, and the one line that shows it.

use std::{
    collections::VecDeque,
    io::{IsTerminal, Write},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    clock::{Nanos, nanos, seconds},
    measure::{Figures, Rules},
    record::{Outcome, Record},
};

/// Requests whose TTFT the line shows.
const RECENT: usize = 512;
/// Age of the oldest of them, in seconds.
const WINDOW: f64 = 5.0;

/// Counters of a run under way.
#[derive(Debug, Default)]
pub struct Live {
    sent: AtomicU64,
    done: AtomicU64,
    errors: AtomicU64,
    tokens: AtomicU64,
    prompt_tokens: AtomicU64,
    recent: Mutex<VecDeque<(Nanos, f64, f64)>>,
}

impl Live {
    /// A request is about to be sent.
    pub fn sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// A request is over.
    pub fn done(&self, record: &Record) {
        self.done.fetch_add(1, Ordering::Relaxed);
        self.tokens.fetch_add(record.output_tokens(), Ordering::Relaxed);
        self.prompt_tokens.fetch_add(record.input_tokens(), Ordering::Relaxed);
        if record.outcome != Outcome::Ok && record.outcome.counts() {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(ttft) = Figures::of(record, Rules::Own).ttft_sched {
            let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            recent.push_back((record.ended, ttft, record.send_lag().unwrap_or(0.0)));
            if recent.len() > RECENT {
                recent.pop_front();
            }
        }
    }

    /// Prompt and answer tokens so far.
    #[must_use]
    pub fn tokens(&self) -> (u64, u64) {
        (self.prompt_tokens.load(Ordering::Relaxed), self.tokens.load(Ordering::Relaxed))
    }

    /// Requests under way.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.sent.load(Ordering::Relaxed).saturating_sub(self.done.load(Ordering::Relaxed))
    }

    /// The line, at most 79 columns.
    #[must_use]
    pub fn line(&self, now: Nanos, planned: Option<f64>, total: usize) -> String {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let elapsed = seconds(now).max(1e-3);
        let rate = count(&self.sent) as f64 / elapsed;
        let (mut ttft, mut lag): (Vec<f64>, f64) = (Vec::new(), 0.0);
        for (at, value, late) in self.recent.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            if now.saturating_sub(*at) < nanos(WINDOW) {
                ttft.push(*value);
                lag = lag.max(*late);
            }
        }
        ttft.sort_by(f64::total_cmp);
        let at = |p: usize| ttft.get((ttft.len() * p / 100).min(ttft.len().saturating_sub(1))).copied();
        let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"));
        let planned = planned.map_or_else(String::new, |rate| format!("/{rate:.1}"));
        let done = count(&self.done);
        let eta = if done > 0 && total > 0 {
            format!("{:.0}s", elapsed / done as f64 * (total as u64).saturating_sub(done) as f64)
        } else {
            "-".to_owned()
        };
        let line = format!(
            "{elapsed:.0}s {done}/{total} {rate:.1}{planned}/s fly {} ttft {}/{} ms err {} lag {lag:.1} eta {eta}",
            self.in_flight(),
            shown(at(50)),
            shown(at(99)),
            count(&self.errors),
        );
        line.chars().take(79).collect()
    }
}

/// Shows a line over the one before, if somebody watches.
pub fn show(line: &str) {
    let mut err = std::io::stderr().lock();
    if err.is_terminal() {
        // A terminal that is gone needs no progress.
        write!(err, "\r\x1b[K{line}").and_then(|()| err.flush()).unwrap_or_default();
    }
}
