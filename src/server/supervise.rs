//! Keeps the pools' members: asks discovery, watches each replica, and publishes the directory of models.
//!
//! A replica that two pools name with the same key is one replica: its load and its health are one. All changes go
//! through one mutex that is held for moments; the request path only reads the published snapshots.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use secrecy::{ExposeSecret, SecretString};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{error, info};

use crate::{
    config::{DiscoveryPlan, OpenPlan, Plan, ReplicaPlan, TokenizerPlan},
    discovery::{Discovery, Dns, DnsSettings, Hickory, Static},
    fleet::{BaseUrl, Replica, ReplicaSpec, Slots},
    prompt::PromptCounter,
    proxy::{
        Shared,
        count::Mode,
        directory::Directory,
        pool::{Member, Pool, PoolParts},
    },
    types::EngineKind,
    upstream::control::{Change, Watch, watch_replica},
};

/// Models that replicas may bring by themselves: each has an index and metric series.
const OPEN_POOLS: usize = 256;

/// How replicas of one group are reached.
#[derive(Debug, Clone)]
struct Access {
    api_key: Option<SecretString>,
    engine: Option<EngineKind>,
    limit: u32,
}

/// A set of replicas from one source, and the pool that it feeds; without one, the pools follow the models served.
#[derive(Debug)]
struct Group {
    pool: Option<(Arc<Pool>, Vec<String>)>,
    access: Access,
    replicas: Vec<Arc<Replica>>,
}

/// A watched replica and how many groups name it.
#[derive(Debug)]
struct Watched {
    replica: Arc<Replica>,
    users: usize,
    stop: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    groups: Vec<Group>,
    /// By address and key.
    watched: BTreeMap<(String, Option<String>), Watched>,
    /// Pools that follow the models served, by model.
    open: BTreeMap<Arc<str>, Arc<Pool>>,
}

/// Keeps members and directory.
#[derive(Debug)]
pub(super) struct Supervisor {
    shared: Arc<Shared>,
    plan: Arc<Plan>,
    watch: Watch,
    tasks: TaskTracker,
    slots: Slots,
    state: Mutex<State>,
}

