//! [`Change`] carried out in this process: the pool is opened for the command, changed and left as it
//! was found, exported or not.

use super::{
    Change, ChangeError, ChangeFailure, Changed, DatasetChange, DeviceFacts, DeviceInUse,
    DeviceProblem, NewDevices, NewPoolRequest, PoolChange,
};
use crate::control::RequestedFeatures;
use crate::control::local::compatibility::requested;
use crate::live::{
    FeatureChoice, LivePool, PoolPlan, PoolSetting, SCAN_FOR_WRITING, SettingTime, WriteOptions,
};
use crate::{DatasetError, Error, ObjectId, OpenOptions, Pool, Search};
use millpond_device::{Device, DeviceError, FileDevice};
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_ondisk::Guid;
use millpond_pool::import::{ImportCondition, LeafState, PoolCandidate, PoolState};
use millpond_pool::live::{
    CreateError, HistoryCommand, NewDevice, NewTop, NewVdevError, NewVdevOptions, NewVdevs,
    check_replication, clear_labels, find_use,
};
use millpond_pool::{OpenError, PoolError};
use millpond_vdev::{AllocationClass, VdevConfig};
use std::collections::BTreeSet;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

mod apply;

/// Txgs that are written after something was destroyed, to give its space back before the pool is left.
/// What is left then goes on when the pool is opened again.
const FREEING_TXGS_MAX: usize = 64;

/// Pools that a search finds, opened for each command.
#[derive(Debug)]
pub struct LocalChanges {
    search: Search,
    hostname: Option<String>,
    user: u64,
}

impl LocalChanges {
    /// For the pools of a search; `hostname` is this system's, for labels and history, and `user` the
    /// number of who gives the commands.
    #[must_use]
    pub fn new(search: Search, hostname: Option<String>, user: u64) -> Self {
        Self {
            search,
            hostname,
            user,
        }
    }

    fn writing(&self) -> WriteOptions {
        WriteOptions {
            hostid: self.search.hostid,
            hostname: self.hostname.clone(),
            ..WriteOptions::default()
        }
    }

    /// Opens a pool for changes; true if its labels said that nobody has it.
    fn open(&self, name: &str) -> Result<(LivePool, bool), ChangeError> {
        let candidates = self.search.pools_with(SCAN_FOR_WRITING);
        let candidate = match find(&candidates, name) {
            Ok(candidate) => candidate.clone(),
            // Found only by who does not want to write: somebody else has its devices.
            Err(_) if find(&self.search.pools(), name).is_ok() => return Err(ChangeError::Busy),
            Err(error) => return Err(error),
        };
        // The locks of other pools' devices go here.
        drop(candidates);
        self.refuse_held_elsewhere(&candidate)?;
        let was_exported = candidate.state == PoolState::Exported;
        let options = OpenOptions::default();
        let opened = LivePool::open_candidate(&Env::real(), &candidate, &options, &self.writing());
        let pool = opened.map_err(|error| match error {
            Error::Open { error, .. } => match *error {
                OpenError::ReadOnly(why) => ChangeError::ReadOnlyPool(why.to_string()),
                other => ChangeError::Failed(other.to_string()),
            },
            other => other.into(),
        })?;
        Ok((pool, was_exported))
    }

    /// Systems without a host id are told apart by their names.
    fn refuse_held_elsewhere(&self, candidate: &PoolCandidate) -> Result<(), ChangeError> {
        for condition in &candidate.conditions {
            let ImportCondition::HostidMismatch {
                hostid, hostname, ..
            } = condition
            else {
                continue;
            };
            let is_ours = *hostid == 0 && *hostname == self.hostname;
            if !is_ours {
                let hostname = hostname.clone();
                return Err(ChangeError::HeldElsewhere { hostname });
            }
        }
        Ok(())
    }

    fn history(&self, command: &str) -> HistoryCommand {
        HistoryCommand {
            command: command.to_owned(),
            user: self.user,
        }
    }

