//! Which pool serves a model name. One immutable snapshot, replaced when models or replicas change.

use std::{collections::HashMap, sync::Arc};

use serde_json::{Value, json};

use crate::{
    error::{ErrorKind, GatewayError, Stage},
    proxy::pool::Pool,
};

/// Longest model name that an error repeats.
const SHOWN_NAME: usize = 64;

/// Pools by the names that clients may send.
#[derive(Debug, Default)]
pub struct Directory {
    pools: Vec<Arc<Pool>>,
    by_name: HashMap<Arc<str>, Arc<Pool>>,
    /// Whether every model is known: false while a replica of an open pool has not named its models.
    complete: bool,
}

impl Directory {
    /// A directory of pools, each with its aliases.
    #[must_use]
    pub fn new(pools: Vec<(Arc<Pool>, Vec<String>)>, complete: bool) -> Self {
        let mut directory = Self { complete, ..Self::default() };
        for (pool, aliases) in pools {
            let names = aliases.into_iter().map(Arc::from).chain([pool.name().clone()]);
            directory.by_name.extend(names.map(|name| (name, pool.clone())));
            directory.pools.push(pool);
        }
        directory
    }

    /// All pools.
    #[must_use]
    pub fn pools(&self) -> &[Arc<Pool>] {
        &self.pools
    }

    /// The pool for a requested model; a request without one gets the only pool.
    ///
    /// # Errors
    /// `NoModel` for an unknown name, `NoReplica` while the names are not known yet, `BadRequest` for no name.
    pub fn find(&self, model: Option<&str>) -> Result<&Arc<Pool>, GatewayError> {
        let Some(name) = model else { return self.only() };
        if let Some(pool) = self.by_name.get(name) {
            return Ok(pool);
        }
        if !self.complete {
            return Err(super::forward::no_replica());
        }
        let shown: String = name.chars().take(SHOWN_NAME).collect();
        let message = format!("the model `{shown}` does not exist here; GET /v1/models lists those that do");
        Err(GatewayError::new(ErrorKind::NoModel, Stage::Scan, message).param("model"))
    }

    fn only(&self) -> Result<&Arc<Pool>, GatewayError> {
        match self.pools.as_slice() {
            [pool] => Ok(pool),
            [] => Err(super::forward::no_replica()),
            _ => {
                let message = "the request names no model and this gateway serves several; set `model`";
                Err(GatewayError::new(ErrorKind::BadRequest, Stage::Scan, message).param("model"))
            }
        }
    }

    /// The body of `GET /v1/models`: the union of what the replicas serve, under the names that clients may send, of
    /// the models that this client may use.
    ///
    /// # Errors
    /// `NoReplica` while nothing is known.
    pub fn models(&self, may_use: &dyn Fn(&str) -> bool) -> Result<Value, GatewayError> {
        if self.pools.is_empty() {
            return Err(super::forward::no_replica());
        }
        let mut names: Vec<(&Arc<str>, &Arc<Pool>)> =
            self.by_name.iter().filter(|(_, pool)| may_use(pool.name())).collect();
        names.sort_by(|a, b| a.0.cmp(b.0));
        let data: Vec<Value> = names.into_iter().map(|(name, pool)| entry(name, pool)).collect();
        Ok(json!({ "object": "list", "data": data }))
    }
}

/// One model as OpenAI lists it, with what the first replica that serves it says besides.
fn entry(name: &str, pool: &Pool) -> Value {
    let members = pool.members();
    let served = members.iter().find_map(|member| {
        member.replica.models().iter().find(|served| *served.id == **pool.upstream_model()).cloned()
    });
    let mut entry = served
        .and_then(|served| serde_json::from_str::<Value>(&served.raw).ok())
        .filter(Value::is_object)
        .unwrap_or_else(|| json!({ "object": "model", "created": 0, "owned_by": "gateway" }));
    if let Some(object) = entry.as_object_mut() {
        object.insert("id".to_owned(), Value::from(name));
    }
    entry
}
