//! Sizes of blocks on vdevs, and of vdevs. Page `docs/format/vdev-tree.md`.

use millpond_ondisk::{SECTOR_BYTES, Txg, VdevId};

use crate::tree::{NodeId, VdevKind, VdevNode, VdevTree};
use crate::units::{Sector, round_up};

/// The block size for which a vdev's overhead is calculated, in bytes.
const TYPICAL_BLOCK_BYTES: u64 = 128 << 10;
/// Size of a gang header before `com.klarasystems:dynamic_gang_header`, in bytes.
const GANG_HEADER_BYTES: u64 = 512;
/// Bytes of a leaf that are not allocatable: two labels and the boot area at the start, two labels at the
/// end.
const LEAF_OVERHEAD_BYTES: u64 = (4 << 20) + (512 << 10);
/// Size of a label in bytes.
const LABEL_BYTES: u64 = 256 << 10;

impl VdevTree {
    /// The bytes that a block of `psize_bytes` physically born in `birth` takes on a top-level vdev,
    /// including parity and padding. `None` for holes and missing vdevs, and on overflow.
    #[must_use]
    pub fn asize(&self, vdev: VdevId, psize_bytes: u64, birth: Txg) -> Option<u64> {
        let node = self.top(vdev)?;
        let sector = Sector::new(node.ashift)?;
        match &node.kind {
            VdevKind::Raidz(geometry) => geometry.asize(psize_bytes, sector, birth),
            VdevKind::Draid(geometry) => geometry.asize(psize_bytes, sector),
            VdevKind::Hole | VdevKind::Missing | VdevKind::Root => None,
            _ => round_up(psize_bytes, sector.bytes()),
        }
    }

    /// The largest data size of a block born in `birth` that fits into `asize_bytes` of a top-level vdev.
    #[must_use]
    pub fn psize_max(&self, vdev: VdevId, asize_bytes: u64, birth: Txg) -> Option<u64> {
        let node = self.top(vdev)?;
        let sector = Sector::new(node.ashift)?;
        match &node.kind {
            VdevKind::Raidz(geometry) => geometry.psize_max(asize_bytes, sector, birth),
            VdevKind::Draid(geometry) => geometry.psize_max(asize_bytes, sector),
            VdevKind::Hole | VdevKind::Missing | VdevKind::Root => None,
            _ => sector.to_bytes(sector.whole(asize_bytes)),
        }
    }

    /// The smallest data size that a top-level vdev stores without padding, in bytes: its sector, or on
    /// dRAID one sector for each data column of a group.
    #[must_use]
    pub fn min_alloc(&self, vdev: VdevId) -> Option<u64> {
        let node = self.top(vdev)?;
        let sector = Sector::new(node.ashift)?;
        match &node.kind {
            VdevKind::Draid(geometry) => sector.to_bytes(geometry.data()),
            _ => Some(sector.bytes()),
        }
    }

    /// Size of a gang header on a top-level vdev: 512, or its smallest allocation while
    /// `com.klarasystems:dynamic_gang_header` is active. A pointer with several addresses uses the smallest
    /// of their sizes.
    #[must_use]
    pub fn gang_header_size(&self, vdev: VdevId, is_dynamic: bool) -> Option<u64> {
        if is_dynamic {
            self.min_alloc(vdev)
        } else {
            Some(GANG_HEADER_BYTES)
        }
    }

    /// The bytes that a gang header takes on a top-level vdev: those of a 512-byte block at the vdev's
    /// original width, for any header size.
    #[must_use]
    pub fn gang_header_asize(&self, vdev: VdevId) -> Option<u64> {
        self.asize(vdev, GANG_HEADER_BYTES, Txg(0))
    }

    /// Useful bytes in each raw 512-byte sector of a top-level vdev; 512 without redundancy. Calculated for
    /// blocks of 128 KiB at the vdev's original width; expansion does not change it.
    #[must_use]
    pub fn deflate_ratio(&self, vdev: VdevId) -> Option<u64> {
        let asize = self.asize(vdev, TYPICAL_BLOCK_BYTES, Txg(0))?;
        TYPICAL_BLOCK_BYTES.checked_div(asize >> SECTOR_BYTES.trailing_zeros())
    }

    /// Converts `raw_bytes` of a top-level vdev to the deflated bytes that datasets see.
    #[must_use]
    pub fn deflated(&self, vdev: VdevId, raw_bytes: u64) -> Option<u64> {
        (raw_bytes / SECTOR_BYTES).checked_mul(self.deflate_ratio(vdev)?)
    }

    /// The number of metaslabs of a top-level vdev. 0 for holes, missing and removed vdevs.
    #[must_use]
    pub fn metaslab_count(&self, vdev: VdevId) -> u64 {
        let Some(node) = self.top(vdev) else { return 0 };
        if !node.is_concrete() {
            return 0;
        }
        let shift = u32::try_from(node.config.metaslab_shift).unwrap_or(u32::MAX);
        if shift == 0 {
            return 0;
        }
        node.config.asize_bytes.checked_shr(shift).unwrap_or(0)
    }