    fn read(&self, candidates: &[PoolCandidate], name: &str) -> Result<Pool, ChangeError> {
        let candidate = find(candidates, name)?;
        Ok(Pool::open_candidate(candidate, &OpenOptions::default())?)
    }

    /// Everything that can be said before anything is written. `pool` is the one that is added to.
    fn check(&self, devices: &NewDevices, pool: Option<&str>) -> Result<(), ChangeError> {
        let candidates = self.search.pools();
        self.check_use(&candidates, devices, pool)?;
        let existing = match pool {
            Some(name) => tops_of(&self.read(&candidates, name)?),
            None => {
                let is_data = |class| class == AllocationClass::Normal;
                if !devices.tops.iter().any(|top| is_data(top.class)) {
                    return Err(ChangeError::NoData);
                }
                vec![]
            }
        };
        if !devices.may_mix_redundancy {
            let mut tops = vec![];
            for top in &devices.tops {
                tops.push(NewTop {
                    layout: top.layout,
                    class: top.class,
                    devices: open_all(&top.paths, open_to_look)?,
                });
            }
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

    /// Who uses the devices. Spares may serve several pools in principle.
    fn check_use(
        &self,
        candidates: &[PoolCandidate],
        devices: &NewDevices,
        pool: Option<&str>,
    ) -> Result<(), ChangeError> {
        let mut used = vec![];
        let mut can_be_forced = true;
        let mut seen = BTreeSet::new();
        let is_twice = !devices.paths().all(|path| seen.insert(path));
        for path in devices.paths() {
            let device = open_to_look(path)?;
            let Some(found) = find_use(device.device.as_ref(), &|_| false) else {
                continue;
            };
            let name = found.pool.clone().unwrap_or_default();
            let is_known = candidates.iter().any(|candidate| {
                candidate.guid == found.pool_guid && candidate.state == PoolState::Active
            });
            let by = match found.state {
                LeafState::Active if is_known => DeviceInUse::Active(name),
                LeafState::Active => DeviceInUse::PotentiallyActive(name),
                LeafState::Exported => DeviceInUse::Exported(name),
                LeafState::Spare => {
                    // Of a pool that is gone: free.
                    let Some(owner) = owner_of(candidates, found.guid, true) else {
                        continue;
                    };
                    if devices.spares.contains(path) {
                        return Err(match pool {
                            Some(pool) if pool == owner => ChangeError::Twice,
                            _ => ChangeError::NotBuilt("a hot spare of several pools".into()),
                        });
                    }
                    DeviceInUse::Spare(owner)
                }
                LeafState::Cache => {
                    let Some(owner) = owner_of(candidates, found.guid, false) else {
                        continue;
                    };
                    DeviceInUse::Cache(owner)
                }
                LeafState::Destroyed => continue,
            };
            let is_free = devices.may_take_used
                && matches!(
                    by,
                    DeviceInUse::Exported(_) | DeviceInUse::PotentiallyActive(_)
                );
            if !is_free {
                can_be_forced &= !devices.may_take_used;
                used.push((path.clone(), by));
            }
        }
        if used.is_empty() {
            return match is_twice {
                true => Err(ChangeError::Twice),
                false => Ok(()),
            };
        }
        Err(ChangeError::InUse {
            devices: used,
            can_be_forced,
        })
    }

    /// Leaves the pool as it was found.
    fn close(&self, pool: LivePool, was_exported: bool) -> Result<(), ChangeError> {
        if was_exported {
            return Ok(pool.export()?);
        }
        // What was done is committed; without its last handle the pool's devices are let go.
        Ok(())
    }
}

impl Change for LocalChanges {
    fn device(&self, path: &str) -> Result<DeviceFacts, DeviceProblem> {
        facts(path)
    }

    fn create_pool(&self, request: &NewPoolRequest, command: &str) -> Result<(), ChangeError> {
        let name = request.name.as_str();
        millpond_pool::live::check_pool_name(name).map_err(|reason| ChangeError::PoolName(reason.into()))?;
        let mut features = request.features.clone();
        for (name, value) in &request.properties {
            PoolSetting::parse(name, value, SettingTime::Creation)?;
            if name == "compatibility" && features == FeatureChoice::Default {
                features = compatible_features(value)?;
            }
        }
        self.check(&request.devices, None)?;
        if request.only_check {
            return Ok(());
        }
        let found = self.search.pools();
        let is_there = |pool: &PoolCandidate| pool.name == name && pool.state == PoolState::Active;
        if found.iter().any(is_there) {
            return Err(ChangeError::PoolExists);
        }
        drop(found);
        // What was not to be taken or mixed has been refused above.
        let mut plan = PoolPlan::new(name).force().writing(self.writing());
        plan = plan.features(features);
        if let Some(ashift) = request.devices.ashift {
            plan = plan.ashift(ashift);
        }
        for top in &request.devices.tops {
            plan = plan.top(top.class, top.layout, &top.paths);
        }
        for spare in &request.devices.spares {
            plan = plan.spare(spare);
        }
        for cache in &request.devices.caches {
            plan = plan.cache(cache);
        }
        for (name, value) in &request.properties {
            plan = plan.property(name, value);
        }
        for (name, value) in &request.root_properties {
            plan = plan.root_property(name, value);
        }
        let pool = plan.create()?;
        pool.engine().record_command(&self.history(command))?;
        Ok(())
    }

    fn check_add(&self, pool: &str, devices: &NewDevices) -> Result<(), ChangeError> {
        self.check(devices, Some(pool))
    }

    fn change(
        &self,
        pool: &str,
        changes: &[PoolChange],
        command: &str,
    ) -> Result<Changed, ChangeFailure> {
        let at = |done| move |error| ChangeFailure { done, error };
        for change in changes {
            if let PoolChange::Add(devices) = change {
                self.check(devices, Some(pool)).map_err(at(0))?;
            }
        }
        let (live, was_exported) = self.open(pool).map_err(at(0))?;
        let mut changed = Changed::default();
        let mut failure = None;
        for (done, change) in changes.iter().enumerate() {
            // The last words about a pool come before its end.
            if matches!(change, PoolChange::Destroy | PoolChange::Export) {
                let noted = live.engine().record_command(&self.history(command));
                noted.map_err(|error| at(done)(error.into()))?;
                let ended = match change {
                    PoolChange::Destroy => live.engine().destroy(),
                    _ => live.engine().export(),
                };
                return match ended {
                    Ok(()) => Ok(changed),
                    Err(error) => Err(at(done)(error.into())),
                };
            }
            if let Err(error) = apply::apply(&live, change, &mut changed) {
                failure = Some(at(done)(error));
                break;
            }
        }
        let noted = match &failure {
            None => live.engine().record_command(&self.history(command)),
            Some(_) => Ok(()),
        };
        if changes.iter().any(frees_space) {
            // Only a matter of order: errors here come back at the next change.
            let _ = free_in_background(&live);
        }
        let closed = self.close(live, was_exported);
        if let Some(failure) = failure {
            return Err(failure);
        }
        noted.map_err(|error| at(changes.len())(error.into()))?;
        closed.map_err(at(changes.len()))?;
        Ok(changed)
    }

    fn clear_labels(&self, path: &str, force: bool) -> Result<(), ChangeError> {
        let found = find_use(open_to_look(path)?.device.as_ref(), &|_| false);
        let candidates = self.search.pools();
        if let Some(found) = &found {
            let is_open = |candidate: &PoolCandidate| {
                candidate.guid == found.pool_guid && candidate.state == PoolState::Active
            };
            let name = found.pool.clone().unwrap_or_default();
            let by = match found.state {
                LeafState::Active if candidates.iter().any(is_open) => {
                    Some((DeviceInUse::Active(name), false))
                }
                LeafState::Active => Some((DeviceInUse::PotentiallyActive(name), true)),
                LeafState::Exported => Some((DeviceInUse::Exported(name), true)),
                LeafState::Spare => owner_of(&candidates, found.guid, true)
                    .map(|owner| (DeviceInUse::Spare(owner), false)),
                LeafState::Cache => owner_of(&candidates, found.guid, false)
                    .map(|owner| (DeviceInUse::Cache(owner), false)),
                LeafState::Destroyed => None,
            };
            if let Some((by, can_be_forced)) = by
                && !(force && can_be_forced)
            {
                return Err(ChangeError::InUse {
                    devices: vec![(path.to_owned(), by)],
                    can_be_forced,
                });
            }
        }
        drop(candidates);
        let device = crate::live::open_device(Path::new(path))?;
        let has_label = millpond_pool::import::read_labels(device.device.as_ref())
            .iter()
            .any(Result::is_ok);
        if !has_label {
            return Err(ChangeError::NoLabel);
        }
        let cleared = clear_labels(device.device.as_ref());
        cleared.map_err(|error| ChangeError::Failed(error.to_string()))?;
        Ok(())
    }
}

/// The features that property `compatibility` lets a new pool have.
fn compatible_features(value: &str) -> Result<FeatureChoice, ChangeError> {
    match requested(Some(value)) {
        RequestedFeatures::All => Ok(FeatureChoice::Default),
        RequestedFeatures::Legacy => Ok(FeatureChoice::OnlyNamed),
        RequestedFeatures::Listed(names) => Ok(FeatureChoice::Compatible(names)),
        RequestedFeatures::Unreadable => Err(ChangeError::Compatibility(value.to_owned())),
    }
}

fn frees_space(change: &PoolChange) -> bool {
    let PoolChange::Dataset(change) = change else {
        return false;
    };
    matches!(
        change,
        DatasetChange::Destroy { .. }
            | DatasetChange::DestroySnapshots { .. }
            | DatasetChange::Rollback { .. }
            | DatasetChange::Release { .. }
    )
}

fn free_in_background(pool: &LivePool) -> Result<(), ChangeError> {
    for _ in 0..FREEING_TXGS_MAX {
        let freeing = pool.committed()?.inner().property("freeing")?;
        let freeing = freeing.and_then(|property| property.value);
        match freeing {
            Some(millpond_pool::properties::PropertyValue::Number(bytes)) if bytes > 0 => {
                pool.sync()?;
            }
            _ => break,
        }
    }
    Ok(())
}

fn find<'a>(candidates: &'a [PoolCandidate], name: &str) -> Result<&'a PoolCandidate, ChangeError> {
    candidates
        .iter()
        .find(|pool| pool.name == name && pool.state != PoolState::Destroyed)
        .ok_or(ChangeError::NoSuchPool)
}

