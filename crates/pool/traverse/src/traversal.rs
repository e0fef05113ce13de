//! The traversal itself.

use crate::bookmark::{Bookmark, Relation, Resume, first_data_block, slots_per_block};
use crate::budget::Budget;
use crate::log::log;
use crate::progress::Progress;
use crate::roots::Root;
use crate::sides::{At, Pointers, Side};
use crate::stack::Stack;
use crate::tree::{Object, Tree};
use crate::visitor::{Step, Visit, Visitor, visit_of};
use millpond_block::{Block, BlockStore};
use millpond_env::sync::Arc;
use millpond_env::thread;
use millpond_ondisk::{BlockPointer, Dnode, ObjectId, Txg};
use std::collections::VecDeque;
use std::ops::ControlFlow::{self, Break, Continue};

/// Count of blocks that a thread visits at once. The rest stays available to other threads.
const BATCH_BLOCKS: usize = 16;
/// Count of positions that a thread looks at for them: most positions of a sparse file are holes.
const BATCH_POSITIONS: usize = 1024;

/// The order of a traversal in one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// A block comes before the blocks below it.
    ParentsFirst,
    /// A block comes after the blocks below it.
    ChildrenFirst,
}

/// How a traversal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Everything was visited.
    Complete,
    /// The visitor stopped it, or it was cancelled. A traversal in order can resume at the bookmark; `None`
    /// is the start.
    Stopped(Option<Bookmark>),
    /// The trees have more bytes of metadata than [`Traversal::metadata_bytes_max`] allows. A traversal in order
    /// can resume at the bookmark; `None` is the start.
    OverBudget(Option<Bookmark>),
}

/// Other work for the threads of a parallel traversal.
pub type Job<'a> = Box<dyn FnOnce() + Send + 'a>;

/// A traversal of object sets.
pub struct Traversal<'a, V: Visitor + ?Sized> {
    pub(crate) store: &'a Arc<BlockStore>,
    pub(crate) visitor: &'a V,
    progress: Option<&'a Progress>,
    budget: Budget,
    /// `None` for any order.
    pub(crate) order: Option<Order>,
    /// Where it begins.
    pub(crate) from: Option<Bookmark>,
    pub(crate) resume: Option<Resume>,
}

/// The blocks of one object at one level, from `next` up to `end`.
pub(crate) struct Source<V: Visitor + ?Sized> {
    pub(crate) object: Arc<Object<V>>,
    pub(crate) old: Pointers,
    pub(crate) new: Pointers,
    pub(crate) level: u8,
    pub(crate) next: u64,
    pub(crate) end: u64,
    /// The binary logarithm of the count of pointers in an indirect block of this tree.
    pub(crate) shift: u32,
    /// Prefetch was requested for the blocks before this one.
    pub(crate) prefetched: u64,
}

/// What is below a block, in order.
pub(crate) struct Content<V: Visitor + ?Sized> {
    pub(crate) sources: VecDeque<Source<V>>,
    /// The block itself, if it is visited after its content.
    pub(crate) closing: Option<Box<(Arc<Object<V>>, Position)>>,
    /// A fault after the last source, at which the visitor wants to stop.
    pub(crate) stops_at: Option<Bookmark>,
}

pub(crate) struct Position {
    /// Index of its object in the batch.
    pub(crate) object: usize,
    pub(crate) level: u8,
    pub(crate) id: u64,
    /// That of its source.
    pub(crate) shift: u32,
    pub(crate) old: At,
    pub(crate) new: At,
}

struct Batch<V: Visitor + ?Sized> {
    objects: Vec<Arc<Object<V>>>,
    positions: Vec<Position>,
}

/// What is below a position.
pub(crate) struct Below {
    pub(crate) old: Pointers,
    pub(crate) new: Pointers,
    /// Whether it is visited after its content.
    pub(crate) is_closing: bool,
}

enum Work<'a, V: Visitor + ?Sized> {
    Tree(Arc<Tree<V::Tree>>),
    Below(Root<V>),
    Job(Job<'a>),
}

