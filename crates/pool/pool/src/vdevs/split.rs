//! Splits a pool of mirrors: one side of each becomes a pool of its own (`zpool split`).
//!
//! First the intent logs leave the log vdevs, which the new pool does not have. Then the sides leave the old pool, all in
//! one txg. They hold everything that was committed before, and the old pool no longer writes to them: it waits for the
//! requests that began by the old tree. After that the new pool is opened on them, with a new guid, and its first txg makes
//! it a pool. A crash before the sides leave the old pool leaves it as it was. A crash between that and the first txg of the
//! new pool leaves the old one without the sides, which can be attached again. Neither loses anything of the old pool.
//!
//! The leaves of the new pool keep their guids, so that a crash during its first txg is one during a change of the pool's
//! guid. Those of the old pool take over the guids of their mirrors, as after a detach.
//!
//! Page `docs/format/vdev-tree.md`, "Splitting".

use crate::history::append::HistoryEvent;
use crate::pool::Pool;
use crate::space::PoolSpaceMaps;
use crate::sync::context::SyncContext;
use crate::vdevs::activity::PATIENCE;
use crate::vdevs::attach::AttachError;
use crate::vdevs::leaf_states::is_complete;
use crate::vdevs::new_vdev::random_u64;
use crate::vdevs::rearrange::{self, SplitRefusal};
use crate::vdevs::remove_log::NoAllocation;
use crate::vdevs::topology::Added;
use crate::{PoolError, PoolView};
use millpond_block::Topology;
use millpond_device::Device;
use millpond_env::sync::{Arc, Condvar, Mutex};
use millpond_env::{mark, rank};
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{Guid, ObjectId, VdevId};
use millpond_vdev::VdevConfig;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long requests that began before may take, in nanoseconds.
const PATIENCE_NS: u64 = 60_000_000_000;
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);
/// How often the logs are moved.
const LOG_TRIES: usize = 4;

