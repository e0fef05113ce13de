//! The state of a plan's reads and their outcomes.

use std::sync::Arc;

use super::layout::{CellShape, Layout, Source};
use super::{LeafBytes, LeafFault, LeafOutcome, LeafRead};

/// The largest merged read, in bytes.
const MERGED_BYTES_MAX: u64 = 1 << 20;

/// A part of the bytes of one read.
#[derive(Debug, Clone)]
pub(super) struct Bytes {
    buffer: Arc<LeafBytes>,
    start: usize,
    end: usize,
}

impl Bytes {
    pub(super) fn as_slice(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or(&[])
    }

    /// A part of the same read.
    pub(super) fn part(&self, start: usize, length: usize) -> Self {
        let start = self.start.saturating_add(start).min(self.end);
        let end = start.saturating_add(length).min(self.end);
        Self {
            buffer: Arc::clone(&self.buffer),
            start,
            end,
        }
    }

    /// The bytes themselves, without copying if the buffer is not shared.
    fn into_owned(self) -> LeafBytes {
        match Arc::try_unwrap(self.buffer) {
            Ok(whole) if self.start == 0 && self.end == whole.len() => whole,
            Ok(whole) => part_of(&whole, self.start, self.end),
            Err(shared) => part_of(&shared, self.start, self.end),
        }
    }
}

fn part_of(bytes: &[u8], start: usize, end: usize) -> LeafBytes {
    bytes.get(start..end).unwrap_or(&[]).to_vec().into()
}

#[derive(Debug, Clone)]
pub(super) enum CopyState {
    Unread,
    /// A merged read failed: this part should be read by itself.
    FailedInCompany,
    Asked,
    Fault(LeafFault),
    Held(Bytes),
}

/// One source of a cell with its state.
#[derive(Debug, Clone)]
pub(super) struct Copy {
    pub(super) source: Source,
    pub(super) state: CopyState,
}

impl Copy {
    pub(super) fn held(&self) -> Option<&[u8]> {
        match &self.state {
            CopyState::Held(bytes) => Some(bytes.as_slice()),
            _ => None,
        }
    }

    pub(super) fn is_askable(&self) -> bool {
        self.source.is_readable
            && matches!(self.state, CopyState::Unread | CopyState::FailedInCompany)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub(super) length: usize,
    pub(super) block_offset: usize,
    pub(super) keep: usize,
    pub(super) raid_sector: Option<u64>,
    pub(super) copies: Vec<Copy>,
}

impl Cell {
    fn new(shape: CellShape) -> Self {
        let copies = shape
            .sources
            .into_iter()
            .map(|source| Copy {
                source,
                state: CopyState::Unread,
            })
            .collect();
        Self {
            length: shape.length,
            block_offset: shape.block_offset,
            keep: shape.keep,
            raid_sector: shape.raid_sector,
            copies,
        }
    }

    /// The cell's range in the block.
    pub(super) fn block_range(&self) -> core::ops::Range<usize> {
        // A cell that holds no bytes of the block may lie beyond its end.
        match self.keep {
            0 => 0..0,
            keep => self.block_offset..self.block_offset.saturating_add(keep),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) parity: usize,
    pub(super) cells: Vec<Cell>,
    pub(super) pads: Vec<Cell>,
    /// Size of a sector in bytes.
    pub(super) sector: usize,
}

/// Identifies a copy: row, cell (padding cells follow the others), copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CopyId {
    pub(super) row: usize,
    pub(super) cell: usize,
    pub(super) copy: usize,
}

/// The state of a block's cells while its plan runs.
#[derive(Debug, Clone)]
pub(super) struct Cells {
    pub(super) size: usize,
    pub(super) rows: Vec<Row>,
    pub(super) widths: Option<(u64, u64)>,
    pub(super) is_single: bool,
    /// Whether rows have been split into pieces.
    pub(super) is_split: bool,
    pending: Vec<Pending>,
    /// Whether any read so far failed or returned the wrong length.
    pub(super) had_fault: bool,
}

#[derive(Debug, Clone)]
struct Pending {
    read: LeafRead,
    parts: Vec<CopyId>,
}

impl Cells {
    pub(super) fn new(layout: Layout) -> Self {
        let is_single = layout.is_single();
        let rows = layout
            .rows
            .into_iter()
            .map(|row| Row {
                parity: row.parity,
                cells: row.cells.into_iter().map(Cell::new).collect(),
                pads: row.pads.into_iter().map(Cell::new).collect(),
                sector: row.sector,
            })
            .collect();
        Self {
            size: layout.size,
            rows,
            widths: layout.widths,
            is_single,
            is_split: false,
            pending: Vec::new(),
            had_fault: false,
        }
    }

    pub(super) fn cell_mut(&mut self, id: &CopyId) -> Option<&mut Cell> {
        let row = self.rows.get_mut(id.row)?;
        let count = row.cells.len();
        if id.cell < count {
            row.cells.get_mut(id.cell)
        } else {
            row.pads.get_mut(id.cell.checked_sub(count)?)
        }
    }

