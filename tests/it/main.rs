//! Integration tests, one binary.

// Clippy lets tests unwrap, index and panic; helpers of tests count as such only below `cfg(test)`.
#[cfg(test)]
mod engine;
