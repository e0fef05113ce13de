//! The walk over all trees of blocks, each dataset side by side with the one before it.
//!
//! Positions at which both have the same pointer are passed over with all that is below them, so each
//! block is met once in the dataset in which it was born, and once more in the one in which it died.
//! Unfinished work lies on a stack shared by all threads, last in, first out: the walk goes deep before it
//! goes wide. It holds at most two indirect blocks a level for each thread, and the two trees' dnodes of
//! the blocks under way.

use super::finding::{Finding, FindingKind};
use super::space::{Claim, Space};
use super::sums::{Ratios, Sums, is_block};
use super::uses::Uses;
use super::{CheckProgress, Findings};
use crate::verify::Stack;
use millpond_block::{Block, BlockAddress, BlockStore, Topology};
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex};
use millpond_object::BlockError;
use millpond_ondisk::{
    BlockId, BlockPointer, DNODE_SLOT_BYTES, Dnode, Dva, Level, ObjectId, ObjectSetPhys,
    ObjectType, SPILL_BLOCK_ID, Txg, VdevId,
};
use std::collections::{BTreeMap, HashMap};

/// Positions taken at a time, so that the rest is there for other threads.
const POSITIONS_AT_ONCE: u64 = 16;
/// Deduplicated and cloned blocks that are remembered; beyond that repeats are not told from double
/// allocations.
const SHARED_MAX: usize = 1 << 21;

/// A dataset to be walked, and where it begins.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    /// How findings call it; empty for the MOS.
    pub(super) name: String,
    /// Its object in the MOS; 0 for the MOS.
    pub(super) dataset: u64,
    /// Its object set.
    pub(super) root: BlockPointer,
    /// The object set of the dataset before it; a hole without one.
    pub(super) previous_root: BlockPointer,
    /// Blocks born up to here are the previous one's.
    pub(super) born_after: Txg,
    /// Blocks born after this belong to this clone, not to its origin.
    pub(super) origin_txg: Txg,
    /// What was born after this and died here only the previous dataset had.
    pub(super) unique_after: Txg,
}

/// What was counted in one tree.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counted {
    /// Blocks that the previous dataset does not have.
    pub(super) born: Sums,
    /// Blocks that only the previous one has.
    pub(super) dead: Sums,
    /// Of the dead ones, those born after the origin.
    pub(super) dead_own: Sums,
    /// Of the dead ones, those that only the previous one had.
    pub(super) dead_unique: Sums,
    /// Set when something could not be read: the sums lack what is below.
    pub(super) is_partial: bool,
    /// What its blocks use of the pool's features.
    pub(super) uses: Uses,
}

pub(super) struct Tally {
    pub(super) tree: Tree,
    pub(super) counted: Mutex<Counted>,
}

/// One side of a pair of trees, seen from one level.
#[derive(Clone)]
enum Side {
    Empty,
    /// The pointers of a dnode, or what is above them.
    Dnode(Arc<Dnode>),
    /// An indirect block, with the number of its first pointer.
    Indirect(Arc<Block>, u64),
}

/// What is at a position of one side.
enum At {
    Nothing,
    /// Higher than the tree reaches; it begins further down.
    Above,
    Pointer(BlockPointer),
}

impl Side {
    fn at(&self, level: u8, id: u64) -> At {
        let pointer = match self {
            Self::Empty => None,
            Self::Indirect(block, first) => id
                .checked_sub(*first)
                .and_then(|slot| usize::try_from(slot).ok()?.checked_mul(128))
                .and_then(|at| block.bytes.get(at..at.checked_add(128)?))
                .and_then(|bytes| BlockPointer::decode(bytes, block.endian).ok()),
            Self::Dnode(dnode) => {
                let top = dnode.levels.saturating_sub(1);
                if level > top {
                    return if id == 0 { At::Above } else { At::Nothing };
                }
                let slot = usize::try_from(id).unwrap_or(usize::MAX);
                dnode.block_pointers.get(slot).copied()
            }
        };
        match pointer {
            Some(pointer) if !pointer.is_hole() || pointer.birth() != Txg(0) => {
                At::Pointer(pointer)
            }
            _ => At::Nothing,
        }
    }
}

