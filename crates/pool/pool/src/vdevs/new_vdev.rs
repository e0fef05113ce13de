//! Builds new vdevs from devices: checks, sizes, guids.
//!
//! This module writes nothing. Refusals are values; upper layers turn them into messages.
//!
//! Page `docs/format/vdev-tree.md`, "New vdevs".

use crate::import::{LabelFault, LeafLabel, LeafState, read_labels};
use crate::vdevs::replication::{ReplicationMismatch, check_replication};
use millpond_device::Device;
use millpond_env::sync::Arc;
use millpond_env::{Env, Tunable};
use millpond_ondisk::{Guid, LeafLayout, Txg};
use millpond_vdev::{
    AllocationClass, DraidGeometry, RAIDZ_CHILDREN_MAX, VdevConfig, VdevType, metaslab_shift_for,
};
use std::collections::{BTreeMap, BTreeSet};

/// The feature of dRAID.
pub(crate) const DRAID: &str = "org.openzfs:draid";
/// OpenZFS does not open a smaller dRAID.
const DRAID_BYTES_MIN: u64 = 64 << 20;
/// The range of sector sizes of a vdev, as log2 of bytes.
const ASHIFT: std::ops::RangeInclusive<u8> = 9..=16;

/// A device for a new vdev.
#[derive(Debug, Clone)]
pub struct NewDevice {
    /// Its absolute path. The pool stores it and looks for the device there first.
    pub path: String,
    /// The device, open for writing.
    pub device: Arc<dyn Device>,
    /// Whether it is a block device; otherwise it is an image file.
    pub is_block_device: bool,
    /// Whether it is a whole disk that was partitioned for this pool. Only for block devices.
    pub whole_disk: bool,
    /// The udev identity of a disk.
    pub devid: Option<String>,
    /// The udev physical path of a disk.
    pub phys_path: Option<String>,
}

impl NewDevice {
    /// The type of its leaf vdev.
    pub(crate) fn vdev_type(&self) -> VdevType {
        match self.is_block_device {
            true => VdevType::Disk,
            false => VdevType::File,
        }
    }
    /// Describes an image file.
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

/// The layout of the devices in a new top-level vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum NewLayout {
    /// A single device.
    Single,
    /// A mirror: each device holds all data.
    Mirror,
    /// RAID-Z with this many parity columns, 1 to 3.
    Raidz(u8),
    /// dRAID: groups spread over all devices.
    Draid(DraidShape),
}

/// The groups of a new dRAID vdev. Page `docs/format/draid.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DraidShape {
    /// Parity columns of a group, 1 to 3.
    pub parity: u8,
    /// Data columns of a group.
    pub data: u8,
    /// Distributed spares, up to 100.
    pub spares: u8,
}

impl DraidShape {
    /// The geometry with this many devices.
    ///
    /// # Errors
    /// A message that says what does not fit.
    pub fn geometry(self, devices: usize) -> Result<DraidGeometry, &'static str> {
        let [parity, data, spares] = [self.parity, self.data, self.spares].map(u64::from);
        DraidGeometry::with_fewest_groups(devices, parity, data, spares)
    }
}

/// A new top-level vdev.
#[derive(Debug, Clone)]
pub struct NewTop {
    /// The layout of its devices.
    pub layout: NewLayout,
    /// Its allocation class.
    pub class: AllocationClass,
    /// The devices, in order.
    pub devices: Vec<NewDevice>,
}

impl NewTop {
    /// A vdev of the normal class.
    #[must_use]
    pub fn normal(layout: NewLayout, devices: Vec<NewDevice>) -> Self {
        Self {
            layout,
            class: AllocationClass::Normal,
            devices,
        }
    }
}

/// All vdevs to add to a pool in one operation.
#[derive(Debug, Clone, Default)]
pub struct NewVdevs {
    /// Top-level vdevs, in the order of their ids.
    pub tops: Vec<NewTop>,
    /// Hot spares.
    pub spares: Vec<NewDevice>,
    /// Cache devices.
    pub caches: Vec<NewDevice>,
}

impl NewVdevs {
    /// Top-level vdevs alone.
    #[must_use]
    pub fn of(tops: Vec<NewTop>) -> Self {
        Self {
            tops,
            ..Self::default()
        }
    }
}

/// Options that the user specified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NewVdevOptions {
    /// log2 of the sector size, if specified.
    pub ashift: Option<u8>,
    /// Accept devices that another pool may be using, and mixed redundancy.
    pub force: bool,
}

/// The user of a device, according to its labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceUse {
    /// The state of its pool, or its role as spare or cache device.
    pub state: LeafState,
    /// The pool's name, if the label has one.
    pub pool: Option<String>,
    /// The pool's guid; 0 for spares and cache devices.
    pub pool_guid: Guid,
    /// The leaf's guid.
    pub guid: Guid,
    /// Whether that pool, spare or cache device is open in this program. `force` does not override this.
    pub is_open_here: bool,
}

