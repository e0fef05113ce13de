//! What is served as a block device.

use millpond_posix::FileError;
use millpond_volume::{Volume, VolumeError};

/// Why a request to a disk failed: an error number of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskError(pub i32);

/// `EIO`.
pub(crate) const EIO: i32 = 5;
/// `EINVAL`.
pub(crate) const EINVAL: i32 = 22;
/// `EROFS`.
pub(crate) const EROFS: i32 = 30;

impl From<VolumeError> for DiskError {
    fn from(error: VolumeError) -> Self {
        match error {
            VolumeError::Transaction { error, .. } => Self(FileError::from(error).errno().linux()),
            VolumeError::BeyondEnd { .. } => Self(EINVAL),
            _ => Self(EIO),
        }
    }
}

/// A range of bytes that can be read and written. Several threads use it at once.
pub trait Disk: Send + Sync {
    /// The size in bytes.
    fn size_bytes(&self) -> u64;
    /// The size of what can be discarded, in bytes.
    fn block_bytes(&self) -> u64;
    /// Fills the buffer.
    ///
    /// # Errors
    /// If the range is not in the disk, or cannot be read.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError>;
    /// Writes bytes. They may be lost in a power failure until [`Disk::flush`] has returned.
    ///
    /// # Errors
    /// If the range is not in the disk, or cannot be written.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError>;
    /// Makes a range read as zeros, and gives its space back where possible.
    ///
    /// # Errors
    /// As [`Disk::write`].
    fn zero(&self, offset: u64, length: u64) -> Result<(), DiskError>;
    /// Puts everything that was written before on stable storage.
    ///
    /// # Errors
    /// If that is not certain.
    fn flush(&self) -> Result<(), DiskError>;
}

impl Disk for Volume {
    fn size_bytes(&self) -> u64 {
        Self::size_bytes(self)
    }
    fn block_bytes(&self) -> u64 {
        Self::block_bytes(self)
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        Ok(Self::read(self, offset, buffer)?)
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        Ok(Self::write(self, offset, bytes)?)
    }
    fn zero(&self, offset: u64, length: u64) -> Result<(), DiskError> {
        Ok(Self::zero(self, offset, length)?)
    }
    fn flush(&self) -> Result<(), DiskError> {
        Ok(Self::flush(self)?)
    }
}
