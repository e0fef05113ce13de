//! Where the traversal of an object set and of an object starts, and prefetch.

use crate::bookmark::{ROOT_LEVEL, Relation};
use crate::sides::{At, Pointers, Side};
use crate::traversal::{Content, Position, Source, Traversal};
use crate::tree::{Object, Tree};
use crate::visitor::{Fault, Step, Visit, Visitor, visit_of};
use millpond_block::{Block, BlockAddress, PooledBuf};
use millpond_env::sync::Arc;
use millpond_ondisk::{
    BlockId, BlockPointer, Dnode, IntentLogHeader, Level, ObjectId, ObjectSetPhys, SPILL_BLOCK_ID,
};
use std::ops::ControlFlow::{self, Break, Continue};

/// Count of blocks of metadata that a traversal in order requests before it needs them.
const PREFETCH_BLOCKS: u64 = 8;

/// A part of an object set that holds blocks, as its dnode says.
type Part = fn(&ObjectSetPhys) -> Option<&Dnode>;

/// In ascending order of their object ids.
const PARTS: [(ObjectId, Part); 4] = [
    (ObjectId(0), |phys| Some(&phys.meta_dnode)),
    (ObjectId::PROJECT_USED, |phys| phys.project_used.as_ref()),
    (ObjectId::GROUP_USED, |phys| phys.group_used.as_ref()),
    (ObjectId::USER_USED, |phys| phys.user_used.as_ref()),
];

/// What is below the block of an object set.
pub(crate) enum Root<V: Visitor + ?Sized> {
    Content(Content<V>),
    Log(Arc<Tree<V::Tree>>, Box<IntentLogHeader>),
}

impl<V: Visitor + ?Sized> Traversal<'_, V> {
    /// Visits the block of an object set, and passes what is below it to `push`.
    pub(crate) fn root(
        &self,
        tree: &Arc<Tree<V::Tree>>,
        push: &mut dyn FnMut(Root<V>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let stored = |pointer: &BlockPointer| !pointer.is_hole();
        let previous = tree.previous.filter(stored);
        let is_same = previous == Some(tree.root);
        let at = |pointer: Option<BlockPointer>| pointer.map_or(At::Nothing, At::Pointer);
        let is_wanted = stored(&tree.root) && Self::is_wanted(tree, &tree.root) && !is_same;
        let position = Position {
            object: 0,
            level: ROOT_LEVEL,
            id: 0,
            shift: 0,
            old: at(previous.filter(|_| !is_same)),
            new: at(is_wanted.then_some(tree.root)),
        };
        let object = Arc::new(Object::<V> {
            tree: Arc::clone(tree),
            id: ObjectId(0),
            old: None,
            new: None,
            state: V::Object::default(),
        });
        let relation = match self.from {
            Some(_) => Relation::Above,
            None => Relation::After,
        };
        let mut is_closing = false;
        let mut blocks: Vec<Visit<'_, V>> = vec![];
        for (at, side) in [(&position.old, Side::Old), (&position.new, Side::New)] {
            let At::Pointer(pointer) = at else { continue };
            let block = visit_of(&object, &position, pointer, side);
            match self.step(&block, relation, &mut is_closing) {
                Step::Stop => return Break(()),
                Step::Descend => blocks.push(block),
                Step::Skip => {}
            }
        }
        let (mut old, mut new) = (None, None);
        if !blocks.is_empty() {
            let Continue(found) = self.read(&blocks) else {
                return Break(());
            };
            for (block, content) in blocks.iter().zip(found) {
                let Some(content) = content else { continue };
                let phys = self.decode(block, &content)?;
                match block.side {
                    Side::Old => old = phys,
                    Side::New => new = phys,
                }
            }
        }
        drop(blocks);
        if tree.has_log {
            let phys = match &new {
                Some(phys) => Some(phys.clone()),
                None if is_wanted => None,
                None => self.unchanged(tree),
            };
            if let Some(phys) = phys {
                let header = IntentLogHeader::from_words(&phys.intent_log_header);
                push(Root::Log(Arc::clone(tree), Box::new(header)))?;
            }
        }
        let mut content = Content::new();
        for (id, part) in PARTS {
            let of = |phys: &Option<ObjectSetPhys>| {
                let dnode = phys.as_ref().and_then(part);
                dnode.cloned().map(Arc::new)
            };
            if let Break(_) = self.object(tree, id, of(&old), of(&new), &mut content) {
                return Break(());
            }
        }
        match is_closing {
            true => content.closing = Some(Box::new((object, position))),
            false => self.release(object),
        }
        push(Root::Content(content))
    }

    fn decode(
        &self,
        block: &Visit<'_, V>,
        content: &Block,
    ) -> ControlFlow<(), Option<ObjectSetPhys>> {
        match ObjectSetPhys::decode(&content.bytes, content.endian) {
            Ok(phys) => {
                if block.side == Side::New {
                    self.visitor.object_set(block, &phys);
                }
                Continue(Some(phys))
            }
            Err(error) => match self.visitor.fault(block, Fault::ObjectSet(error)) {
                Step::Stop => Break(()),
                Step::Descend | Step::Skip => Continue(None),
            },
        }
    }

    /// The block of an object set of which nothing else is visited. It may have a log nevertheless: the log of a
    /// head is not in the snapshot that has the same blocks.
    fn unchanged(&self, tree: &Tree<V::Tree>) -> Option<ObjectSetPhys> {
        let address = BlockAddress::object_set(tree.dataset);
        let read = || self.store.read(&tree.root, address, tree.key.as_ref());
        let block = (!tree.root.is_hole()).then(read)?.ok()?;
        ObjectSetPhys::decode(&block.bytes, block.endian).ok()
    }

    /// Requests the blocks of metadata that come next.
    pub(crate) fn prefetch(&self, content: &mut Content<V>) {
        if !V::KEEPS_BLOCKS || self.store.ahead_bytes_max() == 0 {
            return;
        }
        for source in content.sources.iter_mut().take(2) {
            let is_data = source.level == 0 && !source.object.holds_dnodes();
            if is_data || matches!(source.new, Pointers::Spill(_)) {
                continue;
            }
            let end = source.end.min(source.next.saturating_add(PREFETCH_BLOCKS));
            let tree = &source.object.tree;
            for id in source.next.max(source.prefetched)..end {
                source.prefetched = id.saturating_add(1);
                let At::Pointer(pointer) = source.new.at(source.level, id, false) else {
                    continue;
                };
                let is_stored = !pointer.is_hole() && !pointer.is_embedded();
                // What was visited before may be free by now.
                let is_before = self.resume.is_some_and(|resume| {
                    let (object, level) = (source.object.id, source.level);
                    resume.relation(object, source.shift, level, id) == Relation::Before
                });
                if !is_stored || is_before || !Self::is_wanted(tree, &pointer) {
                    continue;
                }
                let address = BlockAddress {
                    dataset: tree.dataset,
                    object: source.object.id,
                    level: Level(source.level),
                    block: BlockId(id),
                };
                let (store, key) = (Arc::clone(self.store), tree.key.clone());
                self.store.queue_prefetch(pointer.psize_bytes(), move || {
                    let buffer = PooledBuf::default();
                    let _ = store.prefetch_block(&pointer, address, key.as_ref(), buffer);
                });
            }
        }
    }
}

