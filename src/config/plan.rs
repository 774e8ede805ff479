//! What the gateway shall do: the checked configuration, defaults and flags merged in.
//!
//! A plan that came from [`load`](super::load) is valid: no zero limits, no unknown policy, no model without a source
//! of replicas. Secrets are `SecretString`s, which print as nothing; serializing a plan writes them as `***`.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use http::uri::Scheme;
use secrecy::SecretString;
use serde::Serialize;

use super::{
    hosted::FallbackPlan,
    period,
    sections::{AccessLog, Caps, Concurrency, HealthPlan, Limits, RoutingPlan, Slo, Timeouts},
    show,
};
use crate::{
    fleet::BaseUrl,
    prompt::PromptCounter,
    types::{EngineKind, Priority},
};

/// The whole configuration.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// The process itself.
    pub server: ServerPlan,
    /// Models by name. Empty when `open` is set.
    pub models: Vec<ModelPlan>,
    /// Replicas given by flags only: their models are whatever they serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<OpenPlan>,
    /// Who may ask; empty: anybody.
    pub keys: Vec<KeyPlan>,
    /// Groups of keys.
    pub groups: Vec<GroupPlan>,
    /// What is configured and has no effect in this version, and what is risky: one text each, for standard error.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

/// The process itself.
#[derive(Debug, Clone, Serialize)]
pub struct ServerPlan {
    /// Data port.
    pub listen: SocketAddr,
    /// Admin port.
    pub admin_listen: SocketAddr,
    /// What is held at most.
    pub limits: Limits,
    /// The longest waits.
    pub timeouts: Timeouts,
    /// Active probes.
    pub health: HealthPlan,
    /// Whether answers name the replica and the predicted cached tokens.
    pub expose_routing: bool,
    /// Threads that run requests; 0 is one per core.
    pub worker_threads: usize,
    /// Where the line of each request goes.
    pub access_log: AccessLog,
    /// Whether a data port that others reach may do without keys.
    pub insecure_no_auth: bool,
    /// Secret from which the cache salts of isolated groups are made; the same in gateways side by side.
    #[serde(serialize_with = "show::masked")]
    pub isolation_secret: Option<SecretString>,
    /// Where the spend on hosted models is kept over a restart; `None` is nowhere.
    pub spend_file: Option<PathBuf>,
}

/// One model.
#[derive(Debug, Clone, Serialize)]
pub struct ModelPlan {
    /// What clients send.
    pub name: Arc<str>,
    /// Other names that clients may send.
    pub aliases: Vec<String>,
    /// What replicas are told; `None` is the name.
    pub upstream_model: Option<String>,
    /// Engine of all its replicas; `None` is found by probing.
    #[serde(serialize_with = "show::engine")]
    pub engine: Option<EngineKind>,
    /// Sent to replicas.
    #[serde(serialize_with = "show::masked")]
    pub api_key: Option<SecretString>,
    /// Replicas by address.
    pub replicas: Vec<ReplicaPlan>,
    /// Replicas by lookup.
    pub discovery: Option<DiscoveryPlan>,
    /// How a replica is chosen.
    pub routing: RoutingPlan,
    /// How tokens are counted.
    pub tokenizer: Option<TokenizerPlan>,
    /// The tokenizer that `tokenizer` names, once it is read.
    #[serde(skip)]
    pub counter: Option<Arc<PromptCounter>>,
    /// Prompt plus output tokens that the model takes; `None` is what its replicas say.
    pub context: Option<u64>,
    /// Tokens of one request.
    pub caps: Caps,
    /// Objectives.
    pub slo: Slo,
    /// How many requests run and wait.
    pub concurrency: Concurrency,
    /// Where requests go when the pool cannot take them, in this order.
    pub fallback: Vec<FallbackPlan>,
    /// How long a conversation that was sent there for want of room stays there; zero is not at all.
    #[serde(with = "period")]
    pub fallback_sticky: Duration,
    /// What clients read when nobody can answer, as a complete answer; `None` is the error.
    pub degraded_response: Option<String>,
}

