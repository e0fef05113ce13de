//! The columns of a block in its group, or in two groups if it crosses a boundary; and where a child's part of a range lies.

use std::ops::Range;

use millpond_ondisk::Ashift;

use super::{DraidGeometry, ROW_BYTES};
use crate::units::{Sector, round_down, round_up};

/// The location of one column of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraidColumn {
    /// Index of the child.
    pub child: u64,
    /// First byte on the child, not counting labels.
    pub offset_bytes: u64,
    /// Bytes of the block (or of parity) in the column, may be 0. The rest, up to
    /// [`DraidRow::column_bytes`], is zeros stored on the child.
    pub size_bytes: u64,
}

/// The part of a block in one group: parity columns first, then data columns in the block's order. Every
/// column is `column_bytes` long on its child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraidRow {
    /// The number of parity columns.
    pub parity: u64,
    /// Length of every column on its child, in bytes.
    pub column_bytes: u64,
    /// All columns of the group.
    pub columns: Vec<DraidColumn>,
}

impl DraidGeometry {
    /// The map of `size_bytes` at `offset_bytes`: one row, or two for a block that crosses from one group
    /// into the next. `None` for inconsistent arguments and on overflow.
    ///
    /// Allocates one column for each child of a group and row.
    #[must_use]
    pub fn map(&self, offset_bytes: u64, size_bytes: u64, ashift: Ashift) -> Option<Vec<DraidRow>> {
        let sector = Sector::new(ashift)?;
        let stripe = sector.to_bytes(self.group_width())?;
        if size_bytes == 0
            || !sector.is_aligned(size_bytes)
            || offset_bytes.checked_rem(stripe)? != 0
        {
            return None;
        }
        let group_bytes = self.group_width().checked_mul(ROW_BYTES)?;
        let mut rows = Vec::new();
        let (mut offset, mut left) = (offset_bytes, size_bytes);
        while left > 0 {
            let group = offset.checked_div(group_bytes)?;
            let end = group.checked_add(1)?.checked_mul(group_bytes)?;
            let room = end.checked_sub(offset)?;
            let here = if self.asize(left, sector)? > room {
                room.checked_div(self.group_width())?
                    .checked_mul(self.data)?
            } else {
                left
            };
            rows.push(self.row(group, offset, here, sector)?);
            left = left.checked_sub(here)?;
            offset = end;
        }
        Some(rows)
    }

    /// The parts of a child that hold whole stripes of a range of the vdev, in order, in bytes not counting labels.
    /// `None` for inconsistent arguments and on overflow.
    #[must_use]
    pub fn child_ranges(
        &self,
        child: u64,
        range: &Range<u64>,
        ashift: Ashift,
    ) -> Option<Vec<Range<u64>>> {
        let stripe = Sector::new(ashift)?.to_bytes(self.group_width())?;
        let start = round_up(range.start, stripe)?;
        let length = round_down(range.end, stripe)?.saturating_sub(start);
        if length == 0 {
            return Some(vec![]);
        }
        let data_bytes = length
            .checked_div(self.group_width())?
            .checked_mul(self.data)?;
        let mut ranges: Vec<Range<u64>> = vec![];
        for row in self.map(start, data_bytes, ashift)? {
            let mut columns = row.columns.iter();
            let Some(column) = columns.find(|column| column.child == child) else {
                continue;
            };
            let end = column.offset_bytes.checked_add(row.column_bytes)?;
            match ranges.last_mut() {
                Some(last) if last.end == column.offset_bytes => last.end = end,
                _ => ranges.push(column.offset_bytes..end),
            }
        }
        Some(ranges)
    }

    /// An offset on the vdev before which a child has nothing at `child_bytes` or behind it. `None` for inconsistent
    /// arguments and on overflow.
    #[must_use]
    pub fn offset_behind(&self, child: u64, child_bytes: u64, ashift: Ashift) -> Option<u64> {
        let sector = Sector::new(ashift)?;
        let (width, disks) = (self.group_width(), self.disks());
        let rows_per_slice = width.checked_mul(self.groups)?.checked_div(disks)?;
        let row = child_bytes.checked_div(ROW_BYTES)?;
        let slice = row.checked_div(rows_per_slice)?;
        let first_slot = row.checked_mul(disks)?;
        let group_bytes = width.checked_mul(ROW_BYTES)?;
        let mut positions = 0..disks;
        let is_child = |at: &u64| self.permutations.child(slice, *at) == Some(child);
        let Some(position) = positions.find(is_child) else {
            // The row belongs to a spare there.
            let group = first_slot.checked_div(width)?;
            return group.checked_mul(group_bytes);
        };
        let group = first_slot.checked_add(position)?.checked_div(width)?;
        let sectors = sector.whole(child_bytes.checked_rem(ROW_BYTES)?);
        let within = sector.to_bytes(sectors)?.checked_mul(width)?;
        group.checked_mul(group_bytes)?.checked_add(within)
    }

