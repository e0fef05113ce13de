//! Adds vdevs to a pool (`zpool add`).
//!
//! New devices first get labels that belong to no pool. The vdev tree grows in the same txg, and its commit
//! makes the devices members of the pool. After a crash before the commit the devices belong to no pool.
//! Allocation on the new vdevs starts in the next txg, and not before the commit: the intent log of an open txg
//! could lie there. So the last committed tree always covers every block and every log that it can reach.
//!
//! Page `docs/format/pool-config.md`, "Writing".

use crate::create::{CreateError, label_devices};
use crate::error::Reading;
use crate::pool::Pool;
use crate::space::store::geometry_of;
use crate::sync::context::SyncContext;
use crate::vdevs::new_vdev::{BuiltVdevs, NewVdevOptions, NewVdevs, build_vdevs};
use crate::vdevs::topology::{Added, renewed};
use crate::{PACKED_LIST_BYTES_MAX, PoolError};
use millpond_alloc::VdevSpace;
use millpond_env::sync::Arc;
use millpond_nvlist::NvList;
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{DecodeError, Endian, Guid, PoolVersion, Txg, VdevId};
use millpond_vdev::{AllocationClass, VdevConfig, VdevType};
use std::collections::{BTreeMap, BTreeSet};

/// Why a vdev cannot be added to a pool with a vdev that was removed, or is being removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BesideRemoved {
    /// Copies are bytes as they are.
    #[error(
        "invalid config; a pool with removing/removed vdevs does not support adding raidz or dRAID vdevs"
    )]
    Raidz,
    /// Copies are whole sectors. The value is log2 of their size.
    #[error(
        "a pool with removing/removed vdevs takes only vdevs of the same sector size; use '-o ashift={0}'"
    )]
    Ashift(u64),
}

impl Pool {
    /// Adds top-level vdevs, hot spares and cache devices. They belong to the pool when this returns.
    ///
    /// `is_open_here` is as for [`Pool::create`]; devices of this pool are always refused.
    ///
    /// # Errors
    /// [`CreateError`]. Except after [`CreateError::Pool`], the pool is unchanged and continues to work.
    pub fn add_vdevs(
        &self,
        new: &NewVdevs,
        options: NewVdevOptions,
        is_open_here: &dyn Fn(Guid) -> bool,
    ) -> Result<(), CreateError> {
        let is_ours = |guid: Guid| guid == self.guid() || is_open_here(guid);
        // Run the checks that do not need the MOS first, before interrupting a txg.
        self.build_added(new, options, Txg(0), &BTreeSet::new(), &is_ours)?;
        self.sync_task(|ctx| ctx.add_vdevs(new, options, &is_ours))?
    }

    /// The pool's top-level vdevs with their allocation classes.
    fn existing_tops(&self) -> Vec<(VdevConfig, AllocationClass)> {
        let topology = self.store.topology();
        let tops = self.state.read().config.root.children.clone();
        (0u32..)
            .map(VdevId)
            .zip(tops)
            .map(|(id, top)| {
                let node = topology.tree.top(id);
                let class = node.map_or(AllocationClass::Normal, |node| node.class);
                let class = if top.is_log {
                    AllocationClass::Log
                } else {
                    class
                };
                (top, class)
            })
            .collect()
    }

    fn build_added(
        &self,
        new: &NewVdevs,
        options: NewVdevOptions,
        txg: Txg,
        listed: &BTreeSet<u64>,
        is_open_here: &dyn Fn(Guid) -> bool,
    ) -> Result<BuiltVdevs, CreateError> {
        let existing = self.existing_tops();
        let mut taken = listed.clone();
        note_guids(&self.state.read().config.root, &mut taken);
        Ok(build_vdevs(
            &self.env,
            new,
            options,
            txg,
            &existing,
            &taken,
            is_open_here,
        )?)
    }
}

/// New vdevs must be such that a removed one could have been copied to them.
fn check_beside_removed(root: &VdevConfig, built: &BuiltVdevs) -> Result<(), BesideRemoved> {
    let is_removed = |top: &&VdevConfig| top.kind == VdevType::Indirect || top.removing;
    let Some(removed) = root.children.iter().find(is_removed) else {
        return Ok(());
    };
    let data = built.tops.iter().filter(|(top, _)| !top.is_log);
    for (top, _) in data {
        if matches!(top.kind, VdevType::Raidz | VdevType::Draid) {
            return Err(BesideRemoved::Raidz);
        }
        if top.ashift != removed.ashift {
            let ashift = removed.ashift;
            return Err(BesideRemoved::Ashift(ashift));
        }
    }
    Ok(())
}

pub(crate) fn note_guids(vdev: &VdevConfig, taken: &mut BTreeSet<u64>) {
    taken.insert(vdev.guid.0);
    for child in &vdev.children {
        note_guids(child, taken);
    }
}

