//! Checks before anything is written: devices, their current use, and whether the layout is valid.

use crate::change::{change_error, device_problem};
use millpond_control::{
    ChangeError, DeviceFacts, DeviceInUse, DeviceProblem, NewDevices, PoolChange,
};
use millpond_device::{Device, DeviceError, FileDevice};
use millpond_engine::View;
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_ondisk::{Guid, Txg};
use millpond_pool::import::LeafState;
use millpond_pool::{
    CreateError, NewDevice, NewTop, NewVdevOptions, NewVdevs, build_vdevs, check_replication,
    clear_labels, find_use,
};
use millpond_vdev::{AllocationClass, VdevConfig, VdevType};
use std::collections::BTreeSet;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Access to the pools of this system.
pub(crate) trait Around {
    /// Whether this pool is open, or the next command would open it.
    fn is_open(&self, pool: Guid) -> bool;
    /// The name of a pool that a spare or cache device belongs to: of `first`, if it is one of several.
    fn owner_of(&self, guid: Guid, is_spare: bool, first: Option<&str>) -> Option<String>;
    /// The top-level vdevs of a pool with their classes.
    fn tops_of(&self, pool: &str) -> Result<Vec<(VdevConfig, AllocationClass)>, ChangeError>;
}

/// Makes all checks that need no write. `pool` is the pool that the devices are added to.
pub(crate) fn check(
    around: &dyn Around,
    devices: &NewDevices,
    pool: Option<&str>,
) -> Result<(), ChangeError> {
    check_use(around, devices, pool)?;
    let existing = match pool {
        Some(name) => around.tops_of(name)?,
        None => {
            let is_data = |class| class == AllocationClass::Normal;
            if !devices.tops.iter().any(|top| is_data(top.class)) {
                return Err(ChangeError::NoData);
            }
            vec![]
        }
    };
    if !devices.may_mix_redundancy {
        let tops = open_tops(devices, open_to_look)?;
        let mismatches = check_replication(&tops, &existing);
        if !mismatches.is_empty() {
            return Err(ChangeError::Replication(mismatches));
        }
    }
    let is_other = |ashift| {
        let mut known = existing.iter().map(|(top, _)| top.ashift);
        known.any(|known| known != 0 && known != u64::from(ashift))
    };
    if !devices.may_mix_sectors && devices.ashift.is_some_and(is_other) {
        return Err(ChangeError::SectorSizes);
    }
    Ok(())
}

/// Like [`check`], for a dry run: also refuses what would only be refused when the vdevs are made, such as devices that are
/// too small.
pub(crate) fn check_all(
    around: &dyn Around,
    devices: &NewDevices,
    pool: Option<&str>,
) -> Result<(), ChangeError> {
    check(around, devices, pool)?;
    let existing = match pool {
        Some(name) => around.tops_of(name)?,
        None => vec![],
    };
    let (new, options) = new_vdevs(devices, open_to_look)?;
    let none = BTreeSet::new();
    let env = Env::real();
    let built = build_vdevs(&env, &new, options, Txg(0), &existing, &none, &|_| false);
    built.map_err(CreateError::from)?;
    Ok(())
}

/// Opens devices for new vdevs. Mixed redundancy and devices in use are judged by [`check`].
pub(crate) fn new_vdevs(
    devices: &NewDevices,
    open: fn(&str) -> Result<NewDevice, ChangeError>,
) -> Result<(NewVdevs, NewVdevOptions), ChangeError> {
    let vdevs = NewVdevs {
        tops: open_tops(devices, open)?,
        spares: open_all(&devices.spares, open)?,
        caches: open_all(&devices.caches, open)?,
    };
    let options = NewVdevOptions {
        ashift: devices.ashift,
        force: true,
    };
    Ok((vdevs, options))
}

