//! Property `multihost`: several systems may import a pool, one at a time.
//!
//! The system that has the pool writes heartbeats: copies of the last uberblock with a new time, in a slot of the rings
//! that txgs do not use. Another system watches the uberblocks before it opens the pool for writing
//! ([`crate::import::ActivityCheck`]), and claims it before the first write. A pool whose heartbeats fail is suspended for
//! good before such a watch ends.
//!
//! Page `docs/format/uberblock.md`, "Heartbeats".

mod claim;
mod watch;

pub use watch::WatchedPool;

use crate::failure::{Suspension, SuspensionCause};
use crate::import::WATCH_MAX_NS;
use crate::labels;
use crate::pool::{Pool, SyncMode};
use crate::{PoolError, labels::heartbeat_target};
use millpond_block::Topology;
use millpond_env::sync::{Arc, Condvar, Mutex, MutexGuard};
use millpond_env::{Tunable, Tunables, mark, rank};
use millpond_ondisk::{MmpState, Txg, Uberblock, UberblockRank};
use millpond_vdev::LeafId;
use std::time::Duration;

/// How often the thread looks whether a heartbeat is due, at most.
const LOOK: Duration = Duration::from_millis(100);
/// No shorter interval is used,
const INTERVAL_MIN_MS: u64 = 100;
/// and no longer one: two of them must pass in half of the longest watch.
const INTERVAL_MAX_MS: u64 = 900_000;
/// The mean delay moves by this part towards each measured one.
const DELAY_PART: u64 = 8;
const NS_PER_MS: u64 = 1_000_000;

/// What a system promises with its uberblocks, from the tunables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Promise {
    interval_ms: u32,
    /// 0 for never.
    fail_intervals: u16,
}

impl Promise {
    fn of(tunables: &Tunables) -> Self {
        let interval = tunables.get(Tunable::MultihostInterval);
        let interval = interval.clamp(INTERVAL_MIN_MS, INTERVAL_MAX_MS);
        // A watch lasts twice as long as the lease, and at most an hour.
        let most = WATCH_MAX_NS / 2 / NS_PER_MS / interval;
        let fails = match tunables.get(Tunable::MultihostFailIntervals) {
            0 => 0,
            count => count.clamp(2, most),
        };
        Self {
            interval_ms: u32::try_from(interval).unwrap_or(u32::MAX),
            fail_intervals: u16::try_from(fails).unwrap_or(u16::MAX),
        }
    }

    fn interval_ns(self) -> u64 {
        u64::from(self.interval_ms).saturating_mul(NS_PER_MS)
    }

    /// How long a heartbeat may take before the next leaf gets one, in nanoseconds.
    ///
    /// In half of the lease each leaf gets its turn, even if none answers.
    fn patience_ns(self, leaves: u64) -> u64 {
        let intervals = match self.fail_intervals {
            0 => 10,
            count => u64::from(count),
        };
        let turn = (2 * leaves.max(1)).min(self.interval_ns());
        self.interval_ns().saturating_mul(intervals) / turn.max(1)
    }

    /// How long after one heartbeat the next follows, in nanoseconds.
    fn period_ns(self, leaves: u64) -> u64 {
        self.interval_ns().checked_div(leaves).unwrap_or(0)
    }

    /// An uberblock of a txg with this promise. `delay_ns` is the mean delay of heartbeats, 0 if there were none.
    fn mark_uberblock(self, uberblock: Uberblock, delay_ns: u64) -> Uberblock {
        uberblock.with_mmp(MmpState {
            delay_ns: match delay_ns {
                0 => self.interval_ns(),
                measured => measured,
            },
            interval_ms: Some(self.interval_ms),
            sequence: Some(0),
            fail_intervals: Some(self.fail_intervals),
        })
    }

    /// Until when a pool may be used whose last heartbeat began at `begun_ns`.
    fn lease_until_ns(self, begun_ns: u64) -> u64 {
        match self.fail_intervals {
            0 => u64::MAX,
            count => begun_ns.saturating_add(self.interval_ns().saturating_mul(count.into())),
        }
    }
}

/// The heartbeats of a pool.
#[derive(Default)]
pub(crate) struct Heartbeat {
    /// Held while one is written.
    writing: Mutex<Written, rank::Heartbeat>,
    thread: Mutex<Thread, rank::Leaf>,
    wake: Condvar,
}

/// The last heartbeat.
#[derive(Debug, Default)]
pub(crate) struct Written {
    sequence: u16,
    txg: Txg,
    timestamp_s: u64,
    /// When the last successful one began; monotonic.
    success_ns: Option<u64>,
    /// The decaying mean of the time between successful ones; 0 before the first.
    pub(crate) delay_ns: u64,
    /// When the next one is due, as the promise in the last one says.
    due_ns: u64,
    /// The leaf after the last one.
    next: u32,
}

