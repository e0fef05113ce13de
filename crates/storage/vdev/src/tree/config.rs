//! One vdev as a pool's configuration describes it, before anything is believed.

use millpond_ondisk::{Guid, ObjectId, Txg, VdevId};

/// The word under `type` in a vdev's configuration. Page `docs/format/vdev-tree.md`.
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
    /// A mirror of a device and its replacement, while the replacement is filled.
    Replacing,
    /// A mirror of a device and the hot spare that stands in for it.
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

    /// The kind that a configuration calls `name`, or `None` for a word that is not in use on disk.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(_, known)| *known == name)
            .map(|(kind, _)| *kind)
    }

    /// The word under `type`.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES
            .iter()
            .find(|(kind, _)| *kind == self)
            .map_or("missing", |(_, name)| name)
    }

    /// Whether such a vdev stands at the bottom of the tree and serves bytes: a device, or a
    /// distributed spare.
    #[must_use]
    pub fn is_leaf(self) -> bool {
        matches!(self, Self::Disk | Self::File | Self::DraidSpare)
    }

    /// Whether every child holds the same bytes at the same offsets.
    #[must_use]
    pub fn is_mirror_like(self) -> bool {
        matches!(self, Self::Mirror | Self::Replacing | Self::Spare)
    }
}

/// What a top-level vdev is reserved for. Page `docs/format/vdev-tree.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum AllocationClass {
    /// Ordinary data and metadata.
    #[default]
    Normal,
    /// Intent-log blocks only.
    Log,
    /// Metadata and small blocks.
    Special,
    /// Dedup tables.
    Dedup,
}

impl AllocationClass {
    /// The class that `org.zfsonlinux:allocation_bias` in a top-level vdev's ZAP calls `name`.
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

/// One vdev nvlist as plain values: labels, MOS configuration, cache file and lists of spares all
/// carry it. Nothing is checked here; [`VdevTree::new`](crate::VdevTree::new) does that.
///
/// Keys that were absent are `None`, `false`, 0 or empty. Page `docs/format/vdev-tree.md`.
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
    /// `spareid`: which distributed spare of its dRAID vdev a `dspare` is.
    pub spare_id: Option<u64>,
    /// `top_guid` of a `dspare`: its dRAID vdev.
    pub top_guid: Option<Guid>,
    /// `whole_disk`.
    pub whole_disk: Option<bool>,
    /// `not_present`: the device was missing at the last import.
    pub not_present: bool,
    /// `is_spare`: the leaf came from the list of spares.
    pub is_spare: bool,
    /// `is_log`: the top-level vdev takes intent-log blocks only.
    pub is_log: bool,
    /// `metaslab_array`: MOS object with the space map numbers; 0 before the first sync.
    pub metaslab_array: ObjectId,
    /// `metaslab_shift`: log2 of the metaslab size in bytes.
    pub metaslab_shift: u64,
    /// `ashift`: log2 of the sector in bytes; only top-level vdevs carry it.
    pub ashift: u64,
    /// `asize`: allocatable bytes of a top-level vdev, parity included.
    pub asize_bytes: u64,
    /// `min_alloc`: smallest allocation in bytes, as 2.4 notes it.
    pub min_alloc_bytes: Option<u64>,
    /// `non_allocating`: nothing new is placed here.
    pub non_allocating: bool,
    /// `removing`: data is being moved away.
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
    /// `com.datto:resilver_defer`: this leaf's resilver waits for the running one.
    pub resilver_deferred: bool,
    /// `offline`: taken offline for good.
    pub offline: bool,
    /// `faulted`.
    pub faulted: bool,
    /// `degraded`.
    pub degraded: bool,
    /// `removed`: pulled out.
    pub removed: bool,
    /// `unspare`: the spare returns to the list when the resilver is done.
    pub unspare: bool,
    /// `aux_state`: why the leaf is faulted or degraded (`err_exceeded`, `external`).
    pub aux_state: Option<String>,
    /// `resilver_txg`: a healing resilver began here and is not finished.
    pub resilver_txg: Option<Txg>,
    /// `rebuild_txg`: a sequential rebuild began here and is not finished.
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
