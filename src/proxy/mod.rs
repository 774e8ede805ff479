//! One request, from bytes to bytes: the steps in the order in which a request meets them.
//!
//! Read `Proxy::steps` first: it is the documentation of the request path. Whatever happens, the [`Report`] that is
//! made on arrival ends the request exactly once, and the charge on a replica lives inside the response body.

pub mod admit;
mod attempt;
pub mod auth;
pub mod count;
pub mod cut;
pub mod directory;
pub mod fallback;
pub mod forward;
pub mod headers;
mod hold;
pub mod isolate;
mod judge;
pub mod key;
pub mod line;
pub mod poison;
pub mod pool;
pub mod rates;
pub mod read;
pub mod report;
pub mod tap;
pub mod wait;

use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use tokio::time::Instant;

use crate::{
    config::{FallbackOn, ServerPlan, Timeouts},
    dialect::splice::Splices,
    error::GatewayError,
    prompt::Counted,
    proxy::{
        admit::caps::{Limits, Output},
        auth::{Keys, Tenant},
        count::Prompt,
        cut::Cut,
        directory::Directory,
        fallback::{Fallback, Fallbacks, Hosted, HostedClients, Wish},
        forward::{Failed, Forward, ForwardLimits, Outgoing},
        isolate::Salts,
        poison::Suspects,
        pool::Pool,
        read::{BodyBudget, BodyLease, ReadLimits},
        report::Report,
        tap::TapLimits,
    },
    telemetry::Telemetry,
    types::{Asked, Endpoint},
    upstream::client::UpstreamClient,
};

/// What every request shares.
#[derive(Debug)]
pub struct Shared {
    /// Models and their replicas, as of now.
    pub directory: ArcSwap<Directory>,
    /// Who may ask; replaced as a whole when the configuration is read again.
    pub keys: ArcSwap<Keys>,
    /// Salts of isolated groups; `None` where none is.
    pub salts: Option<Salts>,
    /// Limits, timeouts, what answers show.
    pub server: ServerPlan,
    /// Metrics and the access log.
    pub telemetry: Arc<Telemetry>,
    /// Memory of all request bodies.
    pub bodies: Arc<BodyBudget>,
    /// Hosted models.
    pub fallbacks: Fallbacks,
    /// Requests that break replicas.
    pub suspects: Suspects,
}

/// The request path of one worker.
#[derive(Debug, Clone)]
pub struct Proxy {
    shared: Arc<Shared>,
    client: UpstreamClient,
    hosted: HostedClients,
}

/// A request as the steps after reading see it.
struct Arrived {
    endpoint: Endpoint,
    tenant: Option<Arc<Tenant>>,
    headers: HeaderMap,
    query: Option<String>,
    body: Bytes,
}

/// A request that may run, and what places it.
struct Admitted {
    pool: Arc<Pool>,
    out: Outgoing,
    affinity: Option<u64>,
    /// Output tokens of each choice, where the request asked for more.
    lowered: Option<u64>,
}

impl Proxy {
    /// A request path with its own connection pool.
    #[must_use]
    pub fn new(shared: Arc<Shared>, client: UpstreamClient, hosted: HostedClients) -> Self {
        Self { shared, client, hosted }
    }

    /// What every request shares.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Serves one request to a proxied endpoint.
    pub async fn serve(&self, endpoint: Endpoint, mut request: Request<Body>) -> Response<Body> {
        let id = headers::request_id(request.headers_mut());
        let report = Report::new(self.shared.telemetry.clone(), endpoint, id.clone(), Instant::now());
        let mut tenant = None;
        let mut response = match self.steps(endpoint, request, &mut tenant, report).await {
            Ok(response) => response,
            Err((error, mut report)) => {
                report.fail(&error);
                error.response().map(Body::from)
            }
        };
        response.headers_mut().insert(headers::REQUEST_ID, id);
        if let Some(tenant) = tenant {
            rates::tell(&tenant, response.headers_mut());
        }
        response
    }