/// Why devices cannot form these vdevs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NewVdevError {
    /// There is no top-level vdev for ordinary data.
    #[error("no vdev for ordinary data is given")]
    NoData,
    /// A layout has too few devices.
    #[error("{layout:?} needs at least {least} devices")]
    TooFew {
        /// The layout.
        layout: NewLayout,
        /// The number of devices it needs.
        least: usize,
    },
    /// A layout has too many devices.
    #[error("{layout:?} takes at most {most} devices")]
    TooMany {
        /// The layout.
        layout: NewLayout,
        /// The number of devices it accepts.
        most: usize,
    },
    /// RAID-Z with other than 1 to 3 parity columns.
    #[error("RAID-Z of {0} parity columns")]
    Parity(u8),
    /// A log vdev must be a single device or a mirror.
    #[error("RAID-Z cannot hold intent logs")]
    RaidzLog,
    /// A log vdev must be a single device or a mirror.
    #[error("dRAID cannot hold intent logs")]
    DraidLog,
    /// The pool does not have the feature of dRAID.
    #[error("pool must be upgraded to add these vdevs")]
    DraidDisabled,
    /// The pool's version is too low.
    #[error(transparent)]
    NeedsVersion(super::of_versions::NewerDevices),
    /// The groups of a dRAID do not fit its devices.
    #[error("dRAID of {devices} devices: {reason}")]
    Draid {
        /// How many devices there are.
        devices: usize,
        /// What does not fit.
        reason: &'static str,
    },
    /// A device is smaller than 64 MiB, or those of a dRAID hold less than that together.
    #[error("{path} is too small")]
    TooSmall {
        /// The device.
        path: String,
    },
    /// A device is listed twice.
    #[error("{path} is named twice")]
    Twice {
        /// The device.
        path: String,
    },
    /// A path is not absolute.
    #[error("{path} is not an absolute path")]
    RelativePath {
        /// The path.
        path: String,
    },
    /// The requested sector size is out of range.
    #[error("sectors of 2^{0} bytes")]
    Ashift(u8),
    /// The requested sector size is smaller than the device's.
    #[error("{path} has sectors of {sector_bytes} bytes")]
    SectorTooLarge {
        /// The device.
        path: String,
        /// The device's sector size in bytes.
        sector_bytes: u32,
    },
    /// Devices are or may be in use; lists all of them.
    #[error("{} in use", .0.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>().join(", "))]
    InUse(Vec<(String, DeviceUse)>),
    /// Redundancy is mixed, or the devices of a vdev differ in kind or size.
    #[error("mismatched replication level")]
    Replication(Vec<ReplicationMismatch>),
}

/// The vdevs built from [`NewVdevs`].
#[derive(Debug, Clone)]
pub struct BuiltVdevs {
    /// Top-level vdevs with `id`, `guid`, `ashift`, `asize`, `metaslab_shift`. Their objects are created
    /// later.
    pub tops: Vec<(VdevConfig, AllocationClass)>,
    /// Hot spares, in the form of the list of spares.
    pub spares: Vec<VdevConfig>,
    /// Cache devices, in the form of the list of cache devices.
    pub caches: Vec<VdevConfig>,
    /// The device of every leaf.
    pub devices: BTreeMap<Guid, Arc<dyn Device>>,
}

/// Finds the user of a device from its labels.
///
/// `None` if the device is unused: it has no labels, its pool was destroyed, or it never joined a pool.
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

/// Checks devices and builds vdevs from them.
///
/// - `existing`: the pool's top-level vdevs with their allocation classes (none for a new pool). New vdevs
///   get the ids after them.
/// - `taken`: the guids in use.
/// - `is_open_here`: returns whether a guid (of a pool, spare or cache device) is open in this program.
///
/// # Errors
/// [`NewVdevError`]: the first kind of error found. The checks run in the order of the enum's variants,
/// except that layouts are checked before devices.
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
    let mut distributed = vec![];
    for (id, top) in (existing.len() as u64..).zip(&new.tops) {
        let vdev = build_top(top, id, options, create_txg, &mut guids, &mut devices)?;
        distributed.extend(distributed_spares(&vdev, &mut guids));
        tops.push((vdev, top.class));
    }
    let mut listed = |all: &[NewDevice], is_spare| {
        all.iter()
            .map(|device| {
                let vdev = VdevConfig {
                    is_spare,
                    ashift: u64::from(ashift_of(&[device], options, guids.env)?),
                    ..leaf_of(device, guids.next())
                };
                devices.insert(vdev.guid, Arc::clone(&device.device));
                Ok(vdev)
            })
            .collect::<Result<Vec<_>, NewVdevError>>()
    };
    let (mut spares, caches) = (listed(&new.spares, true)?, listed(&new.caches, false)?);
    spares.extend(distributed);
    Ok(BuiltVdevs {
        tops,
        spares,
        caches,
        devices,
    })
}

/// Generates guids that are not 0 and unique in the pool.
pub(crate) struct Guids<'a> {
    pub(crate) env: &'a Env,
    pub(crate) taken: BTreeSet<u64>,
}