/// Why a pool was not split.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// The tree does not allow it.
    #[error(transparent)]
    Refused(#[from] SplitRefusal),
    /// A side lacks data.
    #[error("{path} lacks data; wait for the resilver with 'zpool wait -t resilver'")]
    Incomplete {
        /// Its path.
        path: String,
    },
    /// The intent logs of encrypted datasets wait to be replayed. The new pool would lose what they hold.
    #[error(
        "intent logs wait for the keys of encrypted datasets; load the keys with 'zfs load-key' and mount the datasets first"
    )]
    LockedLogs,
    /// Intent logs do not leave the log vdevs.
    #[error("intent logs are in use all the time; try again")]
    LogsInUse,
    /// The sides alone are no pool that can be opened.
    #[error(
        "the devices that are split off would be no readable pool: {reason}; 'zpool scrub' repairs what it can"
    )]
    Unreadable {
        /// Why.
        reason: String,
    },
    /// Requests to the devices do not end. They were detached.
    #[error(
        "the devices were detached, but requests to them do not end; attach them again with 'zpool attach -f'"
    )]
    Busy,
    /// A side could not leave.
    #[error(transparent)]
    Detach(#[from] AttachError),
    /// The pool could not be changed.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// A leaf that was split off, with its device.
pub type SplitSide = (VdevConfig, Arc<dyn Device>);

/// What makes a pool of the sides that were split from another one.
#[derive(Debug, Clone)]
pub struct SplitHalf {
    /// The leaves, one of each mirror.
    pub sides: Vec<Guid>,
    /// The name of the other pool.
    pub from: String,
}

/// What the new pool does not have any more.
#[derive(Debug, Default)]
pub(crate) struct LeftBehind {
    leaves: Vec<VdevConfig>,
    /// Log vdevs.
    tops: Vec<VdevConfig>,
    /// Space maps of the log vdevs, and arrays of them.
    objects: Vec<ObjectId>,
}

impl Pool {
    /// Takes one side of each mirror out of the pool, all in one txg. Returns what they were, with their devices.
    ///
    /// The devices hold the pool as it was committed before, and nothing writes to them any more. The caller makes a pool
    /// of them with [`Pool::open_split`].
    ///
    /// # Errors
    /// [`SplitError`]. Except after [`SplitError::Pool`] and [`SplitError::Busy`], the pool is unchanged. It continues
    /// to work.
    pub fn split_off(&self, sides: &[Guid]) -> Result<Vec<SplitSide>, SplitError> {
        self.check_split(sides)?;
        let _pause = self.activities.pause(PATIENCE)?;
        let _log_vdevs_are_left = self.leave_log_vdevs()?;
        // The logs of space maps name log vdevs, which the new pool does not have.
        self.allocator.flush_all_in_next_txg();
        self.sync_task(|ctx| {
            ctx.mark_config_dirty();
            Ok(())
        })?;
        let gone = self.sync_task(|ctx| ctx.split_off(sides))??;
        mark::hit("pool-split");
        // Requests that began before, by the old topology, may still write.
        let (pause, until_ns) = (
            Mutex::<(), rank::Leaf>::new(()),
            (self.env.clock.monotonic_ns()).saturating_add(PATIENCE_NS),
        );
        while self.store.uses_former_topology() {
            if self.env.clock.monotonic_ns() > until_ns {
                return Err(SplitError::Busy);
            }
            Condvar::new().wait_for(&mut pause.lock(), BETWEEN_LOOKS);
        }
        Ok(gone)
    }

    /// Refuses what [`Pool::split_off`] refuses.
    ///
    /// # Errors
    /// [`SplitError`].
    pub fn check_split(&self, sides: &[Guid]) -> Result<(), SplitError> {
        rearrange::split(&self.state.read().config.root, sides)?;
        if let Some(refusal) = self.checkpoint_refusal() {
            return Err(SplitRefusal::from(refusal).into());
        }
        if self.port.has_locked_logs() {
            return Err(SplitError::LockedLogs);
        }
        check_complete(&self.store.topology(), sides)
    }

    /// Moves the intent logs away from the log vdevs, and commits it. Logs stay away while the guards live.
    ///
    /// The new pool cannot tell which blocks of such a log lie on other vdevs, and would never free them.
    fn leave_log_vdevs(&self) -> Result<Vec<NoAllocation<'_>>, SplitError> {
        let root = self.state.read().config.root.clone();
        let logs = (0u32..).zip(&root.children).filter(|(_, top)| top.is_log);
        let logs: Vec<VdevId> = logs.map(|(number, _)| VdevId(number)).collect();
        let guards = logs.iter().map(|vdev| NoAllocation::begin(self, *vdev));
        let guards = guards.collect();
        for _ in 0..LOG_TRIES {
            for vdev in &logs {
                if !self.move_logs(*vdev)? {
                    return Err(SplitError::LogsInUse);
                }
            }
            self.sync()?;
            // A block that was allocated before may have joined its log only now.
            if !logs.iter().any(|vdev| self.port.logs_use(*vdev)) {
                return Ok(guards);
            }
        }
        Err(SplitError::LogsInUse)
    }

    /// The devices of sides that are in the pool, with their paths.
    #[must_use]
    pub fn devices_of_sides(&self, sides: &[Guid]) -> Vec<SplitSide> {
        let topology = self.store.topology();
        let side = |guid: &Guid| {
            let leaf = topology.tree.find_leaf(*guid)?;
            let config = topology.tree.leaf(leaf)?.config.clone();
            Some((config, topology.leaf_device(leaf)?))
        };
        sides.iter().filter_map(side).collect()
    }

    /// Gives the pool that was opened on the sides its own guid and tree, before its first txg.
    pub(crate) fn become_split(&self, half: &SplitHalf) -> Result<LeftBehind, PoolError> {
        let root = self.state.read().config.root.clone();
        let split =
            rearrange::split(&root, &half.sides).map_err(|refusal| PoolError::Suspended {
                reason: refusal.to_string(),
            })?;
        let guid = loop {
            let guid = Guid(random_u64(&self.env));
            if guid.0 != 0 && guid != self.guid() {
                break guid;
            }
        };
        let mut new_root = split.root;
        new_root.guid = guid;
        self.put_tree(new_root, &Added::default(), |missed| {
            missed.retain(|leaf, _| half.sides.contains(leaf));
        })?;
        self.state.write().config.guid = guid;
        Ok(LeftBehind {
            leaves: split.left,
            tops: split.logs,
            objects: vec![],
        })
    }
}

