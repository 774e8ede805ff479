//! Replicas behind a DNS name: every address of a headless service is one replica.
//!
//! The last good answer is kept while the name does not resolve: a DNS outage must not end service to replicas that are
//! well. Of a dual-stack name only the A records are used (AAAA where there are none), or each pod would be two replicas.
//! Source: reliability.md section 2, DNS row, and fault F12.

use std::{collections::BTreeSet, fmt, net::IpAddr, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use hickory_resolver::{TokioResolver, config::LookupIpStrategy};
use http::uri::Scheme;
use tokio::time::{Instant, sleep_until};

use super::{Discovery, agreed::Agreed};
use crate::fleet::BaseUrl;

/// A TTL below this does not make for more questions.
const TTL_FLOOR: Duration = Duration::from_secs(5);
/// Pause between questions while no answer was ever good.
const UNKNOWN_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for one answer.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// A good answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    /// The addresses; may be empty.
    pub addresses: Vec<IpAddr>,
    /// How long the answer holds.
    pub ttl: Duration,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DnsError(pub String);

/// Something that resolves names.
pub trait Resolve: Send + Sync {
    /// The addresses of a host.
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Result<Addresses, DnsError>>;
}

/// The system's name servers, asked through hickory.
pub struct Hickory(TokioResolver);

impl fmt::Debug for Hickory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hickory")
    }
}

impl Hickory {
    /// Reads the system's configuration (`/etc/resolv.conf`, `/etc/hosts`).
    ///
    /// # Errors
    /// When that cannot be read.
    pub fn from_system() -> Result<Self, DnsError> {
        let mut builder = TokioResolver::builder_tokio().map_err(|e| DnsError(e.to_string()))?;
        let options = builder.options_mut();
        options.ip_strategy = LookupIpStrategy::Ipv4thenIpv6;
        // Two answers must agree before an address is removed: they have to be two answers.
        options.cache_size = 0;
        builder.build().map(Self).map_err(|e| DnsError(e.to_string()))
    }
}

impl Resolve for Hickory {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Result<Addresses, DnsError>> {
        async move {
            let lookup = self.0.lookup_ip(host).await.map_err(|e| DnsError(e.to_string()))?;
            let ttl = lookup.as_lookup().answers().iter().map(|record| record.ttl).min().unwrap_or(0);
            Ok(Addresses { addresses: lookup.iter().collect(), ttl: Duration::from_secs(ttl.into()) })
        }
        .boxed()
    }
}

/// What is asked and what the replicas' URLs are made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsSettings {
    /// Name to resolve.
    pub host: String,
    /// Port of every replica.
    pub port: u16,
    /// Longest time between two questions.
    pub interval: Duration,
    /// Scheme of every replica.
    pub scheme: Scheme,
    /// Base path of every replica, `""` or `/openai` and the like.
    pub path: String,
}

/// Replicas behind a DNS name.
#[derive(Debug)]
pub struct Dns<R> {
    resolver: R,
    settings: DnsSettings,
    agreed: Agreed,
    /// When to ask next; `None`: at once.
    due: Option<Instant>,
    /// The last question failed, and that was told.
    failing: bool,
}

impl<R: Resolve> Dns<R> {
    /// Asks nothing yet.
    #[must_use]
    pub fn new(resolver: R, settings: DnsSettings) -> Self {
        Self { resolver, settings, agreed: Agreed::default(), due: None, failing: false }
    }

    /// Asks until the set changes.
    async fn changed(&mut self) -> Vec<BaseUrl> {
        loop {
            if let Some(due) = self.due {
                sleep_until(due).await;
            }
            let answer = tokio::time::timeout(LOOKUP_TIMEOUT, self.resolver.resolve(&self.settings.host)).await;
            let answer = answer.unwrap_or_else(|_| Err(DnsError("no answer in time".into())));
            let (changed, pause) = self.take(answer);
            self.due = Some(Instant::now() + pause);
            if changed {
                return self.urls();
            }
        }
    }

    /// Takes one answer: whether the set changed, and the pause before the next question.
    fn take(&mut self, answer: Result<Addresses, DnsError>) -> (bool, Duration) {
        let interval = self.settings.interval;
        let trouble = match &answer {
            Ok(answer) if answer.addresses.is_empty() => Some("the answer has no address".to_owned()),
            Ok(_) => None,
            Err(error) => Some(error.to_string()),
        };
        let host = self.settings.host.as_str();
        match (&trouble, self.failing) {
            (Some(error), false) => tracing::warn!(host, error, "dns lookup failed, keeping the last good answer"),
            (None, true) => tracing::info!(host, "dns lookup works again"),
            _ => {}
        }
        self.failing = trouble.is_some();
        let known = self.agreed.addresses().next().is_some();
        match answer {
            Ok(answer) if !self.failing => {
                let changed = self.agreed.update(&answer.addresses.into_iter().collect::<BTreeSet<_>>());
                (changed, interval.min(answer.ttl.max(TTL_FLOOR)))
            }
            _ if known => (false, interval),
            _ => (false, interval.min(UNKNOWN_PAUSE)),
        }
    }

