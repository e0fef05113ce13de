//! Frees the blocks that died in a pass of a txg.
//!
//! A block whose last reference goes leaves the allocator and the cache. Without log space maps, frees of later passes wait
//! for the next txg.

use crate::PoolError;
use crate::bpobj::{BpObject, Drain};
use crate::dedup::{Released, lookup_order};
use crate::pool::Pool;
use crate::sync::context::SyncContext;
use millpond_env::mark;
use millpond_env::sync::atomic::Ordering;
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{BlockPointer, Level, Txg};

/// Without log space maps, frees are deferred to the next txg from this pass on.
const DEFER_FREES_FROM_PASS: u32 = 2;
/// How many deferred frees are handled together, so that a forged list takes little memory.
const DEFERRED_AT_ONCE: usize = 10_000;

impl Pool {
    /// Adds the references of blocks that were cloned since the last pass, then frees the blocks that died.
    ///
    /// Defers frees to the next txg if freeing them now would dirty space maps in every pass.
    pub(super) fn free_dead(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        let cloned = std::mem::take(&mut *ctx.sync_state.cloned.lock());
        let dead = std::mem::take(&mut *ctx.sync_state.dead.lock());
        if cloned.is_empty() && dead.is_empty() {
            return Ok(());
        }
        ctx.sync_state.has_changes.store(true, Ordering::Relaxed);
        if !cloned.is_empty() && self.note_cloned(&cloned, ctx.txg()) {
            ctx.mark_config_dirty();
        }
        let has_logs = ctx.feature_count(crate::space::maps::LOG_SPACE_MAP) > 0;
        if has_logs || ctx.pass() < DEFER_FREES_FROM_PASS {
            return self.release_blocks(ctx, &cloned, &dead);
        }
        self.release_blocks(ctx, &cloned, &[])?;
        if dead.is_empty() {
            return Ok(());
        }
        mark::hit("frees-deferred");
        let list = self.deferred_free_list(ctx)?;
        // The list has no place for `since`. Blocks of found intent logs, whose `since` is not their birth, are
        // all freed in pass 1.
        let is_birth = |(pointer, since): &(BlockPointer, Txg)| pointer.physical_birth() == *since;
        debug_assert!(dead.iter().all(is_birth), "a found block is deferred");
        let entries: Vec<(BlockPointer, bool)> = dead
            .into_iter()
            .map(|(pointer, _)| (pointer, false))
            .collect();
        list.append_all(ctx, &entries)?;
        self.state.write().deferred_free_bytes = list.phys()?.bytes;
        Ok(())
    }

    pub(crate) fn deferred_free_list(&self, ctx: &SyncContext<'_>) -> Result<BpObject, PoolError> {
        match ctx.directory_object(key::SYNC_BPLIST)? {
            Some(id) => BpObject::open(ctx, id),
            None => {
                let list = BpObject::create_sync_list(ctx)?;
                ctx.set_directory_number(key::SYNC_BPLIST, list.id().0)?;
                Ok(list)
            }
        }
    }

    /// Frees the blocks deferred by the previous txg.
    pub(super) fn free_deferred(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        let Some(id) = ctx.directory_object(key::SYNC_BPLIST)? else {
            return Ok(());
        };
        let list = BpObject::open(ctx, id)?;
        if list.phys()?.is_empty() {
            return Ok(());
        }
        let mut dead = vec![];
        list.drain(ctx, &mut |entry| {
            dead.push((entry.pointer, entry.pointer.physical_birth()));
            if dead.len() >= DEFERRED_AT_ONCE {
                self.release_blocks(ctx, &[], &std::mem::take(&mut dead))?;
            }
            Ok(Drain::Remove)
        })?;
        self.release_blocks(ctx, &[], &dead)?;
        self.state.write().deferred_free_bytes = 0;
        Ok(())
    }

    /// Adds references to `cloned`, then releases one of each block in `dead`. A block without further references
    /// is freed.
    ///
    /// A pointer with the dedup bit refers to the block of an entry, unless the entry was removed.
    pub(crate) fn release_blocks(
        &self,
        ctx: &SyncContext<'_>,
        cloned: &[BlockPointer],
        dead: &[(BlockPointer, Txg)],
    ) -> Result<(), PoolError> {
        let (shared, mut rest): (Vec<_>, Vec<_>) =
            dead.iter().partition(|(pointer, _)| pointer.is_dedup());
        let mut shared: Vec<(BlockPointer, Txg)> = shared;
        shared.sort_by_cached_key(|(pointer, _)| lookup_order(pointer));
        let mut added = Vec::with_capacity(cloned.len());
        self.change_dedup(|tables| {
            for pointer in cloned {
                if !pointer.is_dedup() || !tables.add(ctx, pointer)? {
                    added.push(pointer.without_dedup_bit());
                }
            }
            for (pointer, since) in shared {
                let released = tables.release(ctx, &pointer)?;
                if !matches!(released, Released::NoEntry) {
                    self.log_holds.lock().release(&pointer);
                }
                match released {
                    Released::Kept => {}
                    Released::Last(whole) => {
                        // Its states begin with the first of its pointers.
                        let since = since.min(whole.physical_birth());
                        self.free_now(ctx, &whole, since)?;
                    }
                    Released::NoEntry => rest.push((pointer.without_dedup_bit(), since)),
                }
            }
            Ok(())
        })?;
        self.change_clones(ctx, |clones| {
            for pointer in &added {
                clones.add(pointer)?;
            }
            for (pointer, since) in &rest {
                if !clones.release(pointer)? {
                    self.free_now(ctx, pointer, *since)?;
                }
            }
            Ok(())
        })
    }

