//! Traverses the unshared blocks of a destroyed dataset, children before parents. The traversal can stop
//! between two data blocks and resume there in another txg.
//!
//! Page `docs/format/bpobj.md`, "The queue of destroyed trees".

use millpond_block::{Block, BlockAddress, BlockError, BlockStore};
use millpond_env::sync::Arc;
use millpond_ondisk::{
    BlockBookmark, BlockId, BlockPointer, BpTreeEntry, DNODE_SLOT_BYTES, DecodeError, Dnode, Level,
    ObjectId, ObjectSetPhys, Txg,
};

/// A position in the traversal: everything before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Position {
    pub(crate) object: u64,
    pub(crate) block: u64,
}

impl Position {
    /// Decodes the bookmark of a queue entry.
    pub(crate) fn from_bookmark(bookmark: &BlockBookmark) -> Self {
        Self {
            object: bookmark.object,
            block: bookmark.block_id,
        }
    }
    /// Encodes the position for a queue entry.
    pub(crate) fn to_bookmark(self) -> BlockBookmark {
        BlockBookmark {
            object_set: u64::MAX,
            object: self.object,
            level: 0,
            block_id: self.block,
        }
    }
}

/// Why a traversal stopped early.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Stop<E> {
    /// The visitor stopped it. The block at this position was not visited.
    Enough(Position),
    /// A block could not be read or is invalid. Nothing after this position was visited.
    Unreadable(Position, String),
    /// The visitor failed.
    Visitor(E),
}

/// Receives the visited blocks.
pub(crate) trait Visitor {
    type Error;
    /// Whether to continue the traversal. Called before each data block.
    fn goes_on(&mut self) -> bool;
    /// Visits an unshared block. All blocks below it have already been visited.
    fn visit(&mut self, pointer: &BlockPointer) -> Result<(), Self::Error>;
}

/// The traversal of one object set.
pub(crate) struct Walk<'a, V: Visitor> {
    store: &'a BlockStore,
    /// Blocks born up to this txg belong to other datasets.
    born_after: Txg,
    from: Position,
    visitor: &'a mut V,
}

type Outcome<E> = Result<(), Stop<E>>;

/// One tree of blocks.
struct Tree<'d> {
    object: u64,
    dnode: &'d Dnode,
    /// Whether its data blocks contain dnodes whose blocks belong to the traversal.
    is_array_of_dnodes: bool,
}

/// Visits every remaining block of a destroyed dataset in the queue, children before parents. Memory: one
/// block per level of its trees.
///
/// # Errors
/// Describes the first unreadable block; the blocks before it were visited.
/// Page `docs/format/bpobj.md`, "The queue of destroyed trees".
pub fn walk_destroyed_tree(
    store: &BlockStore,
    entry: &BpTreeEntry,
    each: &mut dyn FnMut(&BlockPointer),
) -> Result<(), String> {
    struct All<'e>(&'e mut dyn FnMut(&BlockPointer));
    impl Visitor for All<'_> {
        type Error = std::convert::Infallible;
        fn goes_on(&mut self) -> bool {
            true
        }
        fn visit(&mut self, pointer: &BlockPointer) -> Result<(), Self::Error> {
            (self.0)(pointer);
            Ok(())
        }
    }
    let from = Position::from_bookmark(&entry.resume);
    match Walk::run(store, &entry.pointer, entry.birth, from, &mut All(each)) {
        Ok(()) | Err(Stop::Enough(_)) => Ok(()),
        Err(Stop::Unreadable(_, reason)) => Err(reason),
        Err(Stop::Visitor(never)) => match never {},
    }
}

impl<'a, V: Visitor> Walk<'a, V> {
    /// Traverses the object set at `root`, starting at `from`.
    pub(crate) fn run(
        store: &'a BlockStore,
        root: &BlockPointer,
        born_after: Txg,
        from: Position,
        visitor: &'a mut V,
    ) -> Outcome<V::Error> {
        let mut walk = Self {
            store,
            born_after,
            from,
            visitor,
        };
        walk.object_set(root)
    }

    fn is_own(&self, pointer: &BlockPointer) -> bool {
        !pointer.is_hole() && pointer.allocation_birth() > self.born_after
    }

