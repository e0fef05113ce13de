//! The space maps of what only a checkpoint keeps allocated.
//!
//! Page `docs/format/checkpoint.md`.

use super::{DISCARDED, FEATURE, Phase};
use crate::PoolError;
use crate::error::Reading;
use crate::history::append::HistoryEvent;
use crate::pool::Pool;
use crate::space::vdev_map::VdevMap;
use crate::sync::context::SyncContext;
use millpond_alloc::{AllocError, MetaslabId, RangeSet, StoreError, decode_records};
use millpond_env::mark;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::Ordering;
use millpond_object::Object;
use millpond_ondisk::pool_directory::vdev_key;
use millpond_ondisk::space_map::SpaceMapUnits;
use millpond_ondisk::{BlockId, DecodeError, Dva, Endian, SpaceAction, Txg, VdevId};
use std::collections::BTreeMap;

const WHAT: &str = "space map of the checkpoint";
/// A txg frees at most this many ranges, for the memory that they take.
pub(super) const RANGES_AT_ONCE: usize = 100_000;

/// The last entries of a map, all in one block.
struct LastEntries {
    object: Arc<Object>,
    /// Where they begin in the map.
    start_bytes: u64,
    /// How many they are, those that are no ranges too.
    count: usize,
    ranges: Vec<Dva>,
    bytes: u64,
}

impl Pool {
    /// Writes what was freed since the last pass, and stays allocated, into the maps.
    pub(crate) fn write_checkpoint_maps(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        let freed = std::mem::take(&mut self.checkpoint.lock().freed);
        let mut by_vdev: BTreeMap<VdevId, Vec<(MetaslabId, RangeSet)>> = BTreeMap::new();
        for (metaslab, ranges) in freed {
            let of_vdev = by_vdev.entry(metaslab.vdev).or_default();
            of_vdev.push((metaslab, ranges));
        }
        for (vdev, metaslabs) in by_vdev {
            mark::hit("checkpoint-keeps-freed");
            ctx.sync_state.has_changes.store(true, Ordering::Relaxed);
            self.append_kept(ctx, vdev, &metaslabs)?;
        }
        Ok(())
    }

    fn append_kept(
        &self,
        ctx: &SyncContext<'_>,
        vdev: VdevId,
        metaslabs: &[(MetaslabId, RangeSet)],
    ) -> Result<(), PoolError> {
        let known = self.checkpoint.lock().maps.get(&vdev).copied();
        let mut map = match known {
            Some(map) => map,
            None => VdevMap::create(ctx, vdev, vdev_key::CHECKPOINT_SPACE_MAP)?,
        };
        let shift = self.units_of(vdev)?.shift;
        // Entries stay within a metaslab: readers expect that.
        let ranges = metaslabs.iter();
        let mut ranges = ranges.flat_map(|(id, ranges)| ranges.iter().map(|range| (*id, range)));
        map.append(ctx, SpaceAction::Free, shift, &mut ranges)?;
        self.checkpoint.lock().maps.insert(vdev, map);
        Ok(())
    }

    fn units_of(&self, vdev: VdevId) -> Result<SpaceMapUnits, PoolError> {
        let geometries = self.maps.geometries();
        let geometry = geometries.get(&vdev);
        let missing = || DecodeError::new(WHAT, "its vdev has no metaslabs", 0);
        let geometry = geometry.ok_or_else(missing).reading(WHAT)?;
        Ok(SpaceMapUnits {
            shift: geometry.ashift().0,
            start_bytes: 0,
            size_bytes: None,
        })
    }

    /// Frees some of what a discarded checkpoint kept, in pass 1.
    pub(crate) fn discard_slice(&self, ctx: &SyncContext<'_>) -> Result<(), PoolError> {
        let maps: Vec<(VdevId, VdevMap)> = {
            let checkpoint = self.checkpoint.lock();
            match checkpoint.phase {
                Phase::Discarding(since) if since < ctx.txg() && !checkpoint.is_stuck => {}
                _ => return Ok(()),
            }
            let maps = checkpoint.maps.iter();
            maps.map(|(vdev, map)| (*vdev, *map)).collect()
        };
        let mut entries_left = self.checkpoint.lock().ranges_at_once;
        for (vdev, mut map) in maps {
            while map.length_bytes > 0 && entries_left > 0 {
                let last = match self.last_entries(ctx, vdev, &map, entries_left) {
                    Ok(last) => last,
                    Err(error) => {
                        // Its space stays allocated, and the rest of the pool works.
                        tracing::error!(%error, %vdev, "the checkpoint is not discarded completely");
                        self.checkpoint.lock().is_stuck = true;
                        return Ok(());
                    }
                };
                entries_left = entries_left.saturating_sub(last.count);
                self.free_last(ctx, vdev, &mut map, &last)?;
            }
            if map.length_bytes == 0 {
                map.free(ctx, vdev, vdev_key::CHECKPOINT_SPACE_MAP)?;
                self.checkpoint.lock().maps.remove(&vdev);
            }
        }
        if !self.checkpoint.lock().maps.is_empty() {
            mark::hit("checkpoint-discarded-in-steps");
            return Ok(());
        }
        if ctx.feature_count(FEATURE) > 0 {
            ctx.feature_decrement(FEATURE)?;
        }
        self.checkpoint.lock().phase = Phase::None;
        // What the checkpoint needed no longer keeps leaves incomplete: the thread that scans looks again.
        self.scan.change(|_| ());
        let text = "finished discarding checkpointed state from the pool";
        ctx.history(&HistoryEvent::of_pool(DISCARDED, text))
    }

