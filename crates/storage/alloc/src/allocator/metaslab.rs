//! One metaslab, shared between threads.

use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::sync::{Mutex, MutexGuard};

use super::state::MetaslabState;
use crate::replay::load_metaslab_with;
use crate::{AllocError, Metaslab, SpaceMapStore};

/// A metaslab and its locks. Lock order: `map_access`, then the state. The state's lock is held briefly and
/// never during I/O.
#[derive(Debug)]
pub(super) struct MetaslabAllocator {
    pub(super) place: Metaslab,
    /// Held while the own map is read or written, so that a reader never sees a partial write.
    pub(super) map_access: Mutex<(), rank::MetaslabMap>,
    state: Mutex<MetaslabState, rank::MetaslabState>,
    /// The latest [`MetaslabState::largest_bytes`], for choosing a metaslab without the lock.
    largest: AtomicU64,
    is_loaded: AtomicBool,
    /// Whether it is in the registry's list of changed metaslabs, or about to be.
    is_listed: AtomicBool,
    /// Whether its map could not be read: it is not used then.
    is_broken: AtomicBool,
}

impl MetaslabAllocator {
    pub(super) fn new(state: MetaslabState) -> Self {
        Self {
            place: state.place.clone(),
            map_access: Mutex::new(()),
            largest: AtomicU64::new(state.largest_bytes()),
            is_loaded: AtomicBool::new(state.is_loaded()),
            is_listed: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }
    /// Runs `work` on the state, then updates the copies that are read without the lock.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut MetaslabState) -> R) -> R {
        let mut state = self.state.lock();
        let result = work(&mut state);
        self.publish(&state);
        result
    }
    fn publish(&self, state: &MutexGuard<'_, MetaslabState>) {
        self.largest.store(state.largest_bytes(), Ordering::Relaxed);
        self.is_loaded.store(state.is_loaded(), Ordering::Relaxed);
    }
    /// A recent upper bound of the largest free piece.
    pub(super) fn largest_bytes(&self) -> u64 {
        if self.is_broken.load(Ordering::Relaxed) {
            return 0;
        }
        self.largest.load(Ordering::Relaxed)
    }
    /// Marks it as listed; returns whether it was not.
    pub(super) fn list(&self) -> bool {
        !self.is_listed.swap(true, Ordering::AcqRel)
    }
    pub(super) fn unlist(&self) {
        self.is_listed.store(false, Ordering::Release);
    }
    pub(super) fn is_loaded(&self) -> bool {
        self.is_loaded.load(Ordering::Relaxed)
    }
    /// Loads the free space from the own map unless it is loaded. Other threads that need this metaslab
    /// wait; those that use other metaslabs do not.
    ///
    /// # Errors
    /// If the map cannot be read or contradicts itself; nothing is allocated here from then on.
    pub(super) fn load(&self, store: &dyn SpaceMapStore) -> Result<(), AllocError> {
        if self.is_loaded() {
            return Ok(());
        }
        let access = self.map_access.lock();
        let unflushed = self.with(|state| (!state.is_loaded()).then(|| state.unflushed.clone()));
        let Some(unflushed) = unflushed else {
            return Ok(());
        };
        let loaded = load_metaslab_with(store, self.place.clone(), Some(&unflushed))
            .and_then(|space| self.with(|state| state.load(space)));
        self.is_broken.store(loaded.is_err(), Ordering::Relaxed);
        drop(access);
        loaded
    }
}