/// Replicas without a model section.
#[derive(Debug, Clone, Serialize)]
pub struct OpenPlan {
    /// The replicas.
    pub replicas: Vec<ReplicaPlan>,
    /// Engine; `None` is found by probing.
    #[serde(serialize_with = "show::engine")]
    pub engine: Option<EngineKind>,
    /// How a replica is chosen.
    pub routing: RoutingPlan,
    /// Tokens of one request.
    pub caps: Caps,
    /// Objectives.
    pub slo: Slo,
    /// How many requests run and wait.
    pub concurrency: Concurrency,
}

/// One replica.
#[derive(Debug, Clone, Serialize)]
pub struct ReplicaPlan {
    /// Where it is.
    #[serde(serialize_with = "show::text")]
    pub url: BaseUrl,
}

/// Where replicas are looked up.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DiscoveryPlan {
    /// A and AAAA records of a name.
    Dns {
        /// The name.
        host: String,
        /// Port of every replica.
        port: u16,
        /// Between two resolutions.
        #[serde(with = "period")]
        interval: Duration,
        /// `http` or `https`.
        #[serde(serialize_with = "show::text")]
        scheme: Scheme,
        /// Base path of every replica, as in [`BaseUrl::path`]; usually empty.
        path: String,
    },
}

/// How tokens are counted.
#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum TokenizerPlan {
    /// The engine is asked.
    Engine,
    /// Learned bytes per token.
    Estimate,
    /// A Hugging Face tokenizer, and a chat template if it has none inside.
    #[serde(untagged)]
    File {
        /// `tokenizer.json`.
        path: PathBuf,
        /// Jinja file.
        chat_template: Option<PathBuf>,
    },
}

/// One client key.
#[derive(Debug, Clone, Serialize)]
pub struct KeyPlan {
    /// Name in logs and metrics.
    pub id: Arc<str>,
    /// SHA-256 of the key.
    #[serde(serialize_with = "show::hash")]
    pub sha256: [u8; 32],
    /// Models it may use, by name; `None` is all.
    pub models: Option<Vec<String>>,
    /// Its own token caps.
    pub caps: Option<Caps>,
    /// Its rates.
    pub rate: Option<Rate>,
    /// Tenant that it belongs to; keys of one group share their turns in the queue.
    pub group: Option<String>,
    /// Whether the group's prompts are kept apart from all others in the replicas' caches.
    pub isolate: bool,
    /// Its class in the queue.
    pub priority: Priority,
    /// Whether its requests may go to a hosted model.
    pub fallback: bool,
}

impl KeyPlan {
    /// A key that may do everything.
    #[must_use]
    pub fn new(id: &str, sha256: [u8; 32]) -> Self {
        Self {
            id: id.into(),
            sha256,
            models: None,
            caps: None,
            rate: None,
            group: None,
            isolate: false,
            priority: Priority::default(),
            fallback: true,
        }
    }
}

/// `groups[]`: what holds for all keys of a group.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct GroupPlan {
    /// Name that keys refer to.
    pub name: String,
    /// Keeps its prompts apart from all others in the replicas' caches, and hides where and how they are cached.
    #[serde(default)]
    pub isolate: bool,
}

/// `keys[].rate`: what one key may use in a minute. `null` is no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rate {
    /// Requests per minute.
    pub requests_per_minute: Option<u64>,
    /// Prompt tokens per minute.
    pub prompt_tokens_per_minute: Option<u64>,
    /// Output tokens per minute.
    pub output_tokens_per_minute: Option<u64>,
    /// Streams at a time.
    pub concurrent: Option<u32>,
}

/// What the command line says; every set field wins over the file.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// `--config`
    pub config: Option<PathBuf>,
    /// `--replica`, as often as given.
    pub replicas: Vec<String>,
    /// `--listen`
    pub listen: Option<SocketAddr>,
    /// `--admin-listen`
    pub admin_listen: Option<SocketAddr>,
    /// `--policy`, for every model.
    pub policy: Option<String>,
    /// `--insecure-no-auth`
    pub insecure_no_auth: bool,
}