impl Guids<'_> {
    pub(crate) fn next(&mut self) -> Guid {
        loop {
            let guid = random_u64(self.env);
            if guid != 0 && self.taken.insert(guid) {
                return Guid(guid);
            }
        }
    }
}

/// Returns a random number from the pool's entropy source.
#[must_use]
pub fn random_u64(env: &Env) -> u64 {
    let mut bytes = [0; 8];
    env.entropy.fill(&mut bytes);
    // The byte order is fixed, so that a seeded RNG yields the same numbers on every machine.
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
            NewLayout::Draid(_) if top.class == AllocationClass::Log => {
                return Err(NewVdevError::DraidLog);
            }
            NewLayout::Draid(shape) => {
                let devices = top.devices.len();
                let fits = shape.geometry(devices);
                fits.map_err(|reason| NewVdevError::Draid { devices, reason })?;
                (devices, devices)
            }
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

pub(crate) fn check_devices(
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

/// The ashift of a vdev of these devices: the specified one, else the largest sector of the devices.
fn ashift_of(all: &[&NewDevice], options: NewVdevOptions, env: &Env) -> Result<u8, NewVdevError> {
    let of_files = match env.tunables.get(Tunable::FilePhysicalAshift) {
        own if own <= env.tunables.get(Tunable::VdevMaxAutoAshift) => {
            u8::try_from(own).unwrap_or(0)
        }
        _ => 0,
    };
    let mut largest = *ASHIFT.start();
    for device in all {
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
        let preferred = if device.is_block_device { 0 } else { of_files };
        largest = largest.max(own).max(preferred);
    }
    Ok(options.ashift.unwrap_or(largest))
}

pub(crate) fn leaf_of(device: &NewDevice, guid: Guid) -> VdevConfig {
    let kind = device.vdev_type();
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
    let ashift = ashift_of(&all, options, guids.env)?;
    let draid = match top.layout {
        NewLayout::Draid(shape) => {
            let devices = leaves.len();
            let geometry = shape.geometry(devices);
            Some(geometry.map_err(|reason| NewVdevError::Draid { devices, reason })?)
        }
        _ => None,
    };
    let asize_bytes = match (top.layout, &draid) {
        (_, Some(geometry)) => {
            let asize_bytes = geometry.asize_from_children(least_bytes).unwrap_or(0);
            if asize_bytes < DRAID_BYTES_MIN {
                let path = top.devices.first().map(|one| one.path.clone());
                return Err(NewVdevError::TooSmall {
                    path: path.unwrap_or_default(),
                });
            }
            asize_bytes
        }
        (NewLayout::Raidz(_), _) => least_bytes.saturating_mul(leaves.len() as u64),
        _ => least_bytes,
    };
    let mut vdev = match (top.layout, group_guid) {
        (NewLayout::Mirror, Some(guid)) => VdevConfig::new(VdevType::Mirror, guid),
        (NewLayout::Raidz(parity), Some(guid)) => VdevConfig {
            nparity: Some(u64::from(parity)),
            ..VdevConfig::new(VdevType::Raidz, guid)
        },
        (NewLayout::Draid(_), Some(guid)) => VdevConfig {
            nparity: draid.as_ref().map(DraidGeometry::parity),
            draid_ndata: draid.as_ref().map(DraidGeometry::data),
            draid_nspares: draid.as_ref().map(DraidGeometry::spares),
            draid_ngroups: draid.as_ref().map(DraidGeometry::groups),
            ..VdevConfig::new(VdevType::Draid, guid)
        },
        // A single device is its own top-level vdev.
        _ => leaves.remove(0),
    };
    vdev.id = Some(id);
    vdev.create_txg = Some(create_txg);
    vdev.ashift = u64::from(ashift);
    vdev.asize_bytes = asize_bytes;
    let metaslabs_min = guids.env.tunables.get(Tunable::VdevMinMetaslabs);
    vdev.metaslab_shift = u64::from(metaslab_shift_for(asize_bytes, metaslabs_min));
    vdev.is_log = top.class == AllocationClass::Log;
    vdev.children = leaves;
    Ok(vdev)
}

/// The distributed spares of a new dRAID vdev, in the form of the list of spares. They have no device.
fn distributed_spares(top: &VdevConfig, guids: &mut Guids<'_>) -> Vec<VdevConfig> {
    let parity = top.nparity.unwrap_or(0);
    let id = top.id.unwrap_or(0);
    let spare = |number: u64| VdevConfig {
        path: Some(format!("draid{parity}-{id}-{number}")),
        top_guid: Some(top.guid),
        spare_id: Some(number),
        whole_disk: Some(true),
        is_spare: true,
        ashift: top.ashift,
        ..VdevConfig::new(VdevType::DraidSpare, guids.next())
    };
    (0..top.draid_nspares.unwrap_or(0)).map(spare).collect()
}

#[cfg(test)]
mod tests;
