//! Starts, cancels and ends rebuilds.

use super::{DEVICE_REBUILD, Rebuild, RebuildPass, RebuiltTop};
use crate::PoolError;
use crate::error::Reading;
use crate::history::append::HistoryEvent;
use crate::pool::{Pool, PoolState};
use crate::sync::context::SyncContext;
use crate::vdevs::attach::FIRST_TXG;
use crate::vdevs::dtl::DirtyTimeLog;
use millpond_env::Tunable;
use millpond_env::mark;
use millpond_ondisk::pool_directory::vdev_key;
use millpond_ondisk::zap::ZapValue;
use millpond_ondisk::{Guid, ObjectId, RebuildPhase, RebuildPhys, Txg, VdevId};
use std::collections::BTreeSet;

impl Pool {
    /// Takes the txgs below `end` out of the log of a leaf to which all of them were copied by txg `ended`. It then needs a
    /// resilver only if it missed others.
    fn excise_rebuilt(&self, leaf: Guid, end: Txg, ended: Txg) {
        let mut state = self.state.write();
        let PoolState {
            missed, refilled, ..
        } = &mut *state;
        let is_complete = match missed.get_mut(&leaf) {
            Some(missed) => {
                refilled.entry(leaf).or_default().note(missed, ended);
                missed.excise(end, &BTreeSet::new());
                missed.ranges().is_empty()
            }
            None => true,
        };
        state.is_topology_stale = true;
        state.assembly = None;
        drop(state);
        let topology = self.store.topology();
        let number = topology.tree.find_leaf(leaf);
        let counters = number.and_then(|leaf| topology.counters.get(leaf.0 as usize));
        if let Some(counters) = counters {
            counters.forget_missed(end);
        }
        self.change_leaf(leaf, |config| {
            let txg = config.rebuild_txg.take();
            if !is_complete {
                config.resilver_txg = txg;
            }
        });
    }

    /// Gives leaves up as sides that are rebuilt. They lack everything, until a resilver that verifies checksums has ended:
    /// what was copied to them may be lost, and with it newer blocks over which it was copied.
    pub(crate) fn resilver_instead(&self, leaves: &BTreeSet<Guid>, txg: Txg) {
        for leaf in leaves {
            if self.leaf_config(*leaf, |config| config.rebuild_txg.is_some()) != Some(true) {
                continue;
            }
            mark::hit("rebuild-falls-back");
            let mut state = self.state.write();
            let missed: &mut DirtyTimeLog = state.missed.entry(*leaf).or_default();
            missed.add(FIRST_TXG..txg.0.saturating_add(1));
            state.is_topology_stale = true;
            state.assembly = None;
            drop(state);
            self.change_leaf(*leaf, |config| {
                config.resilver_txg = config.rebuild_txg.take();
            });
        }
    }
}

