//! `models[].fallback[]`: hosted models, as written and as checked.

use std::{path::PathBuf, time::Duration};

use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use super::{defaults, show};
use crate::{fleet::BaseUrl, types::Endpoint};

/// When a fallback is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FallbackOn {
    /// Every usable replica is full.
    Saturated,
    /// No replica is usable, or the one that was asked failed before it answered.
    Down,
}

/// Whose root certificates are trusted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Roots {
    /// Mozilla's, compiled in.
    #[default]
    Webpki,
    /// The system's.
    Native,
}

/// A kind of content in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Images.
    Image,
    /// Audio.
    Audio,
    /// Video.
    Video,
    /// Documents.
    File,
}

/// A generating endpoint that a target has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HostedEndpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`
    Messages,
}

impl HostedEndpoint {
    /// As the request path names it.
    #[must_use]
    pub const fn endpoint(self) -> Endpoint {
        match self {
            Self::Chat => Endpoint::Chat,
            Self::Completions => Endpoint::Completions,
            Self::Responses => Endpoint::Responses,
            Self::Messages => Endpoint::Messages,
        }
    }
}

/// Name of the output limit of a chat at a target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenField {
    /// As the client wrote it; of both, `max_completion_tokens`.
    #[default]
    AsSent,
    /// `max_tokens`
    MaxTokens,
    /// `max_completion_tokens`
    MaxCompletionTokens,
}

/// One target in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FallbackSection {
    /// OpenAI-compatible base URL.
    pub url: String,
    /// Name of the model there.
    pub model: String,
    /// Its key.
    #[serde(default)]
    pub api_key: Option<SecretString>,
    /// When it is used.
    #[serde(default = "always")]
    pub on: Vec<FallbackOn>,
    /// What it may cost.
    #[serde(default)]
    pub budget: Option<Budget>,
    /// Tokens of its context; longer requests are not sent there.
    #[serde(default)]
    pub context: Option<u64>,
    /// Request fields that it refuses; a trailing `*` matches any rest.
    #[serde(default = "drop_fields")]
    pub drop_fields: Vec<String>,
    /// Name of the output limit of a chat.
    #[serde(default)]
    pub token_field: TokenField,
    /// Content besides text that it reads.
    #[serde(default = "content")]
    pub content: Vec<Content>,
    /// Endpoints that it has.
    #[serde(default = "endpoints")]
    pub endpoints: Vec<HostedEndpoint>,
    /// Whose root certificates are trusted.
    #[serde(default)]
    pub roots: Roots,
    /// PEM file with the only certificates that are trusted.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
}

fn always() -> Vec<FallbackOn> {
    vec![FallbackOn::Saturated, FallbackOn::Down]
}

fn drop_fields() -> Vec<String> {
    defaults::DROP_FIELDS.iter().map(|field| (*field).to_owned()).collect()
}

fn content() -> Vec<Content> {
    vec![Content::Image, Content::Audio, Content::Video, Content::File]
}

fn endpoints() -> Vec<HostedEndpoint> {
    vec![HostedEndpoint::Chat, HostedEndpoint::Completions, HostedEndpoint::Responses, HostedEndpoint::Messages]
}

pub(super) const fn sticky() -> Duration {
    defaults::FALLBACK_STICKY
}

/// A hosted model.
#[derive(Debug, Clone, Serialize)]
pub struct FallbackPlan {
    /// OpenAI-compatible base URL.
    #[serde(serialize_with = "show::text")]
    pub url: BaseUrl,
    /// Name of the model there.
    pub model: String,
    /// Its key.
    #[serde(serialize_with = "show::masked")]
    pub api_key: Option<SecretString>,
    /// When it is used; never empty.
    pub on: Vec<FallbackOn>,
    /// What it may cost.
    pub budget: Option<Budget>,
    /// Tokens of its context; `None` is no limit.
    pub context: Option<u64>,
    /// Request fields that it refuses; a trailing `*` matches any rest.
    pub drop_fields: Vec<String>,
    /// Name of the output limit of a chat.
    pub token_field: TokenField,
    /// Content besides text that it reads.
    pub content: Vec<Content>,
    /// Endpoints that it has; never empty.
    pub endpoints: Vec<HostedEndpoint>,
    /// Whose root certificates are trusted, where no file is named.
    pub roots: Roots,
    /// PEM file with the only certificates that are trusted.
    pub ca_file: Option<PathBuf>,
}

/// `fallback[].budget`: spend that ends the fallback, and the prices to count it by.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// US dollars per hour; `null` is no limit.
    pub usd_per_hour: Option<f64>,
    /// US dollars per day; `null` is no limit.
    pub usd_per_day: Option<f64>,
    /// US dollars for a million input tokens.
    pub input_usd_per_million: f64,
    /// US dollars for a million output tokens.
    pub output_usd_per_million: f64,
}
