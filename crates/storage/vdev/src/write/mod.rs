//! Writing one block: what goes to which leaf, and what it means if some of it does not get there.
//! Pages `docs/format/vdev-tree.md`, `docs/format/raidz-layout.md`.

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use millpond_ondisk::{VDEV_DATA_START_BYTES, VdevId};

use crate::health::Health;
use crate::indirect::NoIndirect;
use crate::mirror::sources;
use crate::plan::{BlockRange, CellShape, Layout, PlanError, RowShape};
use crate::raidz::RaidzGeometry;
use crate::tree::{LeafId, NodeId, VdevKind, VdevNode, VdevTree};
use crate::units::Sector;

/// Why no plan to write can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WritePlanError {
    /// Nothing can lie there at all.
    #[error(transparent)]
    Range(#[from] PlanError),
    /// The vdev takes no new blocks: it was removed, is being widened, or is of a kind that cannot be
    /// written yet (dRAID).
    #[error("vdev {0} cannot be written")]
    NotWritable(VdevId),
    /// The bytes are not as many as the range has.
    #[error("{length} bytes for a block of {size_bytes}")]
    Length {
        /// The range's size in bytes.
        size_bytes: u64,
        /// The bytes given.
        length: usize,
    },
}

/// Where the bytes of one write come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeafContent {
    /// A part of the block.
    Block(Range<usize>),
    /// Bytes made for it: parity, or the end of the block filled up to a sector with zeros.
    Own(Arc<Vec<u8>>),
}

/// One write to one leaf: whole sectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafWrite {
    /// The leaf.
    pub leaf: LeafId,
    /// First byte on the device, labels included.
    pub offset_bytes: u64,
    /// What to write there.
    pub content: LeafContent,
    row: usize,
    cell: usize,
}

impl LeafWrite {
    /// The bytes, given the block that the plan was made for.
    #[must_use]
    pub fn bytes<'a>(&'a self, block: &'a [u8]) -> &'a [u8] {
        match &self.content {
            LeafContent::Block(range) => block.get(range.clone()).unwrap_or(&[]),
            LeafContent::Own(bytes) => bytes,
        }
    }
    /// How many bytes.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        let length = match &self.content {
            LeafContent::Block(range) => range.len(),
            LeafContent::Own(bytes) => bytes.len(),
        };
        u64::try_from(length).unwrap_or(u64::MAX)
    }
}

/// Bytes of a leaf that belong to the block's space and hold nothing: zeros may be written there where
/// that joins two writes into one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Filler {
    /// The leaf.
    pub leaf: LeafId,
    /// First byte on the device, labels included.
    pub offset_bytes: u64,
    /// How many bytes.
    pub length_bytes: u64,
}

/// What came of a block's writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteOutcome {
    /// Leaves that do not hold their part, sorted: those that could not be written and those that
    /// failed.
    pub missed: Vec<LeafId>,
    /// Whether the block can be read back in spite of them.
    pub is_readable: bool,
}

/// Everything that goes to leaves for one block at one address. Owns the parity; the block itself stays
/// the caller's.
///
/// Holds at most one write for each child of the vdev (each copy below it), or for each sector of the
/// block with its parity on a RAID-Z vdev that was widened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WritePlan {
    writes: Vec<LeafWrite>,
    fillers: Vec<Filler>,
    /// Leaves that cannot be written, sorted.
    absent: Vec<LeafId>,
    /// For each row how many cells it may lose, and which of its cells hold anything.
    rows: Vec<(usize, Vec<bool>)>,
}