pub(crate) type Flow = ControlFlow<Option<Bookmark>>;

impl<'a, V: Visitor + ?Sized> Traversal<'a, V> {
    /// A traversal that calls `visitor`.
    pub fn new(store: &'a Arc<BlockStore>, visitor: &'a V) -> Self {
        Self {
            store,
            visitor,
            progress: None,
            budget: Budget::new(u64::MAX),
            order: None,
            from: None,
            resume: None,
        }
    }
    /// Reports progress, and can be cancelled.
    #[must_use]
    pub fn progress(mut self, progress: &'a Progress) -> Self {
        self.progress = Some(progress);
        self
    }
    /// Ends the traversal when it has read this many bytes of metadata, as they are stored.
    #[must_use]
    pub fn metadata_bytes_max(mut self, bytes: u64) -> Self {
        self.budget = Budget::new(bytes);
        self
    }

    /// Traverses trees in any order, with `threads` threads including this one. Jobs begin first, then the last
    /// tree.
    pub fn run_parallel(
        self,
        trees: Vec<Tree<V::Tree>>,
        jobs: Vec<Job<'_>>,
        threads: usize,
    ) -> Outcome
    where
        V: Sync,
        V::Tree: Send + Sync,
        V::Object: Send + Sync,
    {
        let trees = trees.into_iter().map(|tree| Work::Tree(Arc::new(tree)));
        let stack = Stack::new(trees.chain(jobs.into_iter().map(Work::Job)).collect());
        let run = || {
            stack.work(|work| {
                if self.work(work, &stack).is_break() {
                    stack.stop();
                }
            });
        };
        if threads < 2 || thread::is_alone() {
            run();
        } else {
            thread::scope(|scope| {
                for _ in 1..threads {
                    scope.spawn(run);
                }
                run();
            });
        }
        match stack.is_stopped() {
            false => Outcome::Complete,
            true => self.stopped(None),
        }
    }

    /// Traverses a tree in this thread, from a bookmark or the start.
    ///
    /// If the order is parents first, a block at whose [`Fault`] the visitor stops, or for which the budget does
    /// not suffice, is visited again by the traversal that resumes there.
    pub fn run_in_order(
        mut self,
        tree: Tree<V::Tree>,
        order: Order,
        from: Option<Bookmark>,
    ) -> Outcome {
        self.order = Some(order);
        let from = from.filter(|from| order == Order::ChildrenFirst || *from != Bookmark::ROOT);
        self.from = from;
        let tree = Arc::new(tree);
        let mut stack = vec![];
        let outcome = self.root(&tree, &mut |below| match below {
            Root::Content(content) => {
                stack.push(content);
                Continue(())
            }
            Root::Log(tree, header) if from.is_none() => {
                log(self.store, self.visitor, &tree, &header)
            }
            Root::Log(..) => Continue(()),
        });
        if let Some(content) = stack.first()
            && let Some(dnodes) = content
                .sources
                .front()
                .and_then(|source| source.object.dnode())
        {
            self.resume = from.map(|from| Resume::new(from, dnodes));
        }
        match outcome.is_break() {
            true => self.stopped(from),
            false => self.run_contents(stack),
        }
    }

    /// Traverses the blocks of one object, parents first. `tree` says whose it is; its root is not visited.
    pub fn run_object(mut self, tree: Tree<V::Tree>, id: ObjectId, dnode: &Arc<Dnode>) -> Outcome {
        self.order = Some(Order::ParentsFirst);
        let mut content = Content::new();
        let new = Some(Arc::clone(dnode));
        match self.object(&Arc::new(tree), id, None, new, &mut content) {
            Continue(()) => self.run_contents(vec![content]),
            Break(place) => self.stopped(place),
        }
    }

    fn stopped(&self, place: Option<Bookmark>) -> Outcome {
        match self.budget.is_spent() {
            true => Outcome::OverBudget(place),
            false => Outcome::Stopped(place),
        }
    }

