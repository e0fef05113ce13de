//! Finds the objects that differ.

use crate::compare::Compare;
use crate::{DiffError, Flow};
use millpond_env::sync::Arc;
use millpond_object::ObjectSetView;
use millpond_ondisk::{Dnode, ObjectId, ObjectType};
use millpond_traverse::{Fault, Object, Order, Step, Traversal, Tree, Visit, Visitor};
use std::cell::RefCell;

/// Objects from here on are those of the space accounting.
const OBJECTS_END: u64 = 1 << 48;
/// The objects whose paths are found together.
const BATCH: usize = 8192;

/// An object that differs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Changed {
    pub(crate) id: ObjectId,
    /// Whether the older state has a file there.
    pub(crate) is_in_old: bool,
    /// Whether the newer state has one.
    pub(crate) is_in_new: bool,
}

/// Collects the objects that differ, and compares them in batches.
pub(crate) struct ChangedObjects<'a>(RefCell<State<'a>>);

struct State<'a> {
    compare: Compare<'a>,
    batch: Vec<Changed>,
    failure: Option<DiffError>,
    is_stopped: bool,
}

impl<'a> ChangedObjects<'a> {
    pub(crate) fn new(compare: Compare<'a>) -> Self {
        Self(RefCell::new(State {
            compare,
            batch: vec![],
            failure: None,
            is_stopped: false,
        }))
    }

    pub(crate) fn run(
        self,
        old: &Arc<ObjectSetView>,
        new: &Arc<ObjectSetView>,
    ) -> Result<(), DiffError> {
        let tree = Tree {
            previous: Some(*old.root()),
            key: new.key().cloned(),
            ..Tree::new(new.dataset(), *new.root(), ())
        };
        Traversal::new(new.store(), &self).run_in_order(tree, Order::ParentsFirst, None);
        let mut state = self.0.into_inner();
        state.flush();
        match state.failure {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }
}

impl State<'_> {
    /// Compares what was collected.
    fn flush(&mut self) {
        // Of one block of dnodes, removed objects come last.
        let mut batch = std::mem::take(&mut self.batch);
        batch.sort_unstable_by_key(|changed| changed.id);
        if self.is_stopped {
            return;
        }
        match self.compare.batch(&batch) {
            Ok(Flow::Continue(())) => {}
            Ok(Flow::Break(())) => self.is_stopped = true,
            Err(error) => {
                self.failure = Some(error);
                self.is_stopped = true;
            }
        }
    }
}

/// Whether it is the dnode of a file.
fn is_file(dnode: &Dnode) -> bool {
    matches!(
        dnode.object_type,
        ObjectType::PLAIN_FILE | ObjectType::DIRECTORY
    ) && matches!(dnode.bonus_type, ObjectType::SA | ObjectType::ZNODE)
}

impl Visitor for ChangedObjects<'_> {
    type Tree = ();
    type Object = ();

    fn visit(&self, block: &Visit<'_, Self>) -> Step {
        let state = &mut *self.0.borrow_mut();
        let is_dnodes = !block.is_root() && block.level.0 == 0;
        if is_dnodes && state.batch.len() >= BATCH {
            state.flush();
        }
        match state.is_stopped {
            true => Step::Stop,
            false => Step::Descend,
        }
    }

    fn object(&self, object: &Object<Self>) -> Step {
        if object.holds_dnodes() {
            return Step::Descend;
        }
        let is_file = |dnode: &Option<Arc<Dnode>>| dnode.as_deref().is_some_and(is_file);
        let changed = Changed {
            id: object.id,
            is_in_old: is_file(&object.old),
            is_in_new: is_file(&object.new),
        };
        if object.id.0 < OBJECTS_END && (changed.is_in_old || changed.is_in_new) {
            self.0.borrow_mut().batch.push(changed);
        }
        Step::Skip
    }

    fn fault(&self, _: &Visit<'_, Self>, fault: Fault) -> Step {
        let state = &mut *self.0.borrow_mut();
        state.failure = Some(DiffError::Unreadable(fault.to_string()));
        state.is_stopped = true;
        Step::Stop
    }
}
