//! Suspends the pool when it can no longer write, and reports the reason to waiting callers.
//!
//! A txg that met an error never gets an uberblock, so the devices keep the last committed state. There are
//! two cases:
//!
//! - *Resumable.* Devices failed, and the pool was opened so that it can be resumed. The thread that writes
//!   the txg waits at the failed request (see [`millpond_block::RetryPolicy`]), and all dirty data stays in
//!   memory. `failmode` decides what happens to new requests meanwhile. [`crate::Pool::resume`] makes
//!   the thread retry the request.
//! - *Permanent.* Any other error, or a device failure if the pool cannot be resumed. Uncommitted changes
//!   are lost, all callers get the error, and the pool must be opened again.

use crate::PoolError;
use crate::pool::Pool;
use millpond_block::RetryPolicy;
use millpond_env::mark;
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use millpond_ondisk::Txg;
use millpond_txg::{Pause, TxgGroups};
use std::time::Duration;

/// Property `failmode`: what happens when a pool can no longer write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FailMode {
    /// Requests wait until the pool is resumed.
    #[default]
    Wait,
    /// Requests that need to write fail; reads continue. Requests waiting for stable storage keep waiting.
    Continue,
    /// The pool stops with an error message. The library does not abort the process; the program may do so
    /// when it finds a pool permanently suspended in this mode.
    Panic,
}

impl FailMode {
    /// The mode for a stored property number. Unknown numbers mean [`FailMode::Wait`].
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
    pub txg: Txg,
    /// The error, naming the device or object.
    pub reason: String,
    /// Whether [`crate::Pool::resume`] can help. If not, the pool must be opened again.
    pub can_resume: bool,
    /// What kind of failure it is.
    pub cause: SuspensionCause,
}

/// What kind of failure suspended a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuspensionCause {
    /// Devices do not work, or something in the pool is damaged.
    Devices,
    /// Heartbeats of multihost could not be written: another system may have imported the pool.
    Multihost,
}

/// Whether a pool is suspended, with a condition variable for threads that wait for it to resume.
///
/// Lock: one mutex, held for a few instructions. Threads wait on its condition variable.
pub(crate) struct FailureState {
    state: Mutex<State, rank::LeafFailures>,
    changed: Condvar,
    resumes: AtomicU64,
    groups: Arc<TxgGroups>,
    /// The pool, to detect that no caller holds it any more.
    pool: OnceLock<Weak<Pool>>,
}

#[derive(Default)]
struct State {
    suspension: Option<Suspension>,
    mode: FailMode,
    /// Threads must no longer wait.
    is_abandoned: bool,
    /// The txg being written.
    txg: Txg,
    /// The last committed txg.
    committed: Txg,
}

/// How often a waiting thread checks whether the pool is still in use.
const LOOK: Duration = Duration::from_millis(500);

