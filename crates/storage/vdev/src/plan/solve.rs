//! Assembles a block from cells, given which copies are excluded.

use super::cells::{Cell, Cells, Copy, Row};

/// Which copies are currently excluded.
pub(super) trait Doubt {
    fn is_doubted(&self, row: usize, cell: usize, shape: &Cell, copy: usize, held: &Copy) -> bool;
}

/// Excludes nothing.
pub(super) struct NoDoubt;

impl Doubt for NoDoubt {
    fn is_doubted(&self, _: usize, _: usize, _: &Cell, _: usize, _: &Copy) -> bool {
        false
    }
}

impl Cells {
    /// Assembles the block into `block` (which has the block's size) from the copies that `doubt` does not
    /// exclude. Returns false if a row cannot be completed; the content of `block` is then undefined.
    pub(super) fn assemble(&self, doubt: &dyn Doubt, block: &mut [u8]) -> bool {
        self.rows
            .iter()
            .enumerate()
            .all(|(index, row)| assemble_row(index, row, doubt, block).is_some())
    }
}

fn assemble_row(index: usize, row: &Row, doubt: &dyn Doubt, block: &mut [u8]) -> Option<()> {
    let chosen = choose(index, row, doubt)?;
    for (cell, bytes) in row.cells.iter().zip(&chosen).skip(row.parity) {
        if let Some(bytes) = bytes {
            let target = block.get_mut(cell.block_range())?;
            target.copy_from_slice(bytes.get(..cell.keep)?);
        }
    }
    let data = row.cells.get(row.parity..)?;
    let held = chosen.get(row.parity..)?;
    let missing: Vec<usize> = (0usize..)
        .zip(data.iter().zip(held))
        .filter(|(_, (cell, bytes))| cell.length > 0 && bytes.is_none())
        .map(|(at, _)| at)
        .collect();
    if missing.is_empty() {
        return Some(());
    }
    rebuild(row, &chosen, &missing, block)
}

/// Chooses the bytes of each cell: complete copies first; copies that missed the txg only if the row cannot
/// be completed without them.
fn choose<'a>(index: usize, row: &'a Row, doubt: &dyn Doubt) -> Option<Vec<Option<&'a [u8]>>> {
    let pick = |at: usize, cell: &'a Cell, stale: bool| -> Option<&'a [u8]> {
        cell.copies.iter().enumerate().find_map(|(number, copy)| {
            let bytes = copy.held()?;
            let fits =
                copy.source.is_stale == stale && !doubt.is_doubted(index, at, cell, number, copy);
            fits.then_some(bytes)
        })
    };
    let mut chosen: Vec<Option<&[u8]>> = row
        .cells
        .iter()
        .enumerate()
        .map(|(at, cell)| pick(at, cell, false))
        .collect();
    let has_parity = chosen.iter().take(row.parity).flatten().count();
    let lacks = |cell: &Cell, bytes: &Option<&[u8]>| cell.length > 0 && bytes.is_none();
    let mut missing = row
        .cells
        .iter()
        .zip(&chosen)
        .skip(row.parity)
        .filter(|(c, b)| lacks(c, b))
        .count();
    if missing > has_parity {
        let mut parity = has_parity;
        // Data first: a stale copy of data may be right, stale parity rarely is.
        let order = (row.parity..row.cells.len()).chain(0..row.parity);
        for at in order {
            if missing <= parity {
                break;
            }
            let (Some(cell), Some(slot)) = (row.cells.get(at), chosen.get_mut(at)) else {
                continue;
            };
            if !lacks(cell, slot) {
                continue;
            }
            *slot = pick(at, cell, true);
            if slot.is_some() && at < row.parity {
                parity = parity.saturating_add(1);
            } else if slot.is_some() {
                missing = missing.saturating_sub(1);
            }
        }
        if missing > parity {
            return None;
        }
    }
    Some(chosen)
}

fn rebuild(row: &Row, chosen: &[Option<&[u8]>], missing: &[usize], block: &mut [u8]) -> Option<()> {
    let data_cells = row.cells.get(row.parity..)?;
    let mut data: Vec<Vec<u8>> = data_cells
        .iter()
        .zip(chosen.get(row.parity..)?)
        .map(|(cell, bytes)| bytes.map_or_else(|| vec![0; cell.length], <[u8]>::to_vec))
        .collect();
    // Only as many parity columns as needed, starting with the lowest available.
    let mut parity: Vec<Vec<u8>> = Vec::new();
    let mut lost_parity = Vec::new();
    let mut left = missing.len();
    for (at, (cell, bytes)) in row.cells.iter().zip(chosen).take(row.parity).enumerate() {
        if left == 0 {
            break;
        }
        match bytes {
            Some(bytes) => {
                parity.push(bytes.to_vec());
                left = left.saturating_sub(1);
            }
            None => {
                parity.push(vec![0; cell.length]);
                lost_parity.push(at);
            }
        }
    }
    let mut data_columns: Vec<&mut [u8]> = data.iter_mut().map(Vec::as_mut_slice).collect();
    let mut parity_columns: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    millpond_parity::reconstruct(
        &mut data_columns,
        &mut parity_columns,
        missing,
        &lost_parity,
    )
    .ok()?;
    for at in missing {
        let cell = data_cells.get(*at)?;
        let target = block.get_mut(cell.block_range())?;
        target.copy_from_slice(data.get(*at)?.get(..cell.keep)?);
    }
    Some(())
}
