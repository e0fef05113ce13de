//! Cancels unfinished scrubs that OpenZFS started, because this software does not continue them.
//!
//! Page `docs/format/scan-state.md`.

use crate::PoolError;
use crate::error::Reading;
use crate::history::append::HistoryEvent;
use crate::pool::Pool;
use crate::sync::context::SyncContext;
use millpond_ondisk::pool_directory::{self, key};
use millpond_ondisk::zap::ZapValue;
use millpond_ondisk::{ErrorScrubPhys, ScanFlags, ScanFunction, ScanPhase, ScanPhys};

const WHAT: &str = "scan state";

/// A scrub and an error scrub, as stored in the object directory.
#[derive(Default)]
struct Scrubs {
    scrub: Option<ScanPhys>,
    of_errors: Option<ErrorScrubPhys>,
}

impl Pool {
    /// Cancels an unfinished scrub, running or paused, as `zpool scrub -s` does.
    ///
    /// The datasets will change, and the scrub's queue of datasets would become outdated.
    ///
    /// # Errors
    /// As [`Pool::sync_task`].
    pub(crate) fn cancel_scrubs(&self) -> Result<(), PoolError> {
        self.sync_task(|ctx| {
            let scrubs = ctx.unfinished_scrubs()?;
            if let Some(scan) = scrubs.scrub {
                ctx.cancel_scrub(scan)?;
            }
            if let Some(scan) = scrubs.of_errors {
                ctx.cancel_error_scrub(scan)?;
            }
            Ok(())
        })
    }
}

impl SyncContext<'_> {
    fn directory_words(&self, name: &str) -> Result<Option<Vec<u64>>, PoolError> {
        let directory = self.table(pool_directory::OBJECT_DIRECTORY)?;
        let value = directory.lookup(name.as_bytes()).reading(WHAT)?;
        Ok(value.map(|value| value.integers().collect()))
    }
    fn set_directory_words(&self, name: &str, words: &[u64]) -> Result<(), PoolError> {
        let directory = self.table(pool_directory::OBJECT_DIRECTORY)?;
        let value = ZapValue::from_u64s(words);
        directory.update(name.as_bytes(), &value).reading(WHAT)
    }

    fn unfinished_scrubs(&self) -> Result<Scrubs, PoolError> {
        let mut found = Scrubs::default();
        if let Some(words) = self.directory_words(key::SCAN)? {
            let scan = ScanPhys::from_words(&words).reading(WHAT)?;
            let is_scrub = scan.function == ScanFunction::Scrub;
            found.scrub = (is_scrub && scan.phase == ScanPhase::Scanning).then_some(scan);
        }
        if let Some(words) = self.directory_words(key::ERROR_SCRUB)? {
            let scan = ErrorScrubPhys::from_words(&words).reading(WHAT)?;
            let runs = matches!(scan.phase, ScanPhase::Scanning | ScanPhase::ErrorScrubbing);
            found.of_errors = runs.then_some(scan);
        }
        Ok(found)
    }

    fn cancel_scrub(&self, mut scan: ScanPhys) -> Result<(), PoolError> {
        if let Some(queue) = scan.queue.take() {
            self.mos().free(self.tx(), queue).reading(WHAT)?;
        }
        scan.phase = ScanPhase::Cancelled;
        scan.end_time = self.now_s();
        scan.flags.remove(ScanFlags::PAUSED);
        self.set_directory_words(key::SCAN, &scan.to_words())?;
        self.keep_found_errors()?;
        let text = format!("errors={}", scan.errors);
        self.history(&HistoryEvent::of_pool("scan cancelled", text))
    }

    fn cancel_error_scrub(&self, mut scan: ErrorScrubPhys) -> Result<(), PoolError> {
        scan.phase = ScanPhase::Cancelled;
        scan.end_time = self.now_s();
        scan.is_paused = false;
        self.set_directory_words(key::ERROR_SCRUB, &scan.to_words())?;
        self.keep_found_errors()?;
        let text = format!("errors={}", scan.errors);
        self.history(&HistoryEvent::of_pool("error scrub canceled", text))
    }

    /// Makes the errors found so far by the scrub the known errors, unless known errors exist: a partial
    /// scrub must not replace those.
    fn keep_found_errors(&self) -> Result<(), PoolError> {
        let found = self.directory_object(key::ERROR_LOG_SCRUB)?;
        if let Some(found) = found
            && self.directory_object(key::ERROR_LOG_LAST)?.is_none()
        {
            self.set_directory_number(key::ERROR_LOG_LAST, found.0)?;
            self.set_directory_number(key::ERROR_LOG_SCRUB, 0)?;
        }
        Ok(())
    }
}
