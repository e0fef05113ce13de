//! Traverses the unshared blocks of a destroyed dataset, children before parents. The traversal can stop
//! before each data block and each block of dnodes, and resume there in another txg.
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
    /// Whether to continue the traversal. Called before each block at which it can stop: data blocks of files,
    /// and blocks of dnodes.
    fn may_continue(&mut self) -> bool;
    /// Visits an unshared block. All blocks below it have already been visited.
    fn visit(&mut self, pointer: &BlockPointer) -> Result<(), Self::Error>;
}

/// The most blocks between two blocks at which a traversal can stop. The pointers stay in memory. No real dataset
/// reaches it: a forged tree can repeat an indirect block without data forever.
const METADATA_IN_A_ROW_MAX: usize = 1 << 17;

/// Is told what cannot be followed: the place, and why.
pub(crate) type OnLoss<'a> = &'a dyn Fn(&str, &str);

/// Visits the remaining blocks of an entry of the queue. With `on_loss`, a block that cannot be read does not end it: the
/// block is visited, and what lies below it is left out.
pub(crate) fn traverse<F: Freer>(
    store: &Arc<BlockStore>,
    entry: &BpTreeEntry,
    freer: &mut F,
    on_loss: Option<OnLoss<'_>>,
) -> Result<(), Stop<F::Error>> {
    // Only zeros are the start. The bookmark of a block of dnodes is in object 0, too: everything below that
    // block is free already, and may be in use again.
    let from = if entry.resume == BlockBookmark::default() {
        None
    } else if let Some(from) = Bookmark::decode(&entry.resume) {
        Some(from)
    } else {
        let reason = "no block can be at the bookmark where freeing continues";
        return Err(Stop::Unreadable(entry.resume, reason.to_owned()));
    };
    let blocks = Blocks {
        freer: RefCell::new(freer),
        row: RefCell::new(Row {
            from,
            pointers: vec![],
        }),
        end: RefCell::default(),
        unreadable: RefCell::default(),
        on_loss,
    };
    let mut tree = Tree::new(DESTROYED, entry.pointer, ());
    tree.born_after = Some(entry.birth);
    let outcome = Traversal::new(store, &blocks)
        .metadata_bytes_max(store.topology().capacity_bytes())
        .run_in_order(tree, Order::ChildrenFirst, from);
    let end = blocks.end.take();
    if let Some(End::Failed(error)) = end {
        return Err(Stop::Visitor(error));
    }
    let endless = matches!(end, Some(End::Endless));
    if !endless {
        blocks.visit_row().map_err(Stop::Visitor)?;
    }
    let (place, reason) = match outcome {
        Outcome::Complete => return Ok(()),
        Outcome::Stopped(_) if endless => (
            blocks.row.into_inner().from,
            "it has more metadata in a row than any dataset",
        ),
        Outcome::Stopped(place) => (place, "the traversal was stopped"),
        Outcome::OverBudget(place) => (place, "it has more metadata than fits on the devices"),
    };
    // Without a place, nothing was visited.
    let place = place.map_or(entry.resume, |place| place.encode(DESTROYED));
    match (end, blocks.unreadable.into_inner()) {
        (Some(End::Enough), _) => Err(Stop::Enough(place)),
        (_, Some(reason)) => Err(Stop::Unreadable(place, reason)),
        (_, None) => Err(Stop::Unreadable(place, reason.to_owned())),
    }
}

enum End<E> {
    Enough,
    /// [`METADATA_IN_A_ROW_MAX`].
    Endless,
    Failed(E),
}

/// Blocks that are passed on together: all, or none if there are too many. The first is one at which a traversal
/// can resume.
struct Row {
    /// The position of the first one.
    from: Option<Bookmark>,
    pointers: Vec<BlockPointer>,
}

struct Blocks<'f, F: Freer> {
    freer: RefCell<&'f mut F>,
    row: RefCell<Row>,
    end: RefCell<Option<End<F::Error>>>,
    unreadable: RefCell<Option<String>>,
    on_loss: Option<OnLoss<'f>>,
}

impl<F: Freer> Blocks<'_, F> {
    fn visit_row(&self) -> Result<(), F::Error> {
        let mut freer = self.freer.borrow_mut();
        let mut row = self.row.borrow_mut();
        let mut pointers = row.pointers.drain(..);
        pointers.try_for_each(|pointer| freer.visit(&pointer))
    }

    fn add(&self, block: &Visit<'_, Self>) -> Result<(), End<F::Error>> {
        // Never stop inside accounting objects, nor at spill or indirect blocks: it is not known whether other
        // software understands such a bookmark. They are few between two blocks at which it does.
        let may_stop = block.level.0 == 0
            && !block.is_root()
            && !block.is_spill()
            && block.object.id.0 < ObjectId::PROJECT_USED.0;
        if may_stop {
            self.visit_row().map_err(End::Failed)?;
            if !self.freer.borrow_mut().may_continue() {
                return Err(End::Enough);
            }
            self.row.borrow_mut().from = Some(Bookmark::at(block.address()));
        }
        let pointers = &mut self.row.borrow_mut().pointers;
        if pointers.len() >= METADATA_IN_A_ROW_MAX {
            return Err(End::Endless);
        }
        pointers.push(*block.pointer);
        Ok(())
    }
}

impl<F: Freer> Visitor for Blocks<'_, F> {
    type Tree = ();
    type Object = ();

    fn visit(&self, block: &Visit<'_, Self>) -> Step {
        match self.add(block) {
            Ok(()) => Step::Skip,
            Err(end) => {
                *self.end.borrow_mut() = Some(end);
                Step::Stop
            }
        }
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

    fn fault(&self, block: &Visit<'_, Self>, fault: Fault) -> Step {
        // It has no blocks of its own.
        if matches!(fault, Fault::Dnode { object, .. } if object.0 == 0) {
            return Step::Skip;
        }
        if let Some(on_loss) = self.on_loss {
            let address = block.address();
            // The dataset has no number any more.
            let place = format!(
                "object {}, level {}, block {} of a destroyed dataset",
                address.object.0, address.level.0, address.block.0
            );
            on_loss(&place, &fault.to_string());
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
    match traverse(store, entry, &mut All(each), None) {
        Ok(()) | Err(Stop::Enough(_)) => Ok(()),
        Err(Stop::Unreadable(_, reason)) => Err(reason),
        Err(Stop::Visitor(never)) => match never {},
    }
}
