//! What the configuration can say and this version does not do: one warning each, never silence.
//!
//! When a part is implemented, its line here goes away.

use super::plan::{KeyPlan, ModelPlan, Plan};

/// Adds the warnings to the plan.
pub(super) fn warn(plan: &mut Plan) {
    let models = plan.models.iter().enumerate().flat_map(|(index, model)| of_model(index, model));
    let keys = plan.keys.iter().enumerate().flat_map(|(index, key)| of_key(index, key));
    let found: Vec<String> = models.chain(keys).collect();
    plan.warnings.extend(found);
}

fn of_model(index: usize, model: &ModelPlan) -> Vec<String> {
    let parts = [(!model.fallback.is_empty(), "fallback", "requests are never sent to a hosted model")];
    texts(&format!("models[{index}]"), &parts)
}

fn of_key(index: usize, key: &KeyPlan) -> Vec<String> {
    let parts = [
        (key.rate.is_some(), "rate", "the key has no rate limit"),
        (key.group.is_some(), "group", "the key has no tenant"),
    ];
    texts(&format!("keys[{index}]"), &parts)
}

fn texts(path: &str, parts: &[(bool, &str, &str)]) -> Vec<String> {
    let used = parts.iter().filter(|(set, ..)| *set);
    used.map(|(_, key, effect)| format!("{path}.{key} is not used by this version: {effect}")).collect()
}
