//! Health, models and engine of one replica, by asking it.
//!
//! Where the health check is differs (`KServe` serves the API under a prefix and its health under the root, some servers
//! have none), so the first place that answers is remembered; a 404 there later means that another server came, and the
//! search begins again.
//! Source: reference/engines.md, sections 3, 6 and 7.

use super::pages::{Page, Pages};
use crate::{
    engine::{
        detect,
        models::{self, ModelList},
    },
    fleet::ProbeFailure,
    types::EngineKind,
};

/// Health answers are empty; a longer one is cut off.
const HEALTH_LIMIT: usize = 64 * 1024;
/// Hundreds of adapters fit.
pub(super) const MODELS_LIMIT: usize = 4 * 1024 * 1024;
/// SGLang's grow with use to 140 KB, with data-parallel ranks to some times that.
pub(super) const METRICS_LIMIT: usize = 8 * 1024 * 1024;

/// Finds and asks the health check.
#[derive(Debug, Default)]
pub(super) struct HealthCheck {
    /// The place that answered.
    known: Option<String>,
}

impl HealthCheck {
    /// Asks once; a broken connection is tried again at once, since one reset is no verdict.
    pub(super) async fn ask(&mut self, pages: &Pages) -> Result<(), ProbeFailure> {
        match self.search(pages).await {
            Err(ProbeFailure::Refused) => self.search(pages).await,
            verdict => verdict,
        }
    }

    async fn search(&mut self, pages: &Pages) -> Result<(), ProbeFailure> {
        if let Some(url) = &self.known {
            let page = pages.get(url, HEALTH_LIMIT).await?;
            if page.good() {
                return Ok(());
            }
            if !absent(&page) {
                return Err(ProbeFailure::Status(page.status));
            }
            self.known = None;
        }
        let mut last = ProbeFailure::Status(404);
        for url in pages.places("/health").into_iter().chain([pages.url("/v1/models")]) {
            let page = pages.get(&url, MODELS_LIMIT).await?;
            if page.good() {
                self.known = Some(url);
                return Ok(());
            }
            last = ProbeFailure::Status(page.status);
            if !absent(&page) {
                break;
            }
        }
        Err(last)
    }
}

/// Whether an answer says that the page is not there, or not for us, rather than that the replica is ill.
fn absent(page: &Page) -> bool {
    matches!(page.status, 401 | 403 | 404 | 405 | 501)
}

/// Reads the model list; `None` when there is none to be had.
pub(super) async fn read_models(pages: &Pages) -> Option<ModelList> {
    let page = pages.get(&pages.url("/v1/models"), MODELS_LIMIT).await.ok()?;
    models::parse(page.good_body()?)
}

/// Recognises the engine by its pages. `None` when no page gave an answer at all.
pub(super) async fn detect(pages: &Pages) -> Option<EngineKind> {
    let mut answered = false;
    for url in pages.places("/metrics") {
        let Ok(page) = pages.get(&url, METRICS_LIMIT).await else { continue };
        answered = true;
        if let Some(kind) = page.good_body().and_then(detect::by_metrics) {
            return Some(kind);
        }
    }
    for candidate in detect::PAGES {
        for url in pages.places(candidate.path) {
            let Ok(page) = pages.get(&url, MODELS_LIMIT).await else { continue };
            answered = true;
            if let Some(kind) = page.good_body().and_then(|body| candidate.recognise(body)) {
                return Some(kind);
            }
        }
    }
    answered.then_some(EngineKind::Openai)
}