    /// Reads the last entries of a map, at least one and at most `most`, and checks that all their ranges can be freed.
    fn last_entries(
        &self,
        ctx: &SyncContext<'_>,
        vdev: VdevId,
        map: &VdevMap,
        most: usize,
    ) -> Result<LastEntries, PoolError> {
        let units = self.units_of(vdev)?;
        let object = ctx.mos().object(map.object).reading(WHAT)?;
        let block_bytes = object.block_bytes().max(1);
        let block = map.length_bytes.saturating_sub(1) / block_bytes;
        let block_start = block.saturating_mul(block_bytes);
        let read = object.read_block(BlockId(block)).reading(WHAT)?;
        let length = usize::try_from(map.length_bytes.saturating_sub(block_start));
        let bytes = length.ok().and_then(|length| read.bytes.get(..length));
        let missing = || DecodeError::new(WHAT, "it is longer than its object", 8);
        let bytes = bytes.ok_or_else(missing).reading(WHAT)?;
        // Only from the start of the block is it known where entries begin.
        let starts = entry_starts(bytes, read.endian);
        let first = starts.len().saturating_sub(most);
        let start = starts.get(first).copied().unwrap_or(0);
        let bytes = bytes.get(start..).unwrap_or_default();
        let mut last = LastEntries {
            object,
            start_bytes: block_start.saturating_add(start as u64),
            count: starts.len().saturating_sub(first).max(1),
            ranges: vec![],
            bytes: 0,
        };
        let mut seen: BTreeMap<MetaslabId, RangeSet> = BTreeMap::new();
        let metaslab = MetaslabId { vdev, index: 0 };
        let wrap = |source: StoreError| AllocError::Store { metaslab, source };
        decode_records(bytes, read.endian, &units, wrap, &mut |record| {
            if record.action != SpaceAction::Free {
                return Err(wrap(DecodeError::new(WHAT, "an entry allocates", 0).into()));
            }
            let dva = Dva {
                vdev,
                offset_bytes: record.range.start,
                asize_bytes: record.range.end.saturating_sub(record.range.start),
                is_gang: false,
            };
            self.allocator.load_holder(&dva)?;
            let (metaslab, range) = self.allocator.kept(ctx.txg(), &dva)?;
            let seen = seen.entry(metaslab).or_default().add(range);
            seen.map_err(|conflict| AllocError::Contradiction { metaslab, conflict })?;
            last.bytes = last.bytes.saturating_add(dva.asize_bytes);
            last.ranges.push(dva);
            Ok(())
        })?;
        Ok(last)
    }

    /// Frees the ranges of the last entries, and shortens the map by them.
    fn free_last(
        &self,
        ctx: &SyncContext<'_>,
        vdev: VdevId,
        map: &mut VdevMap,
        last: &LastEntries,
    ) -> Result<(), PoolError> {
        ctx.sync_state.has_changes.store(true, Ordering::Relaxed);
        for dva in &last.ranges {
            // Which views contain it is not recorded.
            let since = Txg(0);
            self.allocator.free(ctx.txg(), dva, since, false)?;
        }
        map.length_bytes = last.start_bytes;
        let bytes = i64::try_from(last.bytes).unwrap_or(i64::MAX);
        map.allocated_bytes = map.allocated_bytes.saturating_add(bytes);
        let emptied = last.object.free_range(ctx.tx(), last.start_bytes, u64::MAX);
        emptied.reading(WHAT)?;
        map.put_header(ctx, &last.object)?;
        self.checkpoint.lock().maps.insert(vdev, *map);
        Ok(())
    }
}

/// The byte offsets in a block at which its entries begin.
fn entry_starts(bytes: &[u8], endian: Endian) -> Vec<usize> {
    let mut starts = vec![];
    let mut at = 0;
    while let Some(word) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        starts.push(at);
        let word = match endian {
            Endian::Little => u64::from_le_bytes(*word),
            Endian::Big => u64::from_be_bytes(*word),
        };
        at += if word >> 62 == 3 { 16 } else { 8 };
    }
    starts
}