    fn work(&self, work: Work<'_, V>, stack: &Stack<Work<'_, V>>) -> ControlFlow<()> {
        match work {
            Work::Tree(tree) => self.root(&tree, &mut |below| {
                stack.push([Work::Below(below)]);
                Continue(())
            }),
            Work::Below(Root::Log(tree, header)) => log(self.store, self.visitor, &tree, &header),
            Work::Job(job) => {
                job();
                Continue(())
            }
            Work::Below(Root::Content(mut content)) => {
                let batch = self.take(&mut content, BATCH_BLOCKS);
                if !content.sources.is_empty() {
                    stack.push([Work::Below(Root::Content(content))]);
                }
                let flow = self.batch(batch, &mut |content| {
                    stack.push([Work::Below(Root::Content(content))])
                });
                match flow {
                    Continue(()) => Continue(()),
                    Break(_) => Break(()),
                }
            }
        }
    }

    fn run_contents(&self, mut stack: Vec<Content<V>>) -> Outcome {
        while let Some(content) = stack.last_mut() {
            let batch = self.take(content, 1);
            let flow = if batch.positions.is_empty() {
                match content.sources.is_empty() {
                    true => stack
                        .pop()
                        .map_or(Continue(()), |content| self.close(content)),
                    false => Continue(()),
                }
            } else {
                self.prefetch(content);
                self.batch(batch, &mut |content| stack.push(content))
            };
            if let Break(place) = flow {
                return self.stopped(place);
            }
        }
        Outcome::Complete
    }

    /// Ends the content of a block.
    fn close(&self, content: Content<V>) -> Flow {
        if let Some(place) = content.stops_at {
            return Break(Some(place));
        }
        let Some(closing) = content.closing else {
            return Continue(());
        };
        let (object, position) = *closing;
        if let At::Pointer(pointer) = &position.new {
            let block = visit_of(&object, &position, pointer, Side::New);
            if self.visit(&block) == Step::Stop {
                return Break(Some(Bookmark::at(block.address())));
            }
        }
        self.release(object);
        Continue(())
    }

    fn visit(&self, block: &Visit<'_, V>) -> Step {
        let is_cancelled = self.progress.is_some_and(Progress::is_cancelled);
        // What is below may be anything if the view expired.
        if is_cancelled || self.store.has_expired() {
            return Step::Stop;
        }
        if let (Some(progress), Side::New) = (self.progress, block.side) {
            progress.add_block(block.pointer.asize_bytes());
        }
        self.visitor.visit(block)
    }

    /// Releases a reference to an object. After the last one all its blocks were visited.
    pub(crate) fn release(&self, object: Arc<Object<V>>) {
        if let Some(object) = Arc::into_inner(object) {
            self.visitor.object_done(object);
        }
    }

    /// Whether a block, or one below it, was born after [`Tree::born_after`].
    pub(crate) fn is_wanted(tree: &Tree<V::Tree>, pointer: &BlockPointer) -> bool {
        let Some(after) = tree.born_after else {
            return true;
        };
        match pointer.is_hole() {
            true if pointer.birth() == Txg(0) => V::SEES_ALL_HOLES,
            true => pointer.birth() > after,
            false => pointer.allocation_birth() > after,
        }
    }

    /// Takes the next positions that have something to visit.
    fn take(&self, content: &mut Content<V>, max: usize) -> Batch<V> {
        let mut objects = Vec::<Arc<Object<V>>>::with_capacity(max);
        let mut positions = Vec::with_capacity(max);
        let mut left = BATCH_POSITIONS;
        while left > 0
            && positions.len() < max
            && let Some(source) = content.sources.front_mut()
        {
            if source.next >= source.end {
                if let Some(source) = content.sources.pop_front() {
                    self.release(source.object);
                }
                continue;
            }
            let id = source.next;
            source.next = source.next.saturating_add(1);
            left -= 1;
            let old = source.old.at(source.level, id, V::SEES_ALL_HOLES);
            let mut new = source.new.at(source.level, id, V::SEES_ALL_HOLES);
            match (&old, &new) {
                (At::Nothing, At::Nothing) => continue,
                (At::Pointer(old), At::Pointer(new)) if old == new => continue,
                (_, At::Pointer(pointer)) if !Self::is_wanted(&source.object.tree, pointer) => {
                    if let At::Nothing = old {
                        continue;
                    }
                    new = At::Nothing;
                }
                _ => {}
            }
            if !(objects.last()).is_some_and(|last| Arc::ptr_eq(last, &source.object)) {
                objects.push(Arc::clone(&source.object));
            }
            positions.push(Position {
                object: objects.len().saturating_sub(1),
                level: source.level,
                id,
                shift: source.shift,
                old,
                new,
            });
        }
        Batch { objects, positions }
    }

