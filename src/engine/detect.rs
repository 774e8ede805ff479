//! Recognises an engine by what its pages say.
//!
//! Any one page may be behind a key, switched off or missing, so each is enough by itself: `owned_by` in the model list,
//! the names on the metrics page, or an endpoint that only one engine has. A `/version` alone proves nothing.
//! Source: captures/{vllm,sglang}/get; reference/engines.md sections 3, 6 and 7.

use memchr::memmem;
use serde_json::Value;

use crate::types::EngineKind;

/// By `owned_by` of the model list.
#[must_use]
pub fn by_owner(owned_by: &str) -> Option<EngineKind> {
    match owned_by {
        "vllm" => Some(EngineKind::Vllm),
        "sglang" => Some(EngineKind::Sglang),
        _ => None,
    }
}

/// By the names on a metrics page.
#[must_use]
pub fn by_metrics(page: &[u8]) -> Option<EngineKind> {
    [("\nvllm:", EngineKind::Vllm), ("\nsglang:", EngineKind::Sglang), ("\ntgi_", EngineKind::Tgi)]
        .into_iter()
        .find(|(name, _)| {
            page.starts_with(name.trim_start().as_bytes()) || memmem::find(page, name.as_bytes()).is_some()
        })
        .map(|(_, kind)| kind)
}

/// Paths that tell, tried in order, each with what its JSON object must hold.
pub const PAGES: &[Page] = &[
    Page { path: "/model_info", keys: &["model_path", "is_generation"], kind: EngineKind::Sglang },
    Page { path: "/get_server_info", keys: &["model_path", "max_total_num_tokens"], kind: EngineKind::Sglang },
    Page { path: "/info", keys: &["model_id", "max_concurrent_requests"], kind: EngineKind::Tgi },
    // vLLM alone has an object of exactly this.
    Page { path: "/load", keys: &["server_load"], kind: EngineKind::Vllm },
];

/// An endpoint that only one engine has.
#[derive(Debug)]
pub struct Page {
    /// Where.
    pub path: &'static str,
    /// Keys that its object must have.
    keys: &'static [&'static str],
    /// Who has it.
    kind: EngineKind,
}

impl Page {
    /// The engine, if the answer is what only that engine says.
    #[must_use]
    pub fn recognise(&self, body: &[u8]) -> Option<EngineKind> {
        let value: Value = serde_json::from_slice(body).ok()?;
        self.keys.iter().all(|key| value.get(key).is_some()).then_some(self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_alone_is_enough() {
        assert_eq!(by_owner("vllm"), Some(EngineKind::Vllm));
        assert_eq!(by_owner("sglang"), Some(EngineKind::Sglang));
        assert_eq!(by_owner("openai"), None);
        let vllm = include_bytes!("../../tests/data/vllm/metrics-idle.prom");
        let sglang = include_bytes!("../../tests/data/sglang/metrics-idle.prom");
        assert_eq!(by_metrics(vllm), Some(EngineKind::Vllm));
        assert_eq!(by_metrics(sglang), Some(EngineKind::Sglang));
        assert_eq!(by_metrics(b"tgi_queue_size 0\n"), Some(EngineKind::Tgi));
        assert_eq!(by_metrics(b"python_info 1\n# about vllm: nothing\n"), None);
        let info = include_bytes!("../../tests/data/sglang/model_info.json");
        assert_eq!(PAGES[0].recognise(info), Some(EngineKind::Sglang));
        let tgi = br#"{"model_id":"m","max_concurrent_requests":128,"router":"text-generation-router"}"#;
        assert_eq!(PAGES[2].recognise(tgi), Some(EngineKind::Tgi));
    }

    #[test]
    fn pages_of_others_are_not_mistaken() {
        for page in PAGES {
            for body in [&b""[..], b"<html>", b"[]", b"{}", br#"{"detail":"Not Found"}"#, br#"{"version":"1"}"#] {
                assert_eq!(page.recognise(body), None, "{}", page.path);
            }
        }
    }
}
