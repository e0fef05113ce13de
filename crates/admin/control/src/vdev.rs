//! The tree of vdevs.

use super::health::{VdevAux, VdevState};
use super::waits::IoWaits;

/// The kind of a vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum VdevKind {
    /// The root of the tree.
    Root,
    /// A mirror: all children have the same data.
    Mirror,
    /// RAID-Z: parity within stripes of variable width.
    RaidZ {
        /// Parity devices of each stripe, 1 to 3.
        parity: u8,
    },
    /// dRAID: parity with distributed spares.
    Draid {
        /// Parity devices of each group.
        parity: u8,
        /// Data devices of each group.
        data: u8,
        /// Count of children.
        children: u16,
        /// Count of distributed spares.
        spares: u8,
    },
    /// A child that is being replaced, and its replacement.
    Replacing,
    /// A child and the spare that replaces it.
    Spare,
    /// A removed device; only its mapping is left.
    Indirect,
    /// An unused vdev id.
    Hole,
    /// A top-level vdev that no label describes.
    Missing,
    /// A block device.
    #[default]
    Disk,
    /// A file.
    File,
    /// A spare made of the reserved space of a dRAID.
    DistributedSpare {
        /// Parity of its dRAID.
        parity: u8,
        /// Index of its dRAID among the top-level vdevs.
        top_id: u64,
        /// Its index in its dRAID.
        spare_id: u64,
    },
}

impl VdevKind {
    /// The type name in labels and JSON.
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

    /// Whether the vdev is a device with a path.
    pub fn is_device(self) -> bool {
        matches!(self, VdevKind::Disk | VdevKind::File)
    }

    /// Whether the vdev has no children: a device or a distributed spare.
    pub fn is_leaf(self) -> bool {
        self.is_device() || matches!(self, VdevKind::DistributedSpare { .. })
    }
}

/// The allocation class of a top-level vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum VdevClass {
    /// All data.
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

/// Whether a hot spare is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum SpareUse {
    /// Not in use.
    Available,
    /// Replaces a device of this pool.
    InThisPool,
    /// Replaces a device of another pool; its name, if known.
    InOtherPool(Option<String>),
}

/// The state of an initialization or a trim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ActivityState {
    /// Never started.
    #[default]
    None,
    /// Running.
    Active,
    /// Canceled.
    Canceled,
    /// Suspended.
    Suspended,
    /// Done.
    Complete,
}

/// An initialization or a trim of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct VdevActivity {
    /// Its state.
    pub state: ActivityState,
    /// Bytes done.
    pub done_bytes: u64,
    /// Total bytes.
    pub total_bytes: u64,
    /// Time of the last state change in seconds since 1970.
    pub action_time_s: u64,
    /// Errors so far.
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
    /// Discards.
    pub trims: u64,
    /// Bytes discarded.
    pub trimmed_bytes: u64,
}

#[cfg(feature = "serde")]
#[allow(clippy::trivially_copy_pass_by_ref)] // required by serde
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A vdev and its children.
///
/// A label bounds the depth of the tree. Code that builds the tree from a device keeps it below 64 levels, so
/// that recursion is safe.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct VdevInfo {
    /// Its kind.
    pub kind: VdevKind,
    /// Its index in its parent.
    pub id: u64,
    /// Its guid; of the root, the pool's.
    pub guid: u64,
    /// The path at which it was last opened (leaves).
    pub path: Option<String>,
    /// The physical path, by connection.
    pub phys_path: Option<String>,
    /// The device id, assigned by the device.
    pub devid: Option<String>,
    /// Whether the pool uses the whole disk. `path` is then the first partition.
    pub is_whole_disk: bool,
    /// Whether the label records that the device was missing when the label was written. The device is then
    /// shown by its guid.
    pub is_absent: bool,
    /// Its allocation class: of top-level vdevs, caches and spares their own, of their descendants the same.
    pub class: VdevClass,
    /// Its state.
    pub state: VdevState,
    /// The reason for the state.
    pub aux: VdevAux,
    /// Count of txgs in the leaf's dirty time log. Data born in them is not read from this leaf.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_zero"))]
    pub missed_txgs: u64,
    /// Bytes allocated.
    pub allocated_bytes: u64,
    /// Capacity in bytes, including parity: the size in `zpool list`.
    pub total_bytes: u64,
    /// Deflated capacity in bytes, without parity: the space that datasets are charged for.
    pub deflated_bytes: u64,
    /// The smallest size of a device that can replace this one, in bytes.
    pub replaceable_bytes: u64,
    /// By how many bytes it can expand.
    pub expandable_bytes: u64,
    /// Size of the device in bytes (leaves).
    pub physical_bytes: u64,
    /// Fragmentation in per cent; `None` if there is no histogram.
    pub fragmentation_percent: Option<u64>,
    /// Bytes referenced only by the checkpoint.
    pub checkpoint_bytes: u64,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed writes.
    pub write_errors: u64,
    /// Blocks with a wrong checksum.
    pub checksum_errors: u64,
    /// Operations that took too long.
    pub slow_ios: u64,
    /// Direct writes whose data changed during the write.
    pub direct_verify_errors: u64,
    /// Bytes repaired from other copies.
    pub self_healed_bytes: u64,
    /// Counts of operations and bytes.
    pub io: IoCounters,
    /// Latencies and queues (leaves).
    #[cfg_attr(
        feature = "serde",
        serde(default, skip_serializing_if = "IoWaits::is_empty")
    )]
    pub waits: IoWaits,
    /// log2 of the sector size in use; 0 if unknown.
    pub configured_ashift: u64,
    /// log2 of the device's own sector size; 0 if unknown.
    pub physical_ashift: u64,
    /// Bytes that the running scan repaired on it.
    pub scan_processed_bytes: u64,
    /// Whether its resilver is deferred until another one ends.
    pub is_resilver_deferred: bool,
    /// Bytes that the running rebuild wrote to it.
    pub rebuild_processed_bytes: u64,
    /// Whether it is being removed.
    pub is_removing: bool,
    /// Whether allocation from it is disabled.
    pub is_non_allocating: bool,
    /// Whether its image file was deleted (leaves). Its content is lost when the pool is closed.
    pub is_deleted: bool,
    /// State of its initialization (leaves).
    pub initialize: VdevActivity,
    /// State of its trim (leaves).
    pub trim: VdevActivity,
    /// Whether the device does not support trim.
    pub is_trim_unsupported: bool,
    /// Of a hot spare: whether it is in use.
    pub spare_use: Option<SpareUse>,
    /// Its children.
    pub children: Vec<VdevInfo>,
}
