//! What the admin port shows of the running gateway.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    proxy::{
        Shared,
        pool::{Member, Pool},
    },
    server::admin::AdminView,
};

/// The running gateway as the admin port sees it.
#[derive(Debug)]
pub(super) struct View {
    pub(super) shared: Arc<Shared>,
    pub(super) drain: CancellationToken,
}

impl View {
    /// Sets the gauges that are read, not counted, so that a scrape sees this moment.
    fn refresh(&self, now: Instant) {
        self.shared.fallbacks.refresh();
        self.shared.telemetry.body_memory(self.shared.bodies.used());
        for pool in self.shared.directory.load().pools() {
            pool.metrics().index(pool.index().len(), pool.index().evictions());
            for Member { replica, metrics, .. } in pool.members().iter() {
                metrics.up(replica.standing(now).usable());
                metrics.inflight(replica.in_flight());
                match replica.load(now) {
                    Some(load) => {
                        metrics.waiting(load.waiting);
                        if let Some(share) = load.kv_usage {
                            metrics.kv_usage(share);
                        }
                    }
                    None => metrics.load_unknown(),
                }
            }
        }
    }
}

impl AdminView for View {
    fn metrics(&self) -> String {
        self.refresh(Instant::now());
        self.shared.telemetry.render()
    }

    fn ready(&self) -> bool {
        let now = Instant::now();
        let usable = |pool: &Arc<Pool>| pool.members().iter().any(|member| member.replica.usable(now));
        !self.drain.is_cancelled() && self.shared.directory.load().pools().iter().any(usable)
    }

    fn replicas(&self) -> Value {
        let now = Instant::now();
        let directory = self.shared.directory.load();
        let rows = directory.pools().iter().flat_map(|pool| {
            let pool = pool.clone();
            pool.members().iter().map(move |member| row(&pool, member, now)).collect::<Vec<_>>()
        });
        Value::from(rows.collect::<Vec<_>>())
    }

    fn models(&self) -> Value {
        let directory = self.shared.directory.load();
        let rows = directory.pools().iter().map(|pool| {
            json!({
                "model": **pool.name(),
                "upstream_model": **pool.upstream_model(),
                "policy": pool.policy(),
                "replicas": pool.members().len(),
                "index_entries": pool.index().len(),
                "index_capacity": pool.index().capacity(),
                "bytes_per_token": pool.bytes_per_token(),
            })
        });
        Value::from(rows.collect::<Vec<_>>())
    }
}

fn row(pool: &Pool, member: &Member, now: Instant) -> Value {
    let replica = &member.replica;
    let standing = replica.standing(now);
    let load = replica.load(now);
    json!({
        "model": **pool.name(),
        "replica": replica.label(),
        "engine": replica.engine_known().then(|| replica.engine().label()),
        "up": replica.up(),
        "usable": standing.usable(),
        "ejected": replica.ejected(),
        "in_flight": replica.in_flight(),
        "limit": replica.limit(),
        "running": load.map(|load| load.running),
        "waiting": load.map(|load| load.waiting),
        "kv_usage": load.and_then(|load| load.kv_usage),
        "cache_tokens": load.and_then(|load| load.cache_tokens),
        "generation": replica.generation(),
        "models": replica.models().iter().map(|served| served.id.to_string()).collect::<Vec<_>>(),
    })
}