    /// The set as replica URLs.
    fn urls(&self) -> Vec<BaseUrl> {
        let DnsSettings { scheme, port, path, .. } = &self.settings;
        let url = |address: IpAddr| {
            let host = match address {
                IpAddr::V4(v4) => v4.to_string(),
                IpAddr::V6(v6) => format!("[{v6}]"),
            };
            let text = format!("{scheme}://{host}:{port}{path}");
            text.parse().inspect_err(|error| tracing::warn!(%error, "dns answer makes no replica url")).ok()
        };
        self.agreed.addresses().filter_map(url).collect()
    }
}

impl<R: Resolve> Discovery for Dns<R> {
    fn next(&mut self) -> BoxFuture<'_, Vec<BaseUrl>> {
        self.changed().boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Plays its answers in order, then says nothing for ever.
    struct Scripted(Mutex<Vec<Result<Addresses, DnsError>>>);

    impl Resolve for Scripted {
        fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Result<Addresses, DnsError>> {
            assert_eq!(host, "engines.svc");
            match self.0.lock().unwrap().pop() {
                Some(answer) => std::future::ready(answer).boxed(),
                None => std::future::pending().boxed(),
            }
        }
    }

    fn dns(answers: Vec<Result<Addresses, DnsError>>) -> Dns<Scripted> {
        let settings = DnsSettings {
            host: "engines.svc".into(),
            port: 8000,
            interval: Duration::from_millis(1),
            scheme: Scheme::HTTP,
            path: "/openai/v1".into(),
        };
        Dns::new(Scripted(Mutex::new(answers.into_iter().rev().collect())), settings)
    }

    fn ok(last: &[u8]) -> Result<Addresses, DnsError> {
        let addresses = last.iter().map(|&n| IpAddr::from([10, 0, 0, n])).collect();
        Ok(Addresses { addresses, ttl: Duration::from_secs(30) })
    }

    fn servfail() -> Result<Addresses, DnsError> {
        Err(DnsError("SERVFAIL".into()))
    }

    async fn next(dns: &mut Dns<Scripted>) -> Option<Vec<String>> {
        let next = tokio::time::timeout(Duration::from_millis(200), dns.next()).await.ok()?;
        Some(next.iter().map(ToString::to_string).collect())
    }

    #[tokio::test]
    async fn each_address_is_a_replica_with_the_port_and_path_of_the_settings() {
        let mut dns = dns(vec![Ok(Addresses {
            addresses: vec!["10.0.0.2".parse().unwrap(), "fd00::1".parse().unwrap(), "10.0.0.2".parse().unwrap()],
            ttl: Duration::ZERO,
        })]);

        let replicas = next(&mut dns).await.unwrap();

        assert_eq!(replicas, ["http://10.0.0.2:8000/openai", "http://[fd00::1]:8000/openai"]);
    }

    #[tokio::test]
    async fn the_last_good_answer_is_kept_over_errors_and_empty_answers() {
        let mut dns = dns(vec![ok(&[1, 2]), servfail(), ok(&[]), servfail(), ok(&[1, 2]), ok(&[1, 2, 3])]);
        assert_eq!(next(&mut dns).await.unwrap().len(), 2);

        let replicas = next(&mut dns).await.unwrap();

        assert_eq!(replicas.len(), 3, "the next news is the new address, not a loss");
    }

    #[tokio::test]
    async fn an_address_is_removed_after_two_answers_agree() {
        let mut dns = dns(vec![ok(&[1, 2]), ok(&[1]), servfail(), ok(&[1])]);
        next(&mut dns).await.unwrap();

        assert_eq!(next(&mut dns).await.unwrap(), ["http://10.0.0.1:8000/openai"]);
    }

    #[tokio::test]
    async fn a_flapping_set_is_no_news() {
        let mut dns = dns(vec![ok(&[1, 2]), ok(&[1]), ok(&[2]), ok(&[1]), ok(&[2, 1])]);
        next(&mut dns).await.unwrap();

        assert_eq!(next(&mut dns).await, None);
    }

    #[tokio::test]
    async fn a_name_that_does_not_resolve_at_first_is_asked_again() {
        let mut dns = dns(vec![servfail(), ok(&[]), ok(&[7])]);

        assert_eq!(next(&mut dns).await.unwrap(), ["http://10.0.0.7:8000/openai"]);
    }

    #[test]
    fn the_pause_follows_the_ttl_above_its_floor_and_below_the_interval() {
        let mut dns = dns(Vec::new());
        dns.settings.interval = Duration::from_secs(10);
        let pause = |dns: &mut Dns<Scripted>, ttl| {
            dns.take(Ok(Addresses { addresses: vec![IpAddr::from([10, 0, 0, 1])], ttl: Duration::from_secs(ttl) })).1
        };

        assert_eq!(dns.take(servfail()).1, UNKNOWN_PAUSE);
        assert_eq!(pause(&mut dns, 0), TTL_FLOOR);
        assert_eq!(pause(&mut dns, 7), Duration::from_secs(7));
        assert_eq!(pause(&mut dns, 3600), Duration::from_secs(10));
        assert_eq!(dns.take(servfail()).1, Duration::from_secs(10));
    }

    #[tokio::test]
    async fn the_systems_resolver_reads_the_hosts_file() {
        let Ok(resolver) = Hickory::from_system() else { return };

        let answer = resolver.resolve("localhost").await.unwrap();

        assert!(answer.addresses.iter().all(IpAddr::is_loopback) && !answer.addresses.is_empty(), "{answer:?}");
    }
}
