//! From a file, the environment and flags to a [`Plan`]: read, expand, parse, check, merge.
//!
//! The only place that reads the environment. Flags win over the file, the file over defaults. All problems of a file
//! that parses are reported together; a syntax error or an unknown key is reported alone, as nothing after it is sure.

mod check;
pub mod defaults;
mod error;
mod expand;
mod file;
mod hosted;
mod nearest;
mod outline;
pub mod period;
mod plan;
mod read;
mod sections;
mod show;
pub mod size;
mod tokenizer;

use std::path::Path;

pub use check::POLICIES;
pub use error::{ConfigError, Problem};
pub use hosted::{Budget, Content, FallbackOn, FallbackPlan, HostedEndpoint, Roots, TokenField};
pub use plan::{
    DiscoveryPlan, GroupPlan, KeyPlan, ModelPlan, OpenPlan, Overrides, Plan, Rate, ReplicaPlan, ServerPlan,
    TokenizerPlan,
};
pub use sections::{AccessLog, Caps, Concurrency, HealthPlan, Limits, OnExcess, RoutingPlan, Slo, Timeouts};
pub use show::{MASK, effective_yaml};

/// Largest configuration file; a thousand replicas are a tenth of it.
const FILE_BYTES: u64 = 4 << 20;

/// The environment of the process, for [`load`].
#[must_use]
pub fn environment(name: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    std::env::var(name).ok()
}

/// Builds the plan that the flags and the file that they name ask for.
///
/// # Errors
/// Everything that is wrong, one line each; see [`ConfigError`].
pub fn load(overrides: &Overrides, env: &dyn Fn(&str) -> Option<String>) -> Result<Plan, ConfigError> {
    let (name, text) = match &overrides.config {
        Some(path) => (path.display().to_string(), text_of(path)?),
        None => (String::new(), String::new()),
    };
    let source = read::read(&name, &text, env)?;
    let mut plan = check::plan(source, overrides)?;
    let near = overrides.config.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
    tokenizer::read_all(&mut plan, &name, near)?;
    Ok(plan)
}

fn text_of(path: &Path) -> Result<String, ConfigError> {
    let place = path.display().to_string();
    let cannot = |error: std::io::Error| {
        ConfigError::one(place.clone(), format!("cannot be read: {error}; name a readable YAML file with --config"))
    };
    let bytes = std::fs::metadata(path).map_err(cannot)?.len();
    if bytes > FILE_BYTES {
        return Err(ConfigError::one(place, format!("is {bytes} bytes; a configuration has at most {FILE_BYTES}")));
    }
    std::fs::read_to_string(path).map_err(cannot)
}

#[cfg(test)]
mod tests;
