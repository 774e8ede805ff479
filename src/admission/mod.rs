//! Room and turn: whether a replica takes one more request, who is next when none does, and what to tell the rest.
//!
//! Pure: no clock (`now` is an argument), no I/O, no waiting. [`crate::proxy`] holds the futures that wait; here is
//! the order in which they go and the arithmetic of how long that takes.
//! Source: DESIGN section 2, "Admission"; Shreedhar and Varghese, "Efficient Fair Queuing Using Deficit Round Robin"
//! (SIGCOMM 1995).

mod queue;
mod rate;
mod room;

pub use queue::{FairQueue, Place, TenantId, Ticket};
pub use rate::ServiceRate;
pub use room::{Bounds, Signals};
