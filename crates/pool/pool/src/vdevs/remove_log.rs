//! Removes log vdevs (`zpool remove`).
//!
//! Only intent logs lie on a log vdev. First nothing more is allocated there, and every log ends or moves on; a log that
//! is used meanwhile continues on other vdevs, and what was promised stays readable until a txg has it. When nothing is
//! left on the vdev, one txg takes it out of the tree together with its objects. Until that txg is committed, the vdev is
//! part of the pool and its devices keep their labels.
//!
//! Page `docs/format/vdev-tree.md`, "Removing log vdevs".

use crate::PoolError;
use crate::history::append::HistoryEvent;
use crate::labels::clear_labels;
use crate::pool::Pool;
use crate::sync::context::SyncContext;
use crate::vdevs::activity::PATIENCE;
use crate::vdevs::rearrange::{self, leaves_of};
use crate::vdevs::remove::RemoveError;
use crate::vdevs::topology::Added;
use millpond_block::Topology;
use millpond_device::Device;
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_ondisk::{Guid, ObjectId, PoolVersion, VdevId};
use millpond_vdev::{LeafId, VdevConfig};

/// The txgs in which the logs may leave. A log in use needs three, and space that was freed waits for two more.
const TXGS: usize = 16;
/// From then on, views of older states do not hold back what was freed.
const TXGS_WITH_VIEWS: usize = 8;

/// While it exists, nothing is allocated on a vdev.
pub(crate) struct NoAllocation<'p> {
    pool: &'p Pool,
    vdev: VdevId,
    guid: Guid,
    /// It was left out because its devices were lost when the pool was opened.
    was_lost: bool,
}

impl<'p> NoAllocation<'p> {
    pub(crate) fn begin(pool: &'p Pool, vdev: VdevId) -> Self {
        let (guid, is_wanted) = {
            let state = pool.state.read();
            let top = state.config.root.children.get(vdev.0 as usize);
            top.map_or((Guid(0), false), |top| (top.guid, !top.non_allocating))
        };
        let mut was_allocating = true;
        pool.allocator.update_vdev(vdev, |space| {
            was_allocating = std::mem::replace(&mut space.is_allocating, false);
        });
        Self {
            pool,
            vdev,
            guid,
            was_lost: is_wanted && !was_allocating,
        }
    }
}

impl Drop for NoAllocation<'_> {
    fn drop(&mut self) {
        let may = {
            let state = self.pool.state.read();
            let top = state.config.root.children.get(self.vdev.0 as usize);
            // If it was removed, another vdev may have its number already.
            top.filter(|top| top.guid == self.guid)
                .map(|top| !top.non_allocating)
        };
        if let Some(may) = may.filter(|_| !self.was_lost) {
            self.pool
                .allocator
                .update_vdev(self.vdev, |space| space.is_allocating = may);
        }
    }
}

impl Pool {
    /// Removes a log vdev, also one whose devices failed. They belong to no pool when this returns.
    ///
    /// # Errors
    /// [`RemoveError`]. Except after [`RemoveError::Pool`], the pool is unchanged and continues to work.
    pub fn remove_log(&self, top: Guid) -> Result<(), RemoveError> {
        let vdev = log_vdev(&self.state.read().config.root, top)?;
        if !PoolVersion(self.version()).has_holes() {
            return Err(RemoveError::OldPool);
        }
        if let Some(refusal) = self.checkpoint_refusal() {
            return Err(refusal.into());
        }
        if self.port.has_locked_logs() {
            return Err(RemoveError::LockedLogs);
        }
        let _pause = self.activities.pause(PATIENCE)?;
        let no_allocation = NoAllocation::begin(self, vdev);
        self.empty_log_vdev(vdev)?;
        // Another vdev may get the number, and readers do not expect one in the logs of space maps that does not exist.
        self.allocator.flush_all_in_next_txg();
        self.sync_task(|ctx| {
            ctx.mark_config_dirty();
            Ok(())
        })?;
        let gone = self.sync_task(|ctx| ctx.remove_log(top))??;
        drop(no_allocation);
        mark::hit("log-vdev-removed");
        for device in gone {
            // If this fails, the label shows an older txg than the pool's others, so it takes part in nothing.
            let _ = clear_labels(device.as_ref());
        }
        Ok(())
    }

