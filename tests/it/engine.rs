//! The simulated engine over real sockets: its wire against the captures, its behaviour against the engines' notes.

mod behaviour;
mod client;
mod faults;
mod load;
mod shape;
mod wire;

use std::{net::SocketAddr, time::Duration};

use gateway::{
    simserver::{self, Flavor, SimConfig, SimHandle},
    simulator::{Timing, timing::Rates},
};

/// A replica like the captured ones: "tiny", context 4,096, four slots, blocks of 32 (vLLM) or 16 (SGLang), but fast.
fn tiny(flavor: Flavor) -> SimConfig {
    let mut config = match flavor {
        Flavor::Vllm => SimConfig::vllm("tiny"),
        Flavor::Sglang => SimConfig::sglang("tiny"),
    };
    config.max_model_len = 4096;
    config.engine.kv_tokens = 16_384;
    config.engine.block_size = if flavor == Flavor::Vllm { 32 } else { 16 };
    config.engine.limits.max_num_seqs = 4;
    config.engine.timing = timing(2);
    config.report_cached_tokens = flavor == Flavor::Sglang;
    config
}

/// So many milliseconds a decode step, 100,000 prompt tokens a second.
fn timing(decode_ms: u64) -> Timing {
    Timing::Rates(Rates {
        prefill_tokens_per_second: 100_000.0,
        decode: Duration::from_millis(decode_ms),
        decode_per_sequence: Duration::ZERO,
        overhead: Duration::from_micros(100),
    })
}

async fn start(config: SimConfig) -> SimHandle {
    simserver::start(config, SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap()
}

/// Waits until `done` holds; fails after five seconds.
async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within five seconds: {what}");
}
