//! The columns of a block whose width is that of its vdev.

use crate::units::Sector;

/// The location of one column of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RaidzColumn {
    /// Index of the child.
    pub child: u64,
    /// First byte on the child, not counting labels.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub size_bytes: u64,
}

/// The columns of one block: parity first, then data in the block's order, each contiguous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaidzMap {
    /// The number of parity columns.
    pub parity: u64,
    /// All columns; at most one for each child of the vdev.
    pub columns: Vec<RaidzColumn>,
}

/// Bit 20 of the block's offset. With single parity, the parity and first data columns are swapped in every
/// other MiB, so that long runs of small blocks do not put all parity on the same children.
pub(super) const SWAP_BIT: u64 = 1 << 20;

impl RaidzMap {
    /// The map of `size_bytes` at `offset_bytes`, both whole sectors, on `children` children with `parity`
    /// parity columns. `None` for inconsistent arguments and on overflow.
    #[must_use]
    pub fn new(
        offset_bytes: u64,
        size_bytes: u64,
        ashift: millpond_ondisk::Ashift,
        children: u64,
        parity: u64,
    ) -> Option<Self> {
        let sector = Sector::new(ashift)?;
        if !sector.is_aligned(offset_bytes) || !sector.is_aligned(size_bytes) || size_bytes == 0 {
            return None;
        }
        let shape = RowShape::new(sector.whole(size_bytes), children, parity)?;
        let first = sector.whole(offset_bytes);
        let first_child = first.checked_rem(children)?;
        let child_offset = sector.to_bytes(first.checked_div(children)?)?;
        let count = if shape.full_rows == 0 {
            shape.big_columns
        } else {
            children
        };
        let mut columns = Vec::with_capacity(usize::try_from(count).ok()?);
        for column in 0..count {
            let mut child = first_child.checked_add(column)?;
            let mut offset = child_offset;
            if child >= children {
                child = child.checked_sub(children)?;
                offset = offset.checked_add(sector.bytes())?;
            }
            let rows = shape
                .full_rows
                .checked_add(u64::from(column < shape.big_columns))?;
            columns.push(RaidzColumn {
                child,
                offset_bytes: offset,
                size_bytes: sector.to_bytes(rows)?,
            });
        }
        if parity == 1 && offset_bytes & SWAP_BIT != 0 && columns.len() > 1 {
            columns.swap(0, 1);
            // Both have the same length, so swapping whole columns swaps only their locations.
        }
        Some(Self { parity, columns })
    }
}

/// How data sectors are distributed over rows.
pub(super) struct RowShape {
    /// The number of rows in which every data column has a sector.
    pub(super) full_rows: u64,
    /// Data sectors in the last, partial row.
    pub(super) rest: u64,
    /// Columns with a sector in the partial row, including parity; 0 if there is none.
    pub(super) big_columns: u64,
}

impl RowShape {
    pub(super) fn new(data_sectors: u64, width: u64, parity: u64) -> Option<Self> {
        let data_columns = width.checked_sub(parity).filter(|count| *count > 0)?;
        let full_rows = data_sectors.checked_div(data_columns)?;
        let rest = data_sectors.checked_rem(data_columns)?;
        let big_columns = if rest == 0 {
            0
        } else {
            rest.checked_add(parity)?
        };
        Some(Self {
            full_rows,
            rest,
            big_columns,
        })
    }
}
