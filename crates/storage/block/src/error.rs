//! What can be wrong with a block, told so that a person can act on it.

use crate::BlockAddress;
use millpond_ondisk::{DecodeError, Dva};
use std::fmt;

/// Why a block could not be given back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// Every copy was tried and none had the right bytes.
    #[error("{address}: no good copy{}", Copies(copies))]
    Corrupt {
        /// Which block.
        address: BlockAddress,
        /// What each copy had to say.
        copies: Vec<CopyFailure>,
    },
    /// Too many devices are missing to read any copy.
    #[error("{address}: the devices that hold it are missing{}", Copies(copies))]
    Missing {
        /// Which block.
        address: BlockAddress,
        /// What each copy had to say.
        copies: Vec<CopyFailure>,
    },
    /// The block is encrypted and its dataset's key is not loaded.
    #[error("{address}: the dataset is locked: its encryption key is not loaded")]
    Locked {
        /// Which block.
        address: BlockAddress,
    },
    /// The stored bytes are right but do not authenticate under the dataset's key.
    #[error("{address}: authentication failed: {reason}")]
    Authentication {
        /// Which block.
        address: BlockAddress,
        /// What did not match.
        reason: String,
    },
    /// The content was left out of a redacted stream.
    #[error("{address}: the content was redacted")]
    Redacted {
        /// Which block.
        address: BlockAddress,
    },
    /// The pointer, or what was stored, cannot be what a correct writer wrote.
    #[error("{address}: {error}")]
    Invalid {
        /// Which block.
        address: BlockAddress,
        /// What is wrong.
        error: DecodeError,
    },
    /// The checksum held but the content does not decompress.
    #[error("{address}: does not decompress: {reason}")]
    Decompression {
        /// Which block.
        address: BlockAddress,
        /// What the decoder said.
        reason: String,
    },
    /// No space was found for a block to be written, not even in pieces.
    #[error("{address}: no space left")]
    NoSpace {
        /// Which block.
        address: BlockAddress,
    },
    /// A block could not be written so that it could be read back.
    #[error("{address}: not written: {reason}")]
    Write {
        /// Which block.
        address: BlockAddress,
        /// What went wrong, per device where that is known.
        reason: String,
    },
}

impl BlockError {
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
    /// Whether the dataset's key would help.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        matches!(self, Self::Locked { .. })
    }
}

/// Why one copy of a block is of no use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyFailure {
    /// Where the copy should be.
    pub dva: Dva,
    /// What went wrong, per device where that is known.
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
