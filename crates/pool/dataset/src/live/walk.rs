//! A walk over everything that a destroyed dataset has of its own: children before parents, able to
//! stop between two blocks of data and to go on from there in another txg.
//!
//! Page `docs/format/bpobj.md`, "The queue of destroyed trees".

use millpond_block::{Block, BlockAddress, BlockError, BlockStore};
use millpond_env::sync::Arc;
use millpond_ondisk::{
    BlockBookmark, BlockId, BlockPointer, BpTreeEntry, DNODE_SLOT_BYTES, DecodeError, Dnode, Level,
    ObjectId, ObjectSetPhys, Txg,
};

/// A place in the walk: everything that comes before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Place {
    pub(crate) object: u64,
    pub(crate) block: u64,
}

impl Place {
    /// From the bookmark of a queue's entry.
    pub(crate) fn from_bookmark(bookmark: &BlockBookmark) -> Self {
        Self {
            object: bookmark.object,
            block: bookmark.block_id,
        }
    }
    /// As a queue's entry keeps it.
    pub(crate) fn to_bookmark(self) -> BlockBookmark {
        BlockBookmark {
            object_set: u64::MAX,
            object: self.object,
            level: 0,
            block_id: self.block,
        }
    }
}

/// Why a walk ended before its end.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Stop<E> {
    /// The visitor has had enough. The block here was not visited.
    Enough(Place),
    /// A block on the way could not be read or is not what it should be. Nothing behind this place
    /// was visited.
    Unreadable(Place, String),
    /// The visitor failed.
    Visitor(E),
}

/// Who is shown the blocks.
pub(crate) trait Visitor {
    type Error;
    /// Whether the walk may go on; asked before each block of data.
    fn goes_on(&mut self) -> bool;
    /// A block that the dataset has of its own; everything below it was shown before.
    fn visit(&mut self, pointer: &BlockPointer) -> Result<(), Self::Error>;
}

/// The walk over one object set.
pub(crate) struct Walk<'a, V: Visitor> {
    store: &'a BlockStore,
    /// Blocks born up to here belong to somebody else.
    born_after: Txg,
    from: Place,
    visitor: &'a mut V,
}

type Outcome<E> = Result<(), Stop<E>>;

/// One tree of blocks.
struct Tree<'d> {
    object: u64,
    dnode: &'d Dnode,
    /// Whether its data are dnodes whose blocks belong to the walk.
    is_array_of_dnodes: bool,
}

/// Shows every block that a destroyed dataset in the queue still has, children before parents. Memory: a
/// block for each level of its trees.
///
/// # Errors
/// The first block that cannot be read, in words; those before it were shown.
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
    let from = Place::from_bookmark(&entry.resume);
    match Walk::run(store, &entry.pointer, entry.birth, from, &mut All(each)) {
        Ok(()) | Err(Stop::Enough(_)) => Ok(()),
        Err(Stop::Unreadable(_, reason)) => Err(reason),
        Err(Stop::Visitor(never)) => match never {},
    }
}

impl<'a, V: Visitor> Walk<'a, V> {
    /// Walks over the object set behind `root`, from `from` on.
    pub(crate) fn run(
        store: &'a BlockStore,
        root: &BlockPointer,
        born_after: Txg,
        from: Place,
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

    /// Where the walk is when it comes to a block.
    fn place(&self, tree: &Tree<'_>, first_data_block: u64) -> Place {
        if !tree.is_array_of_dnodes {
            return Place {
                object: tree.object,
                block: first_data_block,
            };
        }
        let first = first_data_block.saturating_mul(slots_per_block(tree.dnode));
        Place {
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
        // Everything in front of where the walk goes on was visited, with the blocks above it.
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
            // Never inside the few blocks of accounting objects: where to go on from there, other
            // software does not say.
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
            let place = Place { object, block: 0 }.max(self.from);
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
        place: Place,
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

fn unreadable<E>(place: Place, error: &DecodeError) -> Stop<E> {
    Stop::Unreadable(place, error.to_string())
}
