//! What a walk visits: the dnodes of an object set, and the blocks of its objects.

use super::{OBJECTS_END, SLOTS, Walk};
use millpond_env::sync::Arc;
use millpond_ondisk::{Dnode, Level, ObjectId};
use millpond_traverse::{Fault, Object, Step, Visit, Visitor};

/// Visits the dnodes.
pub(super) struct Objects<'w, 'a>(pub(super) &'w Walk<'a>);

impl Visitor for Objects<'_, '_> {
    type Tree = ();
    type Object = ();
    const SEES_ALL_HOLES: bool = true;

    fn visit(&self, block: &Visit<'_, Self>) -> Step {
        let is_new = block.is_root() || self.0.is_new(block.pointer);
        if !is_new && !self.0.has_lists {
            return Step::Skip;
        }
        if let Err(error) = self.0.check_protected(ObjectId(0), block.pointer) {
            return self.0.after(Err(error), Step::Stop);
        }
        if block.is_root() {
            return self.0.after(Ok(()), Step::Descend);
        }
        let shift = block.object.pointers_shift();
        let shift = shift.saturating_mul(block.level.0.into()).min(64);
        let objects = |blocks: u128| (blocks << shift).saturating_mul(SLOTS.into());
        let end = objects(u128::from(block.id.0).saturating_add(1));
        if end <= u128::from(self.0.first_object()) {
            return Step::Skip;
        }
        if !is_new {
            let number = |object| u64::try_from(object).unwrap_or(u64::MAX);
            let objects = number(objects(block.id.0.into()))..number(end);
            let listed = self.0.state.borrow_mut().lists.have_objects(&objects);
            match listed {
                Ok(true) => {}
                Ok(false) => return Step::Skip,
                Err(error) => return self.0.after(Err(error), Step::Stop),
            }
        }
        if block.level == Level(0) {
            self.0.begin_block(block.id, block.pointer, is_new);
        }
        self.0.after(Ok(()), Step::Descend)
    }

    fn hole(&self, block: &Visit<'_, Self>) {
        if !self.0.is_new_hole(block.pointer) {
            return;
        }
        let shift = (block.object.pointers_shift()).saturating_mul(block.level.0.into());
        let count = SLOTS.checked_shl(shift).unwrap_or(u64::MAX);
        let first = u64::try_from(u128::from(block.id.0).saturating_mul(count.into()));
        self.0.free_objects(first.unwrap_or(u64::MAX), count);
    }

    fn object(&self, object: &Object<Self>) -> Step {
        match &object.new {
            _ if object.id == ObjectId(0) => Step::Descend,
            Some(_) if object.id.0 < self.0.first_object() => Step::Skip,
            Some(dnode) if object.id.0 < OBJECTS_END => {
                let is_new = self.0.state.borrow().is_new_block;
                let sent = match is_new {
                    true => self.0.object(object.id, dnode),
                    false => {
                        self.0.blocks(object.id, dnode);
                        Ok(())
                    }
                };
                self.0.after(sent, Step::Skip)
            }
            _ => Step::Skip,
        }
    }

    fn fault(&self, block: &Visit<'_, Self>, fault: Fault) -> Step {
        self.0.fail(block.object.id, fault)
    }
}

/// Visits the blocks of an object.
pub(super) struct Blocks<'w, 'a> {
    pub(super) walk: &'w Walk<'a>,
    pub(super) dnode: &'w Arc<Dnode>,
}

impl Visitor for Blocks<'_, '_> {
    type Tree = ();
    type Object = ();
    const SEES_ALL_HOLES: bool = true;

    fn visit(&self, block: &Visit<'_, Self>) -> Step {
        if block.is_spill() {
            return Step::Skip;
        }
        if !self.walk.is_new(block.pointer) {
            let place = (block.level, block.id);
            match self.walk.is_listed(block.object.id, self.dnode, place) {
                Ok(true) => {}
                Ok(false) => return Step::Skip,
                Err(error) => return self.walk.after(Err(error), Step::Stop),
            }
        }
        let end = Walk::end_of(self.dnode, block.level, block.id);
        if self.walk.is_received(block.object.id, end) {
            return Step::Skip;
        }
        let checked = self.walk.check_protected(block.object.id, block.pointer);
        if checked.is_err() {
            return self.walk.after(checked, Step::Stop);
        }
        if block.level > Level(0) {
            return self.walk.after(Ok(()), Step::Descend);
        }
        if let Some(reason) = block.contradiction() {
            return self.fault(block, Fault::Contradiction(reason));
        }
        let (id, dnode) = (block.object.id, self.dnode);
        let sent = self.walk.block(id, dnode, block.id, block.pointer);
        self.walk.after(sent, Step::Skip)
    }

    fn hole(&self, block: &Visit<'_, Self>) {
        let end = Walk::end_of(self.dnode, block.level, block.id);
        if !block.is_spill() && !self.walk.is_received(block.object.id, end) {
            self.walk.hole(block.object.id, self.dnode, block);
        }
    }

    fn fault(&self, block: &Visit<'_, Self>, fault: Fault) -> Step {
        self.walk.fail(block.object.id, fault)
    }
}