    /// The steps of the request path. Their names are the `stage` of errors.
    async fn steps(
        &self,
        endpoint: Endpoint,
        request: Request<Body>,
        tenant: &mut Option<Arc<Tenant>>,
        mut report: Report,
    ) -> Result<Response<Body>, (GatewayError, Report)> {
        let arrived = match self.arrive(endpoint, request, &mut report).await {
            Ok(arrived) => arrived,
            Err(error) => return Err((error, report)),
        };
        // Holds the body's memory until no attempt needs it any more.
        let (arrived, _lease) = arrived;
        tenant.clone_from(&arrived.tenant);
        let Admitted { pool, out, affinity, lowered } = match self.admit(arrived, &mut report).await {
            Ok(admitted) => admitted,
            Err(error) => return Err((error, report)),
        };
        if let Err(error) = rates::charge(tenant.as_ref(), out.asked, &mut report) {
            return Err((error, report));
        }
        if let Err(error) = self.shared.suspects.check(endpoint, &out) {
            return Err((error, report));
        }
        // The fallback's futures are large and rare: kept off the way of all others.
        if let Some(hosted) = self.stays(&pool, &out) {
            match Box::pin(hosted.run(FallbackOn::Saturated, &out, report)).await {
                Ok(answer) => return Ok(answer),
                Err(missed) => report = missed.report,
            }
        }
        match self.replicas(&pool, &out, affinity, report).await {
            Ok(mut answer) => {
                if let Some(lowered) = lowered {
                    answer.headers_mut().insert(headers::MAX_TOKENS, lowered.into());
                }
                Ok(answer)
            }
            Err((failed, report)) => Box::pin(self.fall_back(&pool, &out, failed, report)).await,
        }
    }

    /// Steps 6 and 7: place, forward.
    async fn replicas(
        &self,
        pool: &Arc<Pool>,
        out: &Outgoing,
        affinity: Option<u64>,
        report: Report,
    ) -> Result<Response<Body>, (Failed, Report)> {
        let ready = match wait::place(pool, out, affinity).await {
            Ok(ready) => ready,
            Err(refused) => return Err((Failed::new(refused.why, refused.error), report)),
        };
        let limits = limits(&self.shared.server.timeouts);
        let forward = Forward { pool, client: &self.client, suspects: &self.shared.suspects, limits };
        forward.run(out, ready, report).await
    }

    /// The hosted models, for a conversation that spilled lately and goes on where it is.
    fn stays<'a>(&'a self, pool: &'a Arc<Pool>, out: &Outgoing) -> Option<Hosted<'a>> {
        let fallback = self.shared.fallbacks.of(pool).filter(|fallback| fallback.stays(&out.wish, Instant::now()))?;
        Some(self.hosted(fallback, pool, true))
    }

    /// Step 7b: no replica answered, and no byte went to the client. A hosted model, else the configured words, else
    /// the failure.
    async fn fall_back(
        &self,
        pool: &Arc<Pool>,
        out: &Outgoing,
        failed: Failed,
        report: Report,
    ) -> Result<Response<Body>, (GatewayError, Report)> {
        let (Some(why), Some(fallback)) = (failed.why, self.shared.fallbacks.of(pool)) else {
            return failed.answer.give(report).map_err(|failed| *failed);
        };
        let missed = match self.hosted(fallback, pool, false).run(why, out, report).await {
            Ok(answer) => return Ok(answer),
            Err(missed) => missed,
        };
        match fallback.degraded(out, missed.report) {
            Ok(answer) => Ok(answer),
            Err(report) => failed.passed_over(why, missed.skip).answer.give(*report).map_err(|failed| *failed),
        }
    }

