//! How much space a pool has and uses.

use crate::pool::{Pool, SyncMode};
use millpond_alloc::{PoolLimit, PoolUsage, SlopShare};
use millpond_env::sync::atomic::Ordering;
use millpond_ondisk::Dva;
use millpond_txg::UnderWay;

/// What a byte of changes can occupy at most: three copies, gang blocks, and RAID-Z with three parities.
const WORST_CASE: u64 = 24;

impl Pool {
    /// The number of deflated bytes of one address.
    pub(crate) fn deflated_address_bytes(&self, dva: &Dva) -> u64 {
        let topology = self.store.topology();
        let is_deflated = self.is_deflated.load(Ordering::Relaxed);
        crate::space::deflated_address_bytes(&topology.tree, is_deflated, dva)
    }

    /// The pool's current space usage. Recently freed space counts as used until it can be reused.
    #[must_use]
    pub fn space(&self) -> PoolUsage {
        let mut usage = self.allocator.usage();
        let state = self.state.read();
        usage.deferred_free_bytes = state.deferred_free_bytes;
        usage.clone_saved_bytes = state.clones.saved_bytes;
        usage.dedup_saved_bytes = state.dedup.saved_bytes();
        drop(state);
        usage.checkpoint_bytes = self.checkpoint_bytes();
        usage
    }

    /// The space that datasets may use in total, for admitting requests of this kind.
    ///
    /// Page `docs/format/space-accounting.md`.
    #[must_use]
    pub fn limit(&self, share: SlopShare) -> PoolLimit {
        self.space().limit(share)
    }

    /// Limits dirty data to what certainly fits into `bytes` of free space. Not in caller-driven mode, in which
    /// nothing would write a txg while a caller waits.
    pub fn set_room_bytes(&self, bytes: u64) {
        if self.sync_mode == SyncMode::Thread {
            self.groups.set_room(bytes / WORST_CASE);
        }
    }

    /// The most bytes that this can occupy, of the space that datasets see.
    #[must_use]
    pub fn worst_case(&self, under_way: UnderWay) -> u64 {
        let blocks = self
            .store
            .topology()
            .tree
            .gang_deflated_bytes(under_way.stored_bytes);
        self.worst_case_bytes(under_way.other_bytes)
            .saturating_add(blocks)
    }

    /// The most bytes that `logical_bytes` of changes can occupy, with three copies, RAID-Z and gang
    /// blocks.
    fn worst_case_bytes(&self, logical_bytes: u64) -> u64 {
        let topology = self.store.topology();
        let shifts = topology.tree.tops().map(|(_, top)| top.ashift.0);
        logical_bytes
            .max(1 << shifts.max().unwrap_or(9).min(16))
            .saturating_mul(WORST_CASE)
    }
}