impl Written {
    /// The next one is newer than an uberblock that was there before.
    fn continue_after(&mut self, rank: UberblockRank) {
        (self.txg, self.timestamp_s, self.sequence) =
            (rank.txg, rank.timestamp_s, rank.mmp_sequence);
    }

    /// The earliest time in seconds of an uberblock that must be newer than all heartbeats.
    pub(crate) fn after_s(&self) -> u64 {
        self.timestamp_s.saturating_add(1)
    }
}

#[derive(Default)]
struct Thread {
    is_running: bool,
    has_ended: bool,
}

impl Heartbeat {
    /// Waits for a heartbeat that is being written, and prevents the next one while the guard lives.
    pub(crate) fn hold(&self) -> MutexGuard<'_, Written> {
        self.writing.lock()
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.thread.lock().has_ended = true;
        self.wake.notify_all();
    }
}

/// Whether the heartbeats belong to a pool in this state: its last uberblock says that multihost is on.
fn is_on(uberblock: &Uberblock) -> bool {
    uberblock.mmp().is_some_and(|mmp| mmp.delay_ns != 0)
}

impl Pool {
    /// Starts the thread of the heartbeats if the last txg turned them on.
    pub(crate) fn keep_heartbeat(self: &Arc<Self>) {
        if self.sync_mode == SyncMode::Caller || !is_on(&self.uberblock()) {
            return;
        }
        {
            let mut thread = self.heartbeat.thread.lock();
            if thread.is_running || thread.has_ended {
                return;
            }
            thread.is_running = true;
        }
        self.begin_lease(self.now_ns());
        let weak = Arc::downgrade(self);
        let heartbeat = Arc::clone(&self.heartbeat);
        let body = move || {
            loop {
                let Some(pool) = weak.upgrade() else { return };
                if !is_on(&pool.uberblock()) {
                    pool.store
                        .topology()
                        .lease()
                        .extend(u64::MAX, &pool.env.clock);
                    heartbeat.thread.lock().is_running = false;
                    // A txg that turned multihost on again meanwhile may have found this thread.
                    pool.keep_heartbeat();
                    return;
                }
                let wait = pool.beat_if_due();
                drop(pool);
                let mut thread = heartbeat.thread.lock();
                if thread.has_ended {
                    return;
                }
                heartbeat.wake.wait_for(&mut thread, wait.min(LOOK));
                if thread.has_ended {
                    return;
                }
            }
        };
        if let Err(error) = self.threads.spawn("millpond-beat", body) {
            self.stop_for_multihost(&format!("the thread of heartbeats did not start: {error}"));
        }
    }

    /// An uberblock of a txg, with what it promises to other systems. `delay_ns` is the mean delay of heartbeats.
    pub(crate) fn with_promise(&self, uberblock: Uberblock, delay_ns: u64) -> Uberblock {
        Promise::of(&self.env.tunables).mark_uberblock(uberblock, delay_ns)
    }

    /// Why a txg could not be written: without its lease the pool may not use its devices.
    pub(crate) fn suspension_cause(&self) -> SuspensionCause {
        match self.store.topology().lease().has_ended() {
            true => SuspensionCause::Multihost,
            false => SuspensionCause::Devices,
        }
    }

    /// Changes the host id in the pool's labels.
    ///
    /// # Errors
    /// As [`Pool::sync_task`].
    pub fn set_hostid(&self, hostid: u64) -> Result<(), PoolError> {
        if self.state.read().config.hostid == hostid {
            return Ok(());
        }
        self.sync_task(|ctx| {
            ctx.pool.state.write().config.hostid = hostid;
            ctx.mark_config_dirty();
            Ok(())
        })
    }

    fn now_ns(&self) -> u64 {
        self.env.clock.uptime_ns()
    }

    /// What others saw at this time counts as the first heartbeat: the txg that turned multihost on, or what opening wrote.
    fn begin_lease(&self, now_ns: u64) {
        let promise = Promise::of(&self.env.tunables);
        let mut written = self.heartbeat.writing.lock();
        written.success_ns = Some(now_ns);
        written.delay_ns = promise.interval_ns();
        let lease_ns = promise.lease_until_ns(now_ns);
        self.store
            .topology()
            .lease()
            .extend(lease_ns, &self.env.clock);
    }

    /// Writes a heartbeat if the interval has passed. Returns the time until the next.
    fn beat_if_due(&self) -> Duration {
        let leaves = self.store.topology().devices.len().max(1) as u64;
        let period_ns = Promise::of(&self.env.tunables).period_ns(leaves);
        let now_ns = self.now_ns();
        // A longer interval counts only once a heartbeat has told it.
        let due_ns = self
            .heartbeat
            .writing
            .lock()
            .due_ns
            .min(now_ns.saturating_add(period_ns));
        if now_ns >= due_ns {
            self.beat();
            return Duration::from_nanos(period_ns);
        }
        Duration::from_nanos(due_ns.saturating_sub(now_ns))
    }