    fn object_set(&mut self, root: &BlockPointer) -> Outcome<V::Error> {
        if !self.is_own(root) {
            return Ok(());
        }
        let address = BlockAddress::object_set(u64::MAX);
        let block = self.read(root, address, self.from)?;
        let phys = ObjectSetPhys::decode(&block.bytes, block.endian)
            .map_err(|error| unreadable(self.from, &error))?;
        self.tree(&Tree {
            object: 0,
            dnode: &phys.meta_dnode,
            is_array_of_dnodes: true,
        })?;
        let special = [phys.project_used, phys.group_used, phys.user_used];
        for (object, dnode) in (ObjectId::PROJECT_USED.0..=ObjectId::USER_USED.0).zip(&special) {
            if let Some(dnode) = dnode
                && object >= self.from.object
            {
                self.tree(&Tree {
                    object,
                    dnode,
                    is_array_of_dnodes: false,
                })?;
            }
        }
        self.visit(root)
    }

    fn tree(&mut self, tree: &Tree<'_>) -> Outcome<V::Error> {
        let top = tree.dnode.levels.saturating_sub(1);
        for (index, pointer) in (0u64..).zip(&tree.dnode.block_pointers) {
            self.below(tree, pointer, top, index)?;
        }
        match &tree.dnode.spill {
            Some(spill) if self.is_own(spill) => self.visit(spill),
            _ => Ok(()),
        }
    }

    /// The position of the traversal at a block.
    fn place(&self, tree: &Tree<'_>, first_data_block: u64) -> Position {
        if !tree.is_array_of_dnodes {
            return Position {
                object: tree.object,
                block: first_data_block,
            };
        }
        let first = first_data_block.saturating_mul(slots_per_block(tree.dnode));
        Position {
            object: first.max(1),
            block: 0,
        }
    }

    fn below(
        &mut self,
        tree: &Tree<'_>,
        pointer: &BlockPointer,
        level: u8,
        index: u64,
    ) -> Outcome<V::Error> {
        if !self.is_own(pointer) {
            return Ok(());
        }
        let shift = tree.dnode.pointers_shift().saturating_mul(u32::from(level));
        let span = 1u64.checked_shl(shift).unwrap_or(u64::MAX);
        let first = index.saturating_mul(span);
        // All blocks before the resume position were visited, and so were their parents.
        if self.place(tree, first.saturating_add(span)) <= self.from {
            return Ok(());
        }
        let place = self.place(tree, first).max(self.from);
        if pointer.level().0 != level && !pointer.is_embedded() {
            return Err(Stop::Unreadable(place, "a pointer of another level".into()));
        }
        let address = BlockAddress {
            dataset: u64::MAX,
            object: ObjectId(tree.object),
            level: Level(level),
            block: BlockId(index),
        };
        if level > 0 {
            let block = self.read(pointer, address, place)?;
            let count = block.bytes.len() / 128;
            for (slot, bytes) in (0u64..).zip(block.bytes.chunks_exact(128)) {
                let child = BlockPointer::decode(bytes, block.endian)
                    .map_err(|error| unreadable(place, &error))?;
                let index = index.saturating_mul(count as u64).saturating_add(slot);
                self.below(tree, &child, level - 1, index)?;
            }
        } else if tree.is_array_of_dnodes {
            let block = self.read(pointer, address, place)?;
            self.dnodes(&block, index.saturating_mul(slots_per_block(tree.dnode)))?;
        } else if tree.object < ObjectId::PROJECT_USED.0 && !self.visitor.goes_on() {
            // Never stop inside accounting objects: no resume position for them is defined that other
            // software understands. They have few blocks.
            return Err(Stop::Enough(place));
        }
        self.visit(pointer)
    }

    fn dnodes(&mut self, block: &Block, first: u64) -> Outcome<V::Error> {
        for (slot, bytes) in Dnode::in_block(&block.bytes) {
            let object = first.saturating_add(slot as u64);
            if object < self.from.object {
                continue;
            }
            let place = Position { object, block: 0 }.max(self.from);
            let dnode = Dnode::decode(bytes, block.endian);
            match dnode.map_err(|error| unreadable(place, &error))? {
                Some(dnode) if object != 0 => self.tree(&Tree {
                    object,
                    dnode: &dnode,
                    is_array_of_dnodes: false,
                })?,
                _ => {}
            }
        }
        Ok(())
    }

    fn read(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        place: Position,
    ) -> Result<Arc<Block>, Stop<V::Error>> {
        self.store
            .read(pointer, address, None)
            .map_err(|error: BlockError| Stop::Unreadable(place, error.to_string()))
    }

    fn visit(&mut self, pointer: &BlockPointer) -> Outcome<V::Error> {
        self.visitor.visit(pointer).map_err(Stop::Visitor)
    }
}

fn slots_per_block(dnode: &Dnode) -> u64 {
    (dnode.data_block_bytes() / DNODE_SLOT_BYTES as u64).max(1)
}

fn unreadable<E>(place: Position, error: &DecodeError) -> Stop<E> {
    Stop::Unreadable(place, error.to_string())
}
