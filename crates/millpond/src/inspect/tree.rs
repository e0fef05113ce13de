//! Traverses all pointers of an object's block tree.

use millpond_block::{Block, BlockAddress};
use millpond_object::{ObjectError, ObjectView};
use millpond_ondisk::{BlockId, BlockPointer, DecodeError, Level, SPILL_BLOCK_ID, Txg};
use std::ops::ControlFlow;

const POINTER_BYTES: usize = 128;

/// A step of the traversal.
#[derive(Debug)]
pub enum WalkStep<'a> {
    /// A pointer that is not a hole. Parents come before their children.
    Pointer {
        /// The block it refers to.
        address: BlockAddress,
        /// The pointer.
        pointer: &'a BlockPointer,
    },
    /// An indirect block that cannot be read. Its descendants are skipped.
    Unreadable {
        /// The block.
        address: BlockAddress,
        /// Why.
        error: ObjectError,
    },
}

/// A traversal of the block tree of one object, from the roots down, in order of block id. It reads only
/// indirect blocks, and keeps one in memory per level: at most 12, each of at most 16 MiB.
#[derive(Debug, Clone)]
pub struct TreeWalk<'a> {
    object: &'a ObjectView,
    born_after: Txg,
}

struct Frame {
    block: Block,
    level: u8,
    first_id: u64,
    next_slot: usize,
}

impl<'a> TreeWalk<'a> {
    /// A traversal of the whole tree.
    #[must_use]
    pub fn new(object: &'a ObjectView) -> Self {
        Self {
            object,
            born_after: Txg(0),
        }
    }
    /// Skips blocks born in this txg or earlier, with all their descendants.
    #[must_use]
    pub fn born_after(mut self, txg: Txg) -> Self {
        self.born_after = txg;
        self
    }

    /// Calls `each` for every step until it breaks.
    pub fn run(&self, each: &mut dyn FnMut(WalkStep<'_>) -> ControlFlow<()>) -> ControlFlow<()> {
        let dnode = self.object.dnode();
        let top = dnode.levels.saturating_sub(1);
        for (id, pointer) in (0u64..).zip(&dnode.block_pointers) {
            self.descend(pointer, top, id, each)?;
        }
        if let Some(spill) = dnode.spill.filter(|spill| self.is_wanted(spill)) {
            each(WalkStep::Pointer {
                address: self.object.address(Level(0), SPILL_BLOCK_ID),
                pointer: &spill,
            })?;
        }
        ControlFlow::Continue(())
    }

    fn is_wanted(&self, pointer: &BlockPointer) -> bool {
        !pointer.is_hole() && pointer.allocation_birth() > self.born_after
    }

    /// Whether a block id is within the dnode's largest block id.
    fn is_inside(&self, level: u8, id: u64) -> bool {
        let shift = self.object.dnode().pointers_shift() * u32::from(level);
        id <= self.object.block_id_max().0.checked_shr(shift).unwrap_or(0)
    }

    fn descend(
        &self,
        root: &BlockPointer,
        top: u8,
        id: u64,
        each: &mut dyn FnMut(WalkStep<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut stack: Vec<Frame> = vec![];
        self.enter(root, top, id, &mut stack, each)?;
        while let Some(frame) = stack.last_mut() {
            let slot = frame.next_slot;
            frame.next_slot += 1;
            let id = frame.first_id.saturating_add(slot as u64);
            let level = frame.level;
            let pointer = frame
                .block
                .bytes
                .get(slot * POINTER_BYTES..)
                .and_then(|bytes| BlockPointer::decode(bytes, frame.block.endian).ok())
                .filter(|_| self.is_inside(level, id));
            match pointer {
                Some(pointer) => self.enter(&pointer, level, id, &mut stack, each)?,
                None => {
                    stack.pop();
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Reports a pointer. If it refers to an indirect block, pushes the block onto the stack.
    fn enter(
        &self,
        pointer: &BlockPointer,
        level: u8,
        id: u64,
        stack: &mut Vec<Frame>,
        each: &mut dyn FnMut(WalkStep<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if !self.is_wanted(pointer) {
            return ControlFlow::Continue(());
        }
        let address = self.object.address(Level(level), BlockId(id));
        each(WalkStep::Pointer { address, pointer })?;
        let Some(below) = level.checked_sub(1) else {
            return ControlFlow::Continue(());
        };
        match self.read(pointer, address, level) {
            Ok(block) => {
                let shift = self.object.dnode().pointers_shift();
                stack.push(Frame {
                    block,
                    level: below,
                    first_id: id.checked_shl(shift).unwrap_or(u64::MAX),
                    next_slot: 0,
                });
                ControlFlow::Continue(())
            }
            Err(error) => each(WalkStep::Unreadable { address, error }),
        }
    }

    fn read(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        level: u8,
    ) -> Result<Block, ObjectError> {
        let set = self.object.object_set();
        let invalid = |reason| ObjectError::Invalid {
            dataset: set.dataset(),
            object: self.object.id(),
            error: DecodeError::new("block tree", reason, 0),
        };
        if pointer.is_embedded() || pointer.level().0 != level {
            return Err(invalid("pointer's level contradicts its place"));
        }
        if pointer.lsize_bytes() != self.object.dnode().indirect_block_bytes() {
            return Err(invalid("indirect block's size contradicts the dnode"));
        }
        Ok(set.store().read_uncached(pointer, address, set.key())?)
    }
}
