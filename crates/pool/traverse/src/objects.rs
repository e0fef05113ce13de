//! What is below a block: blocks of pointers, and the objects of blocks of dnodes.

use crate::bookmark::{Bookmark, LEVEL_MAX, ROOT_LEVEL, first_data_block, slots_per_block};
use crate::roots::add_sources;
use crate::sides::{At, Pointers, Side};
use crate::traversal::{Below, Content, Flow, Order, Position, Source, Traversal};
use crate::tree::{Object, Tree};
use crate::visitor::{Fault, Step, Visitor, visit_of};
use millpond_env::sync::Arc;
use millpond_ondisk::{DecodeError, Dnode, ObjectId};
use std::collections::BTreeMap;
use std::ops::ControlFlow::{self, Break, Continue};

impl<V: Visitor + ?Sized> Traversal<'_, V> {
    /// The content of a position whose blocks were read; `None` if there is nothing.
    pub(crate) fn content(
        &self,
        object: &Arc<Object<V>>,
        position: Position,
        below: Below,
    ) -> ControlFlow<Option<Bookmark>, Option<Content<V>>> {
        let mut content = Content::new();
        let is_empty = matches!((&below.old, &below.new), (Pointers::None, Pointers::None));
        if is_empty && !below.is_closing {
            return Continue(None);
        }
        if is_empty {
            // Nothing but the block itself is left.
        } else if position.level == 0 {
            self.dnodes(object, &position, &below, &mut content)?;
        } else {
            let first = first_data_block(1, position.id, position.shift);
            content.sources.push_back(Source {
                object: Arc::clone(object),
                old: below.old,
                new: below.new,
                level: position.level.saturating_sub(1),
                next: first,
                end: first.saturating_add(1u64.checked_shl(position.shift).unwrap_or(0)),
                shift: position.shift,
                prefetched: 0,
            });
        }
        if below.is_closing {
            content.closing = Some(Box::new((Arc::clone(object), position)));
        }
        Continue(Some(content))
    }

    /// Compares two blocks of dnodes slot by slot.
    fn dnodes(
        &self,
        object: &Object<V>,
        position: &Position,
        below: &Below,
        content: &mut Content<V>,
    ) -> Flow {
        let per_block = object.dnode().map_or(32, |dnode| slots_per_block(dnode));
        let first = position.id.saturating_mul(per_block);
        let before = self.slots(object, position, first, Side::Old, &below.old, content)?;
        let mut before: BTreeMap<_, _> = before.into_iter().collect();
        let now = self.slots(object, position, first, Side::New, &below.new, content)?;
        for (id, dnode) in now {
            let was = before.remove(&id);
            self.object(&object.tree, id, was, Some(dnode), content)?;
        }
        for (id, dnode) in before {
            self.object(&object.tree, id, Some(dnode), None, content)?;
        }
        Continue(())
    }

    fn slots(
        &self,
        object: &Object<V>,
        position: &Position,
        first: u64,
        side: Side,
        pointers: &Pointers,
        content: &mut Content<V>,
    ) -> ControlFlow<Option<Bookmark>, Vec<(ObjectId, Arc<Dnode>)>> {
        let mut found = vec![];
        let at = match side {
            Side::Old => &position.old,
            Side::New => &position.new,
        };
        let (Pointers::Indirect(block, _), At::Pointer(pointer)) = (pointers, at) else {
            return Continue(found);
        };
        for (slot, bytes) in Dnode::in_block(&block.bytes) {
            let id = ObjectId(first.saturating_add(slot as u64));
            if self.resume.is_some_and(|resume| resume.is_after_object(id)) {
                continue;
            }
            let dnode = match Dnode::decode(bytes, block.endian) {
                // Its tree would contain this block.
                Ok(Some(_)) if id == ObjectId(0) => {
                    Err(DecodeError::new("dnode", "object 0 holds the dnodes", 0))
                }
                dnode => dnode,
            };
            match dnode {
                Ok(Some(mut dnode)) => {
                    if block.has_ciphertext {
                        dnode.keep_bonus_tail(bytes);
                    }
                    found.push((id, Arc::new(dnode)));
                }
                Ok(None) => {}
                Err(error) => {
                    let fault = Fault::Dnode {
                        object: id,
                        slot: slot as u64,
                        error,
                    };
                    let block = visit_of(object, position, pointer, side);
                    if self.visitor.fault(&block, fault) == Step::Stop {
                        if self.order.is_none() {
                            return Break(None);
                        }
                        // The objects before it come first.
                        content.stops_at = Some(self.before_object(id));
                        break;
                    }
                }
            }
        }
        Continue(found)
    }

    /// Where to resume if the traversal stops before an object, or before the rest of it.
    fn before_object(&self, object: ObjectId) -> Bookmark {
        let is_resumed = |from: &Bookmark| {
            object == ObjectId(0) || object <= from.object || from.level == ROOT_LEVEL
        };
        if let Some(from) = self.from.filter(is_resumed) {
            return from;
        }
        match self.order {
            // Above its tree, so that none of its blocks counts as visited.
            Some(Order::ParentsFirst) => Bookmark {
                object,
                level: LEVEL_MAX,
                block: 0,
            },
            _ => Bookmark {
                object: ObjectId(object.0.max(1)),
                level: 0,
                block: 0,
            },
        }
    }

    /// Adds the blocks of an object that exists on one or both sides.
    pub(crate) fn object(
        &self,
        tree: &Arc<Tree<V::Tree>>,
        id: ObjectId,
        old: Option<Arc<Dnode>>,
        new: Option<Arc<Dnode>>,
        content: &mut Content<V>,
    ) -> Flow {
        let is_past_stop = |stop: Bookmark| id >= stop.object;
        if old == new || content.stops_at.is_some_and(is_past_stop) {
            return Continue(());
        }
        let object = Arc::new(Object::<V> {
            tree: Arc::clone(tree),
            id,
            old: old.clone(),
            new: new.clone(),
            state: V::Object::default(),
        });
        match self.visitor.object(&object) {
            Step::Descend => {}
            Step::Skip => return Continue(()),
            Step::Stop => {
                content.stops_at = Some(self.before_object(id));
                return match self.order {
                    None => Break(None),
                    Some(_) => Continue(()),
                };
            }
        }
        // Trees with different indirect block sizes do not align. They belong to different objects that had
        // the same id and share no blocks, so each is traversed by itself.
        if let (Some(before), Some(now)) = (&old, &new)
            && before.pointers_shift() != now.pointers_shift()
            && (before.levels > 1 || now.levels > 1)
        {
            add_sources(&object, None, new, content);
            add_sources(&object, old, None, content);
        } else {
            add_sources(&object, old, new, content);
        }
        self.release(object);
        Continue(())
    }
}
