//! Scrubs and resilvers: their stored state, and how they start, pause and end.
//!
//! A scan visits datasets in slices (`slice`). The crate `millpond-scan` reads and repairs the blocks of a slice;
//! this module stores how far it came. The state in memory is that of the txg that is being written.
//!
//! Page `docs/format/scan-state.md`.

mod control;
mod error_scrub;
mod errors;
mod events;
mod resilver;
mod slice;

pub(crate) use control::{ScanControl, ScanState};
pub use control::{ScanLosses, ScanNote, ScanPass};
pub use error_scrub::{ErrorSlice, ErrorSliceOutcome};
pub use events::{NEXT_DATASET, ScanEvent, ScanQueue};
pub(crate) use resilver::deferred;
pub use slice::{ScanSlice, SliceOutcome};

use crate::error::Reading;
use crate::history::append::HistoryEvent;
use crate::pool::Pool;
use crate::sync::context::SyncContext;
use crate::vdevs::dtl::CoveredLeaves;
use crate::{PoolError, PoolView};
use millpond_ondisk::pool_directory::{self, key};
use millpond_ondisk::zap::ZapValue;
use millpond_ondisk::{ObjectType, ScanFlags, ScanFunction, ScanPhase, ScanPhys, Txg, dsl};
use millpond_zap::Zap;
use std::time::Duration;

pub(crate) const WHAT: &str = "scan state";

/// Why a request about a scan is refused. The texts are those of `zpool scrub`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScanRefusal {
    /// A scrub runs.
    #[error("currently scrubbing; use 'zpool scrub -s' to cancel scrub")]
    Scrubbing,
    /// A scrub is paused.
    #[error("scrub is paused; use 'zpool scrub' to resume scrub")]
    Paused,
    /// A resilver runs.
    #[error("currently resilvering")]
    Resilvering,
    /// A sequential resilver runs.
    #[error("currently sequentially resilvering")]
    Rebuilding,
    /// An error scrub runs.
    #[error("currently error scrubbing; use 'zpool scrub -s' to cancel error scrub")]
    ErrorScrubbing,
    /// An error scrub is paused.
    #[error("error scrub is paused; use 'zpool scrub -e' to resume error scrub")]
    ErrorScrubPaused,
    /// The pool has no log of errors by head.
    #[error("operation not supported on this type of pool")]
    NoErrorScrubs,
    /// The pool cannot restart resilvers on request.
    #[error("this action requires the resilver_defer feature")]
    NoDeferredResilvers,
    /// There is nothing to cancel.
    #[error("there is no active scrub")]
    NotScrubbing,
}

/// The blocks that a scrub reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ScrubRange {
    /// All.
    #[default]
    All,
    /// Those born after the last finished scrub.
    SinceLastScrub,
}

impl Pool {
    /// Starts a scrub, or resumes a paused one. It is stored when this returns.
    ///
    /// # Errors
    /// [`PoolError::Scan`]; as [`Pool::sync_task`].
    pub fn start_scrub(&self, range: ScrubRange) -> Result<(), PoolError> {
        let outcome = self.sync_task(|ctx| {
            if self.has_rebuild() {
                return Ok(Err(ScanRefusal::Rebuilding));
            }
            let (phys, is_running) = self.scan.with(|state| (state.phys, state.is_scanning()));
            if is_running && phys.function == ScanFunction::Resilver {
                return Ok(Err(ScanRefusal::Resilvering));
            }
            if phys.is_paused() {
                return ctx.set_paused(false).map(Ok);
            }
            if is_running {
                return Ok(Err(ScanRefusal::Scrubbing));
            }
            if let Some(refusal) = self.error_scrub_refusal() {
                return Ok(Err(refusal));
            }
            let min = match range {
                ScrubRange::All => Txg(0),
                ScrubRange::SinceLastScrub => Txg(ctx
                    .table_number(pool_directory::OBJECT_DIRECTORY, key::LAST_SCRUBBED_TXG)?
                    .unwrap_or(0)),
            };
            ctx.begin_scan(ScanFunction::Scrub, min, ctx.txg()).map(Ok)
        })?;
        outcome.map_err(PoolError::Scan)
    }

