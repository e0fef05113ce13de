//! Writes the error logs.
//!
//! Page `docs/format/error-log.md`.

use crate::error::Reading;
use crate::sync::context::SyncContext;
use crate::{LoggedError, PoolError};
use millpond_block::DamagedBlock;
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::zap::ZapValue;
use millpond_ondisk::{
    BlockBookmark, DslDatasetPhys, DslDirectoryPhys, Endian, ErrorLogEntry, ObjectId, ObjectType,
    Txg, dsl, error_log_bookmark_key,
};
use std::collections::BTreeSet;

const WHAT: &str = "error log";
/// The feature whose logs are sorted by head.
const HEAD_ERRLOG: &str = "com.delphix:head_errlog";

impl SyncContext<'_> {
    pub(crate) fn logs_by_head(&self) -> bool {
        self.feature_count(HEAD_ERRLOG) > 0
    }

    /// Adds blocks to the log that an entry of the object directory names. Creates it if there is none.
    pub(crate) fn log_errors(
        &self,
        log: &str,
        errors: &BTreeSet<LoggedError>,
    ) -> Result<(), PoolError> {
        if errors.is_empty() {
            return Ok(());
        }
        if log == key::ERROR_LOG_SCRUB {
            // Reads make their events themselves.
            let lost = errors.iter().map(|error| error.address(error.dataset));
            self.pool.note_lost(lost);
        }
        let table = match self.directory_object(log)? {
            Some(table) => table,
            None => {
                let table = self.create_table(ObjectType::ERROR_LOG)?;
                self.set_directory_number(log, table.0)?;
                table
            }
        };
        // A value that is no number: a C string without characters.
        let empty = ZapValue {
            integer_bytes: 1,
            bytes: vec![0],
        };
        for error in errors {
            if !self.logs_by_head() {
                let bookmark = BlockBookmark {
                    object_set: error.dataset,
                    object: error.object,
                    level: error.level as i64,
                    block_id: error.block,
                };
                let name = error_log_bookmark_key(&bookmark);
                let outcome = self.table(table)?.update(name.as_bytes(), &empty);
                outcome.reading(WHAT)?;
                continue;
            }
            let head = format!("{:x}", error.dataset);
            let inner = match self.table_number(table, &head)? {
                Some(inner) => ObjectId(inner),
                None => {
                    let inner = self.create_table(ObjectType::ERROR_LOG)?;
                    self.set_table_number(table, &head, inner.0)?;
                    inner
                }
            };
            let entry = ErrorLogEntry {
                object: error.object,
                level: error.level,
                block_id: error.block,
                birth: error.birth.unwrap_or(Txg(0)),
            };
            let name = entry.key();
            let outcome = self.table(inner)?.update(name.as_bytes(), &empty);
            outcome.reading(WHAT)?;
        }
        Ok(())
    }

    /// Adds the blocks that ordinary reads found without a right copy to the log of known errors.
    pub(crate) fn log_met_errors(&self) -> Result<(), PoolError> {
        let met = self.pool.store.take_new_damage();
        self.log_damage(met)
    }

    /// Adds these blocks to the log of known errors.
    pub(crate) fn log_damage(&self, blocks: Vec<DamagedBlock>) -> Result<(), PoolError> {
        let errors = blocks.into_iter().map(|block| {
            let dataset = match self.logs_by_head() {
                true => self.head_of(block.address.dataset),
                false => block.address.dataset,
            };
            LoggedError::new(dataset, &block.address, block.birth)
        });
        self.log_errors(key::ERROR_LOG_LAST, &errors.collect())
    }

    /// The head of a dataset's directory; the dataset itself if it cannot be told.
    fn head_of(&self, dataset: u64) -> u64 {
        let head = || {
            let bonus = |id| self.mos().object(id).ok().map(|object| object.bonus());
            let phys = DslDatasetPhys::decode(&bonus(ObjectId(dataset))?, Endian::Little).ok()?;
            let directory = bonus(phys.directory)?;
            let directory = DslDirectoryPhys::decode(&directory, Endian::Little).ok()?;
            directory.head_dataset
        };
        head().map_or(dataset, |head| head.0)
    }

    /// The log of the finished scan becomes the log of known errors, which it replaces.
    pub(crate) fn rotate_error_logs(&self) -> Result<(), PoolError> {
        let found = self.directory_object(key::ERROR_LOG_SCRUB)?;
        let known = self.directory_object(key::ERROR_LOG_LAST)?;
        if found.is_none() && known.is_none() {
            return Ok(());
        }
        if let Some(known) = known {
            self.free_error_log(known)?;
        }
        self.set_directory_number(key::ERROR_LOG_LAST, ObjectId::number(found))?;
        self.set_directory_number(key::ERROR_LOG_SCRUB, 0)
    }

    /// Discards the log of a scan that did not finish.
    pub(crate) fn drop_found_errors(&self) -> Result<(), PoolError> {
        if let Some(found) = self.directory_object(key::ERROR_LOG_SCRUB)? {
            self.free_error_log(found)?;
            self.set_directory_number(key::ERROR_LOG_SCRUB, 0)?;
        }
        Ok(())
    }

    fn free_error_log(&self, log: ObjectId) -> Result<(), PoolError> {
        if self.logs_by_head() {
            let object = self.mos().object(log).reading(WHAT)?;
            let heads = millpond_zap::ZapMut::of(&object, self.tx()).view();
            let heads = heads.reading(WHAT)?;
            for entry in heads.iter() {
                let entry = entry.reading(WHAT)?;
                if dsl::hex_key_number(&entry.name).is_some()
                    && let Some(inner) = entry.value.first()
                {
                    self.mos().free(self.tx(), ObjectId(inner)).reading(WHAT)?;
                }
            }
        }
        self.mos().free(self.tx(), log).reading(WHAT)
    }
}
