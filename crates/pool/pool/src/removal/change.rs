//! Begins and cancels removals of data vdevs (`zpool remove`).

use super::check::{self, Removable};
use super::objects::MappingObjects;
use super::obsolete::OBSOLETE_COUNTS;
use super::{ActiveRemoval, DEVICE_REMOVAL};
use crate::PoolError;
use crate::history::append::HistoryEvent;
use crate::pool::Pool;
use crate::sync::context::SyncContext;
use crate::vdevs::rearrange::leaves_of;
use crate::vdevs::remove::RemoveError;
use crate::vdevs::remove_log::NoAllocation;
use millpond_env::mark;
use millpond_ondisk::pool_directory::{OBJECT_DIRECTORY, key, vdev_key};
use millpond_ondisk::{Dva, Guid, RemovalPhase, RemovalPhys, Txg, VdevId};
use millpond_vdev::{IndirectMapping, VdevConfig};

/// The txgs in which intent logs may leave the vdev. A log in use needs three.
const TXGS: usize = 16;
/// The space whose copies a cancelled removal frees at a time, in bytes. Bounds the ranges in memory.
const BATCH_BYTES: u64 = 1 << 30;

impl Pool {
    /// Begins to remove a data vdev: nothing is allocated on it any more, and [`Pool::removal_slice`] copies what is there.
    ///
    /// # Errors
    /// [`RemoveError`]. Except after [`RemoveError::Pool`], the pool is unchanged and continues to work.
    pub fn remove_data(&self, top: Guid) -> Result<(), RemoveError> {
        let view = self.committed()?;
        let Removable { vdev, .. } = check::removable(self, &view, top)?;
        drop(view);
        if self.port.has_locked_logs() {
            return Err(RemoveError::LockedLogs);
        }
        let no_allocation = NoAllocation::begin(self, vdev);
        if !self.move_logs(vdev)? {
            return Err(RemoveError::InUse);
        }
        // What the transactions allocated that were open is recorded then.
        self.sync()?;
        let view = self.committed()?;
        self.sync_task(|ctx| ctx.start_removal(&view, top))??;
        drop(no_allocation);
        self.scan.change(|_| ());
        let root = self.state.read().config.root.clone();
        let removed = root.children.iter().filter(|child| child.guid == top);
        let leaves = removed.flat_map(leaves_of).map(|leaf| leaf.guid);
        self.cancel_activities(&leaves.collect::<Vec<_>>())?;
        Ok(())
    }

    /// Makes every intent log leave a vdev on which nothing is allocated. Returns whether they have.
    pub(crate) fn move_logs(&self, vdev: VdevId) -> Result<bool, PoolError> {
        for _ in 0..TXGS {
            if !self.port.logs_use(vdev) {
                return Ok(true);
            }
            self.sync_task(|ctx| {
                self.port.end_logs(ctx)?;
                ctx.mark_config_dirty();
                Ok(())
            })?;
        }
        Ok(false)
    }

    /// Cancels the removal under way: the vdev keeps its data, and the copies are freed.
    ///
    /// # Errors
    /// [`RemoveError::NotRemoving`] if there is none.
    pub fn cancel_removal(&self) -> Result<(), RemoveError> {
        self.sync_task(|ctx| ctx.cancel_removal())??;
        self.scan.change(|_| ());
        Ok(())
    }
}

/// The outer error suspends the pool; the inner error means that nothing changed.
type Outcome = Result<Result<(), RemoveError>, PoolError>;

