//! Compares the bytes of each leaf with the right ones, once the block is known.

use std::borrow::Cow;

use super::cells::{Cell, Cells, CopyState, Row};
use super::{Blame, BlameReason, Failure, FailureKind, Repair};

/// The right content of every cell of `row`, given the block. Cells that contain only bytes of the block
/// borrow them. `None` only if the shapes do not match.
pub(super) fn truth_of<'a>(row: &Row, block: &'a [u8]) -> Option<Vec<Cow<'a, [u8]>>> {
    let mut data = Vec::with_capacity(row.cells.len());
    for cell in row.cells.iter().skip(row.parity) {
        let bytes = block.get(cell.block_range())?;
        data.push(if bytes.len() == cell.length {
            Cow::Borrowed(bytes)
        } else {
            let mut bytes = bytes.to_vec();
            bytes.resize(cell.length, 0);
            Cow::Owned(bytes)
        });
    }
    let cells = row.cells.iter().take(row.parity);
    let mut parity: Vec<Vec<u8>> = cells.map(|cell| vec![0; cell.length]).collect();
    if row.parity > 0 {
        let data: Vec<&[u8]> = data.iter().map(AsRef::as_ref).collect();
        let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        millpond_parity::generate(&data, &mut parity).ok()?;
    }
    let mut truth: Vec<Cow<'a, [u8]>> = parity.into_iter().map(Cow::Owned).collect();
    truth.append(&mut data);
    Some(truth)
}

/// Whether the bytes of a copy are right. In a block without parity, the bytes of the last sector beyond
/// the block's end do not matter; with parity they take part in every reconstruction.
pub(super) fn is_right(row: &Row, cell: &Cell, held: &[u8], truth: &[u8]) -> bool {
    if row.parity == 0 {
        held.get(..cell.keep) == truth.get(..cell.keep)
    } else {
        held == truth
    }
}

/// All copies that returned an error or wrong bytes, and their repairs.
pub(super) fn blame(cells: &Cells, block: &[u8]) -> (Vec<Blame>, Vec<Repair>) {
    let mut blames = Vec::new();
    let mut repairs = Vec::new();
    for row in &cells.rows {
        let is_suspect = |cell: &Cell| {
            cell.copies.iter().any(|copy| {
                matches!(
                    copy.state,
                    CopyState::Held(_) | CopyState::Fault(_) | CopyState::FailedInCompany
                )
            })
        };
        if !row.cells.iter().any(is_suspect) {
            continue;
        }
        let Some(truth) = truth_of(row, block) else {
            continue;
        };
        for (cell, truth) in row.cells.iter().zip(truth) {
            for copy in &cell.copies {
                let reason = match &copy.state {
                    CopyState::Held(held) if is_right(row, cell, held.as_slice(), &truth) => {
                        continue;
                    }
                    CopyState::Held(_) if copy.source.is_stale => BlameReason::Stale,
                    CopyState::Held(_) => BlameReason::Checksum,
                    CopyState::Fault(fault) => BlameReason::Io(*fault),
                    CopyState::FailedInCompany => BlameReason::Io(super::LeafFault::Io),
                    CopyState::Unread | CopyState::Asked => continue,
                };
                blames.push(blame_of(cell, &copy.source, reason));
                repairs.push(Repair {
                    leaf: copy.source.leaf,
                    offset_bytes: copy.source.offset_bytes,
                    data: truth.to_vec(),
                });
            }
        }
    }
    (merge_blames(blames), merge_repairs(repairs))
}

/// The failure to report if no candidate was right.
pub(super) fn failure(cells: &Cells, tried: u64, had_candidate: bool) -> Failure {
    let kind = if had_candidate {
        FailureKind::Checksum
    } else {
        FailureKind::Unavailable
    };
    let mut blames = Vec::new();
    let mut absent = Vec::new();
    for cell in cells.rows.iter().flat_map(|row| &row.cells) {
        for copy in &cell.copies {
            if !copy.source.is_readable {
                absent.push(copy.source.leaf);
                continue;
            }
            let reason = match &copy.state {
                CopyState::Fault(fault) => BlameReason::Io(*fault),
                CopyState::FailedInCompany => BlameReason::Io(super::LeafFault::Io),
                CopyState::Held(_) if !had_candidate => continue,
                CopyState::Held(_) if copy.source.is_stale => BlameReason::Stale,
                CopyState::Held(_) => BlameReason::Checksum,
                CopyState::Unread | CopyState::Asked => continue,
            };
            blames.push(blame_of(cell, &copy.source, reason));
        }
    }
    absent.sort_unstable();
    absent.dedup();
    Failure {
        kind,
        tried,
        blames: merge_blames(blames),
        absent,
    }
}

fn blame_of(cell: &Cell, source: &super::Source, reason: BlameReason) -> Blame {
    Blame {
        leaf: source.leaf,
        spare: source.spares.first().copied(),
        offset_bytes: source.offset_bytes,
        length_bytes: u64::try_from(cell.length).unwrap_or(u64::MAX),
        reason,
    }
}

/// Sorts by location and merges adjacent entries with the same reason.
fn merge_blames(mut blames: Vec<Blame>) -> Vec<Blame> {
    blames.sort_by_key(|blame| (blame.leaf, blame.offset_bytes));
    let mut merged: Vec<Blame> = Vec::with_capacity(blames.len());
    for blame in blames {
        if let Some(last) = merged.last_mut() {
            let is_next = (last.leaf, last.spare) == (blame.leaf, blame.spare)
                && last.reason == blame.reason
                && last.offset_bytes.checked_add(last.length_bytes) == Some(blame.offset_bytes);
            if is_next {
                last.length_bytes = last.length_bytes.saturating_add(blame.length_bytes);
                continue;
            }
        }
        merged.push(blame);
    }
    merged
}

fn merge_repairs(mut repairs: Vec<Repair>) -> Vec<Repair> {
    repairs.sort_by_key(|repair| (repair.leaf, repair.offset_bytes));
    let mut merged: Vec<Repair> = Vec::with_capacity(repairs.len());
    for repair in repairs {
        if let Some(last) = merged.last_mut() {
            let length = u64::try_from(last.data.len()).unwrap_or(u64::MAX);
            if last.leaf == repair.leaf
                && last.offset_bytes.checked_add(length) == Some(repair.offset_bytes)
            {
                last.data.extend_from_slice(&repair.data);
                continue;
            }
        }
        merged.push(repair);
    }
    merged
}