/// Adds the blocks of an object.
pub(crate) fn add_sources<V: Visitor + ?Sized>(
    object: &Arc<Object<V>>,
    old: Option<Arc<Dnode>>,
    new: Option<Arc<Dnode>>,
    content: &mut Content<V>,
) {
    let levels = |dnode: &Option<Arc<Dnode>>| dnode.as_ref().map_or(0, |dnode| dnode.levels);
    let count =
        |dnode: &Option<Arc<Dnode>>| dnode.as_ref().map_or(1, |dnode| dnode.block_pointers.len());
    let shift = (new.as_ref().or(old.as_ref())).map_or(0, |dnode| dnode.pointers_shift());
    let source = |old, new, level, next, end| Source {
        object: Arc::clone(object),
        old,
        new,
        level,
        next,
        end,
        shift,
        prefetched: 0,
    };
    let has_spill =
        |dnode: &Option<Arc<Dnode>>| (dnode.as_ref()).is_some_and(|dnode| dnode.spill.is_some());
    let spill = (has_spill(&old) || has_spill(&new)).then(|| {
        let side =
            |dnode: &Option<Arc<Dnode>>| dnode.clone().map_or(Pointers::None, Pointers::Spill);
        let id = SPILL_BLOCK_ID.0;
        source(side(&old), side(&new), 0, id, id.saturating_add(1))
    });
    let level = levels(&old).max(levels(&new)).saturating_sub(1);
    let end = count(&old).max(count(&new)).max(1) as u64;
    let side = |dnode: Option<Arc<Dnode>>| dnode.map_or(Pointers::None, Pointers::Dnode);
    content
        .sources
        .push_back(source(side(old), side(new), level, 0, end));
    content.sources.extend(spill);
}
