//! Integration tests, one binary.

mod engine;
