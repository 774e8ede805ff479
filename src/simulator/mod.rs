//! Model of one engine: continuous batching over a block-wise KV pool, step by step, without a clock.
//!
//! The same code runs in real time behind [`crate::simserver`] and in virtual time in a discrete-event loop.
//! The fact a reader would get wrong: a step is begun and finished by separate calls. What happens in between
//! (submissions, aborts) changes the next step, and an aborted sequence frees its blocks at once.
//! Source: vLLM v1 scheduler and block pool, SGLang scheduler, as described in `shared/reference/engines.md`.

pub mod engine;
pub mod kv;
pub mod presets;
pub mod scheduler;
pub mod sequence;
pub mod text;
pub mod timing;

pub use engine::{EngineSpec, Event, SimEngine, Stats};
pub use scheduler::{Batching, Limits, QueueLimit};
pub use sequence::{Prompt, Request, SeqId};
pub use timing::Timing;
