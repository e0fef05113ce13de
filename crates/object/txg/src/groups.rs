//! The state machine of the groups.

use crate::{DirtyLimits, Transaction, TxgError};
use millpond_env::Env;
use millpond_env::mark;
use millpond_env::sync::{Arc, Condvar, Mutex, MutexGuard};
use millpond_env::thread::{ThreadId, current_id};
use millpond_ondisk::Txg;
use std::time::Duration;

/// The groups of one pool. Shared by all threads.
///
/// Lock: one mutex, held for a few instructions; waiting happens on its condition variable.
pub struct TxgGroups {
    env: Env,
    limits: DirtyLimits,
    pub(crate) state: Mutex<State>,
    changed: Condvar,
}

impl std::fmt::Debug for TxgGroups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        f.debug_struct("TxgGroups")
            .field("open", &state.open)
            .field("quiescing", &state.quiescing)
            .field("syncing", &state.syncing)
            .field("synced", &state.synced)
            .finish_non_exhaustive()
    }
}

/// What becomes of whoever wants to begin a transaction while writing is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pause {
    /// It waits for [`TxgGroups::resume`].
    Hold,
    /// It gets an error.
    Refuse,
}

/// What a transaction waits for before it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BeginWait {
    /// While too much is dirty, and while writing is paused.
    #[default]
    Throttled,
    /// Only while writing is paused: for what dirties nothing, such as blocks of intent logs.
    UnlessPaused,
    /// Nothing: it gets [`TxgError::WouldWait`] instead.
    Never,
}

impl BeginWait {
    fn allowed(self) -> Result<(), TxgError> {
        match self {
            Self::Never => Err(TxgError::WouldWait),
            Self::Throttled | Self::UnlessPaused => Ok(()),
        }
    }
}

/// What a transaction is going to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxgRequest {
    /// Bytes that it may dirty.
    pub estimate_bytes: u64,
    /// Blocks that it frees, at most; 0 for a few.
    pub freed_blocks: u64,
    /// What it waits for.
    pub wait: BeginWait,
}

#[derive(Default)]
pub(crate) struct State {
    open: Txg,
    quiescing: Option<Txg>,
    syncing: Option<Txg>,
    synced: Txg,
    /// Somebody waits for this group or asked for it; all up to it close without waiting for the period.
    wanted: Txg,
    groups: [Group; 4],
    failure: Option<Arc<str>>,
    /// Half of a change is in a group that was not written: nothing is written any more.
    ruin: Option<Arc<str>>,
    pause: Option<(Arc<str>, Pause)>,
    has_ended: bool,
    sync_thread: Option<ThreadId>,
    /// How many wait for dirty data to become less.
    pub(crate) throttled: usize,
}

#[derive(Default, Clone)]
struct Group {
    /// Transactions that have begun and not ended.
    active: u64,
    dirty_bytes: u64,
    /// What active transactions said they would dirty, so that many that begin at once are seen.
    held_bytes: u64,
    /// When its first transaction began.
    begun_ns: Option<u64>,
    /// When its last transaction began or ended.
    used_ns: u64,
    /// Blocks that its transactions announced to free.
    freed_blocks: u64,
}

impl State {
    fn group(&mut self, txg: Txg) -> &mut Group {
        &mut self.groups[(txg.0 % 4) as usize]
    }
    fn dirty_bytes(&self) -> u64 {
        let each = self.groups.iter();
        each.map(|group| group.dirty_bytes.saturating_add(group.held_bytes))
            .fold(0, u64::saturating_add)
    }
    fn refusal(&self) -> Option<TxgError> {
        match self.ruin.as_ref().or(self.failure.as_ref()) {
            Some(reason) => Some(TxgError::Suspended {
                reason: Arc::clone(reason),
            }),
            None => self.has_ended.then_some(TxgError::Ended),
        }
    }
}

