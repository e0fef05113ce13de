//! The pointers at one level of one or two trees that are traversed side by side.

use millpond_block::Block;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockPointer, Dnode, Txg};

/// Size of a block pointer in bytes.
const POINTER_BYTES: usize = 128;

/// One of the two states of an object set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The older state, of [`Tree::previous`](crate::Tree::previous).
    Old,
    /// The state that is traversed.
    New,
}

/// The pointers of one side at one level.
#[derive(Clone)]
pub(crate) enum Pointers {
    None,
    /// The pointers of a dnode, or the levels above them.
    Dnode(Arc<Dnode>),
    /// The spill pointer of a dnode.
    Spill(Arc<Dnode>),
    /// An indirect block, with the block id of its first pointer.
    Indirect(Arc<Block>, u64),
}

/// The content of a position on one side.
pub(crate) enum At {
    Nothing,
    /// A level above the top of this tree; the tree starts further down.
    Above,
    Pointer(BlockPointer),
}

impl Pointers {
    /// The pointer at a position. `sees_all` is [`Visitor::SEES_ALL_HOLES`](crate::Visitor::SEES_ALL_HOLES).
    pub(crate) fn at(&self, level: u8, id: u64, sees_all: bool) -> At {
        let pointer = match self {
            Self::None => None,
            Self::Indirect(block, first) => id
                .checked_sub(*first)
                .and_then(|slot| usize::try_from(slot).ok()?.checked_mul(POINTER_BYTES))
                .and_then(|at| block.bytes.get(at..at.checked_add(POINTER_BYTES)?))
                .and_then(|bytes| BlockPointer::decode(bytes, block.endian).ok()),
            Self::Dnode(dnode) => {
                let top = dnode.levels.saturating_sub(1);
                if level > top {
                    return if id == 0 { At::Above } else { At::Nothing };
                }
                let slot = usize::try_from(id).unwrap_or(usize::MAX);
                dnode.block_pointers.get(slot).copied()
            }
            Self::Spill(dnode) => dnode.spill,
        };
        match pointer {
            Some(pointer) if sees_all || !pointer.is_hole() || pointer.birth() != Txg(0) => {
                At::Pointer(pointer)
            }
            _ => At::Nothing,
        }
    }
}
