//! Block devices for volumes: which there are, and the effects of changes on them. Page `docs/volumes.md`.
//!
//! There is one rule, [`Volumes::follow`]: the devices are made to be those that the properties ask for. A change that
//! takes a volume away, or replaces its contents, detaches its device first ([`Volumes::release`]), and is refused if
//! a program uses the device.

mod beneath;
mod follow;
mod wanted;

pub(crate) use follow::{FollowVolumes, ReceivingVolumes};

use crate::mounts::is_of;
use millpond_blockdev::{
    BlockDevice, BlockDeviceError, DeviceLinks, DeviceOptions, Disk, clear_left, missing, tag_of,
};
use millpond_engine::{Error, InUseSnapshot, Pool};
use millpond_env::sync::{Arc, Mutex};
use millpond_env::{Tunable, Tunables, rank};
use millpond_service::{ImportedPools, Open};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use wanted::Wanted;

/// Where the links are.
const LINKS: &str = "/dev/zvol";

/// A volume with its device.
struct Entry {
    wanted: Wanted,
    device: BlockDevice,
    path: PathBuf,
    /// Keeps the pool until the device is detached; `None` for a pool that is read-only.
    pool: Option<Pool>,
    /// Keeps a snapshot from being destroyed until the device is detached.
    _in_use: Option<InUseSnapshot>,
}

/// What a daemon that makes devices has.
struct Maker {
    tag: String,
    links: DeviceLinks,
}

/// The block devices of a daemon.
pub(crate) struct Volumes {
    /// `None` if it makes none.
    maker: Option<Maker>,
    tunables: Arc<Tunables>,
    table: Mutex<Vec<Entry>, rank::VolumeDevices>,
    /// Volumes that get no device at present: changes that lead to a rollback of them are under way.
    withheld: Mutex<Vec<String>, rank::Leaf>,
}

/// A device that is in use: its dataset.
#[derive(Debug)]
pub(crate) struct InUse(pub(crate) String);

fn pool_of(name: &str) -> &str {
    name.split(['/', '@']).next().unwrap_or(name)
}

impl Volumes {
    /// Devices for the daemon with this state directory, if `is_on` and if this process can make them. Devices and links
    /// that a killed daemon left are removed first.
    pub(crate) fn start(state: &Path, is_on: bool, tunables: Arc<Tunables>) -> Self {
        let maker = match is_on {
            true => Self::maker(state),
            false => None,
        };
        Self {
            maker,
            tunables,
            table: Mutex::new(vec![]),
            withheld: Mutex::new(vec![]),
        }
    }

    fn maker(state: &Path) -> Option<Maker> {
        if let Some(why) = missing() {
            tracing::info!("volumes have no block devices: {why}");
            return None;
        }
        let tag = tag_of(state)?;
        let links = DeviceLinks::new(Path::new(LINKS), &tag);
        // Once a device is detached, another program can get its number. No link may lead to it then.
        links.clear_left();
        for number in clear_left(&tag) {
            tracing::info!("loop{number} of a killed daemon is detached");
        }
        Some(Maker { tag, links })
    }

    /// The number of devices.
    pub(crate) fn count(&self) -> usize {
        match self.maker {
            Some(_) => self.table.lock().len(),
            None => 0,
        }
    }

    /// Makes the devices of the volumes at and below a dataset those that the properties ask for. Devices in use stay.
    pub(crate) fn follow(&self, pools: &ImportedPools, root: &str) {
        if let Some(maker) = &self.maker {
            let mut table = self.table.lock();
            self.follow_in(maker, &mut table, pools, root);
        }
    }

