//! The port of a traversal: what is called for each block.

use crate::sides::Side;
use crate::traversal::Position;
use crate::tree::{Object, Tree};
use millpond_block::{Block, BlockAddress, BlockError, BlockStore, LogBlock};
use millpond_env::sync::Arc;
use millpond_ondisk::{
    BlockId, BlockPointer, DecodeError, IntentLogHeader, Level, ObjectId, ObjectSetPhys,
    ObjectType, SPILL_BLOCK_ID,
};
use std::ops::ControlFlow;

/// How to continue after a block or fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Read the block and visit what is below it.
    Descend,
    /// Skip what is below it.
    Skip,
    /// End the traversal. A later one can resume with this block.
    Stop,
}

/// Why a block cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It cannot be read.
    #[error(transparent)]
    Read(BlockError),
    /// Its pointer contradicts its position.
    #[error("{0}")]
    Contradiction(&'static str),
    /// It is the block of an object set, and is none.
    #[error("{0}")]
    ObjectSet(DecodeError),
    /// It is a block of dnodes, and one of them is none. The others are visited.
    #[error("slot {slot} of a block of dnodes: {error}")]
    Dnode {
        /// The object.
        object: ObjectId,
        /// Its slot in the block.
        slot: u64,
        /// What is wrong.
        error: DecodeError,
    },
}

/// A block at its position.
pub struct Visit<'a, V: Visitor + ?Sized> {
    /// The object that it belongs to.
    pub object: &'a Object<V>,
    /// Its pointer.
    pub pointer: &'a BlockPointer,
    /// Its level.
    pub level: Level,
    /// Its id at this level.
    pub id: BlockId,
    /// The state of the object set that has it.
    pub side: Side,
}

impl<V: Visitor + ?Sized> Visit<'_, V> {
    /// Its address.
    #[must_use]
    pub fn address(&self) -> BlockAddress {
        BlockAddress {
            dataset: self.object.tree.dataset,
            object: self.object.id,
            level: self.level,
            block: self.id,
        }
    }
    /// Whether it is the block of the object set itself.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.level == BlockAddress::object_set(0).level
    }
    /// Whether it is a spill block.
    #[must_use]
    pub fn is_spill(&self) -> bool {
        self.id == SPILL_BLOCK_ID
    }
    /// Whether it holds pointers or dnodes.
    #[must_use]
    pub fn leads_on(&self) -> bool {
        self.level.0 > 0 || (self.object.holds_dnodes() && !self.is_spill())
    }
    /// The dnode that describes it; `None` for the object set itself.
    fn dnode(&self) -> Option<&millpond_ondisk::Dnode> {
        match self.side {
            Side::Old => self.object.old.as_deref(),
            Side::New => self.object.new.as_deref(),
        }
    }
    /// The size that its dnode says it has. `None` where it says none: for spill blocks and the object set.
    #[must_use]
    pub fn expected_bytes(&self) -> Option<u64> {
        let dnode = self.dnode().filter(|_| !self.is_spill())?;
        Some(match self.level.0 {
            0 => dnode.data_block_bytes(),
            _ => dnode.indirect_block_bytes(),
        })
    }
    /// What is wrong with its pointer, given its position.
    #[must_use]
    pub fn contradiction(&self) -> Option<&'static str> {
        if self.is_root() {
            let is_object_set = self.pointer.object_type() == ObjectType::OBJECT_SET
                && self.pointer.level() == Level(0);
            return (!is_object_set).then_some("its pointer is not one to an object set");
        }
        // Indirect blocks are never embedded.
        let is_embedded = self.level.0 > 0 && self.pointer.is_embedded();
        if is_embedded || self.pointer.level() != self.level {
            return Some("pointer's level contradicts its place");
        }
        match self.expected_bytes() {
            Some(bytes) if bytes != self.pointer.lsize_bytes() => match self.level.0 {
                0 => Some("data block's size contradicts the dnode"),
                _ => Some("indirect block's size contradicts the dnode"),
            },
            _ => None,
        }
    }
}

/// A block of an intent log, before it is read.
pub struct LogVisit<'a, T> {
    /// The object set.
    pub tree: &'a Tree<T>,
    /// The header of the log.
    pub header: &'a IntentLogHeader,
    /// The block.
    pub pointer: &'a BlockPointer,
    /// Its address.
    pub address: BlockAddress,
    /// Its sequence number.
    pub sequence: u64,
    /// Whether it is the first block of the chain.
    pub is_first: bool,
}

/// Receives the blocks of a traversal.
///
/// In a parallel traversal, several threads call it at the same time.
#[expect(unused_variables, reason = "provided methods do nothing")]
pub trait Visitor {
    /// What it knows about each object set.
    type Tree;
    /// What it counts for each object.
    type Object: Default;
    /// Whether data blocks and spill blocks are read too.
    const READS_DATA: bool = false;
    /// Whether [`Visitor::read`] as provided caches the blocks, and the traversal prefetches those that come next.
    const KEEPS_BLOCKS: bool = true;
    /// Whether holes without a birth are visited too: those that never had content, and those of pools that do not
    /// record births of holes. Where older blocks are skipped, they may be newer.
    const SEES_ALL_HOLES: bool = false;

