//! From devices that a pool is to have to vdevs: checks, sizes, identities.
//!
//! Nothing is written here. Words for people are made above: refusals are values.
//!
//! Page `docs/format/vdev-tree.md`, "New vdevs".

use crate::import::{LabelFault, LeafLabel, LeafState, read_labels};
use crate::live::replication::{ReplicationMismatch, check_replication};
use millpond_device::Device;
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_ondisk::{Guid, LeafLayout, Txg};
use millpond_vdev::{
    AllocationClass, RAIDZ_CHILDREN_MAX, VdevConfig, VdevType, metaslab_shift_for,
};
use std::collections::{BTreeMap, BTreeSet};

/// The smallest and largest sector that a vdev can have, as log2 of bytes.
const ASHIFT: std::ops::RangeInclusive<u8> = 9..=16;

/// A device for a new vdev.
#[derive(Debug, Clone)]
pub struct NewDevice {
    /// Where it is, absolute: stored so that it is looked for there first.
    pub path: String,
    /// The device, open for writing.
    pub device: Arc<dyn Device>,
    /// Whether it is a block device (else an image file).
    pub is_block_device: bool,
    /// Whether it is a whole disk that was partitioned for this pool. Only block devices say so.
    pub whole_disk: bool,
    /// The udev identity of a disk.
    pub devid: Option<String>,
    /// The udev physical path of a disk.
    pub phys_path: Option<String>,
}

impl NewDevice {
    /// An image file.
    #[must_use]
    pub fn file(path: &str, device: Arc<dyn Device>) -> Self {
        Self {
            path: path.to_owned(),
            device,
            is_block_device: false,
            whole_disk: false,
            devid: None,
            phys_path: None,
        }
    }
}

/// How the devices of a new top-level vdev stand together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum NewLayout {
    /// One device by itself.
    Single,
    /// Each holds everything.
    Mirror,
    /// RAID-Z with this many parity columns, 1 to 3.
    Raidz(u8),
}

/// A new top-level vdev.
#[derive(Debug, Clone)]
pub struct NewTop {
    /// How its devices stand together.
    pub layout: NewLayout,
    /// What it is reserved for.
    pub class: AllocationClass,
    /// The devices, in order.
    pub devices: Vec<NewDevice>,
}

/// Everything that is to be added to a pool at once.
#[derive(Debug, Clone, Default)]
pub struct NewVdevs {
    /// Top-level vdevs, in the order in which they are numbered.
    pub tops: Vec<NewTop>,
    /// Hot spares.
    pub spares: Vec<NewDevice>,
    /// Cache devices.
    pub caches: Vec<NewDevice>,
}

/// What the person said about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NewVdevOptions {
    /// log2 of the sector, where it was stated.
    pub ashift: Option<u8>,
    /// Take devices that another pool may be using, and layouts of mixed redundancy.
    pub force: bool,
}

/// What a device's labels say about who uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceUse {
    /// The state of its pool, or what it serves as.
    pub state: LeafState,
    /// The pool's name, where the label has one.
    pub pool: Option<String>,
    /// The pool's guid; 0 for spares and cache devices.
    pub pool_guid: Guid,
    /// The leaf's guid.
    pub guid: Guid,
    /// Whether that pool (or the spare's or cache device's) is open here. Force does not help then.
    pub is_open_here: bool,
}

