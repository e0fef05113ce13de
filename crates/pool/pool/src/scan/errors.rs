//! What becomes of the error logs when a scan ends.

use crate::PoolError;
use crate::sync::context::SyncContext;
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{ScanFunction, ScanPhys, Txg};

impl SyncContext<'_> {
    /// Makes the errors found so far by the scan the known errors, unless known errors exist: a partial
    /// scan must not replace those.
    pub(crate) fn keep_found_errors(&self) -> Result<(), PoolError> {
        let found = self.directory_object(key::ERROR_LOG_SCRUB)?;
        if let Some(found) = found
            && self.directory_object(key::ERROR_LOG_LAST)?.is_none()
        {
            self.set_directory_number(key::ERROR_LOG_LAST, found.0)?;
            self.set_directory_number(key::ERROR_LOG_SCRUB, 0)?;
        }
        Ok(())
    }

    /// The errors that a finished scan found replace the known ones. A scan of some of the blocks says nothing of
    /// the others: if it found none, the known errors stay.
    pub(crate) fn finish_error_logs(&self, scan: &ScanPhys) -> Result<(), PoolError> {
        let is_full = scan.function == ScanFunction::Scrub && scan.min_txg == Txg(0);
        let has_found = self.directory_object(key::ERROR_LOG_SCRUB)?.is_some();
        match is_full || has_found {
            true => self.rotate_error_logs(),
            false => Ok(()),
        }
    }
}
