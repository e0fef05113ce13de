//! The log space maps, and the metaslabs with changes in them.

use std::collections::{BTreeMap, BTreeSet};

use millpond_ondisk::Txg;

use super::opening::OpenedLog;
use super::port::{LogPolicy, MapShape, SpaceMapForms};
use crate::MetaslabId;

/// The log of a txg, as last written.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogMap {
    pub(super) shape: MapShape,
    pub(super) length_bytes: u64,
    pub(super) allocated_bytes: i64,
}

/// The sync thread's state of all maps.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) forms: SpaceMapForms,
    pub(super) policy: LogPolicy,
    pub(super) logs: BTreeMap<Txg, LogMap>,
    /// The metaslabs with changes in logs, by the first txg whose changes their own map lacks.
    by_unflushed: BTreeSet<(Txg, MetaslabId)>,
    /// The number of ranges of their unflushed changes.
    ranges: usize,
    /// Whether to flush everything in the next txg.
    pub(super) is_flush_all_wanted: bool,
}

impl Writing {
    pub(super) fn new(forms: SpaceMapForms, policy: LogPolicy) -> Self {
        Self {
            forms,
            policy,
            logs: BTreeMap::new(),
            by_unflushed: BTreeSet::new(),
            ranges: 0,
            is_flush_all_wanted: false,
        }
    }
    pub(super) fn adopt_log(&mut self, txg: Txg, log: &OpenedLog) {
        let log = LogMap {
            shape: log.shape,
            length_bytes: log.header.length_bytes,
            allocated_bytes: log.header.allocated_bytes,
        };
        self.logs.insert(txg, log);
    }
    pub(super) fn has_log(&self, txg: Txg) -> bool {
        self.logs.contains_key(&txg)
    }
    /// Adds a metaslab whose changes from `since` on are in logs, with `ranges` unflushed ranges.
    pub(super) fn joined(&mut self, metaslab: MetaslabId, since: Txg, ranges: usize) {
        self.by_unflushed.insert((since, metaslab));
        self.ranges = self.ranges.saturating_add(ranges);
    }
    /// Updates the number of unflushed ranges of a metaslab.
    pub(super) fn changed(&mut self, ranges_before: usize, ranges_now: usize) {
        self.ranges = self
            .ranges
            .saturating_add(ranges_now)
            .saturating_sub(ranges_before);
    }
    /// Records that a metaslab's own map has all changes before `now`.
    pub(super) fn flushed(&mut self, metaslab: MetaslabId, before: Txg, now: Txg) {
        self.by_unflushed.remove(&(before, metaslab));
        self.by_unflushed.insert((now, metaslab));
    }
    /// Drops the metaslabs of a removed vdev.
    pub(super) fn forget(&mut self, is_gone: impl Fn(MetaslabId) -> bool) {
        self.by_unflushed
            .retain(|(_, metaslab)| !is_gone(*metaslab));
    }
    /// The least recently flushed metaslab, unless it was already flushed in `txg`.
    pub(super) fn oldest(&self, txg: Txg) -> Option<(Txg, MetaslabId)> {
        self.by_unflushed
            .first()
            .copied()
            .filter(|(since, _)| *since < txg)
    }
    /// The obsolete logs in `txg`, whose own log stays.
    pub(super) fn obsolete_logs(&self, txg: Txg) -> Vec<Txg> {
        let needed = self.by_unflushed.first().map_or(txg, |(since, _)| *since);
        let obsolete = self.logs.range(..needed.min(txg));
        obsolete.map(|(txg, _)| *txg).collect()
    }
    /// Whether the logs exceed the limits of the policy.
    pub(super) fn is_over_limit(&self) -> bool {
        let blocks = self
            .logs
            .values()
            .map(|log| log.length_bytes.div_ceil(log.shape.block_bytes.max(1)))
            .fold(0, u64::saturating_add);
        let policy = &self.policy;
        let wanted = u64::try_from(self.by_unflushed.len())
            .unwrap_or(u64::MAX)
            .saturating_mul(4);
        let blocks_max = wanted
            .max(policy.blocks_min)
            .min(policy.blocks_max.max(policy.blocks_min));
        self.logs.len() > policy.logs_max || blocks > blocks_max || self.ranges > policy.ranges_max
    }
}