/// Why devices cannot become these vdevs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NewVdevError {
    /// No top-level vdev for ordinary data.
    #[error("no vdev for ordinary data is given")]
    NoData,
    /// Too few devices for a layout.
    #[error("{layout:?} needs at least {least} devices")]
    TooFew {
        /// The layout.
        layout: NewLayout,
        /// How many it needs.
        least: usize,
    },
    /// Too many devices for a layout.
    #[error("{layout:?} takes at most {most} devices")]
    TooMany {
        /// The layout.
        layout: NewLayout,
        /// How many it takes.
        most: usize,
    },
    /// RAID-Z has 1 to 3 parity columns.
    #[error("RAID-Z of {0} parity columns")]
    Parity(u8),
    /// Logs are single devices or mirrors.
    #[error("RAID-Z cannot hold intent logs")]
    RaidzLog,
    /// The device is below 64 MiB.
    #[error("{path} is too small")]
    TooSmall {
        /// Which.
        path: String,
    },
    /// One device is named twice.
    #[error("{path} is named twice")]
    Twice {
        /// Which.
        path: String,
    },
    /// A path that is not absolute.
    #[error("{path} is not an absolute path")]
    RelativePath {
        /// Which.
        path: String,
    },
    /// The sector asked for is out of bounds.
    #[error("sectors of 2^{0} bytes")]
    Ashift(u8),
    /// The sector asked for is smaller than the device's.
    #[error("{path} has sectors of {sector_bytes} bytes")]
    SectorTooLarge {
        /// Which.
        path: String,
        /// Its sector.
        sector_bytes: u32,
    },
    /// Devices are in use, or may be: every one of them.
    #[error("{} in use", .0.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>().join(", "))]
    InUse(Vec<(String, DeviceUse)>),
    /// Redundancy is mixed, or devices of one vdev are of different kinds or sizes.
    #[error("mismatched replication level")]
    Replication(Vec<ReplicationMismatch>),
}

/// The vdevs made of [`NewVdevs`].
#[derive(Debug, Clone)]
pub struct BuiltVdevs {
    /// Top-level vdevs with `id`, `guid`, `ashift`, `asize`, `metaslab_shift`; their objects are
    /// still to be made.
    pub tops: Vec<(VdevConfig, AllocationClass)>,
    /// Hot spares as the list of spares carries them.
    pub spares: Vec<VdevConfig>,
    /// Cache devices as the list of cache devices carries them.
    pub caches: Vec<VdevConfig>,
    /// The device of every leaf.
    pub devices: BTreeMap<Guid, Arc<dyn Device>>,
}

/// Who uses a device, by its labels. `None` if nobody does: it has no labels, its pool was
/// destroyed, or it never joined one.
pub fn find_use(device: &dyn Device, is_open_here: &dyn Fn(Guid) -> bool) -> Option<DeviceUse> {
    let labels = read_labels(device);
    let best: Option<&LeafLabel> = labels
        .iter()
        .filter_map(|label: &Result<LeafLabel, LabelFault>| label.as_ref().ok())
        .rev()
        .max_by_key(|label| (label.is_verified, label.txg));
    let label = best?;
    if label.state == LeafState::Destroyed {
        return None;
    }
    let name = label.config.raw_string("name").ok();
    let owner = if label.state.has_pool() {
        label.pool_guid
    } else {
        label.guid
    };
    Some(DeviceUse {
        state: label.state,
        pool: name.map(|name| name.to_string_lossy().into_owned()),
        pool_guid: label.pool_guid,
        guid: label.guid,
        is_open_here: is_open_here(owner),
    })
}

