//! Checks whether the vdevs of a pool have the same redundancy.
//!
//! A pool is only as safe as its least safe vdev, so mixed redundancy is usually a mistake. This module
//! only reports the mismatches; `docs/cli.md` has the messages.

use crate::vdevs::new_vdev::{NewLayout, NewTop};
use millpond_ondisk::LeafLayout;
use millpond_vdev::{AllocationClass, VdevConfig, VdevType};

/// The redundancy of a vdev, as far as comparisons need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Replication {
    /// `disk` or `file` for a single device, `mirror`, `raidz` or `draid`.
    pub kind: VdevType,
    /// The number of its devices.
    pub ways: usize,
    /// The number of devices that may be lost.
    pub parity: usize,
}

/// A mismatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ReplicationMismatch {
    /// The devices of a new vdev differ in size by more than 1/64 of the largest.
    DeviceSizes(Replication),
    /// A new vdev contains both image files and block devices.
    FilesAndDevices(Replication),
    /// Two new vdevs differ.
    BetweenNew(Replication, Replication),
    /// A new vdev differs from the pool's vdevs.
    WithPool {
        /// The redundancy of the pool's vdevs.
        pool: Replication,
        /// The redundancy of the new vdev.
        new: Replication,
    },
}

/// Finds all mismatches.
///
/// Log vdevs are not compared. Special and dedup vdevs are compared like vdevs for ordinary data. The
/// reference is the pool's first vdev, or the first new vdev if the pool has none.
#[must_use]
pub fn check_replication(
    new: &[NewTop],
    existing: &[(VdevConfig, AllocationClass)],
) -> Vec<ReplicationMismatch> {
    let mut found = Vec::new();
    let pool = existing
        .iter()
        .filter(|(_, class)| *class != AllocationClass::Log)
        .find_map(|(vdev, _)| of_existing(vdev));
    let mut first: Option<Replication> = None;
    for top in new {
        let own = of_new(top);
        if has_different_sizes(top) {
            found.push(ReplicationMismatch::DeviceSizes(own));
        }
        let files = top.devices.iter().filter(|one| !one.is_block_device);
        if !matches!(files.count(), 0) && top.devices.iter().any(|one| one.is_block_device) {
            found.push(ReplicationMismatch::FilesAndDevices(own));
        }
        if top.class == AllocationClass::Log {
            continue;
        }
        match (pool, first) {
            (Some(pool), _) if !is_alike(pool, own) => {
                found.push(ReplicationMismatch::WithPool { pool, new: own });
            }
            (None, Some(first)) if !are_alike_when_new(first, own) => {
                found.push(ReplicationMismatch::BetweenNew(first, own));
            }
            _ => {}
        }
        first = first.or(Some(own));
    }
    found
}

/// The fraction of the largest device by which others may be smaller: disks of one nominal size seldom have
/// the same number of sectors.
const SIZE_SLACK: u64 = 64;

fn has_different_sizes(top: &NewTop) -> bool {
    let sizes = top
        .devices
        .iter()
        .filter_map(|one| LeafLayout::new(one.device.size_bytes()))
        .map(LeafLayout::psize_bytes);
    let (least, most) = sizes.fold((u64::MAX, 0), |(least, most), size| {
        (least.min(size), most.max(size))
    });
    most.saturating_sub(least) > most / SIZE_SLACK
}

/// A mirror is compared by the number of devices it may lose: a two-way mirror equals one parity column.
fn is_alike(one: Replication, other: Replication) -> bool {
    let is_group = |kind| matches!(kind, VdevType::Mirror | VdevType::Raidz | VdevType::Draid);
    match (one.kind, other.kind) {
        (a, b) if a == b => one.ways == other.ways && one.parity == other.parity,
        (a, b) if is_group(a) && is_group(b) => one.parity == other.parity,
        (a, b) => !is_group(a) && !is_group(b),
    }
}

/// Among new vdevs, the width of RAID-Z and dRAID does not matter.
fn are_alike_when_new(one: Replication, other: Replication) -> bool {
    match (one.kind, other.kind) {
        (VdevType::Raidz, VdevType::Raidz) | (VdevType::Draid, VdevType::Draid) => {
            one.parity == other.parity
        }
        _ => is_alike(one, other),
    }
}

fn of_new(top: &NewTop) -> Replication {
    let ways = top.devices.len();
    match top.layout {
        NewLayout::Mirror => Replication {
            kind: VdevType::Mirror,
            ways,
            parity: ways.saturating_sub(1),
        },
        NewLayout::Raidz(parity) => Replication {
            kind: VdevType::Raidz,
            ways,
            parity: usize::from(parity),
        },
        NewLayout::Draid(shape) => Replication {
            kind: VdevType::Draid,
            ways,
            parity: usize::from(shape.parity),
        },
        NewLayout::Single => Replication {
            kind: match top.devices.first() {
                Some(device) => device.vdev_type(),
                None => VdevType::File,
            },
            ways: 1,
            parity: 0,
        },
    }
}

fn of_existing(vdev: &VdevConfig) -> Option<Replication> {
    let ways = vdev.children.len();
    match vdev.kind {
        kind if kind.is_device() => Some(Replication {
            kind: vdev.kind,
            ways: 1,
            parity: 0,
        }),
        VdevType::Mirror => Some(Replication {
            kind: vdev.kind,
            ways,
            parity: ways.saturating_sub(1),
        }),
        VdevType::Raidz | VdevType::Draid => Some(Replication {
            kind: vdev.kind,
            ways,
            parity: usize::try_from(vdev.nparity.unwrap_or(1)).unwrap_or(0),
        }),
        // For a device that is being replaced, the original one counts.
        VdevType::Replacing | VdevType::Spare => vdev.children.first().and_then(of_existing),
        _ => None,
    }
}
