//! The tree of vdevs.

use super::health::{VdevAux, VdevState};
use super::waits::IoWaits;

/// What a vdev is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum VdevKind {
    /// The root of the tree.
    Root,
    /// Equal children.
    Mirror,
    /// Parity over whole-width stripes.
    RaidZ {
        /// Parity devices of each stripe, 1 to 3.
        parity: u8,
    },
    /// Parity with distributed spares.
    Draid {
        /// Parity devices of each group.
        parity: u8,
        /// Data devices of each group.
        data: u8,
        /// All children.
        children: u16,
        /// Distributed spares.
        spares: u8,
    },
    /// A child on its way out beside its successor.
    Replacing,
    /// A child and the spare that stands in for it.
    Spare,
    /// A removed device, of which only a mapping is left.
    Indirect,
    /// A gap in the numbering.
    Hole,
    /// A top-level vdev that no label describes.
    Missing,
    /// A block device.
    #[default]
    Disk,
    /// A file.
    File,
    /// A spare made of room in a dRAID.
    DistributedSpare {
        /// Parity of its dRAID.
        parity: u8,
        /// Index of its dRAID among the top-level vdevs.
        top_id: u64,
        /// Its number there.
        spare_id: u64,
    },
}

impl VdevKind {
    /// The word that labels and JSON use.
    pub fn word(self) -> &'static str {
        match self {
            VdevKind::Root => "root",
            VdevKind::Mirror => "mirror",
            VdevKind::RaidZ { .. } => "raidz",
            VdevKind::Draid { .. } => "draid",
            VdevKind::Replacing => "replacing",
            VdevKind::Spare => "spare",
            VdevKind::Indirect => "indirect",
            VdevKind::Hole => "hole",
            VdevKind::Missing => "missing",
            VdevKind::Disk => "disk",
            VdevKind::File => "file",
            VdevKind::DistributedSpare { .. } => "dspare",
        }
    }

    /// Whether the vdev is a device and not made of others.
    pub fn is_leaf(self) -> bool {
        matches!(
            self,
            VdevKind::Disk | VdevKind::File | VdevKind::DistributedSpare { .. }
        )
    }
}

/// What a top-level vdev is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum VdevClass {
    /// Everything.
    #[default]
    Normal,
    /// The intent log.
    Log,
    /// Metadata and small blocks.
    Special,
    /// Deduplication tables.
    Dedup,
    /// A second-level read cache.
    Cache,
    /// A hot spare.
    Spare,
}

/// Whether a hot spare is at work.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum SpareUse {
    /// Ready.
    Available,
    /// Stands in for a device of this pool.
    InThisPool,
    /// Stands in for a device of another pool, named where known.
    InOtherPool(Option<String>),
}

/// How far an initialization or a trim has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ActivityState {
    /// Never begun.
    #[default]
    None,
    /// Running.
    Active,
    /// Given up.
    Canceled,
    /// Stopped for now.
    Suspended,
    /// Done.
    Complete,
}

/// An initialization or a trim of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct VdevActivity {
    /// How far.
    pub state: ActivityState,
    /// Bytes done.
    pub done_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
    /// Seconds since 1970 of the last change of state.
    pub action_time_s: u64,
    /// Errors on the way.
    pub errors: u64,
}

/// Operations and bytes since the pool was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct IoCounters {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

#[cfg(feature = "serde")]
#[allow(clippy::trivially_copy_pass_by_ref)] // what serde asks for
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A vdev and what is below it.
///
/// Depth is bounded by what a label can hold; whoever builds the tree from a disk keeps it below
/// 64 levels, so that walking it is safe.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct VdevInfo {
    /// What it is.
    pub kind: VdevKind,
    /// Its index in its parent.
    pub id: u64,
    /// Its guid; of the root, the pool's.
    pub guid: u64,
    /// Where it was last opened (leaves).
    pub path: Option<String>,
    /// The path by connection.
    pub phys_path: Option<String>,
    /// The device's own identity.
    pub devid: Option<String>,
    /// Whether the pool owns the whole disk, of which `path` is the first partition.
    pub is_whole_disk: bool,
    /// Whether the label says that the device was not there when it was written: it is then
    /// shown by its guid.
    pub is_absent: bool,
    /// What it is for (top-level vdevs, caches, spares; below them the same as above).
    pub class: VdevClass,
    /// Its state.
    pub state: VdevState,
    /// Why.
    pub aux: VdevAux,
    /// How many txgs it has missed (leaves): their data is not read from it.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_zero"))]
    pub missed_txgs: u64,
    /// Bytes allocated.
    pub allocated_bytes: u64,
    /// Bytes that can be allocated, parity included: what `zpool list` calls size.
    pub total_bytes: u64,
    /// The same, deflated: without parity, as datasets are charged.
    pub deflated_bytes: u64,
    /// The least size of a device that can replace this one.
    pub replaceable_bytes: u64,
    /// By how much it could grow.
    pub expandable_bytes: u64,
    /// Size of the device (leaves).
    pub physical_bytes: u64,
    /// Per cent; `None` where no histogram is kept.
    pub fragmentation_percent: Option<u64>,
    /// Bytes that only the checkpoint references.
    pub checkpoint_bytes: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Blocks whose checksum did not hold.
    pub checksum_errors: u64,
    /// Operations that took too long.
    pub slow_ios: u64,
    /// Direct writes whose data changed under way.
    pub direct_verify_errors: u64,
    /// Bytes repaired from other copies.
    pub self_healed_bytes: u64,
    /// Operations.
    pub io: IoCounters,
    /// What they waited for, and what waits (leaves).
    #[cfg_attr(
        feature = "serde",
        serde(default, skip_serializing_if = "IoWaits::is_empty")
    )]
    pub waits: IoWaits,
    /// log2 of the sector size in use; 0 if not known.
    pub configured_ashift: u64,
    /// log2 of the device's own sector size; 0 if not known.
    pub physical_ashift: u64,
    /// Bytes that the running scan repaired on it.
    pub scan_processed_bytes: u64,
    /// Whether a resilver of it waits for another to end.
    pub is_resilver_deferred: bool,
    /// Bytes that the running rebuild wrote to it.
    pub rebuild_processed_bytes: u64,
    /// Whether its contents are being moved away.
    pub is_removing: bool,
    /// Whether nothing new goes there.
    pub is_non_allocating: bool,
    /// Whether its image file was deleted: once the pool is closed its content is gone (leaves).
    pub is_deleted: bool,
    /// Initialization (leaves).
    pub initialize: VdevActivity,
    /// Trim (leaves).
    pub trim: VdevActivity,
    /// Whether the device cannot be trimmed.
    pub is_trim_unsupported: bool,
    /// Of a hot spare: whether it is at work.
    pub spare_use: Option<SpareUse>,
    /// The vdevs that it is made of.
    pub children: Vec<VdevInfo>,
}
