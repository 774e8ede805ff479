//! Says when the next request is due, from a thread of its own.
//!
//! The runtime's timers have a grain of 1 ms and wait behind whatever task runs; a parked thread wakes within about 60
//! microseconds. Times are absolute, so one late wake-up delays nothing after it.

use std::{sync::Arc, time::Duration};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::clock::{Clock, Nanos};

/// Longest sleep before the stop flag is looked at.
const NAP: Duration = Duration::from_millis(20);

/// Starts the thread; the receiver gets each index at its time, and ends after the last or when stopped.
///
/// # Errors
/// When no thread can be started.
pub fn start(clock: Clock, times: Arc<[Nanos]>, stop: CancellationToken) -> std::io::Result<mpsc::Receiver<usize>> {
    let (sender, receiver) = mpsc::channel(times.len().max(1));
    std::thread::Builder::new().name("loadtest-pacer".into()).spawn(move || {
        for (index, due) in times.iter().enumerate() {
            loop {
                let left = due.saturating_sub(clock.now());
                if left == 0 {
                    break;
                }
                if stop.is_cancelled() {
                    return;
                }
                std::thread::park_timeout(Duration::from_nanos(left).min(NAP));
            }
            if stop.is_cancelled() || sender.blocking_send(index).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}
