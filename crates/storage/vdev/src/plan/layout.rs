//! A common layout for all kinds of vdevs: rows of cells.
//!
//! A plain leaf or a mirror is a row of one cell. A RAID-Z block is a row of columns, or many rows of
//! single sectors if its vdev was expanded. A dRAID block is one row or two. A block on a removed vdev
//! consists of the rows of its pieces.

use millpond_ondisk::{BLOCK_BYTES_MAX, VDEV_DATA_START_BYTES};

use super::pieces::{Piece, each_piece};
use super::{BlockRange, PlanError};
use crate::health::Health;
use crate::indirect::{IndirectMap, NoIndirect};
use crate::mirror::sources;
use crate::raidz::{CellPlaces, ExpandedCell, ExpandedMap, RaidzGeometry, RaidzMap};
use crate::tree::{LeafId, NodeId, VdevKind, VdevNode, VdevTree};
use crate::units::{Sector, round_up};

/// The most copies of cells of a block. A block of 16 MiB on an expanded RAID-Z vdev with 512-byte sectors
/// has at most 131,072 cells.
const COPIES_MAX: usize = 1 << 20;

/// One location of a cell's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) leaf: LeafId,
    /// The distributed spares whose space this is, the outermost first.
    pub(crate) spares: Vec<LeafId>,
    /// On the device, including labels.
    pub(crate) offset_bytes: u64,
    /// Whether the leaf, or one of the spares, missed the txg.
    pub(crate) is_stale: bool,
    /// Whether the leaf has not answered for a while. It holds the bytes nevertheless.
    pub(crate) is_slow: bool,
    pub(crate) is_readable: bool,
}

impl Source {
    /// Whether other sources are read first.
    pub(crate) fn is_last_resort(&self) -> bool {
        self.is_stale || self.is_slow
    }
}

/// A contiguous run of bytes that all of its sources should hold.
#[derive(Debug, Clone)]
pub(crate) struct CellShape {
    /// Bytes on the device; 0 for an absent column that counts as zeros.
    pub(crate) length: usize,
    /// For data cells the offset in the block.
    pub(crate) block_offset: usize,
    /// For data cells how many of the bytes belong to the block; the rest is zeros. 0 for parity.
    pub(crate) keep: usize,
    pub(crate) sources: Vec<Source>,
    /// On expanded RAID-Z the sector number, which is independent of the width.
    pub(crate) raid_sector: Option<u64>,
}

/// Parity cells, then data cells. Shorter data cells count as padded with zeros.
#[derive(Debug, Clone)]
pub(crate) struct RowShape {
    pub(crate) parity: usize,
    pub(crate) cells: Vec<CellShape>,
    /// Zeros on the leaves after short cells (dRAID): read by audits only, but always written.
    pub(crate) pads: Vec<CellShape>,
    /// Size of a sector in bytes.
    pub(crate) sector: usize,
}

impl RowShape {
    fn new(parity: usize, sector: Sector) -> Option<Self> {
        let sector = usize::try_from(sector.bytes()).ok()?;
        Some(Self {
            parity,
            cells: Vec::new(),
            pads: Vec::new(),
            sector,
        })
    }
}

impl RowShape {
    /// Whether all cells are at the same places of the same leaves.
    pub(crate) fn has_same_places(&self, other: &Self) -> bool {
        fn places(row: &RowShape) -> impl Iterator<Item = (LeafId, u64)> + '_ {
            let sources = row.cells.iter().flat_map(|cell| &cell.sources);
            sources.map(|source| (source.leaf, source.offset_bytes))
        }
        places(self).eq(places(other))
    }
}

/// The layout of a block.
#[derive(Debug, Clone, Default)]
pub(crate) struct Layout {
    pub(crate) size: usize,
    pub(crate) rows: Vec<RowShape>,
    /// The smallest and the current width of the block's vdev, if it was ever expanded.
    pub(crate) widths: Option<(u64, u64)>,
}

