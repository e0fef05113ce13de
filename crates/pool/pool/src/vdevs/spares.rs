//! Hot spares: they step in for leaves that failed, and step back.
//!
//! A pool works without its spares, so opening it does not open them. The program gives each spare that it finds to
//! [`Pool::offer_spare`]. When a leaf has been out of use for a while, a spare that fits is attached beside it. When
//! the leaf or its replacement is complete again, the spare goes back to the list
//! ([`Pool::finish_replacements`]). If the leaf is detached instead, the spare keeps its place and leaves the list.
//!
//! Several pools may list the same spare, with the same guid. It steps in only while its labels say that no pool uses it.
//!
//! Page `docs/format/vdev-tree.md`, "Attaching and detaching".

use crate::PoolError;
use crate::import::{LabelFault, LeafLabel, LeafState as LabelState, read_labels};
use crate::pool::Pool;
use crate::vdevs::attach::{AttachError, Newcomer, ResilverKind};
use crate::vdevs::new_vdev::NewDevice;
use crate::vdevs::rearrange::{AttachKind, AttachRefusal};
use millpond_block::{LeafReason, LeafState, Topology};
use millpond_device::Device;
use millpond_env::sync::{Arc, Mutex};
use millpond_env::{mark, rank};
use millpond_ondisk::Guid;
use millpond_ondisk::pool_directory::key;
use millpond_vdev::{LeafId, VdevConfig, VdevKind, VdevType};
use std::collections::{BTreeMap, BTreeSet};

/// The spares of a pool that are open, and leaves that need one.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    /// Open spares, by guid.
    devices: BTreeMap<Guid, Arc<dyn Device>>,
    /// Since when each leaf is out of use, in nanoseconds of the monotonic clock.
    out_since_ns: BTreeMap<Guid, u64>,
}

impl Spares {
    /// No longer uses a spare.
    pub(crate) fn forget(&mut self, spare: Guid) {
        self.devices.remove(&spare);
    }
}

impl Pool {
    /// Lets a spare step in when it is needed. The device must be open for writing and locked.
    pub fn offer_spare(&self, spare: Guid, device: Arc<dyn Device>) {
        self.spares.lock().devices.insert(spare, device);
    }
    /// No longer uses spares except these.
    pub fn keep_spares(&self, listed: &BTreeSet<Guid>) {
        let mut spares = self.spares.lock();
        spares.devices.retain(|guid, _| listed.contains(guid));
    }

    /// Leaves that are out of use and that nothing replaces yet, with their configured paths. Not those that an
    /// administrator took out of use.
    #[must_use]
    pub fn failed_leaves(&self) -> Vec<(Guid, String)> {
        let topology = self.store.topology();
        let tree = &topology.tree;
        let failed = tree.leaves().filter(|(leaf, node)| {
            let parent = node.parent.and_then(|parent| tree.node(parent));
            let is_free = parent.is_none_or(|parent| match parent.kind {
                VdevKind::Replacing => false,
                VdevKind::Spare => {
                    let first = parent.children.first().and_then(|first| tree.node(*first));
                    first.is_some_and(|first| first.leaf == Some(*leaf))
                }
                _ => true,
            });
            let by_order = topology.condition(*leaf).reason == LeafReason::External;
            node.is_device() && is_free && !by_order && is_out(&topology, *leaf)
        });
        let failed = failed.filter_map(|(_, node)| {
            let path = node.config.path.clone()?;
            Some((node.config.guid, path))
        });
        failed.collect()
    }

