//! What a pool does when it can no longer write: it suspends, and says why to everybody who waits.
//!
//! A txg that met an error never gets an uberblock, so that the devices keep the last committed
//! state. There are two ways on.
//!
//! *Waiting.* Devices failed, and the pool was opened so that it can be resumed: the thread that writes the
//! txg stands still at the very request that failed (see [`millpond_block::Patience`]), with everything
//! dirty in memory. `failmode` says what becomes of those who want to begin something meanwhile.
//! [`super::LivePool::resume`] lets it make the request again.
//!
//! *The end.* Anything else, and devices too if nobody can resume: what was not committed is lost, everybody
//! gets the error, and the pool has to be opened again.

use super::pool::LivePool;
use crate::PoolError;
use millpond_block::Patience;
use millpond_env::mark;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use millpond_ondisk::Txg;
use millpond_txg::{Pause, TxgGroups};
use std::time::Duration;

/// Property `failmode`: what is to happen when a pool can no longer write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FailMode {
    /// Requests wait until the pool is resumed.
    #[default]
    Wait,
    /// Requests that need to write fail, reads go on. What waits for stable storage goes on waiting.
    Continue,
    /// The pool ends, with a message that says so. (The library ends no process; whoever finds a pool
    /// suspended for good in this mode may.)
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
    pub txg: Txg,
    /// What went wrong, naming device or object.
    pub reason: String,
    /// Whether [`super::LivePool::resume`] may help. If not, the pool has to be opened again.
    pub can_resume: bool,
}

/// Whether a pool is suspended, and who waits for it to go on.
///
/// Lock: one mutex, held for a few instructions; waiting happens on its condition variable.
pub(crate) struct FailureState {
    state: Mutex<State>,
    changed: Condvar,
    resumes: AtomicU64,
    groups: Arc<TxgGroups>,
    /// The pool, to notice that nobody has it any more.
    pool: OnceLock<Weak<LivePool>>,
}

#[derive(Default)]
struct State {
    suspension: Option<Suspension>,
    mode: FailMode,
    /// Nobody shall wait any more.
    is_abandoned: bool,
    /// The txg being written.
    txg: Txg,
    /// The last txg that was committed.
    committed: Txg,
}

/// How often a thread that waits looks whether the pool is still wanted.
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

    /// From now on those who write wait for devices that fail.
    pub(crate) fn be_patient(self: &Arc<Self>, pool: &Arc<LivePool>) {
        if self.pool.set(Arc::downgrade(pool)).is_ok() {
            let port = Arc::clone(self);
            pool.store.set_patience(port);
        }
    }

    /// Whether those who write wait for devices that fail.
    pub(crate) fn is_patient(&self) -> bool {
        self.pool.get().is_some()
    }

    pub(crate) fn set_mode(&self, mode: FailMode) {
        self.state.lock().mode = mode;
    }

    /// For good.
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

    /// # Errors
    /// [`PoolError::Suspended`] if it is for good, or if what begins now is to be refused.
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

    /// Whether what begins while a device does not answer is refused.
    pub(crate) fn refuses_when_stalled(&self) -> bool {
        self.is_patient() && self.state.lock().mode == FailMode::Continue
    }

    /// Nobody waits any more, now or later.
    pub(crate) fn abandon(&self) {
        let mut state = self.state.lock();
        state.is_abandoned = true;
        if let Some(suspension) = &mut state.suspension {
            suspension.can_resume = false;
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Lets the waiting thread try again, and waits for what comes of it.
    pub(crate) fn resume(&self) -> Result<(), PoolError> {
        let mut state = self.state.lock();
        // A txg that waits for its devices is whole, whatever came after it.
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
        // Devices that were away may have lost what they took without telling anybody.
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

    /// The suspension of a pool with half a change in a txg that is not written.
    fn ruin(&self, state: &State) -> Option<Suspension> {
        let reason = self.groups.ruined()?;
        Some(Suspension {
            txg: Txg(state.committed.0.saturating_add(1)),
            reason: reason.to_string(),
            can_resume: false,
        })
    }

    /// Whether somebody besides the waiting thread has the pool.
    fn is_wanted(&self) -> bool {
        let pool = self.pool.get();
        pool.is_some_and(|pool| pool.strong_count() > 1)
    }
}

impl Patience for FailureState {
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
            });
            return false;
        }
        state.suspension = Some(Suspension {
            txg: state.txg,
            reason: reason.to_owned(),
            can_resume: true,
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
