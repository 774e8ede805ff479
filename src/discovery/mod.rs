//! Where a pool's replicas are: a fixed list, or the addresses of a DNS name. One file each.
//!
//! A discovery only *names* replicas; whether one may be used is decided by probing it. So when in doubt it keeps a
//! name: a replica that is gone costs a refused probe, one that was dropped by mistake costs its cache.

mod agreed;
mod dns;
mod fixed;

use futures_util::future::BoxFuture;

pub use dns::{Addresses, Dns, DnsError, DnsSettings, Hickory, Resolve};
pub use fixed::Static;

use crate::fleet::BaseUrl;

/// A source of replica addresses.
pub trait Discovery: Send {
    /// The next whole set, when it differs from the one before; the first as soon as it is known.
    ///
    /// Cancel-safe. Never ends; a source without news never resolves.
    fn next(&mut self) -> BoxFuture<'_, Vec<BaseUrl>>;
}