impl Layout {
    /// Lays out `range` with all places that hold its bytes.
    ///
    /// While a RAID-Z vdev is being expanded, the row at the progress has sectors that were moved already. The row is read at
    /// its old places, and the new ones of these sectors are further sources. They are not moved again, so repairs must reach
    /// them.
    ///
    /// Allocates in proportion to the number of cells and of their copies. There is at most one cell for
    /// each child of the vdev, or on an expanded RAID-Z vdev one for each sector of the block and its
    /// parity. There are at most [`COPIES_MAX`] copies.
    pub(crate) fn new(
        tree: &VdevTree,
        health: &dyn Health,
        indirect: &dyn IndirectMap,
        range: BlockRange,
    ) -> Result<Self, PlanError> {
        let reflow = tree.reflow();
        let moved_bytes = match reflow.is_scratch_valid() {
            true => 0,
            false => reflow.offset_bytes,
        };
        let places = CellPlaces::Read(reflow);
        Self::with_places(tree, health, indirect, range, places, moved_bytes)
    }

    /// Like [`Layout::new`], with one place only of each sector of a vdev that is being expanded.
    pub(crate) fn placed(
        tree: &VdevTree,
        health: &dyn Health,
        range: BlockRange,
        places: CellPlaces,
    ) -> Result<Self, PlanError> {
        Self::with_places(tree, health, &NoIndirect, range, places, 0)
    }

    fn with_places(
        tree: &VdevTree,
        health: &dyn Health,
        indirect: &dyn IndirectMap,
        range: BlockRange,
        places: CellPlaces,
        moved_bytes: u64,
    ) -> Result<Self, PlanError> {
        if range.size_bytes == 0 || range.size_bytes > BLOCK_BYTES_MAX {
            return Err(PlanError::Size {
                size_bytes: range.size_bytes,
            });
        }
        let size = usize::try_from(range.size_bytes).map_err(|_| PlanError::Size {
            size_bytes: range.size_bytes,
        })?;
        let mut builder = Builder {
            tree,
            health,
            places,
            moved_bytes,
            layout: Self {
                size,
                ..Self::default()
            },
            copies: 0,
        };
        each_piece(tree, indirect, range, &mut |id, node, piece| {
            if builder.place(id, node, piece).is_some() {
                Ok(())
            } else if builder.copies > COPIES_MAX {
                Err(PlanError::TooManyPieces)
            } else {
                Err(PlanError::Offset {
                    vdev: piece.vdev,
                    offset_bytes: piece.offset,
                })
            }
        })?;
        Ok(builder.layout)
    }

    /// Whether the block is one run of bytes that each source holds completely.
    pub(crate) fn is_single(&self) -> bool {
        matches!(self.rows.as_slice(), [row] if row.parity == 0 && row.cells.len() == 1)
    }
}

struct Builder<'a> {
    tree: &'a VdevTree,
    health: &'a dyn Health,
    places: CellPlaces,
    /// Sectors of a vdev that is being expanded are at their new places too, if they lie below this offset.
    moved_bytes: u64,
    layout: Layout,
    copies: usize,
}

