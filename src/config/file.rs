//! The configuration file as it is written: one struct per section, nothing checked yet but types and key names.
//!
//! `models` and `keys` may be left out; a section that is there may leave out any key with a default. Leaf sections
//! are in `sections.rs`. Source: the configuration part of the design's interface.

use std::{fmt, path::PathBuf, time::Duration};

use secrecy::SecretString;
use serde::{Deserialize, Deserializer, de};

use super::{
    defaults,
    hosted::{self, FallbackSection},
    period,
    plan::{GroupPlan, Rate},
    sections::{AccessLog, Caps, Concurrency, HealthPlan, Limits, RoutingPlan, Slo, Timeouts},
};
use crate::types::{EngineKind, Priority};

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct FileConfig {
    /// The process itself.
    pub server: ServerSection,
    /// What clients may ask for.
    pub models: Vec<ModelSection>,
    /// Who may ask; empty: anybody, on loopback only.
    pub keys: Vec<KeySection>,
    /// Groups of keys; one that no entry names has no properties.
    pub groups: Vec<GroupPlan>,
}

/// `server`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ServerSection {
    /// Data port, `ip:port`. Beyond loopback it needs keys.
    pub listen: Option<String>,
    /// Admin port, `ip:port`; never the data port.
    pub admin_listen: Option<String>,
    /// What is held at most.
    pub limits: Limits,
    /// The longest waits.
    pub timeouts: Timeouts,
    /// Active probes.
    pub health: HealthPlan,
    /// Adds the headers that name the replica and the predicted cached tokens to every answer.
    pub expose_routing: bool,
    /// Threads that run requests; 0 is one per core.
    pub worker_threads: usize,
    /// Where the line of each request goes.
    pub access_log: AccessLog,
    /// Lets a data port beyond loopback do without keys.
    pub insecure_no_auth: bool,
    /// Secret for the cache salts of isolated groups.
    pub isolation_secret: Option<SecretString>,
    /// Where the spend on hosted models is kept over a restart.
    pub spend_file: Option<PathBuf>,
}

/// `models[]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelSection {
    /// What clients send in `model`.
    pub name: String,
    /// Other names that clients may send.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// What replicas are told; null is the name.
    #[serde(default)]
    pub upstream_model: Option<String>,
    /// Engine of its replicas.
    #[serde(default)]
    pub engine: EngineWord,
    /// Bearer token sent to replicas; empty is none.
    #[serde(default)]
    pub api_key: Option<SecretString>,
    /// Replicas by address.
    #[serde(default)]
    pub replicas: Vec<ReplicaSection>,
    /// Replicas by lookup.
    #[serde(default)]
    pub discovery: Option<DiscoverySection>,
    /// How a replica is chosen.
    #[serde(default)]
    pub routing: RoutingPlan,
    /// How tokens are counted.
    #[serde(default)]
    pub tokenizer: Option<TokenizerSection>,
    /// Prompt plus output tokens that the model takes; null is what its replicas say.
    #[serde(default)]
    pub context: Option<u64>,
    /// Tokens of one request.
    #[serde(default)]
    pub caps: Caps,
    /// Objectives.
    #[serde(default)]
    pub slo: Slo,
    /// How many requests run and wait.
    #[serde(default)]
    pub concurrency: Concurrency,
    /// Hosted models, in the order in which they are tried.
    #[serde(default)]
    pub fallback: Vec<FallbackSection>,
    /// How long a conversation that was sent there for want of room stays there; 0s is not at all.
    #[serde(default = "hosted::sticky", with = "period")]
    pub fallback_sticky: Duration,
    /// What clients read when nobody can answer; null is the error.
    #[serde(default)]
    pub degraded_response: Option<String>,
}

/// `engine`
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum EngineWord {
    /// Found by probing.
    #[default]
    Auto,
    Vllm,
    Sglang,
    Tgi,
    Openai,
}