    /// Visits the positions of a batch, reads their blocks, and passes their content to `push`.
    fn batch(&self, batch: Batch<V>, push: &mut dyn FnMut(Content<V>)) -> Flow {
        let Batch { objects, positions } = batch;
        let mut numbers = Vec::with_capacity(positions.len());
        let mut blocks: Vec<Visit<'_, V>> = Vec::with_capacity(positions.len());
        let mut below: Vec<Option<Below>> = Vec::with_capacity(positions.len());
        for (number, position) in positions.iter().enumerate() {
            let Some(object) = objects.get(position.object) else {
                continue;
            };
            let want = &mut |block| {
                numbers.push(number);
                blocks.push(block);
            };
            below.push(self.position(object, position, want)?);
        }
        if !blocks.is_empty() {
            let found = self.read(&blocks)?;
            for ((number, block), content) in numbers.into_iter().zip(&blocks).zip(found) {
                let (Some(Some(below)), Some(position)) =
                    (below.get_mut(number), positions.get(number))
                else {
                    continue;
                };
                if let (Some(content), true) = (content, block.leads_on()) {
                    let first = first_data_block(1, block.id.0, position.shift);
                    let pointers = Pointers::Indirect(content, first);
                    match block.side {
                        Side::Old => below.old = pointers,
                        Side::New => below.new = pointers,
                    }
                }
            }
        }
        drop(blocks);
        for (position, below) in positions.into_iter().zip(below) {
            let (Some(below), Some(object)) = (below, objects.get(position.object)) else {
                continue;
            };
            if let Some(content) = self.content(object, position, below)? {
                push(content);
            }
        }
        objects.into_iter().for_each(|object| self.release(object));
        Continue(())
    }

    /// Visits a position. Returns what is below it, apart from the blocks that it passes to `want`.
    fn position<'p>(
        &self,
        object: &'p Object<V>,
        position: &'p Position,
        want: &mut dyn FnMut(Visit<'p, V>),
    ) -> ControlFlow<Option<Bookmark>, Option<Below>> {
        let relation = match &self.resume {
            None => Relation::After,
            Some(resume) => resume.relation(object.id, position.shift, position.level, position.id),
        };
        let is_children_first = self.order == Some(Order::ChildrenFirst);
        if relation == Relation::Before || (relation == Relation::Below && is_children_first) {
            return Continue(None);
        }
        let mut below = Below {
            old: Pointers::None,
            new: Pointers::None,
            is_closing: false,
        };
        let mut is_empty = true;
        let sides = [
            (&position.old, Side::Old, &object.old),
            (&position.new, Side::New, &object.new),
        ];
        for (at, side, dnode) in sides {
            let pointer = match at {
                At::Nothing => continue,
                At::Above => {
                    let pointers = dnode.clone().map_or(Pointers::None, Pointers::Dnode);
                    match side {
                        Side::Old => below.old = pointers,
                        Side::New => below.new = pointers,
                    }
                    is_empty = false;
                    continue;
                }
                At::Pointer(pointer) => pointer,
            };
            let block = visit_of(object, position, pointer, side);
            if pointer.is_hole() {
                if relation != Relation::Above {
                    self.visitor.hole(&block);
                }
                continue;
            }
            let step = self.step(&block, relation, &mut below.is_closing);
            match step {
                Step::Stop => return Break(Some(self.bookmark(&block, relation))),
                Step::Descend if self.charge(&block) => {
                    is_empty = false;
                    want(block);
                }
                Step::Descend => return Break(Some(self.bookmark(&block, relation))),
                Step::Skip => {}
            }
        }
        let is_empty = is_empty && !below.is_closing;
        Continue((!is_empty).then_some(below))
    }

