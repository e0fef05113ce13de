//! Slices: the parts of an activity between two stored states.

use super::leaf_position::LeafPosition;
use super::requests::{Made, Request, make};
use super::{LeafActivity, Work, leaves_of, phase};
use crate::PoolError;
use crate::pool::Pool;
use crate::sync::context::SyncContext;
use millpond_alloc::{HeldSpace, Hold, HoldLimits};
use millpond_device::Device;
use millpond_env::Tunable;
use millpond_env::mark;
use millpond_env::sync::{Arc, Weak};
use millpond_ondisk::{Guid, ObjectId};
use std::ops::Range;
use std::time::Duration;

/// How long the thread waits for something to do.
const LOOK: Duration = Duration::from_secs(1);
/// How long it waits after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// The most bytes to hold at a time are at least these, however low the rate.
const RATE_BYTES_MIN: u64 = 32 << 10;
/// How much more a trim may hold: a discard takes less time than a write.
const TRIM_FACTOR: u64 = 4;

/// The size of a slice, for each leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SliceLimits {
    /// The most bytes of a vdev to hold at a time, to write them. Four times as many to discard them.
    pub held_bytes: u64,
    /// The most ranges to hold at a time.
    pub held_ranges: usize,
    /// How often to hold space.
    pub batches: usize,
    /// How long a slice takes, in nanoseconds.
    pub slice_ns: u64,
}

impl Default for SliceLimits {
    fn default() -> Self {
        Self {
            held_bytes: 16 << 20,
            held_ranges: 1024,
            batches: 4096,
            slice_ns: 1_000_000_000,
        }
    }
}

/// An activity on a leaf, at the beginning of a slice or later.
struct Job {
    activity: LeafActivity,
    leaf: Guid,
    zap: ObjectId,
    work: Work,
}

/// How a slice of a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Moved,
    Complete,
    /// The device cannot do it any more.
    Impossible,
}

/// How a batch ended.
enum Batch {
    /// The free space up to these bytes of the top-level vdev is done.
    Done { next_bytes: u64, leaf_bytes: u64 },
    /// There is no more free space.
    End,
    /// It cannot continue now.
    Stopped,
    /// It cannot continue.
    Impossible,
}

