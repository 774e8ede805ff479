//! Step 7b: a hosted model in place of the pool, and what is said when nobody answers.
//!
//! Asked when every replica that was tried is full (`saturated`), or none is usable or answers (`down`), and never
//! once a byte went to the client. Targets are tried in the order of the configuration; one whose breaker is open, whose
//! budget is spent, or that could not read the request is passed over. A conversation that was sent there for want of
//! room stays for `fallback_sticky`; one that went because replicas were down comes back with them.

mod call;
mod degraded;
mod keep;
mod outbound;
mod talk;
mod target;

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::body::Body;
use http::{HeaderMap, HeaderValue, Response};
use tokio::time::Instant;
use tracing::warn;

pub use self::{
    call::{Hosted, HostedClients, Missed},
    keep::SpendFileError,
    talk::Talk,
    target::{Paid, Target},
};
use crate::{
    config::{ModelPlan, Plan},
    dialect::{Fields, scan},
    fleet::Recent,
    proxy::{auth::Tenant, forward::Outgoing, headers, pool::Pool, report::Report},
    telemetry::Telemetry,
    types::Outcome,
    upstream::hosted::{HostedClient, HostedError, Trust},
};

/// Conversations that are remembered as spilled, of each model.
const SPILLED: usize = 65_536;

/// Hosted models cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum FallbackError {
    /// The spend file.
    #[error(transparent)]
    Spend(#[from] SpendFileError),
    /// Their client.
    #[error("hosted models: {0}")]
    Client(#[from] HostedError),
}

/// The hosted models of all models.
#[derive(Debug, Default)]
pub struct Fallbacks {
    by_model: HashMap<Arc<str>, Arc<Fallback>>,
    /// TLS settings by trust, for the clients of the workers.
    settings: Vec<(Trust, rustls::ClientConfig)>,
    connect: Duration,
    spend_file: Option<PathBuf>,
    /// What the spend file holds.
    written: Mutex<keep::Book>,
}

/// Where one model's requests go when its pool cannot take them.
#[derive(Debug)]
pub struct Fallback {
    targets: Vec<Arc<Target>>,
    sticky: Duration,
    spilled: Mutex<Recent<()>>,
    degraded: Option<String>,
}

/// What the client wants of the fallback, and who it is there. Without a fallback there is nothing to want.
#[derive(Debug, Default)]
pub struct Wish {
    /// Neither the client nor its key forbids a hosted model.
    allowed: bool,
    /// The client wants to handle failures itself.
    never: bool,
    /// The model name as the client wrote it.
    pub(super) model: String,
    talk: Option<Talk>,
}

/// Whether a key's requests may go to a hosted model.
fn may_fall_back(tenant: Option<&Tenant>) -> bool {
    tenant.is_none_or(|tenant| tenant.plan.fallback)
}

impl Wish {
    /// The wish of a request for `model`. To be called before its headers are those of the upstream request.
    #[must_use]
    pub fn new(from: &HeaderMap, tenant: Option<&Tenant>, model: &str) -> Self {
        let never = from
            .get(headers::FALLBACK)
            .is_some_and(|value| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"never"));
        Self { allowed: !never && may_fall_back(tenant), never, model: model.to_owned(), talk: None }
    }

    /// Notes the conversation.
    #[must_use]
    pub fn in_talk(mut self, body: &[u8], fields: &Fields, tenant: Option<&Tenant>) -> Self {
        self.talk = talk::talk(body, fields, &self.model, tenant);
        self
    }
}

impl Fallbacks {
    /// Everything that the plan names.
    ///
    /// # Errors
    /// When the spend file or a file of certificates cannot be used.
    pub fn new(plan: &Plan, telemetry: &Telemetry) -> Result<Self, FallbackError> {
        let spend_file = plan.server.spend_file.clone();
        let book = spend_file.as_deref().map(keep::open).transpose()?.unwrap_or_default();
        let mut fallbacks = Self { connect: plan.server.timeouts.connect, spend_file, ..Self::default() };
        for model in &plan.models {
            if model.fallback.is_empty() && model.degraded_response.is_none() {
                continue;
            }
            let fallback = Arc::new(Fallback::new(model, &book, telemetry));
            for target in &fallback.targets {
                let trust = target.trust();
                if fallbacks.settings.iter().all(|(known, _)| *known != trust) {
                    let settings = trust.settings()?;
                    fallbacks.settings.push((trust, settings));
                }
            }
            fallbacks.by_model.insert(model.name.clone(), fallback);
        }
        fallbacks.written = Mutex::new(book);
        Ok(fallbacks)
    }

