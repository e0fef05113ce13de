//! Error scrubs: they read again only the blocks with known errors.
//!
//! What is bad again goes to the log of the running scan, which replaces the log of known errors at the end. The
//! position is not stored: after an import the log is read from its beginning.

use crate::error::Reading;
use crate::history::append::HistoryEvent;
use crate::pool::Pool;
use crate::scan::{ScanRefusal, WHAT};
use crate::sync::context::SyncContext;
use crate::{LoggedError, PoolError, PoolView};
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{ErrorScrubPhys, ScanFunction, ScanPhase, Txg};
use std::collections::BTreeSet;

/// An error scrub in memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct ErrorScrub {
    /// As stored by the txg that is being written.
    pub(crate) phys: ErrorScrubPhys,
    /// Everything up to this entry of the log is done.
    pub(crate) after: Option<LoggedError>,
    /// Incremented when one starts or ends.
    serial: u64,
    /// The txg that changed the state last.
    changed_txg: Txg,
}

impl ErrorScrub {
    pub(crate) fn is_unfinished(&self) -> bool {
        let phase = self.phys.phase;
        matches!(phase, ScanPhase::Scanning | ScanPhase::ErrorScrubbing)
    }
    fn is_running(&self) -> bool {
        self.is_unfinished() && !self.phys.is_paused
    }
}

/// Where an error scrub stands when a slice begins.
#[derive(Debug, Clone)]
pub struct ErrorSlice {
    /// The entry of the log after which it continues.
    pub after: Option<LoggedError>,
    /// The state is in views of this txg and later ones.
    pub since_txg: Txg,
    serial: u64,
}

/// What a slice of an error scrub did.
#[derive(Debug, Default)]
pub struct ErrorSliceOutcome {
    /// The last entry that it did; `None` if there was none left: then the scrub is finished.
    pub last: Option<LoggedError>,
    /// The number of blocks that it read.
    pub examined: u64,
    /// Entries whose blocks are bad again, or could not be found out about.
    pub lost: BTreeSet<LoggedError>,
}

impl Pool {
    /// Starts a scrub of the blocks with known errors, or resumes a paused one. Without known errors it does nothing.
    ///
    /// # Errors
    /// [`PoolError::Scan`]; as [`Pool::sync_task`].
    pub fn start_error_scrub(&self) -> Result<(), PoolError> {
        let count = self.committed()?.known_error_count()?;
        let outcome = self.sync_task(|ctx| {
            if !ctx.logs_by_head() {
                return Ok(Err(ScanRefusal::NoErrorScrubs));
            }
            let (phys, is_busy, is_unfinished, is_paused) = self.scan.with(|state| {
                let scrub = &state.error_scrub;
                let (is_unfinished, is_paused) = (scrub.is_unfinished(), scrub.phys.is_paused);
                (state.phys, state.is_scanning(), is_unfinished, is_paused)
            });
            Ok(match () {
                () if self.has_rebuild() => Err(ScanRefusal::Rebuilding),
                () if is_busy => Err(match phys.function {
                    ScanFunction::Resilver => ScanRefusal::Resilvering,
                    _ if phys.is_paused() => ScanRefusal::Paused,
                    _ => ScanRefusal::Scrubbing,
                }),
                () if is_unfinished && is_paused => Ok(ctx.pause_error_scrub(false)?),
                () if is_unfinished => Err(ScanRefusal::ErrorScrubbing),
                () if ctx.directory_object(key::ERROR_LOG_LAST)?.is_none() => Ok(()),
                () => Ok(ctx.begin_error_scrub(count)?),
            })
        })?;
        outcome.map_err(PoolError::Scan)
    }

    /// Why an unfinished error scrub prevents other scrubs.
    pub(crate) fn error_scrub_refusal(&self) -> Option<ScanRefusal> {
        self.scan.with(|state| {
            let scrub = &state.error_scrub;
            scrub.is_unfinished().then_some(match scrub.phys.is_paused {
                true => ScanRefusal::ErrorScrubPaused,
                false => ScanRefusal::ErrorScrubbing,
            })
        })
    }

    /// Whether an error scrub runs and is not paused.
    #[must_use]
    pub fn is_error_scrubbing(&self) -> bool {
        self.scan.with(|state| state.error_scrub.is_running())
    }

    /// Begins a slice of the running error scrub; `None` if none runs or it is paused.
    #[must_use]
    pub fn begin_error_slice(&self) -> Option<ErrorSlice> {
        self.scan.with(|state| {
            let scrub = &state.error_scrub;
            scrub.is_running().then_some(ErrorSlice {
                after: scrub.after,
                since_txg: scrub.changed_txg,
                serial: scrub.serial,
            })
        })
    }

