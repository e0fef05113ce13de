//! Plan and resolve: which leaves to read, and what their answers mean.

mod audit;
mod blame;
mod cells;
mod layout;
mod read;
mod search;
mod solve;
mod split;
#[cfg(test)]
mod tests;

use millpond_ondisk::{Txg, VdevId};

pub use audit::{AuditFinding, AuditPlan, AuditReport, AuditStep, Role, Verdict};
pub(crate) use layout::{CellShape, Layout, RowShape, Source};
pub use read::ReadPlan;

use crate::tree::LeafId;

/// Bytes on a top-level vdev, as one address of a block pointer names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockRange {
    /// The top-level vdev.
    pub vdev: VdevId,
    /// First byte in its allocatable space.
    pub offset_bytes: u64,
    /// The block's physical size in bytes (not what it takes on the vdev), up to 16 MiB. It is
    /// rounded up to sectors for reading and cut again afterwards.
    pub size_bytes: u64,
    /// The block's physical birth: decides the width of its columns on a widened RAID-Z vdev, and
    /// which leaves missed it.
    pub birth: Txg,
}

/// One read of one leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeafRead {
    /// The leaf; never a distributed spare.
    pub leaf: LeafId,
    /// First byte on the device, labels included; a multiple of the vdev's sector for every range that
    /// a correct pool holds.
    pub offset_bytes: u64,
    /// Bytes to read, a multiple of the vdev's sector.
    pub length_bytes: u64,
}

/// Why a leaf did not give the bytes it was asked for.
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
    /// Fewer or more bytes came back than were asked for, or no answer at all.
    #[error("not the number of bytes that was asked for")]
    Length,
}

/// The answer to one [`LeafRead`].
pub type LeafOutcome = Result<Vec<u8>, LeafFault>;

/// A range that no plan can be made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The pool has no top-level vdev of this number.
    #[error("the pool has no vdev {0}")]
    NoSuchVdev(VdevId),
    /// The vdev's slot is a hole; nothing can lie there.
    #[error("vdev {0} is a hole")]
    Hole(VdevId),
    /// The vdev was not found when the pool was imported.
    #[error("vdev {0} is missing")]
    Missing(VdevId),
    /// No block is empty or larger than 16 MiB.
    #[error("a block of {size_bytes} bytes")]
    Size {
        /// The size asked for.
        size_bytes: u64,
    },
    /// No block can begin at this offset: it is not at a sector (dRAID: stripe) border, or the range
    /// leaves 64 bits.
    #[error("no block of vdev {vdev} can begin at byte {offset_bytes}")]
    Offset {
        /// The top-level vdev.
        vdev: VdevId,
        /// The offset asked for.
        offset_bytes: u64,
    },
    /// The vdev was removed and its mapping does not tell where all of the range went.
    #[error("no mapping for byte {offset_bytes} of the removed vdev {vdev}")]
    Unmapped {
        /// The removed vdev.
        vdev: VdevId,
        /// The offset asked for.
        offset_bytes: u64,
    },
    /// Mappings of removed vdevs lead in circles or into more than 65,536 pieces, or the block has more
    /// than 1,048,576 copies of pieces.
    #[error("mappings of removed vdevs or mirrors lead into too many pieces")]
    TooManyPieces,
}

/// What is to be done next with a [`ReadPlan`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// Read these and pass the outcomes to [`ReadPlan::advance`] in the same order. Never empty.
    Read(Vec<LeafRead>),
    /// The bytes are right.
    Done(Resolved),
    /// The bytes cannot be had.
    Failed(Failure),
}

/// Why a leaf is blamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlameReason {
    /// It gave other bytes than it should hold.
    Checksum,
    /// It gave an error.
    Io(LeafFault),
    /// It gave other bytes than it should hold, but is known to have missed the txg: no error of the
    /// device.
    Stale,
}

/// A leaf that did not give what it should hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Blame {
    /// The leaf.
    pub leaf: LeafId,
    /// First byte on the device, labels included.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub length_bytes: u64,
    /// What it did.
    pub reason: BlameReason,
}

/// Bytes that a leaf should hold and does not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Repair {
    /// The leaf.
    pub leaf: LeafId,
    /// First byte on the device, labels included.
    pub offset_bytes: u64,
    /// What belongs there, whole sectors.
    pub data: Vec<u8>,
}

/// Right bytes, and what was learnt on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// The block: exactly as many bytes as the range asked for.
    pub data: Vec<u8>,
    /// Every leaf that was asked and gave an error or wrong bytes. Leaves that were not asked stand
    /// nowhere here.
    pub liars: Vec<Blame>,
    /// What to write where, so that each of the liars is right again.
    pub repairs: Vec<Repair>,
}

/// What kept a block from being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// Too few of the leaves could be read.
    Unavailable,
    /// Enough could be read, but no combination of what they gave is right.
    Checksum,
    /// The plan was asked again after it had ended.
    Spent,
}

/// A block that cannot be had from this address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} after {tried} candidates, {} leaves blamed, {} not available", match kind {
    FailureKind::Unavailable => "too few leaves are readable",
    FailureKind::Checksum => "no combination of what the leaves hold is right",
    FailureKind::Spent => "the plan has ended",
}, blames.len(), absent.len())]
pub struct Failure {
    /// What kind of failure.
    pub kind: FailureKind,
    /// How many candidate blocks were checked.
    pub tried: u64,
    /// Leaves that gave errors; for [`FailureKind::Checksum`] also every leaf that gave bytes, since
    /// nobody can tell which of them lie.
    pub blames: Vec<Blame>,
    /// Leaves that hold a part and could not be asked.
    pub absent: Vec<LeafId>,
}
