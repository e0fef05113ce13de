//! Errors of reading and writing blocks, worded for an administrator.

use crate::BlockAddress;
use millpond_ondisk::{DecodeError, Dva};
use std::fmt;

/// Why a block could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// Every copy was tried and none was right.
    #[error("{address}: no good copy{}", Copies(copies))]
    Corrupt {
        /// The block.
        address: BlockAddress,
        /// What went wrong with each copy.
        copies: Vec<CopyFailure>,
    },
    /// Too many devices are missing to read any copy.
    #[error("{address}: the devices that hold it are missing{}", Copies(copies))]
    Missing {
        /// The block.
        address: BlockAddress,
        /// What went wrong with each copy.
        copies: Vec<CopyFailure>,
    },
    /// The block is encrypted and its dataset's key is not loaded.
    #[error("{address}: the dataset is locked: its encryption key is not loaded")]
    Locked {
        /// The block.
        address: BlockAddress,
    },
    /// The stored bytes have the right checksum but do not authenticate under the dataset's key.
    #[error("{address}: authentication failed: {reason}")]
    Authentication {
        /// The block.
        address: BlockAddress,
        /// What did not match.
        reason: String,
    },
    /// The content was left out of a redacted stream.
    #[error("{address}: the content was redacted")]
    Redacted {
        /// The block.
        address: BlockAddress,
    },
    /// The pointer or the stored bytes are not what a correct writer produces.
    #[error("{address}: {error}")]
    Invalid {
        /// The block.
        address: BlockAddress,
        /// What is wrong.
        error: DecodeError,
    },
    /// The checksum is right but the content does not decompress.
    #[error("{address}: does not decompress: {reason}")]
    Decompression {
        /// The block.
        address: BlockAddress,
        /// The decoder's message.
        reason: String,
    },
    /// No space was found for the block, not even in gang pieces.
    #[error("{address}: no space left")]
    NoSpace {
        /// The block.
        address: BlockAddress,
    },
    /// The block could not be written so that it can be read back.
    #[error("{address}: not written: {reason}")]
    Write {
        /// The block.
        address: BlockAddress,
        /// What went wrong, per device where known.
        reason: String,
    },
}

impl BlockError {
    /// Whether no copy is right, or what is stored is not valid. A device that is missing may come back, so
    /// that is no damage.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Corrupt { .. }
                | Self::Invalid { .. }
                | Self::Decompression { .. }
                | Self::Authentication { .. }
        )
    }
    /// The block that the error is about.
    #[must_use]
    pub fn address(&self) -> BlockAddress {
        match self {
            Self::Corrupt { address, .. }
            | Self::Missing { address, .. }
            | Self::Locked { address }
            | Self::Authentication { address, .. }
            | Self::Redacted { address }
            | Self::Invalid { address, .. }
            | Self::Decompression { address, .. }
            | Self::NoSpace { address }
            | Self::Write { address, .. } => *address,
        }
    }
    /// Whether devices were missing or did not answer. A retry may succeed once they are back.
    #[must_use]
    pub fn needs_devices(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }
    /// Whether the dataset's key would help.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        matches!(self, Self::Locked { .. })
    }
}

/// Why one copy of a block cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyFailure {
    /// The address of the copy.
    pub dva: Dva,
    /// What went wrong, per device where known.
    pub reason: String,
}

struct Copies<'a>(&'a [CopyFailure]);

impl fmt::Display for Copies<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, copy) in self.0.iter().enumerate() {
            let lead = if index == 0 { ": " } else { "; " };
            let Dva {
                vdev,
                offset_bytes,
                asize_bytes,
                ..
            } = copy.dva;
            write!(
                f,
                "{lead}<{vdev}:{offset_bytes:x}:{asize_bytes:x}> {}",
                copy.reason
            )?;
        }
        Ok(())
    }
}