    /// Pauses a scrub or an error scrub. Its progress is stored. If none runs, nothing happens.
    ///
    /// # Errors
    /// [`PoolError::Scan`]; as [`Pool::sync_task`].
    pub fn pause_scrub(&self) -> Result<(), PoolError> {
        let outcome = self.sync_task(|ctx| {
            let (phys, is_running) = self.scan.with(|state| (state.phys, state.is_scanning()));
            match (is_running, phys.function) {
                (true, ScanFunction::Scrub) if phys.is_paused() => Ok(Err(ScanRefusal::Paused)),
                (true, ScanFunction::Scrub) => ctx.set_paused(true).map(Ok),
                (true, _) => Ok(Err(ScanRefusal::Resilvering)),
                _ => match self.error_scrub_refusal() {
                    Some(ScanRefusal::ErrorScrubbing) => ctx.pause_error_scrub(true).map(Ok),
                    Some(refusal) => Ok(Err(refusal)),
                    // OpenZFS does not mind either.
                    None => Ok(Ok(())),
                },
            }
        })?;
        outcome.map_err(PoolError::Scan)
    }

    /// Cancels a scrub or an error scrub.
    ///
    /// # Errors
    /// [`PoolError::Scan`]; as [`Pool::sync_task`].
    pub fn cancel_scrub(&self) -> Result<(), PoolError> {
        let outcome = self.sync_task(|ctx| {
            let (phys, is_running) = self.scan.with(|state| (state.phys, state.is_scanning()));
            match (is_running, phys.function) {
                (true, ScanFunction::Scrub) => {
                    ctx.end_scan(ScanPhase::Cancelled)?;
                    Ok(Ok(()))
                }
                (true, _) => Ok(Err(ScanRefusal::Resilvering)),
                _ if self.error_scrub_refusal().is_some() => {
                    ctx.end_error_scrub(ScanPhase::Cancelled).map(Ok)
                }
                _ => Ok(Err(ScanRefusal::NotScrubbing)),
            }
        })?;
        outcome.map_err(PoolError::Scan)
    }

    /// The last or running scan, and its progress in this session; `None` if there never was one.
    #[must_use]
    pub fn scan(&self) -> Option<(ScanPhys, ScanPass)> {
        let (phys, pass) = self.scan.with(|state| (state.phys, state.pass));
        (phys.function != ScanFunction::None).then_some((phys, pass))
    }

    /// Whether a scan runs and is not paused, and the pool is not being closed.
    #[must_use]
    pub fn is_scanning(&self) -> bool {
        self.scan
            .with(|state| state.is_scanning() && !state.phys.is_paused() && !state.has_ended)
    }

    /// Waits until a scan starts, ends or is paused, at most this long. Returns false when the pool ends.
    #[must_use]
    pub fn wait_for_scan(&self, at_most: Duration) -> bool {
        self.scan.wait(at_most)
    }

    /// Takes what became of scans since the last call, oldest first, at most 512.
    #[must_use]
    pub fn take_scan_notes(&self) -> Vec<ScanNote> {
        self.scan.with(|state| state.notes.drain(..).collect())
    }

    /// Starts the thread that scans, which the layer above provides. It must end when
    /// [`Pool::wait_for_scan`] returns false.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn spawn_scanner(&self, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        self.threads.spawn("millpond-scan", body)
    }

    /// Takes in the stored state of a scan, which continues.
    pub(crate) fn load_scan(&self, read: &PoolView) -> Result<(), PoolError> {
        self.load_error_scrub(read)?;
        let Some(value) = read.directory_value(key::SCAN)? else {
            return Ok(());
        };
        let words: Vec<u64> = value.integers().collect();
        let mut phys = ScanPhys::from_words(&words).reading(WHAT)?;
        if phys.phase == ScanPhase::Scanning {
            // OpenZFS has read the entries up to this class, and skips their pointers. Entries change their class here.
            phys.dedup_class_max = 0;
        }
        let mut queue = ScanQueue::new();
        if let Some(id) = phys.queue.filter(|_| phys.phase == ScanPhase::Scanning) {
            let zap = Zap::open(read.mos().object(id).reading(WHAT)?).reading(WHAT)?;
            for entry in zap.iter() {
                let entry = entry.reading(WHAT)?;
                if let Some(id) = dsl::hex_key_number(&entry.name) {
                    let min = entry.value.first().unwrap_or(0);
                    queue.insert(millpond_ondisk::ObjectId(id), Txg(min));
                }
            }
        }
        let now_s = self.env.clock.wall_ns() / 1_000_000_000;
        let in_use = self.leaves_in_use();
        self.scan.change(|state| {
            state.covered = in_use;
            (state.phys, state.queue) = (phys, queue);
            state.pass.start_s = now_s;
            if phys.is_paused() {
                state.pass.paused_at_s = now_s;
            }
        });
        Ok(())
    }
}

