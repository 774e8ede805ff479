//! Bounded GETs of one replica's own pages.
//!
//! Every call opens a new connection: a kept-alive one would still answer after the replica stopped listening (a vLLM
//! that shuts down does that), and may be stale at the very moment that a probe needs an honest answer.

use std::{error::Error, io, time::Duration};

use http::{HeaderValue, header};
use secrecy::{ExposeSecret, SecretString};

use crate::fleet::{BaseUrl, ProbeFailure};

/// One answer.
#[derive(Debug)]
pub(super) struct Page {
    /// Its status.
    pub(super) status: u16,
    /// Its body, whole; `None` when it was over the limit or broke off.
    pub(super) body: Option<Vec<u8>>,
}

impl Page {
    /// Whether the status is 2xx.
    pub(super) fn good(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The body of a good answer.
    pub(super) fn good_body(&self) -> Option<&[u8]> {
        if self.good() { self.body.as_deref() } else { None }
    }
}

/// Where a replica's pages are and how they are got.
#[derive(Debug)]
pub(super) struct Pages {
    client: reqwest::Client,
    base: BaseUrl,
    key: Option<HeaderValue>,
    timeout: Duration,
}

impl Pages {
    /// Pages of the replica at `base`. A key that no header can carry is left out, and the replica will say 401.
    pub(super) fn new(client: reqwest::Client, base: BaseUrl, key: Option<&SecretString>, timeout: Duration) -> Self {
        let key = key.and_then(|key| HeaderValue::try_from(format!("Bearer {}", key.expose_secret())).ok());
        let key = key.map(|mut value| {
            value.set_sensitive(true);
            value
        });
        Self { client, base, key, timeout }
    }

    /// Where a page may be: below the base path, then below the root of the server.
    pub(super) fn places(&self, path: &str) -> Vec<String> {
        let below = self.base.url(path);
        if self.base.path.is_empty() { vec![below] } else { vec![below, self.base.root_url(path)] }
    }

    /// The URL of an API path.
    pub(super) fn url(&self, path: &str) -> String {
        self.base.url(path)
    }

    /// Gets a page of at most `limit` bytes, within the time limit.
    pub(super) async fn get(&self, url: &str, limit: usize) -> Result<Page, ProbeFailure> {
        let fetched = tokio::time::timeout(self.timeout, self.fetch(url, limit)).await;
        match fetched {
            Ok(Ok(page)) => Ok(page),
            Ok(Err(error)) => Err(failure_of(&error)),
            Err(_) => Err(ProbeFailure::Timeout),
        }
    }

    async fn fetch(&self, url: &str, limit: usize) -> Result<Page, reqwest::Error> {
        let mut request = self.client.get(url);
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, key.clone());
        }
        let mut response = request.send().await?;
        let status = response.status().as_u16();
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() > limit => return Ok(Page { status, body: None }),
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => return Ok(Page { status, body: Some(body) }),
                // The status came: that is an answer.
                Err(_) => return Ok(Page { status, body: None }),
            }
        }
    }
}

/// Refused only when somebody at that address refused; what is unreachable or does not resolve is silent.
fn failure_of(error: &reqwest::Error) -> ProbeFailure {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return match error.kind() {
                io::ErrorKind::ConnectionRefused
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::UnexpectedEof => ProbeFailure::Refused,
                _ => ProbeFailure::Timeout,
            };
        }
        if let Some(error) = error.downcast_ref::<hyper::Error>()
            && (error.is_incomplete_message() || error.is_parse() || error.is_closed() || error.is_canceled())
        {
            return ProbeFailure::Refused;
        }
        cause = error.source();
    }
    ProbeFailure::Timeout
}
