//! One model that a replica serves, as its `/v1/models` tells it.
//!
//! `created` is the time of the answer in vLLM, so two equal answers differ in bytes: compare what matters, not `raw`.

use std::sync::Arc;

/// One entry of a replica's model list.
#[derive(Debug, Clone)]
pub struct ServedModel {
    /// Name that requests carry.
    pub id: Arc<str>,
    /// Longest prompt plus output in tokens.
    pub max_model_len: Option<u64>,
    /// The base model, when this is an adapter on one.
    pub adapter_of: Option<Arc<str>>,
    /// The entry as the engine wrote it, a JSON object.
    pub raw: Arc<str>,
}

impl PartialEq for ServedModel {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && self.max_model_len == other.max_model_len && self.adapter_of == other.adapter_of
    }
}
