//! Moves the sectors of a RAID-Z vdev that is being expanded to their places at the new width.
//!
//! Sectors keep their numbers, so that of a run of sectors each child holds one contiguous run, at either width.

use core::ops::Range;

use millpond_ondisk::Ashift;

use super::{RAIDZ_SCRATCH_BYTES, RaidzGeometry};
use crate::units::Sector;

/// A contiguous part of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildRun {
    /// Index of the child.
    pub child: u64,
    /// First byte on the child, not counting labels.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub length_bytes: u64,
}

/// The move of a run of sectors: what is read at the old width, and written at the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RaidzMove {
    first: u64,
    end: u64,
    old_width: u64,
    sector: Sector,
}

impl RaidzMove {
    /// The move of a range of a vdev, in bytes, to the places that it has with all children. `None` if the vdev is not
    /// being expanded, or the range is empty or not one of whole sectors.
    #[must_use]
    pub fn new(geometry: &RaidzGeometry, ashift: Ashift, range: &Range<u64>) -> Option<Self> {
        let sector = Sector::new(ashift)?;
        let is_whole = sector.is_aligned(range.start) && sector.is_aligned(range.end);
        let is_valid = geometry.is_expanding() && is_whole && !range.is_empty();
        Some(Self {
            first: sector.whole(range.start),
            end: sector.whole(range.end),
            old_width: geometry.children().checked_sub(1)?,
            sector,
        })
        .filter(|_| is_valid)
    }

    /// What to read: at most one run of each child except the last.
    #[must_use]
    pub fn reads(&self) -> Vec<ChildRun> {
        self.runs(self.old_width).unwrap_or_default()
    }

    /// What to write: at most one run of each child.
    #[must_use]
    pub fn writes(&self) -> Vec<ChildRun> {
        self.runs(self.old_width.saturating_add(1))
            .unwrap_or_default()
    }

    /// The content of each run of [`RaidzMove::writes`], given that of each of [`RaidzMove::reads`]. `None` if one has
    /// another length.
    #[must_use]
    pub fn rearranged(&self, read: &[impl AsRef<[u8]>]) -> Option<Vec<Vec<u8>>> {
        let reads = self.reads();
        let sector = usize::try_from(self.sector.bytes()).ok()?;
        let mut sources: Vec<Option<core::slice::ChunksExact<'_, u8>>> = Vec::new();
        sources.resize_with(usize::try_from(self.old_width).ok()?, || None);
        for (run, bytes) in reads.iter().zip(read) {
            let bytes = bytes.as_ref();
            if u64::try_from(bytes.len()) != Ok(run.length_bytes) {
                return None;
            }
            *sources.get_mut(usize::try_from(run.child).ok()?)? = Some(bytes.chunks_exact(sector));
        }
        let new_width = self.old_width.checked_add(1)?;
        let writes = self.writes();
        let mut contents: Vec<Option<Vec<u8>>> = Vec::new();
        contents.resize_with(usize::try_from(new_width).ok()?, || None);
        for run in &writes {
            let length = usize::try_from(run.length_bytes).ok()?;
            let place = contents.get_mut(usize::try_from(run.child).ok()?)?;
            *place = Some(Vec::with_capacity(length));
        }
        // In the order of sectors, so that each run is read and written in its order.
        for number in self.first..self.end {
            let from = usize::try_from(number.checked_rem(self.old_width)?).ok()?;
            let to = usize::try_from(number.checked_rem(new_width)?).ok()?;
            let bytes = sources.get_mut(from)?.as_mut()?.next()?;
            contents.get_mut(to)?.as_mut()?.extend_from_slice(bytes);
        }
        Some(contents.into_iter().flatten().collect())
    }

    /// The sectors of each child at a width, in the order of children.
    fn runs(&self, width: u64) -> Option<Vec<ChildRun>> {
        let mut runs = Vec::new();
        for child in 0..width {
            let behind = self.first.checked_rem(width)?;
            let ahead = child.checked_add(width)?.checked_sub(behind)?;
            let first = self.first.checked_add(ahead.checked_rem(width)?)?;
            let Some(rest) = self.end.checked_sub(first).filter(|rest| *rest > 0) else {
                continue;
            };
            runs.push(ChildRun {
                child,
                offset_bytes: self.sector.to_bytes(first.checked_div(width)?)?,
                length_bytes: self.sector.to_bytes(rest.div_ceil(width))?,
            });
        }
        Some(runs)
    }
}

impl RaidzGeometry {
    /// How far sectors may be moved before the next commit, in bytes, if the committed progress is `committed_bytes`. The
    /// new places of sectors up to there are old places of rows that are read at their new place only.
    #[must_use]
    pub fn moved_bytes_max(&self, ashift: Ashift, committed_bytes: u64) -> Option<u64> {
        let sector = Sector::new(ashift)?;
        let old_width = self.children().checked_sub(1)?;
        let done = sector.whole(committed_bytes);
        let ahead = done.checked_div(old_width)?.checked_sub(old_width);
        sector.to_bytes(done.checked_add(ahead.unwrap_or(0))?)
    }

