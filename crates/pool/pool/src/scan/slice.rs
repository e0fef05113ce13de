//! Slices: the parts of a scan between two stored states.

use crate::LoggedError;
use crate::PoolError;
use crate::pool::Pool;
use crate::scan::control::ScanLosses;
use crate::scan::events::ScanQueue;
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{Guid, ScanFlags, ScanPhase, ScanPhys, Txg};
use std::collections::BTreeSet;

/// Where a scan stands when a slice begins.
#[derive(Debug, Clone)]
pub struct ScanSlice {
    /// The state.
    pub phys: ScanPhys,
    /// The datasets to visit.
    pub queue: ScanQueue,
    /// The state and the queue are in views of this txg and later ones.
    pub since_txg: Txg,
    pub(crate) serial: u64,
}

/// What a slice did.
#[derive(Debug, Default)]
pub struct SliceOutcome {
    /// Bytes of the blocks that it examined.
    pub examined_bytes: u64,
    /// Of those, bytes that needed no reading.
    pub skipped_bytes: u64,
    /// Bytes written to leaves.
    pub processed_bytes: u64,
    /// Blocks without a right copy, and leaves that took no repair.
    pub errors: u64,
    /// The blocks without a right copy, at most some thousands.
    pub lost: BTreeSet<LoggedError>,
    /// What could not be repaired.
    pub losses: ScanLosses,
    /// Whether everything was visited.
    pub is_complete: bool,
}

impl Pool {
    /// Begins a slice of the running scan; `None` if none runs or it is paused. Changes of datasets are noted until
    /// [`Pool::end_slice`].
    #[must_use]
    pub fn begin_slice(&self) -> Option<ScanSlice> {
        let in_use = self.leaves_in_use();
        self.scan.with(|state| {
            if !state.is_scanning() || state.phys.is_paused() {
                return None;
            }
            state.covered.retain(|leaf| in_use.contains(leaf));
            state.events = Some(vec![]);
            Some(ScanSlice {
                phys: state.phys,
                queue: state.queue.clone(),
                since_txg: state.changed_txg,
                serial: state.serial,
            })
        })
    }

    /// Whether datasets changed since the slice began. A dataset that it looks for may be gone then, and another one has
    /// its place.
    #[must_use]
    pub fn has_slice_changed(&self) -> bool {
        let has_any = |events: &Vec<_>| !events.is_empty();
        self.scan
            .with(|state| state.events.as_ref().is_some_and(has_any))
    }

    /// Tells how far the slice under way came, for `zpool status`.
    pub fn note_slice_progress(&self, examined_bytes: u64, issued_bytes: u64) {
        self.scan.with(|state| {
            state.pass.slice_examined_bytes = examined_bytes;
            state.pass.slice_issued_bytes = issued_bytes;
        });
    }

    /// Ends a slice: stores where the scan stands now (`slice`), and what was found. Changes of datasets since it
    /// began are applied. If the scan ended or began anew meanwhile, only the errors are kept.
    ///
    /// Repairs must be durable before.
    ///
    /// # Errors
    /// As [`Pool::sync_task`].
    pub fn end_slice(&self, slice: ScanSlice, outcome: SliceOutcome) -> Result<(), PoolError> {
        let outcome = std::cell::RefCell::new(Some((slice, outcome)));
        self.sync_task(|ctx| {
            let Some((slice, outcome)) = outcome.take() else {
                return Ok(());
            };
            let is_complete = outcome.is_complete;
            ctx.log_errors(key::ERROR_LOG_SCRUB, &outcome.lost)?;
            let incomplete: BTreeSet<Guid> = {
                let losses = &outcome.losses;
                let leaves = losses.leaves.keys().chain(losses.unflushed.keys());
                leaves.copied().collect()
            };
            self.miss_unflushed(&outcome.losses);
            let changed = self.scan.with(|state| {
                let events = state.events.take().unwrap_or_default();
                state.pass.slice_examined_bytes = 0;
                state.pass.slice_issued_bytes = 0;
                if state.serial != slice.serial {
                    return None;
                }
                let (mut phys, mut queue) = (slice.phys, slice.queue);
                for event in events {
                    event.apply(&mut phys, &mut queue);
                }
                let is_paused = state.phys.is_paused();
                phys.flags.set(ScanFlags::PAUSED, is_paused);
                phys.examined_bytes = phys.examined_bytes.saturating_add(outcome.examined_bytes);
                phys.skipped_bytes = phys.skipped_bytes.saturating_add(outcome.skipped_bytes);
                phys.processed_bytes = phys.processed_bytes.saturating_add(outcome.processed_bytes);
                phys.errors = phys.errors.saturating_add(outcome.errors);
                let issued = outcome.examined_bytes.saturating_sub(outcome.skipped_bytes);
                state.pass.examined_bytes += outcome.examined_bytes;
                state.pass.issued_bytes += issued;
                state.losses.extend(outcome.losses);
                let before = std::mem::replace(&mut state.queue, queue);
                state.phys = phys;
                state.changed_txg = ctx.txg();
                Some((phys, before, state.queue.clone()))
            });
            let Some((phys, before, queue)) = changed else {
                return Ok(());
            };
            if self.keep_missed(incomplete.into_iter(), phys.max_txg, ctx.txg()) {
                ctx.mark_config_dirty();
            }
            ctx.store_scan(&phys, &before, &queue)?;
            // A change of datasets may have left something to visit.
            let is_at_end = queue.is_empty() && phys.bookmark == super::NEXT_DATASET;
            if is_complete && is_at_end && !phys.is_paused() {
                ctx.end_scan(ScanPhase::Finished)?;
            }
            Ok(())
        })
    }
}