    /// Offset and length of one metaslab; on dRAID reduced to whole stripes. `None` if it does not exist.
    #[must_use]
    pub fn metaslab_range(&self, vdev: VdevId, index: u64) -> Option<(u64, u64)> {
        let node = self.top(vdev)?;
        if index >= self.metaslab_count(vdev) {
            return None;
        }
        let size = 1u64.checked_shl(u32::try_from(node.config.metaslab_shift).ok()?)?;
        let start = index.checked_mul(size)?;
        let end = start.checked_add(size)?;
        let VdevKind::Draid(geometry) = &node.kind else {
            return Some((start, size));
        };
        let stripe = Sector::new(node.ashift)?.to_bytes(geometry.group_width())?;
        let first = round_up(start, stripe)?;
        let length = end.checked_sub(first)?;
        Some((first, length.checked_sub(length.checked_rem(stripe)?)?))
    }

    /// Raw allocatable bytes of a top-level vdev: its share of `SIZE` in `zpool list`, including parity.
    #[must_use]
    pub fn space(&self, vdev: VdevId) -> u64 {
        self.space_of(vdev).unwrap_or(0)
    }

    fn space_of(&self, vdev: VdevId) -> Option<u64> {
        let node = self.top(vdev)?;
        let count = self.metaslab_count(vdev);
        let size = 1u64.checked_shl(u32::try_from(node.config.metaslab_shift).ok()?)?;
        let VdevKind::Draid(geometry) = &node.kind else {
            return count.checked_mul(size);
        };
        let stripe = Sector::new(node.ashift)?.to_bytes(geometry.group_width())?;
        if size < stripe || count == 0 {
            return Some(0);
        }
        // Whole stripes up to the end of the last metaslab, minus one for each boundary between metaslabs
        // that lies within a stripe. One boundary in every `period` lies between stripes.
        let whole = count.checked_mul(size)?.checked_div(stripe)?;
        let common = size.trailing_zeros().min(stripe.trailing_zeros());
        let period = stripe.checked_shr(common)?;
        let borders = count.checked_sub(1)?;
        let cut = borders.checked_sub(borders.checked_div(period)?)?;
        whole.checked_sub(cut)?.checked_mul(stripe)
    }

    /// Children's worth of data on a top-level vdev: 1 for leaves and mirrors, children minus parity for
    /// RAID-Z, and the data columns of all groups in a row for dRAID.
    #[must_use]
    pub fn data_disks(&self, vdev: VdevId) -> Option<u64> {
        let node = self.top(vdev)?;
        match &node.kind {
            VdevKind::Raidz(geometry) => geometry.children().checked_sub(geometry.parity()),
            VdevKind::Draid(geometry) => geometry
                .disks()
                .checked_mul(geometry.data())
                .and_then(|all| all.checked_div(geometry.group_width())),
            VdevKind::Hole | VdevKind::Missing | VdevKind::Root => None,
            _ => Some(1),
        }
    }

    /// Allocatable bytes of a vdev whose devices have the sizes that `device_bytes` returns. Absent devices
    /// (`None`) do not limit the size. `None` for holes, missing and removed vdevs, and if no device is
    /// present.
    #[must_use]
    pub fn asize_from_devices(
        &self,
        id: NodeId,
        device_bytes: &dyn Fn(&VdevNode) -> Option<u64>,
    ) -> Option<u64> {
        let node = self.node(id)?;
        let least = || {
            let sizes = node.children.iter();
            sizes
                .filter_map(|child| self.asize_from_devices(*child, device_bytes))
                .min()
        };
        match &node.kind {
            VdevKind::Device => {
                let bytes = device_bytes(node)?;
                let whole = bytes.checked_sub(bytes % LABEL_BYTES)?;
                whole.checked_sub(LEAF_OVERHEAD_BYTES)
            }
            VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => least(),
            VdevKind::Raidz(geometry) => {
                let children = geometry.children();
                least()?.checked_mul(children.checked_sub(u64::from(geometry.is_expanding()))?)
            }
            VdevKind::Draid(geometry) => geometry.asize_from_children(least()?),
            _ => None,
        }
    }
}

/// How many metaslabs a new vdev has at least, if it is large enough. [`metaslab_shift_for`] may be given another number.
pub const METASLABS_MIN: u64 = 16;

/// log2 of the metaslab size that a new vdev of `asize_bytes` gets, which then has `count_min` of them if it is large enough.
#[must_use]
pub fn metaslab_shift_for(asize_bytes: u64, count_min: u64) -> u32 {
    let bits = |value: u64| u64::BITS.saturating_sub(value.leading_zeros());
    let shift = match asize_bytes >> 29 {
        most if most < count_min => bits(asize_bytes.checked_div(count_min).unwrap_or(asize_bytes)),
        201.. => bits(asize_bytes / 200),
        _ => 29,
    };
    if shift < 24 {
        24
    } else if shift > 34 {
        if asize_bytes >> 34 > 131_072 {
            bits(asize_bytes / 131_072)
        } else {
            34
        }
    } else {
        shift
    }
}
