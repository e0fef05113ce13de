//! Layer `machine`: block devices as traits, and the real ones.
//!
//! [`Device`] is the seam at which the simulator, fault injection and crash recording plug in: six
//! calls. The real devices (image files, block devices, partitions of whole-disk images) and the
//! search for them live beside it. This crate knows no ZFS structure.
#![deny(unsafe_code)]

use std::fmt;

/// What a device said when it could not do as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The operating system's error for a request at this byte range.
    #[error("{action} of {length_bytes} bytes at byte {offset_bytes} failed: {message}")]
    Io {
        /// "read", "write", "flush" or "discard".
        action: &'static str,
        /// Start of the request in bytes.
        offset_bytes: u64,
        /// Length of the request in bytes.
        length_bytes: u64,
        /// The operating system's errno (0 if unknown).
        errno: i32,
        /// The operating system's words.
        message: String,
    },
    /// The request lies beyond the end of the device.
    #[error(
        "{length_bytes} bytes at byte {offset_bytes} lie beyond the device's end at {size_bytes}"
    )]
    OutOfRange {
        /// Start of the request in bytes.
        offset_bytes: u64,
        /// Length of the request in bytes.
        length_bytes: u64,
        /// Size of the device in bytes.
        size_bytes: u64,
    },
    /// The device cannot be opened.
    #[error("cannot open {path}: {message}")]
    Open {
        /// The path that was tried.
        path: String,
        /// The operating system's errno (0 if unknown).
        errno: i32,
        /// The operating system's words.
        message: String,
    },
    /// The device was opened for reading only.
    #[error("the device is open for reading only")]
    ReadOnly,
}

/// A flat array of bytes that a pool's leaf vdev lies on.
///
/// Requests block the calling thread; deep queues come from many callers or from
/// [`Device::read_many`]. Implementations lock nothing that a caller could hold.
pub trait Device: Send + Sync + fmt::Debug {
    /// Size in bytes.
    fn size_bytes(&self) -> u64;
    /// Smallest unit that the device writes at once, in bytes (512, 4096, …).
    fn sector_bytes(&self) -> u32;
    /// Fills `buffer` from `offset_bytes`.
    ///
    /// # Errors
    /// [`DeviceError::Io`] or [`DeviceError::OutOfRange`]; then the buffer's content is undefined.
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError>;
    /// Serves several reads, each with its own outcome; better than one at a time where the device
    /// can queue.
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        for request in requests {
            request.outcome = self.read(request.offset_bytes, request.buffer);
        }
    }
    /// Writes `bytes` at `offset_bytes`; durable only after [`Device::flush`].
    ///
    /// # Errors
    /// As for reads, or [`DeviceError::ReadOnly`].
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError>;
    /// Makes everything written so far durable.
    ///
    /// # Errors
    /// [`DeviceError::Io`]; then nothing is known about earlier writes.
    fn flush(&self) -> Result<(), DeviceError>;
    /// Tells the device that a range is no longer needed.
    ///
    /// # Errors
    /// As for writes. Devices that cannot discard do nothing and succeed.
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError>;
}

/// One read of a batch given to [`Device::read_many`].
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// Where to start, in bytes.
    pub offset_bytes: u64,
    /// What to fill.
    pub buffer: &'a mut [u8],
    /// What came of it; `Ok` means that the buffer is filled.
    pub outcome: Result<(), DeviceError>,
}
