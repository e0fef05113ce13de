//! Traverses all pointers of an object's block tree.

use millpond_block::BlockAddress;
use millpond_env::sync::Arc;
use millpond_object::{ObjectError, ObjectView};
use millpond_ondisk::{BlockPointer, DecodeError};
use millpond_traverse::{Fault, Step, Traversal, Tree, Visit, Visitor};
use std::cell::RefCell;
use std::ops::ControlFlow;

/// A step of the traversal.
#[derive(Debug)]
pub enum TreeStep<'a> {
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

/// Visits the block tree of one object, from the roots down, in order of block id. Reads only indirect blocks,
/// and keeps one in memory per level: at most 12, each of at most 16 MiB. Ends when `each` breaks.
pub fn visit_blocks(
    object: &ObjectView,
    each: &mut dyn FnMut(TreeStep<'_>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let set = object.object_set();
    let mut each = |step: TreeStep<'_>| each(step);
    let blocks = Blocks(RefCell::new(&mut each));
    let mut tree = Tree::new(set.dataset(), *set.root(), ());
    tree.key = set.key().cloned();
    let dnode = Arc::new(object.dnode().clone());
    let traversal = Traversal::new(set.store(), &blocks);
    match traversal.run_object(tree, object.id(), &dnode) {
        millpond_traverse::Outcome::Complete => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    }
}

/// Receives the steps, and says whether to continue.
type Each<'e> = dyn FnMut(TreeStep<'_>) -> ControlFlow<()> + 'e;

struct Blocks<'e>(RefCell<&'e mut Each<'e>>);

impl Blocks<'_> {
    fn pass(&self, step: TreeStep<'_>, next: Step) -> Step {
        match (self.0.borrow_mut())(step) {
            ControlFlow::Continue(()) => next,
            ControlFlow::Break(()) => Step::Stop,
        }
    }
}

impl Visitor for Blocks<'_> {
    type Tree = ();
    type Object = ();
    const KEEPS_BLOCKS: bool = false;

    fn visit(&self, block: &Visit<'_, Self>) -> Step {
        // Objects below the array of dnodes are not part of its own tree.
        let next = match block.level.0 {
            0 => Step::Skip,
            _ => Step::Descend,
        };
        let step = TreeStep::Pointer {
            address: block.address(),
            pointer: block.pointer,
        };
        self.pass(step, next)
    }

    fn fault(&self, block: &Visit<'_, Self>, fault: Fault) -> Step {
        let (address, error) = object_error(block, fault);
        self.pass(TreeStep::Unreadable { address, error }, Step::Skip)
    }
}

/// A fault as an error of its object, and where it is.
pub(super) fn object_error<V: Visitor>(
    block: &Visit<'_, V>,
    fault: Fault,
) -> (BlockAddress, ObjectError) {
    let mut address = block.address();
    let error = match fault {
        Fault::Read(error) => return (address, error.into()),
        Fault::ObjectSet(error) => error,
        Fault::Dnode { object, error, .. } => {
            address = BlockAddress {
                dataset: address.dataset,
                object,
                ..BlockAddress::default()
            };
            error
        }
        Fault::Contradiction(reason) => DecodeError::new("block tree", reason, 0),
        _ => DecodeError::new("block tree", "not valid", 0),
    };
    let error = ObjectError::Invalid {
        dataset: address.dataset,
        object: address.object,
        error,
    };
    (address, error)
}
