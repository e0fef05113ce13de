//! Livelists: blocks that a clone allocated and freed since its origin.
//!
//! A livelist has the format of a deadlist. The entries of its lists record whether the block was freed.

use std::collections::BTreeMap;

use super::bpobj::BpObjectEntry;
use crate::BlockPointer;

/// The blocks that the entries of one sub-list leave allocated, in entry order. Page
/// `docs/format/deadlist.md`.
///
/// Each "freed" entry cancels one "allocated" entry with the same first address (vdev and offset), also if
/// both occur several times. In each txg the frees follow the allocations, so the entries are processed from
/// last to first. Uses memory proportional to the number of entries.
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
