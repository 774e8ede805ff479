//! What a routing policy may know of one replica.
//!
//! The policies themselves live beside this; the type is here so that `fleet` can build it.

use crate::types::ReplicaSlot;

/// What a policy may know of one usable replica, taken at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReplicaView {
    /// Number of the replica.
    pub slot: ReplicaSlot,
    /// Process generation: entries of the prefix index of another generation do not count.
    pub generation: u8,
    /// Requests of this gateway that are at the replica now.
    pub in_flight: u32,
    /// Running requests by the engine's own word; 0 if unknown or stale.
    pub running: u32,
    /// Queued requests by the engine's own word; 0 if unknown or stale.
    pub waiting: u32,
    /// Prompt tokens charged whose first output token has not been seen.
    pub pending_prefill: u64,
    /// Share of the KV pool in use, 0 to 1.
    pub kv_usage: Option<f32>,
    /// Prompt blocks that its prefix cache can hold.
    pub capacity_blocks: Option<u32>,
    /// Blocks inserted so far, wrapping.
    pub clock: u32,
    /// Most requests in flight.
    pub limit: u32,
    /// Hash of the label: the same in every gateway, so that rendezvous orders agree.
    pub id_hash: u64,
}
