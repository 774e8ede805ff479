//! Every default of the configuration, each with the reason for its value.
//!
//! Values as in the design's interface; `config/gateway.yaml` repeats them for people and a test compares the two.

use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    time::Duration,
};

/// Loopback: nobody else reaches an unkeyed gateway by accident.
pub const LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080));
/// Loopback, and Prometheus's own customary port.
pub const ADMIN_LISTEN: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9090));

/// A 128k-token prompt with a few inline images fits; a video does not.
pub const BODY_BYTES: u64 = 32 << 20;
/// Four times what a browser sends; larger heads are mistakes or attacks.
pub const HEADER_BYTES: usize = 32 << 10;
/// Each idle connection costs about 20 KiB, so 200 MiB at most.
pub const CONNECTIONS: usize = 10_000;
/// All buffered request bodies together: 32 of the largest.
pub const BODY_MEMORY_BYTES: u64 = 1 << 30;

/// A live host in the same cluster answers in milliseconds; 2 s covers one lost SYN.
pub const CONNECT: Duration = Duration::from_secs(2);
/// Longest time the answer's head is held for the first event; after it the client gets its 200.
pub const FIRST_EVENT_HOLD: Duration = Duration::from_secs(15);
/// Queueing plus prefill of the longest prompts on a full replica takes minutes.
pub const FIRST_TOKEN: Duration = Duration::from_secs(300);
/// Longest silence inside a stream that is not a hang: a preempted request recomputes its prompt.
pub const STREAM_IDLE: Duration = Duration::from_secs(120);
/// A client that reads nothing for a minute is gone, and holds an engine slot.
pub const CLIENT_IDLE: Duration = Duration::from_secs(60);
/// The official clients give up after 600 s.
pub const TOTAL: Duration = Duration::from_secs(600);
/// A head fits in one packet; ten seconds defeat slow-header attacks.
pub const HEADER: Duration = Duration::from_secs(10);
/// As long as the longest request may run, so that a drain cuts none.
pub const DRAIN: Duration = Duration::from_secs(600);

/// A dead replica is noticed within two seconds; a thousand replicas cost a thousand small requests a second.
pub const HEALTH_INTERVAL: Duration = Duration::from_secs(1);
/// `SGLang`'s deep health check takes up to a second by itself.
pub const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);

/// The policy that the gateway is for.
pub const POLICY: &str = "prefix";
/// About 64 tokens: four of the engines' 16-token blocks.
pub const BLOCK_BYTES: u32 = 256;
/// Smallest block: below it the index holds more entries than the engine holds blocks.
pub const BLOCK_BYTES_MIN: u32 = 64;
/// Largest block: above it a turn of a conversation is lost in rounding.
pub const BLOCK_BYTES_MAX: u32 = 4096;
/// 32 MiB of index; 268 MB of distinct prompt text.
pub const INDEX_ENTRIES: usize = 1 << 20;
/// Below it one long conversation evicts all others.
pub const INDEX_ENTRIES_MIN: usize = 1 << 10;
/// 8 GiB of index.
pub const INDEX_ENTRIES_MAX: usize = 1 << 28;

/// What a person perceives as prompt.
pub const SLO_TTFT: Duration = Duration::from_secs(1);
/// Twenty tokens a second: faster than reading.
pub const SLO_TPOT: Duration = Duration::from_millis(50);

/// vLLM's default `max_num_seqs`; more would only wait inside the engine.
pub const PER_REPLICA: u32 = 256;
/// Waiting requests per model: a few seconds of work for a small pool.
pub const QUEUE: u32 = 1024;
/// A full replica takes requests again a fifth below its bound: less lets it flap, more leaves room unused.
pub const RESUME: f32 = 0.8;
/// Longest wait in the queue before a 503.
pub const QUEUE_TIMEOUT: Duration = Duration::from_secs(30);

/// Longer than a burst, shorter than a coffee: the conversation's prefix stays warm where it is.
pub const FALLBACK_STICKY: Duration = Duration::from_secs(60);
/// Request fields of vLLM, SGLang and TGI that hosted APIs refuse; a trailing `*` matches any rest.
pub const DROP_FIELDS: &[&str] = &[
    "adapter_id",
    "add_generation_prompt",
    "add_special_tokens",
    "allowed_token_ids",
    "bad_words",
    "best_of",
    "bootstrap_*",
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "custom_logit_processor",
    "custom_params",
    "data_parallel_rank",
    "documents",
    "ebnf",
    "extra_key",
    "guided_*",
    "ignore_eos",
    "include_reasoning",
    "include_stop_str_in_output",
    "input_embeds",
    "json_schema",
    "kv_transfer_params",
    "length_penalty",
    "logits_processors",
    "lora",
    "lora_adapter",
    "lora_path",
    "min_p",
    "min_tokens",
    "mm_processor_kwargs",
    "no_stop_trim",
    "priority",
    "prompt_embeds",
    "prompt_logprobs",
    "regex",
    "repetition_penalty",
    "request_id",
    "return_hidden_states",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "rid",
    "sampling_seed",
    "separate_reasoning",
    "session_params",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop_regex",
    "stop_token_ids",
    "stream_reasoning",
    "structured_outputs",
    "thinking_token_budget",
    "top_k",
    "truncate_prompt_tokens",
    "truncation_side",
    "use_beam_search",
    "vllm_xargs",
];

/// How often a DNS name is resolved again.
pub const DNS_INTERVAL: Duration = Duration::from_secs(10);
/// vLLM's port.
pub const DNS_PORT: u16 = 8000;

/// Below it an ordinary browser's or proxy's head is refused.
pub const HEADER_BYTES_MIN: usize = 1 << 10;
/// hyper reads a head into one buffer.
pub const HEADER_BYTES_MAX: usize = 1 << 20;
/// A week: a longer limit is a typing error, and far longer ones overflow deadlines.
pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(7 * 24 * 3600);
/// More in flight at one engine than any GPU batches.
pub const PER_REPLICA_MAX: u32 = 65_536;
/// Each waiting request holds its body.
pub const QUEUE_MAX: u32 = 1_000_000;