/// How a device is used, according to its labels. `None` if it is free, or if its pool was destroyed or is
/// unknown. A spare of several pools is one of `pool`, if that is one of them.
fn user_of(
    around: &dyn Around,
    path: &str,
    pool: Option<&str>,
) -> Result<Option<DeviceInUse>, ChangeError> {
    let device = open_to_look(path)?;
    let Some(found) = find_use(device.device.as_ref(), &|_| false) else {
        return Ok(None);
    };
    let name = found.pool.clone().unwrap_or_default();
    Ok(match found.state {
        LeafState::Active if around.is_open(found.pool_guid) => Some(DeviceInUse::Active(name)),
        LeafState::Active => Some(DeviceInUse::PotentiallyActive(name)),
        LeafState::Exported => Some(DeviceInUse::Exported(name)),
        LeafState::Spare => (around.owner_of(found.guid, true, pool)).map(DeviceInUse::Spare),
        LeafState::Cache => (around.owner_of(found.guid, false, None)).map(DeviceInUse::Cache),
        LeafState::Destroyed => None,
    })
}

fn can_be_taken(by: &DeviceInUse) -> bool {
    matches!(
        by,
        DeviceInUse::Exported(_) | DeviceInUse::PotentiallyActive(_)
    )
}

/// Checks that the devices are free. Several pools may share a spare.
pub(crate) fn check_use(
    around: &dyn Around,
    devices: &NewDevices,
    pool: Option<&str>,
) -> Result<(), ChangeError> {
    let mut used = vec![];
    let mut can_be_forced = true;
    let mut seen = BTreeSet::new();
    let mut is_listed = false;
    let is_twice = !devices.paths().all(|path| seen.insert(path));
    for path in devices.paths() {
        let Some(by) = user_of(around, path, pool)? else {
            continue;
        };
        if let DeviceInUse::Spare(owner) = &by
            && devices.may_take_own_spares
            && pool == Some(owner)
        {
            continue;
        }
        if let DeviceInUse::Spare(owner) = &by
            && devices.spares.contains(path)
        {
            is_listed |= pool == Some(owner);
            continue;
        }
        if !(devices.may_take_used && can_be_taken(&by)) {
            can_be_forced &= !devices.may_take_used;
            used.push((path.clone(), by));
        }
    }
    if used.is_empty() {
        return match is_twice || is_listed {
            true => Err(ChangeError::Twice),
            false => Ok(()),
        };
    }
    Err(ChangeError::InUse {
        devices: used,
        can_be_forced,
    })
}

/// Checks that the guid that a pool is to get is free: imported pools and vdevs are told apart by theirs.
pub(crate) fn check_new_guid(
    around: &dyn Around,
    change: &PoolChange,
    pool: &str,
) -> Result<(), ChangeError> {
    fn has(vdev: &VdevConfig, guid: Guid) -> bool {
        vdev.guid == guid || vdev.children.iter().any(|child| has(child, guid))
    }
    let PoolChange::Reguid { guid: Some(guid) } = change else {
        return Ok(());
    };
    let wanted = Guid(*guid);
    if around.is_open(wanted)
        || around
            .tops_of(pool)?
            .iter()
            .any(|(top, _)| has(top, wanted))
    {
        return Err(ChangeError::Failed(format!(
            "guid {guid} is in use by an imported pool; give another one"
        )));
    }
    Ok(())
}

/// Checks whether the labels of a device may be wiped.
pub(crate) fn check_clearing(
    around: &dyn Around,
    path: &str,
    force: bool,
) -> Result<(), ChangeError> {
    let Some(by) = user_of(around, path, None)? else {
        return Ok(());
    };
    let can_be_forced = can_be_taken(&by);
    if force && can_be_forced {
        return Ok(());
    }
    Err(ChangeError::InUse {
        devices: vec![(path.to_owned(), by)],
        can_be_forced,
    })
}

/// Wipes the labels of a device.
pub(crate) fn clear(path: &str) -> Result<(), ChangeError> {
    let device = millpond_engine::open_device(Path::new(path)).map_err(change_error)?;
    let cleared = clear_labels(device.device.as_ref());
    let cleared = cleared.map_err(|error| ChangeError::Failed(error.to_string()))?;
    // Those of a detached device open no pool, but count here.
    match cleared.labels {
        0 => Err(ChangeError::NoLabel),
        _ => Ok(()),
    }
}

