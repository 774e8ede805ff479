//! Integration tests: the real binary between scripted replicas and a raw client.
//!
//! One module a theme. Case tests carry the id of the report that they were made from (`br_001_...`, `f24_...`).

#[cfg(test)]
mod accounting;
#[cfg(test)]
mod architecture;
#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod byte_identity;
#[cfg(test)]
mod cancel;
#[cfg(test)]
mod capacity;
#[cfg(test)]
mod caps;
#[cfg(test)]
mod compose;
#[cfg(test)]
mod docs;
#[cfg(test)]
mod engine;
#[cfg(test)]
mod fallback;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod headers;
#[cfg(test)]
mod health;
#[cfg(test)]
mod keys;
#[cfg(test)]
mod loadtest;
#[cfg(test)]
mod queue;
#[cfg(test)]
mod request_shape;
#[cfg(test)]
mod retries;
#[cfg(test)]
mod routing;
#[cfg(test)]
mod security;
#[cfg(test)]
mod sse;
#[cfg(test)]
mod stream_error;
#[cfg(test)]
mod support;
#[cfg(test)]
mod timeouts;
