//! One metaslab as many threads see it.

use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::sync::{Mutex, MutexGuard};

use super::state::MetaslabState;
use crate::replay::load_metaslab_with;
use crate::{AllocError, Metaslab, SpaceMapStore};

/// A metaslab and its locks. Order: `map_access`, then the state; the state's lock is held for
/// moments only and never while anything is read or written.
#[derive(Debug)]
pub(super) struct LiveMetaslab {
    pub(super) place: Metaslab,
    /// Held while the own map is read or written, so that one never sees half of the other.
    pub(super) map_access: Mutex<()>,
    state: Mutex<MetaslabState>,
    /// What [`MetaslabState::largest_bytes`] said last; for choosing without the lock.
    largest: AtomicU64,
    is_loaded: AtomicBool,
    /// It is in the registry's list of changed ones, or about to be.
    is_listed: AtomicBool,
    /// Its map could not be read: it is left alone.
    is_broken: AtomicBool,
}

impl LiveMetaslab {
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
    /// Works on the state; what others choose by is brought up to date afterwards.
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
    /// No free piece is larger, as of a moment ago.
    pub(super) fn largest_bytes(&self) -> u64 {
        if self.is_broken.load(Ordering::Relaxed) {
            return 0;
        }
        self.largest.load(Ordering::Relaxed)
    }
    /// Whether it was not listed as changed before; it is from now on.
    pub(super) fn list(&self) -> bool {
        !self.is_listed.swap(true, Ordering::AcqRel)
    }
    pub(super) fn unlist(&self) {
        self.is_listed.store(false, Ordering::Release);
    }
    pub(super) fn is_loaded(&self) -> bool {
        self.is_loaded.load(Ordering::Relaxed)
    }
    /// Reads the own map if that was not done yet. Others who want the same wait; whoever uses
    /// other metaslabs does not.
    ///
    /// # Errors
    /// If the map cannot be read or contradicts itself; nobody allocates here from then on.
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
