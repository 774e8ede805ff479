//! What is loaded: the simulated engine in a thread of its own, or an address; and the model it serves.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use http::HeaderValue;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::client::Client;
use crate::{
    fleet::BaseUrl,
    simserver::{self, SimConfig},
};

/// Name of the simulated engine's model.
const MODEL: &str = "sim";

/// A simulated engine on its own thread, so that it and the client disturb each other no more than two processes do.
#[derive(Debug)]
pub struct Mock {
    /// Where it listens.
    pub base: BaseUrl,
    stop: CancellationToken,
}

impl Drop for Mock {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Mock {
    /// Starts one.
    ///
    /// # Errors
    /// When no thread or listener can be had.
    pub async fn start() -> anyhow::Result<Self> {
        let stop = CancellationToken::new();
        let (ready, address) = oneshot::channel();
        let over = stop.clone();
        let serve = move || -> anyhow::Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let engine =
                    simserver::start(SimConfig::vllm(MODEL), SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
                // Nobody waits any more: nothing to serve.
                if ready.send(engine.addr).is_ok() {
                    over.cancelled().await;
                }
                engine.shutdown().await;
                Ok(())
            })
        };
        std::thread::Builder::new().name("loadtest-mock".into()).spawn(serve)?;
        let address = address.await.context("the simulated engine did not start")?;
        Ok(Self { base: format!("http://{address}").parse()?, stop })
    }
}

/// The first model that a target serves.
///
/// # Errors
/// When it cannot be asked or serves none.
pub async fn first_model(client: &Client, key: Option<&HeaderValue>) -> anyhow::Result<String> {
    let path = format!("{}/v1/models", client.base().path);
    let page = client.get(&path, key).await;
    let shown = client.base().url("/v1/models");
    let page = page.with_context(|| format!("cannot ask {shown} for a model; give --model"))?;
    let models: Value = serde_json::from_slice(&page).with_context(|| format!("{shown} is no JSON; give --model"))?;
    let first = models.pointer("/data/0/id").and_then(Value::as_str);
    first.map(str::to_owned).with_context(|| format!("{shown} names no model; give --model"))
}