impl Pool {
    /// Starts the thread that works on free space, until the pool ends. Without it, activities stand still.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start_leaf_activities(self: &Arc<Self>) -> std::io::Result<()> {
        let weak = Arc::downgrade(self);
        self.threads.spawn("millpond-free", move || run(&weak))
    }

    /// Makes one slice of all activities that run. Returns whether any came further.
    ///
    /// # Errors
    /// As [`Pool::sync_task`].
    pub fn leaf_activity_slice(&self, limits: &SliceLimits) -> Result<bool, PoolError> {
        if self.suspension().is_some() {
            return Ok(false);
        }
        let root = self.state.read().config.root.clone();
        let mut all = vec![];
        for leaf in leaves_of(&root) {
            let Some(zap) = leaf.zap_leaf.and_then(ObjectId::some) else {
                continue;
            };
            for activity in LeafActivity::ALL {
                if let Some(work) = self.activities.active(activity, zap) {
                    let leaf = leaf.guid;
                    let mut job = Job {
                        activity,
                        leaf,
                        zap,
                        work,
                    };
                    let outcome = self.job_slice(&mut job, limits);
                    all.extend(outcome.map(|outcome| (job, outcome)));
                }
            }
        }
        if all.is_empty() {
            return Ok(false);
        }
        self.sync_task(|ctx| {
            (all.iter()).try_for_each(|(job, outcome)| ctx.end_job_slice(job, *outcome))
        })?;
        Ok(true)
    }

    /// `None` if nothing changed.
    fn job_slice(&self, job: &mut Job, limits: &SliceLimits) -> Option<Outcome> {
        let until_ns = (self.env.clock.monotonic_ns()).saturating_add(limits.slice_ns);
        let mut has_moved = false;
        for _ in 0..limits.batches {
            let now_ns = self.env.clock.monotonic_ns();
            if now_ns > until_ns || now_ns < job.work.ready_ns {
                break;
            }
            let is_current = |now: &Work| now.serial == job.work.serial;
            let now = self.activities.active(job.activity, job.zap);
            if !now.as_ref().is_some_and(is_current) {
                return None;
            }
            match self.job_batch(job, limits) {
                Batch::Done {
                    next_bytes,
                    leaf_bytes,
                } => {
                    job.work.next_bytes = Some(next_bytes);
                    job.work.leaf_bytes = job.work.leaf_bytes.max(leaf_bytes);
                    has_moved = true;
                }
                Batch::End => return Some(Outcome::Complete),
                Batch::Impossible => return Some(Outcome::Impossible),
                Batch::Stopped => break,
            }
        }
        has_moved.then_some(Outcome::Moved)
    }

    /// The device of a leaf that is in use, for work on its free space.
    pub(super) fn activity_device(&self, leaf: Guid) -> Option<Arc<dyn Device>> {
        let topology = self.store.topology();
        topology.background_device(topology.tree.find_leaf(leaf)?)
    }

    /// Fills or discards the next free space, which is held until that is done.
    fn job_batch(&self, job: &mut Job, limits: &SliceLimits) -> Batch {
        // Dropped last: until then no device leaves the pool.
        let Some(_busy) = self.activities.enter() else {
            return Batch::Stopped;
        };
        let position = LeafPosition::of(&self.store.topology().tree, job.leaf);
        let device = self.activity_device(job.leaf);
        let (Some(position), Some(device), None) = (position, device, self.suspension()) else {
            return Batch::Stopped;
        };
        let is_trim = job.activity == LeafActivity::Trim;
        if is_trim && !device.discard_support().is_some_and(|can| can.plain) {
            return Batch::Impossible;
        }
        let work = &job.work;
        let from = work
            .next_bytes
            .unwrap_or_else(|| position.top_bytes(work.leaf_bytes));
        let held = hold_limits(job, limits, &position, self.trim_bytes_min());
        let space = match self.allocator.hold_free(position.top, from, &held) {
            Hold::Space(space) => space,
            Hold::Wanted => return Batch::Stopped,
            Hold::End => return Batch::End,
        };
        let ranges = ranges_of(&position, &space);
        let what = match (job.activity, work.options.is_secure) {
            (LeafActivity::Initialize, _) => {
                Request::Fill(self.env.tunables.get(Tunable::InitializeValue))
            }
            (LeafActivity::Trim, false) => Request::Discard,
            (LeafActivity::Trim, true) => Request::DiscardSecurely,
        };
        let may_go_on = || self.may_go_on(&space, job.leaf);
        let made = make(device.as_ref(), what, &ranges, &may_go_on);
        let all = ranges.last().map_or(0, |range| range.end);
        let (next_bytes, leaf_bytes) = match made {
            Made::All => (space.end_bytes(), all),
            Made::UpTo(leaf_bytes) => {
                mark::hit("leaf-activity-gives-way");
                (position.top_bytes(leaf_bytes), leaf_bytes)
            }
            Made::Nothing => return Batch::Stopped,
        };
        job.work.ready_ns = self.ready_ns(job, &ranges);
        // An allocation that waits for the space need not wait for the flush: what is written there later is later for the
        // device too.
        drop(space);
        if !is_trim && let Err(error) = device.flush() {
            tracing::debug!(leaf = job.leaf.0, %error, "initialized space could not be flushed");
            return Batch::Stopped;
        }
        Batch::Done {
            next_bytes,
            leaf_bytes,
        }
    }

    /// Smaller ranges are not discarded: that costs devices more than it gives.
    pub(super) fn trim_bytes_min(&self) -> u64 {
        self.env.tunables.get(Tunable::TrimBytesMin)
    }

    /// Whether another request may follow. Who changes the tree, and who needs the space, waits for one at most.
    pub(super) fn may_go_on(&self, space: &HeldSpace, leaf: Guid) -> bool {
        self.activities.is_free() && !space.is_wanted() && self.activity_device(leaf).is_some()
    }

    /// When the next batch may begin after one of these ranges.
    fn ready_ns(&self, job: &Job, ranges: &[Range<u64>]) -> u64 {
        let bytes = ranges.iter().map(|range| range.end - range.start);
        let bytes: u128 = bytes.map(u128::from).sum();
        let ns = (bytes * 1_000_000_000).checked_div(u128::from(job.work.options.rate_bytes));
        let ns = ns.map_or(0, |ns| u64::try_from(ns).unwrap_or(u64::MAX));
        self.env.clock.monotonic_ns().saturating_add(ns)
    }
}

