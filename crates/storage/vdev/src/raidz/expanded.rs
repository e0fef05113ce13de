//! The cells of a block whose width differs from that of its vdev: row by row, one sector each.

use millpond_ondisk::VDEV_DATA_START_BYTES;

use super::RaidzGeometry;
use super::map::{RowShape, SWAP_BIT};
use crate::tree::Reflow;
use crate::units::Sector;

/// The scratch copy of a RAID-Z expansion on a device: the boot area.
pub const RAIDZ_SCRATCH_START_BYTES: u64 = 512 << 10;
/// The size of the boot area in bytes: up to the start of allocatable space.
pub const RAIDZ_SCRATCH_BYTES: u64 = 0x38_0000;

/// One sector of one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpandedCell {
    /// Index of the child.
    pub child: u64,
    /// First byte on the device, including labels.
    pub device_offset_bytes: u64,
    /// The number of the sector, counted row by row over the vdev; the same at every width. At width `w`,
    /// child `t` holds the sectors with `raid_sector % w == t`.
    pub raid_sector: u64,
    /// For a data cell its position in the block, in sectors.
    pub data_sector: Option<u64>,
}

/// Where the sectors of a block lie while its vdev is being expanded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellPlaces {
    /// Where they are read: by the committed progress, and all sectors of a row at one width.
    Read(Reflow),
    /// Where they will be once all sectors below an offset, in bytes, have been moved. Each sector by itself: the row
    /// at the offset is in both places.
    Moved(u64),
}

/// The rows of one block. Every row has `parity` parity cells, then data cells. In the last row data cells
/// may be absent; they count as zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpandedMap {
    /// The number of parity cells at the start of each row.
    pub parity: u64,
    /// The rows, each with the same number of cells. At most 33,000 rows of 255 cells, and at most three
    /// times as many cells as the block has sectors.
    pub rows: Vec<Vec<Option<ExpandedCell>>>,
}

impl ExpandedMap {
    /// The map of `size_bytes` at `offset_bytes`, both whole sectors, for a block of the given `width`.
    /// `None` for inconsistent arguments and on overflow.
    #[must_use]
    pub fn new(
        offset_bytes: u64,
        size_bytes: u64,
        ashift: millpond_ondisk::Ashift,
        geometry: &RaidzGeometry,
        width: u64,
        places: CellPlaces,
    ) -> Option<Self> {
        let sector = Sector::new(ashift)?;
        if !sector.is_aligned(offset_bytes) || !sector.is_aligned(size_bytes) || size_bytes == 0 {
            return None;
        }
        let parity = geometry.parity();
        let shape = RowShape::new(sector.whole(size_bytes), width, parity)?;
        let row_count = shape.full_rows.checked_add(u64::from(shape.rest > 0))?;
        let columns = if shape.full_rows == 0 {
            shape.big_columns
        } else {
            width
        };
        let is_swapped = parity == 1 && columns > 1 && offset_bytes & SWAP_BIT != 0;
        let mut rows = Vec::with_capacity(usize::try_from(row_count).ok()?);
        for row in 0..row_count {
            let first = sector
                .whole(offset_bytes)
                .checked_add(row.checked_mul(width)?)?;
            let at = RowPlace::new(first, columns, sector, geometry, places)?;
            let is_partial = shape.big_columns != 0 && row.checked_add(1)? == row_count;
            let mut cells = Vec::with_capacity(usize::try_from(columns).ok()?);
            for column in 0..columns {
                if is_partial && column >= shape.big_columns {
                    cells.push(None);
                    continue;
                }
                let place = match (is_swapped, column) {
                    (true, 0) => 1,
                    (true, 1) => 0,
                    _ => column,
                };
                let raid_sector = first.checked_add(place)?;
                let data_sector = match column.checked_sub(parity) {
                    Some(data) => Some(data_sector(&shape, row_count, row, column, data)?),
                    None => None,
                };
                cells.push(Some(at.cell(raid_sector, data_sector, sector)?));
            }
            rows.push(cells);
        }
        Some(Self { parity, rows })
    }
}

/// The position in the block of data column `data` in `row`. The block runs down the columns.
fn data_sector(shape: &RowShape, row_count: u64, row: u64, column: u64, data: u64) -> Option<u64> {
    if column < shape.big_columns || shape.rest == 0 {
        return data.checked_mul(row_count)?.checked_add(row);
    }
    let long = shape.rest.checked_mul(row_count)?;
    let short = data
        .checked_sub(shape.rest)?
        .checked_mul(row_count.checked_sub(1)?)?;
    long.checked_add(short)?.checked_add(row)
}

/// The location of the sectors of a row.
struct RowPlace {
    /// The width of the sectors from [`RowPlace::new_end`] on.
    old_width: u64,
    /// The width of those before.
    new_width: u64,
    /// The first sector that is not at its new place.
    new_end: u64,
    is_scratch: bool,
}

impl RowPlace {
    fn new(
        first: u64,
        columns: u64,
        sector: Sector,
        geometry: &RaidzGeometry,
        places: CellPlaces,
    ) -> Option<Self> {
        let new_width = geometry.children();
        let mut place = Self {
            old_width: new_width,
            new_width,
            new_end: u64::MAX,
            is_scratch: false,
        };
        if !geometry.is_expanding() {
            return Some(place);
        }
        place.old_width = new_width.checked_sub(1)?;
        match places {
            CellPlaces::Moved(to_bytes) => place.new_end = sector.whole(to_bytes),
            CellPlaces::Read(reflow) => {
                let end = first.checked_add(columns)?;
                match end > sector.whole(reflow.offset_bytes) {
                    true => place.new_end = 0,
                    false => place.is_scratch = reflow.is_scratch_valid(),
                }
            }
        }
        Some(place)
    }

    fn cell(
        &self,
        raid_sector: u64,
        data_sector: Option<u64>,
        sector: Sector,
    ) -> Option<ExpandedCell> {
        let width = match raid_sector < self.new_end {
            true => self.new_width,
            false => self.old_width,
        };
        let (child, offset) = row_place(raid_sector, width, sector)?;
        let start = if self.is_scratch {
            RAIDZ_SCRATCH_START_BYTES
        } else {
            VDEV_DATA_START_BYTES
        };
        Some(ExpandedCell {
            child,
            device_offset_bytes: offset.checked_add(start)?,
            raid_sector,
            data_sector,
        })
    }
}

impl ExpandedCell {
    /// The child and the first byte on it, including labels, of this sector on a vdev of a width.
    pub(crate) fn place_at_width(&self, width: u64, sector: Sector) -> Option<(u64, u64)> {
        let (child, offset) = row_place(self.raid_sector, width, sector)?;
        Some((child, offset.checked_add(VDEV_DATA_START_BYTES)?))
    }
}

/// The child that has a sector, and the offset of its row in bytes.
fn row_place(raid_sector: u64, width: u64, sector: Sector) -> Option<(u64, u64)> {
    let child = raid_sector.checked_rem(width)?;
    Some((child, sector.to_bytes(raid_sector.checked_div(width)?)?))
}
