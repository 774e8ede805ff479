//! TLS to hosted models: whom the gateway trusts, and HTTP/2 where the server offers it.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::{HOSTED, full, targets};
use crate::support::{
    beside, client,
    gateway::{Config, TestGateway},
    replica::ScriptedReplica,
};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tls").join(name)
}

/// A hosted API over TLS under `localhost`; its port, and the HTTP version of each request.
async fn secure_api(protocols: &[&str]) -> (u16, Arc<Mutex<Vec<Version>>>) {
    let certificates = vec![CertificateDer::from_pem_file(data("server.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(data("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let versions = seen.clone();
    beside(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, versions) = (acceptor.clone(), versions.clone());
            beside(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(move |request: Request<Incoming>| {
                    versions.lock().unwrap().push(request.version());
                    let answer = Response::builder().header("content-type", "application/json");
                    let answer = answer.header("set-cookie", "account=1").header("openai-organization", "org-1");
                    async move { Ok::<_, Infallible>(answer.body(Full::new(Bytes::from(HOSTED))).unwrap()) }
                });
                let server = auto::Builder::new(TokioExecutor::new());
                // A client that hangs up is no failure of the test.
                server.serve_connection(TokioIo::new(stream), service).await.unwrap_or_default();
            });
        }
    });
    (port, seen)
}

async fn gateway_to(port: u16, trust: &str) -> (ScriptedReplica, TestGateway) {
    let replica = ScriptedReplica::start();
    let target = format!("{{ url: \"https://localhost:{port}/v1\", model: hosted-x, api_key: sk-hosted{trust} }}");
    let gateway = TestGateway::with(Config::new(std::slice::from_ref(&replica)).model(&targets(&[target]))).await;
    replica.plays(full());
    (replica, gateway)
}

#[tokio::test]
async fn http_2_is_spoken_where_it_is_offered_and_nothing_of_the_account_is_passed_on() {
    for (protocols, version) in [(&["h2", "http/1.1"][..], Version::HTTP_2), (&["http/1.1"], Version::HTTP_11)] {
        let (port, seen) = secure_api(protocols).await;
        let (_replica, gateway) = gateway_to(port, &format!(", ca_file: {}", data("ca.pem").display())).await;

        let answer = gateway.send(&client::Request::chat("x")).await;

        assert!(answer.is_good() && answer.has("hosted"), "{answer:?} {}", gateway.program_log());
        assert_eq!(*seen.lock().unwrap(), [version]);
        assert_eq!((answer.header("set-cookie"), answer.header("openai-organization")), (None, None));
    }
}

#[tokio::test]
async fn a_server_that_nobody_vouches_for_is_not_sent_the_request() {
    let (port, seen) = secure_api(&["h2"]).await;
    for trust in ["", ", roots: native"] {
        let (_replica, gateway) = gateway_to(port, trust).await;

        let answer = gateway.send(&client::Request::chat("x")).await;

        assert_eq!(answer.status, 503);
        assert!(gateway.program_log().contains("certificate"), "{}", gateway.program_log());
    }
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_file_of_certificates_that_is_none_stops_the_start() {
    let replica = ScriptedReplica::start();
    for (file, says) in [(data("none.pem"), "cannot be read"), (data("server.key"), "no certificate")] {
        let target = format!("{{ url: https://h/v1, model: x, ca_file: {} }}", file.display());
        let log = TestGateway::refused(Config::new(std::slice::from_ref(&replica)).model(&targets(&[target]))).await;
        assert!(log.contains("ca_file") && log.contains(says), "{log}");
    }
}
