//! The persistent log of unreadable blocks.
//!
//! Page `docs/format/error-log.md`.

use crate::error::Reading;
use crate::{PoolError, PoolView};
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{ErrorLogEntry, parse_error_log_bookmark};
use millpond_ondisk::{ObjectId, Txg, dsl};
use millpond_zap::Zap;

/// A block that could not be read when the pool was last used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoggedError {
    /// The dataset: the head in the newer format, the first dataset found in the older format.
    pub dataset: u64,
    /// The object in the dataset.
    pub object: u64,
    /// The block's level in the object's tree.
    pub level: u64,
    /// The block's index at that level.
    pub block: u64,
    /// The block's birth txg; only in the newer format.
    pub birth: Option<Txg>,
}

impl PoolView {
    /// Reads the errors logged by normal I/O and the last completed scrub, then those of the running scrub.
    ///
    /// The errors are in order and each appears once.
    ///
    /// # Errors
    /// If one of the logs cannot be read.
    pub fn logged_errors(&self) -> Result<Vec<LoggedError>, PoolError> {
        let mut errors = vec![];
        for name in [key::ERROR_LOG_LAST, key::ERROR_LOG_SCRUB] {
            if let Some(id) = self.find_directory_object(name)? {
                self.read_error_log(id, &mut errors)?;
            }
        }
        errors.sort_unstable();
        errors.dedup();
        Ok(errors)
    }

    fn read_error_log(&self, id: ObjectId, errors: &mut Vec<LoggedError>) -> Result<(), PoolError> {
        let what = "error log";
        let zap = Zap::open(self.mos().object(id).reading(what)?).reading(what)?;
        let by_head = self.features().is_active("com.delphix:head_errlog");
        for entry in zap.iter() {
            let entry = entry.reading(what)?;
            if !by_head {
                if let Some(mark) = parse_error_log_bookmark(&entry.name) {
                    errors.push(LoggedError {
                        dataset: mark.object_set,
                        object: mark.object,
                        level: mark.level as u64,
                        block: mark.block_id,
                        birth: None,
                    });
                }
                continue;
            }
            let (Some(dataset), Some(log)) =
                (dsl::hex_key_number(&entry.name), entry.value.first())
            else {
                continue;
            };
            let object = self.mos().object(ObjectId(log)).reading(what)?;
            for inner in Zap::open(object).reading(what)?.iter() {
                let inner = inner.reading(what)?;
                if let Some(entry) = ErrorLogEntry::parse(&inner.name) {
                    errors.push(LoggedError {
                        dataset,
                        object: entry.object,
                        level: entry.level,
                        block: entry.block_id,
                        birth: Some(entry.birth),
                    });
                }
            }
        }
        Ok(())
    }
}