/// An object with both its states.
struct Owner {
    tally: Arc<Tally>,
    object: u64,
    old: Option<Arc<Dnode>>,
    new: Option<Arc<Dnode>>,
    counted: Mutex<Counted>,
}

impl Owner {
    fn holds_dnodes(&self) -> bool {
        self.object == 0
    }
    fn shift(&self) -> u32 {
        let dnode = self.new.as_ref().or(self.old.as_ref());
        dnode.map_or(0, |dnode| dnode.pointers_shift())
    }
}

pub(super) enum Work<'a> {
    Root(Arc<Tally>),
    Positions(Positions),
    /// Something for one thread.
    Other(Box<dyn FnOnce(&Walk<'_>) + Send + 'a>),
}

/// Positions of a pair of trees at one level, from `next` up to `end`.
pub(super) struct Positions {
    owner: Arc<Owner>,
    old: Side,
    new: Side,
    level: u8,
    next: u64,
    end: u64,
}

/// Who owned a disputed range.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Holder {
    pub(super) dataset: String,
    pub(super) object: u64,
    pub(super) words: String,
}

/// What a second walk looks for.
#[derive(Default)]
pub(super) struct Watch {
    pub(super) ranges: Mutex<Watched>,
}

/// Ranges by vdev and first byte: the byte behind the last, and who claims some of it.
pub(super) type Watched = BTreeMap<(VdevId, u64), (u64, Vec<Holder>)>;

/// A disputed range has at most this many owners worth naming.
const HOLDERS_MAX: usize = 8;

impl Watch {
    fn look(&self, dva: &Dva, holder: &dyn Fn() -> Holder) {
        let (start, end) = (
            dva.offset_bytes,
            dva.offset_bytes.saturating_add(dva.asize_bytes),
        );
        let mut ranges = self.ranges.lock();
        for ((vdev, from), (to, holders)) in ranges.range_mut((dva.vdev, 0)..=(dva.vdev, end)) {
            let overlaps = *vdev == dva.vdev && *from < end && start < *to;
            if overlaps && holders.len() < HOLDERS_MAX {
                holders.push(holder());
            }
        }
    }
}

/// Figures of all trees.
#[derive(Debug, Default)]
pub(super) struct Figures {
    pub(super) pointers: AtomicU64,
    pub(super) embedded: AtomicU64,
    pub(super) logical: AtomicU64,
    pub(super) physical: AtomicU64,
    pub(super) allocated: AtomicU64,
    pub(super) shared: AtomicU64,
    pub(super) gangs: AtomicU64,
}

/// The walk's shared state.
pub(super) struct Walk<'a> {
    pub(super) store: &'a BlockStore,
    pub(super) topology: Arc<Topology>,
    pub(super) space: &'a Space,
    pub(super) ratios: &'a Ratios,
    pub(super) findings: &'a Findings<'a>,
    pub(super) progress: &'a CheckProgress,
    pub(super) stack: Stack<Work<'a>>,
    /// References of shared blocks, by first address.
    pub(super) shared: &'a Mutex<HashMap<(u32, u64), u64>>,
    /// Whether a block at this place may have been cloned.
    pub(super) is_cloned: &'a (dyn Fn(&BlockPointer) -> bool + Sync),
    pub(super) synced: Txg,
    pub(super) figures: &'a Figures,
    /// Set for a second walk that only looks for owners of ranges.
    pub(super) watch: Option<&'a Watch>,
    pub(super) charged_bytes: AtomicU64,
    pub(super) charged_max: u64,
    pub(super) gave_up: AtomicBool,
}

