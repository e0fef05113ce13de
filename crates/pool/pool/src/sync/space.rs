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
        let until = self.uberblock().txg;
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