    /// Ends a slice. Repairs must be durable before.
    ///
    /// # Errors
    /// As [`Pool::sync_task`].
    pub fn end_error_slice(
        &self,
        slice: &ErrorSlice,
        outcome: &ErrorSliceOutcome,
    ) -> Result<(), PoolError> {
        self.sync_task(|ctx| {
            let scrub = self.scan.with(|state| {
                let scrub = &mut state.error_scrub;
                if scrub.serial != slice.serial {
                    return None;
                }
                let phys = &mut scrub.phys;
                phys.examined = phys.examined.saturating_add(outcome.examined);
                let examined = i64::try_from(outcome.examined).unwrap_or(i64::MAX);
                phys.to_examine = phys.to_examine.saturating_sub(examined);
                phys.errors = phys.errors.saturating_add(outcome.lost.len() as u64);
                if outcome.last.is_some() {
                    scrub.after = outcome.last;
                }
                scrub.changed_txg = ctx.txg();
                Some(scrub.clone())
            });
            // The one that was cancelled meanwhile keeps its known errors.
            let Some(scrub) = scrub else { return Ok(()) };
            ctx.log_errors(key::ERROR_LOG_SCRUB, &outcome.lost)?;
            match outcome.last {
                None if scrub.is_running() => ctx.end_error_scrub(ScanPhase::Finished),
                _ => ctx.set_directory_words(key::ERROR_SCRUB, &scrub.phys.to_words()),
            }
        })
    }

    /// Takes in the stored state of an error scrub, which continues.
    pub(crate) fn load_error_scrub(&self, read: &PoolView) -> Result<(), PoolError> {
        if let Some(value) = read.directory_value(key::ERROR_SCRUB)? {
            let words: Vec<u64> = value.integers().collect();
            let phys = ErrorScrubPhys::from_words(&words).reading(WHAT)?;
            self.scan.change(|state| state.error_scrub.phys = phys);
        }
        Ok(())
    }
}

impl SyncContext<'_> {
    /// Changes the state in memory and on disk.
    fn change_error_scrub(&self, change: impl FnOnce(&mut ErrorScrub)) -> Result<(), PoolError> {
        let phys = self.pool.scan.change(|state| {
            change(&mut state.error_scrub);
            state.error_scrub.changed_txg = self.txg();
            state.error_scrub.phys
        });
        self.set_directory_words(key::ERROR_SCRUB, &phys.to_words())
    }

    fn begin_error_scrub(&self, count: u64) -> Result<(), PoolError> {
        self.drop_found_errors()?;
        let start_time = self.now_s();
        self.change_error_scrub(|scrub| {
            scrub.phys = ErrorScrubPhys {
                function: ScanFunction::ErrorScrub,
                phase: ScanPhase::ErrorScrubbing,
                start_time,
                to_examine: i64::try_from(count).unwrap_or(i64::MAX),
                ..ErrorScrubPhys::default()
            };
            scrub.after = None;
            scrub.serial += 1;
        })?;
        self.note_scan("errorscrub_start");
        let text = format!("func=3 mintxg=0 maxtxg={}", self.txg());
        self.history(&HistoryEvent::of_pool("error scrub setup", text))
    }

    /// Pauses or resumes an error scrub.
    pub(crate) fn pause_error_scrub(&self, is_paused: bool) -> Result<(), PoolError> {
        self.note_scan(match is_paused {
            true => "errorscrub_paused",
            false => "errorscrub_resume",
        });
        self.change_error_scrub(|scrub| scrub.phys.is_paused = is_paused)
    }

    /// Ends an unfinished error scrub, running or paused: finished or cancelled.
    pub(crate) fn end_error_scrub(&self, phase: ScanPhase) -> Result<(), PoolError> {
        let (is_unfinished, errors) = self.pool.scan.with(|state| {
            let scrub = &state.error_scrub;
            (scrub.is_unfinished(), scrub.phys.errors)
        });
        if !is_unfinished {
            return Ok(());
        }
        let end_time = self.now_s();
        self.change_error_scrub(|scrub| {
            scrub.phys.phase = phase;
            scrub.phys.end_time = end_time;
            scrub.phys.is_paused = false;
            if phase == ScanPhase::Finished {
                scrub.phys.cursor = u64::MAX;
            }
            scrub.after = None;
            scrub.serial += 1;
        })?;
        let name = if phase == ScanPhase::Finished {
            self.rotate_error_logs()?;
            // Also what ordinary reads met since then. Blocks that were read well are forgotten.
            self.log_damage(self.pool.store.damaged_blocks())?;
            self.note_scan("errorscrub_finish");
            "error scrub done"
        } else {
            // A part of the known errors must not replace them.
            self.drop_found_errors()?;
            self.note_scan("errorscrub_abort");
            "error scrub canceled"
        };
        let text = format!("errors={errors}");
        self.history(&HistoryEvent::of_pool(name, text))
    }

    /// Zeros the state, when a scan begins.
    pub(crate) fn clear_error_scrub(&self) -> Result<(), PoolError> {
        self.end_error_scrub(ScanPhase::Cancelled)?;
        let is_any = (self.pool.scan).with(|state| state.error_scrub.phys != Default::default());
        match is_any {
            true => self.change_error_scrub(|scrub| scrub.phys = ErrorScrubPhys::default()),
            false => Ok(()),
        }
    }
}
