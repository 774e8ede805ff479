//! Reads the configuration again, on SIGHUP and when its file changed, and puts the new keys in place.
//!
//! Keys, groups and rates take effect at once; a key whose rate did not change keeps what it has used, and requests that
//! run keep what they were admitted with. A file with an error changes nothing and is told of once. Everything else in
//! the file needs a restart, and a change there is told of.

use std::{path::PathBuf, sync::Arc, time::Duration, time::SystemTime};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    config::{self, Overrides, Plan, effective_yaml},
    proxy::{Shared, auth::Keys},
    telemetry::Reload,
};

/// How often the file's time is looked at: a kubernetes config map is a link that changes, which no watch follows well.
const PERIOD: Duration = Duration::from_secs(2);

/// What is read again.
#[derive(Debug)]
pub(super) struct Reloader {
    shared: Arc<Shared>,
    overrides: Overrides,
    file: PathBuf,
    /// The rest of the plan that runs, as text.
    running: String,
    seen: Option<SystemTime>,
}

impl Reloader {
    /// Watches the file of these flags; `None` if they name none.
    #[must_use]
    pub(super) fn new(shared: Arc<Shared>, overrides: Overrides, plan: &Plan) -> Option<Self> {
        let file = overrides.config.clone()?;
        let mut reloader = Self { shared, overrides, running: without_keys(plan), seen: None, file };
        reloader.seen = reloader.modified();
        Some(reloader)
    }

    /// Reads again whenever there is reason to, until stopped.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut hangup = match signal(SignalKind::hangup()) {
            Ok(hangup) => hangup,
            Err(error) => return warn!(%error, "cannot listen for SIGHUP; the configuration is not read again"),
        };
        let mut tick = tokio::time::interval(PERIOD);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = hangup.recv() => self.reload(),
                _ = tick.tick() => {
                    let now = self.modified();
                    if now.is_some() && now != self.seen {
                        self.reload();
                    }
                }
            }
        }
    }

    /// The file's time, whatever links lead to it.
    fn modified(&self) -> Option<SystemTime> {
        std::fs::metadata(&self.file).and_then(|file| file.modified()).ok()
    }

    fn reload(&mut self) {
        self.seen = self.modified();
        let plan = match config::load(&self.overrides, &config::environment) {
            Ok(plan) => plan,
            Err(error) => {
                self.shared.telemetry.reloaded(Reload::Refused);
                return warn!("the configuration was not reloaded, the keys stay as they were: {error}");
            }
        };
        let open = plan.keys.is_empty() != self.shared.keys.load().is_open();
        if open {
            // A file that lost its keys would open the gateway to everybody.
            self.shared.telemetry.reloaded(Reload::Refused);
            return warn!(
                "the configuration was not reloaded: it has keys where there were none, or none where there were"
            );
        }
        let keys = Keys::new(&plan.keys, &self.shared.keys.load());
        self.shared.keys.store(Arc::new(keys));
        self.shared.telemetry.reloaded(Reload::Applied);
        info!(keys = plan.keys.len(), "configuration reloaded");
        let rest = without_keys(&plan);
        if rest != self.running {
            warn!("the configuration changed outside of keys and groups; that part takes effect with a restart");
            self.running = rest;
        }
    }
}

/// The plan without what a reload changes.
fn without_keys(plan: &Plan) -> String {
    let rest = Plan { keys: Vec::new(), groups: Vec::new(), ..plan.clone() };
    effective_yaml(&rest)
}