impl TxgGroups {
    /// Groups whose first open one is `first_open`: 4 for a new pool, otherwise the uberblock's plus 1.
    #[must_use]
    pub fn new(env: &Env, first_open: Txg, limits: DirtyLimits) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            limits,
            state: Mutex::new(State {
                open: first_open,
                synced: Txg(first_open.0.saturating_sub(1)),
                ..State::default()
            }),
            changed: Condvar::new(),
        })
    }

    /// Enters the open group. `estimate_bytes` is what the transaction may dirty; it counts as dirty
    /// until the transaction ends, when only what was charged remains.
    ///
    /// Waits while the dirty data of all groups is at its limit, and for a time that grows with it
    /// above the share at which delays begin. On the thread that syncs it never waits.
    ///
    /// # Errors
    /// [`TxgError`] when writing is suspended, or paused so that it refuses, or the pool is being closed.
    pub fn begin(self: &Arc<Self>, estimate_bytes: u64) -> Result<Transaction, TxgError> {
        self.begin_as(TxgRequest {
            estimate_bytes,
            ..TxgRequest::default()
        })
    }

    /// As [`TxgGroups::begin`], for a transaction that frees many blocks, or may not wait.
    ///
    /// If the open group has no room left for the freed blocks below [`DirtyLimits::freed_blocks_max`],
    /// it asks for that group to be closed and waits for the next one. The first such transaction of a
    /// group always fits.
    ///
    /// # Errors
    /// As [`TxgGroups::begin`]; [`TxgError::WouldWait`].
    pub fn begin_as(self: &Arc<Self>, request: TxgRequest) -> Result<Transaction, TxgError> {
        let TxgRequest {
            estimate_bytes,
            freed_blocks,
            wait,
        } = request;
        let mut state = self.state.lock();
        let may_wait = state.sync_thread != Some(current_id());
        let mut until = None;
        loop {
            if let Some(refusal) = state.refusal() {
                return Err(refusal);
            }
            if may_wait && let Some((reason, pause)) = &state.pause {
                if *pause == Pause::Refuse {
                    let reason = Arc::clone(reason);
                    return Err(TxgError::Suspended { reason });
                }
                wait.allowed()?;
                self.changed.wait(&mut state);
                continue;
            }
            self.close_if_due(&mut state);
            if may_wait && freed_blocks > 0 && !self.has_room_for_frees(&mut state, freed_blocks) {
                wait.allowed()?;
                mark::hit("frees-wait-for-next-txg");
                let open = state.open;
                self.want(&mut state, open);
                if state.open == open {
                    self.changed.wait(&mut state);
                }
                continue;
            }
            let dirty_bytes = state.dirty_bytes();
            let delay = self.limits.delay(dirty_bytes);
            if !may_wait || delay.is_zero() || wait == BeginWait::UnlessPaused {
                break;
            }
            wait.allowed()?;
            if dirty_bytes >= self.limits.limit_bytes {
                mark::hit("writer-throttled");
                state.throttled += 1;
                self.changed.wait(&mut state);
                state.throttled -= 1;
                continue;
            }
            // The delay is reckoned from when it was first met, whatever woke us since.
            let now = self.env.clock.monotonic_ns();
            let until = *until.get_or_insert_with(|| now.saturating_add(nanoseconds(delay)));
            if now >= until {
                break;
            }
            mark::hit("writer-delayed");
            let left = Duration::from_nanos(until - now);
            self.changed.wait_for(&mut state, left);
        }
        let txg = state.open;
        let now = self.env.clock.monotonic_ns();
        let group = state.group(txg);
        group.active += 1;
        group.freed_blocks = group.freed_blocks.saturating_add(freed_blocks);
        group.held_bytes = group.held_bytes.saturating_add(estimate_bytes);
        group.used_ns = now;
        if group.begun_ns.is_none() {
            group.begun_ns = Some(now);
            // The syncing thread may sleep without an end while nothing has begun.
            self.changed.notify_all();
        }
        drop(state);
        Ok(Transaction::new(
            Arc::clone(self),
            txg,
            estimate_bytes,
            false,
        ))
    }

    /// The group that takes transactions now.
    #[must_use]
    pub fn open_txg(&self) -> Txg {
        self.state.lock().open
    }
    /// The last group that is on stable storage.
    #[must_use]
    pub fn synced_txg(&self) -> Txg {
        self.state.lock().synced
    }
    /// Bytes dirty in all groups, with what active transactions announced.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.state.lock().dirty_bytes()
    }
    /// The limits it was made with.
    #[must_use]
    pub fn limits(&self) -> &DirtyLimits {
        &self.limits
    }

    /// Asks for every group up to `txg` to be closed and synced as soon as can be, even if nothing
    /// begins in them. Does not wait.
    pub fn ask(&self, txg: Txg) {
        let mut state = self.state.lock();
        self.want(&mut state, txg);
    }

    /// Asks as [`TxgGroups::ask`] does and waits until `txg` is on stable storage.
    ///
    /// Never call it on the thread that syncs or while holding a transaction.
    ///
    /// # Errors
    /// [`TxgError`] when writing is suspended or the pool is being closed before.
    pub fn wait_synced(&self, txg: Txg) -> Result<(), TxgError> {
        let mut state = self.state.lock();
        self.want(&mut state, txg);
        loop {
            if state.synced >= txg {
                return Ok(());
            }
            if let Some(refusal) = state.refusal() {
                return Err(refusal);
            }
            self.changed.wait(&mut state);
        }
    }

    /// Waits until `txg` is open or later, asking for the groups before it.
    ///
    /// # Errors
    /// [`TxgError`] when writing is suspended or the pool is being closed before.
    pub fn wait_open(&self, txg: Txg) -> Result<(), TxgError> {
        let mut state = self.state.lock();
        self.want(&mut state, Txg(txg.0.saturating_sub(1)));
        loop {
            if state.open >= txg {
                return Ok(());
            }
            if let Some(refusal) = state.refusal() {
                return Err(refusal);
            }
            self.changed.wait(&mut state);
        }
    }

    /// The next group to be written, all of whose transactions have ended. Closes the open group when
    /// that is due: it is asked for, a share of the dirty limit is in it, or its first transaction began
    /// a period ago. A group that was handed out and not yet reported [`TxgGroups::synced`] is handed
    /// out again: that is how a suspended one is retried.
    ///
    /// `None` after `timeout`, and at once when writing is suspended or ended. The caller's thread
    /// counts as the syncing one from now on.
    #[must_use]
    pub fn next_to_sync(self: &Arc<Self>, timeout: Duration) -> Option<SyncingTxg> {
        let mut state = self.state.lock();
        state.sync_thread = Some(current_id());
        let start = self.env.clock.monotonic_ns();
        let deadline = start.saturating_add(nanoseconds(timeout));
        loop {
            if state.refusal().is_some() {
                return None;
            }
            self.close_if_due(&mut state);
            if state.syncing.is_none()
                && let Some(txg) = state.quiescing
                && state.group(txg).active == 0
            {
                (state.quiescing, state.syncing) = (None, Some(txg));
                self.close_if_due(&mut state);
                self.changed.notify_all();
            }
            if let Some(txg) = state.syncing {
                let is_idle = state.group(txg).begun_ns.is_none();
                return Some(SyncingTxg {
                    groups: Arc::clone(self),
                    txg,
                    is_idle,
                });
            }
            let now = self.env.clock.monotonic_ns();
            if now >= deadline {
                return None;
            }
            let open = state.open;
            let due = match state.quiescing {
                None => self.due_ns(state.group(open)),
                Some(_) => u64::MAX,
            };
            let left = due.min(deadline).saturating_sub(now).max(1);
            self.changed
                .wait_for(&mut state, Duration::from_nanos(left));
        }
    }

    /// Reports that the group handed out last is on stable storage.
    ///
    /// # Panics
    /// If `txg` is not the one handed out: what was acknowledged would not be what was written.
    pub fn synced(&self, txg: Txg) {
        let mut state = self.state.lock();
        assert_eq!(
            state.syncing,
            Some(txg),
            "only the group being synced can be done"
        );
        state.syncing = None;
        state.synced = txg;
        *state.group(txg) = Group::default();
        self.close_if_due(&mut state);
        self.changed.notify_all();
    }

    /// Suspends writing: whoever waits, and whoever begins a transaction, gets an error. Transactions
    /// under way go on. The first reason stays until [`TxgGroups::resume`].
    pub fn fail(&self, reason: &str) {
        let mut state = self.state.lock();
        state.failure.get_or_insert_with(|| reason.into());
        self.changed.notify_all();
    }
    /// Half of a change is in a group that takes or took transactions: neither it nor a later one is ever written.
    /// As [`TxgGroups::fail`], but for good. A group that is being written already is finished.
    pub fn ruin(&self, reason: &str) {
        mark::hit("half-a-change");
        let mut state = self.state.lock();
        state.ruin.get_or_insert_with(|| reason.into());
        self.changed.notify_all();
    }
    /// Why no group is ever written again, if so.
    #[must_use]
    pub fn ruined(&self) -> Option<Arc<str>> {
        self.state.lock().ruin.clone()
    }
    /// Lets nothing begin for a time: the group being written cannot go on. Who waits for a group to be
    /// on stable storage goes on waiting, and transactions under way go on.
    pub fn pause(&self, reason: &str, what: Pause) {
        self.state.lock().pause = Some((reason.into(), what));
        self.changed.notify_all();
    }
    /// Goes on after [`TxgGroups::pause`] or [`TxgGroups::fail`].
    pub fn resume(&self) {
        let mut state = self.state.lock();
        (state.failure, state.pause) = (None, None);
        drop(state);
        self.changed.notify_all();
    }
    /// Why writing is suspended, if it is.
    #[must_use]
    pub fn failure(&self) -> Option<Arc<str>> {
        let state = self.state.lock();
        state.ruin.as_ref().or(state.failure.as_ref()).cloned()
    }
    /// Ends the groups for good: nothing begins any more, and the syncing thread gets `None`.
    pub fn end_all(&self) {
        self.state.lock().has_ended = true;
        self.changed.notify_all();
    }
    /// Whether [`TxgGroups::end_all`] was called.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.state.lock().has_ended
    }

    /// When the group is closed at the latest: a period after its first transaction, or earlier if nothing
    /// has used it for a while. The largest number while nothing is in it.
    fn due_ns(&self, group: &Group) -> u64 {
        let Some(begun) = group.begun_ns else {
            return u64::MAX;
        };
        let period = begun.saturating_add(nanoseconds(self.limits.period));
        let idle = group
            .used_ns
            .saturating_add(nanoseconds(self.limits.idle_period));
        match group.active {
            0 => period.min(idle),
            _ => period,
        }
    }

    fn has_room_for_frees(&self, state: &mut MutexGuard<'_, State>, blocks: u64) -> bool {
        let open = state.open;
        let freed = state.group(open).freed_blocks;
        freed == 0 || freed.saturating_add(blocks) <= self.limits.freed_blocks_max
    }

    fn want(&self, state: &mut MutexGuard<'_, State>, txg: Txg) {
        if txg > state.wanted {
            state.wanted = txg;
            self.close_if_due(state);
            self.changed.notify_all();
        }
    }

    /// Closes the open group if that is due and the place of the quiescing one is free. Done by
    /// whoever notices, so that a group quiesces while the one before is still being written.
    fn close_if_due(&self, state: &mut MutexGuard<'_, State>) {
        if state.quiescing.is_some() {
            return;
        }
        let open = state.open;
        let is_wanted = state.wanted >= open;
        let group = state.group(open);
        let is_full = group.dirty_bytes > 0 && group.dirty_bytes >= self.limits.close_bytes();
        let due_ns = self.due_ns(group);
        let is_old = due_ns != u64::MAX && self.env.clock.monotonic_ns() >= due_ns;
        if is_wanted || is_full || is_old {
            state.quiescing = Some(open);
            state.open = Txg(open.0.saturating_add(1));
            self.changed.notify_all();
        }
    }

    pub(crate) fn charge(&self, txg: Txg, bytes: u64) {
        let mut state = self.state.lock();
        let group = state.group(txg);
        group.dirty_bytes = group.dirty_bytes.saturating_add(bytes);
        if txg == state.open {
            self.close_if_due(&mut state);
        }
    }

    pub(crate) fn end(&self, txg: Txg, held_bytes: u64) {
        let now = self.env.clock.monotonic_ns();
        let mut state = self.state.lock();
        let group = state.group(txg);
        group.active -= 1;
        group.used_ns = now;
        group.held_bytes = group.held_bytes.saturating_sub(held_bytes);
        let is_last = group.active == 0 && txg != state.open;
        if is_last || state.throttled > 0 {
            self.changed.notify_all();
        }
    }
}

/// A group that is being written: all its transactions have ended.
#[derive(Debug)]
pub struct SyncingTxg {
    groups: Arc<TxgGroups>,
    txg: Txg,
    is_idle: bool,
}

impl SyncingTxg {
    /// Its number.
    #[must_use]
    pub fn txg(&self) -> Txg {
        self.txg
    }
    /// Whether no transaction ever began in it. If the pool has nothing to do of its own either, it
    /// needs to be reported only, and nothing is written.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.is_idle
    }
    /// The witness for changes made while the group is being written. Never waits, holds nothing up.
    #[must_use]
    pub fn transaction(&self) -> Transaction {
        Transaction::new(Arc::clone(&self.groups), self.txg, 0, true)
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