impl FailureState {
    pub(crate) fn new(groups: Arc<TxgGroups>, mode: FailMode) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                mode,
                ..State::default()
            }),
            changed: Condvar::new(),
            resumes: AtomicU64::new(0),
            groups,
            pool: OnceLock::new(),
        })
    }

    /// From now on writers wait for failed devices instead of returning an error.
    pub(crate) fn wait_for_devices(self: &Arc<Self>, pool: &Arc<Pool>) {
        if self.pool.set(Arc::downgrade(pool)).is_ok() {
            let port = Arc::clone(self);
            pool.store.set_retry_policy(port);
        }
    }

    /// Whether writers wait for failed devices.
    pub(crate) fn has_retries(&self) -> bool {
        self.pool.get().is_some()
    }

    pub(crate) fn set_mode(&self, mode: FailMode) {
        self.state.lock().mode = mode;
    }

    /// Suspends the pool; a permanent suspension is never replaced.
    pub(crate) fn suspend(&self, suspension: Suspension) {
        let mut state = self.state.lock();
        let old = state.suspension.take().filter(|old| !old.can_resume);
        state.suspension = Some(old.unwrap_or(suspension));
        drop(state);
        self.changed.notify_all();
    }

    pub(crate) fn begins(&self, txg: Txg) {
        self.state.lock().txg = txg;
    }
    pub(crate) fn committed(&self, txg: Txg) {
        self.state.lock().committed = txg;
        self.changed.notify_all();
    }

    pub(crate) fn suspension(&self) -> Option<Suspension> {
        let state = self.state.lock();
        state.suspension.clone().or_else(|| self.ruin(&state))
    }

    /// Checks whether a new request may start.
    ///
    /// # Errors
    /// [`PoolError::Suspended`] if the suspension is permanent, or if the mode refuses new requests.
    pub(crate) fn check(&self) -> Result<(), PoolError> {
        let state = self.state.lock();
        if let Some(ruin) = self.ruin(&state) {
            return Err(PoolError::Suspended {
                reason: ruin.reason,
            });
        }
        match &state.suspension {
            Some(suspension) if !suspension.can_resume || state.mode == FailMode::Continue => {
                Err(PoolError::Suspended {
                    reason: suspension.reason.clone(),
                })
            }
            _ => Ok(()),
        }
    }

    /// Whether new requests are refused while a device does not answer.
    pub(crate) fn refuses_when_stalled(&self) -> bool {
        self.has_retries() && self.state.lock().mode == FailMode::Continue
    }

    /// Wakes all waiting threads and prevents further waits.
    pub(crate) fn abandon(&self) {
        let mut state = self.state.lock();
        state.is_abandoned = true;
        if let Some(suspension) = &mut state.suspension {
            suspension.can_resume = false;
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Makes the waiting thread retry, and waits for the outcome.
    pub(crate) fn resume(&self) -> Result<(), PoolError> {
        let mut state = self.state.lock();
        // A txg that waits for its devices is consistent, even if a later change failed.
        let suspension = state.suspension.clone().or_else(|| self.ruin(&state));
        let Some(suspension) = suspension else {
            return Ok(());
        };
        let refused = |reason: &str| {
            Err(PoolError::Suspended {
                reason: reason.to_owned(),
            })
        };
        if !suspension.can_resume {
            return refused(&suspension.reason);
        }
        mark::hit("pool-resumed");
        let txg = suspension.txg;
        // A device that was absent may have silently lost writes that it had not flushed.
        if let Some(pool) = self.pool.get().and_then(Weak::upgrade) {
            pool.store.distrust_unflushed();
        }
        state.suspension = None;
        self.resumes.fetch_add(1, Ordering::SeqCst);
        self.groups.resume();
        self.changed.notify_all();
        loop {
            if let Some(again) = &state.suspension {
                return refused(&again.reason);
            }
            if state.committed >= txg || state.is_abandoned {
                return Ok(());
            }
            self.changed.wait(&mut state);
        }
    }

    /// The suspension of a pool in which an unwritten txg contains a partial change.
    fn ruin(&self, state: &State) -> Option<Suspension> {
        let reason = self.groups.ruined()?;
        Some(Suspension {
            txg: Txg(state.committed.0.saturating_add(1)),
            reason: reason.to_string(),
            can_resume: false,
            cause: SuspensionCause::Devices,
        })
    }

    /// Whether anything other than the waiting thread holds the pool.
    fn is_wanted(&self) -> bool {
        let pool = self.pool.get();
        pool.is_some_and(|pool| pool.strong_count() > 1)
    }
}

impl RetryPolicy for FailureState {
    fn resumes(&self) -> u64 {
        self.resumes.load(Ordering::SeqCst)
    }

    fn wait(&self, since: u64, reason: &str) -> bool {
        let mut state = self.state.lock();
        let has_resumed = || self.resumes.load(Ordering::SeqCst) != since;
        if state.is_abandoned {
            return false;
        }
        if has_resumed() {
            return true;
        }
        if state.mode == FailMode::Panic {
            state.suspension = Some(Suspension {
                txg: state.txg,
                reason: format!("failmode=panic ends the pool: {reason}"),
                can_resume: false,
                cause: SuspensionCause::Devices,
            });
            return false;
        }
        state.suspension = Some(Suspension {
            txg: state.txg,
            reason: reason.to_owned(),
            can_resume: true,
            cause: SuspensionCause::Devices,
        });
        let what = match state.mode {
            FailMode::Continue => Pause::Refuse,
            FailMode::Wait | FailMode::Panic => Pause::Hold,
        };
        self.groups.pause(reason, what);
        self.changed.notify_all();
        loop {
            if state.is_abandoned || !self.is_wanted() {
                return false;
            }
            if has_resumed() {
                return true;
            }
            self.changed.wait_for(&mut state, LOOK);
        }
    }
}
