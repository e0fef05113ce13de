//! Hot spares and cache devices of imported pools. An idle device is neither read nor written, but stays open
//! and locked while its pool is imported. Another program cannot open it for writing.

use super::{ImportedPool, ImportedPools, Open};
use crate::change::checks;
use millpond_device::Device;
use millpond_env::sync::Arc;
use millpond_ondisk::Guid;
use millpond_pool::import::read_labels;
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

    fn close_unused(&mut self) {
        let used: BTreeSet<u64> = self.of_pools.values().flatten().copied().collect();
        self.open.retain(|guid, _| used.contains(guid));
    }
}

impl ImportedPools {
    /// Opens the current spares and cache devices of a pool, and closes those that it no longer has. A device
    /// that cannot be opened is skipped; `zpool status` shows it.
    pub(super) fn hold_auxiliaries(&self, name: &str) {
        let Some(wanted) = self.get(name).and_then(|pool| auxiliary_paths(&pool)) else {
            return;
        };
        let mut locked = self.auxiliaries.lock();
        let guids = wanted.keys().copied().collect();
        locked.of_pools.insert(name.to_owned(), guids);
        locked.close_unused();
        for (guid, path) in wanted {
            if locked.open.contains_key(&guid) {
                continue;
            }
            let Ok(opened) = checks::open_to_write(&path) else {
                continue;
            };
            let labels = read_labels(opened.device.as_ref());
            if (labels.iter().flatten()).any(|label| label.guid == Guid(guid)) {
                locked.open.insert(guid, opened.device);
            }
        }
    }
}

/// The paths of a pool's spares and cache devices, by guid. `None` if the pool is suspended, unreadable or
/// imported read-only.
fn auxiliary_paths(pool: &ImportedPool) -> Option<BTreeMap<u64, String>> {
    let Open::Live(live) = pool.opened() else {
        return None;
    };
    if live.inner().suspension().is_some() {
        return None;
    }
    let view = live.committed().ok()?;
    let listed = view.inner().spares().iter().chain(view.inner().caches());
    let paths = listed.filter_map(|vdev| {
        let guid = vdev.u64("guid").ok()?;
        let found = pool.located.as_ref().and_then(|all| all.get(&guid));
        let path = match found {
            Some((path, _)) => path,
            None => vdev.string("path").ok()?,
        };
        Some((guid, path.to_owned()))
    });
    Some(paths.collect())
}