    /// Writes one heartbeat, to one leaf. Suspends the pool for good if none has succeeded for too long. Pools with
    /// their own threads do this by themselves.
    ///
    /// Returns whether it was written.
    pub fn beat(&self) -> bool {
        let topology = self.store.topology();
        if topology.lease().has_ended() {
            self.stop_for_multihost("no heartbeat of multihost could be written for too long");
            return false;
        }
        let mut written = self.heartbeat.writing.lock();
        // The topology and the uberblock that are valid while the lock is held.
        let topology = self.store.topology();
        let uberblock = self.uberblock();
        let Some(leaf) = next_leaf(&topology, &mut written.next) else {
            return false;
        };
        let promise = Promise::of(&self.env.tunables);
        let begun_ns = self.now_ns();
        let beat = self.next_beat(&mut written, &uberblock, promise, begun_ns);
        let leaves = topology.devices.len().max(1) as u64;
        let limit_ns = promise.patience_ns(leaves);
        if !labels::write_heartbeat(&topology, leaf, &beat, self.random(), limit_ns) {
            mark::hit("heartbeat-failed");
            return false;
        }
        mark::hit("heartbeat");
        let elapsed_ns = begun_ns.saturating_sub(written.success_ns.unwrap_or(begun_ns));
        let (mean_ns, part) = (written.delay_ns, DELAY_PART);
        written.delay_ns = (mean_ns - mean_ns / part)
            .saturating_add(elapsed_ns / part)
            .max(1);
        written.success_ns = Some(begun_ns);
        written.due_ns = begun_ns.saturating_add(promise.period_ns(leaves));
        topology
            .lease()
            .extend(promise.lease_until_ns(begun_ns), &self.env.clock);
        true
    }

    fn random(&self) -> u64 {
        let mut bytes = [0; 8];
        self.env.entropy.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// The uberblock of a heartbeat: newer than the committed one and than the last heartbeat.
    fn next_beat(
        &self,
        written: &mut Written,
        uberblock: &Uberblock,
        promise: Promise,
        now_ns: u64,
    ) -> Uberblock {
        let floor_s = match written.txg == uberblock.txg {
            true => written.timestamp_s.max(uberblock.timestamp_s),
            false => uberblock.timestamp_s,
        };
        let mut timestamp_s = floor_s.max(self.env.clock.wall_ns() / 1_000_000_000);
        if written.sequence == u16::MAX
            && (written.txg, written.timestamp_s) == (uberblock.txg, timestamp_s)
        {
            // The clock stands still, or is behind.
            timestamp_s = timestamp_s.saturating_add(1);
        }
        let is_same = (written.txg, written.timestamp_s) == (uberblock.txg, timestamp_s);
        written.sequence = match is_same {
            true => written.sequence.saturating_add(1),
            false => 1,
        };
        (written.txg, written.timestamp_s) = (uberblock.txg, timestamp_s);
        let overdue_ns = now_ns.saturating_sub(written.success_ns.unwrap_or(now_ns));
        let beat = Uberblock {
            timestamp_s,
            ..*uberblock
        };
        beat.with_mmp(MmpState {
            delay_ns: written.delay_ns.max(overdue_ns).max(1),
            interval_ms: Some(promise.interval_ms),
            sequence: Some(written.sequence),
            fail_intervals: Some(promise.fail_intervals),
        })
    }

    /// Suspends the pool for good: another system may have imported it.
    fn stop_for_multihost(&self, reason: &str) {
        mark::hit("multihost-suspends");
        tracing::error!(pool = %self.name(), reason, "suspended");
        self.store.topology().lease().end();
        self.cache_feed.end();
        self.failure.suspend(Suspension {
            txg: self.groups.open_txg(),
            reason: reason.to_owned(),
            can_resume: false,
            cause: SuspensionCause::Multihost,
        });
        self.failure.abandon();
        self.scan.end();
        self.activities.end();
        self.groups.fail(reason);
        self.fail_tasks(&PoolError::Suspended {
            reason: reason.to_owned(),
        });
        self.heartbeat.end();
    }
}

/// The next leaf that can be written, in turn.
fn next_leaf(topology: &Topology, next: &mut u32) -> Option<LeafId> {
    let count = u32::try_from(topology.devices.len()).unwrap_or(u32::MAX);
    let turn = (0..count).map(|step| next.wrapping_add(step).checked_rem(count).unwrap_or(0));
    let found = turn
        .map(LeafId)
        .find(|leaf| heartbeat_target(topology, *leaf).is_some())?;
    *next = found.0.saturating_add(1);
    Some(found)
}

#[cfg(test)]
mod tests;