    fn follow_in(&self, maker: &Maker, table: &mut Vec<Entry>, pools: &ImportedPools, root: &str) {
        let wanted = match pools.get(pool_of(root)) {
            // It was destroyed, or its pool was exported.
            None => vec![],
            Some(_) => match wanted::read(pools, root, &self.tunables) {
                Ok(wanted) => wanted,
                Err(
                    millpond_control::ControlError::NoSuchDataset
                    | millpond_control::ControlError::NoSuchPool,
                ) => vec![],
                Err(error) => {
                    tracing::warn!("{root}: the devices of volumes are not changed: {error}");
                    return;
                }
            },
        };
        let pool = pool_of(root);
        let is_kept = |entry: &Entry| {
            pool_of(&entry.wanted.name) != pool
                || !is_of(&entry.wanted.name, root)
                // Another program may have detached it, and a third one have got its number.
                || entry.device.is_attached()
                    && wanted.iter().any(|one| {
                        (one.id, one.has_partitions)
                            == (entry.wanted.id, entry.wanted.has_partitions)
                    })
        };
        let gone: Vec<Entry> = table.extract_if(.., |entry| !is_kept(entry)).collect();
        for mut entry in gone {
            if let Err(error) = detach(maker, &mut entry) {
                tracing::warn!("{}: its device stays: {error}", entry.wanted.name);
                table.push(entry);
            }
        }
        let is_inhibited = self.tunables.is_on(Tunable::VolumeInhibitDevices);
        for one in wanted {
            let known = table
                .iter_mut()
                .find(|entry| entry.wanted.id == one.id && pool_of(&entry.wanted.name) == pool);
            match known {
                Some(entry) => adapt(maker, entry, one),
                None if is_inhibited || self.is_withheld(&one.name) => {}
                None => match attach(maker, pools, &one) {
                    Ok(entry) => table.push(entry),
                    Err(error) => tracing::warn!("{}: no block device: {error}", one.name),
                },
            }
        }
    }

    /// Detaches the devices of the datasets that `is_meant` names, all or none.
    ///
    /// # Errors
    /// [`InUse`]. [`Volumes::follow`] attaches those again that were detached.
    pub(crate) fn release(&self, is_meant: &dyn Fn(&str) -> bool) -> Result<(), InUse> {
        let Some(maker) = &self.maker else {
            return Ok(());
        };
        let mut table = self.table.lock();
        let meant: Vec<Entry> = table
            .extract_if(.., |entry| is_meant(&entry.wanted.name))
            .collect();
        let mut used = None;
        for mut entry in meant {
            if used.is_some() || detach(maker, &mut entry).is_err() {
                used.get_or_insert_with(|| entry.wanted.name.clone());
                table.push(entry);
            }
        }
        used.map_or(Ok(()), |name| Err(InUse(name)))
    }

    /// Detaches the devices of a dataset and all below it. See [`Volumes::release`].
    pub(crate) fn release_below(&self, root: &str) -> Result<(), InUse> {
        self.release(&|name| is_of(name, root))
    }

    /// Detaches the device of a volume, which gets none until [`Volumes::allow`].
    ///
    /// # Errors
    /// [`InUse`]: it keeps the device.
    fn withhold(&self, volume: &str) -> Result<(), InUse> {
        self.withheld.lock().push(volume.to_owned());
        let released = self.release(&|name| name == volume);
        released.inspect_err(|_| self.allow(volume))
    }

    fn allow(&self, volume: &str) {
        let mut withheld = self.withheld.lock();
        if let Some(at) = withheld.iter().position(|name| name == volume) {
            withheld.swap_remove(at);
        }
    }

    fn is_withheld(&self, name: &str) -> bool {
        self.withheld.lock().iter().any(|volume| volume == name)
    }

    /// The datasets among these that have a device.
    fn names_in(&self, datasets: &BTreeSet<&str>) -> Vec<String> {
        let table = self.table.lock();
        let names = table.iter().map(|entry| &entry.wanted.name);
        let own = names.filter(|name| datasets.contains(name.as_str()));
        own.cloned().collect()
    }

    /// Puts on stable storage what programs have written to the devices of the datasets that `is_meant` names.
    fn flush(&self, is_meant: &dyn Fn(&str) -> bool) {
        for entry in self.table.lock().iter() {
            if is_meant(&entry.wanted.name)
                && let Err(error) = entry.device.flush()
            {
                tracing::warn!("{}: not written back: {error}", entry.wanted.name);
            }
        }
    }

    /// Detaches all devices that are not in use, before the pools are closed. [`Volumes::finish`] detaches those that a
    /// pool uses.
    pub(crate) fn stop(&self) {
        if let Some(maker) = &self.maker {
            detach_all(maker, &mut self.table.lock());
        }
    }