impl WritePlan {
    /// Lays out `block` at `range`, whose birth is the txg that writes it. Leaves that `health` calls
    /// unreadable are not written to; those that missed older txgs are.
    ///
    /// # Errors
    /// [`WritePlanError`] when the vdev cannot take the block, or `block` is not of the range's size.
    pub fn new(
        tree: &VdevTree,
        health: &dyn Health,
        range: BlockRange,
        block: &[u8],
    ) -> Result<Self, WritePlanError> {
        if u64::try_from(block.len()) != Ok(range.size_bytes) {
            return Err(WritePlanError::Length {
                size_bytes: range.size_bytes,
                length: block.len(),
            });
        }
        let top = tree
            .top(range.vdev)
            .ok_or(PlanError::NoSuchVdev(range.vdev))?;
        let is_writable = match &top.kind {
            VdevKind::Raidz(geometry) => !geometry.is_expanding(),
            VdevKind::Draid(_) | VdevKind::Indirect => false,
            // Holes and missing vdevs have errors of their own.
            _ => true,
        };
        if !is_writable {
            return Err(WritePlanError::NotWritable(range.vdev));
        }
        let layout = Layout::new(tree, health, &NoIndirect, range)?;
        let mut plan = Self {
            writes: Vec::new(),
            fillers: Vec::new(),
            absent: Vec::new(),
            rows: Vec::with_capacity(layout.rows.len()),
        };
        for row in &layout.rows {
            plan.add_row(row, block);
        }
        plan.absent.sort_unstable();
        plan.absent.dedup();
        if let VdevKind::Raidz(geometry) = &top.kind {
            // Fillers only serve speed: without them the plan is as good.
            let _ = plan.add_fillers(tree, health, top, geometry, range);
        }
        Ok(plan)
    }

    /// The writes, in any order of leaves.
    #[must_use]
    pub fn writes(&self) -> &[LeafWrite] {
        &self.writes
    }

    /// Where zeros may be written besides.
    #[must_use]
    pub fn fillers(&self) -> &[Filler] {
        &self.fillers
    }

    /// What it means that the writes of [`WritePlan::writes`] for whose index `is_written` is false
    /// failed.
    pub fn outcome(&self, is_written: &mut dyn FnMut(usize) -> bool) -> WriteOutcome {
        let mut missed = self.absent.clone();
        let mut holes: Vec<(usize, Vec<bool>)> = self.rows.clone();
        for (index, write) in self.writes.iter().enumerate() {
            if !is_written(index) {
                missed.push(write.leaf);
                continue;
            }
            let cell = holes
                .get_mut(write.row)
                .and_then(|(_, cells)| cells.get_mut(write.cell));
            if let Some(is_lost) = cell {
                *is_lost = false;
            }
        }
        missed.sort_unstable();
        missed.dedup();
        let is_readable = holes
            .iter()
            .all(|(parity, cells)| cells.iter().filter(|is_lost| **is_lost).count() <= *parity);
        WriteOutcome {
            missed,
            is_readable,
        }
    }

    fn add_row(&mut self, shape: &RowShape, block: &[u8]) {
        let row = self.rows.len();
        let data: Vec<LeafContent> = shape
            .cells
            .iter()
            .skip(shape.parity)
            .map(|cell| content_of(cell, block))
            .collect();
        let parity = parity_of(shape, &data, block);
        let contents = parity.into_iter().map(LeafContent::Own).chain(data);
        for (index, (cell, content)) in shape.cells.iter().zip(contents).enumerate() {
            if cell.length == 0 {
                continue;
            }
            for source in &cell.sources {
                if !source.is_readable {
                    self.absent.push(source.leaf);
                    continue;
                }
                self.writes.push(LeafWrite {
                    leaf: source.leaf,
                    offset_bytes: source.offset_bytes,
                    content: content.clone(),
                    row,
                    cell: index,
                });
            }
        }
        let cells = shape.cells.iter().map(|cell| cell.length > 0).collect();
        self.rows.push((shape.parity, cells));
    }

