//! The end of a view: from when on blocks of its state may be in use again.

use millpond_env::rank;
use millpond_env::sync::RwLock;
use millpond_env::sync::atomic::{AtomicBool, Ordering};

/// Whether blocks of the state that a view reads may be in use again.
///
/// Lock: one, held for reading across the write of a repair. So no repair is still under way when the space
/// of its block is allocated again.
#[derive(Debug, Default)]
pub struct ViewExpiry {
    has_expired: AtomicBool,
    repairs: RwLock<(), rank::ViewRepairs>,
}

impl ViewExpiry {
    /// Whether the view has expired.
    #[must_use]
    pub fn has_expired(&self) -> bool {
        self.has_expired.load(Ordering::Acquire)
    }
    /// Ends the view, after the repairs that are being written. Call it before space of the state is reused.
    pub fn expire(&self) {
        self.has_expired.store(true, Ordering::Release);
        drop(self.repairs.write());
    }
    /// Runs `write`, and keeps the view from expiring meanwhile. `None` if it has expired.
    pub(crate) fn during<R>(&self, write: impl FnOnce() -> R) -> Option<R> {
        let _not_yet = self.repairs.read();
        (!self.has_expired()).then(write)
    }
}
