//! Why labels could not be written.

use millpond_device::DeviceError;
use millpond_ondisk::Guid;

/// Why labels could not be written.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LabelError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device is smaller than 64 MiB.
    #[error("the device is too small for labels")]
    TooSmall,
    /// The device is smaller than when it was opened.
    #[error(
        "the device has shrunk from {before} to {now} bytes; use 'zpool replace' to replace it"
    )]
    Shrunk {
        /// Its size before, in bytes.
        before: u64,
        /// Its size now, in bytes.
        now: u64,
    },
    /// The configuration does not fit in a label.
    #[error("the configuration takes more room than a label has")]
    TooLarge,
    /// The tree has no such leaf.
    #[error("no leaf with guid {0:?}")]
    UnknownLeaf(Guid),
}
