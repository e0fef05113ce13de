//! Changes the size of a volume.

use crate::volume::SIZE;
use crate::{Volume, VolumeError};
use millpond_zap::ZapMut;

/// The most bytes that changing the property table dirties.
pub(crate) const TABLE_BYTES: u64 = 64 << 10;

impl Volume {
    /// Frees blocks beyond the volume's end.
    ///
    /// Such blocks exist if the power failed while the volume was being shrunk. A caller that opens a volume
    /// for changes must call this first; it is cheap if there is nothing to free. It writes no log record,
    /// because those bytes cannot be read.
    ///
    /// # Errors
    /// [`VolumeError::Transaction`]; if the volume's tree cannot be read.
    pub fn free_beyond_end(&self) -> Result<(), VolumeError> {
        let writing = self.writing()?;
        let _resizing = writing.lock_size();
        let block = self.block_bytes();
        let end = self.size_bytes().div_ceil(block).saturating_mul(block);
        let _range = writing.ranges().write(end..u64::MAX);
        self.free_each(end, u64::MAX, &|_, _, _| {})
    }

    /// Changes the size, which must be a multiple of the block size.
    ///
    /// When a volume shrinks, the blocks beyond the new end are freed after the smaller size is on stable
    /// storage. If the power fails before that, they are freed when the volume is opened again
    /// ([`Volume::free_beyond_end`]), and in any case before the volume grows. New space thus reads as
    /// zeros.
    ///
    /// # Errors
    /// [`VolumeError::Refused`] for an invalid size; [`VolumeError::Transaction`]; if the table cannot be changed.
    pub fn resize(&self, size_bytes: u64) -> Result<(), VolumeError> {
        self.errors().check_size(size_bytes, self.block_bytes())?;
        let writing = self.writing()?;
        let _resizing = writing.lock_size();
        let old = self.size_bytes();
        if size_bytes > old {
            let _range = writing.ranges().write(old..u64::MAX);
            self.free(old, size_bytes)?;
        }
        {
            // The lock excludes all requests beyond the end while the end moves.
            let _range = writing.ranges().write(old.min(size_bytes)..u64::MAX);
            let tx = self.begin(TABLE_BYTES)?;
            if let Some(log) = writing.source().log() {
                log.append_unlogged(&tx, None);
            }
            let table = ZapMut::of(writing.table(), &tx);
            let changed = table.update_u64(SIZE, size_bytes);
            changed.map_err(|error| self.errors().zap(error))?;
            self.set_size_bytes(size_bytes);
        }
        if size_bytes < old {
            let synced = writing.source().wait_open_synced();
            synced.map_err(|error| self.errors().begin(error))?;
            let _range = writing.ranges().write(size_bytes..u64::MAX);
            self.free(size_bytes, old)?;
        }
        self.settle()
    }
}
