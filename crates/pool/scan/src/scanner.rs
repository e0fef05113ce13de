//! Runs the scan of a pool, slice by slice.

use crate::datasets::{Dataset, Found, after, after_mos, next, pass_over};
use crate::gather::{self, Context, Gathered};
use crate::issue::{is_logged, issue, log};
use millpond_block::BlockAddress;
use millpond_env::sync::{Arc, Weak};
use millpond_env::thread;
use millpond_env::{Tunable, mark};
use millpond_ondisk::{DecodeError, ObjectId, ScanFunction, ScanPhys};
use millpond_pool::{
    CopyLimits, Pool, PoolError, PoolView, RebuildLimits, ScanQueue, ScanSlice, ScrubRange,
    SliceOutcome,
};
use millpond_traverse::{Bookmark, Order, Outcome, Traversal, Tree};
use std::time::Duration;

/// How long the thread waits before it looks for stale leaves again.
const LOOK: Duration = Duration::from_secs(1);
/// How long it waits after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// How long a leaf is out of use before a spare steps in, in nanoseconds.
const SPARE_AFTER_NS: u64 = 5_000_000_000;
/// How many looks at a stale leaf come between two resilvers at least. The number doubles with each that did not help.
const BACK_OFF_LOOKS: u64 = 30;
/// How often it doubles: to a day and a half.
const TRIES_MAX: u32 = 12;
/// Why a slice could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScanError {
    /// The pool could not be read or written.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A replaced leaf could not be detached.
    #[error(transparent)]
    Detach(#[from] millpond_pool::AttachError),
    /// A structure of the MOS is invalid.
    #[error(transparent)]
    Invalid(#[from] DecodeError),
    /// An object of the MOS could not be read.
    #[error(transparent)]
    Object(#[from] millpond_object::ObjectError),
    /// A table of the MOS could not be read.
    #[error(transparent)]
    Table(#[from] millpond_zap::ZapError),
    /// A block could not be read once, and could be read later.
    #[error("{0}: it could not be read for a moment")]
    Unread(BlockAddress),
}

impl ScanError {
    /// Whether what was read is lost on all devices, or is not valid.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Pool(error) => error.is_damage(),
            Self::Invalid(_) => true,
            Self::Object(error) => error.is_damage(),
            Self::Table(error) => error.is_damage(),
            Self::Detach(_) | Self::Unread(_) => false,
        }
    }
}

/// The size of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most blocks. Each takes 160 bytes of memory.
    pub blocks: usize,
    /// How long it gathers blocks, in nanoseconds.
    pub gather_ns: u64,
    /// The threads that read.
    pub threads: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            blocks: 64 << 10,
            gather_ns: 2_000_000_000,
            threads: thread::parallelism().saturating_mul(2),
        }
    }
}

/// Scans a pool that is open for changes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scanner {
    pub(crate) limits: Limits,
}

