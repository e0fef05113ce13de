//! The state machine of the transaction groups.

mod due;
mod space;
use crate::{DirtyLimits, Transaction, TxgError};
use millpond_env::rank::{self, Held, LockRank};
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::sync::{Arc, Condvar, Mutex, MutexGuard};
use millpond_env::thread::{ThreadId, current_id};
use millpond_env::{Env, mark};
use millpond_ondisk::Txg;
use std::time::Duration;

/// The transaction groups of one pool. Shared by all threads.
///
/// Lock: one mutex, held for a few instructions. Threads wait on its condition variable.
pub struct TxgGroups {
    env: Env,
    limits: DirtyLimits,
    /// The most dirty data that fits into the pool.
    room_bytes: AtomicU64,
    pub(crate) state: Mutex<State, rank::TxgGroups>,
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

/// What happens to a caller that begins a transaction while writing is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pause {
    /// The caller waits for [`TxgGroups::resume`].
    Hold,
    /// The caller gets an error.
    Refuse,
}

/// What an operation will do, as far as admission needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Estimate {
    /// The most bytes that will become dirty, data and metadata together.
    pub bytes: u64,
    /// How many of them the caller writes. The write throttle delays the transaction accordingly; 0 for a
    /// change of metadata only.
    pub written_bytes: u64,
    /// Whether the operation frees more space than it takes. Such an operation may use the reserve that keeps
    /// a full pool usable, and ignores a full quota.
    pub is_freeing: bool,
    /// The most blocks that the operation frees. Each txg frees a bounded number; if the limit is reached,
    /// the transaction waits for a later txg. 0 for operations that change only a few blocks.
    pub freed_blocks: u64,
    /// The bytes of blocks that get a further reference: they are charged to the dataset, and take neither memory nor
    /// space of the pool.
    pub cloned_bytes: u64,
    /// What the operation may wait for.
    pub wait: BeginWait,
}

/// What may delay the beginning of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BeginWait {
    /// Waits while too much is dirty and while writing is paused.
    #[default]
    Throttled,
    /// Waits only while writing is paused. For transactions that dirty nothing, such as those for intent log
    /// blocks.
    UnlessPaused,
    /// Never waits. The caller gets [`TxgError::WouldWait`] instead.
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

/// The parameters of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxgRequest {
    /// The number of bytes that it may dirty.
    pub estimate_bytes: u64,
    /// How many of them the caller writes, for the write throttle.
    pub written_bytes: u64,
    /// The maximum number of blocks that it frees; 0 if there are only a few.
    pub freed_blocks: u64,
    /// What may delay it.
    pub wait: BeginWait,
}

#[derive(Default)]
pub(crate) struct State {
    open: Txg,
    quiescing: Option<Txg>,
    syncing: Option<Txg>,
    synced: Txg,
    /// A caller waits for this group or asked for it. All groups up to it close without waiting for the
    /// period.
    wanted: Txg,
    groups: [Group; 4],
    failure: Option<Arc<str>>,
    /// A group that was not written contains half a change. Nothing is written any more.
    ruin: Option<Arc<str>>,
    pause: Option<(Arc<str>, Pause)>,
    has_ended: bool,
    sync_thread: Option<ThreadId>,
    /// The number of threads that wait for dirty data to shrink.
    pub(crate) throttled: usize,
}