impl SyncContext<'_> {
    /// Begins the rebuild of the top-level vdev of a new leaf, from its beginning. One that is under way starts again, for
    /// all its new leaves.
    ///
    /// `ready`: the last txg of which writes may not know the leaf, and the end of what it lacks.
    pub(crate) fn begin_rebuild(&self, leaf: Guid, ready: Txg) -> Result<(), PoolError> {
        let pool = self.pool;
        let tops = pool.all_tops();
        let Some(top) = tops.into_iter().find(|top| top.targets.contains(&leaf)) else {
            return Ok(());
        };
        let now_s = self.now_s();
        let phys = RebuildPhys {
            phase: RebuildPhase::Active,
            min_txg: Txg(FIRST_TXG.saturating_sub(1)),
            max_txg: ready,
            start_time: now_s,
            estimated_bytes: pool.allocator.allocated_bytes(top.id).unwrap_or(0),
            ..RebuildPhys::default()
        };
        let was_active = pool.rebuilds.active(top.zap).is_some();
        pool.rebuilds.with(|state| {
            state.serial += 1;
            let rebuild = Rebuild {
                phys,
                serial: state.serial,
                ready,
                pass: RebuildPass {
                    start_s: now_s,
                    ..RebuildPass::default()
                },
            };
            state.rebuilds.insert(top.zap, rebuild);
        });
        self.store_rebuild(top.zap, &phys)?;
        if was_active {
            return self.note_rebuild(&top, "reset");
        }
        self.feature_increment(DEVICE_REBUILD)?;
        self.note_scan("resilver_start");
        self.note_rebuild(&top, "started")
    }

    pub(super) fn store_rebuild(&self, zap: ObjectId, phys: &RebuildPhys) -> Result<(), PoolError> {
        let value = ZapValue::from_u64s(&phys.to_words());
        let what = "state of a sequential resilver";
        let table = self.table(zap)?;
        table
            .update(vdev_key::REBUILD.as_bytes(), &value)
            .reading(what)
    }

    /// Gives up leaves to which something may not have been copied durably.
    pub(super) fn give_up_rebuilt(&self, leaves: &BTreeSet<Guid>) {
        if !leaves.is_empty() {
            self.pool.resilver_instead(leaves, self.txg());
            self.mark_config_dirty();
        }
    }

    /// Ends a rebuild after its last slice. After errors, its leaves keep what they lack.
    pub(super) fn finish_rebuild(
        &self,
        top: &RebuiltTop,
        phys: &RebuildPhys,
    ) -> Result<(), PoolError> {
        let pool = self.pool;
        if phys.errors > 0 {
            self.give_up_rebuilt(&top.targets.iter().copied().collect());
        } else {
            pool.take_in_missed();
            for leaf in &top.targets {
                pool.excise_rebuilt(*leaf, phys.max_txg, self.txg());
            }
            let wants_scrub = pool.env.tunables.is_on(Tunable::RebuildScrubEnabled);
            if wants_scrub {
                pool.rebuilds.with(|state| {
                    state.is_scrub_due = true;
                    state.unverified.insert(top.zap);
                });
            }
        }
        self.mark_config_dirty();
        self.end_rebuild(top, RebuildPhase::Complete, "complete")
    }

    /// Ends a rebuild whose leaves are gone or out of use. Those that are left keep what they lack.
    pub(super) fn cancel_rebuild(&self, top: &RebuiltTop) -> Result<(), PoolError> {
        self.give_up_rebuilt(&top.targets.iter().copied().collect());
        self.end_rebuild(top, RebuildPhase::Canceled, "canceled")
    }

    fn end_rebuild(
        &self,
        top: &RebuiltTop,
        phase: RebuildPhase,
        word: &str,
    ) -> Result<(), PoolError> {
        let end_time = self.now_s();
        let phys = self.pool.rebuilds.with(|state| {
            state.serial += 1;
            let serial = state.serial;
            let rebuild = state.rebuilds.get_mut(&top.zap)?;
            rebuild.phys.phase = phase;
            rebuild.phys.end_time = end_time;
            rebuild.serial = serial;
            Some(rebuild.phys)
        });
        let Some(phys) = phys else { return Ok(()) };
        self.store_rebuild(top.zap, &phys)?;
        // A pool of another writer may count wrongly.
        if self.feature_count(DEVICE_REBUILD) > 0 {
            self.feature_decrement(DEVICE_REBUILD)?;
        }
        if phase == RebuildPhase::Complete {
            self.note_scan("resilver_finish");
        }
        mark::hit("rebuild-ends");
        self.note_rebuild(top, word)
    }

    /// Cancels rebuilds whose leaves have left the tree.
    pub(crate) fn settle_rebuilds(&self) -> Result<(), PoolError> {
        for top in self.pool.rebuilt_tops() {
            if top.targets.is_empty() && self.pool.rebuilds.active(top.zap).is_some() {
                self.cancel_rebuild(&top)?;
            }
        }
        Ok(())
    }

    /// Forgets rebuilds that have ended: a resilver begins, whose result is newer.
    pub(crate) fn clear_rebuilds(&self) -> Result<(), PoolError> {
        for top in self.pool.rebuilt_tops() {
            if self.pool.rebuilds.active(top.zap).is_none() {
                (self.pool.rebuilds).with(|state| state.rebuilds.remove(&top.zap));
                self.store_rebuild(top.zap, &RebuildPhys::default())?;
            }
        }
        Ok(())
    }

    /// Ends the rebuild of a vdev that leaves the pool. Its ZAP may get another use.
    pub(crate) fn forget_rebuild(&self, vdev: VdevId) -> Result<(), PoolError> {
        let tops = self.pool.rebuilt_tops().into_iter();
        for top in tops.filter(|top| top.id == vdev) {
            if self.pool.rebuilds.active(top.zap).is_some() {
                self.cancel_rebuild(&top)?;
            }
            (self.pool.rebuilds).with(|state| state.rebuilds.remove(&top.zap));
        }
        Ok(())
    }

    fn note_rebuild(&self, top: &RebuiltTop, word: &str) -> Result<(), PoolError> {
        let VdevId(id) = top.id;
        let text = format!("vdev_id={id} vdev_guid={} {word}", top.guid);
        self.history(&HistoryEvent::of_pool("rebuild", text))
    }
}
