//! Dirty time logs (DTLs): the txgs whose writes a leaf missed.
//!
//! If a leaf fails a write that its vdev's redundancy covers, the txg continues and is added to the leaf's
//! log. The log is written in the same txg, or in the next one if the failure happens as late as the
//! commit.
//!
//! Page `docs/format/vdev-tree.md`, "Dirty time logs".

use crate::PoolError;
use crate::error::Reading;
use crate::pool::Pool;
use crate::space::maps::HISTOGRAM;
use crate::sync::context::SyncContext;
use millpond_object::NewObject;
use millpond_ondisk::space_map::SpaceMapWriter;
use millpond_ondisk::{Guid, ObjectId, ObjectType, SpaceAction, SpaceMapPhys, Txg};
use std::ops::Range;

const WHAT: &str = "dirty time log";
/// Size of a dirty time log's data blocks in bytes.
const BLOCK_BYTES: u32 = 4 << 10;

/// The txgs that one leaf missed: ascending, disjoint, half-open ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DirtyTimeLog {
    ranges: Vec<Range<u64>>,
    /// Whether the leaf's object lacks some of these ranges.
    is_unwritten: bool,
}

impl DirtyTimeLog {
    /// The ranges stored in an object.
    pub(crate) fn stored(ranges: &[Range<u64>]) -> Self {
        let mut missed = Self::default();
        for range in ranges {
            missed.add(range.clone());
        }
        missed.is_unwritten = false;
        missed
    }
    pub(crate) fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }
    /// Adds a range; returns whether it contained any new txg.
    pub(crate) fn add(&mut self, range: Range<u64>) -> bool {
        if range.is_empty()
            || self
                .ranges
                .iter()
                .any(|have| have.start <= range.start && range.end <= have.end)
        {
            return false;
        }
        self.ranges.push(range);
        self.ranges.sort_by_key(|range| (range.start, range.end));
        let mut merged: Vec<Range<u64>> = vec![];
        for range in self.ranges.drain(..) {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        self.ranges = merged;
        self.is_unwritten = true;
        true
    }
}

impl Pool {
    /// Collects failed writes and flushes since the last call. Returns whether some of them are not yet
    /// stored in the dirty time logs.
    pub(crate) fn take_in_missed(&self) -> bool {
        let failed = self.store.take_missed();
        let mut state = self.state.write();
        let mut is_new = false;
        for missed in failed {
            let txg = missed.txg.0;
            let entry = state.missed.entry(missed.guid).or_default();
            is_new |= entry.add(txg..txg.saturating_add(1));
        }
        state.is_topology_stale |= is_new;
        is_new
    }

    /// Collects failed writes and flushes since the last call, and writes the dirty time logs that changed.
    pub(crate) fn write_missed(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        self.take_in_missed();
        let unwritten: Vec<(Guid, DirtyTimeLog)> = {
            let state = self.state.read();
            let missed = state.missed.iter();
            missed
                .filter(|(_, missed)| missed.is_unwritten)
                .map(|(guid, missed)| (*guid, missed.clone()))
                .collect()
        };
        for (guid, missed) in unwritten {
            self.write_log(ctx, guid, &missed)?;
            if let Some(entry) = self.state.write().missed.get_mut(&guid) {
                entry.is_unwritten = false;
            }
        }
        Ok(())
    }

    fn write_log(
        &self,
        ctx: &SyncContext<'_>,
        leaf: Guid,
        missed: &DirtyTimeLog,
    ) -> Result<(), PoolError> {
        let Some(known) = self.leaf_config(leaf, |config| config.dtl) else {
            // The leaf has left the tree.
            return Ok(());
        };
        let object = match known.and_then(ObjectId::some) {
            Some(id) => ctx.mos().object(id).reading(WHAT)?,
            None => {
                let has_histogram = ctx.feature_is_enabled(HISTOGRAM);
                let new = NewObject::new(ObjectType::SPACE_MAP)
                    .with_block_bytes(BLOCK_BYTES)
                    .with_bonus(
                        ObjectType::SPACE_MAP_HEADER,
                        header(None, 0, 0, has_histogram),
                    );
                let object = ctx.mos().allocate(ctx.tx(), new).reading(WHAT)?;
                if has_histogram {
                    ctx.feature_increment(HISTOGRAM)?;
                }
                self.change_leaf(leaf, |config| config.dtl = Some(object.id()));
                object
            }
        };
        object.free_range(ctx.tx(), 0, u64::MAX).reading(WHAT)?;
        let (bytes, sum) =
            encode(missed.ranges(), ctx.txg(), ctx.pass(), object.block_bytes()).reading(WHAT)?;
        object.write(ctx.tx(), 0, &bytes).reading(WHAT)?;
        let bonus = header(
            Some(object.id()),
            bytes.len() as u64,
            sum,
            object.bonus().len() >= 320,
        );
        object.set_bonus(ctx.tx(), bonus).reading(WHAT)
    }
}

fn header(object: Option<ObjectId>, length: u64, sum: i64, has_histogram: bool) -> Vec<u8> {
    SpaceMapPhys {
        object,
        length_bytes: length,
        allocated_bytes: sum,
        histogram: has_histogram.then(Default::default),
    }
    .encode()
}

fn encode(
    ranges: &[Range<u64>],
    txg: Txg,
    pass: u32,
    block_bytes: u64,
) -> Result<(Vec<u8>, i64), millpond_ondisk::DecodeError> {
    let mut writer = SpaceMapWriter::new(0, block_bytes, false);
    let mut sum = 0i64;
    if !ranges.is_empty() {
        let pass = u16::try_from(pass).unwrap_or(u16::MAX);
        writer.put_debug(txg, pass, SpaceAction::Allocate);
    }
    for range in ranges {
        let run = range.end - range.start;
        // Unbounded ranges are not stored: such a leaf's old label already shows that it is stale.
        if range.end == u64::MAX {
            continue;
        }
        writer.put_range(SpaceAction::Allocate, range.start, run)?;
        sum = sum.saturating_add(i64::try_from(run).unwrap_or(i64::MAX));
    }
    Ok((writer.finish(), sum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_ondisk::{Endian, SpaceMapEntries, SpaceMapEntry};

    #[test]
    fn adjacent_and_overlapping_txg_ranges_merge() {
        let mut missed = DirtyTimeLog::default();
        assert!(missed.add(10..11));
        assert!(missed.add(12..13));
        assert!(missed.add(11..12));
        assert_eq!(missed.ranges(), std::slice::from_ref(&(10..13)));
        assert!(!missed.add(11..13));
        assert!(!missed.add(5..5));
        assert!(missed.add(4..20));
        assert_eq!(missed.ranges(), std::slice::from_ref(&(4..20)));
    }

    #[test]
    fn a_dtl_round_trips() {
        let ranges = [4..9, 100..40_000];
        let (bytes, sum) = encode(&ranges, Txg(77), 2, 4096).unwrap();
        assert_eq!(sum, 5 + 39_900);
        let mut read = DirtyTimeLog::default();
        for entry in SpaceMapEntries::new(&bytes, Endian::Little) {
            if let SpaceMapEntry::Range {
                action,
                offset_units,
                run_units,
                ..
            } = entry.unwrap()
            {
                assert_eq!(action, SpaceAction::Allocate);
                read.add(offset_units..offset_units + run_units);
            }
        }
        assert_eq!(read.ranges(), ranges);
    }
}