impl SyncContext<'_> {
    fn start_removal(&self, view: &crate::PoolView, top: Guid) -> Outcome {
        let pool = self.pool;
        let Removable { vdev, name, .. } = match check::removable(pool, view, top) {
            Ok(removable) => removable,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let Some(zap) = pool.top_zap(vdev) else {
            return Ok(Err(RemoveError::Unsupported));
        };
        self.feature_increment(DEVICE_REMOVAL)?;
        if self.feature_is_enabled(OBSOLETE_COUNTS) {
            self.set_table_number(zap, vdev_key::OBSOLETE_COUNTS_ARE_PRECISE, 1)?;
            self.feature_increment(OBSOLETE_COUNTS)?;
        }
        let objects = MappingObjects::create(self)?;
        pool.change_top(vdev, |top| {
            top.removing = true;
            top.non_allocating = true;
            top.indirect_mapping = Some(objects.mapping);
            top.indirect_births = Some(objects.births);
        });
        let before = pool.removal.with(|state| state.phys);
        let phys = RemovalPhys {
            phase: RemovalPhase::Active,
            vdev: Some(vdev),
            previous_indirect_vdev: before.and_then(|before| before.previous_indirect_vdev),
            start_time: pool.env.clock.wall_ns() / 1_000_000_000,
            end_time: 0,
            bytes_to_copy: pool.allocator.owned_bytes(vdev, self.txg()).unwrap_or(0),
            bytes_copied: 0,
        };
        pool.removal.begin(ActiveRemoval {
            vdev,
            mapping: IndirectMapping::default(),
            copied_to: 0,
        });
        self.put_removal(&phys)?;
        // Mappings are loaded after these, which must not need one.
        self.rewrite_object(OBJECT_DIRECTORY)?;
        let text = format!("{} vdev {} {name}", pool.name(), vdev.0);
        self.history(&HistoryEvent::of_pool("vdev remove started", text))?;
        Ok(Ok(()))
    }

    /// Stores the state of the removal.
    pub(crate) fn put_removal(&self, phys: &RemovalPhys) -> Result<(), PoolError> {
        self.set_directory_words(key::REMOVING, &phys.to_words())?;
        self.pool.removal.with(|state| state.phys = Some(*phys));
        Ok(())
    }

    /// Cancels the removal under way.
    pub(crate) fn cancel_removal(&self) -> Outcome {
        let pool = self.pool;
        let found = (pool.removal).with(|state| Some((state.phys?, state.active.take()?)));
        let Some((phys, active)) = found else {
            return Ok(Err(RemoveError::NotRemoving));
        };
        let vdev = active.vdev;
        self.free_copies(&active)?;
        let top = top_of(&pool.state.read().config.root, vdev);
        let name = top.as_ref().map_or_else(String::new, check::name_of);
        if let Some(objects) = top.as_ref().and_then(check::objects_of) {
            objects.free(self)?;
        }
        let map = pool.removal.with(|state| {
            state.obsolete.remove(&vdev);
            state.maps.remove(&vdev)
        });
        if let Some(map) = map {
            map.free(self, vdev, vdev_key::OBSOLETE_SPACE_MAP)?;
            self.feature_decrement(OBSOLETE_COUNTS)?;
        }
        let mut is_allocating = true;
        if let Some(zap) = pool.top_zap(vdev) {
            let flag = vdev_key::OBSOLETE_COUNTS_ARE_PRECISE;
            if self.table_number(zap, flag)?.is_some() {
                self.remove_table_entry(zap, flag)?;
                self.feature_decrement(OBSOLETE_COUNTS)?;
            }
            is_allocating = self.table_number(zap, "allocating")? != Some(0);
        }
        self.feature_decrement(DEVICE_REMOVAL)?;
        pool.change_top(vdev, |top| {
            top.removing = false;
            top.non_allocating = !is_allocating;
            top.indirect_mapping = None;
            top.indirect_births = None;
        });
        // Not before the commit: the intent log of an open txg could lie there. After a crash the removal would go on, and
        // free with its blocks what the mapping has of those that were there before.
        (pool.allocator).update_vdev(vdev, |space| {
            space.is_allocating = is_allocating;
            space.usable_from = Txg(self.txg().0.saturating_add(1));
        });
        self.put_removal(&RemovalPhys {
            phase: RemovalPhase::Cancelled,
            end_time: pool.env.clock.wall_ns() / 1_000_000_000,
            ..phys
        })?;
        mark::hit("removal-cancelled");
        let text = format!("{} vdev {} {name}", pool.name(), vdev.0);
        self.history(&HistoryEvent::of_pool("vdev remove canceled", text))?;
        Ok(Ok(()))
    }

    /// Frees the copies of all that is still in use on the vdev. Nothing refers to them.
    fn free_copies(&self, active: &ActiveRemoval) -> Result<(), PoolError> {
        let pool = self.pool;
        let (txg, end) = (self.txg(), active.mapping.end_bytes());
        let mut at = 0;
        while at < end {
            let owned = (pool.allocator).owned_space(active.vdev, txg, at, BATCH_BYTES);
            let Some(owned) = owned? else { break };
            for range in &owned.ranges {
                for part in active.mapping.mapped_parts(range) {
                    let dva = Dva {
                        vdev: part.vdev,
                        offset_bytes: part.offset_bytes,
                        asize_bytes: part.size_bytes,
                        is_gang: false,
                    };
                    pool.free_or_keep(txg, &dva, txg, false)?;
                }
            }
            at = owned.next_bytes;
        }
        Ok(())
    }
}

/// The configuration of a top-level vdev.
pub(super) fn top_of(root: &VdevConfig, vdev: VdevId) -> Option<VdevConfig> {
    root.children.get(vdev.0 as usize).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::made::{NoDatasets, Shape, make};
    use millpond_alloc::{AllocRequest, Placement};
    use millpond_env::sync::Arc;
    use millpond_sim::World;

    const LEAVING: VdevId = VdevId(1);

    /// A pool of two disks of which one is being removed.
    fn removing(world: &World) -> Arc<Pool> {
        let shape = Shape {
            disks: 2,
            ..Shape::ONE
        };
        let pool = make(world, shape, Arc::new(NoDatasets::default()));
        let started = pool.sync_task(|ctx| {
            ctx.feature_increment(DEVICE_REMOVAL)?;
            let objects = MappingObjects::create(ctx)?;
            ctx.pool.change_top(LEAVING, |top| {
                top.removing = true;
                top.non_allocating = true;
                top.indirect_mapping = Some(objects.mapping);
                top.indirect_births = Some(objects.births);
            });
            ctx.pool.removal.begin(ActiveRemoval {
                vdev: LEAVING,
                mapping: IndirectMapping::default(),
                copied_to: 0,
            });
            ctx.put_removal(&RemovalPhys {
                phase: RemovalPhase::Active,
                vdev: Some(LEAVING),
                previous_indirect_vdev: None,
                start_time: 1,
                end_time: 0,
                bytes_to_copy: 0,
                bytes_copied: 0,
            })
        });
        started.unwrap();
        (pool.allocator).update_vdev(LEAVING, |space| space.is_allocating = false);
        pool
    }

    /// After a crash before the commit the removal continues, and frees with the blocks of the log what was copied of others that
    /// were there before.
    #[test]
    fn logs_come_back_to_a_vdev_after_the_commit_of_the_cancellation() {
        let world = World::new(75);
        let pool = removing(&world);
        let log = AllocRequest::new(Placement::Log, 1 << 20, 1);
        let is_used = |txg| {
            let found = (0..16).map(|_| pool.allocator.allocate(txg, &log).unwrap());
            found.flatten().any(|dva| dva.vdev == LEAVING)
        };
        let is_early = pool.sync_task(|ctx| {
            ctx.cancel_removal()?.unwrap();
            Ok(is_used(Txg(ctx.txg().0 + 1)))
        });
        assert!(!is_early.unwrap());
        assert!(is_used(pool.groups.open_txg()));
    }
}
