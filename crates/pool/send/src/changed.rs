//! Finds the blocks of a snapshot that clones of it have changed, for redaction bookmarks.

use crate::error::SendError;
use millpond_env::sync::Arc;
use millpond_object::{ObjectError, ObjectSetView};
use millpond_ondisk::{
    BlockId, BlockPointer, Dnode, Level, ObjectId, ObjectType, RedactionEntry, Txg,
};
use millpond_traverse::{Fault, Object, Order, Step, Traversal, Tree, Visit, Visitor};
use std::cell::RefCell;

/// Objects from here on are those of the space accounting, which are not redacted.
const OBJECTS_END: u64 = 1 << 48;
/// Slots of a dnode block.
const SLOTS: u64 = 32;
/// The most ranges that are found.
const RANGES_MAX: usize = 1 << 20;

/// The blocks of files and volumes of `base` that `later`, a snapshot of a clone of it, does not have any more, in the
/// order of objects and blocks.
///
/// `base` was created in `created`. Holes that may be newer count as changed, as in an incremental stream: so such a
/// stream has everything that is listed.
///
/// # Errors
/// If either cannot be read, or there are too many ranges.
pub fn changed_blocks(
    base: &Arc<ObjectSetView>,
    created: Txg,
    later: &Arc<ObjectSetView>,
) -> Result<Vec<RedactionEntry>, SendError> {
    let search = Search {
        base,
        created,
        later,
        state: RefCell::new(State::default()),
    };
    let tree = search.tree();
    Traversal::new(later.store(), &Objects(&search)).run_in_order(tree, Order::ParentsFirst, None);
    // The newer one may have fewer blocks of dnodes.
    let blocks = later.phys().meta_dnode.block_id_max.0.saturating_add(1);
    search.begin_slots(blocks.saturating_mul(SLOTS), u64::MAX)?;
    search.lost_up_to(u64::MAX)?;
    let state = search.state.into_inner();
    state.failure.map_or(Ok(state.found), Err)
}

/// The entries that all lists have. Each is in order.
///
/// The next list is asked for when the one before it is dropped: there may be a thousand, of 32 MiB each. Once nothing is left, no further
/// one is.
///
/// # Errors
/// That of a list, or if there are too many ranges.
pub fn changed_in_all(
    lists: impl IntoIterator<Item = Result<Vec<RedactionEntry>, SendError>>,
) -> Result<Vec<RedactionEntry>, SendError> {
    let mut lists = lists.into_iter();
    let mut common = lists.next().transpose()?.unwrap_or_default();
    while let Some(entry) = common.first() {
        let object = entry.object;
        let Some(list) = lists.next() else { break };
        common = in_both(&common, &list?);
        if common.len() > RANGES_MAX {
            // Two lists may have more ranges in common than one of them has.
            return Err(too_many(object));
        }
    }
    Ok(common)
}

fn too_many(object: ObjectId) -> SendError {
    SendError::Invalid {
        object,
        reason: format!("more than {RANGES_MAX} ranges have changed"),
    }
}

fn in_both(one: &[RedactionEntry], other: &[RedactionEntry]) -> Vec<RedactionEntry> {
    let end = |entry: &RedactionEntry| entry.block_id.saturating_add(entry.block_count);
    let mut found = vec![];
    let (mut left, mut right) = (one.iter().peekable(), other.iter().peekable());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let first = a.block_id.max(b.block_id);
        let until = end(a).min(end(b));
        if a.object == b.object && first < until {
            found.push(RedactionEntry {
                block_id: first,
                block_count: until.saturating_sub(first),
                ..**a
            });
        }
        match (a.object, end(a)) <= (b.object, end(b)) {
            true => left.next(),
            false => right.next(),
        };
    }
    found
}

struct Search<'a> {
    base: &'a Arc<ObjectSetView>,
    created: Txg,
    later: &'a Arc<ObjectSetView>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    found: Vec<RedactionEntry>,
    /// The slots of the older snapshot up to here were looked at.
    slots: u64,
    /// The part of the slots from there on that the newer one has written anew.
    rewritten: Option<(u64, u64)>,
    failure: Option<SendError>,
}