impl Walk<'_> {
    /// Works until all is done. Called by each thread.
    pub(super) fn run(&self) {
        while let Some(work) = self.stack.take() {
            match work {
                Work::Root(tally) => self.root(&tally),
                Work::Positions(positions) => self.positions(positions),
                Work::Other(body) => body(self),
            }
            self.stack.finish();
        }
    }

    fn tell(&self, finding: Finding) {
        if self.watch.is_none() {
            self.findings.add(finding);
        }
    }
    fn bad(&self, tally: &Tally, object: u64, detail: String) {
        let finding = Finding::new(FindingKind::BadPointer, detail);
        self.tell(finding.of(&tally.tree.name).object(object));
    }

    fn root(&self, tally: &Arc<Tally>) {
        let tree = &tally.tree;
        let (old, new) = (tree.previous_root, tree.root);
        if old == new || (old.is_hole() && new.is_hole()) {
            return;
        }
        let owner = Owner {
            tally: Arc::clone(tally),
            object: 0,
            old: None,
            new: None,
            counted: Mutex::default(),
        };
        if is_block(&old) {
            self.died(&owner, &old);
        }
        if is_block(&new) {
            if new.object_type() != ObjectType::OBJECT_SET || new.level().0 != 0 {
                self.bad(tally, 0, "its pointer is not one to an object set".into());
                tally.counted.lock().is_partial = true;
            }
            self.was_born(&owner, &new, Level(0), BlockId(0));
        }
        let add = |other: &Counted| add_counted(&mut tally.counted.lock(), other);
        add(&owner.counted.lock());
        let (old, new) = (self.object_set(tally, &old), self.object_set(tally, &new));
        if let Some(new) = &new {
            let fills = new.meta_dnode.block_pointers.iter().map(fill_of);
            let fill = fills.fold(0, u64::wrapping_add);
            if fill != tree.root.fill() {
                let detail = format!(
                    "the object set's pointer counts {} objects, its dnodes' pointers {fill}",
                    tree.root.fill()
                );
                let finding = Finding::new(FindingKind::FillCount, detail);
                self.tell(finding.of(&tree.name).object(0));
            }
        }
        type Part = fn(&ObjectSetPhys) -> Option<&Dnode>;
        let parts: [(u64, Part); 4] = [
            (u64::MAX - 2, |phys| phys.project_used.as_ref()),
            (u64::MAX - 1, |phys| phys.group_used.as_ref()),
            (u64::MAX, |phys| phys.user_used.as_ref()),
            (0, |phys| Some(&phys.meta_dnode)),
        ];
        for (object, part) in parts {
            let of =
                |phys: &Option<ObjectSetPhys>| phys.as_ref().and_then(part).cloned().map(Arc::new);
            self.object(tally, object, of(&old), of(&new));
        }
    }

    fn object_set(&self, tally: &Tally, root: &BlockPointer) -> Option<ObjectSetPhys> {
        if !is_block(root) {
            return None;
        }
        let address = BlockAddress::object_set(tally.tree.dataset);
        let block = self.read(tally, root, address)?;
        match ObjectSetPhys::decode(&block.bytes, block.endian) {
            Ok(phys) => Some(phys),
            Err(error) => {
                let finding = Finding::new(FindingKind::Unreadable, error.to_string());
                self.tell(finding.of(&tally.tree.name).object(0));
                tally.counted.lock().is_partial = true;
                None
            }
        }
    }

    /// Reads a block of metadata; tells if that cannot be done.
    fn read(
        &self,
        tally: &Tally,
        pointer: &BlockPointer,
        address: BlockAddress,
    ) -> Option<Arc<Block>> {
        // Each block of metadata is met twice at most, so all cannot be larger than twice the devices.
        let bytes = pointer.psize_bytes().saturating_mul(2);
        let charged = self.charged_bytes.fetch_add(bytes, Ordering::Relaxed);
        if charged.saturating_add(bytes) > self.charged_max {
            if !self.gave_up.swap(true, Ordering::Relaxed) {
                let detail = "the pool's pointers claim more than fits on its devices";
                self.tell(Finding::new(FindingKind::BadPointer, detail));
                self.stack.stop();
            }
            return None;
        }
        match self.store.read(pointer, address, None) {
            Ok(block) => Some(block),
            Err(error) => {
                self.unreadable(tally, &error);
                None
            }
        }
    }

    fn unreadable(&self, tally: &Tally, error: &BlockError) {
        let finding = Finding::new(FindingKind::Unreadable, error.to_string());
        let object = error.address().object.0;
        self.tell(finding.of(&tally.tree.name).object(object));
        tally.counted.lock().is_partial = true;
    }

    /// Begins with an object that both, or one of both, have.
    fn object(
        &self,
        tally: &Arc<Tally>,
        object: u64,
        old: Option<Arc<Dnode>>,
        new: Option<Arc<Dnode>>,
    ) {
        if old == new {
            return;
        }
        // Where a number was given to another object, nothing is shared; other shapes do not align.
        if let (Some(before), Some(now)) = (&old, &new)
            && before.pointers_shift() != now.pointers_shift()
            && (before.levels > 1 || now.levels > 1)
        {
            let both = Arc::new(Owner {
                tally: Arc::clone(tally),
                object,
                old,
                new,
                counted: Mutex::default(),
            });
            for (old, new) in [(None, both.new.clone()), (both.old.clone(), None)] {
                self.sides(&both, old, new);
            }
            self.release(both);
            return;
        }
        let owner = Arc::new(Owner {
            tally: Arc::clone(tally),
            object,
            old,
            new,
            counted: Mutex::default(),
        });
        let (old, new) = (owner.old.clone(), owner.new.clone());
        self.sides(&owner, old, new);
        self.release(owner);
    }

    fn sides(&self, owner: &Arc<Owner>, old: Option<Arc<Dnode>>, new: Option<Arc<Dnode>>) {
        let spill = |dnode: &Option<Arc<Dnode>>| {
            let pointer = dnode.as_ref().and_then(|dnode| dnode.spill);
            pointer.filter(is_block)
        };
        let (before, now) = (spill(&old), spill(&new));
        if before != now {
            if let Some(before) = &before {
                self.died(owner, before);
            }
            if let Some(now) = &now {
                self.was_born(owner, now, Level(0), SPILL_BLOCK_ID);
            }
        }
        let levels = |dnode: &Option<Arc<Dnode>>| dnode.as_ref().map_or(0, |dnode| dnode.levels);
        let level = levels(&old).max(levels(&new)).saturating_sub(1);
        let side = |dnode: Option<Arc<Dnode>>| dnode.map_or(Side::Empty, Side::Dnode);
        self.stack.push([Work::Positions(Positions {
            owner: Arc::clone(owner),
            old: side(old),
            new: side(new),
            level,
            next: 0,
            end: 3,
        })]);
    }

    fn positions(&self, mut positions: Positions) {
        let (from, to) = (
            positions.next,
            positions
                .next
                .saturating_add(POSITIONS_AT_ONCE)
                .min(positions.end),
        );
        let (owner, level) = (Arc::clone(&positions.owner), positions.level);
        let (old, new) = (positions.old.clone(), positions.new.clone());
        if to < positions.end {
            positions.next = to;
            self.stack.push([Work::Positions(positions)]);
        } else {
            drop(positions);
        }
        for id in from..to {
            self.position(&owner, level, id, &old, &new);
        }
        self.release(owner);
    }

    fn position(&self, owner: &Arc<Owner>, level: u8, id: u64, old: &Side, new: &Side) {
        let (before, now) = (old.at(level, id), new.at(level, id));
        if let (At::Pointer(before), At::Pointer(now)) = (&before, &now)
            && before == now
        {
            return;
        }
        if let (At::Nothing, At::Nothing) = (&before, &now) {
            return;
        }
        // What is left of both once the same block is passed over.
        let mut descends_old = matches!(before, At::Above);
        let mut descends_new = matches!(now, At::Above);
        if let At::Pointer(before) = &before
            && is_block(before)
        {
            self.died(owner, before);
            descends_old = true;
        }
        if let At::Pointer(now) = &now {
            if is_block(now) {
                descends_new = self.was_born(owner, now, Level(level), BlockId(id));
            } else if now.birth() > self.synced {
                let words = format!("a hole of txg {}, which was never written", now.birth());
                self.bad(&owner.tally, owner.object, words);
            }
        }
        if level == 0 && !owner.holds_dnodes() {
            return;
        }
        let side = |at: &At, side: &Side, descends: bool, is_new: bool| match at {
            _ if !descends => Side::Empty,
            At::Nothing => Side::Empty,
            At::Above => side.clone(),
            At::Pointer(pointer) => {
                let address = BlockAddress {
                    dataset: owner.tally.tree.dataset,
                    object: ObjectId(owner.object),
                    level: Level(level),
                    block: BlockId(id),
                };
                let Some(block) = self.read(&owner.tally, pointer, address) else {
                    owner.counted.lock().is_partial = true;
                    return Side::Empty;
                };
                if is_new {
                    self.judge_fill(owner, pointer, &block, level);
                }
                let first = id.checked_shl(owner.shift()).unwrap_or(0);
                Side::Indirect(block, first)
            }
        };
        let old = side(&before, old, descends_old, false);
        let new = side(&now, new, descends_new, true);
        if let (Side::Empty, Side::Empty) = (&old, &new) {
            return;
        }
        if level == 0 {
            self.dnodes(owner, id, &old, &new);
            return;
        }
        let shift = owner.shift();
        let (first, end) = (
            id.checked_shl(shift).unwrap_or(0),
            id.saturating_add(1).checked_shl(shift).unwrap_or(0),
        );
        self.stack.push([Work::Positions(Positions {
            owner: Arc::clone(owner),
            old,
            new,
            level: level - 1,
            next: first,
            end,
        })]);
    }

    /// Compares two blocks of dnodes slot by slot.
    fn dnodes(&self, owner: &Arc<Owner>, id: u64, old: &Side, new: &Side) {
        let tally = &owner.tally;
        let per_block = |dnode: &Option<Arc<Dnode>>| {
            dnode
                .as_ref()
                .map(|dnode| dnode.data_block_bytes() / DNODE_SLOT_BYTES as u64)
        };
        let per_block = per_block(&owner.new)
            .or(per_block(&owner.old))
            .unwrap_or(32);
        let first = id.saturating_mul(per_block);
        let (mut before, now) = (self.slots(tally, old), self.slots(tally, new));
        for (slot, dnode) in now {
            let object = first.saturating_add(slot);
            let was = before.remove(&slot);
            if was.as_ref() != Some(&dnode) && dnode.extra_slots > 0 {
                tally.counted.lock().uses.insert(Uses::LARGE_DNODE);
            }
            self.object(tally, object, was.map(Arc::new), Some(Arc::new(dnode)));
        }
        for (slot, dnode) in before {
            let object = first.saturating_add(slot);
            self.object(tally, object, Some(Arc::new(dnode)), None);
        }
    }

    fn slots(&self, tally: &Tally, side: &Side) -> BTreeMap<u64, Dnode> {
        let mut found = BTreeMap::new();
        let Side::Indirect(block, _) = side else {
            return found;
        };
        let mut slot = 0usize;
        while let Some(bytes) = block.bytes.get(slot.saturating_mul(DNODE_SLOT_BYTES)..)
            && !bytes.is_empty()
        {
            match Dnode::decode(bytes, block.endian) {
                Ok(Some(dnode)) => {
                    found.insert(slot as u64, dnode);
                }
                Ok(None) => {}
                Err(error) => {
                    let detail = format!("slot {slot} of a block of dnodes: {error}");
                    let finding = Finding::new(FindingKind::Unreadable, detail);
                    self.tell(finding.of(&tally.tree.name));
                    tally.counted.lock().is_partial = true;
                }
            }
            slot = slot.saturating_add(Dnode::slot_count(bytes));
        }
        found
    }

    /// Whether a pointer counts what is below it.
    fn judge_fill(&self, owner: &Owner, pointer: &BlockPointer, block: &Block, level: u8) {
        let counted = if level == 0 {
            let mut count = 0u64;
            let mut slot = 0usize;
            while let Some(bytes) = block.bytes.get(slot.saturating_mul(DNODE_SLOT_BYTES)..)
                && let Some(kind) = bytes.first()
            {
                count = count.wrapping_add(u64::from(*kind != 0));
                slot = slot.saturating_add(Dnode::slot_count(bytes));
            }
            count
        } else {
            let pointers = block.bytes.chunks_exact(128);
            let mut fill = 0u64;
            let above = allocation_birth(pointer);
            for child in pointers.filter_map(|bytes| BlockPointer::decode(bytes, block.endian).ok())
            {
                fill = fill.wrapping_add(fill_of(&child));
                if !child.is_hole() && allocation_birth(&child) > above {
                    let words = format!(
                        "level {level}: a block of txg {} below one of txg {above}",
                        allocation_birth(&child)
                    );
                    self.bad(&owner.tally, owner.object, words);
                }
            }
            fill
        };
        if counted != pointer.fill() {
            let detail = format!(
                "level {level}: a pointer counts {} blocks or objects, there are {counted}",
                pointer.fill()
            );
            let finding = Finding::new(FindingKind::FillCount, detail);
            self.tell(finding.of(&owner.tally.tree.name).object(owner.object));
        }
    }

    fn died(&self, owner: &Owner, pointer: &BlockPointer) {
        if self.watch.is_some() {
            return;
        }
        let tree = &owner.tally.tree;
        let (sums, birth) = (self.ratios.sums(pointer), allocation_birth(pointer));
        let mut counted = owner.counted.lock();
        counted.dead += sums;
        if birth > tree.origin_txg {
            counted.dead_own += sums;
        }
        if birth > tree.unique_after {
            counted.dead_unique += sums;
        }
    }

    /// Counts and claims a block; whether what is below it is to be looked at.
    fn was_born(&self, owner: &Owner, pointer: &BlockPointer, level: Level, id: BlockId) -> bool {
        let tree = &owner.tally.tree;
        let (object, birth) = (owner.object, allocation_birth(pointer));
        let is_spill = id == SPILL_BLOCK_ID;
        let place = || {
            if is_spill {
                "spill block".to_owned()
            } else {
                format!("level {level} block {id}")
            }
        };
        if birth <= tree.born_after {
            let words = format!(
                "{}: born in txg {birth}, and the dataset before, of txg {}, does not have it",
                place(),
                tree.born_after
            );
            self.bad(&owner.tally, object, words);
        }
        if birth > self.synced || pointer.birth() > self.synced {
            let words = format!("{}: born in txg {birth}, which was never written", place());
            self.bad(&owner.tally, object, words);
        }
        if pointer.level() != level {
            let words = format!("{}: its pointer says level {}", place(), pointer.level());
            self.bad(&owner.tally, object, words);
            owner.counted.lock().is_partial = true;
            return false;
        }
        if let Some(dnode) = &owner.new
            && !is_spill
        {
            let expected = if level.0 > 0 {
                dnode.indirect_block_bytes()
            } else {
                dnode.data_block_bytes()
            };
            if pointer.lsize_bytes() != expected {
                let words = format!(
                    "{}: {} bytes, and the dnode says {expected}",
                    place(),
                    pointer.lsize_bytes()
                );
                self.bad(&owner.tally, object, words);
            }
        }
        if level.0 == 0 && !owner.holds_dnodes() && object != 0 {
            let fill = fill_of(pointer);
            if fill != 1 {
                let detail = format!("{}: its pointer counts {fill} blocks, not 1", place());
                let finding = Finding::new(FindingKind::FillCount, detail);
                self.tell(finding.of(&tree.name).object(object));
            }
        }
        if let Err(error) = pointer.validate() {
            self.bad(&owner.tally, object, format!("{}: {error}", place()));
            owner.counted.lock().is_partial = true;
            return false;
        }
        {
            let mut counted = owner.counted.lock();
            counted.born += self.ratios.sums(pointer);
            counted.uses.insert(Uses::of(pointer));
        }
        let holder = || Holder {
            dataset: tree.name.clone(),
            object,
            words: place(),
        };
        self.own(pointer, &holder);
        true
    }

    /// Claims everything that a pointer owns.
    pub(super) fn own(&self, pointer: &BlockPointer, holder: &dyn Fn() -> Holder) {
        if pointer.is_embedded() {
            if self.watch.is_none() {
                let figures = self.figures;
                figures.embedded.fetch_add(1, Ordering::Relaxed);
                let bytes = pointer.lsize_bytes();
                figures.logical.fetch_add(bytes, Ordering::Relaxed);
            }
            return;
        }
        let add = |figure: &AtomicU64, number: u64| figure.fetch_add(number, Ordering::Relaxed);
        if self.watch.is_none() {
            self.progress.add_block(pointer.asize_bytes());
            add(&self.figures.pointers, 1);
            add(&self.figures.logical, pointer.lsize_bytes());
            add(&self.figures.physical, pointer.psize_bytes());
            add(&self.figures.allocated, pointer.asize_bytes());
            add(&self.figures.gangs, u64::from(pointer.is_gang()));
            if self.is_repeat(pointer) {
                add(&self.figures.shared, pointer.asize_bytes());
                return;
            }
            self.judge_sizes(pointer, holder);
        }
        if !pointer.is_gang() {
            for dva in pointer.dvas() {
                self.claim(&dva, holder, 0);
            }
            return;
        }
        let address = BlockAddress::default();
        match self.store.extents(pointer, address) {
            Ok(extents) => {
                for dva in extents {
                    self.claim(&dva, holder, 0);
                }
            }
            Err(error) => {
                let Holder {
                    dataset,
                    object,
                    words,
                } = holder();
                let detail = format!("{words}: gang block: {error}");
                let finding = Finding::new(FindingKind::Unreadable, detail);
                self.tell(finding.of(&dataset).object(object));
            }
        }
    }

    /// Whether a block is shared, and was met before.
    fn is_repeat(&self, pointer: &BlockPointer) -> bool {
        let is_content = pointer.level().0 == 0;
        if !(pointer.is_dedup() || is_content && (self.is_cloned)(pointer)) {
            return false;
        }
        let Some(dva) = pointer.dvas().next() else {
            return false;
        };
        let mut shared = self.shared.lock();
        let key = (dva.vdev.0, dva.offset_bytes);
        if let Some(count) = shared.get_mut(&key) {
            *count = count.saturating_add(1);
            return true;
        }
        if shared.len() < SHARED_MAX {
            shared.insert(key, 1);
        }
        false
    }

    /// Whether addresses claim what their block takes. Blocks of intent logs may claim more: OpenZFS 2.4 gives them
    /// whatever it found between two sizes.
    fn judge_sizes(&self, pointer: &BlockPointer, holder: &dyn Fn() -> Holder) {
        if pointer.is_gang() {
            return;
        }
        let is_of_log = pointer.object_type() == ObjectType::INTENT_LOG;
        for dva in pointer.dvas() {
            let birth = pointer.physical_birth();
            let takes = self
                .topology
                .tree
                .asize(dva.vdev, pointer.psize_bytes(), birth);
            let is_right =
                |takes: u64| dva.asize_bytes == takes || (is_of_log && dva.asize_bytes > takes);
            if takes.is_some_and(|takes| !is_right(takes)) && !self.space.is_other(dva.vdev) {
                let Holder {
                    dataset,
                    object,
                    words,
                } = holder();
                let detail = format!(
                    "{words}: an address claims {} bytes on vdev {}, the block takes {}",
                    dva.asize_bytes,
                    dva.vdev,
                    takes.unwrap_or(0)
                );
                let finding = Finding::new(FindingKind::AllocatedSize, detail);
                self.tell(finding.of(&dataset).object(object));
            }
        }
    }

    fn claim(&self, dva: &Dva, holder: &dyn Fn() -> Holder, depth: u8) {
        // What lay on a removed vdev lies elsewhere now.
        if self.space.is_other(dva.vdev) && depth < 32 {
            let mapping = self.topology.indirect.get(dva.vdev);
            let pieces = mapping.and_then(|map| map.resolve(dva.offset_bytes, dva.asize_bytes));
            let Some(pieces) = pieces else {
                return self.outside(dva, holder);
            };
            for piece in pieces {
                let piece = Dva {
                    vdev: piece.vdev,
                    offset_bytes: piece.offset_bytes,
                    asize_bytes: piece.size_bytes,
                    ..*dva
                };
                self.claim(&piece, holder, depth + 1);
            }
            return;
        }
        if let Some(watch) = self.watch {
            watch.look(dva, holder);
            return;
        }
        match self.space.claim(dva) {
            Claim::Granted | Claim::Unknown => {}
            Claim::Outside => self.outside(dva, holder),
            Claim::Disputed => self.space.dispute(dva),
        }
    }

    fn outside(&self, dva: &Dva, holder: &dyn Fn() -> Holder) {
        let Holder {
            dataset,
            object,
            words,
        } = holder();
        let detail = format!(
            "{words}: {} bytes at {:#x} of vdev {}, where no block can lie",
            dva.asize_bytes, dva.offset_bytes, dva.vdev
        );
        let finding = Finding::new(FindingKind::OutsideVdev, detail);
        self.tell(finding.of(&dataset).object(object));
    }

    /// Whoever lets an object go last has its sums complete.
    fn release(&self, owner: Arc<Owner>) {
        let Some(owner) = Arc::into_inner(owner) else {
            return;
        };
        let counted = owner.counted.into_inner();
        add_counted(&mut owner.tally.counted.lock(), &counted);
        let Some(new) = &owner.new else { return };
        if counted.is_partial || self.watch.is_some() {
            return;
        }
        let before = owner.old.as_ref().map_or(0, |dnode| dnode.used_bytes());
        let before = i64::try_from(before).unwrap_or(i64::MAX);
        let expected = before
            .wrapping_add(counted.born.used)
            .wrapping_sub(counted.dead.used);
        let stored = i64::try_from(new.used_bytes()).unwrap_or(i64::MAX);
        if stored != expected {
            let detail = format!("its dnode says {stored} bytes used, its blocks take {expected}");
            let finding = Finding::new(FindingKind::DnodeUsed, detail);
            self.tell(finding.of(&owner.tally.tree.name).object(owner.object));
        }
    }
}

fn add_counted(sum: &mut Counted, other: &Counted) {
    sum.born += other.born;
    sum.dead += other.dead;
    sum.dead_own += other.dead_own;
    sum.dead_unique += other.dead_unique;
    sum.is_partial |= other.is_partial;
    sum.uses.insert(other.uses);
}

/// What a pointer adds to the count of the one above.
fn fill_of(pointer: &BlockPointer) -> u64 {
    if pointer.is_hole() { 0 } else { pointer.fill() }
}

/// The txg that decides which snapshots have a block: when its space was allocated.
pub(super) fn allocation_birth(pointer: &BlockPointer) -> Txg {
    if pointer.is_rewritten() {
        pointer.physical_birth()
    } else {
        pointer.birth()
    }
}