impl SyncContext<'_> {
    /// The outer error suspends the pool; the inner error means that nothing changed.
    fn add_vdevs(
        &self,
        new: &NewVdevs,
        options: NewVdevOptions,
        is_ours: &dyn Fn(Guid) -> bool,
    ) -> Result<Result<(), CreateError>, PoolError> {
        let version = PoolVersion(self.pool.version());
        let checked = new.check_version(version);
        let checked =
            checked.and_then(|()| new.check_features(|guid| self.feature_is_enabled(guid)));
        if let Err(refusal) = checked {
            return Ok(Err(refusal.into()));
        }
        let spares = self.device_list(key::SPARES)?;
        let caches = self.device_list(key::L2CACHE)?;
        let listed: BTreeSet<u64> = spares.iter().chain(&caches).map(|v| v.guid.0).collect();
        let options = NewVdevOptions {
            ashift: options.ashift.or(self.ashift_property()?),
            ..options
        };
        let is_taken = |guid: Guid| listed.contains(&guid.0) || is_ours(guid);
        let pool = self.pool;
        let txg = self.txg();
        let built = match pool.build_added(new, options, txg, &listed, &is_taken) {
            Ok(built) => built,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Err(refusal) = check_beside_removed(&pool.state.read().config.root, &built) {
            return Ok(Err(refusal.into()));
        }
        let first =
            VdevId(u32::try_from(pool.state.read().config.root.children.len()).unwrap_or(0));
        let mut config = pool.state.read().config.clone();
        let tops = built.tops.iter().map(|(top, _)| top.clone());
        config.root.children.extend(tops);
        let uberblock = pool.uberblock();
        if let Err(refusal) = label_devices(&config, &built, txg, Some(&uberblock)) {
            return Ok(Err(refusal));
        }
        // From here on only a write by the pool itself can fail.
        let added = Added {
            devices: built.devices.clone(),
            classes: (first.0..)
                .map(VdevId)
                .zip(built.tops.iter().map(|(_, class)| *class))
                .collect::<BTreeMap<_, _>>(),
            ..Added::default()
        };
        {
            let mut state = pool.state.write();
            let old = pool.store.topology();
            let topology = renewed(&old, &config.root, &state.missed, &added)?;
            pool.store.set_topology(topology);
            state.config.root = config.root;
            state.assembly = None;
        }
        let tree = Arc::new(pool.store.topology().tree.clone());
        for (id, top) in tree.tops().filter(|(id, _)| *id >= first) {
            let geometry = geometry_of(id, top)?;
            pool.maps.add_vdev(geometry);
            pool.allocator.add_vdev(VdevSpace {
                usable_from: Txg(txg.0 + 1),
                ..VdevSpace::from_tree(&tree, geometry)
            })?;
        }
        self.make_vdev_objects(&built.tops, first)?;
        for (key, mut all, new) in [
            (key::SPARES, spares, built.spares),
            (key::L2CACHE, caches, built.caches),
        ] {
            if !new.is_empty() {
                all.extend(new);
                self.write_device_list(key, &all)?;
            }
        }
        self.mark_config_dirty();
        Ok(Ok(()))
    }

    /// The property `ashift`: the default for vdevs without an explicit ashift.
    fn ashift_property(&self) -> Result<Option<u8>, PoolError> {
        let Some(table) = self.directory_object(key::POOL_PROPERTIES)? else {
            return Ok(None);
        };
        let stored = self.table_number(table, "ashift")?.unwrap_or(0);
        Ok(u8::try_from(stored).ok().filter(|ashift| *ashift != 0))
    }

    /// The pool's list of hot spares or cache devices.
    ///
    /// # Errors
    /// If the list cannot be read.
    pub fn device_list(&self, key: &'static str) -> Result<Vec<VdevConfig>, PoolError> {
        let Some(id) = self.directory_object(key)? else {
            return Ok(vec![]);
        };
        let object = self.mos().object(id).reading(key)?;
        let [length] = Endian::Little.words(key, &object.bonus()).reading(key)?;
        if length > PACKED_LIST_BYTES_MAX {
            return Err(PoolError::TooLarge {
                object: id,
                bytes: length,
            });
        }
        let mut bytes = vec![0u8; length as usize];
        object.read(0, &mut bytes).reading(key)?;
        let list = NvList::decode(&bytes).reading(key)?;
        let invalid = |_| DecodeError::new("device list", "an entry is no vdev", 0);
        list.opt_list_array(key)
            .ok()
            .flatten()
            .unwrap_or(&[])
            .iter()
            .map(|entry| VdevConfig::from_nvlist(entry).map_err(invalid).reading(key))
            .collect()
    }
}
