//! The client of hosted models: TLS, HTTP/2 where the server offers it, the proxy that the environment names.
//!
//! reqwest, not the relay's client: here are no thousand short exchanges a second, and proxies, tunnels and protocol
//! negotiation are done. The answer is a body that the client's connection pulls; nothing runs beside it. Certificates
//! are always verified: against Mozilla's roots, the system's, or the one file that a target names.

use std::{
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper_rustls::ConfigBuilderExt;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};

use crate::{config::Roots, dialect::restore::Restore, error::BoxError, upstream::tls};

/// Idle connections are kept this long: hosted front ends close after a minute or more.
const POOL_IDLE: Duration = Duration::from_secs(30);

/// Whose certificates a target's server must show.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Trust {
    /// Which roots, where no file is named.
    pub roots: Roots,
    /// The only certificates that are trusted, in PEM.
    pub ca_file: Option<PathBuf>,
}

/// No client can be made.
#[derive(Debug, thiserror::Error)]
pub enum HostedError {
    /// The file of certificates.
    #[error("ca_file {} {what}; name a PEM file with at least one certificate", path.display())]
    CaFile {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The system's certificates.
    #[error("the system's root certificates cannot be read: {0}; set roots: webpki")]
    Native(#[source] std::io::Error),
    /// TLS has no safe version.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
    /// The client itself.
    #[error("the client for hosted models cannot be made: {0}")]
    Client(#[from] reqwest::Error),
}

impl Trust {
    /// TLS settings that offer HTTP/2 and HTTP/1.1.
    ///
    /// # Errors
    /// When certificates cannot be read.
    pub fn settings(&self) -> Result<ClientConfig, HostedError> {
        let mut config = match (&self.ca_file, self.roots) {
            (Some(file), _) => tls::builder()?.with_root_certificates(certificates(file)?),
            (None, Roots::Webpki) => tls::builder()?.with_webpki_roots(),
            (None, Roots::Native) => tls::builder()?.with_native_roots().map_err(HostedError::Native)?,
        }
        .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn certificates(file: &Path) -> Result<RootCertStore, HostedError> {
    let bad = |what: String| HostedError::CaFile { path: file.to_owned(), what };
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| bad(format!("cannot be read: {error}")))? {
        let certificate = certificate.map_err(|error| bad(format!("is not PEM: {error}")))?;
        store.add(certificate).map_err(|error| bad(format!("has a certificate that is none: {error}")))?;
    }
    if store.is_empty() { Err(bad("has no certificate".to_owned())) } else { Ok(store) }
}

/// Pooled client of one worker and one trust.
#[derive(Debug, Clone)]
pub struct HostedClient {
    inner: reqwest::Client,
}

impl HostedClient {
    /// A client with its own pool. `connect` bounds TCP, proxy and TLS set-up.
    ///
    /// # Errors
    /// When reqwest refuses the settings.
    pub fn new(connect: Duration, settings: ClientConfig) -> Result<Self, HostedError> {
        let inner = reqwest::Client::builder()
            .tls_backend_preconfigured(settings)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(connect)
            .tcp_nodelay(true)
            .pool_idle_timeout(POOL_IDLE)
            .user_agent(concat!("gateway/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Self { inner })
    }

    /// Sends one request. The future resolves with the response head.
    ///
    /// # Errors
    /// What reqwest reports; its text names no URL.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response<reqwest::Body>, reqwest::Error> {
        let request = reqwest::Request::try_from(request)?;
        self.inner.execute(request).await.map(Response::from).map_err(reqwest::Error::without_url)
    }
}

/// A hosted model's answer under the name that the client knows.
#[derive(Debug)]
pub struct HostedBody {
    inner: reqwest::Body,
    restore: Restore,
    done: bool,
}

impl HostedBody {
    /// A body whose model names are put back.
    #[must_use]
    pub fn new(inner: reqwest::Body, restore: Restore) -> Self {
        Self { inner, restore, done: false }
    }
}

impl Body for HostedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        while !this.done {
            let out = match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                Some(Ok(frame)) => frame.into_data().map(|data| this.restore.push(&data)).unwrap_or_default(),
                Some(Err(error)) => {
                    this.done = true;
                    return Poll::Ready(Some(Err(error.without_url().into())));
                }
                None => {
                    this.done = true;
                    this.restore.finish()
                }
            };
            if !out.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(out))));
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.done
    }
}
