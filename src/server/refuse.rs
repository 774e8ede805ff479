//! Connections over the limit: a 503 that says when to come back, and the end.
//!
//! Never waits in the dealer: the answer is one write into an empty socket buffer. A socket that is closed with bytes
//! unread resets, and the reset may overtake the answer; so some refused connections are read for a moment, and those
//! over that number are closed as they are.

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
    time::timeout,
};
use tokio_util::task::TaskTracker;

use crate::{
    error::{ErrorKind, GatewayError, Stage},
    server::answer,
    telemetry::{NO_MODEL, Reason, Telemetry},
};

/// Refused connections that are read for a moment, at a time.
const LINGERING: usize = 256;
/// How long.
const LINGER: Duration = Duration::from_secs(1);
/// When to come back.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Answers what is over the limit.
#[derive(Debug)]
pub(super) struct Refusals {
    telemetry: Arc<Telemetry>,
    tasks: TaskTracker,
    permits: Arc<Semaphore>,
}

impl Refusals {
    /// Spawns on `tasks`.
    pub(super) fn new(telemetry: Arc<Telemetry>, tasks: TaskTracker) -> Self {
        Self { telemetry, tasks, permits: Arc::new(Semaphore::new(LINGERING)) }
    }

    /// Answers and closes, now or within a second.
    pub(super) fn refuse(&self, mut stream: TcpStream) {
        self.telemetry.model(NO_MODEL).rejected(Reason::Overload);
        let message = "the gateway has as many connections as server.limits.connections allows; try again";
        let error = GatewayError::new(ErrorKind::Overloaded, Stage::Accept, message).retry_after(RETRY_AFTER);
        let text = answer::last(&error, StatusCode::SERVICE_UNAVAILABLE);
        if !stream.try_write(&text).is_ok_and(|written| written == text.len()) {
            return;
        }
        let Ok(permit) = self.permits.clone().try_acquire_owned() else { return };
        self.tasks.spawn(async move {
            let _permit = permit;
            let farewell = async {
                stream.shutdown().await?;
                let mut sink = [0; 4096];
                while stream.read(&mut sink).await? > 0 {}
                std::io::Result::Ok(())
            };
            // Out of time or broken: closed either way.
            timeout(LINGER, farewell).await.unwrap_or(Ok(())).unwrap_or_default();
        });
    }
}
