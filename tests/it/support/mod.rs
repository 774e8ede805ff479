//! What drives the gateway from both sides: a scripted replica behind it, a raw client in front of it, the process between.

pub(crate) mod check;
pub(crate) mod client;
pub(crate) mod gateway;
pub(crate) mod replica;
pub(crate) mod sse;
mod tests;

use std::{future::Future, time::Duration};

use tokio::{task::JoinHandle, time::Instant};

/// Milliseconds.
pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Runs a task beside the test; it ends with the test's runtime at the latest.
#[expect(
    clippy::disallowed_methods,
    reason = "a test's runtime ends every task with the test; there is no drain to miss"
)]
pub(crate) fn beside<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(task)
}

/// Waits until the condition holds; false when the limit passed first.
pub(crate) async fn until(limit: Duration, mut condition: impl AsyncFnMut() -> bool) -> bool {
    let stop = Instant::now() + limit;
    loop {
        if condition().await {
            return true;
        }
        if Instant::now() >= stop {
            return false;
        }
        tokio::time::sleep(ms(10)).await;
    }
}

/// Printable start of a body, for messages.
pub(crate) fn short(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(160)]).into_owned();
    text.replace('\n', "\\n").replace('\r', "\\r")
}

/// Words that no other seed shares, of about `length` bytes.
pub(crate) fn words(seed: &str, length: usize) -> String {
    let mut state = xxhash_rust::xxh3::xxh3_64(seed.as_bytes());
    let mut text = String::with_capacity(length + 8);
    while text.len() < length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(&format!("{:05x} ", state >> 44));
    }
    text
}

/// SHA-256 in hex, as `keys[].sha256` has it.
pub(crate) fn sha256(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An entry of `keys` for the key `sk-ID`; `more` follows its hash.
pub(crate) fn key_entry(id: &str, more: &str) -> String {
    format!("  - {{ id: {id}, sha256: {}{more} }}\n", sha256(&format!("sk-{id}")))
}
