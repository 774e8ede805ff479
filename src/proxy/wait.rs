//! Step 6: a place at a replica, at once or in turn.
//!
//! A request goes at once when nobody waits and a usable replica has room. Otherwise it lines up, unless that is of no
//! use: the line is full, or by its pace the request would come too late. Refusals are immediate.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    admission::{TenantId, Ticket},
    config::FallbackOn,
    error::{ErrorKind, GatewayError, Stage},
    fleet::Freed,
    proxy::{
        auth::Tenant,
        forward::{self, Outgoing},
        line::{Line, Turned, Word},
        pool::{Pool, Ready, Unplaced, Wanted},
    },
    types::{Asked, Priority},
};

/// Output tokens that a request counts for in the line when nothing bounds them; most answers are shorter.
const UNBOUNDED_OUTPUT: u64 = 512;

/// Why a request got no place, and what the client is told if it goes nowhere else.
#[derive(Debug)]
pub struct Refused {
    /// The pool is full or down; `None` when the tenant's own requests are in the way, which no hosted model is for.
    pub why: Option<FallbackOn>,
    /// The answer.
    pub error: GatewayError,
}

/// A place for a request.
///
/// # Errors
/// `Down` when no replica is usable. `Saturated` when all are full and it may not or could not wait any longer: 429 if
/// its tenant fills the line, else 503, with a `Retry-After` from what waits.
pub async fn place(pool: &Arc<Pool>, out: &Outgoing, affinity: Option<u64>) -> Result<Ready, Refused> {
    let wanted = Wanted { chain: &out.chain, affinity, random: rand::random() };
    let now = Instant::now();
    if !pool.line().is_busy() {
        match pool.place(&wanted, now) {
            Ok(ready) => return Ok(ready),
            Err(Unplaced::Down) => return Err(down()),
            Err(Unplaced::Full) => {}
        }
    }
    let mut waiting = Line::enter(pool, ticket(out), now).map_err(|turned| full(pool, turned_away(turned)))?;
    let deadline = now + pool.line().limits().timeout;
    loop {
        // Room that came before this one had lined up was told to nobody.
        pool.freed();
        match timeout_at(deadline, waiting.word()).await {
            Err(_) => {
                return Err(full(pool, (ErrorKind::QueueTimeout, "no replica had room within the queue's limit")));
            }
            Ok(Word::Down) => return Err(down()),
            Ok(Word::Evicted) => return Err(full(pool, turned_away(Turned::OwnFault))),
            Ok(Word::Go) => match pool.place(&wanted, Instant::now()) {
                Ok(ready) => {
                    let placed = Instant::now();
                    waiting.placed(placed);
                    return Ok(Ready { waited: placed - now, ..ready });
                }
                Err(Unplaced::Down) => return Err(down()),
                Err(Unplaced::Full) => waiting.again(),
            },
        }
    }
}

fn ticket(out: &Outgoing) -> Ticket {
    let Asked { prompt, output } = out.asked;
    let output = if output == 0 { UNBOUNDED_OUTPUT } else { output };
    let tenant = out.tenant.as_deref();
    Ticket {
        class: tenant.map_or_else(Priority::default, |tenant| tenant.plan.priority),
        tenant: tenant_id(tenant),
        cost: prompt.saturating_add(output),
    }
}

/// Keys of one group share their turns.
fn tenant_id(tenant: Option<&Tenant>) -> TenantId {
    let name = tenant.map(|tenant| tenant.plan.group.as_deref().unwrap_or_else(|| tenant.id()));
    TenantId(name.map_or(0, |name| xxh3_64(name.as_bytes())))
}

fn down() -> Refused {
    Refused { why: Some(FallbackOn::Down), error: forward::no_replica() }
}

fn full(pool: &Pool, (kind, message): (ErrorKind, &str)) -> Refused {
    let error = GatewayError::new(kind, Stage::Place, message).retry_after(pool.line().retry_after());
    let why = (kind != ErrorKind::OverShare).then_some(FallbackOn::Saturated);
    Refused { why, error }
}

fn turned_away(turned: Turned) -> (ErrorKind, &'static str) {
    match turned {
        Turned::Full => (ErrorKind::QueueFull, "every replica of this model is full and so is the queue"),
        Turned::OwnFault => {
            (ErrorKind::OverShare, "your requests fill this model's queue; send fewer at a time, or wait")
        }
        Turned::TooLong => (ErrorKind::Saturated, "every replica of this model is full and the queue is too long"),
    }
}