impl Scanner {
    /// A scanner with slices of this size.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits }
    }

    /// Starts the thread that scans the pool whenever a scan is due, until the pool ends. It starts a resilver by
    /// itself when a leaf in use lacks txgs.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(self, pool: &Arc<Pool>) -> std::io::Result<()> {
        let weak = Arc::downgrade(pool);
        pool.spawn_scanner(move || self.run(&weak))
    }

    fn run(self, weak: &Weak<Pool>) {
        let mut due = ResilverDue::default();
        loop {
            // The thread holds the pool only while it looks.
            let Some(pool) = weak.upgrade() else { return };
            let (is_scanning, is_error_scrubbing) = (pool.is_scanning(), pool.is_error_scrubbing());
            let is_rebuilding = pool.is_rebuilding();
            let outcome = match is_suspended(&pool) {
                true if is_scanning || is_error_scrubbing || is_rebuilding => Ok(false),
                _ if is_rebuilding => Self::rebuild(&pool),
                _ if is_scanning => self.slice(&pool),
                _ if is_error_scrubbing => self.error_slice(&pool),
                _ => Self::look(&pool, &mut due),
            };
            // Beside a scan both advance.
            let evacuated = match pool.is_removing() {
                true => pool.removal_slice(&CopyLimits::default()),
                false => Ok(false),
            };
            let expanded = match pool.is_expanding() {
                true => pool.expansion_slice(&CopyLimits::default()),
                false => Ok(false),
            };
            let others = [evacuated, expanded, pool.condense_slice()];
            let others = others
                .into_iter()
                .try_fold(false, |moved, other| Ok(moved | other?));
            let outcome = match (outcome, others) {
                (Ok(has_moved), Ok(have_moved)) => Ok(has_moved || have_moved),
                (Err(error), _) => Err(error),
                (_, Err::<bool, PoolError>(error)) => Err(error.into()),
            };
            let wait = match outcome {
                Ok(true) => Duration::ZERO,
                Ok(false) => LOOK,
                Err(error) => {
                    tracing::debug!(pool = %pool.name(), %error, "a slice of a scan failed");
                    AFTER_FAILURE
                }
            };
            if !pool.wait_for_scan(wait) {
                return;
            }
        }
    }

    /// Makes one slice of all sequential resilvers. Returns whether there was anything to do.
    fn rebuild(pool: &Pool) -> Result<bool, ScanError> {
        let has_moved = pool.rebuild_slice(&RebuildLimits::default())?;
        if pool.suspension().is_none() && pool.has_finished_replacement() {
            pool.finish_replacements()?;
        }
        Ok(has_moved)
    }

    /// Finishes replacements, lets spares step in, and starts a resilver if a leaf in use lacks txgs, or a scrub that is due
    /// after a sequential one. Returns whether there was anything to do.
    fn look(pool: &Pool, due: &mut ResilverDue) -> Result<bool, ScanError> {
        if pool.suspension().is_none() && pool.has_finished_replacement() {
            pool.finish_replacements()?;
        }
        pool.step_in_spares(SPARE_AFTER_NS)?;
        if pool.suspension().is_none() && !pool.needs_resilver() && pool.take_scrub_due() {
            mark::hit("scrub-after-rebuild");
            return match pool.start_scrub(ScrubRange::All) {
                // Another scan runs, or waits to be resumed.
                Err(PoolError::Scan(_)) => Ok(true),
                outcome => Ok(outcome.map(|()| true)?),
            };
        }
        if pool.suspension().is_some() || !due.is_now(pool.resilver_need()) {
            return Ok(false);
        }
        mark::hit("resilver-started-by-itself");
        Ok(pool.start_resilver()?)
    }

    /// Makes one slice of the running scan. Returns whether there was anything to do.
    ///
    /// # Errors
    /// [`ScanError`]. The scan then continues where the last slice ended.
    pub fn slice(self, pool: &Arc<Pool>) -> Result<bool, ScanError> {
        let Some(slice) = pool.begin_slice() else {
            return Ok(false);
        };
        let view = pool.committed()?;
        if view.uberblock().txg < slice.since_txg {
            // The state is that of a txg that is still being written.
            pool.sync()?;
            return Ok(true);
        }
        let Some((slice, outcome)) = self.visit(pool, &view, slice)? else {
            return Ok(true);
        };
        drop(view);
        pool.end_slice(slice, outcome)?;
        Ok(true)
    }

    /// Visits the blocks of a slice. `None` if it was stopped, or its view expired.
    fn visit(
        self,
        pool: &Pool,
        view: &Arc<PoolView>,
        mut slice: ScanSlice,
    ) -> Result<Option<(ScanSlice, SliceOutcome)>, ScanError> {
        let topology = view.store().topology();
        let is_resilver = slice.phys.function == ScanFunction::Resilver;
        let clock = view.env().clock.as_ref();
        let gathered = Gathered::new(self.limits, clock, &topology, is_resilver);
        let (is_complete, has_missed) = gather(view, &gathered, &mut slice.phys, &mut slice.queue)?;
        // A dataset that is gone passed its place on, which the next slice finds there.
        if view.check_not_expired().is_err() || has_missed && pool.has_slice_changed() {
            return Ok(None);
        }
        let (examined, skipped) = (gathered.examined_bytes.get(), gathered.skipped_bytes.get());
        pool.note_slice_progress(examined, 0);
        let may_continue = |issued| {
            pool.note_slice_progress(examined, issued);
            pool.is_scanning() && !is_suspended(pool) && !view.store().has_expired()
        };
        let (found, also) = (gathered.found.into_inner(), gathered.shared.into_inner());
        let before = view.store().write_back_errors();
        let function = slice.phys.function;
        let issued = issue(
            view.store(),
            function,
            found,
            &also,
            self.limits.threads,
            &may_continue,
        );
        let Some((mut outcome, repaired)) = issued else {
            return Ok(None);
        };
        if !repaired.is_empty() {
            // A leaf lacks the blocks whose repairs did not become durable, although it may show them from a cache.
            let leaves = repaired.keys().copied();
            for leaf in view.store().flush_repairs(leaves, &before) {
                outcome.errors += 1;
                let births = repaired.get(&leaf).into_iter().flatten().copied();
                let unflushed = &mut outcome.losses.unflushed;
                let lost = unflushed.entry(topology.leaf_guid(leaf)).or_default();
                lost.extend(births);
            }
        }
        for fault in gathered.faults.into_inner() {
            outcome.errors += 1;
            outcome.losses.has_unvisited = true;
            log(&mut outcome, &fault);
        }
        for unread in gathered.unread.into_inner() {
            judge_unread(view, &unread, &mut outcome)?;
        }
        outcome.errors = outcome.errors.saturating_add(gathered.unvisited.get());
        outcome.losses.has_unvisited |= gathered.unvisited.get() > 0;
        outcome.examined_bytes = examined;
        outcome.skipped_bytes = skipped;
        outcome.is_complete = is_complete;
        Ok(Some((slice, outcome)))
    }
}

