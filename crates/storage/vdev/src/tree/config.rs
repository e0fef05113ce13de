//! The configuration of one vdev, not yet validated.

use millpond_ondisk::{Guid, ObjectId, Txg, VdevId};

/// The value of `type` in a vdev's configuration. Page `docs/format/vdev-tree.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum VdevType {
    /// The pool itself; its children are the top-level vdevs.
    Root,
    /// A block device.
    Disk,
    /// A regular file.
    File,
    /// Every child holds the same bytes.
    Mirror,
    /// A mirror of a device and its replacement, while the replacement is resilvered.
    Replacing,
    /// A mirror of a device and the hot spare that replaces it.
    Spare,
    /// RAID-Z with 1 to 3 parity columns.
    Raidz,
    /// Declustered RAID.
    Draid,
    /// Spare space inside a dRAID vdev that acts as a leaf (`dspare`).
    DraidSpare,
    /// A removed data vdev: a mapping to other vdevs.
    Indirect,
    /// The slot of a removed log vdev.
    Hole,
    /// A top-level vdev of which no label was found.
    Missing,
}

impl VdevType {
    const NAMES: [(Self, &'static str); 12] = [
        (Self::Root, "root"),
        (Self::Disk, "disk"),
        (Self::File, "file"),
        (Self::Mirror, "mirror"),
        (Self::Replacing, "replacing"),
        (Self::Spare, "spare"),
        (Self::Raidz, "raidz"),
        (Self::Draid, "draid"),
        (Self::DraidSpare, "dspare"),
        (Self::Indirect, "indirect"),
        (Self::Hole, "hole"),
        (Self::Missing, "missing"),
    ];

    /// The kind for a `type` name, or `None` for a name that is not used on disk.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(_, known)| *known == name)
            .map(|(kind, _)| *kind)
    }

    /// The `type` name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES
            .iter()
            .find(|(kind, _)| *kind == self)
            .map_or("missing", |(_, name)| name)
    }

    /// Whether such a vdev is a device: a leaf with labels, which is opened by a path.
    #[must_use]
    pub fn is_device(self) -> bool {
        matches!(self, Self::Disk | Self::File)
    }

    /// Whether such a vdev is a leaf that holds bytes: a device or a distributed spare.
    #[must_use]
    pub fn is_leaf(self) -> bool {
        self.is_device() || self == Self::DraidSpare
    }

    /// Whether every child holds the same bytes at the same offsets.
    #[must_use]
    pub fn is_mirror_like(self) -> bool {
        matches!(self, Self::Mirror | Self::Replacing | Self::Spare)
    }
}

/// The allocation class of a top-level vdev. Page `docs/format/vdev-tree.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum AllocationClass {
    /// Ordinary data and metadata.
    #[default]
    Normal,
    /// Intent log blocks only.
    Log,
    /// Metadata and small blocks.
    Special,
    /// Dedup tables.
    Dedup,
}

impl AllocationClass {
    /// The class for a value of `org.zfsonlinux:allocation_bias` in a top-level vdev's ZAP.
    #[must_use]
    pub fn from_bias(name: &str) -> Option<Self> {
        match name {
            "log" => Some(Self::Log),
            "special" => Some(Self::Special),
            "dedup" => Some(Self::Dedup),
            _ => None,
        }
    }
}