    /// The fallback of a pool.
    #[must_use]
    pub fn of(&self, pool: &Pool) -> Option<&Arc<Fallback>> {
        self.by_model.get(pool.name())
    }

    /// Clients of one worker.
    ///
    /// # Errors
    /// When reqwest refuses the settings.
    pub fn clients(&self) -> Result<HostedClients, HostedError> {
        let client = |(trust, settings): &(Trust, rustls::ClientConfig)| {
            Ok((trust.clone(), HostedClient::new(self.connect, settings.clone())?))
        };
        self.settings.iter().map(client).collect::<Result<_, _>>().map(HostedClients)
    }

    /// Sets the gauges.
    pub fn refresh(&self) {
        self.by_model.values().flat_map(|fallback| &fallback.targets).for_each(|target| target.refresh());
    }

    /// Writes the spend file if anything was spent since. It blocks.
    pub fn keep_spend(&self) {
        let Some(path) = &self.spend_file else { return };
        let mut written = lock(&self.written);
        let mut book = written.clone();
        for (model, fallback) in &self.by_model {
            for target in &fallback.targets {
                let spent = target.spent();
                if spent.day.spent.0 > 0 || spent.hour.spent.0 > 0 {
                    book.insert(entry(model, target.label()), spent);
                }
            }
        }
        if book == *written {
            return;
        }
        match keep::write(path, &book) {
            Ok(()) => *written = book,
            Err(error) => warn!(%error, file = %path.display(), "the spend on hosted models is not kept"),
        }
    }
}

/// Name of a target in the spend file.
fn entry(model: &str, label: &str) -> String {
    format!("{model} {label}")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fallback {
    fn new(model: &ModelPlan, book: &keep::Book, telemetry: &Telemetry) -> Self {
        let target = |plan: &crate::config::FallbackPlan| {
            let spent = book.get(&entry(&model.name, &target::label(plan))).copied().unwrap_or_default();
            Target::new(&model.name, plan.clone(), spent, telemetry)
        };
        Self {
            targets: model.fallback.iter().map(target).collect(),
            sticky: model.fallback_sticky,
            spilled: Mutex::new(Recent::new(SPILLED, model.fallback_sticky)),
            degraded: model.degraded_response.clone(),
        }
    }

    /// Whether the request goes on in a conversation that spilled lately.
    #[must_use]
    pub fn stays(&self, wish: &Wish, now: Instant) -> bool {
        let talk = wish.talk.filter(|talk| talk.continued && wish.allowed && !self.sticky.is_zero());
        talk.is_some_and(|talk| lock(&self.spilled).get(talk.key, now).is_some())
    }

    /// Notes that a conversation spilled.
    fn spilled(&self, wish: &Wish, now: Instant) {
        if let Some(talk) = wish.talk.filter(|_| !self.sticky.is_zero()) {
            lock(&self.spilled).put(talk.key, (), now);
        }
    }

    /// The configured words in place of an error. The request counts as refused all the same.
    ///
    /// # Errors
    /// Gives the report back when there are no words for it.
    pub fn degraded(&self, out: &Outgoing, mut report: Report) -> Result<Response<Body>, Box<Report>> {
        let text = self.degraded.as_deref().filter(|_| !out.wish.never);
        let usage = out.stream && !out.hide_usage && asks_for_usage(out);
        let answer =
            text.and_then(|text| degraded::answer(report.endpoint(), out.stream, usage, &out.wish.model, text));
        let Some(mut answer) = answer else { return Err(Box::new(report)) };
        if out.expose {
            answer.headers_mut().insert(headers::ROUTE, HeaderValue::from_static("degraded"));
        }
        report.answered(answer.status().as_u16());
        report.end(Outcome::Rejected);
        Ok(answer.map(Body::from))
    }
}

/// Whether the body that replicas get asks for the usage chunk; the gateway's own wish is not here.
fn asks_for_usage(out: &Outgoing) -> bool {
    let body = out.body.concat();
    scan(&body).is_ok_and(|fields| fields.include_usage.is_some_and(|asked| asked.of(&body) == b"true"))
}
