//! The persistent log of unreadable blocks.
//!
//! Page `docs/format/error-log.md`.

mod append;
mod convert;

use crate::error::Reading;
use crate::{PoolError, PoolView};
use millpond_block::BlockAddress;
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{BlockId, Level, ObjectId, Txg, dsl};
use millpond_ondisk::{ErrorLogEntry, parse_error_log_bookmark};
use millpond_zap::Zap;
use std::collections::BTreeSet;

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

impl LoggedError {
    /// The entry for a block, under this dataset.
    #[must_use]
    pub fn new(dataset: u64, address: &BlockAddress, birth: Txg) -> Self {
        Self {
            dataset,
            object: address.object.0,
            // The block of an object set has level -1, one of an intent log -2.
            level: match address.level.0 {
                255 => u64::MAX,
                254 => u64::MAX - 1,
                level => u64::from(level),
            },
            block: address.block.0,
            birth: Some(birth),
        }
    }
    /// The address of the block in a dataset.
    #[must_use]
    pub fn address(&self, dataset: u64) -> BlockAddress {
        BlockAddress {
            dataset,
            object: ObjectId(self.object),
            level: Level(match self.level {
                u64::MAX => 255,
                level if level == u64::MAX - 1 => 254,
                // No tree is higher.
                level => u8::try_from(level).unwrap_or(253),
            }),
            block: BlockId(self.block),
        }
    }
}

impl PoolView {
    /// The blocks with known errors that come after this one, in order, at most `max`.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn known_errors(
        &self,
        after: Option<&LoggedError>,
        max: usize,
    ) -> Result<BTreeSet<LoggedError>, PoolError> {
        let mut errors = BTreeSet::new();
        if let Some(id) = self.find_directory_object(key::ERROR_LOG_LAST)? {
            self.read_error_log(id, &mut |error| {
                if after.is_none_or(|after| error > *after) {
                    errors.insert(error);
                }
                if errors.len() > max {
                    errors.pop_last();
                }
            })?;
        }
        Ok(errors)
    }

    /// The number of blocks with known errors.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn known_error_count(&self) -> Result<u64, PoolError> {
        let mut count = 0u64;
        if let Some(id) = self.find_directory_object(key::ERROR_LOG_LAST)? {
            self.read_error_log(id, &mut |_| count = count.saturating_add(1))?;
        }
        Ok(count)
    }

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
                self.read_error_log(id, &mut |error| errors.push(error))?;
            }
        }
        errors.sort_unstable();
        errors.dedup();
        Ok(errors)
    }

    /// Whether errors are logged by head, not by the dataset in which they were met.
    #[must_use]
    pub fn has_logs_by_head(&self) -> bool {
        self.features().is_active("com.delphix:head_errlog")
    }

    fn read_error_log(
        &self,
        id: ObjectId,
        each: &mut dyn FnMut(LoggedError),
    ) -> Result<(), PoolError> {
        let what = "error log";
        let zap = Zap::open(self.mos().object(id).reading(what)?).reading(what)?;
        let by_head = self.has_logs_by_head();
        for entry in zap.iter() {
            let entry = entry.reading(what)?;
            if !by_head {
                if let Some(mark) = parse_error_log_bookmark(&entry.name) {
                    each(LoggedError {
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
                    each(LoggedError {
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
