//! Who wants to know that a replica may have room again.

use std::{
    fmt,
    sync::{Mutex, PoisonError, Weak},
};

use arc_swap::ArcSwap;

/// Told when a request at a replica ended or began to answer, and when the replica's health or load was heard of.
///
/// Called from drops and from the watch of a replica: it must be quick and must not charge the replica itself.
pub trait Freed: Send + Sync {
    /// The replica may have room.
    fn freed(&self);
}

/// The listeners of one replica: one for each pool that it serves.
#[derive(Default)]
pub(super) struct Listeners {
    list: ArcSwap<Vec<Weak<dyn Freed>>>,
    writing: Mutex<()>,
}

impl Listeners {
    /// Adds one, unless it is there, and lets go of those that are gone.
    pub(super) fn add(&self, listener: &Weak<dyn Freed>) {
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.list.load();
        if old.iter().any(|known| known.ptr_eq(listener)) {
            return;
        }
        let mut list: Vec<_> = old.iter().filter(|known| known.strong_count() > 0).cloned().collect();
        list.push(listener.clone());
        self.list.store(list.into());
    }

    pub(super) fn tell(&self) {
        for listener in self.list.load().iter().filter_map(Weak::upgrade) {
            listener.freed();
        }
    }
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listeners").field("count", &self.list.load().len()).finish()
    }
}
