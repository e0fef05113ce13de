//! Writes a txg.
//!
//! Each pass does the following:
//!
//! 1. Write the datasets (in pass 1, and in pass 2 for changes made by sync tasks).
//! 2. Write the MOS.
//! 3. Run the sync tasks (in pass 1).
//! 4. Free dead blocks.
//! 5. Write the space maps. This dirties the MOS again, so the next pass writes it.
//!
//! The passes converge because from pass 2 on blocks are rewritten in place. Each pass therefore allocates
//! less than the one before, until a pass allocates nothing. Then the txg is committed. Until the commit
//! nothing that the last committed state references is overwritten, and nothing is acknowledged.
//!
//! Page `docs/format/commit-order.md`.

use crate::PoolError;
use crate::error::Reading;
use crate::failure::Suspension;
use crate::labels::{self, Commit, WriteOrder};
use crate::pool::{Pool, SyncMode};
use crate::space::maps::MapWriter;
use crate::sync::context::{SyncContext, TxgSyncState};
use crate::sync::sink::MosSink;
use crate::sync::tasks::TaskTime;
use millpond_alloc::PoolAllocator;
use millpond_block::RetryPolicy;
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::Ordering;
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{Guid, RaidzReflow, Txg};
use millpond_txg::SyncingTxg;
use std::collections::BTreeSet;
use std::time::Duration;

/// A txg that still dirties the MOS after this many passes does not converge. Pools normally take 3 to 6.
const PASSES_MAX: u32 = 60;
/// How long the sync thread sleeps when it is not woken.
const IDLE: Duration = Duration::from_secs(5);

/// Suspends the pool if writing a txg panics, so that no caller waits forever. Disarmed with `mem::forget` on success.
struct SyncGuard<'a> {
    pool: &'a Pool,
    txg: Txg,
}

impl Drop for SyncGuard<'_> {
    fn drop(&mut self) {
        mark::hit("sync-panicked");
        self.pool
            .stop(self.txg, "the thread that writes txgs panicked");
    }
}

/// How long a caller that drives the pool waits for the transactions of other threads. One of its own never ends.
const TRANSACTIONS_END: Duration = Duration::from_secs(60);

/// A task of the thread that writes the txg.
struct Inline<'a> {
    time: TaskTime,
    run: &'a mut dyn FnMut(&SyncContext<'_>) -> Result<(), PoolError>,
}

impl Inline<'_> {
    /// Takes the task out, if this is its time.
    fn due(slot: &mut Option<Self>, time: TaskTime) -> Option<Self> {
        slot.take_if(|task| task.time == time)
    }
}