/// Checks devices and makes vdevs of them. `existing` are the top-level vdevs that the pool has with
/// the class of each (none for a new pool); numbering goes on behind them. `taken` are the guids in
/// use. `is_open_here` tells of a guid (of a pool, or of a spare or cache device) whether it is
/// open here.
///
/// # Errors
/// [`NewVdevError`]: the first group of faults met, in the order of the enum's cases but that layouts
/// come before devices.
pub fn build_vdevs(
    env: &Env,
    new: &NewVdevs,
    options: NewVdevOptions,
    create_txg: Txg,
    existing: &[(VdevConfig, AllocationClass)],
    taken: &BTreeSet<u64>,
    is_open_here: &dyn Fn(Guid) -> bool,
) -> Result<BuiltVdevs, NewVdevError> {
    check_layouts(new, existing)?;
    check_devices(new, options, is_open_here)?;
    if !options.force {
        let mismatches = check_replication(&new.tops, existing);
        if !mismatches.is_empty() {
            return Err(NewVdevError::Replication(mismatches));
        }
    }
    let mut guids = Guids {
        env,
        taken: taken.clone(),
    };
    let mut devices = BTreeMap::new();
    let mut tops = Vec::with_capacity(new.tops.len());
    for (id, top) in (existing.len() as u64..).zip(&new.tops) {
        let vdev = build_top(top, id, options, create_txg, &mut guids, &mut devices)?;
        tops.push((vdev, top.class));
    }
    let mut listed = |all: &[NewDevice], is_spare| {
        all.iter()
            .map(|device| {
                let vdev = VdevConfig {
                    is_spare,
                    ashift: u64::from(ashift_of(&[device], options)?),
                    ..leaf_of(device, guids.next())
                };
                devices.insert(vdev.guid, Arc::clone(&device.device));
                Ok(vdev)
            })
            .collect::<Result<Vec<_>, NewVdevError>>()
    };
    let (spares, caches) = (listed(&new.spares, true)?, listed(&new.caches, false)?);
    Ok(BuiltVdevs {
        tops,
        spares,
        caches,
        devices,
    })
}

/// Guids that are not 0 and stand nowhere else in the pool.
struct Guids<'a> {
    env: &'a Env,
    taken: BTreeSet<u64>,
}

impl Guids<'_> {
    fn next(&mut self) -> Guid {
        loop {
            let guid = random_u64(self.env);
            if guid != 0 && self.taken.insert(guid) {
                return Guid(guid);
            }
        }
    }
}

/// A random number.
#[must_use]
pub fn random_u64(env: &Env) -> u64 {
    let mut bytes = [0; 8];
    env.entropy.fill(&mut bytes);
    // The order is fixed, so that fixed dice give the same numbers on every machine.
    u64::from_le_bytes(bytes)
}

fn check_layouts(
    new: &NewVdevs,
    existing: &[(VdevConfig, AllocationClass)],
) -> Result<(), NewVdevError> {
    let is_data = |class: AllocationClass| class == AllocationClass::Normal;
    if existing.is_empty() && !new.tops.iter().any(|top| is_data(top.class)) {
        return Err(NewVdevError::NoData);
    }
    for top in &new.tops {
        let (least, most) = match top.layout {
            NewLayout::Single => (1, 1),
            NewLayout::Mirror => (2, millpond_vdev::CHILDREN_MAX),
            NewLayout::Raidz(parity @ 1..=3) => {
                if top.class == AllocationClass::Log {
                    return Err(NewVdevError::RaidzLog);
                }
                let most = usize::try_from(RAIDZ_CHILDREN_MAX).unwrap_or(usize::MAX);
                (usize::from(parity) + 1, most)
            }
            NewLayout::Raidz(parity) => return Err(NewVdevError::Parity(parity)),
        };
        let layout = top.layout;
        if top.devices.len() < least {
            return Err(NewVdevError::TooFew { layout, least });
        }
        if top.devices.len() > most {
            return Err(NewVdevError::TooMany { layout, most });
        }
    }
    Ok(())
}

fn check_devices(
    new: &NewVdevs,
    options: NewVdevOptions,
    is_open_here: &dyn Fn(Guid) -> bool,
) -> Result<(), NewVdevError> {
    if let Some(ashift) = options.ashift.filter(|ashift| !ASHIFT.contains(ashift)) {
        return Err(NewVdevError::Ashift(ashift));
    }
    let all: Vec<&NewDevice> = new
        .tops
        .iter()
        .flat_map(|top| &top.devices)
        .chain(&new.spares)
        .chain(&new.caches)
        .collect();
    let mut in_use = Vec::new();
    for (index, one) in all.iter().enumerate() {
        let path = one.path.clone();
        if !path.starts_with('/') {
            return Err(NewVdevError::RelativePath { path });
        }
        let is_same =
            |other: &&NewDevice| other.path == one.path || Arc::ptr_eq(&other.device, &one.device);
        if all.iter().take(index).any(is_same) {
            return Err(NewVdevError::Twice { path });
        }
        if LeafLayout::new(one.device.size_bytes()).is_none() {
            return Err(NewVdevError::TooSmall { path });
        }
        if let Some(used) = find_use(one.device.as_ref(), is_open_here)
            && (used.is_open_here || !options.force)
        {
            in_use.push((path, used));
        }
    }
    if in_use.is_empty() {
        Ok(())
    } else {
        Err(NewVdevError::InUse(in_use))
    }
}