/// One vdev nvlist as plain values, as found in labels, the MOS configuration, the cache file and lists of
/// spares. Nothing is validated here; [`VdevTree::new`](crate::VdevTree::new) does that.
///
/// Absent keys are `None`, `false`, 0 or empty. Page `docs/format/vdev-tree.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VdevConfig {
    /// `type`.
    pub kind: VdevType,
    /// `id`: index among the parent's children.
    pub id: Option<u64>,
    /// `guid`; 0 for holes and missing vdevs.
    pub guid: Guid,
    /// `path`: where the leaf was last opened.
    pub path: Option<String>,
    /// `devid`: the udev identity of a disk.
    pub devid: Option<String>,
    /// `phys_path`: the udev physical path of a disk.
    pub phys_path: Option<String>,
    /// `vdev_enc_sysfs_path`: the enclosure slot.
    pub enclosure_path: Option<String>,
    /// `nparity`: parity columns of RAID-Z (absent in versions 1 and 2: one) and dRAID.
    pub nparity: Option<u64>,
    /// `draid_ndata`: data columns of a dRAID group.
    pub draid_ndata: Option<u64>,
    /// `draid_nspares`: distributed spares of a dRAID vdev.
    pub draid_nspares: Option<u64>,
    /// `draid_ngroups`: groups of a dRAID slice.
    pub draid_ngroups: Option<u64>,
    /// `raidz_expanding`: an expansion is in progress.
    pub raidz_expanding: bool,
    /// `raidz_expand_txgs`: one entry for each finished expansion, ascending.
    pub raidz_expand_txgs: Vec<Txg>,
    /// `spareid`: the number of a `dspare` within its dRAID vdev.
    pub spare_id: Option<u64>,
    /// `top_guid` of a `dspare`: its dRAID vdev.
    pub top_guid: Option<Guid>,
    /// `whole_disk`.
    pub whole_disk: Option<bool>,
    /// `not_present`: the device was missing at the last import.
    pub not_present: bool,
    /// `is_spare`: the leaf came from the list of spares.
    pub is_spare: bool,
    /// `is_log`: the top-level vdev accepts intent log blocks only.
    pub is_log: bool,
    /// `metaslab_array`: MOS object with the object ids of the space maps; 0 before the first sync.
    pub metaslab_array: ObjectId,
    /// `metaslab_shift`: log2 of the metaslab size in bytes.
    pub metaslab_shift: u64,
    /// `ashift`: log2 of the sector in bytes; only on top-level vdevs.
    pub ashift: u64,
    /// `asize`: allocatable bytes of a top-level vdev, including parity.
    pub asize_bytes: u64,
    /// `min_alloc`: smallest allocation in bytes, recorded since OpenZFS 2.4.
    pub min_alloc_bytes: Option<u64>,
    /// `non_allocating`: no new allocations.
    pub non_allocating: bool,
    /// `removing`: data is being moved to other vdevs.
    pub removing: bool,
    /// `DTL`: MOS object with the leaf's dirty time log.
    pub dtl: Option<ObjectId>,
    /// `com.delphix:indirect_object`: the mapping of a removed or removing vdev.
    pub indirect_mapping: Option<ObjectId>,
    /// `com.delphix:indirect_births`: when each part of the mapping was copied.
    pub indirect_births: Option<ObjectId>,
    /// `com.delphix:prev_indirect_vdev`: the vdev removed before this one.
    pub prev_indirect_vdev: Option<VdevId>,
    /// `create_txg`.
    pub create_txg: Option<Txg>,
    /// `com.delphix:vdev_zap_leaf`.
    pub zap_leaf: Option<ObjectId>,
    /// `com.delphix:vdev_zap_top`.
    pub zap_top: Option<ObjectId>,
    /// `com.klarasystems:vdev_zap_root`.
    pub zap_root: Option<ObjectId>,
    /// `com.datto:resilver_defer`: this leaf's resilver is deferred until the running one ends.
    pub resilver_deferred: bool,
    /// `offline`: taken offline permanently.
    pub offline: bool,
    /// `faulted`.
    pub faulted: bool,
    /// `degraded`.
    pub degraded: bool,
    /// `removed`: physically removed.
    pub removed: bool,
    /// `unspare`: the spare returns to the list of spares after the resilver.
    pub unspare: bool,
    /// `aux_state`: why the leaf is faulted or degraded (`err_exceeded`, `external`).
    pub aux_state: Option<String>,
    /// `resilver_txg`: an unfinished healing resilver began in this txg.
    pub resilver_txg: Option<Txg>,
    /// `rebuild_txg`: an unfinished sequential rebuild began in this txg.
    pub rebuild_txg: Option<Txg>,
    /// `expansion_time`: seconds since 1970 when the leaf last grew.
    pub expansion_time: Option<u64>,
    /// `orig_guid`: the leaf's guid before a split.
    pub orig_guid: Option<Guid>,
    /// `children`.
    pub children: Vec<VdevConfig>,
}

impl VdevConfig {
    /// A vdev of `kind` with every other key absent.
    #[must_use]
    pub fn new(kind: VdevType, guid: Guid) -> Self {
        Self {
            kind,
            id: None,
            guid,
            path: None,
            devid: None,
            phys_path: None,
            enclosure_path: None,
            nparity: None,
            draid_ndata: None,
            draid_nspares: None,
            draid_ngroups: None,
            raidz_expanding: false,
            raidz_expand_txgs: Vec::new(),
            spare_id: None,
            top_guid: None,
            whole_disk: None,
            not_present: false,
            is_spare: false,
            is_log: false,
            metaslab_array: ObjectId(0),
            metaslab_shift: 0,
            ashift: 0,
            asize_bytes: 0,
            min_alloc_bytes: None,
            non_allocating: false,
            removing: false,
            dtl: None,
            indirect_mapping: None,
            indirect_births: None,
            prev_indirect_vdev: None,
            create_txg: None,
            zap_leaf: None,
            zap_top: None,
            zap_root: None,
            resilver_deferred: false,
            offline: false,
            faulted: false,
            degraded: false,
            removed: false,
            unspare: false,
            aux_state: None,
            resilver_txg: None,
            rebuild_txg: None,
            expansion_time: None,
            orig_guid: None,
            children: Vec::new(),
        }
    }

    /// The root vdev over `tops`, as an importer assembles it from labels.
    #[must_use]
    pub fn root(pool: Guid, tops: Vec<VdevConfig>) -> Self {
        Self {
            children: tops,
            ..Self::new(VdevType::Root, pool)
        }
    }

    /// The placeholder for a top-level vdev of which no label was found.
    #[must_use]
    pub fn missing() -> Self {
        Self::new(VdevType::Missing, Guid(0))
    }

    /// The placeholder for the slot of a removed log vdev.
    #[must_use]
    pub fn hole() -> Self {
        Self::new(VdevType::Hole, Guid(0))
    }
}