/// The name of the pool that has a spare or cache device, if it can be opened.
fn owner_of(candidates: &[PoolCandidate], guid: Guid, is_spare: bool) -> Option<String> {
    candidates
        .iter()
        .filter(|candidate| candidate.state != PoolState::Destroyed)
        .find(|candidate| {
            let pool = Pool::open_candidate(candidate, &OpenOptions::default());
            pool.is_ok_and(|pool| {
                let inner = pool.inner();
                let listed = if is_spare {
                    inner.spares()
                } else {
                    inner.caches()
                };
                listed.iter().any(|vdev| vdev.u64("guid") == Ok(guid.0))
            })
        })
        .map(|candidate| candidate.name.clone())
}

/// The top-level vdevs of a pool with the class of each.
fn tops_of(pool: &Pool) -> Vec<(VdevConfig, AllocationClass)> {
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

fn facts(path: &str) -> Result<DeviceFacts, DeviceProblem> {
    let told = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => DeviceProblem::Missing,
        _ => DeviceProblem::Unusable(error.to_string()),
    };
    let metadata = std::fs::metadata(path).map_err(told)?;
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

/// A device opened for reading only, to judge it.
fn open_to_look(path: &str) -> Result<NewDevice, ChangeError> {
    let told = |error: DeviceError| ChangeError::Device {
        path: path.to_owned(),
        problem: DeviceProblem::Unusable(error.to_string()),
    };
    let options = millpond_device::OpenOptions {
        write: false,
        refuse_if_live: false,
    };
    let device = FileDevice::open(Path::new(path), options).map_err(told)?;
    let is_block_device = device.is_block_device();
    let device: Arc<dyn Device> = Arc::new(device);
    Ok(NewDevice {
        is_block_device,
        ..NewDevice::file(path, device)
    })
}

fn open_to_write(path: &str) -> Result<NewDevice, ChangeError> {
    Ok(crate::live::open_device(Path::new(path))?)
}

fn open_all(
    paths: &[String],
    open: fn(&str) -> Result<NewDevice, ChangeError>,
) -> Result<Vec<NewDevice>, ChangeError> {
    paths.iter().map(|path| open(path)).collect()
}

/// Opens devices for new vdevs.
fn new_vdevs(devices: &NewDevices) -> Result<(NewVdevs, NewVdevOptions), ChangeError> {
    let mut tops = vec![];
    for top in &devices.tops {
        tops.push(NewTop {
            layout: top.layout,
            class: top.class,
            devices: open_all(&top.paths, open_to_write)?,
        });
    }
    let vdevs = NewVdevs {
        tops,
        spares: open_all(&devices.spares, open_to_write)?,
        caches: open_all(&devices.caches, open_to_write)?,
    };
    let options = NewVdevOptions {
        ashift: devices.ashift,
        force: true,
    };
    Ok((vdevs, options))
}

/// The dataset that `bootfs` names, if it names one.
fn boot_dataset(pool: &LivePool, value: &str) -> Result<Option<ObjectId>, ChangeError> {
    if value.is_empty() {
        return Ok(None);
    }
    let committed = pool.committed()?;
    let dataset = committed.dataset(value)?;
    if dataset.kind()? != crate::DatasetKind::Filesystem {
        return Err(ChangeError::Failed(
            "operation not supported on this type of pool".into(),
        ));
    }
    Ok(Some(dataset.inner().id()))
}

impl From<Error> for ChangeError {
    fn from(error: Error) -> Self {
        match error {
            Error::NoSuchPool { .. } => Self::NoSuchPool,
            Error::Create { error, .. } => (*error).into(),
            Error::Device { path, error } => Self::Device {
                path: path.to_string_lossy().into_owned(),
                problem: DeviceProblem::Unusable(error.to_string()),
            },
            Error::Setting(error) => Self::Setting(error),
            Error::Dataset(error) => error.into(),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<CreateError> for ChangeError {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::Name { reason, .. } => Self::PoolName(reason.to_owned()),
            CreateError::Vdevs(NewVdevError::TooSmall { .. }) => Self::TooSmall,
            CreateError::Vdevs(NewVdevError::Twice { .. }) => Self::Twice,
            CreateError::Vdevs(NewVdevError::NoData) => Self::NoData,
            CreateError::Vdevs(NewVdevError::Replication(all)) => Self::Replication(all),
            CreateError::Feature(error) => Self::Setting(error.into()),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<DatasetError> for ChangeError {
    fn from(error: DatasetError) -> Self {
        match error {
            DatasetError::NotFound { name } => Self::NoSuchDataset(name),
            DatasetError::InvalidName { name, reason } => Self::DatasetName {
                name,
                reason: reason.to_owned(),
            },
            DatasetError::Refused { name, why } => Self::Refused { name, why },
            DatasetError::InvalidProperty {
                property, reason, ..
            } => Self::Property { property, reason },
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<PoolError> for ChangeError {
    fn from(error: PoolError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<crate::live::SettingError> for ChangeError {
    fn from(error: crate::live::SettingError) -> Self {
        Self::Setting(error)
    }
}