    /// Stores the entries of dedup tables that changed since the last pass, and frees blocks that OpenZFS left to this.
    pub(super) fn store_dedup(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        let has_work = {
            let tables = self.dedup.lock();
            tables.has_pending() || ctx.pass() == 1 && tables.has_logged()
        };
        if !has_work {
            return Ok(());
        }
        for pointer in self.change_dedup(|tables| tables.store(ctx))? {
            self.free_now(ctx, &pointer, pointer.physical_birth())?;
        }
        Ok(())
    }

    /// Returns the space of a block to the allocator, including its gang headers and parts, and drops it from the cache.
    /// States before `since` do not contain it.
    ///
    /// If all copies of a gang header are lost, the parts of the block are unknown, and their space leaks. An error here
    /// would stop the pool for good.
    fn free_now(
        &self,
        ctx: &SyncContext<'_>,
        pointer: &BlockPointer,
        since: Txg,
    ) -> Result<(), PoolError> {
        let txg = ctx.txg();
        let is_unreferenced = pointer.physical_birth() == txg && !may_be_logged(pointer);
        let owned = match self.all_addresses(pointer) {
            Err(PoolError::Block { error, .. }) if error.is_damage() => {
                mark::hit("freed-gang-unreadable");
                ctx.note_lost_pieces(pointer, &error);
                self.store.header_extents(pointer)
            }
            owned => owned?,
        };
        for dva in owned {
            self.free_address(txg, &dva, since, is_unreferenced)?;
        }
        self.store.forget(pointer);
        Ok(())
    }
}

/// Whether a record of an intent log may point to a block: a file or volume takes over what the log of a large write wrote.
/// Until the txg is committed, the log on disk needs it, though the block was freed.
fn may_be_logged(pointer: &BlockPointer) -> bool {
    pointer.level() == Level(0) && !pointer.object_type().is_metadata()
}

#[cfg(test)]
mod tests {
    use super::super::context::{SyncContext, TxgSyncState};
    use crate::tests::made::{NoDatasets, Shape, make};
    use millpond_alloc::{AllocRequest, Placement};
    use millpond_env::sync::Arc;
    use millpond_ondisk::{ChecksumKind, CompressionKind, Level, ObjectType, StoredBlock};
    use millpond_sim::World;

    /// A block that is freed in its own txg is space at once, unless a record of a log may point to it.
    #[test]
    fn blocks_that_a_log_may_need_are_not_reused_before_the_commit() {
        let world = World::new(72);
        let pool = make(&world, Shape::ONE, Arc::new(NoDatasets::default()));
        let tx = pool.groups.begin(0).unwrap();
        let txg = tx.txg();
        let ctx = SyncContext {
            pool: &pool,
            sync_state: Arc::new(TxgSyncState::new(txg, tx)),
        };
        for (object_type, level, is_space) in [
            (ObjectType::PLAIN_FILE, Level(0), false),
            (ObjectType::ZVOL, Level(0), false),
            (ObjectType::PLAIN_FILE, Level(1), true),
            (ObjectType::DNODE, Level(0), true),
        ] {
            let request = AllocRequest::new(Placement::Normal, 4096, 1);
            let dvas = pool.allocator.allocate(txg, &request).unwrap();
            let block = StoredBlock {
                dvas: &dvas,
                lsize_bytes: 4096,
                psize_bytes: 4096,
                compression: CompressionKind::Off,
                checksum: ChecksumKind::Fletcher4,
                checksum_words: [1, 2, 3, 4],
                object_type,
                level,
                birth: txg,
                fill: 1,
            };
            pool.free_now(&ctx, &block.pointer(), txg).unwrap();
            let is_allocatable = pool.allocator.claim(txg, &dvas[0]).is_ok();
            assert_eq!(is_allocatable, is_space, "{object_type:?} {level:?}");
        }
    }
}