    /// The size of a stripe of a group in bytes, parity included. `None` on overflow.
    #[must_use]
    pub fn stripe_bytes(&self, ashift: Ashift) -> Option<u64> {
        Sector::new(ashift)?.to_bytes(self.group_width())
    }

    /// The ranges of whole stripes that touch a range of the vdev, each in one group, with the size of a block that would
    /// fill it, in bytes. `None` for inconsistent arguments and on overflow.
    #[must_use]
    pub fn whole_stripes(
        &self,
        range: &Range<u64>,
        ashift: Ashift,
    ) -> Option<Vec<(Range<u64>, u64)>> {
        let stripe = self.stripe_bytes(ashift)?;
        let group_bytes = self.group_width().checked_mul(ROW_BYTES)?;
        let mut at = round_down(range.start, stripe)?;
        let end = round_up(range.end, stripe)?;
        let mut pieces = vec![];
        while at < end {
            let next = round_down(at, group_bytes)?
                .checked_add(group_bytes)?
                .min(end);
            let stripes = next.checked_sub(at)?.checked_div(self.group_width())?;
            pieces.push((at..next, stripes.checked_mul(self.data)?));
            at = next;
        }
        Some(pieces)
    }

    /// The places on their children of all columns of a range of the vdev, in bytes not counting labels. `None` for inconsistent arguments and on overflow.
    #[must_use]
    pub fn leaf_ranges(&self, range: &Range<u64>, ashift: Ashift) -> Option<Vec<Range<u64>>> {
        let mut ranges = vec![];
        for (piece, block_bytes) in self.whole_stripes(range, ashift)? {
            for row in self.map(piece.start, block_bytes, ashift)? {
                let mut starts: Vec<u64> = (row.columns.iter())
                    .map(|column| column.offset_bytes)
                    .collect();
                starts.dedup();
                for start in starts {
                    ranges.push(start..start.checked_add(row.column_bytes)?);
                }
            }
        }
        Some(ranges)
    }

    fn row(&self, group: u64, offset: u64, size: u64, sector: Sector) -> Option<DraidRow> {
        let (width, disks) = (self.group_width(), self.disks());
        let start = group.checked_mul(width)?.checked_rem(disks)?;
        let slice = group.checked_div(self.groups)?;
        let rows_per_slice = width.checked_mul(self.groups)?.checked_div(disks)?;
        let within = group
            .checked_rem(self.groups)?
            .checked_mul(width)?
            .checked_div(disks)?;
        let row = slice.checked_mul(rows_per_slice)?.checked_add(within)?;
        let row_sectors = sector.whole(ROW_BYTES);
        let in_group = sector
            .whole(offset)
            .checked_rem(row_sectors.checked_mul(width)?)?
            .checked_div(width)?;
        let physical = sector.to_bytes(row_sectors.checked_mul(row)?.checked_add(in_group)?)?;

        let sectors = sector.whole(size);
        let full = sectors.checked_div(self.data)?;
        let rest = sectors.checked_rem(self.data)?;
        let big = if rest == 0 {
            0
        } else {
            rest.checked_add(self.parity)?
        };
        let mut columns = Vec::with_capacity(usize::try_from(width).ok()?);
        for column in 0..width {
            let mut position = start.checked_add(column)?;
            let mut at = physical;
            if position >= disks {
                position = position.checked_sub(disks)?;
                at = at.checked_add(ROW_BYTES)?;
            }
            let tall = full.checked_add(u64::from(column < big))?;
            columns.push(DraidColumn {
                child: self.permutations.child(slice, position)?,
                offset_bytes: at,
                size_bytes: sector.to_bytes(tall)?,
            });
        }
        let column_bytes = columns.first()?.size_bytes;
        Some(DraidRow {
            parity: self.parity,
            column_bytes,
            columns,
        })
    }
}