    /// The sectors by which an allocation on RAID-Z is longer than data and parity.
    fn add_fillers(
        &mut self,
        tree: &VdevTree,
        health: &dyn Health,
        top: &VdevNode,
        geometry: &RaidzGeometry,
        range: BlockRange,
    ) -> Option<()> {
        let sector = Sector::new(top.ashift)?;
        let width = geometry.logical_width(range.birth);
        if width != geometry.children() {
            return None;
        }
        let data = sector.covering(range.size_bytes);
        let rows = data.div_ceil(width.checked_sub(geometry.parity())?);
        let used = data.checked_add(rows.checked_mul(geometry.parity())?)?;
        let taken = sector.whole(geometry.asize(range.size_bytes, sector, range.birth)?);
        let first = sector.whole(range.offset_bytes);
        for number in first.checked_add(used)?..first.checked_add(taken)? {
            let child: NodeId = *top
                .children
                .get(usize::try_from(number.checked_rem(width)?).ok()?)?;
            let at = sector
                .to_bytes(number.checked_div(width)?)?
                .checked_add(VDEV_DATA_START_BYTES)?;
            for source in sources(tree, health, child, at, range.birth) {
                if source.is_readable {
                    self.fillers.push(Filler {
                        leaf: source.leaf,
                        offset_bytes: at,
                        length_bytes: sector.bytes(),
                    });
                }
            }
        }
        Some(())
    }
}

/// What a data cell holds: a part of the block, or a copy of it that ends in zeros.
fn content_of(cell: &CellShape, block: &[u8]) -> LeafContent {
    let end = cell.block_offset.saturating_add(cell.keep);
    if cell.keep == cell.length {
        return LeafContent::Block(cell.block_offset..end);
    }
    let mut bytes = block.get(cell.block_offset..end).unwrap_or(&[]).to_vec();
    bytes.resize(cell.length, 0);
    LeafContent::Own(Arc::new(bytes))
}

fn parity_of(shape: &RowShape, data: &[LeafContent], block: &[u8]) -> Vec<Arc<Vec<u8>>> {
    let data: Vec<&[u8]> = data
        .iter()
        .map(|content| match content {
            LeafContent::Block(range) => block.get(range.clone()).unwrap_or(&[]),
            LeafContent::Own(bytes) => bytes,
        })
        .collect();
    let cells = shape.cells.iter().take(shape.parity);
    let mut parity: Vec<Vec<u8>> = cells.map(|cell| vec![0; cell.length]).collect();
    if !parity.is_empty() {
        let mut columns: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        // The layout has 1 to 3 parity columns of equal length, as long as the longest data column.
        let shaped = millpond_parity::generate(&data, &mut columns);
        debug_assert!(shaped.is_ok(), "a layout that is no parity group");
    }
    parity.into_iter().map(Arc::new).collect()
}

impl VdevTree {
    /// Whether everything on a top-level vdev can be read although `is_lost` leaves hold nothing:
    /// a side of each mirror is left, and of RAID-Z and dRAID no more children are lost than there
    /// is parity. False for vdevs that hold nothing.
    #[must_use]
    pub fn survives(&self, vdev: VdevId, is_lost: &dyn Fn(LeafId) -> bool) -> bool {
        self.top_node(vdev)
            .is_some_and(|id| self.node_survives(id, is_lost))
    }

    /// Recursion is bounded by the tree's depth.
    fn node_survives(&self, id: NodeId, is_lost: &dyn Fn(LeafId) -> bool) -> bool {
        let Some(node) = self.node(id) else {
            return false;
        };
        let alive = || {
            let children = node.children.iter();
            children
                .filter(|child| self.node_survives(**child, is_lost))
                .count()
        };
        let bears = |parity: u64| {
            let lost = node.children.len().saturating_sub(alive());
            u64::try_from(lost).is_ok_and(|lost| lost <= parity)
        };
        match &node.kind {
            VdevKind::Disk | VdevKind::File | VdevKind::DraidSpare { .. } => {
                node.leaf.is_some_and(|leaf| !is_lost(leaf))
            }
            VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => alive() > 0,
            VdevKind::Raidz(geometry) => bears(geometry.parity()),
            VdevKind::Draid(geometry) => bears(geometry.parity()),
            VdevKind::Root | VdevKind::Indirect | VdevKind::Hole | VdevKind::Missing => false,
        }
    }
}
