//! Condensing of space maps, and the encoding of ranges as entries.

use millpond_ondisk::space_map::SpaceMapWriter;
use millpond_ondisk::{SpaceAction, Txg};

use super::state::{MetaslabState, OwnMap};
use crate::{AllocError, Metaslab, RangeSet, UnflushedChanges};

/// A map is condensed only if it is at least this many times as long as needed.
const TIMES_TOO_LONG: u64 = 2;
/// A map is condensed only if it has more than this many blocks.
const BLOCKS_MIN: u64 = 4;
/// log2 of the units from which on a run needs a two-word entry.
const TWO_WORDS_FROM: u8 = 15;

/// The txg and pass, for the debug words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stamp {
    pub(super) txg: Txg,
    pub(super) pass: u16,
}

/// Whether to condense the map, that is to rewrite it from the recorded free space. False if the metaslab
/// is not loaded.
pub(super) fn is_due(state: &MetaslabState) -> bool {
    let (Some(map), Some(free)) = (&state.map, state.recorded()) else {
        return false;
    };
    let ranges = u64::try_from(free.len()).unwrap_or(u64::MAX);
    let long = free.count_from(state.place.ashift.0.saturating_add(TWO_WORDS_FROM));
    // Two debug words, one two-word entry for the whole metaslab as allocated, and the free ranges.
    let words = ranges.saturating_add(long).saturating_add(4);
    let needed = words.saturating_mul(8).saturating_mul(TIMES_TOO_LONG);
    let floor = map.shape.block_bytes.saturating_mul(BLOCKS_MIN);
    map.length_bytes >= needed && map.length_bytes > floor
}

/// Encodes ranges of one action in a map without vdevs: a debug word and the entries; nothing for an empty
/// set.
pub(super) fn put_batch(
    entries: &mut SpaceMapWriter,
    place: &Metaslab,
    stamp: Stamp,
    action: SpaceAction,
    ranges: &RangeSet,
) -> Result<(), AllocError> {
    if ranges.is_empty() {
        return Ok(());
    }
    entries.put_debug(stamp.txg, stamp.pass, action);
    let shift = u32::from(place.ashift.0);
    for range in ranges.iter() {
        let offset = range.start.saturating_sub(place.range.start);
        let run = range.end.saturating_sub(range.start);
        let units = |bytes: u64| bytes.checked_shr(shift).unwrap_or(0);
        entries
            .put_range(action, units(offset), units(run))
            .map_err(|source| AllocError::Entry {
                metaslab: place.id,
                source,
            })?;
    }
    Ok(())
}

/// Encodes ranges of one action in a log.
pub(super) fn put_log_batch(
    entries: &mut SpaceMapWriter,
    place: &Metaslab,
    stamp: Stamp,
    action: SpaceAction,
    ranges: &RangeSet,
) -> Result<(), AllocError> {
    if ranges.is_empty() {
        return Ok(());
    }
    entries.put_debug(stamp.txg, stamp.pass, action);
    for range in ranges.iter() {
        let run = range.end.saturating_sub(range.start);
        entries
            .put_vdev_range(action, place.id.vdev, range.start >> 9, run >> 9)
            .map_err(|source| AllocError::Entry {
                metaslab: place.id,
                source,
            })?;
    }
    Ok(())
}

/// The bytes that append `changes` to `map`, and the resulting map.
pub(super) fn appended(
    map: &OwnMap,
    place: &Metaslab,
    stamp: Stamp,
    has_two_words: bool,
    changes: &UnflushedChanges,
) -> Result<(Vec<u8>, OwnMap), AllocError> {
    let mut entries = SpaceMapWriter::new(map.length_bytes, map.shape.block_bytes, has_two_words);
    put_batch(
        &mut entries,
        place,
        stamp,
        SpaceAction::Allocate,
        &changes.allocated,
    )?;
    put_batch(
        &mut entries,
        place,
        stamp,
        SpaceAction::Free,
        &changes.freed,
    )?;
    let map = OwnMap {
        shape: map.shape,
        length_bytes: map.length_bytes.saturating_add(entries.length_bytes()),
        allocated_bytes: map
            .allocated_bytes
            .saturating_add(changes.allocated_bytes()),
    };
    Ok((entries.finish(), map))
}

/// The changes of a condensed map: everything allocated, then the free space freed.
pub(super) fn whole(place: &Metaslab, free: &RangeSet) -> UnflushedChanges {
    UnflushedChanges {
        allocated: RangeSet::from_range(place.range.clone()),
        freed: free.clone(),
    }
}
