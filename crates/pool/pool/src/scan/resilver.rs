//! When a resilver starts, starts again, or is deferred until the running one ends.
//!
//! A leaf that comes to need a resilver while one runs is deferred if the pool has the feature `resilver_defer` and
//! the running one has made progress. Otherwise the running one starts again and covers it too.

use crate::PoolError;
use crate::history::append::HistoryEvent;
use crate::pool::Pool;
use crate::scan::{ScanEnd, ScanRefusal, completes_leaves};
use crate::sync::context::SyncContext;
use millpond_env::{Tunable, mark};
use millpond_ondisk::{BlockPointer, Guid, ScanFunction, ScanPhys, Txg};
use millpond_vdev::VdevConfig;
use std::collections::{BTreeMap, BTreeSet};

/// Active while leaves are deferred.
const RESILVER_DEFER: &str = "com.datto:resilver_defer";

impl Pool {
    /// Starts a resilver if leaves in use lack txgs and none covers them yet. A running scrub is cancelled; beside a
    /// running resilver they may be deferred. Returns whether one was started.
    ///
    /// # Errors
    /// As [`Pool::sync_task`].
    pub fn start_resilver(&self) -> Result<bool, PoolError> {
        self.sync_task(|ctx| {
            // Afterwards they are looked at again.
            if self.has_rebuild() {
                return Ok(false);
            }
            // Writes that failed in this txg are still missed by the next resilver.
            let Some(span) = self.missed_span() else {
                return Ok(false);
            };
            let (phys, is_running, covered) = self
                .scan
                .with(|state| (state.phys, state.is_scanning(), state.covered.clone()));
            let min = Txg(span.start.0.saturating_sub(1));
            let max = span.end.min(Txg(ctx.txg().0));
            if is_running && phys.function == ScanFunction::Resilver {
                let others = self.leaves_beyond(&phys, &covered, max);
                if phys.min_txg <= min && others.is_empty() {
                    return Ok(false);
                }
                if ctx.feature_is_enabled(RESILVER_DEFER) && !self.is_young(&phys) {
                    ctx.defer_resilver(&others)?;
                    return Ok(false);
                }
            }
            if is_running {
                ctx.end_scan_as(ScanEnd::GivesWay)?;
            }
            ctx.begin_scan(ScanFunction::Resilver, min, max)?;
            Ok(true)
        })
    }

    /// Starts a resilver of everything that leaves in use lack. A running scan is cancelled. Without such leaves it does
    /// nothing.
    ///
    /// # Errors
    /// [`PoolError::Scan`] if the feature `resilver_defer` is disabled or a sequential resilver runs; as [`Pool::sync_task`].
    pub fn restart_resilver(&self) -> Result<(), PoolError> {
        if self.features().count(RESILVER_DEFER).is_none() {
            return Err(PoolError::Scan(ScanRefusal::NoDeferredResilvers));
        }
        let outcome = self.sync_task(|ctx| {
            if self.has_rebuild() {
                return Ok(Err(ScanRefusal::Rebuilding));
            }
            let running = self
                .scan
                .with(|state| state.is_scanning().then_some(state.phys));
            if running.is_some() {
                ctx.end_scan_as(ScanEnd::GivesWay)?;
            }
            let Some(span) = self.missed_span() else {
                return Ok(Ok(()));
            };
            if let Some(phys) = running {
                let text = format!("errors={}", phys.errors);
                ctx.history(&HistoryEvent::of_pool("starting deferred resilver", text))?;
            }
            let min = Txg(span.start.0.saturating_sub(1));
            let max = span.end.min(ctx.txg());
            ctx.begin_scan(ScanFunction::Resilver, min, max).map(Ok)
        })?;
        outcome.map_err(PoolError::Scan)
    }

    /// Whether leaves in use lack txgs.
    #[must_use]
    pub fn needs_resilver(&self) -> bool {
        self.missed_span().is_some()
    }

    /// A number that changes with the txgs that leaves in use lack; `None` if they lack nothing. If it is the same after
    /// a resilver, that did not help.
    #[must_use]
    pub fn resilver_need(&self) -> Option<u64> {
        self.missed_digest()
    }

