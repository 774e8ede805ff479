//! Words that every layer shares: endpoints, engines, outcomes, block hashes.
//!
//! Nothing here does work. An enum whose values appear as a metric label has a `label` that is part of the interface.

use std::fmt;

/// Hash of one prompt block, chained over all blocks before it.
///
/// `h_i = xxh3_64(block_i, seed = h_{i-1})`: equal hashes mean equal prefixes, whatever the depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub u64);

/// Number of a replica inside the process, unique among live replicas, below [`MAX_REPLICAS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplicaSlot(pub u16);

/// Most replicas that one gateway tracks: the prefix index spends ten bits on a holder's slot.
pub const MAX_REPLICAS: usize = 1024;

impl fmt::Display for ReplicaSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Tokens that a request may use: what it is charged before it runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asked {
    /// Prompt tokens, counted or estimated.
    pub prompt: u64,
    /// Most output tokens over all choices; 0 if nothing bounds them.
    pub output: u64,
}

/// A proxied endpoint of the data port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/messages`
    Messages,
    /// `POST /v1/embeddings`
    Embeddings,
    /// `POST /v1/rerank`
    Rerank,
    /// `POST /v1/score`
    Score,
    /// `POST /tokenize`
    Tokenize,
    /// `POST /detokenize`
    Detokenize,
}

impl Endpoint {
    /// Every proxied endpoint.
    pub const ALL: [Self; 9] = [
        Self::Chat,
        Self::Completions,
        Self::Responses,
        Self::Messages,
        Self::Embeddings,
        Self::Rerank,
        Self::Score,
        Self::Tokenize,
        Self::Detokenize,
    ];

    /// Path on the data port, which is also the path at a replica below its base path.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
            Self::Embeddings => "/v1/embeddings",
            Self::Rerank => "/v1/rerank",
            Self::Score => "/v1/score",
            Self::Tokenize => "/tokenize",
            Self::Detokenize => "/detokenize",
        }
    }

    /// Value of the `endpoint` label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Embeddings => "embeddings",
            Self::Rerank => "rerank",
            Self::Score => "score",
            Self::Tokenize => "tokenize",
            Self::Detokenize => "detokenize",
        }
    }

    /// Whether the endpoint generates tokens, and so has TTFT, TPOT and an output cap.
    #[must_use]
    pub const fn generates(self) -> bool {
        matches!(self, Self::Chat | Self::Completions | Self::Responses | Self::Messages)
    }

    /// Whether the engines accept `stream_options.include_usage` here.
    #[must_use]
    pub const fn has_stream_options(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }
}

/// Which engine a replica runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// vLLM
    Vllm,
    /// SGLang
    Sglang,
    /// Hugging Face text-generation-inference
    Tgi,
    /// Any other server that speaks the OpenAI API
    Openai,
}

impl EngineKind {
    /// Name as in the configuration and on the admin page.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Tgi => "tgi",
            Self::Openai => "openai",
        }
    }
}

/// How a request ended. Every request ends in exactly one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The engine's whole answer reached the client.
    Success,
    /// The gateway refused the request: bad body, unknown model, a cap.
    ClientError,
    /// The engine refused the request with a 4xx, or with such an error as its first event.
    UpstreamClientError,
    /// The engine answered 5xx, or with such an error as its first event.
    UpstreamError,
    /// The engine reported an error after output had begun.
    UpstreamStreamError,
    /// The replica closed or reset its connection before the answer was complete, or refused it.
    UpstreamReset,
    /// The replica broke HTTP framing.
    UpstreamProtocolError,
    /// The replica was silent for longer than a limit.
    UpstreamTimeout,
    /// The client left before the end, or stopped reading for longer than its limit.
    Cancelled,
    /// No replica was usable, or all were saturated.
    Rejected,
    /// The gateway itself failed.
    GatewayError,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 11] = [
        Self::Success,
        Self::ClientError,
        Self::UpstreamClientError,
        Self::UpstreamError,
        Self::UpstreamStreamError,
        Self::UpstreamReset,
        Self::UpstreamProtocolError,
        Self::UpstreamTimeout,
        Self::Cancelled,
        Self::Rejected,
        Self::GatewayError,
    ];

    /// Value of the `outcome` label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::ClientError => "client_error",
            Self::UpstreamClientError => "upstream_client_error",
            Self::UpstreamError => "upstream_error",
            Self::UpstreamStreamError => "upstream_stream_error",
            Self::UpstreamReset => "upstream_reset",
            Self::UpstreamProtocolError => "upstream_protocol_error",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::Cancelled => "cancelled",
            Self::Rejected => "rejected",
            Self::GatewayError => "gateway_error",
        }
    }
}

/// Why a replica was chosen; the `reason` label of `gateway_replica_picks_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PickReason {
    /// It holds the longest known prefix of the prompt, and its cost was acceptable.
    Hit,
    /// No replica holds a prefix, or a replica without it was cheaper.
    Miss,
    /// The preferred replica was over the bounded-load guard.
    Guard,
    /// It was the only usable replica.
    Only,
}

impl PickReason {
    /// Every reason.
    pub const ALL: [Self; 4] = [Self::Hit, Self::Miss, Self::Guard, Self::Only];

    /// Value of the `reason` label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Guard => "guard",
            Self::Only => "only",
        }
    }
}
