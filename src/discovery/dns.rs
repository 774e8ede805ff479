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
mod tests;
