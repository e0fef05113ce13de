//! What can go wrong while free space is worked out.

use millpond_ondisk::{DecodeError, Txg};

use crate::{MetaslabId, RangeConflict};

/// The state behind a [`crate::SpaceMapStore`] could not be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The bytes are not what a correct writer would have written.
    #[error(transparent)]
    Corrupt(#[from] DecodeError),
    /// They could not be read; the text says what and why.
    #[error("{0}")]
    Unreadable(String),
}

/// Free space could not be worked out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The store failed.
    #[error("space map of {metaslab}: {source}")]
    Store {
        /// Whose map.
        metaslab: MetaslabId,
        /// Why.
        source: StoreError,
    },
    /// The logs of unflushed changes failed.
    #[error("log space maps: {0}")]
    Logs(StoreError),
    /// A map allocates what is not free or frees what is: it does not belong to this history.
    #[error("space map of {metaslab}: {conflict}")]
    Contradiction {
        /// Whose map.
        metaslab: MetaslabId,
        /// What and where.
        conflict: RangeConflict,
    },
    /// A log's entry lies in no metaslab, or across two.
    #[error(
        "log space map of txg {txg}: range {start:#x}..{end:#x} of vdev {vdev} is in no metaslab"
    )]
    Misplaced {
        /// Whose log.
        txg: Txg,
        /// The top-level vdev.
        vdev: u32,
        /// Byte offset on the vdev.
        start: u64,
        /// Byte offset behind the range.
        end: u64,
    },
    /// The geometry of a vdev makes no sense.
    #[error("vdev {vdev}: {reason}")]
    Geometry {
        /// The top-level vdev.
        vdev: u32,
        /// What is wrong.
        reason: &'static str,
    },
}
