//! What the client's own machine did to it: CPU pressure, run-queue wait, stolen time, and late wake-ups.
//!
//! Linux only; elsewhere the figures are missing and the verdict rests on the lags alone.
//! Source: reference/loadtest.md F.6 and D.3; proc(5), Documentation/accounting/psi.rst.

use serde::Serialize;

use super::clock::{Clock, Nanos, seconds};

/// Counters at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reading {
    at: Nanos,
    pressure_us: Option<f64>,
    run_ns: Option<f64>,
    wait_ns: Option<f64>,
    steal: Option<f64>,
    ticks: Option<f64>,
}

/// Shares of the time between two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Host {
    /// Some task on the machine waited for a CPU.
    pub cpu_pressure: Option<f64>,
    /// CPUs that this process used.
    pub cpu_used: Option<f64>,
    /// Threads of this process were ready and not running, summed over them.
    pub run_queue_wait: Option<f64>,
    /// Time that the hypervisor gave to others.
    pub steal: Option<f64>,
}

fn file(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Total of `/proc/pressure/cpu`, first line: `some avg10=.. avg60=.. avg300=.. total=N`, in microseconds.
fn pressure(text: &str) -> Option<f64> {
    text.lines().find(|line| line.starts_with("some"))?.rsplit_once("total=")?.1.trim().parse().ok()
}

/// Time on a CPU and time waiting for one, in ns, of one `schedstat`.
fn schedstat(text: &str) -> Option<(f64, f64)> {
    let mut words = text.split_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// Stolen ticks and all ticks of the first line of `/proc/stat`.
fn stolen(text: &str) -> Option<(f64, f64)> {
    let ticks: Vec<f64> =
        text.lines().next()?.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
    Some((*ticks.get(7)?, ticks.iter().sum()))
}

impl Reading {
    /// Reads the counters.
    #[must_use]
    pub fn now(clock: Clock) -> Self {
        let threads = std::fs::read_dir("/proc/self/task").ok().map(|all| {
            let each = all
                .filter_map(Result::ok)
                .filter_map(|one| file(one.path().join("schedstat").to_str()?).as_deref().and_then(schedstat));
            each.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        });
        let stolen = file("/proc/stat").as_deref().and_then(stolen);
        Self {
            at: clock.now(),
            pressure_us: file("/proc/pressure/cpu").as_deref().and_then(pressure),
            run_ns: threads.map(|both| both.0),
            wait_ns: threads.map(|both| both.1),
            steal: stolen.map(|both| both.0),
            ticks: stolen.map(|both| both.1),
        }
    }

    /// What happened since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Host {
        let span = seconds(self.at.saturating_sub(before.at)).max(1e-9);
        let share = |now: Option<f64>, then: Option<f64>, unit: f64| Some((now? - then?).max(0.0) / unit / span);
        let ticks = self.ticks.zip(before.ticks).map(|(now, then)| now - then).filter(|ticks| *ticks > 0.0);
        Host {
            cpu_pressure: share(self.pressure_us, before.pressure_us, 1e6).map(|share| share.min(1.0)),
            cpu_used: share(self.run_ns, before.run_ns, 1e9),
            run_queue_wait: share(self.wait_ns, before.wait_ns, 1e9),
            steal: self.steal.zip(before.steal).zip(ticks).map(|((now, then), ticks)| (now - then) / ticks),
        }
    }
}

/// Facts that a reader of a report wants to know.
#[derive(Debug, Clone, Serialize)]
pub struct Facts {
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Model of the CPU.
    pub cpu_model: String,
    /// Kernel release.
    pub kernel: String,
    /// Memory in GiB.
    pub memory_gib: f64,
    /// Load average of the last minute, at the end of the run.
    pub load1: Option<f64>,
}

impl Facts {
    /// Reads them.
    #[must_use]
    pub fn read() -> Self {
        let after = |text: &str, key: &str| {
            let line = text.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = file("/proc/meminfo").and_then(|text| after(&text, "MemTotal"));
        let kib: f64 = memory.and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap_or(0.0);
        Self {
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            cpu_model: file("/proc/cpuinfo").and_then(|text| after(&text, "model name")).unwrap_or_default(),
            kernel: file("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            memory_gib: (kib / 1_048_576.0 * 10.0).round() / 10.0,
            load1: file("/proc/loadavg").and_then(|text| text.split_whitespace().next()?.parse().ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_of_proc_are_read() {
        assert_eq!(pressure("some avg10=95.41 avg60=1.00 avg300=0.10 total=9410\nfull avg10=0 total=3"), Some(9410.0));
        assert_eq!(schedstat("123 456 7\n"), Some((123.0, 456.0)));
        assert_eq!(stolen("cpu  10 0 20 60 0 0 0 10 5 0\ncpu0 1"), Some((10.0, 100.0)));
    }

    #[test]
    fn shares_are_of_the_time_between_two_readings() {
        let before = Reading { at: 0, pressure_us: Some(0.0), wait_ns: Some(1e9), ..Reading::default() };
        let after = Reading { at: 2_000_000_000, pressure_us: Some(1e6), wait_ns: Some(2e9), ..Reading::default() };
        let host = after.since(&before);
        assert_eq!((host.cpu_pressure, host.run_queue_wait, host.steal), (Some(0.5), Some(0.5), None));
    }
}