    /// Visits a block, and decides whether to read it.
    pub(crate) fn step(
        &self,
        block: &Visit<'_, V>,
        relation: Relation,
        is_closing: &mut bool,
    ) -> Step {
        let is_read = block.leads_on() || V::READS_DATA;
        let max = block.object.tree.born_max;
        // A clone is as old as the block that it shares.
        let is_young = max.is_some_and(|max| block.pointer.physical_birth() > max);
        if self.order == Some(Order::ChildrenFirst) {
            let step = self.visitor.accept(block);
            if step == Step::Stop {
                return step;
            }
            if block.leads_on() {
                *is_closing = !is_young;
                return match relation {
                    Relation::At => Step::Skip,
                    _ => step,
                };
            }
            return match is_young {
                false if self.visit(block) == Step::Stop => Step::Stop,
                false if is_read => step,
                _ => Step::Skip,
            };
        }
        let step = match is_young || relation == Relation::Above {
            true => Step::Descend,
            false => self.visit(block),
        };
        match step {
            Step::Descend if is_read && (block.leads_on() || !is_young) => {
                self.visitor.accept(block)
            }
            Step::Descend => Step::Skip,
            step => step,
        }
    }

    /// Where to resume if the traversal stops before a block.
    fn bookmark(&self, block: &Visit<'_, V>, relation: Relation) -> Bookmark {
        if let (Relation::Above, Some(resume)) = (relation, &self.resume) {
            return resume.bookmark;
        }
        if self.order != Some(Order::ChildrenFirst) {
            return Bookmark::at(block.address());
        }
        // Nothing below it was visited: its first object or data block stands for it.
        let first = first_data_block(block.level.0, block.id.0, block.object.pointers_shift());
        match block.object.dnode() {
            Some(dnode) if block.leads_on() && block.object.holds_dnodes() => Bookmark {
                object: ObjectId(first.saturating_mul(slots_per_block(dnode)).max(1)),
                level: 0,
                block: 0,
            },
            _ => Bookmark {
                object: block.object.id,
                level: 0,
                block: first,
            },
        }
    }

    /// Charges a block to the budget, if it is metadata. What is embedded costs memory only.
    fn charge(&self, block: &Visit<'_, V>) -> bool {
        let bytes = match block.pointer.is_embedded() {
            true => block.pointer.lsize_bytes(),
            false => block.pointer.psize_bytes(),
        };
        !block.leads_on() || self.budget.charge(bytes).is_ok()
    }

    pub(crate) fn read(
        &self,
        blocks: &[Visit<'_, V>],
    ) -> ControlFlow<Option<Bookmark>, Vec<Option<Arc<Block>>>> {
        let mut found = vec![None; blocks.len()];
        let flow = self
            .visitor
            .read(self.store, blocks, &mut |number, content| {
                if let (Some(block), Some(place)) = (blocks.get(number), found.get_mut(number)) {
                    self.visitor.content(block, &content);
                    *place = Some(content);
                }
            });
        match (flow, blocks.first()) {
            (Break(()), Some(block)) => {
                let relation = self.resume.map_or(Relation::After, |resume| {
                    let shift = block.object.pointers_shift();
                    resume.relation(block.object.id, shift, block.level.0, block.id.0)
                });
                Break(Some(self.bookmark(block, relation)))
            }
            _ => Continue(found),
        }
    }
}

impl<V: Visitor + ?Sized> Content<V> {
    pub(crate) fn new() -> Self {
        Self {
            sources: VecDeque::new(),
            closing: None,
            stops_at: None,
        }
    }
}
