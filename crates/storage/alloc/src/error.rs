//! Errors of determining and changing free space.

use millpond_ondisk::{DecodeError, Dva, Txg};

use crate::{MetaslabId, RangeConflict};

/// A [`crate::SpaceMapStore`] failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The bytes are not what a correct writer produces.
    #[error(transparent)]
    Corrupt(#[from] DecodeError),
    /// The bytes could not be read; the text says which and why.
    #[error("{0}")]
    Unreadable(String),
}

/// Free space could not be determined or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The store failed.
    #[error("space map of {metaslab}: {source}")]
    Store {
        /// The metaslab of the map.
        metaslab: MetaslabId,
        /// The cause.
        source: StoreError,
    },
    /// The logs of unflushed changes failed.
    #[error("log space maps: {0}")]
    Logs(StoreError),
    /// A map allocates a range that is not free, or frees one that is: it does not match its history.
    #[error("space map of {metaslab}: {conflict}")]
    Contradiction {
        /// The metaslab of the map.
        metaslab: MetaslabId,
        /// The range and the conflict.
        conflict: RangeConflict,
    },
    /// A log entry lies in no metaslab, or across two.
    #[error(
        "log space map of txg {txg}: range {start:#x}..{end:#x} of vdev {vdev} is in no metaslab"
    )]
    Misplaced {
        /// The txg of the log.
        txg: Txg,
        /// The top-level vdev.
        vdev: u32,
        /// Byte offset on the vdev.
        start: u64,
        /// Byte offset after the range.
        end: u64,
    },
    /// The allocated bytes of a metaslab according to its headers differ from those of its entries.
    #[error("{metaslab}: headers say {stated_bytes} bytes are allocated, entries {counted_bytes}")]
    Disagreement {
        /// The metaslab.
        metaslab: MetaslabId,
        /// According to the header of its own map, plus unflushed changes.
        stated_bytes: i64,
        /// According to the entries.
        counted_bytes: u64,
    },
    /// An address lies on no concrete vdev, in no metaslab, or across two.
    #[error("no metaslab holds {dva:?}")]
    NoMetaslab {
        /// The address.
        dva: Dva,
    },
    /// A metaslab's changes cannot be expressed in a space map.
    #[error("entries of {metaslab}: {source}")]
    Entry {
        /// The metaslab.
        metaslab: MetaslabId,
        /// The cause.
        source: DecodeError,
    },
    /// The geometry of a vdev is invalid.
    #[error("vdev {vdev}: {reason}")]
    Geometry {
        /// The top-level vdev.
        vdev: u32,
        /// What is wrong.
        reason: &'static str,
    },
}
