//! Hot spares and cache devices of imported pools. They stay open and locked while their pool is imported, so that no
//! other program opens them for writing. The pool uses its cache devices, and a spare when a device has failed.

use super::{ImportedPool, ImportedPools, Open};
use crate::change::apply::clear_if;
use crate::change::checks;
use millpond_control::{PoolInfo, SpareUse};
use millpond_device::Device;
use millpond_engine::Pool;
use millpond_env::sync::Arc;
use millpond_ondisk::Guid;
use millpond_pool::is_labelled_as;
use millpond_vdev::VdevType;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(super) struct AuxiliaryDevices {
    /// Open devices by guid. Several pools may share a spare.
    open: BTreeMap<u64, Arc<dyn Device>>,
    /// The guids of each pool's devices, by pool name.
    of_pools: BTreeMap<String, BTreeSet<u64>>,
}

impl AuxiliaryDevices {
    /// Releases the devices of a pool that is no longer imported.
    pub(super) fn release_all(&mut self, pool: &str) {
        self.of_pools.remove(pool);
        self.close_unused();
    }

    /// The device with a guid, opened at this path if it is not open. `None` if there is another one, or none.
    fn opened(&mut self, guid: u64, path: &str) -> Option<Arc<dyn Device>> {
        if let Some(device) = self.open.get(&guid) {
            return Some(Arc::clone(device));
        }
        let opened = checks::open_to_write(path).ok()?;
        let is_it = is_labelled_as(opened.device.as_ref(), Guid(guid));
        is_it.then(|| {
            self.open.insert(guid, Arc::clone(&opened.device));
            opened.device
        })
    }

    fn close_unused(&mut self) {
        let used: BTreeSet<u64> = self.of_pools.values().flatten().copied().collect();
        self.open.retain(|guid, _| used.contains(guid));
    }
}

impl ImportedPools {
    /// Clears the labels of a spare or cache device that was removed, unless another pool lists it.
    pub(super) fn clear_auxiliary(&self, guid: u64) {
        if self.is_listed(Guid(guid)) {
            return;
        }
        let device = self.auxiliaries.lock().open.get(&guid).cloned();
        if let Some(device) = device {
            clear_if(&device, Guid(guid));
        }
    }

    /// Whether a pool lists a spare.
    pub(super) fn is_listed(&self, spare: Guid) -> bool {
        let mut names = self.all().into_iter().map(|(name, _)| name);
        names.any(|name| self.spares_of(&name).contains(&spare.0))
    }

    /// The guids of a pool's spares.
    pub(super) fn spares_of(&self, name: &str) -> BTreeSet<u64> {
        let listed = self.get(name).and_then(|pool| {
            let view = pool.live()?.committed().ok()?;
            let guids = view.inner().spares().iter();
            Some(guids.filter_map(|vdev| vdev.u64("guid").ok()).collect())
        });
        listed.unwrap_or_default()
    }

    /// Takes spares out of the lists of all pools: one of them has made them its own.
    pub(super) fn unlist_spares<'s>(&self, spares: impl Iterator<Item = &'s u64>) {
        for spare in spares {
            for (name, pool) in self.all() {
                if self.spares_of(&name).contains(spare)
                    && let Some(live) = pool.live()
                    && live.inner().remove_auxiliary(Guid(*spare)).is_ok()
                {
                    self.hold_auxiliaries(&name);
                }
            }
        }
    }

    /// Marks the spares of a pool that other pools use.
    pub(super) fn mark_spares_elsewhere(&self, own: &str, info: &mut PoolInfo) {
        let free =
            (info.spares.iter_mut()).filter(|spare| spare.spare_use == Some(SpareUse::Available));
        for spare in free {
            let uses = |pool: &ImportedPool| {
                let live = pool.live()?;
                live.inner()
                    .store()
                    .topology()
                    .tree
                    .find_leaf(Guid(spare.guid))
            };
            let mut others = self.all().into_iter().filter(|(name, _)| name != own);
            if let Some((name, _)) = others.find(|(_, pool)| uses(pool).is_some()) {
                spare.spare_use = Some(SpareUse::InOtherPool(Some(name)));
            }
        }
    }

    /// Opens the current spares and cache devices of a pool, and closes those that it no longer has. A device
    /// that cannot be opened is skipped; `zpool status` shows it. The pool uses its cache devices from then on.
    pub(super) fn hold_auxiliaries(&self, name: &str) {
        let Some(pool) = self.get(name) else { return };
        let Some((live, wanted)) = auxiliaries(&pool) else {
            return;
        };
        let engine = live.inner();
        let used = engine.cache_device_stats();
        let mut used: BTreeSet<u64> = used.iter().map(|(guid, _)| guid.0).collect();
        used.retain(|guid| {
            let is_listed = wanted.contains_key(guid);
            is_listed || !engine.stop_cache_device(Guid(*guid))
        });
        let mut locked = self.auxiliaries.lock();
        let guids = wanted.keys().copied().collect();
        locked.of_pools.insert(name.to_owned(), guids);
        locked.close_unused();
        let spares = wanted.iter().filter(|(_, found)| !found.is_cache);
        engine.keep_spares(&spares.map(|(guid, _)| Guid(*guid)).collect());
        for (guid, found) in wanted {
            let Some(device) = locked.opened(guid, &found.path) else {
                continue;
            };
            if !found.is_cache {
                engine.offer_spare(Guid(guid), device);
            } else if !used.contains(&guid) {
                // The pool works without it, and `zpool list -v` shows that it is empty.
                let _ = engine.use_cache_device(device);
            }
        }
    }
}

/// A spare or cache device of a pool.
struct Auxiliary {
    path: String,
    is_cache: bool,
}

/// A pool's spares and cache devices, by guid. `None` if the pool is suspended, unreadable or imported read-only.
fn auxiliaries(pool: &ImportedPool) -> Option<(&Pool, BTreeMap<u64, Auxiliary>)> {
    let Open::Live(live) = pool.opened() else {
        return None;
    };
    if live.inner().suspension().is_some() {
        return None;
    }
    let view = live.committed().ok()?;
    let spares = view.inner().spares().iter().map(|vdev| (vdev, false));
    let caches = view.inner().caches().iter().map(|vdev| (vdev, true));
    let all = spares.chain(caches).filter_map(|(vdev, is_cache)| {
        // A distributed spare has no device.
        let is_device = vdev.string("type") != Ok(VdevType::DraidSpare.name());
        let guid = vdev.u64("guid").ok()?;
        let found = pool.located.as_ref().and_then(|all| all.get(&guid));
        let path = match found {
            Some((path, _)) => path,
            None => vdev.string("path").ok()?,
        };
        let path = path.to_owned();
        is_device.then_some((guid, Auxiliary { path, is_cache }))
    });
    let all = all.collect();
    Some((live, all))
}
