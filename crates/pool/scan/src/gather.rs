//! Gathers the blocks of a slice.

use crate::scanner::Limits;
use millpond_block::{BlockAddress, LogBlock, Topology};
use millpond_env::Clock;
use millpond_ondisk::{BlockPointer, EmbeddedKind, ObjectId, Txg, VdevId};
use millpond_traverse::{Bookmark, Fault, LogVisit, Step, Visit, Visitor};
use millpond_vdev::LeafId;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// A block to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub(crate) pointer: BlockPointer,
    pub(crate) address: BlockAddress,
    /// The dataset under which an error is logged.
    pub(crate) logged_under: ObjectId,
}

/// Blocks that deduplication or cloning shares, by their first address, so that a slice reads each once: those that were
/// found after the one that is read.
pub(crate) type SharedBlocks = HashMap<Option<(VdevId, u64)>, Vec<Found>>;

/// The blocks of a slice, and what was seen on the way.
pub(crate) struct Gathered<'a> {
    limits: Limits,
    clock: &'a dyn Clock,
    topology: &'a Topology,
    /// The leaves that lack txgs.
    leaves: Vec<LeafId>,
    /// Whether only blocks are read of which a leaf lacks its part.
    is_resilver: bool,
    end_ns: u64,
    pub(crate) found: RefCell<Vec<Found>>,
    pub(crate) shared: RefCell<SharedBlocks>,
    /// How many of `shared` are not in `found`.
    shared_again: Cell<usize>,
    /// Whether it passed a block at which it could have stopped.
    has_moved: Cell<bool>,
    /// Whether the blocks that come are those of the dnode in whose object the traversal resumes.
    is_above: Cell<bool>,
    pub(crate) examined_bytes: Cell<u64>,
    pub(crate) skipped_bytes: Cell<u64>,
    /// Structures that no correct writer produces. What is below them is not visited.
    pub(crate) faults: RefCell<Vec<Found>>,
    /// Blocks with others below them that could not be read.
    pub(crate) unread: RefCell<Vec<Found>>,
    /// How many datasets, or parts of them, could not be visited.
    pub(crate) unvisited: Cell<u64>,
}

impl<'a> Gathered<'a> {
    pub(crate) fn new(
        limits: Limits,
        clock: &'a dyn Clock,
        topology: &'a Topology,
        is_resilver: bool,
    ) -> Self {
        let leaves = topology.tree.leaves().map(|(leaf, _)| leaf);
        let lacking = leaves.filter(|leaf| !topology.health.missed(*leaf).is_empty());
        Self {
            leaves: lacking.collect(),
            limits,
            clock,
            topology,
            is_resilver,
            end_ns: clock.monotonic_ns().saturating_add(limits.gather_ns),
            found: RefCell::default(),
            shared: RefCell::default(),
            shared_again: Cell::new(0),
            has_moved: Cell::new(false),
            is_above: Cell::new(false),
            examined_bytes: Cell::new(0),
            skipped_bytes: Cell::new(0),
            faults: RefCell::default(),
            unread: RefCell::default(),
            unvisited: Cell::new(0),
        }
    }

    /// Counts a dataset, or a part of one, that is not visited.
    pub(crate) fn count_unvisited(&self) {
        self.unvisited.set(self.unvisited.get().saturating_add(1));
    }

    /// Whether the slice should end.
    pub(crate) fn is_full(&self) -> bool {
        let blocks = self
            .found
            .borrow()
            .len()
            .saturating_add(self.shared_again.get());
        blocks >= self.limits.blocks || self.clock.monotonic_ns() >= self.end_ns
    }

    /// Tells where the next traversal resumes.
    pub(crate) fn resumes_at(&self, place: Option<Bookmark>) {
        self.is_above
            .set(place.is_some_and(|place| place.object.0 != 0));
    }

    /// Whether a leaf of one of the block's vdevs lacks the txg in which it was written.
    fn is_lacking(&self, pointer: &BlockPointer) -> bool {
        // The pieces of a gang block may be on any vdev.
        pointer.is_gang()
            || self
                .leaves
                .iter()
                .any(|leaf| self.topology.may_lack(pointer, *leaf))
    }