    /// How much of each child the scratch copy takes: whole sectors, in bytes.
    #[must_use]
    pub fn scratch_bytes(&self, ashift: Ashift) -> Option<u64> {
        let sector = Sector::new(ashift)?;
        let rows = sector.whole(RAIDZ_SCRATCH_BYTES);
        // With fewer rows than children nothing could be moved after them.
        let is_enough = rows >= self.children();
        is_enough.then_some(())?;
        sector.to_bytes(rows)
    }

    /// How much of the vdev is moved through the scratch copy, in bytes.
    #[must_use]
    pub fn scratch_end_bytes(&self, ashift: Ashift) -> Option<u64> {
        self.scratch_bytes(ashift)?.checked_mul(self.children())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raidz::{CellPlaces, ExpandedMap};
    use crate::tree::Reflow;
    use millpond_ondisk::{Txg, VDEV_DATA_START_BYTES};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn geometry(children: usize, parity: u64) -> RaidzGeometry {
        RaidzGeometry::new(children, parity, &[], true).unwrap()
    }

    /// A content for each sector.
    fn content(number: u64) -> Vec<u8> {
        number.to_le_bytes().repeat(64)
    }

    proptest! {
        #[test]
        fn each_sector_is_read_and_written_once(
            first in 0u64..500, count in 1u64..300, children in 3usize..12,
        ) {
            let geometry = geometry(children, 1);
            let range = first << 9..(first + count) << 9;
            let moved = RaidzMove::new(&geometry, Ashift(9), &range).unwrap();
            let wide = children as u64;
            let numbers = |runs: &[ChildRun], width: u64| -> Vec<Vec<u64>> {
                let of = |run: &ChildRun| {
                    let rows = run.offset_bytes >> 9..(run.offset_bytes + run.length_bytes) >> 9;
                    rows.map(|row| row * width + run.child).collect()
                };
                runs.iter().map(of).collect()
            };
            for (runs, width) in [(moved.reads(), wide - 1), (moved.writes(), wide)] {
                let mut all: Vec<u64> = numbers(&runs, width).concat();
                all.sort_unstable();
                prop_assert_eq!(all, (first..first + count).collect::<Vec<_>>());
            }
            let read: Vec<Vec<u8>> = numbers(&moved.reads(), wide - 1)
                .iter()
                .map(|numbers| numbers.iter().flat_map(|number| content(*number)).collect())
                .collect();
            let written: Vec<Vec<u8>> = numbers(&moved.writes(), wide)
                .iter()
                .map(|numbers| numbers.iter().flat_map(|number| content(*number)).collect())
                .collect();
            prop_assert_eq!(moved.rearranged(&read), Some(written));
        }

        /// What is overwritten before the next commit is read neither after a crash nor meanwhile.
        #[test]
        fn nothing_is_overwritten_that_the_last_commit_needs(
            done in 9u64..900, children in 3usize..8, parity in 1u64..3, sectors in 1u64..20,
        ) {
            prop_assume!(children as u64 > parity + 1);
            let geometry = geometry(children, parity);
            let end = geometry.moved_bytes_max(Ashift(9), done << 9).unwrap();
            prop_assume!(end > done << 9);
            let moved = RaidzMove::new(&geometry, Ashift(9), &(done << 9..end)).unwrap();
            let mut overwritten: BTreeMap<u64, Range<u64>> = BTreeMap::new();
            for run in moved.writes() {
                overwritten.insert(run.child, run.offset_bytes..run.offset_bytes + run.length_bytes);
            }
            let reflow = Reflow { offset_bytes: done << 9, scratch_state: Reflow::MOVING };
            let width = geometry.logical_width(Txg(4));
            for first in done.saturating_sub(300)..(end >> 9) + 300 {
                let map = ExpandedMap::new(
                    first << 9, sectors << 9, Ashift(9), &geometry, width, CellPlaces::Read(reflow),
                ).unwrap();
                for cell in map.rows.iter().flatten().flatten() {
                    let offset = cell.device_offset_bytes - VDEV_DATA_START_BYTES;
                    let is_hit = overwritten.get(&cell.child).is_some_and(|run| run.contains(&offset));
                    // A row at its new place, beyond what was moved, has not been written yet.
                    prop_assert!(!is_hit, "sector {} of row at {first}", cell.raid_sector);
                }
            }
        }
    }

    #[test]
    fn the_scratch_copy_has_whole_sectors() {
        let geometry = geometry(4, 1);
        assert_eq!(geometry.scratch_bytes(Ashift(9)), Some(0x38_0000));
        assert_eq!(geometry.scratch_end_bytes(Ashift(9)), Some(14_680_064));
        let wide = RaidzGeometry::new(57, 1, &[], true).unwrap();
        assert_eq!(wide.scratch_bytes(Ashift(16)), None);
        assert!(wide.scratch_bytes(Ashift(15)).is_some());
    }
}
