//! The pieces of a range: itself, or where the data of a removed vdev is now.
//!
//! Page `docs/format/indirect-vdev.md`, "Reading".

use millpond_ondisk::{Txg, VdevId};

use super::{BlockRange, PlanError};
use crate::indirect::IndirectMap;
use crate::tree::{NodeId, VdevKind, VdevNode, VdevTree};
use crate::units::{Sector, round_up};

/// The most pieces from mappings of removed vdevs.
const PIECES_MAX: usize = 1 << 16;

/// A part of a range on one vdev.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) vdev: VdevId,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) birth: Txg,
    pub(crate) block_offset: u64,
}

/// A part of a block on a vdev that was not removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockPiece {
    /// Where it is. The birth is the txg in which it was written there.
    pub range: BlockRange,
    /// Its start in the block, in bytes.
    pub block_offset_bytes: u64,
}

/// The parts of a block, in order: the whole range, unless its vdev was removed.
///
/// # Errors
/// [`PlanError`] if the range lies on no vdev, or mappings do not cover it.
pub fn block_pieces(
    tree: &VdevTree,
    indirect: &dyn IndirectMap,
    range: BlockRange,
) -> Result<Vec<BlockPiece>, PlanError> {
    let mut found = vec![];
    each_piece(tree, indirect, range, &mut |_, _, piece| {
        found.push(BlockPiece {
            range: BlockRange {
                vdev: piece.vdev,
                offset_bytes: piece.offset,
                size_bytes: piece.size,
                birth: piece.birth,
            },
            block_offset_bytes: piece.block_offset,
        });
        Ok(())
    })?;
    Ok(found)
}

/// Calls `each` with the pieces of a range on vdevs that were not removed, in order.
///
/// # Errors
/// As [`block_pieces`], or the error of `each`.
pub(crate) fn each_piece(
    tree: &VdevTree,
    indirect: &dyn IndirectMap,
    range: BlockRange,
    each: &mut dyn FnMut(NodeId, &VdevNode, Piece) -> Result<(), PlanError>,
) -> Result<(), PlanError> {
    let mut pieces = vec![Piece {
        vdev: range.vdev,
        offset: range.offset_bytes,
        size: range.size_bytes,
        birth: range.birth,
        block_offset: 0,
    }];
    let mut steps = 0usize;
    // Pieces are popped from the end, so they are pushed in reverse order.
    while let Some(piece) = pieces.pop() {
        steps = steps.saturating_add(1);
        if steps > PIECES_MAX {
            return Err(PlanError::TooManyPieces);
        }
        let id = tree
            .top_node(piece.vdev)
            .ok_or(PlanError::NoSuchVdev(piece.vdev))?;
        let node = tree.node(id).ok_or(PlanError::NoSuchVdev(piece.vdev))?;
        match &node.kind {
            VdevKind::Hole => return Err(PlanError::Hole(piece.vdev)),
            VdevKind::Missing => return Err(PlanError::Missing(piece.vdev)),
            VdevKind::Root => return Err(PlanError::NoSuchVdev(piece.vdev)),
            VdevKind::Indirect => {
                let below = follow(node, indirect, piece).ok_or(PlanError::Unmapped {
                    vdev: piece.vdev,
                    offset_bytes: piece.offset,
                })?;
                if pieces.len().saturating_add(below.len()) > PIECES_MAX {
                    return Err(PlanError::TooManyPieces);
                }
                pieces.extend(below.into_iter().rev());
            }
            _ => each(id, node, piece)?,
        }
    }
    Ok(())
}

/// Maps a piece of a removed vdev to its new pieces.
fn follow(node: &VdevNode, indirect: &dyn IndirectMap, piece: Piece) -> Option<Vec<Piece>> {
    let sector = Sector::new(node.ashift)?;
    let rounded = round_up(piece.size, sector.bytes())?;
    let end = piece.offset.checked_add(rounded)?;
    let segments = indirect.resolve(piece.vdev, piece.offset, rounded)?;
    let mut at = piece.offset;
    let mut below = Vec::with_capacity(segments.len());
    for segment in segments {
        if segment.source_bytes != at || segment.size_bytes == 0 {
            return None;
        }
        let done = at.checked_sub(piece.offset)?;
        // Bytes beyond the end of the block are padding of its last sector.
        let size = segment.size_bytes.min(piece.size.saturating_sub(done));
        if size > 0 {
            below.push(Piece {
                vdev: segment.vdev,
                offset: segment.offset_bytes,
                size,
                birth: segment.birth.unwrap_or(piece.birth),
                block_offset: piece.block_offset.checked_add(done)?,
            });
        }
        at = at.checked_add(segment.size_bytes)?;
    }
    (at == end).then_some(below)
}
