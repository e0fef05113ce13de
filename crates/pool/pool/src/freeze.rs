//! A frozen pool: what is on its devices stays as of one txg, as if the power failed then. For tests of intent logs.
//!
//! Txgs go on, so that nothing waits: their blocks are written to free space. But no uberblock and no label follows, and no
//! space is used again that was freed since. Intent logs are written as before and keep all that they hold, because their
//! records are not in the tree that an import finds. Nothing thaws a pool but importing it again, which replays the logs.

use crate::PoolError;
use crate::import::LeafState;
use crate::pool::Pool;
use crate::sync::context::SyncContext;
use millpond_env::Tunable;
use millpond_env::mark;
use millpond_env::sync::atomic::Ordering;
use millpond_ondisk::Txg;

impl Pool {
    /// Writes all changes, and freezes the pool.
    ///
    /// # Errors
    /// [`PoolError::Refused`] unless [`Tunable::AllowFreeze`] is on, and while the pool is moving its data to other places.
    pub fn freeze(&self) -> Result<(), PoolError> {
        let refused = |why| Err(PoolError::Refused { why });
        if !self.env.tunables.is_on(Tunable::AllowFreeze) {
            return refused(
                "freezing loses changes, and is only for tests; \
                 'millpond tunable millpond_allow_freeze 1' allows it",
            );
        }
        // Both overwrite places as soon as a txg is committed that does not refer to them.
        if self.is_expanding() || self.is_removing() {
            return refused("it cannot be frozen while a device is removed or a RAID-Z expanded");
        }
        self.sync()?;
        let _none_is_written = self.syncing.lock();
        let txg = self.groups.synced_txg();
        let before =
            (self.frozen_at).compare_exchange(0, txg.0, Ordering::AcqRel, Ordering::Acquire);
        match before {
            Ok(_) => {
                mark::hit("pool-frozen");
                tracing::warn!(pool = %self.name(), txg = txg.0, "frozen: no txg is committed any more");
                Ok(())
            }
            Err(_) => refused("it is frozen already"),
        }
    }

    /// Whether [`Pool::freeze`] was called.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.frozen_at.load(Ordering::Acquire) != 0
    }

    /// The last txg that an import would find: that of the freeze, if the pool is frozen.
    #[must_use]
    pub fn stable_txg(&self) -> Txg {
        self.stable_part_of(self.groups.synced_txg())
    }

    /// The same when `txg` is the last one that was written.
    #[must_use]
    pub fn stable_part_of(&self, txg: Txg) -> Txg {
        match self.frozen_at.load(Ordering::Acquire) {
            0 => txg,
            frozen => txg.min(Txg(frozen)),
        }
    }

    /// Commits the txg, unless the pool is frozen.
    pub(crate) fn commit_unless_frozen(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        if !self.is_frozen() {
            return self.commit(ctx);
        }
        self.refresh_topology()?;
        let mut state = self.state.write();
        state.config_committed = state.config_written;
        Ok(())
    }

    /// Leaves a frozen pool: its logs get what they lack, and the devices stay as after a crash.
    pub(crate) fn leave_frozen(&self, as_what: LeafState) -> Result<(), PoolError> {
        if as_what == LeafState::Destroyed {
            return Err(PoolError::Refused {
                why: "it is frozen, so its labels cannot say so; export it, import it, and try again",
            });
        }
        self.port.write_logs()?;
        self.close();
        Ok(())
    }
}
