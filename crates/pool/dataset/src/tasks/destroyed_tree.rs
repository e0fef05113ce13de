//! Traverses the unshared blocks of a destroyed dataset, children before parents. The traversal can stop
//! before each data block and resume there in another txg.
//!
//! Page `docs/format/bpobj.md`, "The queue of destroyed trees".

use millpond_block::BlockStore;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockBookmark, BlockPointer, BpTreeEntry, ObjectId};
use millpond_traverse::{Bookmark, Fault, Order, Outcome, Step, Traversal, Tree, Visit, Visitor};
use std::cell::RefCell;

/// The dataset in addresses and stored bookmarks: it does not exist any more.
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
    /// Whether to continue the traversal. Called before each data block.
    fn goes_on(&mut self) -> bool;
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
    let outcome = Traversal::new(store, &blocks).run_in_order(tree, Order::ChildrenFirst, from);
    let Outcome::Stopped(place) = outcome else {
        return Ok(());
    };
    let start = Bookmark {
        object: ObjectId(0),
        level: 0,
        block: 0,
    };
    let place = place.unwrap_or(start).encode(DESTROYED);
    match (blocks.end.into_inner(), blocks.unreadable.into_inner()) {
        (Some(End::Failed(error)), _) => Err(Stop::Visitor(error)),
        (None, Some(reason)) => Err(Stop::Unreadable(place, reason)),
        (Some(End::Enough), _) | (None, None) => Err(Stop::Enough(place)),
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
        let end = if may_stop && !freer.goes_on() {
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

    fn fault(&self, _: &Visit<'_, Self>, fault: Fault) -> Step {
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
        fn goes_on(&mut self) -> bool {
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