/// The parts of held space on a leaf.
pub(super) fn ranges_of(position: &LeafPosition, space: &HeldSpace) -> Vec<Range<u64>> {
    let ranges = space.ranges().iter();
    ranges
        .flat_map(|range| position.leaf_ranges(range))
        .collect()
}

fn hold_limits(
    job: &Job,
    limits: &SliceLimits,
    position: &LeafPosition,
    trim_bytes_min: u64,
) -> HoldLimits {
    let mut held = HoldLimits {
        bytes: limits.held_bytes,
        ranges: limits.held_ranges,
        least_bytes: 0,
    };
    if job.activity == LeafActivity::Trim {
        held.least_bytes = trim_bytes_min;
        held.bytes = (limits.held_bytes).saturating_mul(TRIM_FACTOR);
        if job.work.options.rate_bytes > 0 {
            // A second's worth.
            held.bytes = held.bytes.min(job.work.options.rate_bytes);
        }
        held.bytes = held.bytes.max(trim_bytes_min).max(RATE_BYTES_MIN);
    }
    held.bytes = position.whole_units(held.bytes);
    held
}

impl SyncContext<'_> {
    /// Stores how far a slice came. If the work was stopped or started anew meanwhile, that is void.
    fn end_job_slice(&self, job: &Job, outcome: Outcome) -> Result<(), PoolError> {
        let root = self.pool.state.read().config.root.clone();
        let control = &self.pool.activities;
        let key = (job.activity, job.zap);
        let mut state = control.state.lock();
        // The leaf, and with it the ZAP, may have left the pool.
        let mut leaves = leaves_of(&root).into_iter();
        let Some(leaf) = leaves.find(|leaf| leaf.zap_leaf == Some(job.zap)) else {
            state.work.remove(&key);
            return Ok(());
        };
        let Some(work) = state.work.get_mut(&key) else {
            return Ok(());
        };
        if (work.serial, work.phase) != (job.work.serial, phase::ACTIVE) {
            return Ok(());
        }
        *work = job.work;
        let (phase, text, event) = match outcome {
            Outcome::Moved => (phase::ACTIVE, "", ""),
            Outcome::Complete => (phase::COMPLETE, " complete", "trim_finish"),
            Outcome::Impossible => (phase::CANCELED, " canceled", "trim_cancel"),
        };
        work.phase = phase;
        let work = *work;
        drop(state);
        let has_ended = outcome != Outcome::Moved;
        self.store_activity(job.activity, job.zap, &work, has_ended)?;
        if has_ended {
            mark::hit("leaf-activity-ends");
            self.note_activity(leaf, job.activity.verb(), text)?;
            if job.activity == LeafActivity::Trim {
                self.note_scan(event);
            }
        }
        Ok(())
    }
}

fn run(weak: &Weak<Pool>) {
    let limits = SliceLimits::default();
    loop {
        // The thread holds the pool only while it looks.
        let Some(pool) = weak.upgrade() else { return };
        pool.autotrim(&limits);
        let is_active = LeafActivity::ALL
            .iter()
            .any(|one| pool.is_leaf_active(*one));
        let slice = match is_active {
            false => Ok(false),
            true => pool.leaf_activity_slice(&limits),
        };
        let wait = match slice {
            Ok(true) => pool.leaf_activity_delay().min(LOOK),
            Ok(false) => match pool.leaf_activity_delay() {
                Duration::ZERO => LOOK,
                delay => delay.min(LOOK),
            },
            Err(error) => {
                tracing::debug!(pool = %pool.name(), %error, "a slice of work on free space failed");
                AFTER_FAILURE
            }
        };
        if !pool.wait_for_leaf_activity(wait) {
            return;
        }
    }
}
