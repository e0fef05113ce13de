//! Open volumes.

use crate::Error;
use crate::file::{in_one_transaction, sought};
use crate::pin::Pin;
use millpond_engine::VolumeError;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

/// An open volume with a position. It keeps the pool open.
///
/// [`Volume::read_at`] and [`Volume::write_all_at`] do not use the position, and can be called by several
/// threads. Writes need not be aligned.
#[derive(Debug, Clone)]
pub struct Volume {
    volume: Arc<millpond_engine::Volume>,
    position: u64,
    pin: Pin,
}

impl Volume {
    pub(crate) fn new(volume: Arc<millpond_engine::Volume>, pin: Pin) -> Self {
        Self {
            volume,
            position: 0,
            pin,
        }
    }

    /// The size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.volume.size_bytes()
    }

    /// The block size in bytes. Writes of whole blocks are faster.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.volume.block_bytes()
    }

    /// Reads bytes at an offset. Returns their count, which is less than asked for only at the end.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Damaged`], [`crate::ErrorKind::Device`].
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Error> {
        let left = self.size_bytes().saturating_sub(offset);
        let count = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        let buffer = buffer.get_mut(..count).unwrap_or_default();
        if count > 0 {
            let read = self.volume.read(offset, buffer);
            read.map_err(|error| self.pin.explained(error.into()))?;
        }
        Ok(count)
    }

    /// Writes all bytes at an offset. A long write uses several transactions: after an error or a crash its
    /// first part may be written.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidInput`] beyond the end, [`crate::ErrorKind::NoSpace`],
    /// [`crate::ErrorKind::ReadOnly`].
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        Ok(self.volume.write(offset, bytes)?)
    }

    /// Frees the blocks that lie wholly inside a range: they then read as zeros. The rest of the range, at its
    /// edges, keeps its content.
    ///
    /// # Errors
    /// As [`Volume::write_all_at`].
    pub fn discard(&self, offset: u64, bytes: u64) -> Result<(), Error> {
        Ok(self.volume.discard(offset, bytes)?)
    }

    /// Waits until all writes so far are on stable storage.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Suspended`], [`crate::ErrorKind::Device`].
    pub fn sync(&self) -> Result<(), Error> {
        match self.volume.flush() {
            // A volume that is only read has nothing to write.
            Err(VolumeError::Transaction { .. }) if self.pin.is_committed() => Ok(()),
            outcome => Ok(outcome?),
        }
    }
}

impl Read for Volume {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.read_at(buffer, self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Write for Volume {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.size_bytes().saturating_sub(self.position);
        let bytes = in_one_transaction(bytes, self.position);
        let count = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.write_all_at(bytes.get(..count).unwrap_or_default(), self.position)?;
        self.position += count as u64;
        Ok(count)
    }

    /// Has no effect: nothing waits in the handle. See [`Volume::sync`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Volume {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = sought(self.position, self.size_bytes(), to)?;
        Ok(self.position)
    }
}
