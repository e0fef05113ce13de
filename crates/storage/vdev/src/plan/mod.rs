//! Read plans: which leaves to read, and how to interpret the outcomes.

mod audit;
mod blame;
mod bytes;
mod cells;
mod layout;
mod pieces;
mod read;
mod search;
mod solve;
mod split;
mod stored;
#[cfg(test)]
mod tests;

use millpond_ondisk::{Txg, VdevId};

pub use audit::{AuditFinding, AuditPlan, AuditReport, AuditStep, Role, Verdict};
pub use bytes::LeafBytes;
pub(crate) use layout::{CellShape, Layout, RowShape, Source};
pub use pieces::{BlockPiece, block_pieces};
pub use read::ReadPlan;
pub use stored::{StoredCopy, StoredPart};

use crate::tree::LeafId;

/// A range on a top-level vdev, as named by one address of a block pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockRange {
    /// The top-level vdev.
    pub vdev: VdevId,
    /// First byte in the vdev's allocatable space.
    pub offset_bytes: u64,
    /// The block's physical size in bytes (not its allocated size), up to 16 MiB. Reads round it up to
    /// sectors, and the result is cut again.
    pub size_bytes: u64,
    /// The block's physical birth. It determines the width of its columns on an expanded RAID-Z vdev, and
    /// which leaves missed it.
    pub birth: Txg,
}

/// One read of one leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeafRead {
    /// The leaf; never a distributed spare.
    pub leaf: LeafId,
    /// First byte on the device, including labels; a multiple of the vdev's sector for every valid range of
    /// a correct pool.
    pub offset_bytes: u64,
    /// Bytes to read, a multiple of the vdev's sector.
    pub length_bytes: u64,
}

/// Why a leaf read failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LeafFault {
    /// The device reported an error.
    #[error("the device reported an error")]
    Io,
    /// The device is gone.
    #[error("the device is gone")]
    Absent,
    /// The range lies beyond the device's end.
    #[error("beyond the device's end")]
    OutOfRange,
    /// The read returned too few or too many bytes, or no outcome at all.
    #[error("not the number of bytes that was asked for")]
    Length,
}

/// The outcome of one [`LeafRead`].
pub type LeafOutcome = Result<LeafBytes, LeafFault>;

/// Why no plan can be made for a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The pool has no such top-level vdev.
    #[error("the pool has no vdev {0}")]
    NoSuchVdev(VdevId),
    /// The vdev's slot is a hole and holds no data.
    #[error("vdev {0} is a hole")]
    Hole(VdevId),
    /// The vdev was not found when the pool was imported.
    #[error("vdev {0} is missing")]
    Missing(VdevId),
    /// The block is empty or larger than 16 MiB.
    #[error("a block of {size_bytes} bytes")]
    Size {
        /// The requested size.
        size_bytes: u64,
    },
    /// No block can begin at this offset: it is not on a sector (dRAID: stripe) boundary, or the range
    /// overflows 64 bits.
    #[error("no block of vdev {vdev} can begin at byte {offset_bytes}")]
    Offset {
        /// The top-level vdev.
        vdev: VdevId,
        /// The requested offset.
        offset_bytes: u64,
    },
    /// The vdev was removed, and its mapping does not cover the whole range.
    #[error("no mapping for byte {offset_bytes} of the removed vdev {vdev}")]
    Unmapped {
        /// The removed vdev.
        vdev: VdevId,
        /// The requested offset.
        offset_bytes: u64,
    },
    /// Mappings of removed vdevs form a loop or yield more than 65,536 pieces, or the block has more than
    /// 1,048,576 copies of pieces.
    #[error("mappings of removed vdevs or mirrors lead into too many pieces")]
    TooManyPieces,
}

/// The next step of a [`ReadPlan`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// Perform these reads and pass the outcomes to [`ReadPlan::advance`] in the same order. Never empty.
    Read(Vec<LeafRead>),
    /// The block was read and verified.
    Done(Resolved),
    /// The block cannot be read.
    Failed(Failure),
}

/// Why a leaf is blamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlameReason {
    /// It returned wrong bytes.
    Checksum,
    /// It returned an error.
    Io(LeafFault),
    /// It returned wrong bytes, but is known to have missed the txg: not an error of the device.
    Stale,
}

/// A leaf that did not return the right bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Blame {
    /// The leaf.
    pub leaf: LeafId,
    /// The distributed spare whose space the bytes are in, the outermost if there are several.
    pub spare: Option<LeafId>,
    /// First byte on the device, including labels.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub length_bytes: u64,
    /// What went wrong.
    pub reason: BlameReason,
}

/// A repair of wrong bytes on a leaf.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Repair {
    /// The leaf.
    pub leaf: LeafId,
    /// First byte on the device, including labels.
    pub offset_bytes: u64,
    /// The right content, in whole sectors.
    pub data: Vec<u8>,
}

/// A verified block, and the errors found while reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// The block: exactly the requested number of bytes.
    pub data: Vec<u8>,
    /// Every leaf that was read and returned an error or wrong bytes. Leaves that were not read are not
    /// listed.
    pub liars: Vec<Blame>,
    /// Repairs for each of the blamed leaves.
    pub repairs: Vec<Repair>,
}

/// Why a block could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// Too few leaves could be read.
    Unavailable,
    /// Enough leaves could be read, but no combination of their bytes is right.
    Checksum,
    /// The plan was advanced after it had ended.
    Spent,
}

/// A block that cannot be read from this address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} after {tried} candidates, {} leaves blamed, {} not available", match kind {
    FailureKind::Unavailable => "too few leaves are readable",
    FailureKind::Checksum => "no combination of what the leaves hold is right",
    FailureKind::Spent => "the plan has ended",
}, blames.len(), absent.len())]
pub struct Failure {
    /// The kind of failure.
    pub kind: FailureKind,
    /// The number of candidate blocks that were checked.
    pub tried: u64,
    /// Leaves that returned errors. For [`FailureKind::Checksum`] also every leaf that returned bytes,
    /// because it is unknown which of them are wrong.
    pub blames: Vec<Blame>,
    /// Leaves that hold a part but are not readable.
    pub absent: Vec<LeafId>,
}
