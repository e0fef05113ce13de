//! How much space a pool has and uses.

use crate::pool::{Pool, SyncMode};
use millpond_alloc::{PoolLimit, PoolUsage, SlopShare};
use millpond_env::sync::atomic::Ordering;
use millpond_ondisk::Dva;
use millpond_vdev::VdevKind;

/// What a byte of changes can occupy at most: three copies, gang blocks, and RAID-Z with three parities.
const WORST_CASE: u64 = 24;
/// What a byte of one copy of a large block can occupy at most: gang blocks, and parity.
const REST_WORST_CASE: u64 = 3;
const REST_WORST_CASE_PARITY: u64 = 8;

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

    /// The most bytes that data of this length can occupy, of blocks of many sectors: the copies are counted already. Parity
    /// takes as much as three times the data in the narrowest vdevs, and pieces of gang blocks have parity of their own.
    #[must_use]
    pub fn worst_case_of_rests(&self, bytes: u64) -> u64 {
        let topology = self.store.topology();
        let has_parity = topology.tree.tops().any(|(_, top)| {
            let kind = &top.kind;
            matches!(kind, VdevKind::Raidz(_) | VdevKind::Draid(_))
        });
        bytes.saturating_mul(match has_parity {
            true => REST_WORST_CASE_PARITY,
            false => REST_WORST_CASE,
        })
    }

    /// The most bytes that `logical_bytes` of changes can occupy, with three copies, RAID-Z and gang
    /// blocks.
    #[must_use]
    pub fn worst_case_bytes(&self, logical_bytes: u64) -> u64 {
        let topology = self.store.topology();
        let shifts = topology.tree.tops().map(|(_, top)| top.ashift.0);
        logical_bytes
            .max(1 << shifts.max().unwrap_or(9).min(16))
            .saturating_mul(WORST_CASE)
    }
}