    fn add(&self, found: Found) {
        let pointer = &found.pointer;
        let bytes = pointer.asize_bytes();
        self.examined_bytes
            .set(self.examined_bytes.get().saturating_add(bytes));
        let is_again = pointer.is_shared() && self.is_again(found);
        if is_again || self.is_resilver && !self.is_lacking(pointer) {
            self.skipped_bytes
                .set(self.skipped_bytes.get().saturating_add(bytes));
            return;
        }
        self.found.borrow_mut().push(found);
    }

    /// Whether the slice reads a shared block already. If it is lost, it is lost here too.
    fn is_again(&self, found: Found) -> bool {
        match self
            .shared
            .borrow_mut()
            .entry(found.pointer.first_address())
        {
            Entry::Vacant(entry) => {
                entry.insert(vec![]);
                false
            }
            Entry::Occupied(mut entry) => {
                entry.get_mut().push(found);
                self.shared_again.set(self.shared_again.get() + 1);
                true
            }
        }
    }

    fn fault_at(&self, pointer: &BlockPointer, address: BlockAddress, under: ObjectId) {
        self.note(&self.faults, pointer, address, under);
    }

    fn note(
        &self,
        list: &RefCell<Vec<Found>>,
        pointer: &BlockPointer,
        address: BlockAddress,
        under: ObjectId,
    ) {
        let mut list = list.borrow_mut();
        match list.len() < self.limits.blocks {
            true => list.push(Found {
                pointer: *pointer,
                address,
                logged_under: under,
            }),
            false => self.count_unvisited(),
        }
    }
}

/// What the visitor knows about an object set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context {
    pub(crate) logged_under: ObjectId,
    /// Blocks of intent logs born after this txg are not read.
    pub(crate) max: Txg,
}

impl Visitor for Gathered<'_> {
    type Tree = Context;
    type Object = ();

    fn visit(&self, block: &Visit<'_, Self>) -> Step {
        let pointer = block.pointer;
        let under = block.object.tree.context.logged_under;
        if block.contradiction().is_some() {
            self.fault_at(pointer, block.address(), under);
            return Step::Skip;
        }
        if pointer.embedded_kind() == Some(EmbeddedKind::Redacted) {
            return Step::Skip;
        }
        // At other blocks it is not known whether OpenZFS understands the bookmark.
        let may_stop = block.level.0 == 0
            && !block.is_root()
            && !block.is_spill()
            && block.object.id.0 < ObjectId::PROJECT_USED.0;
        // The blocks above the bookmark come again. So each slice passes one other block at which it could stop.
        if block.object.id.0 != 0 {
            self.is_above.set(false);
        }
        let is_place = may_stop && !self.is_above.get();
        if is_place && self.has_moved.replace(true) && self.is_full() {
            return Step::Stop;
        }
        if !pointer.is_embedded() {
            self.add(Found {
                pointer: *pointer,
                address: block.address(),
                logged_under: under,
            });
        }
        Step::Descend
    }

    /// [`Gathered::visit`] did this already.
    fn accept(&self, _: &Visit<'_, Self>) -> Step {
        Step::Descend
    }

    fn fault(&self, block: &Visit<'_, Self>, fault: Fault) -> Step {
        let under = block.object.tree.context.logged_under;
        match fault {
            Fault::Read(_) => self.note(&self.unread, block.pointer, block.address(), under),
            _ => self.fault_at(block.pointer, block.address(), under),
        }
        Step::Skip
    }

    /// The chain ends at the first block that does not verify.
    fn log_content(&self, block: &LogVisit<'_, Context>, content: Option<&LogBlock>) {
        let context = block.tree.context;
        if content.is_some() && block.pointer.physical_birth() <= context.max {
            self.add(Found {
                pointer: *block.pointer,
                address: block.address,
                logged_under: context.logged_under,
            });
        }
    }
}