/// What is below a block that the traversal could not read was not visited. The block must be lost, then: if it can be
/// read now, or later, the slice is repeated.
fn judge_unread(
    view: &Arc<PoolView>,
    unread: &gather::Found,
    outcome: &mut SliceOutcome,
) -> Result<(), ScanError> {
    let (pointer, address) = (&unread.pointer, unread.address);
    match view.store().read(pointer, address, None) {
        Err(error) if error.is_damage() => {
            outcome.losses.lost.insert(pointer.physical_birth());
            // A resilver does not read blocks that no leaf lacks.
            if !is_logged(outcome, unread) {
                outcome.errors += 1;
                log(outcome, unread);
            }
            Ok(())
        }
        Err(error) if error.is_locked() => Ok(()),
        Ok(_) => Err(ScanError::Unread(address)),
        Err(error) => Err(PoolError::Block {
            what: "scan",
            error,
        }
        .into()),
    }
}

/// Whether scans make no progress, by order.
fn is_suspended(pool: &Pool) -> bool {
    pool.env().tunables.is_on(Tunable::ScanSuspendProgress)
}

/// When to start a resilver. One that did not help is repeated, but ever more seldom: some blocks may have no right
/// copy, or a device may refuse them.
#[derive(Debug, Default)]
struct ResilverDue {
    /// What leaves lacked when the last one started.
    need: Option<u64>,
    /// How many started for that.
    tries: u32,
    looks_left: u64,
}

impl ResilverDue {
    /// Whether to start one at this look.
    fn is_now(&mut self, need: Option<u64>) -> bool {
        if need != self.need {
            *self = Self {
                need,
                looks_left: self.looks_left.min(BACK_OFF_LOOKS),
                tries: 0,
            };
        }
        if need.is_none() {
            self.looks_left = 0;
            return false;
        }
        if self.looks_left > 0 {
            self.looks_left -= 1;
            return false;
        }
        self.looks_left = BACK_OFF_LOOKS << self.tries.min(TRIES_MAX);
        self.tries = self.tries.saturating_add(1);
        true
    }
}

