//! What the target says of itself: its metrics pages, before, during and after.
//!
//! Kept are the engines' and the gateway's counters and gauges that a load test moves. What the target has running and
//! waiting should be what the client has in flight: the difference is network and whatever stands between.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{client::Client, clock::Clock, measure::Rules};
use crate::{engine::Samples, fleet::BaseUrl};

/// Reads a second.
const EVERY: Duration = Duration::from_millis(500);

/// Gauges of requests: peak and mean are kept.
const GAUGES: &[&str] = &[
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:token_usage",
    "gateway_queue_depth",
];

/// Counters: the growth is kept.
const COUNTERS: &[&str] = &[
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:num_preemptions_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:time_to_first_token_seconds_sum",
    "vllm:time_to_first_token_seconds_count",
    "sglang:prompt_tokens_total",
    "sglang:generation_tokens_total",
    "sglang:cached_tokens_total",
    "gateway_requests_total",
    "gateway_prompt_tokens_total",
    "gateway_output_tokens_total",
    "gateway_cached_tokens_total",
    "gateway_rejected_total",
    "gateway_retries_total",
    "gateway_replica_picks_total",
];

/// Name on a page to its sum over labels.
type Page = BTreeMap<&'static str, f64>;

/// What one page showed over the run.
#[derive(Debug, Clone, Default)]
struct Watched {
    first: Page,
    last: Page,
    peaks: Page,
    sums: Page,
    reads: usize,
}

/// What all pages showed.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pages: Vec<(String, Watched)>,
}

/// Reads pages until told to stop.
#[derive(Debug)]
pub struct Scraper {
    stop: CancellationToken,
    tasks: TaskTracker,
    seen: Arc<std::sync::Mutex<Seen>>,
}

fn read(page: &[u8]) -> Page {
    let sum = |wanted: &'static [&'static str]| {
        let samples = Samples::parse(page, wanted);
        wanted.iter().filter_map(|name| Some((*name, samples.sum(name)?))).collect::<Vec<_>>()
    };
    sum(GAUGES).into_iter().chain(sum(COUNTERS)).collect()
}

impl Watched {
    fn take(&mut self, page: Page) {
        if self.reads == 0 {
            self.first.clone_from(&page);
        }
        for name in GAUGES {
            if let Some(value) = page.get(name) {
                let peak = self.peaks.entry(name).or_insert(*value);
                *peak = peak.max(*value);
                *self.sums.entry(name).or_default() += value;
            }
        }
        self.reads += 1;
        self.last = page;
    }

    fn grown(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        COUNTERS.iter().filter_map(|name| {
            let grown = self.last.get(name)? - self.first.get(name).copied().unwrap_or(0.0);
            // A counter that fell was that of a process that restarted.
            Some((*name, if grown < 0.0 { *self.last.get(name)? } else { grown }))
        })
    }
}

impl Scraper {
    /// Starts to read these pages, or the target's own if it has one.
    pub async fn start(client: &Arc<Client>, urls: Option<&[String]>) -> Option<Self> {
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let seen = Arc::new(std::sync::Mutex::new(Seen::default()));
        let pages: Vec<(String, Option<Arc<Client>>, String)> = match urls {
            None => vec![(client.base().root_url("/metrics"), Some(Arc::clone(client)), "/metrics".to_owned())],
            Some(urls) => urls.iter().map(|url| page_of(url)).collect(),
        };
        for (name, client, path) in pages {
            let first = match &client {
                Some(client) => client.get(&path, None).await.map(|page| read(&page)).unwrap_or_default(),
                None => Page::new(),
            };
            // The target's own page is a guess, a named one is not.
            if first.is_empty() {
                if urls.is_some() {
                    super::drive::complain(&format!("--scrape {name}: has no metrics of vLLM, SGLang or the gateway"));
                }
                continue;
            }
            let mut watched = Watched::default();
            watched.take(first);
            lock(&seen).pages.push((name, watched));
            let slot = lock(&seen).pages.len() - 1;
            if let Some(client) = client {
                tasks.spawn(watch(client, path, slot, Arc::clone(&seen), stop.clone()));
            }
        }
        tasks.close();
        let any = !lock(&seen).pages.is_empty();
        any.then_some(Self { stop, tasks, seen })
    }

    /// Stops; what was seen.
    pub async fn finish(self) -> Seen {
        self.stop.cancel();
        self.tasks.wait().await;
        lock(&self.seen).clone()
    }
}

fn lock(seen: &std::sync::Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A client and a path for a page's URL; no client if it is none.
fn page_of(url: &str) -> (String, Option<Arc<Client>>, String) {
    let base = url.parse::<BaseUrl>().ok();
    let path = base.as_ref().map_or_else(String::new, |base| base.path.clone());
    let path = if path.is_empty() { "/metrics".to_owned() } else { path };
    let client = base.and_then(|base| Client::new(base, Clock::start(), Rules::Own).ok());
    (url.to_owned(), client.map(Arc::new), path)
}

async fn watch(
    client: Arc<Client>,
    path: String,
    slot: usize,
    seen: Arc<std::sync::Mutex<Seen>>,
    stop: CancellationToken,
) {
    loop {
        let over = tokio::select! {
            () = stop.cancelled() => true,
            () = tokio::time::sleep(EVERY) => false,
        };
        // One more after the end, for the counters.
        if let Ok(Ok(page)) = tokio::time::timeout(Duration::from_secs(2), client.get(&path, None)).await
            && let Some((_, watched)) = lock(&seen).pages.get_mut(slot)
        {
            watched.take(read(&page));
        }
        if over {
            return;
        }
    }
}

impl Seen {
    /// A few lines for the terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (name, watched) in &self.pages {
            addln!(out, "\nserver   {}", name.chars().take(70).collect::<String>());
            for gauge in GAUGES {
                if let (Some(peak), Some(sum)) = (watched.peaks.get(gauge), watched.sums.get(gauge)) {
                    let mean = sum / watched.reads as f64;
                    addln!(out, "         {gauge:<38} mean {mean:>9.2} peak {peak:>9.2}");
                }
            }
            for (counter, grown) in watched.grown().filter(|(_, grown)| *grown > 0.0) {
                addln!(out, "         {counter:<38} +{grown:.3}");
            }
        }
        out
    }

    /// The same for scripts.
    #[must_use]
    pub fn json(&self) -> Value {
        let page = |(name, watched): &(String, Watched)| {
            let means: BTreeMap<&str, f64> =
                watched.sums.iter().map(|(name, sum)| (*name, sum / watched.reads as f64)).collect();
            let grown: BTreeMap<&str, f64> = watched.grown().collect();
            json!({ "url": name, "reads": watched.reads, "mean": means, "peak": watched.peaks, "growth": grown })
        };
        json!(self.pages.iter().map(page).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_grow_and_gauges_peak_summed_over_labels() {
        let page = |running: u32, tokens: u32| {
            format!(
                "vllm:num_requests_running{{engine=\"0\"}} {running}\nvllm:num_requests_running{{engine=\"1\"}} 1\nvllm:generation_tokens_total{{engine=\"0\"}} {tokens}\nother 7\n"
            )
        };
        let mut watched = Watched::default();
        for (running, tokens) in [(0, 100), (5, 150), (2, 180)] {
            watched.take(read(page(running, tokens).as_bytes()));
        }
        assert_eq!(watched.peaks["vllm:num_requests_running"], 6.0);
        assert_eq!(watched.grown().collect::<Vec<_>>(), [("vllm:generation_tokens_total", 80.0)]);
    }
}
