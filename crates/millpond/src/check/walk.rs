//! Traverses all block trees, each dataset side by side with the previous one.
//!
//! Positions with the same pointer on both sides are skipped with their descendants. Thus each block is
//! visited once in the dataset in which it was born, and once in the dataset in which it died. Unfinished
//! work is on a stack shared by all threads, last in, first out, so the traversal goes depth first. It keeps
//! at most two indirect blocks per level and thread, and the dnodes of both trees for the blocks in progress.

use super::blocks::fill_of;
use super::claims::Figures;
use super::disputes::Watch;
use super::finding::{Finding, FindingKind};
use super::side::{At, Side};
use super::space::Space;
use super::sums::{Ratios, Sums, is_block};
use super::uses::Uses;
use super::{CheckProgress, Findings};
use crate::walk::{Budget, Spent, Stack};
use millpond_block::{Block, BlockAddress, BlockStore, Topology};
use millpond_env::sync::{Arc, Mutex};
use millpond_object::BlockError;
use millpond_ondisk::{
    BlockId, BlockPointer, DNODE_SLOT_BYTES, Dnode, Level, ObjectId, ObjectSetPhys, ObjectType,
    SPILL_BLOCK_ID, Txg,
};
use std::collections::{BTreeMap, HashMap};

/// Count of positions that a thread takes at once. The rest stays available to other threads.
const POSITIONS_AT_ONCE: u64 = 16;

/// A dataset to traverse, with its starting points.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    /// Its name in findings; empty for the MOS.
    pub(super) name: String,
    /// Its object id in the MOS; 0 for the MOS.
    pub(super) dataset: u64,
    /// The pointer to its object set.
    pub(super) root: BlockPointer,
    /// The pointer to the object set of the previous dataset; a hole if there is none.
    pub(super) previous_root: BlockPointer,
    /// Blocks born up to this txg belong to the previous dataset.
    pub(super) born_after: Txg,
    /// Blocks born after this txg belong to this clone rather than its origin.
    pub(super) origin_txg: Txg,
    /// Blocks born after this txg that died here were unique to the previous dataset.
    pub(super) unique_after: Txg,
}

/// The blocks counted in a tree.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counted {
    /// Blocks that the previous dataset does not have.
    pub(super) born: Sums,
    /// Blocks that only the previous dataset has.
    pub(super) dead: Sums,
    /// The part of `dead` born after the origin.
    pub(super) dead_own: Sums,
    /// The part of `dead` that was unique to the previous dataset.
    pub(super) dead_unique: Sums,
    /// Set if something could not be read. The totals then lack its descendants.
    pub(super) is_partial: bool,
    /// The features that its blocks use.
    pub(super) uses: Uses,
}

pub(super) struct Tally {
    pub(super) tree: Tree,
    pub(super) counted: Mutex<Counted>,
}

/// An object in its old and new states.
pub(super) struct Owner {
    pub(super) tally: Arc<Tally>,
    pub(super) object: u64,
    old: Option<Arc<Dnode>>,
    pub(super) new: Option<Arc<Dnode>>,
    pub(super) counted: Mutex<Counted>,
}

impl Owner {
    pub(super) fn holds_dnodes(&self) -> bool {
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
    /// Work for a single thread.
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

/// The walk's shared state.
pub(super) struct Walk<'a> {
    pub(super) store: &'a BlockStore,
    pub(super) topology: Arc<Topology>,
    pub(super) space: &'a Space,
    pub(super) ratios: &'a Ratios,
    pub(super) findings: &'a Findings<'a>,
    pub(super) progress: &'a CheckProgress,
    pub(super) stack: Stack<Work<'a>>,
    /// Reference counts of shared blocks, by first address.
    pub(super) shared: &'a Mutex<HashMap<(u32, u64), u64>>,
    /// Whether the block at this address may be cloned.
    pub(super) is_cloned: &'a (dyn Fn(&BlockPointer) -> bool + Sync),
    pub(super) synced: Txg,
    pub(super) figures: &'a Figures,
    /// Set in the second walk, which only looks for the owners of disputed ranges.
    pub(super) watch: Option<&'a Watch>,
    /// Bounds the bytes of metadata blocks. Each is read at most twice.
    pub(super) budget: Budget,
    /// Bounds the space claimed by blocks that are not known to be shared: it must fit on the devices.
    pub(super) claims: Budget,
}

impl Walk<'_> {
    /// Processes work until all is done. Each thread calls this.
    pub(super) fn run(&self) {
        self.stack.work(|work| match work {
            Work::Root(tally) => self.root(&tally),
            Work::Positions(positions) => self.positions(positions),
            Work::Other(body) => body(self),
        });
    }

    pub(super) fn tell(&self, finding: Finding) {
        if self.watch.is_none() {
            self.findings.add(finding);
        }
    }
    pub(super) fn bad(&self, tally: &Tally, object: u64, detail: String) {
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
        let parts: [(ObjectId, Part); 4] = [
            (ObjectId::PROJECT_USED, |phys| phys.project_used.as_ref()),
            (ObjectId::GROUP_USED, |phys| phys.group_used.as_ref()),
            (ObjectId::USER_USED, |phys| phys.user_used.as_ref()),
            (ObjectId(0), |phys| Some(&phys.meta_dnode)),
        ];
        for (object, part) in parts {
            let of =
                |phys: &Option<ObjectSetPhys>| phys.as_ref().and_then(part).cloned().map(Arc::new);
            self.object(tally, object.0, of(&old), of(&new));
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

    /// Charges `bytes` to a budget. Stops the walk if fewer bytes are left.
    pub(super) fn charge(&self, budget: &Budget, bytes: u64) -> bool {
        let charged = budget.charge(bytes);
        if charged == Err(Spent::Now) {
            let detail = "the pool's pointers claim more than fits on its devices";
            self.tell(Finding::new(FindingKind::BadPointer, detail));
            self.stack.stop();
        }
        charged.is_ok()
    }

    /// Reads a metadata block. Reports an error if this fails.
    fn read(
        &self,
        tally: &Tally,
        pointer: &BlockPointer,
        address: BlockAddress,
    ) -> Option<Arc<Block>> {
        let bytes = pointer.psize_bytes().saturating_mul(2);
        if !self.charge(&self.budget, bytes) {
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

    /// Starts the comparison of an object that exists on one or both sides.
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
        // Trees with different indirect block sizes do not align. They belong to different objects that had
        // the same id and share no blocks, so each is traversed by itself.
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
        // If both pointers refer to the same block, it is skipped. Otherwise descend into each side that
        // continues below.
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
        for (slot, bytes) in Dnode::in_block(&block.bytes) {
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
        }
        found
    }

    /// Releases a reference to an object. After the last one its totals are complete, and are checked.
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
