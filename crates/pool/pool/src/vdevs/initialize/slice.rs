//! Slices: the parts of an initialization between two stored states.

use super::place::Place;
use super::{InitializeControl, Work, leaves_of, phase};
use crate::PoolError;
use crate::pool::Pool;
use crate::sync::context::SyncContext;
use millpond_alloc::{Hold, HoldLimits};
use millpond_device::{Device, WriteRequest};
use millpond_env::mark;
use millpond_env::sync::{Arc, Weak};
use millpond_ondisk::{Guid, LeafLayout, ObjectId, VDEV_DATA_START_BYTES};
use std::ops::Range;
use std::time::Duration;

/// What free space is filled with: 64-bit numbers in the byte order of the processor that OpenZFS ran on, little-endian.
const PATTERN: u64 = 0xdead_beef_dead_beee;
/// The most bytes of one request.
const REQUEST_BYTES: usize = 1 << 20;
/// How long the thread waits for something to do.
const LOOK: Duration = Duration::from_secs(1);
/// How long it waits after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The size of a slice, for each leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitializeLimits {
    /// The most bytes of a vdev to hold at a time.
    pub held_bytes: u64,
    /// The most ranges to hold at a time.
    pub held_ranges: usize,
    /// How often to hold space.
    pub batches: usize,
    /// How long a slice takes, in nanoseconds.
    pub slice_ns: u64,
}

impl Default for InitializeLimits {
    fn default() -> Self {
        Self {
            held_bytes: 16 << 20,
            held_ranges: 1024,
            batches: 4096,
            slice_ns: 1_000_000_000,
        }
    }
}

/// How far a slice came on one leaf.
struct Progress {
    zap: ObjectId,
    work: Work,
    is_complete: bool,
}

/// How a batch ended.
enum Batch {
    /// The free space up to these bytes of the top-level vdev is done.
    Done { next_bytes: u64, leaf_bytes: u64 },
    /// There is no more free space.
    End,
    /// It cannot continue now.
    Stopped,
}

impl Pool {
    /// Starts the thread that initializes leaves, until the pool ends. Without it, initializations stand still.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start_initializer(self: &Arc<Self>) -> std::io::Result<()> {
        let weak = Arc::downgrade(self);
        self.threads.spawn("millpond-init", move || run(&weak))
    }

    /// Makes one slice of all initializations that run. Returns whether any came further.
    ///
    /// # Errors
    /// As [`Pool::sync_task`].
    pub fn initialize_slice(&self, limits: &InitializeLimits) -> Result<bool, PoolError> {
        if self.suspension().is_some() {
            return Ok(false);
        }
        let root = self.state.read().config.root.clone();
        let mut all = vec![];
        for leaf in leaves_of(&root) {
            let zap = leaf.zap_leaf.and_then(ObjectId::some);
            let work = zap.and_then(|zap| Some((zap, self.initialize.active(zap)?)));
            if let Some((zap, work)) = work {
                all.extend(self.initialize_leaf(leaf.guid, zap, work, limits));
            }
        }
        if all.is_empty() {
            return Ok(false);
        }
        self.sync_task(|ctx| all.iter().try_for_each(|one| ctx.end_initialize_slice(one)))?;
        Ok(true)
    }

    fn initialize_leaf(
        &self,
        leaf: Guid,
        zap: ObjectId,
        mut work: Work,
        limits: &InitializeLimits,
    ) -> Option<Progress> {
        let until_ns = (self.env.clock.monotonic_ns()).saturating_add(limits.slice_ns);
        let mut has_moved = false;
        for _ in 0..limits.batches {
            if self.env.clock.monotonic_ns() > until_ns {
                break;
            }
            let is_current = |now: &Work| now.serial == work.serial;
            if !self.initialize.active(zap).as_ref().is_some_and(is_current) {
                return None;
            }
            match self.initialize_batch(leaf, &work, limits) {
                Batch::Done {
                    next_bytes,
                    leaf_bytes,
                } => {
                    work.next_bytes = Some(next_bytes);
                    work.leaf_bytes = work.leaf_bytes.max(leaf_bytes);
                    has_moved = true;
                }
                Batch::End => {
                    return Some(Progress {
                        zap,
                        work,
                        is_complete: true,
                    });
                }
                Batch::Stopped => break,
            }
        }
        has_moved.then_some(Progress {
            zap,
            work,
            is_complete: false,
        })
    }

    /// The device of a leaf that is in use.
    fn activity_device(&self, leaf: Guid) -> Option<Arc<dyn Device>> {
        let topology = self.store.topology();
        topology.leaf_device(topology.tree.find_leaf(leaf)?)
    }

    /// Fills the next free space, which is held until it is written.
    fn initialize_batch(&self, leaf: Guid, work: &Work, limits: &InitializeLimits) -> Batch {
        // Dropped last: until then no device leaves the pool.
        let Some(_busy) = self.initialize.enter() else {
            return Batch::Stopped;
        };
        let place = Place::of(&self.state.read().config.root, leaf);
        let device = self.activity_device(leaf);
        let (Some(place), Some(device), None) = (place, device, self.suspension()) else {
            return Batch::Stopped;
        };
        let from = work
            .next_bytes
            .unwrap_or_else(|| place.top_bytes(work.leaf_bytes));
        let limits = HoldLimits {
            bytes: limits.held_bytes,
            ranges: limits.held_ranges,
            least_bytes: 0,
        };
        let space = match self.allocator.hold_free(place.top, from, &limits) {
            Hold::Space(space) => space,
            Hold::Wanted => return Batch::Stopped,
            Hold::End => return Batch::End,
        };
        let ranges: Vec<_> = space
            .ranges()
            .iter()
            .map(|range| place.leaf_range(range))
            .filter(|range| !range.is_empty())
            .collect();
        // Who changes the tree, and who needs the space, waits for one request at most.
        let may_go_on = || {
            self.initialize.is_free() && !space.is_wanted() && self.activity_device(leaf).is_some()
        };
        let filled = fill(device.as_ref(), &ranges, &may_go_on);
        let outcome = match filled {
            Filled::All => Batch::Done {
                next_bytes: space.end_bytes(),
                leaf_bytes: ranges.last().map_or(0, |range| range.end),
            },
            Filled::UpTo(leaf_bytes) => {
                mark::hit("initialize-gives-way");
                Batch::Done {
                    next_bytes: place.top_bytes(leaf_bytes),
                    leaf_bytes,
                }
            }
            Filled::Nothing => return Batch::Stopped,
        };
        // An allocation that waits for the space need not wait for the flush: what is written there later is later for the
        // device too.
        drop(space);
        if let Err(error) = device.flush() {
            tracing::debug!(leaf = leaf.0, %error, "initialized space could not be flushed");
            return Batch::Stopped;
        }
        outcome
    }
}