impl Builder<'_> {
    fn place(&mut self, id: NodeId, node: &VdevNode, piece: Piece) -> Option<()> {
        let sector = Sector::new(node.ashift)?;
        let rounded = round_up(piece.size, sector.bytes())?;
        piece.offset.checked_add(rounded)?;
        match &node.kind {
            VdevKind::Raidz(geometry) => self.place_raidz(node, geometry, piece, sector, rounded),
            VdevKind::Draid(geometry) => {
                let rows = geometry.map(piece.offset, rounded, node.ashift)?;
                let mut done = 0u64;
                for row in rows {
                    let parity = usize::try_from(row.parity).ok()?;
                    let mut shape = RowShape::new(parity, sector)?;
                    for (index, column) in row.columns.iter().enumerate() {
                        let child = *node.children.get(usize::try_from(column.child).ok()?)?;
                        let is_parity = index < parity;
                        let at = column.offset_bytes.checked_add(VDEV_DATA_START_BYTES)?;
                        let size = column.size_bytes;
                        let data = (!is_parity).then_some(done);
                        shape
                            .cells
                            .push(self.cell(child, at, size, data, piece, None)?);
                        let pad = row.column_bytes.checked_sub(size)?;
                        if pad > 0 {
                            let at = at.checked_add(size)?;
                            shape
                                .pads
                                .push(self.cell(child, at, pad, None, piece, None)?);
                        }
                        if !is_parity {
                            done = done.checked_add(size)?;
                        }
                    }
                    self.layout.rows.push(shape);
                }
                Some(())
            }
            _ => {
                let at = piece.offset.checked_add(VDEV_DATA_START_BYTES)?;
                let cell = self.cell(id, at, rounded, Some(0), piece, None)?;
                let mut row = RowShape::new(0, sector)?;
                row.cells.push(cell);
                self.layout.rows.push(row);
                Some(())
            }
        }
    }

    fn place_raidz(
        &mut self,
        node: &VdevNode,
        geometry: &RaidzGeometry,
        piece: Piece,
        sector: Sector,
        rounded: u64,
    ) -> Option<()> {
        let width = geometry.logical_width(piece.birth);
        let parity = usize::try_from(geometry.parity()).ok()?;
        if width == geometry.children() && !geometry.is_expanding() {
            let map = RaidzMap::new(piece.offset, rounded, node.ashift, width, geometry.parity())?;
            let mut done = 0u64;
            let mut row = RowShape::new(parity, sector)?;
            for (index, column) in map.columns.iter().enumerate() {
                let child = *node.children.get(usize::try_from(column.child).ok()?)?;
                let at = column.offset_bytes.checked_add(VDEV_DATA_START_BYTES)?;
                let data = (index >= parity).then_some(done);
                row.cells
                    .push(self.cell(child, at, column.size_bytes, data, piece, None)?);
                if index >= parity {
                    done = done.checked_add(column.size_bytes)?;
                }
            }
            self.layout.rows.push(row);
            return Some(());
        }
        let map = ExpandedMap::new(
            piece.offset,
            rounded,
            node.ashift,
            geometry,
            width,
            self.places,
        )?;
        self.layout.widths = Some((geometry.first_width(), geometry.children()));
        for cells in map.rows {
            let mut row = RowShape::new(parity, sector)?;
            for cell in cells {
                row.cells.push(match cell {
                    None => CellShape {
                        length: 0,
                        block_offset: 0,
                        keep: 0,
                        sources: Vec::new(),
                        raid_sector: None,
                    },
                    Some(cell) => {
                        let child = *node.children.get(usize::try_from(cell.child).ok()?)?;
                        let data = match cell.data_sector {
                            Some(at) => Some(sector.to_bytes(at)?),
                            None => None,
                        };
                        let at = cell.device_offset_bytes;
                        let number = Some(cell.raid_sector);
                        let mut shape =
                            self.cell(child, at, sector.bytes(), data, piece, number)?;
                        if geometry.is_expanding()
                            && cell.raid_sector < sector.whole(self.moved_bytes)
                        {
                            self.add_moved(node, geometry, cell, piece, sector, &mut shape)?;
                        }
                        shape
                    }
                });
            }
            self.layout.rows.push(row);
        }
        Some(())
    }

    /// Adds the new place of a sector that is read at its old one.
    fn add_moved(
        &mut self,
        node: &VdevNode,
        geometry: &RaidzGeometry,
        cell: ExpandedCell,
        piece: Piece,
        sector: Sector,
        shape: &mut CellShape,
    ) -> Option<()> {
        let (child, offset_bytes) = cell.place_at_width(geometry.children(), sector)?;
        if (child, offset_bytes) == (cell.child, cell.device_offset_bytes) {
            return Some(());
        }
        let child = *node.children.get(usize::try_from(child).ok()?)?;
        let moved = self.cell(child, offset_bytes, sector.bytes(), None, piece, None)?;
        shape.sources.extend(moved.sources);
        Some(())
    }

    /// A cell of `length` bytes on `child`. `data` is its offset in the piece, `None` for parity and
    /// padding.
    fn cell(
        &mut self,
        child: NodeId,
        device_offset: u64,
        length: u64,
        data: Option<u64>,
        piece: Piece,
        raid_sector: Option<u64>,
    ) -> Option<CellShape> {
        device_offset.checked_add(length)?;
        let keep = data.map_or(0, |at| length.min(piece.size.saturating_sub(at)));
        let block_offset = piece.block_offset.checked_add(data.unwrap_or(0))?;
        let sources = if length == 0 {
            Vec::new()
        } else {
            sources(self.tree, self.health, child, device_offset, piece.birth)
        };
        self.copies = self.copies.saturating_add(sources.len());
        if self.copies > COPIES_MAX {
            return None;
        }
        Some(CellShape {
            length: usize::try_from(length).ok()?,
            block_offset: usize::try_from(block_offset).ok()?,
            keep: usize::try_from(keep).ok()?,
            sources,
            raid_sector,
        })
    }
}