    /// A block that is not a hole; it may be embedded or redacted.
    ///
    /// A parent comes before its children, except where the order is children first: there a block comes
    /// after everything below it, and [`Step::Skip`] is the same as [`Step::Descend`].
    fn visit(&self, block: &Visit<'_, Self>) -> Step;

    /// A hole that was born when its content was freed, or any hole if the visitor has
    /// [`SEES_ALL_HOLES`](Self::SEES_ALL_HOLES). Its position says how large it is.
    fn hole(&self, block: &Visit<'_, Self>) {}

    /// An object, before its blocks. Called again if a traversal resumes inside the object.
    fn object(&self, object: &Object<Self>) -> Step {
        Step::Descend
    }

    /// An object after its last block.
    fn object_done(&self, object: Object<Self>) {}

    /// Whether to follow a pointer: called before the block is read, for children-first orders before it is
    /// visited.
    fn accept(&self, block: &Visit<'_, Self>) -> Step {
        match block.contradiction() {
            Some(reason) => self.fault(block, Fault::Contradiction(reason)),
            None => Step::Descend,
        }
    }

    /// Reads blocks, and passes each good one with its index to `found`. Skips what is below the others, which
    /// it reports itself.
    fn read(
        &self,
        store: &BlockStore,
        blocks: &[Visit<'_, Self>],
        found: &mut dyn FnMut(usize, Arc<Block>),
    ) -> ControlFlow<()> {
        match Self::KEEPS_BLOCKS {
            true => read_through_cache(self, store, blocks, found),
            false => read_uncached(self, store, blocks, found),
        }
    }

    /// A block that was read.
    fn content(&self, block: &Visit<'_, Self>, content: &Block) {}

    /// The content of the block of an object set.
    fn object_set(&self, block: &Visit<'_, Self>, phys: &ObjectSetPhys) {}

    /// A block that cannot be followed. [`Step::Descend`] ignores a contradiction; otherwise it is the same as
    /// [`Step::Skip`].
    fn fault(&self, block: &Visit<'_, Self>, fault: Fault) -> Step;

    /// A block of an intent log, which may be the one that is not written yet.
    fn log_block(&self, block: &LogVisit<'_, Self::Tree>) -> Step {
        Step::Descend
    }

    /// The content of a block of an intent log; `None` if it was not written or cannot be read, which ends the
    /// log.
    fn log_content(&self, block: &LogVisit<'_, Self::Tree>, content: Option<&LogBlock>) {}

    /// The records of a block of an intent log.
    fn log_records(&self, block: &LogVisit<'_, Self::Tree>, content: &LogBlock, records: &[u8]) {}
}

/// The most bytes of blocks that one thread reads at once.
const READ_BYTES_MAX: u64 = 1 << 20;

fn unreadable<V: Visitor + ?Sized>(
    visitor: &V,
    block: &Visit<'_, V>,
    error: BlockError,
) -> ControlFlow<()> {
    match visitor.fault(block, Fault::Read(error)) {
        Step::Stop => ControlFlow::Break(()),
        Step::Descend | Step::Skip => ControlFlow::Continue(()),
    }
}

fn read_uncached<V: Visitor + ?Sized>(
    visitor: &V,
    store: &BlockStore,
    blocks: &[Visit<'_, V>],
    found: &mut dyn FnMut(usize, Arc<Block>),
) -> ControlFlow<()> {
    for (number, block) in blocks.iter().enumerate() {
        let key = block.object.tree.key.as_ref();
        match store.read_uncached(block.pointer, block.address(), key) {
            Ok(content) => found(number, Arc::new(content)),
            Err(error) => unreadable(visitor, block, error)?,
        }
    }
    ControlFlow::Continue(())
}

fn read_through_cache<V: Visitor + ?Sized>(
    visitor: &V,
    store: &BlockStore,
    blocks: &[Visit<'_, V>],
    found: &mut dyn FnMut(usize, Arc<Block>),
) -> ControlFlow<()> {
    let mut take = |number, block: &Visit<'_, V>, outcome| match outcome {
        Ok(content) => {
            found(number, content);
            ControlFlow::Continue(())
        }
        Err(error) => unreadable(visitor, block, error),
    };
    let mut from = 0;
    while let Some(first) = blocks.get(from) {
        let rest = blocks.get(from..).unwrap_or_default();
        let mut bytes = 0u64;
        let group = rest.iter().take_while(|block| {
            let is_first = bytes == 0;
            bytes = bytes.saturating_add(block.pointer.lsize_bytes().max(1));
            is_first || bytes <= READ_BYTES_MAX
        });
        let wanted: Vec<_> = group
            .map(|block| (*block.pointer, block.address()))
            .collect();
        let key = first.object.tree.key.as_ref();
        if let [(pointer, address)] = wanted.as_slice() {
            take(from, first, store.read(pointer, *address, key))?;
        } else {
            let outcomes = store.read_batch(&wanted, key);
            for (number, (block, outcome)) in (from..).zip(rest.iter().zip(outcomes)) {
                take(number, block, outcome)?;
            }
        }
        from = from.saturating_add(wanted.len());
    }
    ControlFlow::Continue(())
}

pub(crate) fn visit_of<'v, V: Visitor + ?Sized>(
    object: &'v Object<V>,
    position: &Position,
    pointer: &'v BlockPointer,
    side: Side,
) -> Visit<'v, V> {
    Visit {
        object,
        pointer,
        level: Level(position.level),
        id: BlockId(position.id),
        side,
    }
}