impl Pool {
    /// Starts the sync thread, unless the pool is in caller-driven sync mode.
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), PoolError> {
        if self.sync_mode == SyncMode::Caller {
            return Ok(());
        }
        let weak = Arc::downgrade(self);
        let groups = Arc::clone(&self.groups);
        let started = self.threads.spawn("millpond-sync", move || {
            loop {
                let next = groups.next_to_sync(IDLE);
                // Dropping the pool ended its groups. The thread holds the pool only while it writes a txg.
                let Some(pool) = weak.upgrade() else { return };
                match next {
                    Some(syncing) => {
                        let _ = pool.write_txg(&syncing, None);
                        pool.keep_heartbeat();
                    }
                    None if groups.has_ended() => return,
                    None if groups.failure().is_some() => {
                        if let Err(error) = pool.failure.check() {
                            pool.fail_tasks(&error);
                        }
                        return;
                    }
                    None => {}
                }
            }
        });
        started.map_err(|error| PoolError::Suspended {
            reason: format!("the sync thread could not be started: {error}"),
        })?;
        self.start_leaf_monitor()
    }

    /// Closes the open txg and writes it in the calling thread. For pools in caller-driven sync mode.
    ///
    /// # Errors
    /// [`PoolError::Suspended`] with the underlying error.
    pub fn sync_one(&self) -> Result<Txg, PoolError> {
        self.drive_one(None)
    }

    /// Like [`Pool::sync_one`], with a sync task in the txg.
    pub(crate) fn sync_with<R>(
        &self,
        time: TaskTime,
        run: impl FnOnce(&SyncContext<'_>) -> Result<R, PoolError>,
    ) -> Result<R, PoolError> {
        let mut run = Some(run);
        let mut value = None;
        let mut once = |ctx: &SyncContext<'_>| {
            if let Some(run) = run.take() {
                value = Some(run(ctx)?);
            }
            Ok(())
        };
        self.drive_one(Some(Inline {
            time,
            run: &mut once,
        }))?;
        value.ok_or_else(|| PoolError::Suspended {
            reason: "the task never ran".into(),
        })
    }

    fn drive_one(&self, inline: Option<Inline<'_>>) -> Result<Txg, PoolError> {
        self.failure.check()?;
        let _alone = self.driving.lock();
        let txg = self.groups.open_txg();
        self.groups.ask(txg);
        let mut inline = inline;
        loop {
            let syncing = self.groups.next_to_sync(TRANSACTIONS_END);
            let Some(syncing) = syncing else {
                self.failure.check()?;
                return Err(PoolError::Suspended {
                    reason: format!("txg {txg} does not quiesce: a transaction is still open"),
                });
            };
            let at = syncing.txg();
            let task = if at == txg { inline.take() } else { None };
            self.write_txg(&syncing, task)?;
            if at >= txg {
                return Ok(at);
            }
        }
    }

    /// Writes one txg and publishes the result. An error suspends the pool.
    fn write_txg(&self, syncing: &SyncingTxg, inline: Option<Inline<'_>>) -> Result<(), PoolError> {
        let _one = self.syncing.lock();
        let _retrying = self.store.retrying_thread();
        let txg = syncing.txg();
        let _span = tracing::debug_span!("txg", pool = %self.name(), txg = txg.0).entered();
        self.failure.begins(txg);
        let guard = SyncGuard { pool: self, txg };
        let outcome = self.try_write_txg(syncing, inline).and_then(|()| {
            // Not `txg`: a frozen pool commits nothing.
            self.allocator.note_committed(self.uberblock().txg);
            self.store.space_is_reusable(self.uberblock().txg);
            let is_short = self.allocator.is_short();
            // A txg above the last commit changed nothing, and a view of that commit must stay possible.
            let wanted = PoolAllocator::reusable_until(txg, is_short).min(self.uberblock().txg);
            let now_ns = self.env.clock.monotonic_ns();
            let must_expire = is_short || self.allocator.holds_too_many_ranges();
            let pinned = self.pins.release(wanted, must_expire, now_ns);
            Ok(self.allocator.synced(txg, wanted, &pinned)?)
        });
        std::mem::forget(guard);
        match outcome {
            Ok(()) => {
                tracing::debug!("synced");
                self.port.counted(self);
                self.groups.synced(txg);
                self.failure.committed(txg);
                self.port.committed(txg);
                // In caller-driven mode the caller decides when a txg ends.
                let has_more = self.has_more_to_discard() || self.has_listed_obsolete();
                if self.sync_mode == SyncMode::Thread && has_more {
                    self.groups.ask(Txg(txg.0.saturating_add(1)));
                }
                Ok(())
            }
            Err(error) => {
                mark::hit("pool-stops");
                tracing::debug!(%error, "the txg cannot be written");
                self.stop(txg, &error.to_string());
                Err(error)
            }
        }
    }

    /// Suspends the pool permanently and passes the reason to waiting callers.
    fn stop(&self, txg: Txg, reason: &str) {
        self.failure.suspend(Suspension {
            txg,
            reason: reason.to_owned(),
            can_resume: false,
            cause: self.suspension_cause(),
        });
        let words = self.failure.suspension().map(|why| why.reason);
        let reason = words.unwrap_or_else(|| reason.to_owned());
        self.groups.fail(&reason);
        self.fail_tasks(&PoolError::Suspended { reason });
    }

    fn try_write_txg(
        &self,
        syncing: &SyncingTxg,
        mut inline: Option<Inline<'_>>,
    ) -> Result<(), PoolError> {
        let txg = syncing.txg();
        let sync_state = Arc::new(TxgSyncState::new(txg, syncing.transaction()));
        let ctx = SyncContext {
            pool: self,
            sync_state: Arc::clone(&sync_state),
        };
        self.record_leaf_states();
        for pass in 1.. {
            if pass > PASSES_MAX {
                return Err(PoolError::NoConvergence {
                    txg,
                    passes: PASSES_MAX,
                });
            }
            sync_state.pass.store(pass, Ordering::Relaxed);
            tracing::trace!(pass, "sync pass");
            if pass == 3 {
                mark::hit("third-sync-pass");
            }
            let is_new = self.state.read().uberblock.root.is_hole();
            if pass == 1 {
                if txg == self.first_txg && !is_new {
                    self.port.claim_logs(&ctx)?;
                }
                // The task that creates a new pool may still fail here, before anything is written.
                if let Some(task) = Inline::due(&mut inline, TaskTime::First) {
                    (task.run)(&ctx)?;
                }
                self.early_tasks.run_due(&sync_state)?;
            }
            self.write_config_if_dirty(&ctx)?;
            if pass <= 2 {
                self.port.sync_datasets(&ctx)?;
            }
            self.charge_mos(&ctx)?;
            self.sync_mos(&ctx)?;
            if pass == 1 {
                if let Some(task) = Inline::due(&mut inline, TaskTime::AfterDatasets) {
                    (task.run)(&ctx)?;
                }
                self.tasks.run_due(&sync_state)?;
                self.discard_slice(&ctx)?;
                self.note_listed_obsolete(&ctx)?;
                ctx.log_met_errors()?;
                self.port.background(&ctx)?;
            }
            ctx.write_leaks()?;
            self.write_missed(&ctx)?;
            self.free_dead(&ctx)?;
            self.store_dedup(&ctx)?;
            if pass == 1 {
                // Sync tasks may have changed the configuration; pass 2 writes the resulting changes.
                self.write_config_if_dirty(&ctx)?;
                if !self.has_work(&ctx) {
                    mark::hit("txg-without-trace");
                    tracing::trace!("nothing to write");
                    return Ok(());
                }
                self.free_deferred(&ctx)?;
                self.store_dedup(&ctx)?;
            }
            self.write_space_maps(&ctx)?;
            let owes = sync_state.owes_blocks() || !sync_state.mos_change.lock().is_zero();
            if !owes && !self.mos.is_dirty(txg) && !self.is_config_unwritten() {
                // Losses found by this flush belong in this txg's dirty time logs: the next txg may never
                // be written.
                self.store.flush()?;
                if !self.take_in_missed() {
                    break;
                }
                mark::hit("loss-at-flush-logged");
            }
        }
        self.check_before_commit(&ctx)?;
        self.commit_unless_frozen(&ctx)
    }

    /// Whether this txg changed anything. If not, it is skipped without being written.
    fn has_work(&self, ctx: &SyncContext<'_>) -> bool {
        ctx.sync_state.has_changes.load(Ordering::Relaxed)
            || self.mos.is_dirty(ctx.txg())
            || ctx.sync_state.owes_blocks()
            || !ctx.sync_state.mos_change.lock().is_zero()
            || self.state.read().is_config_dirty()
    }

    fn is_config_unwritten(&self) -> bool {
        let state = self.state.read();
        state.is_config_dirty() && state.config_written != state.config_generation
    }

    /// Writes the configuration object if it is out of date.
    fn write_config_if_dirty(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        let list = {
            let mut state = self.state.write();
            if !state.is_config_dirty()
                || (state.config_written == state.config_generation
                    && state.config.txg == ctx.txg())
            {
                return Ok(());
            }
            // Also if nothing changed since an earlier txg that wrote no labels: their txg must equal this one.
            state.config.txg = ctx.txg();
            state.config_written = state.config_generation;
            state.config.pool_list()
        };
        ctx.write_packed_list(key::CONFIG, &list)
    }

    /// Charges `$MOS` for the blocks that its last pass wrote and freed.
    fn charge_mos(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        let change = std::mem::take(&mut *ctx.sync_state.mos_change.lock());
        if change.is_zero() {
            return Ok(());
        }
        self.port.charge_mos(ctx, change)
    }

    fn sync_mos(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        if !self.mos.is_dirty(ctx.txg()) {
            return Ok(());
        }
        ctx.sync_state.has_changes.store(true, Ordering::Relaxed);
        let sink = MosSink::new(ctx);
        let outcome = self.mos.sync(ctx.txg(), ctx.pass(), &sink);
        sink.finish().reading("pool metadata")?;
        outcome.reading("pool metadata")?;
        Ok(())
    }

    /// Makes the allocator write the changes since the last pass.
    fn write_space_maps(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        self.write_checkpoint_maps(ctx)?;
        self.write_obsolete_maps(ctx)?;
        let writer = MapWriter {
            ctx,
            maps: &self.maps,
        };
        if self.allocator.sync_pass(ctx.txg(), ctx.pass(), &writer)? {
            ctx.sync_state.has_changes.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The order in which leaves are written.
    pub(crate) fn write_order(&self) -> WriteOrder {
        match self.sync_mode {
            SyncMode::Thread => WriteOrder::Together,
            SyncMode::Caller => WriteOrder::OneByOne,
        }
    }

    /// Commits the txg: blocks, then labels 0 and 2, then the uberblock, then labels 1 and 3.
    pub(crate) fn commit(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        let txg = ctx.txg();
        self.refresh_topology()?;
        let topology = self.store.topology();
        // A heartbeat that is being written may be one to a leaf that is not in the tree any more.
        let delay_ns = self.heartbeat.hold().delay_ns;
        let reflow = self.reflow_to_commit(&topology);
        let (config, uberblock, multihost) = {
            let mut state = self.state.write();
            let now = self.env.clock.wall_ns() / 1_000_000_000;
            let mut uberblock = labels::next_uberblock(
                Some(&state.uberblock),
                state.config.version,
                txg,
                self.mos.root(),
                state.config.guid_sum(),
                now,
            );
            uberblock.raidz_reflow = RaidzReflow(reflow.to_uberblock());
            if state.multihost {
                uberblock = self.with_promise(uberblock, delay_ns);
            }
            state.committing = Some(uberblock);
            let config = state.is_config_dirty().then(|| state.config.clone());
            (config, uberblock, state.multihost)
        };
        let mut random = [0; 8];
        self.env.entropy.fill(&mut random);
        let tops = labels::all_tops(&topology);
        let what = Commit {
            uberblock: &uberblock,
            config: config.as_ref(),
            dirty_tops: &tops,
            written_tops: &[],
            multihost,
            random: u64::from_le_bytes(random),
            write_order: self.write_order(),
        };
        let report = loop {
            let since = self.failure.resumes();
            match labels::commit(&topology, &what) {
                Ok(report) => break report,
                // The retry writes the same bytes to the same offsets, so a partial first attempt is
                // harmless.
                Err(error)
                    if self.failure.has_retries()
                        && self.failure.wait(since, &error.to_string()) => {}
                Err(error) => return Err(error.into()),
            }
        };
        // Nothing of the old places is overwritten before those who read there have ended.
        self.store.set_reflow(reflow);
        let mut state = self.state.write();
        state.uberblock = uberblock;
        if config.is_some() {
            state.config_committed = state.config_written;
        }
        let failed: BTreeSet<Guid> = report
            .failures
            .iter()
            .filter_map(|(leaf, _)| Some(topology.tree.leaf(*leaf)?.config.guid))
            .collect();
        if !failed.is_subset(&state.label_failures) {
            // The labels of these leaves are now outdated. Rewrite those of their siblings, which makes the
            // outdated ones recognizable. This happens once, not in every txg.
            state.config_generation += 1;
        }
        if config.is_some() {
            state.label_failures = failed;
        } else {
            state.label_failures.extend(failed);
        }
        Ok(())
    }
}