    /// Detaches the rest, after the pools were closed. Who still uses a device gets errors from now on.
    pub(crate) fn finish(&self) {
        let Some(maker) = &self.maker else {
            return;
        };
        let mut table = self.table.lock();
        detach_all(maker, &mut table);
        for entry in table.drain(..) {
            let name = &entry.wanted.name;
            tracing::warn!("{name}: its device is in use, and is cut off");
            maker.links.remove(name, &entry.path);
            entry.device.cut_off();
            sync(name, entry.pool.as_ref());
        }
    }
}

/// Detaches until none is left, or those that are left are in use. A pool on a volume is closed when its own volumes are.
fn detach_all(maker: &Maker, table: &mut Vec<Entry>) {
    loop {
        let before = table.len();
        let all = std::mem::take(table);
        for mut entry in all {
            match detach(maker, &mut entry) {
                Ok(()) => sync(&entry.wanted.name, entry.pool.as_ref()),
                Err(_) => table.push(entry),
            }
        }
        if table.is_empty() || table.len() == before {
            return;
        }
    }
}

/// Writes what reached the pool last.
fn sync(name: &str, pool: Option<&Pool>) {
    if let Some(pool) = pool
        && pool.inner().suspension().is_none()
        && let Err(error) = pool.sync()
    {
        tracing::error!("{name}: what was not written is lost: {error}");
    }
}

fn detach(maker: &Maker, entry: &mut Entry) -> Result<(), BlockDeviceError> {
    entry.device.detach()?;
    maker.links.remove(&entry.wanted.name, &entry.path);
    Ok(())
}

/// Lets a device follow its volume.
fn adapt(maker: &Maker, entry: &mut Entry, wanted: Wanted) {
    let name = &wanted.name;
    if entry.wanted.is_read_only != wanted.is_read_only {
        let set = entry.device.set_read_only(wanted.is_read_only);
        if let Err(error) = set {
            tracing::warn!("{name}: 'readonly' has no effect on its device: {error}");
        }
    }
    if entry.wanted.size_bytes != wanted.size_bytes
        && let Err(error) = entry.device.follow_size()
    {
        tracing::warn!("{name}: its device keeps its size: {error}");
    }
    if entry.wanted.name != *name {
        maker.links.remove(&entry.wanted.name, &entry.path);
    }
    // Also if it is only missing.
    link(maker, name, &entry.path);
    entry.wanted = wanted;
}

fn link(maker: &Maker, name: &str, path: &Path) {
    if let Err(error) = maker.links.set(name, path) {
        tracing::warn!("{name}: no link to {}: {error}", path.display());
    }
}

/// A volume that is open for a device.
struct Opened {
    disk: Arc<dyn Disk>,
    pool: Option<Pool>,
    /// Whether it can be changed at all.
    may_change: bool,
    in_use: Option<InUseSnapshot>,
}

fn open(pools: &ImportedPools, wanted: &Wanted) -> Result<Opened, Error> {
    let name = wanted.name.as_str();
    let pool = pools.get(pool_of(name)).ok_or_else(|| Error::NoSuchPool {
        name: pool_of(name).to_owned(),
    })?;
    let live = pool.live().cloned();
    let may_change = live.is_some() && !name.contains('@');
    let (disk, in_use): (Arc<dyn Disk>, _) = match pool.opened() {
        Open::Live(live) if may_change => (live.volume(name)?, None),
        Open::Live(live) => {
            let (volume, in_use) = live.snapshot_of_volume(name)?;
            (Arc::new(volume), Some(in_use))
        }
        Open::ReadOnly(view, _) => (Arc::new(view.dataset(name)?.volume()?), None),
    };
    Ok(Opened {
        disk,
        pool: live,
        may_change,
        in_use,
    })
}

fn attach(maker: &Maker, pools: &ImportedPools, wanted: &Wanted) -> Result<Entry, String> {
    let opened = open(pools, wanted).map_err(|error| error.to_string())?;
    let options = DeviceOptions {
        tag: maker.tag.clone(),
        name: wanted.name.clone(),
        is_read_only: wanted.is_read_only,
        may_change: opened.may_change,
        has_partitions: wanted.has_partitions,
    };
    let device = BlockDevice::attach(opened.disk, &options).map_err(|error| error.to_string())?;
    let path = device.path();
    link(maker, &wanted.name, &path);
    Ok(Entry {
        wanted: wanted.clone(),
        device,
        path,
        pool: opened.pool,
        _in_use: opened.in_use,
    })
}