/// Refuses sides that lack data or are out of use.
fn check_complete(topology: &Topology, sides: &[Guid]) -> Result<(), SplitError> {
    for side in sides {
        let leaf = topology.tree.find_leaf(*side);
        let is_whole = leaf.is_some_and(|leaf| {
            is_complete(topology, leaf)
                && topology.condition(leaf).is_usable()
                && topology.abandoned_requests(leaf) == 0
        });
        if !is_whole {
            let node = leaf.and_then(|leaf| topology.tree.leaf(leaf));
            let path = node.and_then(|node| node.config.path.clone());
            let path = path.unwrap_or_else(|| side.to_string());
            return Err(SplitError::Incomplete { path });
        }
    }
    Ok(())
}

/// The log vdevs of a pool that is opened on its split sides: it does not have them.
pub(crate) fn log_vdevs(view: &PoolView) -> BTreeSet<VdevId> {
    let topology = view.store().topology();
    let tops = topology.tree.tops();
    tops.filter(|(_, node)| node.config.is_log)
        .map(|(id, _)| id)
        .collect()
}

/// The objects in which these vdevs store their space.
pub(crate) fn space_objects(
    view: &PoolView,
    vdevs: &BTreeSet<VdevId>,
) -> Result<Vec<ObjectId>, PoolError> {
    let mut objects = vec![];
    for (id, vdev) in PoolSpaceMaps::load(view)?.into_vdevs() {
        if vdevs.contains(&id) {
            objects.extend(vdev.maps.into_iter().filter_map(|map| ObjectId(map).some()));
            objects.extend(vdev.array);
            objects.extend(vdev.unflushed_array);
        }
    }
    Ok(objects)
}

impl LeftBehind {
    pub(crate) fn with_objects(self, objects: Vec<ObjectId>) -> Self {
        Self { objects, ..self }
    }
}

impl SyncContext<'_> {
    /// The outer error suspends the pool; the inner error means that nothing changed.
    fn split_off(&self, sides: &[Guid]) -> Result<Result<Vec<SplitSide>, SplitError>, PoolError> {
        let pool = self.pool;
        if let Some(refusal) = pool.checkpoint_refusal() {
            return Ok(Err(SplitRefusal::from(refusal).into()));
        }
        pool.take_in_missed();
        pool.refresh_topology()?;
        let topology = pool.store.topology();
        if let Err(refusal) = rearrange::split(&pool.state.read().config.root, sides) {
            return Ok(Err(refusal.into()));
        }
        if let Err(refusal) = check_complete(&topology, sides) {
            return Ok(Err(refusal));
        }
        for side in sides {
            if let Err(refusal) = self.may_detach(*side) {
                return Ok(Err(AttachError::from(refusal).into()));
            }
        }
        let mut gone = vec![];
        for side in sides {
            match self.detach_leaf(*side)? {
                Ok(found) => gone.extend(found.map(|gone| (gone.config, gone.device))),
                Err(refusal) => return Ok(Err(refusal.into())),
            }
        }
        Ok(Ok(gone))
    }

    /// Destroys what belongs to the other pool only, in the first txg of the new one.
    pub(crate) fn finish_split(&self, left: &LeftBehind, from: &str) -> Result<(), PoolError> {
        for leaf in &left.leaves {
            self.free_leaf_objects(leaf)?;
        }
        for object in &left.objects {
            self.free_space_map(*object)?;
        }
        for top in &left.tops {
            if let Some(zap) = top.zap_top.and_then(ObjectId::some) {
                self.free_vdev_zap(zap)?;
            }
        }
        for list in [key::SPARES, key::L2CACHE] {
            self.write_device_list(list, &[])?;
        }
        self.mark_config_dirty();
        self.history(&HistoryEvent::of_pool("split", format!("from pool {from}")))
    }
}