#[derive(Default, Clone)]
struct Group {
    /// Transactions that have begun and not ended.
    active: u64,
    dirty_bytes: u64,
    /// The rests of blocks of which only parts are dirty, times their copies.
    rest_bytes: u64,
    /// The bytes that active transactions announced, so that many transactions that begin at once are
    /// counted.
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
    /// Creates the groups. `first_open` is the first open one: 4 for a new pool, otherwise the uberblock's
    /// txg plus 1.
    #[must_use]
    pub fn new(env: &Env, first_open: Txg, limits: DirtyLimits) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            limits,
            room_bytes: AtomicU64::new(u64::MAX),
            state: Mutex::new(State {
                open: first_open,
                synced: Txg(first_open.0.saturating_sub(1)),
                ..State::default()
            }),
            changed: Condvar::new(),
        })
    }

    /// Begins a transaction in the open group.
    ///
    /// `estimate_bytes` is the amount that the transaction may dirty. It counts as dirty until the
    /// transaction ends; from then on only the charged bytes count.
    ///
    /// The transaction counts as one that writes `estimate_bytes`. Waits while the dirty data of all groups is
    /// at its limit. Above the share at which delays begin, it waits for a time that grows with the dirty data
    /// and with what it writes. Never waits on the sync thread.
    ///
    /// # Errors
    /// [`TxgError`] if writing is suspended, if it is paused with [`Pause::Refuse`], or if the pool is being
    /// closed.
    pub fn begin(self: &Arc<Self>, estimate_bytes: u64) -> Result<Transaction, TxgError> {
        self.begin_as(TxgRequest {
            estimate_bytes,
            written_bytes: estimate_bytes,
            ..TxgRequest::default()
        })
    }

    /// Begins a transaction as [`TxgGroups::begin`] does, for callers that free many blocks or must not wait.
    ///
    /// If the open group has no room for the freed blocks below [`DirtyLimits::freed_blocks_max`], it asks
    /// for that group to be closed and waits for the next one. The first such transaction of a group always
    /// fits.
    ///
    /// # Errors
    /// As [`TxgGroups::begin`]; [`TxgError::WouldWait`].
    pub fn begin_as(self: &Arc<Self>, request: TxgRequest) -> Result<Transaction, TxgError> {
        let TxgRequest {
            estimate_bytes,
            written_bytes,
            freed_blocks,
            wait,
        } = request;
        let held = self.note_rank();
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
            let limits = self.limits_now();
            let delay = limits.delay(dirty_bytes, written_bytes);
            if !may_wait || delay.is_zero() || wait == BeginWait::UnlessPaused {
                break;
            }
            wait.allowed()?;
            if dirty_bytes >= limits.limit_for(written_bytes) {
                mark::hit("writer-throttled");
                state.throttled += 1;
                self.changed.wait(&mut state);
                state.throttled -= 1;
                continue;
            }
            // The delay counts from the time it was first imposed, regardless of wakeups since.
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
            // The sync thread may sleep without a timeout while nothing has begun.
            self.changed.notify_all();
        }
        drop(state);
        Ok(Transaction::new(
            Arc::clone(self),
            txg,
            estimate_bytes,
            Some(held),
        ))
    }

    /// Checks that this thread may wait for a transaction. The sync thread never does.
    fn note_rank(&self) -> Held {
        let rank = rank::OpenTransaction::RANK;
        match cfg!(debug_assertions) && self.state.lock().sync_thread != Some(current_id()) {
            true => Held::waiting(rank),
            false => Held::taken(rank),
        }
    }

    /// The group that currently accepts transactions.
    #[must_use]
    pub fn open_txg(&self) -> Txg {
        self.state.lock().open
    }
    /// The last group that is on stable storage.
    #[must_use]
    pub fn synced_txg(&self) -> Txg {
        self.state.lock().synced
    }
    /// Dirty bytes in all groups, including the estimates of active transactions.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.state.lock().dirty_bytes()
    }
    /// [`TxgGroups::dirty_bytes`] in percent of their limit.
    #[must_use]
    pub fn dirty_percent(&self) -> u32 {
        let percent = self.dirty_bytes() / (self.limits_now().limit_bytes / 100).max(1);
        u32::try_from(percent).unwrap_or(u32::MAX)
    }
    /// Says how much dirty data fits into the pool in the worst case. In a pool with little free space that
    /// lowers the limit, so that writers are slowed down smoothly before they have to wait for a txg that tells how
    /// much space is left.
    pub fn set_room(&self, bytes: u64) {
        self.room_bytes.store(bytes, Ordering::Relaxed);
    }
    /// The limits for the present room.
    fn limits_now(&self) -> DirtyLimits {
        self.limits.within(self.room_bytes.load(Ordering::Relaxed))
    }
    /// The limits passed to [`TxgGroups::new`].
    #[must_use]
    pub fn limits(&self) -> &DirtyLimits {
        &self.limits
    }

    /// Requests that every group up to `txg` is closed and synced as soon as possible, even if it is empty.
    /// Does not wait.
    pub fn ask(&self, txg: Txg) {
        let mut state = self.state.lock();
        self.want(&mut state, txg);
    }

    /// Requests the groups as [`TxgGroups::ask`] does and waits until `txg` is on stable storage.
    ///
    /// Never call it on the sync thread or while holding a transaction.
    ///
    /// # Errors
    /// [`TxgError`] if writing is suspended or the pool is closed before that.
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

    /// Waits until `txg` or a later group is open, and requests the groups before it.
    ///
    /// # Errors
    /// [`TxgError`] if writing is suspended or the pool is closed before that.
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

    /// Returns the next group to be written. All its transactions have ended.
    ///
    /// Closes the open group when that is due: when it was requested, when it holds its share of the dirty
    /// limit, or after [`DirtyLimits::period`] or [`DirtyLimits::idle_period`]. A group that was returned
    /// before but not reported as [`TxgGroups::synced`] is returned again; this is how a suspended group is
    /// retried.
    ///
    /// Returns `None` after `timeout`, and at once if writing is suspended or ended. From now on the caller's
    /// thread is the sync thread.
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
                None => self.look_ns(state.group(open), now),
                Some(_) => u64::MAX,
            };
            let left = due.min(deadline).saturating_sub(now).max(1);
            self.changed
                .wait_for(&mut state, Duration::from_nanos(left));
        }
    }

    /// Reports that the group returned last is on stable storage.
    ///
    /// # Panics
    /// If `txg` is not that group, because the acknowledged group would then not be the one written.
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

    /// Suspends writing. Callers that wait, and callers that begin a transaction, get an error. Active
    /// transactions continue. The first reason stays until [`TxgGroups::resume`].
    pub fn fail(&self, reason: &str) {
        let mut state = self.state.lock();
        state.failure.get_or_insert_with(|| reason.into());
        self.changed.notify_all();
    }
    /// Stops writing permanently because half a change is in a group that is open or closed but not yet being
    /// written.
    ///
    /// Neither this group nor a later one is ever written. Otherwise as [`TxgGroups::fail`]. A group that is
    /// already being written is completed.
    pub fn ruin(&self, reason: &str) {
        mark::hit("half-a-change");
        let mut state = self.state.lock();
        state.ruin.get_or_insert_with(|| reason.into());
        self.changed.notify_all();
    }
    /// The reason why no group is ever written again, if [`TxgGroups::ruin`] was called.
    #[must_use]
    pub fn ruined(&self) -> Option<Arc<str>> {
        self.state.lock().ruin.clone()
    }
    /// Pauses new transactions because the sync of the current group cannot proceed. Callers that wait for a
    /// group to reach stable storage keep waiting, and active transactions continue.
    pub fn pause(&self, reason: &str, what: Pause) {
        self.state.lock().pause = Some((reason.into(), what));
        self.changed.notify_all();
    }
    /// Resumes after [`TxgGroups::pause`] or [`TxgGroups::fail`].
    pub fn resume(&self) {
        let mut state = self.state.lock();
        (state.failure, state.pause) = (None, None);
        drop(state);
        self.changed.notify_all();
    }
    /// The reason why writing is suspended, if it is.
    #[must_use]
    pub fn failure(&self) -> Option<Arc<str>> {
        let state = self.state.lock();
        state.ruin.as_ref().or(state.failure.as_ref()).cloned()
    }
    /// Ends the groups permanently. No transaction can begin, and the sync thread gets `None`.
    pub fn end_all(&self) {
        self.state.lock().has_ended = true;
        self.changed.notify_all();
    }
    /// Whether [`TxgGroups::end_all`] was called.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.state.lock().has_ended
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

    /// Closes the open group if that is due and no group is quiescing. Any thread may do this, so that a
    /// group quiesces while the previous one is still being written.
    fn close_if_due(&self, state: &mut MutexGuard<'_, State>) {
        if state.quiescing.is_some() {
            return;
        }
        let open = state.open;
        let is_wanted = state.wanted >= open;
        let group = state.group(open);
        let is_full = group.dirty_bytes > 0 && group.dirty_bytes >= self.limits_now().close_bytes();
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

/// A group that is being written. All its transactions have ended.
#[derive(Debug)]
pub struct SyncingTxg {
    groups: Arc<TxgGroups>,
    txg: Txg,
    is_idle: bool,
}

impl SyncingTxg {
    /// The txg.
    #[must_use]
    pub fn txg(&self) -> Txg {
        self.txg
    }
    /// Whether no transaction ever began in it. If the pool has no changes of its own either, the group only
    /// has to be reported as synced and nothing is written.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.is_idle
    }
    /// A transaction for changes made while the group is being written. Never waits and delays nothing.
    #[must_use]
    pub fn transaction(&self) -> Transaction {
        Transaction::new(Arc::clone(&self.groups), self.txg, 0, None)
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
