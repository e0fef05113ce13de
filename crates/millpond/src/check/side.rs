//! One of two trees that are traversed side by side.

use millpond_block::Block;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, Dnode, Txg};

/// One side of a pair of trees, at one level.
#[derive(Clone)]
pub(super) enum Side {
    Empty,
    /// The pointers of a dnode, or the levels above them.
    Dnode(Arc<Dnode>),
    /// An indirect block, with the block id of its first pointer.
    Indirect(Arc<Block>, u64),
}

/// The content of a position on one side.
pub(super) enum At {
    Nothing,
    /// A level above the top of this tree; the tree starts further down.
    Above,
    Pointer(BlockPointer),
}

impl Side {
    pub(super) fn at(&self, level: u8, id: u64) -> At {
        let pointer = match self {
            Self::Empty => None,
            Self::Indirect(block, first) => id
                .checked_sub(*first)
                .and_then(|slot| usize::try_from(slot).ok()?.checked_mul(128))
                .and_then(|at| block.bytes.get(at..at.checked_add(128)?))
                .and_then(|bytes| BlockPointer::decode(bytes, block.endian).ok()),
            Self::Dnode(dnode) => {
                let top = dnode.levels.saturating_sub(1);
                if level > top {
                    return if id == 0 { At::Above } else { At::Nothing };
                }
                let slot = usize::try_from(id).unwrap_or(usize::MAX);
                dnode.block_pointers.get(slot).copied()
            }
        };
        match pointer {
            Some(pointer) if !pointer.is_hole() || pointer.birth() != Txg(0) => {
                At::Pointer(pointer)
            }
            _ => At::Nothing,
        }
    }
}
