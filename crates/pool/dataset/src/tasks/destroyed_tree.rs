//! Traverses the unshared blocks of a destroyed dataset, children before parents. The traversal can stop
//! before each data block and resume there in another txg.
//!
//! Page `docs/format/bpobj.md`, "The queue of destroyed trees".

use millpond_block::BlockStore;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockBookmark, BlockPointer, BpTreeEntry, ObjectId};
use millpond_traverse::{Bookmark, Fault, Order, Outcome, Step, Traversal, Tree, Visit, Visitor};
use std::cell::RefCell;

/// The dataset number in addresses and stored bookmarks: all ones, as the dataset no longer exists.
const DESTROYED: u64 = u64::MAX;

/// Why a traversal stopped early.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Stop<E> {
    /// The visitor stopped it. The block at this position was not visited.
    Enough(BlockBookmark),
    /// A block could not be read or is invalid. Nothing after this position was visited.
    Unreadable(BlockBookmark, String),
    /// The visitor failed.
    Visitor(E),
}

/// Receives the visited blocks.
pub(crate) trait Freer {
    type Error;
    /// Whether to continue the traversal. Called before each data block of a file.
    fn may_continue(&mut self) -> bool;
    /// Visits an unshared block. All blocks below it have already been visited.
    fn visit(&mut self, pointer: &BlockPointer) -> Result<(), Self::Error>;
}

/// Visits the remaining blocks of an entry of the queue.
pub(crate) fn traverse<F: Freer>(
    store: &Arc<BlockStore>,
    entry: &BpTreeEntry,
    freer: &mut F,
) -> Result<(), Stop<F::Error>> {
    let blocks = Blocks {
        freer: RefCell::new(freer),
        end: RefCell::default(),
        unreadable: RefCell::default(),
    };
    let mut tree = Tree::new(DESTROYED, entry.pointer, ());
    tree.born_after = Some(entry.birth);
    // Every writer stores the level 0 and the first data block. Object 0 stands for the start.
    let from = ObjectId(entry.resume.object).some().map(|object| Bookmark {
        object,
        level: 0,
        block: entry.resume.block_id,
    });
    let outcome = Traversal::new(store, &blocks)
        .metadata_bytes_max(store.topology().capacity_bytes())
        .run_in_order(tree, Order::ChildrenFirst, from);
    let (place, reason) = match outcome {
        Outcome::Complete => return Ok(()),
        Outcome::Stopped(place) => (place, "the traversal was stopped"),
        Outcome::OverBudget(place) => (place, "it has more metadata than fits on the devices"),
    };
    // Without a place, nothing was visited.
    let place = place.map_or(entry.resume, |place| place.encode(DESTROYED));
    match (blocks.end.into_inner(), blocks.unreadable.into_inner()) {
        (Some(End::Failed(error)), _) => Err(Stop::Visitor(error)),
        (Some(End::Enough), _) => Err(Stop::Enough(place)),
        (None, Some(reason)) => Err(Stop::Unreadable(place, reason)),
        (None, None) => Err(Stop::Unreadable(place, reason.to_owned())),
    }
}

enum End<E> {
    Enough,
    Failed(E),
}

struct Blocks<'f, F: Freer> {
    freer: RefCell<&'f mut F>,
    end: RefCell<Option<End<F::Error>>>,
    unreadable: RefCell<Option<String>>,
}

impl<F: Freer> Visitor for Blocks<'_, F> {
    type Tree = ();
    type Object = ();

    fn visit(&self, block: &Visit<'_, Self>) -> Step {
        let mut freer = self.freer.borrow_mut();
        // Never stop inside accounting objects: no resume position for them is defined that other software
        // understands. They have few blocks.
        let may_stop =
            !block.leads_on() && !block.is_spill() && block.object.id.0 < ObjectId::PROJECT_USED.0;
        let end = if may_stop && !freer.may_continue() {
            End::Enough
        } else {
            match freer.visit(block.pointer) {
                Ok(()) => return Step::Skip,
                Err(error) => End::Failed(error),
            }
        };
        *self.end.borrow_mut() = Some(end);
        Step::Stop
    }

    /// A data block is freed, not read: its size does not matter.
    fn accept(&self, block: &Visit<'_, Self>) -> Step {
        let pointer = block.pointer;
        let is_level_right = pointer.is_embedded() || pointer.level() == block.level;
        match block.contradiction() {
            Some(_) if !block.leads_on() && (block.is_spill() || is_level_right) => Step::Descend,
            Some(reason) => self.fault(block, Fault::Contradiction(reason)),
            None => Step::Descend,
        }
    }

    fn fault(&self, _: &Visit<'_, Self>, fault: Fault) -> Step {
        // It has no blocks of its own.
        if matches!(fault, Fault::Dnode { object, .. } if object.0 == 0) {
            return Step::Skip;
        }
        *self.unreadable.borrow_mut() = Some(fault.to_string());
        Step::Stop
    }
}

/// Visits every remaining block of a destroyed dataset in the queue, children before parents. Memory: one
/// block per level of its trees.
///
/// # Errors
/// Describes the first unreadable block; the blocks before it were visited.
/// Page `docs/format/bpobj.md`, "The queue of destroyed trees".
pub fn traverse_destroyed_tree(
    store: &Arc<BlockStore>,
    entry: &BpTreeEntry,
    each: &mut dyn FnMut(&BlockPointer),
) -> Result<(), String> {
    struct All<'e>(&'e mut dyn FnMut(&BlockPointer));
    impl Freer for All<'_> {
        type Error = std::convert::Infallible;
        fn may_continue(&mut self) -> bool {
            true
        }
        fn visit(&mut self, pointer: &BlockPointer) -> Result<(), Self::Error> {
            (self.0)(pointer);
            Ok(())
        }
    }
    match traverse(store, entry, &mut All(each)) {
        Ok(()) | Err(Stop::Enough(_)) => Ok(()),
        Err(Stop::Unreadable(_, reason)) => Err(reason),
        Err(Stop::Visitor(never)) => match never {},
    }
}
