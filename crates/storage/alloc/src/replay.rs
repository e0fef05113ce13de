//! From logs of changes to what is free now.

use std::collections::BTreeMap;

use millpond_ondisk::{SpaceAction, Txg, VdevId};

use crate::{
    AllocError, LogRecord, Metaslab, MetaslabId, RangeConflict, RangeSet, SpaceMapStore,
    SpaceRecord, VdevGeometry,
};

/// What is free in one metaslab. Page `docs/format/space-map.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaslabSpace {
    /// Its place.
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

/// Changes of one metaslab that its own map does not have yet. Page `docs/format/log-space-map.md`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnflushedChanges {
    /// What was free according to the map and is allocated now.
    pub allocated: RangeSet,
    /// What was allocated according to the map and is free now.
    pub freed: RangeSet,
}

impl UnflushedChanges {
    /// How much more is allocated than the map's header says, in bytes; negative if less.
    #[must_use]
    pub fn allocated_bytes(&self) -> i64 {
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        signed(self.allocated.bytes()).saturating_sub(signed(self.freed.bytes()))
    }
    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.allocated.is_empty() && self.freed.is_empty()
    }
    /// How many ranges there are.
    pub(crate) fn ranges(&self) -> usize {
        self.allocated.len().saturating_add(self.freed.len())
    }
    /// Takes in all changes that came after these.
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
    /// Takes in one more change: what undoes an earlier one cancels it, the rest is new.
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

/// Changes that are only in the log space maps, for each metaslab that has any.
///
/// Takes memory in proportion to the records of the logs. Page `docs/format/log-space-map.md`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnflushedLogs {
    changes: BTreeMap<MetaslabId, UnflushedChanges>,
}

impl UnflushedLogs {
    /// Replays the logs. `vdevs` are the concrete top-level vdevs; entries for others that exist
    /// (removed ones and holes, as `is_other_vdev` tells) are passed over.
    ///
    /// # Errors
    /// If the store fails, a log names no vdev or metaslab, or two logs contradict each other.
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
            // Older logs' changes are in the metaslab's own map already; a metaslab that never
            // took part in the scheme has all its history there.
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
    /// Takes out the changes of one metaslab.
    #[must_use]
    pub fn take(&mut self, metaslab: MetaslabId) -> UnflushedChanges {
        self.changes.remove(&metaslab).unwrap_or_default()
    }
    /// The changes of one metaslab, if it has any.
    #[must_use]
    pub fn of(&self, metaslab: MetaslabId) -> Option<&UnflushedChanges> {
        self.changes.get(&metaslab)
    }
    /// How much more is allocated on all metaslabs of `vdev` than the maps' headers say.
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

/// What is free in `metaslab`: everything, less what its own map and the logs allocate.
///
/// The replay is strict: a map that allocates what is not free or frees what is belongs to another
/// history. Takes memory for at most one range for each two units of the metaslab.
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

/// The same with the unflushed changes of this metaslab.
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
