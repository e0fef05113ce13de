//! What must be true in memory before a txg is committed.
//!
//! Release builds check it too: a txg that fails is not committed. The pool is suspended, and its state on
//! disk stays that of the txg before.

use super::context::SyncContext;
use crate::{Pool, PoolError};

impl Pool {
    /// Checks the order of txgs, and that every change of this txg was written.
    ///
    /// # Errors
    /// [`PoolError::Inconsistent`]: the txg must not be committed.
    pub(super) fn check_before_commit(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        let txg = ctx.txg();
        let committed = self.state.read().uberblock.txg;
        let is_closed = self.groups.synced_txg() < txg && txg < self.groups.open_txg();
        let is_returned = ctx.sync_state.dead.lock().is_empty();
        let is_counted = ctx.sync_state.cloned.lock().is_empty();
        let is_stored = !self.dedup.lock().has_pending();
        let is_charged = ctx.sync_state.mos_change.lock().is_zero();
        let rules = [
            (committed < txg, "the last committed txg is not older"),
            (
                !self.mos.is_dirty(txg),
                "an object of the MOS is not written",
            ),
            (
                is_returned,
                "a freed block was not returned to the allocator",
            ),
            (is_counted, "a cloned block is in no clone table"),
            (is_stored, "an entry of a dedup table is not stored"),
            (is_charged, "the MOS is not charged for a block"),
            (
                !self.store.has_outstanding(),
                "a block is not on the devices",
            ),
            (
                !self.allocator.has_changes(txg),
                "a change of free space is in no space map",
            ),
            (is_closed, "it is not a closed txg"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, what)) => Err(PoolError::Inconsistent { txg, what }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::context::{SyncContext, TxgSyncState};
    use crate::PoolError;
    use crate::tests::made::{NoDatasets, Shape, make};
    use millpond_env::sync::Arc;
    use millpond_ondisk::{BlockPointer, Level, ObjectType, Txg};
    use millpond_sim::World;

    #[test]
    fn a_txg_with_unwritten_changes_is_not_committed() {
        let world = World::new(71);
        let pool = make(&world, Shape::ONE, Arc::new(NoDatasets::default()));
        let committed = pool.state.read().uberblock.txg;
        let refusal = |txg: Txg, change: fn(&TxgSyncState)| {
            let tx = pool.groups.begin(0).unwrap();
            let state = Arc::new(TxgSyncState::new(txg, tx));
            change(&state);
            let ctx = SyncContext {
                pool: &pool,
                sync_state: state,
            };
            match pool.check_before_commit(&ctx) {
                Err(PoolError::Inconsistent { what, .. }) => what,
                other => panic!("{other:?}"),
            }
        };
        let open = pool.groups.open_txg();
        assert!(refusal(committed, |_| {}).contains("not older"));
        assert!(refusal(open, |_| {}).contains("not a closed txg"));
        let freed = |state: &TxgSyncState| {
            let hole = BlockPointer::hole(512, ObjectType::NONE, Level(0), Txg(0));
            let entry = (hole, Txg(0));
            state.dead.lock().push(entry);
        };
        assert!(refusal(open, freed).contains("freed block"));
        let cloned = |state: &TxgSyncState| state.cloned.lock().push(BlockPointer::default());
        assert!(refusal(open, cloned).contains("clone table"));
        let charged = |state: &TxgSyncState| state.mos_change.lock().used = 512;
        assert!(refusal(open, charged).contains("not charged"));
    }
}
