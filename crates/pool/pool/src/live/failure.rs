//! What a pool does when it can no longer write: it suspends, and says why to everybody who waits.
//!
//! A txg that met an error never gets an uberblock, so that the devices keep the last committed
//! state. What failed is kept with its words; `failmode` says what callers are to do meanwhile.

use crate::PoolError;
use millpond_env::sync::Mutex;

/// Property `failmode`: what is to happen when a pool can no longer write. The engine itself does the
/// same in all cases (it writes nothing more); front ends act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FailMode {
    /// Requests wait until the pool is resumed.
    #[default]
    Wait,
    /// Requests that need to write fail, reads go on.
    Continue,
    /// The process ends.
    Panic,
}

impl FailMode {
    /// The mode that the stored property number means; unknown numbers wait.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        match number {
            1 => Self::Continue,
            2 => Self::Panic,
            _ => Self::Wait,
        }
    }
}

/// Why a pool is suspended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspension {
    /// The txg that could not be written.
    pub txg: millpond_ondisk::Txg,
    /// What went wrong, naming device or object.
    pub reason: String,
}

/// Whether a pool is suspended. Set once; a suspended pool is opened again to go on.
#[derive(Debug, Default)]
pub(crate) struct FailureState {
    suspension: Mutex<Option<Suspension>>,
}

impl FailureState {
    pub(crate) fn suspend(&self, suspension: Suspension) {
        self.suspension.lock().get_or_insert(suspension);
    }
    pub(crate) fn suspension(&self) -> Option<Suspension> {
        self.suspension.lock().clone()
    }
    /// # Errors
    /// [`PoolError::Suspended`].
    pub(crate) fn check(&self) -> Result<(), PoolError> {
        match &*self.suspension.lock() {
            None => Ok(()),
            Some(suspension) => Err(PoolError::Suspended {
                reason: suspension.reason.clone(),
            }),
        }
    }
}
