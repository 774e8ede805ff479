//! The GPUs that come with the program, each with its source.

use serde::{Deserialize, Serialize};

use super::{Problem, plain};

const ROWS: &str = include_str!("data/gpus.jsonl");

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// What `--gpu` takes.
    pub short: String,
    /// Full name.
    pub name: String,
    /// Memory as the driver reports it, in GiB.
    pub memory_driver_total_gib: f64,
    /// Where that comes from.
    pub memory_source: String,
    /// Memory bandwidth, GB/s.
    pub hbm_bandwidth_gb_s: f64,
    /// 16-bit dense peak.
    pub bf16_dense_tflops: Option<f64>,
    /// 8-bit dense peak.
    pub fp8_dense_tflops: Option<f64>,
    /// 4-bit dense peak.
    pub fp4_dense_tflops: Option<f64>,
    /// Where the speeds come from.
    pub spec_source: String,
    /// The speeds are recalled, not read from a source.
    pub spec_recalled: bool,
    /// The memory is a typical value, not read from a log.
    pub memory_recalled: bool,
    /// Lowest price seen, USD an hour.
    pub price_usd_h_low: Option<f64>,
    /// Highest price seen, USD an hour.
    pub price_usd_h_high: Option<f64>,
    /// Where the prices come from.
    pub price_source: Option<String>,
}

/// All GPUs.
#[must_use]
pub fn devices() -> Vec<Device> {
    ROWS.lines().filter_map(|row| serde_json::from_str(row).ok()).collect()
}

/// A GPU by short or full name; case and punctuation are ignored.
///
/// # Errors
///
/// The name is not known.
pub fn device(wanted: &str) -> Result<Device, Problem> {
    let key = plain(wanted);
    let alias = match key.as_str() {
        "h100sxm5" | "h10080gb" => "h100",
        "a100" | "a10080gb" | "a100sxm" => "a100-80",
        "a10040gb" => "a100-40",
        "3090" => "rtx3090",
        "4090" => "rtx4090",
        "5090" => "rtx5090",
        other => other,
    };
    let key = plain(alias);
    let all = devices();
    let known = all.iter().map(|device| device.short.as_str()).collect::<Vec<_>>().join(", ");
    all.iter()
        .find(|device| plain(&device.short) == key || plain(&device.name) == key)
        .cloned()
        .ok_or_else(|| Problem::new("--gpu", format!("{wanted:?} is not known"), format!("known are {known}")))
}