impl Search<'_> {
    fn tree(&self) -> Tree<()> {
        Tree {
            born_after: Some(self.created),
            key: self.later.key().cloned(),
            ..Tree::new(self.later.dataset(), *self.later.root(), ())
        }
    }

    fn after(&self, done: Result<(), SendError>, otherwise: Step) -> Step {
        let mut state = self.state.borrow_mut();
        if let Err(error) = done {
            state.failure.get_or_insert(error);
        }
        match state.failure {
            Some(_) => Step::Stop,
            None => otherwise,
        }
    }

    /// The dnode of an object of files or volumes of the older snapshot.
    fn older(&self, id: ObjectId) -> Result<Option<Dnode>, SendError> {
        match self.base.object(id) {
            Ok(object) => {
                let dnode = object.dnode();
                let kinds = [ObjectType::PLAIN_FILE, ObjectType::ZVOL];
                Ok(kinds.contains(&dnode.object_type).then(|| dnode.clone()))
            }
            Err(ObjectError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The blocks from `first` on, of those that the object has in the older snapshot.
    fn add(&self, id: ObjectId, older: &Dnode, first: u64, count: u64) -> Result<(), SendError> {
        let end = older.block_id_max.0.saturating_add(1);
        let count = first.saturating_add(count).min(end).saturating_sub(first);
        let found = &mut self.state.borrow_mut().found;
        if count == 0 {
            return Ok(());
        }
        if let Some(last) = found.last_mut()
            && last.object == id
            && last.block_id.saturating_add(last.block_count) == first
        {
            last.block_count = last.block_count.saturating_add(count);
            return Ok(());
        }
        if found.len() >= RANGES_MAX {
            return Err(too_many(id));
        }
        found.push(RedactionEntry {
            object: id,
            block_id: first,
            block_count: count,
            block_sectors: older.data_block_sectors,
        });
        Ok(())
    }

    /// The objects of the older snapshot in the rewritten slots below `end`, which the newer one does not have.
    fn lost_up_to(&self, end: u64) -> Result<(), SendError> {
        let (from, until) = {
            let state = self.state.borrow();
            let Some((first, last)) = state.rewritten else {
                return Ok(());
            };
            (state.slots.max(first), last.min(end))
        };
        let mut at = from;
        while at < until {
            let next = self.base.next_object(ObjectId(at.saturating_sub(1)));
            match next? {
                Some(object) if object.id().0 < until => {
                    let id = object.id();
                    if let Some(older) = self.older(id)? {
                        self.add(id, &older, 0, u64::MAX)?;
                    }
                    at = id.0.saturating_add(1);
                }
                _ => at = until,
            }
        }
        let mut state = self.state.borrow_mut();
        state.slots = state.slots.max(until);
        if state.rewritten.is_some_and(|(_, last)| until >= last) {
            state.rewritten = None;
        }
        Ok(())
    }

    /// The slots of this range were written anew.
    fn begin_slots(&self, first: u64, count: u64) -> Result<(), SendError> {
        self.lost_up_to(u64::MAX)?;
        let end = first.saturating_add(count).min(OBJECTS_END);
        // Slot 0 is not one of an object.
        self.state.borrow_mut().rewritten = Some((first.max(1), end));
        Ok(())
    }

    fn object(&self, id: ObjectId, dnode: &Arc<Dnode>) -> Result<(), SendError> {
        self.lost_up_to(id.0)?;
        self.state.borrow_mut().slots = id.0.saturating_add(1);
        let Some(older) = self.older(id)? else {
            return Ok(());
        };
        let is_same_shape = older.object_type == dnode.object_type
            && older.data_block_sectors == dnode.data_block_sectors
            && older.indirect_block_shift == dnode.indirect_block_shift;
        if !is_same_shape {
            return self.add(id, &older, 0, u64::MAX);
        }
        let blocks = Blocks {
            search: self,
            older: &older,
            dnode,
        };
        Traversal::new(self.later.store(), &blocks).run_object(self.tree(), id, dnode);
        if self.state.borrow().failure.is_some() {
            return Ok(());
        }
        // What was cut off.
        self.add(id, &older, dnode.block_id_max.0.saturating_add(1), u64::MAX)
    }
}

/// Visits the dnodes of the newer snapshot.
struct Objects<'s, 'a>(&'s Search<'a>);

impl Visitor for Objects<'_, '_> {
    type Tree = ();
    type Object = ();
    const SEES_ALL_HOLES: bool = true;

    fn visit(&self, block: &Visit<'_, Self>) -> Step {
        if block.is_root() {
            return self.0.after(Ok(()), Step::Descend);
        }
        if !is_new(block.pointer, self.0.created) {
            return Step::Skip;
        }
        let begun = match block.level {
            Level(0) => self.0.begin_slots(block.id.0.saturating_mul(SLOTS), SLOTS),
            _ => Ok(()),
        };
        self.0.after(begun, Step::Descend)
    }

    fn hole(&self, block: &Visit<'_, Self>) {
        let shift = (block.object.pointers_shift()).saturating_mul(block.level.0.into());
        let count = SLOTS.checked_shl(shift).unwrap_or(u64::MAX);
        let first = block.id.0.saturating_mul(count);
        let begun = self.0.begin_slots(first, count);
        self.0.after(begun, Step::Skip);
    }

    fn object(&self, object: &Object<Self>) -> Step {
        match &object.new {
            _ if object.id == ObjectId(0) => Step::Descend,
            Some(dnode) if object.id.0 < OBJECTS_END => {
                let done = self.0.object(object.id, dnode);
                self.0.after(done, Step::Skip)
            }
            _ => Step::Skip,
        }
    }

    fn fault(&self, block: &Visit<'_, Self>, fault: Fault) -> Step {
        self.0
            .after(Err(of_fault(block.object.id, fault)), Step::Stop)
    }
}

/// Visits the blocks of an object of the newer snapshot.
struct Blocks<'s, 'a> {
    search: &'s Search<'a>,
    older: &'s Dnode,
    dnode: &'s Arc<Dnode>,
}

impl Blocks<'_, '_> {
    fn range(&self, level: Level, id: BlockId) -> (u64, u64) {
        let shift = (self.dnode.pointers_shift()).saturating_mul(level.0.into());
        let count = 1u64.checked_shl(shift).unwrap_or(u64::MAX);
        (id.0.saturating_mul(count), count)
    }
}

impl Visitor for Blocks<'_, '_> {
    type Tree = ();
    type Object = ();
    const SEES_ALL_HOLES: bool = true;

    fn visit(&self, block: &Visit<'_, Self>) -> Step {
        if block.is_spill() || !is_new(block.pointer, self.search.created) {
            return Step::Skip;
        }
        if block.level > Level(0) {
            return self.search.after(Ok(()), Step::Descend);
        }
        let added = self.search.add(block.object.id, self.older, block.id.0, 1);
        self.search.after(added, Step::Skip)
    }

    fn hole(&self, block: &Visit<'_, Self>) {
        if !block.is_spill() {
            let (first, count) = self.range(block.level, block.id);
            let end = self.dnode.block_id_max.0.saturating_add(1);
            let count = first.saturating_add(count).min(end).saturating_sub(first);
            let added = self.search.add(block.object.id, self.older, first, count);
            self.search.after(added, Step::Skip);
        }
    }

    fn fault(&self, block: &Visit<'_, Self>, fault: Fault) -> Step {
        let error = of_fault(block.object.id, fault);
        self.search.after(Err(error), Step::Stop)
    }
}

fn is_new(pointer: &BlockPointer, created: Txg) -> bool {
    pointer.birth() > created
}

fn of_fault(object: ObjectId, fault: Fault) -> SendError {
    match fault {
        Fault::Read(error) => SendError::Block(error),
        fault => SendError::Invalid {
            object,
            reason: fault.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn entry(object: u64, block_id: u64, block_count: u64) -> RedactionEntry {
        RedactionEntry {
            object: ObjectId(object),
            block_id,
            block_count,
            block_sectors: 1,
        }
    }

    #[test]
    fn only_blocks_that_all_have_changed_are_listed() {
        let one = vec![entry(1, 0, 4), entry(2, 5, 1), entry(4, 0, 9)];
        let two = vec![
            entry(1, 2, 9),
            entry(3, 0, 1),
            entry(4, 1, 2),
            entry(4, 6, 1),
        ];
        let both = vec![entry(1, 2, 2), entry(4, 1, 2), entry(4, 6, 1)];
        let in_all = |lists: Vec<Vec<RedactionEntry>>| {
            let lists = lists.into_iter().map(Ok);
            changed_in_all(lists).unwrap()
        };
        assert_eq!(in_all(vec![one.clone(), two.clone()]), both);
        assert_eq!(in_all(vec![two, one.clone()]), both);
        assert_eq!(in_all(vec![one.clone(), vec![]]), []);
        assert_eq!(in_all(vec![one.clone()]), one);
        assert_eq!(in_all(vec![]), []);
    }

    /// The lists are made one after the other, and no more than are needed.
    #[test]
    fn a_list_is_made_when_the_one_before_it_was_used() {
        let made = Cell::new(0);
        let lists = |all: &[Vec<RedactionEntry>]| {
            made.set(0);
            let lists = all.iter().cloned().map(|list| {
                made.set(made.get() + 1);
                Ok(list)
            });
            changed_in_all(lists).unwrap().len()
        };
        let (one, other) = (vec![entry(1, 0, 4)], vec![entry(1, 4, 4)]);
        assert_eq!(lists(&[one.clone(), one.clone(), one.clone()]), 1);
        assert_eq!(made.get(), 3);
        assert_eq!(lists(&[one.clone(), other, one.clone(), one.clone()]), 0);
        assert_eq!(made.get(), 2);
        let failing = [Ok(one), Err(SendError::Locked)];
        let failed = changed_in_all(failing);
        assert!(matches!(failed, Err(SendError::Locked)), "{failed:?}");
    }
}
