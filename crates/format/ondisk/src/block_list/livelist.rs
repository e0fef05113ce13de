//! Livelists: what a clone allocated and freed since its origin.
//!
//! A livelist has a deadlist's form; the entries of its lists say whether they were freed.

use std::collections::BTreeMap;

use super::bpobj::BpObjectEntry;
use crate::BlockPointer;

/// The blocks that one sub-list's entries leave allocated, in the order of their entries.
///
/// Each "freed" entry cancels one "allocated" entry with the same first address (vdev and offset),
/// however often the two occur. The frees of a txg stand behind its allocations, so entries are
/// looked at from the last to the first. Uses memory for as many entries as it is given.
/// Page `docs/format/deadlist.md`.
#[must_use]
pub fn live_pointers(entries: &[BpObjectEntry]) -> Vec<BlockPointer> {
    let mut freed: BTreeMap<(u32, u64), u64> = BTreeMap::new();
    let mut live = Vec::new();
    for entry in entries.iter().rev() {
        let Some(dva) = entry.pointer.dvas().next() else {
            continue;
        };
        let count = freed.entry((dva.vdev.0, dva.offset_bytes)).or_insert(0);
        if entry.is_freed {
            *count = count.saturating_add(1);
        } else if *count > 0 {
            *count = count.saturating_sub(1);
        } else {
            live.push(entry.pointer);
        }
    }
    live.reverse();
    live
}