/// Whether leaves lack nothing any more after this scan. A scrub of some of the blocks says nothing of the others.
pub(crate) fn completes_leaves(phys: &ScanPhys) -> bool {
    phys.function == ScanFunction::Resilver || phys.min_txg == Txg(0)
}

/// How a scan ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanEnd {
    /// It visited everything.
    Done,
    /// An administrator cancelled it.
    Cancelled,
    /// A resilver begins in its place.
    GivesWay,
}

impl SyncContext<'_> {
    /// Notes what became of a scan. Also of txgs that could not be written.
    pub(crate) fn note_scan(&self, class: &'static str) {
        let time_ns = self.pool.env.clock.wall_ns();
        self.pool.scan.note(time_ns, class);
    }

    pub(crate) fn set_directory_words(&self, name: &str, words: &[u64]) -> Result<(), PoolError> {
        let directory = self.table(pool_directory::OBJECT_DIRECTORY)?;
        let value = ZapValue::from_u64s(words);
        directory.update(name.as_bytes(), &value).reading(WHAT)
    }

    /// Follows a change of datasets, if a scan runs.
    ///
    /// # Errors
    /// If the stored state cannot be changed.
    pub fn scan_event(&self, event: ScanEvent) -> Result<(), PoolError> {
        let scan = &self.pool.scan;
        let changed = scan.with(|state| {
            if !state.is_scanning() {
                return None;
            }
            if let Some(events) = &mut state.events {
                events.push(event);
            }
            let before = state.queue.clone();
            let is_concerned = event.apply(&mut state.phys, &mut state.queue);
            is_concerned.then(|| {
                state.changed_txg = self.txg();
                (state.phys, before, state.queue.clone())
            })
        });
        match changed {
            Some((phys, before, queue)) => self.store_scan(&phys, &before, &queue),
            None => Ok(()),
        }
    }

    /// Stores the state and what changed in the queue.
    pub(crate) fn store_scan(
        &self,
        phys: &ScanPhys,
        before: &ScanQueue,
        queue: &ScanQueue,
    ) -> Result<(), PoolError> {
        if let Some(table) = phys.queue {
            for id in before.keys().filter(|id| !queue.contains_key(id)) {
                self.remove_table_entry(table, &format!("{:x}", id.0))?;
            }
            for (id, min) in queue {
                if before.get(id) != Some(min) {
                    self.set_table_number(table, &format!("{:x}", id.0), min.0)?;
                }
            }
        }
        self.set_directory_words(key::SCAN, &phys.to_words())
    }

    /// Begins a scan of the blocks born after `min` and up to `max`.
    fn begin_scan(&self, function: ScanFunction, min: Txg, max: Txg) -> Result<(), PoolError> {
        let pool = self.pool;
        self.drop_found_errors()?;
        self.clear_error_scrub()?;
        if function == ScanFunction::Resilver {
            self.end_deferral()?;
            self.clear_rebuilds()?;
        }
        let now_s = self.now_s();
        // A removal writes blocks again that are older than the txg that a leaf missed.
        let is_of_all = function == ScanFunction::Resilver && pool.removal.has_mappings();
        let min = if is_of_all { Txg(0) } else { min };
        let phys = ScanPhys {
            function,
            phase: ScanPhase::Scanning,
            queue: Some(self.create_table(ObjectType::SCAN_QUEUE)?),
            min_txg: min,
            max_txg: max,
            current_min_txg: min,
            current_max_txg: max,
            start_time: now_s,
            to_examine_bytes: pool.space().pool().allocated_bytes,
            ..ScanPhys::default()
        };
        let in_use = pool.leaves_in_use();
        pool.scan.change(|state| {
            state.covered = in_use;
            (state.phys, state.queue) = (phys, ScanQueue::new());
            state.changed_txg = self.txg();
            state.serial += 1;
            state.losses = ScanLosses::default();
            state.is_whole = true;
            state.pass = ScanPass {
                start_s: now_s,
                ..ScanPass::default()
            };
        });
        self.set_directory_words(key::SCAN, &phys.to_words())?;
        self.mark_config_dirty();
        let (number, class) = match function {
            ScanFunction::Resilver => (2, "resilver_start"),
            _ => (1, "scrub_start"),
        };
        self.note_scan(class);
        let text = format!("func={number} mintxg={min} maxtxg={max}");
        self.history(&HistoryEvent::of_pool("scan setup", text))
    }

    fn set_paused(&self, is_paused: bool) -> Result<(), PoolError> {
        let now_s = self.now_s();
        let phys = self.pool.scan.change(|state| {
            state.phys.flags.set(ScanFlags::PAUSED, is_paused);
            let pass = &mut state.pass;
            if is_paused {
                pass.paused_at_s = now_s;
            } else {
                let spent_s = now_s.saturating_sub(pass.paused_at_s);
                pass.spent_paused_s = pass.spent_paused_s.saturating_add(spent_s);
                pass.paused_at_s = 0;
            }
            state.changed_txg = self.txg();
            state.phys
        });
        self.note_scan(match is_paused {
            true => "scrub_paused",
            false => "scrub_resume",
        });
        self.set_directory_words(key::SCAN, &phys.to_words())
    }

    /// Ends the running scan: finished or cancelled.
    pub(crate) fn end_scan(&self, phase: ScanPhase) -> Result<(), PoolError> {
        self.end_scan_as(match phase == ScanPhase::Finished {
            true => ScanEnd::Done,
            false => ScanEnd::Cancelled,
        })
    }

    pub(crate) fn end_scan_as(&self, end: ScanEnd) -> Result<(), PoolError> {
        let phase = match end {
            ScanEnd::Done => ScanPhase::Finished,
            ScanEnd::Cancelled | ScanEnd::GivesWay => ScanPhase::Cancelled,
        };
        let pool = self.pool;
        let (phys, losses, covered, is_whole) = pool.scan.change(|state| {
            let mut phys = state.phys;
            phys.phase = phase;
            phys.end_time = self.now_s();
            phys.flags = ScanFlags::empty();
            state.phys = ScanPhys {
                queue: None,
                ..phys
            };
            state.queue.clear();
            state.serial += 1;
            state.changed_txg = self.txg();
            let (losses, covered) = (&mut state.losses, &mut state.covered);
            let taken = (std::mem::take(losses), std::mem::take(covered));
            (phys, taken.0, taken.1, state.is_whole)
        });
        if let Some(queue) = phys.queue {
            self.mos().free(self.tx(), queue).reading(WHAT)?;
        }
        self.settle_deferral()?;
        let stored = ScanPhys {
            queue: None,
            ..phys
        };
        self.set_directory_words(key::SCAN, &stored.to_words())?;
        let is_finished = phase == ScanPhase::Finished;
        match (phys.function, is_finished) {
            (ScanFunction::Resilver, true) => self.note_scan("resilver_finish"),
            // OpenZFS has no event for it.
            (ScanFunction::Resilver, false) => {}
            (_, true) => self.note_scan("scrub_finish"),
            (_, false) => self.note_scan("scrub_abort"),
        }
        if is_finished {
            match losses.has_unvisited {
                // It says nothing of what it did not visit.
                true => self.keep_found_errors()?,
                false => self.finish_error_logs(&phys)?,
            }
            let has_all = !losses.has_unvisited;
            if has_all && phys.function == ScanFunction::Scrub && phys.min_txg == Txg(0) {
                pool.store.forget_damage();
            }
            if has_all && phys.function == ScanFunction::Scrub {
                self.set_directory_number(key::LAST_SCRUBBED_TXG, phys.max_txg.0)?;
            }
            // After errors in an earlier session it is not known which txgs they concern.
            let covers = completes_leaves(&phys);
            // Blocks that only the checkpoint holds were not visited, nor the copies of a removal under way.
            let has_all = has_all
                && pool.checkpoint_refusal().is_none()
                && pool.removal.removing_vdev().is_none();
            if covers && has_all && (phys.errors == 0 || is_whole) {
                let covered = CoveredLeaves {
                    ended: self.txg(),
                    leaves: covered,
                    since_begin: is_whole,
                };
                pool.excise_missed(phys.max_txg, &covered, &losses);
                self.mark_config_dirty();
            }
        } else {
            self.keep_found_errors()?;
        }
        let name = match end {
            ScanEnd::Done => "scan done",
            ScanEnd::Cancelled => "scan cancelled",
            ScanEnd::GivesWay => "scan aborted, restarting",
        };
        let text = format!("errors={}", phys.errors);
        self.history(&HistoryEvent::of_pool(name, text.clone()))?;
        // The thread that scans starts it.
        if is_finished && !deferred(&pool.state.read().config.root).is_empty() {
            self.history(&HistoryEvent::of_pool("starting deferred resilver", text))?;
        }
        Ok(())
    }
}
