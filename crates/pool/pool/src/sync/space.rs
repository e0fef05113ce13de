//! Space for the blocks of a txg.
//!
//! Writers are admitted by the space that datasets use. Space that was freed and is not allocatable yet does not
//! count there: what views hold back, and what the last txgs freed. A txg can need it. What it needs at most is
//! not known before it is written, as copies, parity, gang blocks and records of which only a part was dirtied
//! take many times the dirty bytes. So the space is given up only when an allocation fails.

use crate::pool::Pool;
use millpond_block::{Allocate, NoSpace, SpaceRequest};
use millpond_ondisk::{Dva, Txg};

/// Below this size, a failed allocation means that hardly anything is free.
const SMALL_BYTES: u64 = 16 << 10;

/// Allocates for the txg that is being written.
pub(crate) struct SyncAllocator<'a> {
    pub(crate) pool: &'a Pool,
}

impl Allocate for SyncAllocator<'_> {
    fn allocate(&self, txg: Txg, request: &SpaceRequest<'_>) -> Result<Vec<Dva>, NoSpace> {
        let allocator = &self.pool.allocator;
        let found = Allocate::allocate(allocator, txg, request);
        // A pool with enough free space may have no large run. It gets a gang block.
        let is_needed = || request.psize_bytes <= SMALL_BYTES || allocator.is_short();
        if found.is_ok() || !is_needed() || !self.pool.release_all_freed() {
            return found;
        }
        Allocate::allocate(allocator, txg, request)
    }

    fn release(&self, txg: Txg, dva: &Dva) -> Result<(), String> {
        Allocate::release(&self.pool.allocator, txg, dva)
    }
}

impl Pool {
    /// Makes all space allocatable that was freed up to the last commit, and expires the views that hold it
    /// back. Returns whether there may be more space now.
    ///
    /// A txg rarely gets here, because the rests of partly changed blocks are counted before. No test does.
    ///
    /// Several threads that write one txg may call it at the same time: each returns when all space is
    /// allocatable.
    fn release_all_freed(&self) -> bool {
        // As after a commit: a repair that a read began before may go to another block from now on.
        let until = self.uberblock().txg;
        self.store.space_is_reusable(until);
        let now_ns = self.env.clock.monotonic_ns();
        let pinned = self.pins.release(until, true, now_ns);
        match self.allocator.release_freed(until, &pinned) {
            Ok(()) => true,
            Err(error) => {
                tracing::error!(%error, "freed space is not usable");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::made::{NoDatasets, Shape, make};
    use millpond_block::{BlockAddress, BlockWrite};
    use millpond_device::Device;
    use millpond_env::mark;
    use millpond_env::sync::Arc;
    use millpond_ondisk::{CompressionKind, ObjectType, VDEV_DATA_START_BYTES};
    use millpond_sim::{RequestKind, World, noise};

    /// The block that is read may have been freed, and its space be another block before the repair is written.
    #[test]
    fn a_txg_that_takes_what_was_freed_ends_the_repairs_of_reads_under_way() {
        let _mark = mark::expect("late-repair-dropped");
        let world = World::new(74);
        let pool = make(&world, Shape::MIRROR, Arc::new(NoDatasets::default()));
        let tx = pool.groups.begin(0).unwrap();
        let (address, content) = (BlockAddress::default(), noise(1, 8192));
        let job = BlockWrite {
            compression: CompressionKind::Off,
            ..BlockWrite::new(address, ObjectType::PLAIN_FILE, Arc::new(content.clone()))
        };
        let allocator = SyncAllocator { pool: &pool };
        let mut written = pool.store.write(tx.txg(), &allocator, vec![job]);
        let pointer = written.pop().unwrap().unwrap().pointer;
        pool.store.flush().unwrap();
        pool.store.set_repair(true);
        let start = VDEV_DATA_START_BYTES + pointer.dvas().next().unwrap().offset_bytes;
        // While a side is read, a txg needs space.
        let writer = Arc::downgrade(&pool);
        world.watch(move |request| {
            if request.kind == RequestKind::Read
                && let Some(pool) = writer.upgrade()
            {
                assert!(pool.release_all_freed());
            }
        });
        for disk in world.disks() {
            disk.rot(start, &[0; 8192]);
            let read = pool.store.read_uncached(&pointer, address, None).unwrap();
            assert!(*read.bytes == content);
            let mut found = vec![1; 8192];
            disk.read(start, &mut found).unwrap();
            assert!(found == [0; 8192], "disk {}", disk.number());
            disk.rot(start, &content);
        }
    }
}
