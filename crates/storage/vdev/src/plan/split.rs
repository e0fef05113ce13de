//! Last resort: splits columns into short pieces, so that bad sectors of different leaves at different
//! heights do not add up to more losses than the copies or parity can repair.
//!
//! Parity is computed byte by byte, so one row of tall columns is equivalent to several rows of short ones.

use super::cells::{Bytes, Cell, Cells, Copy, CopyState, Row};
use super::{LeafFault, Source};

/// The most pieces of a column.
const PIECES_MAX: usize = 64;

impl Cells {
    /// Splits every row that is taller than a sector into pieces of whole sectors.
    ///
    /// Unreadable parts may be read again piece by piece; bytes already read are not copied. Returns false
    /// if there is nothing to split, or if it was already done.
    pub(super) fn split(&mut self) -> bool {
        if self.is_split {
            return false;
        }
        self.is_split = true;
        self.is_single = false;
        let before = self.rows.len();
        let rows = core::mem::take(&mut self.rows);
        for row in rows {
            split_row(row, &mut self.rows);
        }
        self.rows.len() > before
    }
}

fn split_row(row: Row, out: &mut Vec<Row>) {
    let height = row.cells.iter().map(|cell| cell.length).max().unwrap_or(0);
    let sectors = height.div_ceil(row.sector.max(1));
    let piece = sectors.div_ceil(PIECES_MAX).saturating_mul(row.sector);
    if piece == 0 || piece >= height {
        out.push(row);
        return;
    }
    for start in (0..height).step_by(piece) {
        // Padding is judged as a whole, with the first piece.
        let pads = if start == 0 {
            row.pads.clone()
        } else {
            Vec::new()
        };
        let cells = row
            .cells
            .iter()
            .map(|cell| cut(cell, start, piece))
            .collect();
        out.push(Row {
            parity: row.parity,
            cells,
            pads,
            sector: row.sector,
        });
    }
}

fn cut(cell: &Cell, start: usize, piece: usize) -> Cell {
    let length = cell.length.saturating_sub(start).min(piece);
    let keep = cell.keep.saturating_sub(start).min(length);
    let copies = cell.copies.iter().filter(|_| length > 0);
    Cell {
        length,
        block_offset: cell.block_offset.saturating_add(start),
        keep,
        raid_sector: cell.raid_sector,
        copies: copies.map(|copy| cut_copy(copy, start, length)).collect(),
    }
}

fn cut_copy(copy: &Copy, start: usize, length: usize) -> Copy {
    let skip = u64::try_from(start).unwrap_or(u64::MAX);
    let offset_bytes = copy.source.offset_bytes.saturating_add(skip);
    let state = match &copy.state {
        CopyState::Held(bytes) => CopyState::Held(Bytes::part(bytes, start, length)),
        // An absent device cannot provide pieces either.
        CopyState::Fault(LeafFault::Absent) => CopyState::Fault(LeafFault::Absent),
        CopyState::Fault(_) | CopyState::FailedInCompany => CopyState::FailedInCompany,
        CopyState::Unread | CopyState::Asked => CopyState::Unread,
    };
    Copy {
        source: Source {
            offset_bytes,
            ..copy.source.clone()
        },
        state,
    }
}