    /// Whether the leaf of a copy is known to have missed the txg.
    pub(super) fn is_stale(&self, id: &CopyId) -> bool {
        self.cell(id)
            .and_then(|cell| cell.copies.get(id.copy))
            .is_some_and(|copy| copy.source.is_stale)
    }

    /// Keeps the first copy of each cell of which none was read. The copies of a cell are beside each other.
    pub(super) fn retain_needed(&self, wanted: &mut Vec<CopyId>) {
        wanted.dedup_by_key(|id| (id.row, id.cell));
        wanted.retain(|id| {
            let cell = self.cell(id);
            !cell.is_some_and(|cell| cell.copies.iter().any(|copy| copy.held().is_some()))
        });
    }

    fn cell(&self, id: &CopyId) -> Option<&Cell> {
        let row = self.rows.get(id.row)?;
        let pad = id.cell.checked_sub(row.cells.len());
        row.cells.get(id.cell).or_else(|| row.pads.get(pad?))
    }

    fn copy_mut(&mut self, id: &CopyId) -> Option<&mut Copy> {
        self.cell_mut(id)?.copies.get_mut(id.copy)
    }

    /// Turns copies into reads, merges adjacent ones on one leaf, and marks them as requested.
    pub(super) fn ask(&mut self, mut wanted: Vec<CopyId>) -> Vec<LeafRead> {
        let mut single: Vec<(LeafRead, bool, CopyId)> = Vec::with_capacity(wanted.len());
        for id in wanted.drain(..) {
            let Some(cell) = self.cell_mut(&id) else {
                continue;
            };
            let length = u64::try_from(cell.length).unwrap_or(u64::MAX);
            let Some(copy) = cell.copies.get_mut(id.copy) else {
                continue;
            };
            let alone = matches!(copy.state, CopyState::FailedInCompany);
            copy.state = CopyState::Asked;
            let read = LeafRead {
                leaf: copy.source.leaf,
                offset_bytes: copy.source.offset_bytes,
                length_bytes: length,
            };
            single.push((read, alone, id));
        }
        single.sort_by_key(|(read, _, _)| *read);
        self.pending.clear();
        let mut last_alone = true;
        for (read, alone, id) in single {
            let joined = match self.pending.last_mut() {
                Some(last) if !alone && !last_alone => join(last.read, read).inspect(|whole| {
                    last.read = *whole;
                    last.parts.push(id.clone());
                }),
                _ => None,
            };
            if joined.is_none() {
                self.pending.push(Pending {
                    read,
                    parts: vec![id],
                });
            }
            last_alone = alone;
        }
        self.pending.iter().map(|pending| pending.read).collect()
    }

    /// Takes the outcomes of the last reads, in order. Missing ones count as failed.
    pub(super) fn absorb(&mut self, outcomes: Vec<LeafOutcome>) {
        let mut outcomes = outcomes.into_iter();
        for pending in core::mem::take(&mut self.pending) {
            let outcome = outcomes.next().unwrap_or(Err(LeafFault::Length));
            let outcome = outcome.and_then(|bytes| {
                let is_whole = u64::try_from(bytes.len()) == Ok(pending.read.length_bytes);
                if is_whole {
                    Ok(Arc::new(bytes))
                } else {
                    Err(LeafFault::Length)
                }
            });
            let in_company = pending.parts.len() > 1;
            let mut start = 0usize;
            for id in &pending.parts {
                let length = self.cell_mut(id).map_or(0, |cell| cell.length);
                let end = start.saturating_add(length);
                let state = match &outcome {
                    Ok(buffer) => CopyState::Held(Bytes {
                        buffer: Arc::clone(buffer),
                        start,
                        end,
                    }),
                    Err(_) if in_company => CopyState::FailedInCompany,
                    Err(fault) => CopyState::Fault(*fault),
                };
                if let Some(copy) = self.copy_mut(id) {
                    copy.state = state;
                }
                start = end;
            }
            self.had_fault |= outcome.is_err();
        }
    }

    /// Takes the bytes of a single cell's copy, cut to the block's size.
    pub(super) fn take_single(&mut self, copy: usize) -> Option<LeafBytes> {
        let size = self.size;
        let copy = self.copy_mut(&CopyId {
            row: 0,
            cell: 0,
            copy,
        })?;
        match core::mem::replace(&mut copy.state, CopyState::Unread) {
            CopyState::Held(bytes) => {
                let mut bytes = bytes.into_owned();
                bytes.truncate(size);
                Some(bytes)
            }
            other => {
                copy.state = other;
                None
            }
        }
    }
}

/// Merges two reads if the second begins where the first ends.
fn join(first: LeafRead, second: LeafRead) -> Option<LeafRead> {
    let end = first.offset_bytes.checked_add(first.length_bytes)?;
    let length = first.length_bytes.checked_add(second.length_bytes)?;
    let fits =
        first.leaf == second.leaf && end == second.offset_bytes && length <= MERGED_BYTES_MAX;
    fits.then_some(LeafRead {
        length_bytes: length,
        ..first
    })
}
