//! How many replicas: Erlang C over slots, with some of them lost.

use super::Problem;

/// What a fleet must hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FleetInput {
    /// Requests a second.
    pub rate: f64,
    /// Requests that one replica runs at once within the objectives.
    pub slots: u64,
    /// Seconds that one of them takes at that batch.
    pub service_s: f64,
    /// Seconds to a first token without waiting.
    pub prefill_s: f64,
    /// Objective for the time to a first token.
    pub ttft_s: Option<f64>,
    /// Replicas that may be lost.
    pub spare: u64,
}

/// The answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fleet {
    /// Replicas, spares included.
    pub replicas: u64,
    /// Share of slots in use with all of them.
    pub utilisation: f64,
    /// The same with the spares lost.
    pub utilisation_after_loss: f64,
    /// Share of requests that wait after the loss.
    pub waiting: f64,
    /// Mean wait after the loss, seconds.
    pub mean_wait_s: f64,
    /// Share of requests after the loss whose wait breaks the rule.
    pub late: f64,
}

/// Share of requests that may break the objective after the loss.
pub const LATE: f64 = 0.05;
/// Largest fleet that is searched.
const MOST: u64 = 100_000;

/// Probability that a request waits, for `servers` slots under `load` erlang.
#[must_use]
pub fn erlang_c(servers: u64, load: f64) -> f64 {
    let n = servers as f64;
    if load >= n {
        return 1.0;
    }
    // Inverse of Erlang B, by its recursion: stable for any size.
    let mut inverse = 1.0;
    for k in 1..=servers {
        inverse = 1.0 + inverse * k as f64 / load;
        if !inverse.is_finite() {
            return 0.0;
        }
    }
    let blocked = 1.0 / inverse;
    blocked / (1.0 - load / n * (1.0 - blocked))
}

/// The least number of replicas that holds the rate with the spares lost.
///
/// # Errors
///
/// No number does.
pub fn plan_fleet(input: &FleetInput) -> Result<Fleet, Problem> {
    let remedy = "relax the objectives, or use a faster GPU or a larger TP";
    if input.slots == 0 || !input.service_s.is_finite() {
        return Err(Problem::new("replicas", "one replica holds no request within the objectives", remedy));
    }
    if let Some(ttft) = input.ttft_s.filter(|ttft| *ttft <= input.prefill_s) {
        let problem = format!("{:.0} ms is less than a prefill of {:.0} ms", ttft * 1e3, input.prefill_s * 1e3);
        return Err(Problem::new("--slo-ttft-ms", problem, remedy));
    }
    let load = input.rate * input.service_s;
    let least = super::whole((load / input.slots as f64).floor()).max(1);
    for kept in least..least.saturating_mul(4).saturating_add(64).min(MOST) {
        let servers = kept * input.slots;
        let spare_rate = servers as f64 / input.service_s - input.rate;
        if spare_rate <= 0.0 {
            continue;
        }
        let waiting = erlang_c(servers, load);
        // Without an objective, the wait must stay below a tenth of the service.
        let allowed = input.ttft_s.map_or(input.service_s / 10.0, |ttft| ttft - input.prefill_s);
        let late = waiting * (-spare_rate * allowed).exp();
        if late <= LATE {
            let all = (kept + input.spare) * input.slots;
            return Ok(Fleet {
                replicas: kept + input.spare,
                utilisation: load / all as f64,
                utilisation_after_loss: load / servers as f64,
                waiting,
                mean_wait_s: waiting / spare_rate,
                late,
            });
        }
    }
    Err(Problem::new("--rate", format!("{} needs more than {MOST} replicas", input.rate), remedy))
}