    fn hosted<'a>(&'a self, fallback: &'a Fallback, pool: &'a Arc<Pool>, stays: bool) -> Hosted<'a> {
        let limits = limits(&self.shared.server.timeouts);
        Hosted { fallback, pool, clients: &self.hosted, limits, stays }
    }

    /// Steps 1 and 2: auth, read.
    async fn arrive(
        &self,
        endpoint: Endpoint,
        request: Request<Body>,
        report: &mut Report,
    ) -> Result<(Arrived, BodyLease), GatewayError> {
        let (head, body) = request.into_parts();
        report.traced(head.headers.get(headers::TRACEPARENT).cloned());
        let tenant = self.shared.keys.load().check(&head.headers)?;
        if let Some(tenant) = &tenant {
            report.authenticated(tenant.id().clone());
        }
        let limits = ReadLimits { size: self.shared.server.limits.body, idle: self.shared.server.timeouts.client_idle };
        let (body, lease) = read::read(body, limits, &self.shared.bodies).await?;
        report.received(Instant::now());
        let query = head.uri.query().map(str::to_owned);
        Ok((Arrived { endpoint, tenant, headers: head.headers, query, body }, lease))
    }

    /// Steps 3 to 5: scan, admit, key.
    async fn admit(&self, arrived: Arrived, report: &mut Report) -> Result<Admitted, GatewayError> {
        let Arrived { endpoint, tenant, mut headers, query, body } = arrived;
        let fields = admit::fields(&body)?;
        let model = admit::model(&body, &fields)?;
        let pool = self.shared.directory.load().find(model.as_deref())?.clone();
        let stream = endpoint.generates() && admit::wants_stream(&body, &fields);
        report.resolved(pool.clone(), stream);
        admit::allowed(tenant.as_deref(), &pool)?;
        let group = tenant.as_deref().and_then(Tenant::isolated_group);
        let chain = key::chain(&body, &fields, endpoint, &pool, group);
        let key = tenant.as_ref().and_then(|tenant| tenant.plan.caps.as_ref());
        let limits = Limits::new(pool.caps(), key);
        let mut output = Output::judge(&body, &fields, endpoint, limits)?;
        let prompt = Prompt { body: &body, fields: &fields, endpoint, bytes: chain.bytes() };
        let counted = self.hold(&pool, prompt, &mut output, &limits).await?;
        let asked = Asked {
            prompt: counted.tokens,
            output: output.limit().map_or(0, |each| each.saturating_mul(output.choices())),
        };
        if limits.bounds_output() && asked.output > 0 {
            let limit = asked.output.saturating_add(admit::echoes(&body, &fields, &output));
            report.capped(Cut::new(endpoint, limit, output.choices()));
        }
        report.prompt(chain.bytes());
        report.estimated(counted.weight);
        let mut splices = Splices::new();
        admit::drop_duplicates(&mut splices, &body, &fields);
        admit::rename(&mut splices, &body, &fields, pool.upstream_model());
        output.splice(&mut splices);
        let lowered = output.limit().filter(|_| output.lowered());
        let hide_usage = stream && endpoint.has_stream_options() && admit::ask_for_usage(&mut splices, &body, &fields);
        if let Some(isolated) = self.shared.salts.as_ref().zip(group) {
            isolate::isolate(&mut splices, &body, &fields, endpoint, isolated)?;
        }
        let affinity = key::affinity(&headers, &body, &fields);
        let wish = match self.shared.fallbacks.of(&pool) {
            Some(_) => Wish::new(&headers, tenant.as_deref(), model.as_deref().unwrap_or(pool.name())).in_talk(
                &body,
                &fields,
                tenant.as_deref(),
            ),
            None => Wish::default(),
        };
        headers::to_replica(&mut headers);
        if group.is_some() {
            // What is compressed cannot be masked.
            headers.remove(header::ACCEPT_ENCODING);
        }
        let body = splices.apply(&body);
        let expose = self.shared.server.expose_routing && group.is_none();
        let mask = group.is_some();
        let out = Outgoing { tenant, headers, query, body, stream, hide_usage, expose, chain, asked, mask, wish };
        Ok(Admitted { pool, out, affinity, lowered })
    }

    /// Holds a prompt to its cap, and prompt and output to the model's context.
    async fn hold(
        &self,
        pool: &Pool,
        prompt: Prompt<'_>,
        output: &mut Output<'_>,
        limits: &Limits,
    ) -> Result<Counted, GatewayError> {
        let context = if prompt.endpoint.generates() { pool.context() } else { None };
        // What is no more than this needs no count; the engine's own counting endpoints run no model.
        let counting = matches!(prompt.endpoint, Endpoint::Tokenize | Endpoint::Detokenize);
        let cap = limits.prompt.filter(|_| !counting);
        let room = context.map(|context| context.least.saturating_sub(output.limit().unwrap_or(1)));
        let enough = cap.into_iter().chain(room).min();
        let counted = pool.counter().count(pool, &self.client, prompt, enough).await;
        admit::context::hold_prompt(&counted, limits)?;
        if let Some(context) = context {
            admit::context::fit(&counted, output, context, limits, count::engine(pool))?;
        }
        Ok(counted)
    }
}

fn limits(timeouts: &Timeouts) -> ForwardLimits {
    ForwardLimits {
        first_event_hold: timeouts.first_event_hold,
        tap: TapLimits { first_token: timeouts.first_token, idle: timeouts.stream_idle, total: timeouts.total },
    }
}