    /// The leaves in use that will lack something after a resilver ends: they were not in use all the time, or they
    /// lack txgs before `max` that it does not visit.
    fn leaves_beyond(&self, phys: &ScanPhys, covered: &BTreeSet<Guid>, max: Txg) -> BTreeSet<Guid> {
        let in_use = self.leaves_in_use();
        let state = self.state.read();
        let lacking = in_use.into_iter().filter(|leaf| {
            let ranges = state.missed.get(leaf).map(|missed| missed.ranges());
            let Some([first, .., last] | [first @ last]) = ranges else {
                return false;
            };
            let is_visited = phys.min_txg.0 < first.start && last.end.min(max.0) <= phys.max_txg.0;
            !(is_visited && covered.contains(leaf))
        });
        lacking.collect()
    }

    /// Notes blocks that get a further reference while a resilver runs, or a scrub of everything, after which leaves count
    /// as complete too. That reference may lie where the scan has been, and the others may be gone before it comes to
    /// them. So leaves that lack such a block lack it after this scan too, and the next resilver visits it. Returns
    /// whether that changed the logs of what leaves lack.
    pub(crate) fn note_cloned(&self, cloned: &[BlockPointer], txg: Txg) -> bool {
        let running = self.scan.with(|state| {
            let is_meant = state.is_scanning() && completes_leaves(&state.phys);
            is_meant.then_some(state.phys.max_txg)
        });
        let Some(max) = running else {
            return false;
        };
        let mut lacking: BTreeMap<Guid, BTreeSet<Txg>> = BTreeMap::new();
        let topology = self.store.topology();
        for (leaf, node) in topology.tree.leaves() {
            let missed = topology.health.missed(leaf);
            if missed.is_empty() {
                continue;
            }
            let lacks = |pointer: &&BlockPointer| topology.may_lack(pointer, leaf);
            let births = cloned
                .iter()
                .filter(lacks)
                .map(BlockPointer::physical_birth);
            let births: BTreeSet<Txg> = births.collect();
            if !births.is_empty() {
                lacking.insert(node.config.guid, births);
            }
        }
        if lacking.is_empty() {
            return false;
        }
        mark::hit("cloned-during-scan");
        let leaves: Vec<Guid> = lacking.keys().copied().collect();
        self.scan.with(|state| {
            for (leaf, births) in lacking {
                state.losses.leaves.entry(leaf).or_default().extend(births);
            }
        });
        self.keep_missed(leaves.into_iter(), max, txg)
    }

    /// Whether a resilver has made so little progress that it may start again.
    fn is_young(&self, phys: &ScanPhys) -> bool {
        let least = self.env.tunables.get(Tunable::ResilverDeferPercent);
        let percent = phys.examined_bytes.saturating_mul(100);
        percent < phys.to_examine_bytes.saturating_mul(least)
    }
}

impl SyncContext<'_> {
    /// Defers the resilver of these leaves.
    fn defer_resilver(&self, leaves: &BTreeSet<Guid>) -> Result<(), PoolError> {
        for leaf in leaves {
            let is_deferred = |config: &VdevConfig| config.resilver_deferred;
            if self.pool.leaf_config(*leaf, is_deferred) == Some(false) {
                self.pool
                    .change_leaf(*leaf, |config| config.resilver_deferred = true);
                self.mark_config_dirty();
            }
        }
        if !leaves.is_empty() && self.feature_count(RESILVER_DEFER) == 0 {
            self.feature_increment(RESILVER_DEFER)?;
        }
        Ok(())
    }

    /// Ends the deferral of all leaves: the resilver that begins now covers them.
    pub(crate) fn end_deferral(&self) -> Result<(), PoolError> {
        let leaves = deferred(&self.pool.state.read().config.root);
        for leaf in leaves {
            self.pool
                .change_leaf(leaf, |config| config.resilver_deferred = false);
            self.mark_config_dirty();
        }
        self.settle_deferral()
    }

    /// Ends the use of the feature if no leaf is deferred.
    pub(crate) fn settle_deferral(&self) -> Result<(), PoolError> {
        if self.feature_count(RESILVER_DEFER) > 0
            && deferred(&self.pool.state.read().config.root).is_empty()
        {
            self.feature_decrement(RESILVER_DEFER)?;
        }
        Ok(())
    }
}

/// The leaves whose resilver is deferred.
pub(crate) fn deferred(vdev: &VdevConfig) -> Vec<Guid> {
    let own = vdev.resilver_deferred.then_some(vdev.guid);
    let below = vdev.children.iter().flat_map(deferred);
    own.into_iter().chain(below).collect()
}