    /// Makes every intent log leave a vdev, and waits until nothing is there any more.
    fn empty_log_vdev(&self, vdev: VdevId) -> Result<(), RemoveError> {
        for txg in 0..TXGS {
            self.sync_task(|ctx| {
                self.port.end_logs(ctx)?;
                // Also without a log to end: what was freed waits for the next txgs.
                ctx.mark_config_dirty();
                Ok(())
            })?;
            if self.is_left(vdev) {
                return Ok(());
            }
            if txg >= TXGS_WITH_VIEWS {
                let (until, now_ns) = (self.uberblock().txg, self.env.clock.monotonic_ns());
                self.pins.release(until, true, now_ns);
            }
        }
        Err(RemoveError::InUse)
    }

    /// Whether nothing is on a vdev any more. What is still allocated on one that cannot be read, although no log is
    /// there, belongs to logs that were given up when the pool was imported.
    fn is_left(&self, vdev: VdevId) -> bool {
        let topology = self.store.topology();
        let is_lost = |leaf: LeafId| {
            let device = topology.devices.get(leaf.0 as usize);
            !topology.condition(leaf).is_usable() || !device.is_some_and(Option::is_some)
        };
        !self.port.logs_use(vdev)
            && (self.allocator.allocated_bytes(vdev).unwrap_or(0) == 0
                || !topology.tree.survives(vdev, &is_lost))
    }
}

/// The number of a log vdev.
fn log_vdev(root: &VdevConfig, top: Guid) -> Result<VdevId, RemoveError> {
    let mut tops = (0u32..).zip(&root.children);
    match tops.find(|(_, vdev)| vdev.guid == top && top.0 != 0) {
        Some((number, vdev)) if vdev.is_log => Ok(VdevId(number)),
        Some(_) => Err(RemoveError::Unsupported),
        // A side of a mirror is detached instead.
        None if rearrange::path_to(root, top).is_some() => Err(RemoveError::Unsupported),
        None => Err(RemoveError::NoSuchDevice),
    }
}

pub(crate) fn devices_of(topology: &Topology, leaves: &[&VdevConfig]) -> Vec<Arc<dyn Device>> {
    let device = |leaf: &&VdevConfig| {
        let number = topology.tree.find_leaf(leaf.guid)?;
        topology.devices.get(number.0 as usize)?.clone()
    };
    leaves.iter().filter_map(device).collect()
}

type Gone = Vec<Arc<dyn Device>>;

impl SyncContext<'_> {
    /// The outer error suspends the pool; the inner error means that nothing changed.
    fn remove_log(&self, top: Guid) -> Result<Result<Gone, RemoveError>, PoolError> {
        let pool = self.pool;
        if let Some(refusal) = pool.checkpoint_refusal() {
            return Ok(Err(refusal.into()));
        }
        pool.take_in_missed();
        pool.refresh_topology()?;
        let topology = pool.store.topology();
        let root = pool.state.read().config.root.clone();
        let vdev = match log_vdev(&root, top) {
            Ok(vdev) => vdev,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if !pool.is_left(vdev) {
            return Ok(Err(RemoveError::InUse));
        }
        let Some((root, gone)) = rearrange::without_top(&root, vdev) else {
            return Ok(Err(RemoveError::NoSuchDevice));
        };
        self.forget_rebuild(vdev)?;
        let leaves = leaves_of(&gone);
        let devices = devices_of(&topology, &leaves);
        for object in pool.maps.take_vdev(vdev) {
            self.free_space_map(object)?;
        }
        for leaf in &leaves {
            self.free_leaf_objects(leaf)?;
        }
        if let Some(zap) = gone.zap_top.and_then(ObjectId::some) {
            self.free_vdev_zap(zap)?;
        }
        pool.allocator.remove_vdev(vdev);
        pool.put_tree(root, &Added::default(), |missed| {
            missed.retain(|guid, _| !leaves.iter().any(|leaf| leaf.guid == *guid));
        })?;
        self.mark_config_dirty();
        self.settle_deferral()?;
        let name = gone.path.clone();
        let name = name.unwrap_or_else(|| format!("{}-{}", gone.kind.name(), vdev.0));
        let text = format!("{} vdev {} (log) {name}", pool.name(), vdev.0);
        self.history(&HistoryEvent::of_pool("vdev remove", text))?;
        Ok(Ok(devices))
    }
}