/// Gathers blocks from where the scan stands. Returns whether it reached the end, and whether it did not find a dataset.
fn gather(
    view: &Arc<PoolView>,
    gathered: &Gathered<'_>,
    phys: &mut ScanPhys,
    queue: &mut ScanQueue,
) -> Result<(bool, bool), ScanError> {
    let by_head = view.has_logs_by_head();
    if phys.bookmark.object_set == 0 {
        let context = Context {
            logged_under: ObjectId(0),
            max: phys.max_txg,
        };
        let tree = Tree {
            born_after: Some(phys.min_txg),
            born_max: Some(phys.max_txg),
            ..Tree::new(0, view.uberblock().root, context)
        };
        if !traverse(view, gathered, tree, phys) {
            return Ok((false, false));
        }
        after_mos(view, phys, queue)?;
    }
    let mut has_missed = false;
    let mut current = match phys.bookmark.object_set {
        u64::MAX => None,
        id => match Dataset::found(view, ObjectId(id), gathered)? {
            Found::Dataset(dataset) => Some(*dataset),
            Found::Gone => {
                has_missed = true;
                None
            }
            Found::Lost => {
                let min = phys.current_min_txg;
                pass_over(view, ObjectId(id), min, queue, gathered)?;
                None
            }
        },
    };
    let mut has_visited = false;
    loop {
        let dataset = match current.take() {
            Some(dataset) => dataset,
            // Each slice visits one dataset at least, or a part of it.
            None if has_visited && gathered.is_full() => {
                phys.bookmark = millpond_pool::NEXT_DATASET;
                return Ok((queue.is_empty(), has_missed));
            }
            None => match next(view, phys, queue, &mut has_missed, gathered)? {
                Some(dataset) => dataset,
                None => {
                    phys.bookmark = millpond_pool::NEXT_DATASET;
                    return Ok((true, has_missed));
                }
            },
        };
        let context = Context {
            logged_under: match by_head {
                true => dataset.head,
                false => dataset.id,
            },
            max: phys.current_max_txg,
        };
        let tree = Tree {
            born_after: Some(phys.current_min_txg),
            born_max: Some(phys.current_max_txg),
            has_log: !dataset.phys.is_snapshot(),
            ..Tree::new(dataset.id.0, dataset.phys.block_pointer, context)
        };
        if !traverse(view, gathered, tree, phys) {
            return Ok((false, has_missed));
        }
        after(view, &dataset, phys, queue, gathered)?;
        has_visited = true;
    }
}

/// Traverses an object set from the bookmark on. Returns whether it reached the end; otherwise the bookmark is where
/// it stopped.
fn traverse(
    view: &Arc<PoolView>,
    gathered: &Gathered<'_>,
    tree: Tree<Context>,
    phys: &mut ScanPhys,
) -> bool {
    if tree.root.is_hole() {
        return true;
    }
    let object_set = tree.dataset;
    let mark = &phys.bookmark;
    let is_start = (mark.object, mark.level, mark.block_id) == (0, 0, 0);
    let from = match is_start {
        true => None,
        false => Bookmark::decode(mark),
    };
    gathered.resumes_at(from);
    let store = view.store();
    let outcome = Traversal::new(store, gathered)
        .metadata_bytes_max(store.topology().capacity_bytes())
        .run_in_order(tree, Order::ParentsFirst, from);
    let place = match outcome {
        Outcome::Complete => return true,
        // More metadata than fits on the devices is that of a forged tree.
        Outcome::OverBudget(_) => {
            gathered.count_unvisited();
            return true;
        }
        Outcome::Stopped(place) => place,
    };
    let place = place.unwrap_or(Bookmark {
        object: ObjectId(0),
        level: 0,
        block: 0,
    });
    phys.bookmark = place.encode(object_set);
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks_until_due(due: &mut ResilverDue, need: u64) -> u64 {
        (0..).find(|_| due.is_now(Some(need))).unwrap()
    }

    #[test]
    fn a_resilver_that_does_not_help_is_repeated_ever_more_seldom() {
        let mut due = ResilverDue::default();
        assert!(!due.is_now(None));
        let waits: Vec<u64> = (0..4).map(|_| looks_until_due(&mut due, 7)).collect();
        assert_eq!(waits, [0, 30, 60, 120]);
        // Another leaf returned.
        assert_eq!(looks_until_due(&mut due, 8), 30);
        assert!(!due.is_now(None));
        assert_eq!(looks_until_due(&mut due, 9), 0);
        for _ in 0..20 {
            due.looks_left = 0;
            assert!(due.is_now(Some(9)));
        }
        assert_eq!(due.looks_left, 30 << 12);
    }
}