/// The sector of a vdev over these devices: what was asked for, else the largest of theirs.
fn ashift_of(devices: &[&NewDevice], options: NewVdevOptions) -> Result<u8, NewVdevError> {
    let mut largest = *ASHIFT.start();
    for device in devices {
        let sector_bytes = device.device.sector_bytes();
        let own =
            u8::try_from(sector_bytes.next_power_of_two().trailing_zeros()).unwrap_or(u8::MAX);
        let is_fit = own <= options.ashift.unwrap_or(*ASHIFT.end());
        if !is_fit {
            return Err(NewVdevError::SectorTooLarge {
                path: device.path.clone(),
                sector_bytes,
            });
        }
        largest = largest.max(own);
    }
    Ok(options.ashift.unwrap_or(largest))
}

fn leaf_of(device: &NewDevice, guid: Guid) -> VdevConfig {
    let kind = if device.is_block_device {
        VdevType::Disk
    } else {
        VdevType::File
    };
    VdevConfig {
        path: Some(device.path.clone()),
        devid: device.devid.clone(),
        phys_path: device.phys_path.clone(),
        whole_disk: device.is_block_device.then_some(device.whole_disk),
        ..VdevConfig::new(kind, guid)
    }
}

fn build_top(
    top: &NewTop,
    id: u64,
    options: NewVdevOptions,
    create_txg: Txg,
    guids: &mut Guids<'_>,
    devices: &mut BTreeMap<Guid, Arc<dyn Device>>,
) -> Result<VdevConfig, NewVdevError> {
    let group_guid = match top.layout {
        NewLayout::Single => None,
        _ => Some(guids.next()),
    };
    let mut leaves = Vec::with_capacity(top.devices.len());
    let mut least_bytes = u64::MAX;
    for (place, device) in (0u64..).zip(&top.devices) {
        let vdev = VdevConfig {
            id: Some(place),
            create_txg: Some(create_txg),
            ..leaf_of(device, guids.next())
        };
        devices.insert(vdev.guid, Arc::clone(&device.device));
        leaves.push(vdev);
        let layout = LeafLayout::new(device.device.size_bytes());
        least_bytes = least_bytes.min(layout.map_or(0, LeafLayout::asize_bytes));
    }
    let all: Vec<&NewDevice> = top.devices.iter().collect();
    let ashift = ashift_of(&all, options)?;
    let asize_bytes = match top.layout {
        NewLayout::Raidz(_) => least_bytes.saturating_mul(leaves.len() as u64),
        NewLayout::Single | NewLayout::Mirror => least_bytes,
    };
    let mut vdev = match (top.layout, group_guid) {
        (NewLayout::Mirror, Some(guid)) => VdevConfig::new(VdevType::Mirror, guid),
        (NewLayout::Raidz(parity), Some(guid)) => VdevConfig {
            nparity: Some(u64::from(parity)),
            ..VdevConfig::new(VdevType::Raidz, guid)
        },
        // A device by itself is its own top-level vdev.
        _ => leaves.remove(0),
    };
    vdev.id = Some(id);
    vdev.create_txg = Some(create_txg);
    vdev.ashift = u64::from(ashift);
    vdev.asize_bytes = asize_bytes;
    vdev.metaslab_shift = u64::from(metaslab_shift_for(asize_bytes));
    vdev.is_log = top.class == AllocationClass::Log;
    vdev.children = leaves;
    Ok(vdev)
}

#[cfg(test)]
mod tests;
