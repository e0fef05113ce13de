//! ZAPs of the MOS in syncing context: the object directory and feature tables.

use super::context::SyncContext;
use crate::PoolError;
use millpond_block::{BlockError, WrittenBlock};
use millpond_object::WriteJob;
use millpond_ondisk::{BlockPointer, ObjectId};

impl SyncContext<'_> {
    /// An entry of the object directory that names an object; `None` where it is absent or 0.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn directory_object(&self, key: &str) -> Result<Option<ObjectId>, PoolError> {
        let _ = key;
        Err(PoolError::NotReady)
    }
    /// Sets an entry of the object directory to one number.
    ///
    /// # Errors
    /// If the directory cannot be changed.
    pub fn set_directory_number(&self, key: &str, number: u64) -> Result<(), PoolError> {
        let _ = (key, number);
        Err(PoolError::NotReady)
    }
    /// Removes an entry of the object directory; none is fine.
    ///
    /// # Errors
    /// If the directory cannot be changed.
    pub fn remove_directory_entry(&self, key: &str) -> Result<(), PoolError> {
        let _ = key;
        Err(PoolError::NotReady)
    }
    /// Whether a feature is enabled, in use or not.
    #[must_use]
    pub fn feature_is_enabled(&self, guid: &str) -> bool {
        self.pool.features().count(guid).is_some()
    }
    /// How many things use a feature; 0 where it is disabled.
    #[must_use]
    pub fn feature_count(&self, guid: &str) -> u64 {
        self.pool.features().count(guid).unwrap_or(0)
    }
    /// One more thing uses a feature.
    ///
    /// # Errors
    /// If it is not enabled, or the MOS cannot be changed.
    pub fn feature_increment(&self, guid: &str) -> Result<(), PoolError> {
        let _ = guid;
        Err(PoolError::NotReady)
    }
    /// One thing less uses a feature.
    ///
    /// # Errors
    /// If it is not in use, or the MOS cannot be changed.
    pub fn feature_decrement(&self, guid: &str) -> Result<(), PoolError> {
        let _ = guid;
        Err(PoolError::NotReady)
    }
    /// Writes blocks of any object set: compresses, takes space, writes all copies. Nothing is
    /// accounted and no previous pointer killed: that is the sink's business, by
    /// [`WrittenBlock::is_rewritten`].
    pub fn write_blocks(&self, jobs: Vec<WriteJob>) -> Vec<Result<WrittenBlock, BlockError>> {
        jobs.into_iter()
            .map(|job| {
                Err(BlockError::Write {
                    address: job.address,
                    reason: "the pool is not built yet".into(),
                })
            })
            .collect()
    }
    /// Takes the space of an intent-log block that is in no space map yet. Only in
    /// [`super::DatasetPort::claim_logs`].
    ///
    /// # Errors
    /// If the space is not free.
    pub fn claim(&self, pointer: &BlockPointer) -> Result<(), PoolError> {
        let _ = pointer;
        Err(PoolError::NotReady)
    }
}