/// The top-level vdevs of a pool with their classes.
pub(crate) fn tops_of(pool: &View) -> Vec<(VdevConfig, AllocationClass)> {
    let topology = pool.inner().store().topology();
    let tops = pool.inner().assembly().root.children.clone();
    (0u32..)
        .map(millpond_ondisk::VdevId)
        .zip(tops)
        .map(|(id, top)| {
            let node = topology.tree.top(id);
            let class = match node {
                _ if top.is_log => AllocationClass::Log,
                Some(node) => node.class,
                None => AllocationClass::Normal,
            };
            (top, class)
        })
        .collect()
}

pub(crate) fn facts(path: &str) -> Result<DeviceFacts, DeviceProblem> {
    let to_error = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => DeviceProblem::Missing,
        _ => DeviceProblem::Unusable(error.to_string()),
    };
    let metadata = std::fs::metadata(path).map_err(to_error)?;
    let is_block_device = metadata.file_type().is_block_device();
    if !is_block_device && !metadata.is_file() {
        return Err(DeviceProblem::WrongKind);
    }
    let size_bytes = if is_block_device {
        open_to_look(path)
            .map_err(|error| match error {
                ChangeError::Device { problem, .. } => problem,
                _ => DeviceProblem::WrongKind,
            })?
            .device
            .size_bytes()
    } else {
        metadata.len()
    };
    Ok(DeviceFacts {
        is_file: !is_block_device,
        size_bytes,
    })
}

/// Opens a device read-only, to inspect it.
pub(crate) fn open_to_look(path: &str) -> Result<NewDevice, ChangeError> {
    let to_error = |error: DeviceError| ChangeError::Device {
        path: path.to_owned(),
        problem: device_problem(error),
    };
    let options = millpond_device::OpenOptions {
        write: false,
        refuse_if_live: false,
    };
    let device = FileDevice::open(Path::new(path), options).map_err(to_error)?;
    let is_block_device = device.is_block_device();
    let device: Arc<dyn Device> = Arc::new(device);
    Ok(NewDevice {
        is_block_device,
        ..NewDevice::file(path, device)
    })
}

pub(crate) fn open_to_write(path: &str) -> Result<NewDevice, ChangeError> {
    millpond_engine::open_device(Path::new(path)).map_err(change_error)
}

/// Takes those spares out of `devices` that other pools list, and returns them as their labels describe them.
pub(crate) fn take_shared_spares(devices: &mut NewDevices) -> Vec<VdevConfig> {
    let mut shared = vec![];
    devices.spares.retain(|path| {
        let Ok(opened) = open_to_look(path) else {
            return true;
        };
        let used = find_use(opened.device.as_ref(), &|_| false);
        let Some(used) = used.filter(|used| used.state == LeafState::Spare) else {
            return true;
        };
        let kind = match opened.is_block_device {
            true => VdevType::Disk,
            false => VdevType::File,
        };
        let sector_bytes = opened.device.sector_bytes().next_power_of_two();
        shared.push(VdevConfig {
            path: Some(opened.path),
            is_spare: true,
            whole_disk: opened.is_block_device.then_some(false),
            ashift: u64::from(sector_bytes.trailing_zeros().max(9)),
            ..VdevConfig::new(kind, used.guid)
        });
        false
    });
    shared
}

/// The new top-level vdevs with their devices opened.
pub(super) fn open_tops(
    devices: &NewDevices,
    open: fn(&str) -> Result<NewDevice, ChangeError>,
) -> Result<Vec<NewTop>, ChangeError> {
    let opened = devices.tops.iter().map(|top| {
        Ok(NewTop {
            layout: top.layout,
            class: top.class,
            devices: open_all(&top.paths, open)?,
        })
    });
    opened.collect()
}

pub(super) fn open_all(
    paths: &[String],
    open: fn(&str) -> Result<NewDevice, ChangeError>,
) -> Result<Vec<NewDevice>, ChangeError> {
    paths.iter().map(|path| open(path)).collect()
}