impl EngineWord {
    pub(super) const fn kind(self) -> Option<EngineKind> {
        match self {
            Self::Auto => None,
            Self::Vllm => Some(EngineKind::Vllm),
            Self::Sglang => Some(EngineKind::Sglang),
            Self::Tgi => Some(EngineKind::Tgi),
            Self::Openai => Some(EngineKind::Openai),
        }
    }
}

/// `models[].replicas[]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplicaSection {
    /// Base URL; may carry a path; a trailing `/v1` is ignored.
    pub url: String,
}

/// `models[].discovery`: exactly one of the two.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DiscoverySection {
    /// Addresses of a DNS name.
    #[serde(default)]
    pub dns: Option<DnsSection>,
    /// Endpoints of a Kubernetes service.
    #[serde(default)]
    pub kubernetes: Option<KubernetesSection>,
}

/// `models[].discovery.dns`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DnsSection {
    /// Name whose A and AAAA records are the replicas.
    pub host: String,
    /// Port of every replica.
    #[serde(default = "dns_port")]
    pub port: u16,
    /// Between two resolutions.
    #[serde(default = "dns_interval", with = "period")]
    pub interval: Duration,
    /// `http` or `https`.
    #[serde(default)]
    pub scheme: Scheme,
    /// Base path of every replica.
    #[serde(default)]
    pub path: String,
}

/// `models[].discovery.dns.scheme`
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Scheme {
    #[default]
    Http,
    Https,
}

impl Scheme {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

const fn dns_port() -> u16 {
    defaults::DNS_PORT
}

const fn dns_interval() -> Duration {
    defaults::DNS_INTERVAL
}

/// `models[].discovery.kubernetes`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read, so that its keys are checked, and refused as a whole until it is implemented")]
pub(super) struct KubernetesSection {
    /// Namespace of the service.
    pub namespace: String,
    /// Service whose ready endpoints are the replicas.
    pub service: String,
    /// Port of every replica.
    #[serde(default = "dns_port")]
    pub port: u16,
}

/// `models[].tokenizer`: `engine`, `estimate`, or a file.
#[derive(Debug)]
pub(super) enum TokenizerSection {
    Engine,
    Estimate,
    File(TokenizerFile),
}

/// `models[].tokenizer` as a map
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenizerFile {
    /// `tokenizer.json` of the model.
    pub path: PathBuf,
    /// Chat template; null takes the one beside the tokenizer.
    #[serde(default)]
    pub chat_template: Option<PathBuf>,
}

impl<'de> Deserialize<'de> for TokenizerSection {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TokenizerVisitor)
    }
}

/// By hand, because an untagged enum would swallow the line and the key of an error.
struct TokenizerVisitor;

impl<'de> de::Visitor<'de> for TokenizerVisitor {
    type Value = TokenizerSection;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`engine`, `estimate` or { path: tokenizer.json }")
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<TokenizerSection, E> {
        match value {
            "engine" => Ok(TokenizerSection::Engine),
            "estimate" => Ok(TokenizerSection::Estimate),
            other => Err(E::unknown_variant(other, &["engine", "estimate"])),
        }
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<TokenizerSection, A::Error> {
        TokenizerFile::deserialize(de::value::MapAccessDeserializer::new(map)).map(TokenizerSection::File)
    }
}

/// `keys[]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeySection {
    /// Name in logs and metrics.
    pub id: String,
    /// SHA-256 of the key, 64 hex digits.
    pub sha256: String,
    /// Models it may use; null is all.
    #[serde(default)]
    pub models: Option<Vec<String>>,
    /// Its own token caps.
    #[serde(default)]
    pub caps: Option<Caps>,
    /// Its rates.
    #[serde(default)]
    pub rate: Option<Rate>,
    /// Tenant that it belongs to.
    #[serde(default)]
    pub group: Option<String>,
    /// Its class in the queue.
    #[serde(default)]
    pub priority: Priority,
    /// Whether its requests may go to a hosted model.
    #[serde(default = "yes")]
    pub fallback: bool,
}

const fn yes() -> bool {
    true
}
