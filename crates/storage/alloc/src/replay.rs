//! Replays space maps and logs to determine the current free space.

use std::collections::BTreeMap;

use millpond_ondisk::{SpaceAction, Txg, VdevId};

use crate::{
    AllocError, LogRecord, Metaslab, MetaslabId, RangeConflict, RangeSet, SpaceMapStore,
    SpaceRecord, VdevGeometry,
};

/// The free space of one metaslab. Page `docs/format/space-map.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaslabSpace {
    /// Its location.
    pub metaslab: Metaslab,
    /// The free ranges, in bytes on the vdev.
    pub free: RangeSet,
}

impl MetaslabSpace {
    /// Bytes that are not free.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.metaslab.size_bytes().saturating_sub(self.free.bytes())
    }
    fn apply(&mut self, record: SpaceRecord) -> Result<(), AllocError> {
        let outcome = match record.action {
            SpaceAction::Allocate => self.free.remove(record.range),
            SpaceAction::Free => self.free.add(record.range),
        };
        outcome.map_err(|conflict| contradiction(self.metaslab.id, conflict))
    }
}

/// Changes of one metaslab that are not in its own map yet. Page `docs/format/log-space-map.md`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnflushedChanges {
    /// Ranges that are free in the map and allocated now.
    pub allocated: RangeSet,
    /// Ranges that are allocated in the map and free now.
    pub freed: RangeSet,
}

impl UnflushedChanges {
    /// How many more bytes are allocated than the map's header says; negative if fewer.
    #[must_use]
    pub fn allocated_bytes(&self) -> i64 {
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        signed(self.allocated.bytes()).saturating_sub(signed(self.freed.bytes()))
    }
    /// Whether there are no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.allocated.is_empty() && self.freed.is_empty()
    }
    /// The number of ranges.
    pub(crate) fn ranges(&self) -> usize {
        self.allocated.len().saturating_add(self.freed.len())
    }
    /// Adds all changes made after these.
    pub(crate) fn merge(&mut self, later: &Self) -> Result<(), RangeConflict> {
        for (action, ranges) in [
            (SpaceAction::Allocate, &later.allocated),
            (SpaceAction::Free, &later.freed),
        ] {
            for range in ranges.iter() {
                self.apply(&SpaceRecord { action, range })?;
            }
        }
        Ok(())
    }
    /// Adds one later change. Where it undoes an earlier one both cancel out; the rest is new.
    pub(crate) fn apply(&mut self, record: &SpaceRecord) -> Result<(), RangeConflict> {
        let (same, opposite) = match record.action {
            SpaceAction::Allocate => (&mut self.allocated, &mut self.freed),
            SpaceAction::Free => (&mut self.freed, &mut self.allocated),
        };
        for new in opposite.gaps(&record.range) {
            same.add(new)?;
        }
        opposite.cut(&record.range);
        Ok(())
    }
}

/// The changes that are only in log space maps, by metaslab.
///
/// Memory is proportional to the number of records in the logs. Page `docs/format/log-space-map.md`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnflushedLogs {
    changes: BTreeMap<MetaslabId, UnflushedChanges>,
}

impl UnflushedLogs {
    /// Replays the logs. `vdevs` are the concrete top-level vdevs. Entries of other existing vdevs (removed
    /// ones and holes, for which `is_other_vdev` is true) are skipped.
    ///
    /// # Errors
    /// If the store fails, a log entry lies on no vdev or metaslab, or two logs contradict each other.
    pub fn load(
        store: &dyn SpaceMapStore,
        vdevs: &BTreeMap<VdevId, VdevGeometry>,
        is_other_vdev: &dyn Fn(VdevId) -> bool,
    ) -> Result<Self, AllocError> {
        let mut changes: BTreeMap<MetaslabId, UnflushedChanges> = BTreeMap::new();
        let mut unflushed: BTreeMap<MetaslabId, Txg> = BTreeMap::new();
        store.replay_logs(&mut |LogRecord { txg, vdev, record }| {
            let Some(geometry) = vdevs.get(&vdev) else {
                if is_other_vdev(vdev) {
                    return Ok(());
                }
                return Err(misplaced(txg, vdev, &record));
            };
            let id = geometry
                .metaslab_of(&record.range)
                .ok_or_else(|| misplaced(txg, vdev, &record))?
                .id;
            let since = match unflushed.get(&id) {
                Some(since) => *since,
                None => {
                    let since = store.unflushed_txg(id)?;
                    unflushed.insert(id, since);
                    since
                }
            };
            // Changes of older logs are already in the metaslab's own map. A metaslab that never had
            // changes in logs has its whole history there.
            if since == Txg(0) || txg < since {
                return Ok(());
            }
            changes
                .entry(id)
                .or_default()
                .apply(&record)
                .map_err(|conflict| contradiction(id, conflict))
        })?;
        Ok(Self { changes })
    }
    /// Removes and returns the changes of one metaslab.
    #[must_use]
    pub fn take(&mut self, metaslab: MetaslabId) -> UnflushedChanges {
        self.changes.remove(&metaslab).unwrap_or_default()
    }
    /// The changes of one metaslab, if it has any.
    #[must_use]
    pub fn of(&self, metaslab: MetaslabId) -> Option<&UnflushedChanges> {
        self.changes.get(&metaslab)
    }
    /// How many more bytes are allocated on all metaslabs of `vdev` than the maps' headers say.
    #[must_use]
    pub fn allocated_bytes(&self, vdev: VdevId) -> i64 {
        let first = MetaslabId { vdev, index: 0 };
        let last = MetaslabId {
            vdev,
            index: u64::MAX,
        };
        self.changes
            .range(first..=last)
            .map(|(_, changes)| changes.allocated_bytes())
            .fold(0, i64::saturating_add)
    }
}

/// The free space of `metaslab`: everything except what its own map and the logs allocate.
///
/// The replay is strict: a map that allocates a range that is not free, or frees one that is, does not
/// match its history. Uses memory for at most one range for every two units of the metaslab.
///
/// # Errors
/// If the store fails or the records contradict each other.
pub fn load_metaslab(
    store: &dyn SpaceMapStore,
    metaslab: Metaslab,
    logs: &UnflushedLogs,
) -> Result<MetaslabSpace, AllocError> {
    let changes = logs.of(metaslab.id);
    load_metaslab_with(store, metaslab, changes)
}

/// Like [`load_metaslab`], with the unflushed changes of this metaslab.
pub(crate) fn load_metaslab_with(
    store: &dyn SpaceMapStore,
    metaslab: Metaslab,
    changes: Option<&UnflushedChanges>,
) -> Result<MetaslabSpace, AllocError> {
    let id = metaslab.id;
    let mut space = MetaslabSpace {
        free: RangeSet::from_range(metaslab.range.clone()),
        metaslab,
    };
    store.replay(id, &mut |record| space.apply(record))?;
    if let Some(changes) = changes {
        for (action, ranges) in [
            (SpaceAction::Allocate, &changes.allocated),
            (SpaceAction::Free, &changes.freed),
        ] {
            for range in ranges.iter() {
                space.apply(SpaceRecord { action, range })?;
            }
        }
    }
    Ok(space)
}

fn contradiction(metaslab: MetaslabId, conflict: RangeConflict) -> AllocError {
    AllocError::Contradiction { metaslab, conflict }
}

fn misplaced(txg: Txg, vdev: VdevId, record: &SpaceRecord) -> AllocError {
    AllocError::Misplaced {
        txg,
        vdev: vdev.0,
        start: record.range.start,
        end: record.range.end,
    }
}

#[cfg(test)]
mod tests;
