//! What can go wrong while free space is worked out.

use millpond_ondisk::{DecodeError, Dva, Txg};

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
    /// What a metaslab's maps allocate in the end is not what their headers say.
    #[error("{metaslab}: headers say {stated_bytes} bytes are allocated, entries {counted_bytes}")]
    Disagreement {
        /// Which metaslab.
        metaslab: MetaslabId,
        /// According to the header of its own map and unflushed changes.
        stated_bytes: i64,
        /// According to the entries.
        counted_bytes: u64,
    },
    /// An address lies on no concrete vdev, or in no metaslab, or across two.
    #[error("no metaslab holds {dva:?}")]
    NoMetaslab {
        /// The address.
        dva: Dva,
    },
    /// A metaslab's changes cannot be expressed in a space map.
    #[error("entries of {metaslab}: {source}")]
    Entry {
        /// Which metaslab.
        metaslab: MetaslabId,
        /// Why not.
        source: DecodeError,
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