    /// Attaches spares beside leaves that are out of use for this long. Returns how many.
    ///
    /// # Errors
    /// As [`Pool::attach_leaf`].
    pub fn step_in_spares(&self, after_ns: u64) -> Result<usize, AttachError> {
        let now_ns = self.env.clock.monotonic_ns();
        let topology = self.store.topology();
        let out = leaves_out(&topology);
        let (due, has_spares) = {
            let mut spares = self.spares.lock();
            spares.out_since_ns.retain(|guid, _| out.contains(guid));
            let since = &mut spares.out_since_ns;
            let due = out.into_iter().filter(|guid| {
                let since_ns = since.entry(*guid).or_insert(now_ns);
                now_ns.saturating_sub(*since_ns) >= after_ns
            });
            let due: Vec<Guid> = due.collect();
            (due, !spares.devices.is_empty())
        };
        let has_spares = has_spares || self.has_distributed_spares();
        if due.is_empty() || !has_spares || self.suspension().is_some() {
            return Ok(0);
        }
        let mut count = 0;
        for leaf in due {
            'spares: for spare in self.free_spares()? {
                for how in spare.kinds() {
                    match self.use_spare(*how, leaf, spare.guid, || None) {
                        Ok(_) => {
                            mark::hit("spare-stepped-in");
                            count += 1;
                            break 'spares;
                        }
                        // Another one may fit.
                        Err(AttachError::Attach(_) | AttachError::Create(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        Ok(count)
    }

    /// Lists a spare that another pool lists too, with the guid that its labels have. Nothing is written to the device.
    ///
    /// # Errors
    /// As [`Pool::sync_task`].
    pub fn share_spare(&self, spare: &VdevConfig) -> Result<(), PoolError> {
        self.sync_task(|ctx| {
            let mut all = ctx.device_list(key::SPARES)?;
            if all.iter().all(|listed| listed.guid != spare.guid) {
                all.push(spare.clone());
                ctx.write_device_list(key::SPARES, &all)?;
                ctx.mark_config_dirty();
            }
            Ok(())
        })
    }

    /// The guid of the spare at a path that the pool lists and does not use. `None` if there is none.
    ///
    /// # Errors
    /// If the list cannot be read.
    pub fn free_spare_at(&self, path: &str) -> Result<Option<Guid>, PoolError> {
        let mut listed = self.unused_spares()?.into_iter();
        let found = listed.find(|vdev| vdev.path.as_deref() == Some(path));
        Ok(found.map(|vdev| vdev.guid))
    }

    /// Attaches an unused spare beside a leaf, as when it steps in by itself. `device` is used unless the spare was
    /// offered before, or is a distributed one, which has no device.
    ///
    /// # Errors
    /// As [`Pool::attach_leaf`].
    pub fn use_spare(
        &self,
        how: ResilverKind,
        leaf: Guid,
        spare: Guid,
        device: impl FnOnce() -> Option<Arc<dyn Device>>,
    ) -> Result<Guid, AttachError> {
        let listed = self.unused_spares()?.into_iter();
        let vdev = listed.into_iter().find(|vdev| vdev.guid == spare);
        let vdev = vdev.ok_or(AttachRefusal::NotSpare)?;
        if vdev.kind == VdevType::DraidSpare {
            let new = Newcomer::Distributed(&vdev);
            return self.attach_newcomer(how, leaf, new, AttachKind::Spare);
        }
        let offered = self.spares.lock().devices.get(&spare).cloned();
        let device = match offered {
            Some(device) => device,
            None => device().ok_or(AttachRefusal::NotSpare)?,
        };
        let device = new_device(vdev, device).ok_or(AttachRefusal::NotSpare)?;
        self.attach_newcomer(how, leaf, Newcomer::Device(&device), AttachKind::Spare)
    }

    /// The spares that the pool lists and does not use.
    fn unused_spares(&self) -> Result<Vec<VdevConfig>, PoolError> {
        let view = self.committed()?;
        let listed = view.spares().iter();
        let listed = listed.filter_map(|list| VdevConfig::from_nvlist(list).ok());
        let topology = self.store.topology();
        let unused = listed.filter(|vdev| topology.tree.find_leaf(vdev.guid).is_none());
        Ok(unused.collect())
    }

    /// The spares that the pool lists and that are not in use: distributed ones, then those that are open, the smallest
    /// first.
    fn free_spares(&self) -> Result<Vec<FreeSpare>, AttachError> {
        let unused = self.unused_spares()?.into_iter();
        let spares = self.spares.lock();
        let mut free: Vec<FreeSpare> = unused
            .filter_map(|vdev| {
                let is_distributed = vdev.kind == VdevType::DraidSpare;
                let size_bytes = match is_distributed {
                    true => 0,
                    false => spares.devices.get(&vdev.guid)?.size_bytes(),
                };
                Some(FreeSpare {
                    guid: vdev.guid,
                    is_distributed,
                    size_bytes,
                })
            })
            .collect();
        free.sort_by_key(|spare| spare.size_bytes);
        Ok(free)
    }

    /// Whether a dRAID vdev has distributed spares.
    fn has_distributed_spares(&self) -> bool {
        let topology = self.store.topology();
        let mut tops = topology.tree.tops();
        tops.any(|(_, top)| top.draid().is_some_and(|draid| draid.spares() > 0))
    }
}

/// A spare that can step in.
#[derive(Debug, Clone, Copy)]
struct FreeSpare {
    guid: Guid,
    is_distributed: bool,
    /// 0 for a distributed spare.
    size_bytes: u64,
}

impl FreeSpare {
    /// How it gets its content, what is tried first before. A distributed spare is there to be complete soon. While a
    /// healing resilver runs, or if the pool cannot record others, it takes part in that.
    fn kinds(&self) -> &'static [ResilverKind] {
        match self.is_distributed {
            true => &[ResilverKind::Sequential, ResilverKind::Healing],
            false => &[ResilverKind::Healing],
        }
    }
}

fn new_device(vdev: VdevConfig, device: Arc<dyn Device>) -> Option<NewDevice> {
    Some(NewDevice {
        path: vdev.path?,
        device,
        is_block_device: vdev.kind == VdevType::Disk,
        whole_disk: vdev.whole_disk.unwrap_or(false),
        devid: vdev.devid,
        phys_path: vdev.phys_path,
    })
}

/// Held while a spare is taken: several pools of a process may list it.
pub(crate) static TAKING: Mutex<(), rank::SpareLabels> = Mutex::new(());

/// Whether the labels of a device say that it is this spare, and that no other pool uses it. Labels of `pool` itself,
/// which does not have it in its tree, are left over from a crash.
///
/// The first labels that a pool writes to a spare have no txg yet. From the crash that leaves them on, only that pool takes
/// the spare: another one that lists it cannot know whether the first is about to commit.
pub(crate) fn is_labelled_spare(device: &dyn Device, spare: Guid, pool: Guid) -> bool {
    let labels = read_labels(device);
    let says = |label: &Result<LeafLabel, LabelFault>| match label {
        Ok(label) => {
            let is_free = label.state == LabelState::Spare;
            Some(label.guid == spare && (is_free || label.pool_guid == pool))
        }
        Err(LabelFault::NeverUsed { guid, pool_guid }) => {
            (*guid == spare && *pool_guid == pool).then_some(true)
        }
        Err(_) => None,
    };
    let mut says = labels.iter().filter_map(says).peekable();
    says.peek().is_some() && says.all(|is_spare| is_spare)
}

/// Whether a label of a device names this spare or cache device, be it in use, free, or left over from a crash.
#[must_use]
pub fn is_labelled_as(device: &dyn Device, guid: Guid) -> bool {
    let labels = read_labels(device);
    labels.iter().any(|label| match label {
        Ok(label) => label.guid == guid,
        Err(LabelFault::NeverUsed { guid: named, .. }) => *named == guid,
        Err(_) => false,
    })
}

/// The leaves that are out of use and for which no spare or replacement stands in. A leaf that an administrator took
/// offline is none of them.
fn leaves_out(topology: &Topology) -> Vec<Guid> {
    let tree = &topology.tree;
    let out = tree.leaves().filter(|(leaf, node)| {
        let parent = node.parent.and_then(|parent| tree.node(parent));
        let stands_alone = parent
            .is_none_or(|parent| !matches!(parent.kind, VdevKind::Spare | VdevKind::Replacing));
        let is_log = node
            .top
            .and_then(|top| tree.top(top))
            .is_some_and(|top| top.config.is_log);
        node.is_device() && stands_alone && !is_log && is_out(topology, *leaf)
    });
    out.map(|(_, node)| node.config.guid).collect()
}

fn is_out(topology: &Topology, leaf: LeafId) -> bool {
    let has_device = topology.devices.get(leaf.0 as usize);
    match topology.condition(leaf).state {
        LeafState::Faulted | LeafState::Removed | LeafState::Unavailable => true,
        LeafState::Online | LeafState::Degraded => !has_device.is_some_and(Option::is_some),
        LeafState::Offline => false,
    }
}