/// How far [`fill`] came.
enum Filled {
    All,
    /// It gave way. Up to here, in bytes from the start of the leaf's space, it is done.
    UpTo(u64),
    Nothing,
}

/// Writes the pattern to ranges of a leaf's space where it can, as long as it may go on. A range that would reach beyond
/// the space is left out.
fn fill(device: &dyn Device, ranges: &[Range<u64>], may_go_on: &dyn Fn() -> bool) -> Filled {
    let layout = LeafLayout::new(device.size_bytes());
    let space_bytes = layout.map_or(0, LeafLayout::asize_bytes);
    let bytes = PATTERN.to_le_bytes().repeat(REQUEST_BYTES / 8);
    let mut done = Filled::Nothing;
    for range in ranges.iter().filter(|range| range.end <= space_bytes) {
        let mut at = range.start;
        while at < range.end {
            if !may_go_on() {
                return done;
            }
            let length = (range.end - at).min(REQUEST_BYTES as u64);
            let part = &bytes[..length as usize];
            let mut requests = [WriteRequest::new(VDEV_DATA_START_BYTES + at, part)];
            device.write_many(&mut requests);
            // Counted as a write error of the leaf, which stays uninitialized here.
            if let [
                WriteRequest {
                    outcome: Err(error),
                    ..
                },
            ] = &requests
            {
                tracing::debug!(%error, "free space was not initialized");
            }
            at += length;
            done = Filled::UpTo(at);
        }
    }
    Filled::All
}

impl SyncContext<'_> {
    /// Stores how far a slice came. If the work was stopped or started anew meanwhile, that is void.
    fn end_initialize_slice(&self, progress: &Progress) -> Result<(), PoolError> {
        let root = self.pool.state.read().config.root.clone();
        let control: &InitializeControl = &self.pool.initialize;
        let mut state = control.state.lock();
        // The leaf, and with it the ZAP, may have left the pool.
        let mut leaves = leaves_of(&root).into_iter();
        let Some(leaf) = leaves.find(|leaf| leaf.zap_leaf == Some(progress.zap)) else {
            state.work.remove(&progress.zap);
            return Ok(());
        };
        let Some(work) = state.work.get_mut(&progress.zap) else {
            return Ok(());
        };
        if (work.serial, work.phase) != (progress.work.serial, phase::ACTIVE) {
            return Ok(());
        }
        *work = progress.work;
        if progress.is_complete {
            work.phase = phase::COMPLETE;
            mark::hit("leaf-initialized");
        }
        let Work {
            phase, leaf_bytes, ..
        } = *work;
        drop(state);
        self.store_initialize(progress.zap, phase, leaf_bytes, progress.is_complete)?;
        if progress.is_complete {
            self.note_initialize(leaf, "initialize", " complete")?;
        }
        Ok(())
    }
}

fn run(weak: &Weak<Pool>) {
    let limits = InitializeLimits::default();
    loop {
        // The thread holds the pool only while it looks.
        let Some(pool) = weak.upgrade() else { return };
        let wait = match pool.is_initializing() {
            false => LOOK,
            true => match pool.initialize_slice(&limits) {
                Ok(true) => Duration::ZERO,
                Ok(false) => LOOK,
                Err(error) => {
                    tracing::debug!(pool = %pool.name(), %error, "a slice of an initialization failed");
                    AFTER_FAILURE
                }
            },
        };
        if !pool.initialize.wait(wait) {
            return;
        }
    }
}