impl Supervisor {
    /// Starts discovery and watches for everything in the plan.
    #[must_use]
    pub(super) fn start(shared: Arc<Shared>, plan: Arc<Plan>, watch: Watch, tasks: TaskTracker) -> Arc<Self> {
        let supervisor = Arc::new(Self { shared, plan, watch, tasks, slots: Slots::new(), state: Mutex::default() });
        let mut sources: Vec<Box<dyn Discovery>> = Vec::new();
        let mut groups = Vec::new();
        for model in &supervisor.plan.models {
            let parts = PoolParts {
                name: model.name.clone(),
                upstream_model: model.upstream_model.as_deref().map_or_else(|| model.name.clone(), Arc::from),
                caps: model.caps.clone(),
                slo: model.slo.clone(),
                concurrency: &model.concurrency,
                routing: &model.routing,
                counting: counting(model.tokenizer.as_ref(), model.counter.as_ref()),
                context: model.context,
            };
            let pool = Arc::new(Pool::new(parts, &supervisor.shared.telemetry));
            let access =
                Access { api_key: model.api_key.clone(), engine: model.engine, limit: model.concurrency.per_replica };
            groups.push(Group { pool: Some((pool, model.aliases.clone())), access, replicas: Vec::new() });
            sources.push(source(&model.replicas, model.discovery.as_ref()));
        }
        if let Some(open) = &supervisor.plan.open {
            let access = Access { api_key: None, engine: open.engine, limit: open.concurrency.per_replica };
            groups.push(Group { pool: None, access, replicas: Vec::new() });
            sources.push(source(&open.replicas, None));
        }
        supervisor.state().groups = groups;
        for (group, mut source) in sources.into_iter().enumerate() {
            let this = supervisor.clone();
            let stop = this.watch.stop.clone();
            let follow = async move {
                while let Some(replicas) = stop.run_until_cancelled(source.next()).await {
                    this.set_replicas(group, replicas);
                }
            };
            supervisor.tasks.spawn(follow);
        }
        supervisor
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A source names its whole set anew.
    fn set_replicas(self: &Arc<Self>, group: usize, bases: Vec<BaseUrl>) {
        let mut state = self.state();
        let state = &mut *state;
        let Some(Group { access, replicas, .. }) = state.groups.get_mut(group) else { return };
        let access = access.clone();
        let before = std::mem::take(replicas);
        let mut now: Vec<Arc<Replica>> = Vec::with_capacity(bases.len());
        for base in bases {
            let known = before.iter().find(|replica| *replica.base() == base).cloned();
            let replica = known.or_else(|| self.acquire(&mut state.watched, base, &access));
            now.extend(replica.filter(|replica| !now.iter().any(|other| Arc::ptr_eq(other, replica))));
        }
        for gone in before.iter().filter(|replica| !now.iter().any(|kept| Arc::ptr_eq(kept, replica))) {
            self.release(&mut state.watched, gone, &access);
            for pool in state
                .groups
                .get(group)
                .and_then(|group| group.pool.as_ref())
                .map(|(pool, _)| pool)
                .into_iter()
                .chain(state.open.values())
            {
                self.shared.telemetry.forget_replica(pool.name(), gone.label());
            }
        }
        if let Some(group) = state.groups.get_mut(group) {
            group.replicas = now;
        }
        self.publish(state);
    }

    fn acquire(
        self: &Arc<Self>,
        watched: &mut BTreeMap<(String, Option<String>), Watched>,
        base: BaseUrl,
        access: &Access,
    ) -> Option<Arc<Replica>> {
        let key = (base.label(), access.api_key.as_ref().map(|key| key.expose_secret().to_owned()));
        if let Some(known) = watched.get_mut(&key) {
            known.users += 1;
            return Some(known.replica.clone());
        }
        let Some((slot, generation)) = self.slots.take() else {
            error!(replica = %key.0, limit = crate::types::MAX_REPLICAS, "too many replicas; this one is not used");
            return None;
        };
        info!(replica = %key.0, "replica added");
        let spec = ReplicaSpec { base, api_key: access.api_key.clone(), engine: access.engine, limit: access.limit };
        let replica = Replica::with_generation(slot, generation, spec);
        let stop = self.watch.stop.child_token();
        let watch = Watch { stop: stop.clone(), ..self.watch.clone() };
        let this = Arc::downgrade(self);
        let on_change = Arc::new(move |_: &Replica, change: Change| {
            if matches!(change, Change::Models | Change::Up)
                && let Some(this) = this.upgrade()
            {
                this.publish(&mut this.state());
            }
        });
        self.tasks.spawn(watch_replica(replica.clone(), watch, on_change));
        watched.insert(key, Watched { replica: replica.clone(), users: 1, stop });
        Some(replica)
    }

    fn release(
        &self,
        watched: &mut BTreeMap<(String, Option<String>), Watched>,
        replica: &Arc<Replica>,
        access: &Access,
    ) {
        let key = (replica.label().to_owned(), access.api_key.as_ref().map(|key| key.expose_secret().to_owned()));
        let Some(known) = watched.get_mut(&key) else { return };
        known.users -= 1;
        if known.users == 0 {
            info!(replica = %key.0, "replica removed");
            known.stop.cancel();
            self.slots.give_back(replica.slot(), replica.generation());
            watched.remove(&key);
        }
    }

    /// Gives each pool its members and makes the directory of what clients may ask for.
    fn publish(&self, state: &mut State) {
        let mut listed = Vec::new();
        let mut complete = true;
        for group in &state.groups {
            if let Some((pool, aliases)) = &group.pool {
                pool.set_members(self.members(pool, group.replicas.iter()));
                listed.push((pool.clone(), aliases.clone()));
                continue;
            }
            complete &= group.replicas.iter().all(|replica| replica.models_known());
            let Some(plan) = &self.plan.open else { continue };
            self.follow_models(&mut state.open, &group.replicas, plan);
            for pool in state.open.values() {
                let serving = group.replicas.iter().filter(|replica| replica.serves(pool.name()));
                pool.set_members(self.members(pool, serving));
                listed.push((pool.clone(), Vec::new()));
            }
        }
        self.shared.directory.store(Arc::new(Directory::new(listed, complete)));
    }

    /// Makes the pools of models that are served now, and drops those that no replica serves any more. A replica that is
    /// down keeps its last word, so its models stay.
    fn follow_models(&self, open: &mut BTreeMap<Arc<str>, Arc<Pool>>, replicas: &[Arc<Replica>], plan: &OpenPlan) {
        open.retain(|name, pool| {
            let served = replicas.iter().any(|replica| replica.serves(name));
            if !served {
                info!(model = %name, "model is no longer served");
                for member in pool.members().iter() {
                    self.shared.telemetry.forget_replica(name, member.replica.label());
                }
            }
            served
        });
        for replica in replicas {
            for served in replica.models().iter().filter(|served| !served.id.is_empty()) {
                if !open.contains_key(&served.id) {
                    if open.len() >= OPEN_POOLS {
                        error!(
                            replica = replica.label(),
                            limit = OPEN_POOLS,
                            "too many models; the rest is not served"
                        );
                        break;
                    }
                    open.insert(served.id.clone(), Arc::new(self.open_pool(&served.id, plan)));
                }
            }
        }
    }

    fn open_pool(&self, model: &Arc<str>, plan: &OpenPlan) -> Pool {
        let parts = PoolParts {
            name: model.clone(),
            upstream_model: model.clone(),
            caps: plan.caps.clone(),
            slo: plan.slo.clone(),
            concurrency: &plan.concurrency,
            routing: &plan.routing,
            counting: Mode::default(),
            context: None,
        };
        Pool::new(parts, &self.shared.telemetry)
    }

    fn members<'a>(&self, pool: &Pool, replicas: impl Iterator<Item = &'a Arc<Replica>>) -> Vec<Member> {
        replicas
            .map(|replica| {
                let metrics = self.shared.telemetry.replica(pool.name(), replica.label());
                Member::new(replica.clone(), metrics)
            })
            .collect()
    }
}

/// How a model's configuration wants its prompts counted.
fn counting(plan: Option<&TokenizerPlan>, counter: Option<&Arc<PromptCounter>>) -> Mode {
    match (plan, counter) {
        (Some(TokenizerPlan::Engine), _) => Mode::Engine,
        (Some(TokenizerPlan::File { .. }), Some(counter)) => Mode::Tokenizer(counter.clone()),
        _ => Mode::Estimate,
    }
}

fn source(replicas: &[ReplicaPlan], discovery: Option<&DiscoveryPlan>) -> Box<dyn Discovery> {
    let fixed = || Box::new(Static::new(replicas.iter().map(|replica| replica.url.clone()).collect()));
    let Some(DiscoveryPlan::Dns { host, port, interval, scheme, path }) = discovery else { return fixed() };
    let settings = DnsSettings {
        host: host.clone(),
        port: *port,
        interval: *interval,
        scheme: if scheme == "https" { http::uri::Scheme::HTTPS } else { http::uri::Scheme::HTTP },
        path: path.clone(),
    };
    match Hickory::from_system() {
        Ok(resolver) => Box::new(Dns::new(resolver, settings)),
        Err(problem) => {
            error!(%problem, host, "DNS discovery is off: the system's resolver settings cannot be read");
            fixed()
        }
    }
}
