//! Visits all block trees, each dataset side by side with the previous one.
//!
//! Positions with the same pointer on both sides are skipped with their descendants. Thus each block is
//! visited once in the dataset in which it was born, and once in the dataset in which it died.

use super::block_features::BlockFeatures;
use super::blocks::fill_of;
use super::claims::BlockSums;
use super::disputes::Watch;
use super::finding::{Finding, FindingKind};
use super::space::Space;
use super::sums::{Ratios, Sums, is_block};
use super::{Findings, Progress};
use millpond_block::{Block, BlockStore, LogBlock, Topology};
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_object::BlockError;
use millpond_ondisk::{BlockId, BlockPointer, Level, ObjectId, ObjectSetPhys, Txg, VdevId};
use millpond_traverse::{Budget, Fault, LogVisit, Object, Side, Spent, Step, Visit, Visitor};
use millpond_vdev::IndirectMapping;
use std::collections::{BTreeSet, HashMap};

/// A dataset to traverse, with its starting points.
#[derive(Debug, Clone)]
pub(super) struct DatasetTree {
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
    /// Whether it may have an intent log.
    pub(super) has_log: bool,
}

impl DatasetTree {
    /// The tree of the MOS, which is no dataset.
    pub(super) fn of_mos(root: BlockPointer) -> Self {
        Self {
            name: String::new(),
            dataset: 0,
            root,
            previous_root: BlockPointer::default(),
            born_after: Txg(0),
            origin_txg: Txg(0),
            unique_after: Txg(0),
            has_log: false,
        }
    }
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
    pub(super) features: BlockFeatures,
}

impl Counted {
    fn add(&mut self, other: &Self) {
        self.born += other.born;
        self.dead += other.dead;
        self.dead_own += other.dead_own;
        self.dead_unique += other.dead_unique;
        self.is_partial |= other.is_partial;
        self.features.insert(other.features);
    }
}

pub(super) struct Tally {
    pub(super) tree: DatasetTree,
    pub(super) counted: Mutex<Counted, rank::CheckSums>,
    /// The addresses of the blocks that records of its intent log name as written. The log owns each once.
    pub(super) logged: Mutex<BTreeSet<(u32, u64)>, rank::CheckSums>,
}

/// Checks every block of the trees, and claims its space.
pub(super) struct BlockCheck<'a> {
    pub(super) store: &'a Arc<BlockStore>,
    pub(super) topology: Arc<Topology>,
    pub(super) space: &'a Space,
    pub(super) ratios: &'a Ratios,
    pub(super) findings: &'a Findings<'a>,
    pub(super) progress: &'a Progress,
    /// Reference counts of shared blocks, by first address.
    pub(super) shared: &'a Mutex<HashMap<(u32, u64), u64>, rank::CheckSums>,
    /// Whether the block at this address may be cloned.
    pub(super) is_cloned: &'a (dyn Fn(&BlockPointer) -> bool + Sync),
    pub(super) synced: Txg,
    pub(super) sums: &'a BlockSums,
    /// Set in the second pass, which only looks for the owners of disputed ranges.
    /// The removal under way, and the copies that it has made.
    pub(super) removing: Option<&'a (VdevId, IndirectMapping)>,
    pub(super) watch: Option<&'a Watch>,
    /// Bounds the space claimed by blocks that are not known to be shared: it must fit on the devices.
    pub(super) claims: Budget,
}

impl Visitor for BlockCheck<'_> {
    type Tree = Arc<Tally>;
    type Object = Mutex<Counted, rank::CheckSums>;

    fn visit(&self, block: &Visit<'_, Self>) -> Step {
        let (object, pointer) = (block.object, block.pointer);
        if self.claims.is_spent() {
            return Step::Stop;
        }
        if !is_block(pointer) {
            self.hole(block);
            return Step::Skip;
        }
        if block.side == Side::Old {
            self.died(object, pointer);
            return Step::Descend;
        }
        if block.is_root() {
            if let Some(words) = block.contradiction() {
                let tally = &object.tree.context;
                self.bad(tally, 0, words.into());
                tally.counted.lock().is_partial = true;
            }
            self.was_born(object, pointer, Level(0), BlockId(0));
            return Step::Descend;
        }
        match self.was_born(object, pointer, block.level, block.id) {
            true => Step::Descend,
            false => Step::Skip,
        }
    }

    fn hole(&self, block: &Visit<'_, Self>) {
        let birth = block.pointer.birth();
        if block.side == Side::New && birth > self.synced {
            let words = format!("a hole of txg {birth}, which was never written");
            self.bad(&block.object.tree.context, block.object.id.0, words);
        }
    }

    /// [`BlockCheck::was_born`] reports what is wrong with a pointer, and says whether to follow it.
    fn accept(&self, _: &Visit<'_, Self>) -> Step {
        Step::Descend
    }

    fn content(&self, block: &Visit<'_, Self>, content: &Block) {
        if block.side == Side::New && !block.is_root() {
            self.judge_fill(block.object, block.pointer, content, block.level.0);
        }
    }

    fn fault(&self, block: &Visit<'_, Self>, fault: Fault) -> Step {
        let tally = &block.object.tree.context;
        match &fault {
            Fault::Read(error) => self.unreadable(tally, error),
            Fault::ObjectSet(_) => {
                let finding = Finding::new(FindingKind::Unreadable, fault.to_string());
                self.tell(finding.of(&tally.tree.name).object(0));
            }
            _ => {
                let finding = Finding::new(FindingKind::Unreadable, fault.to_string());
                self.tell(finding.of(&tally.tree.name));
            }
        }
        tally.counted.lock().is_partial = true;
        if !matches!(fault, Fault::Dnode { .. }) {
            block.object.state.lock().is_partial = true;
        }
        Step::Skip
    }

    fn object_set(&self, block: &Visit<'_, Self>, phys: &ObjectSetPhys) {
        let fills = phys.meta_dnode.block_pointers.iter().map(fill_of);
        let fill = fills.fold(0, u64::wrapping_add);
        if fill != block.pointer.fill() {
            let detail = format!(
                "the object set's pointer counts {} objects, its dnodes' pointers {fill}",
                block.pointer.fill()
            );
            let finding = Finding::new(FindingKind::FillCount, detail);
            self.tell(finding.of(&block.object.tree.context.tree.name).object(0));
        }
    }

    fn object(&self, object: &Object<Self>) -> Step {
        let is_large = (object.new.as_ref()).is_some_and(|dnode| dnode.extra_slots > 0);
        if is_large && object.id != ObjectId(0) {
            let mut counted = object.tree.context.counted.lock();
            counted.features.insert(BlockFeatures::LARGE_DNODE);
        }
        Step::Descend
    }

    /// Checks the totals of an object, which are complete now.
    fn object_done(&self, object: Object<Self>) {
        let tally = &object.tree.context;
        let counted = object.state.into_inner();
        tally.counted.lock().add(&counted);
        let Some(new) = &object.new else { return };
        if counted.is_partial || self.watch.is_some() {
            return;
        }
        let before = object.old.as_ref().map_or(0, |dnode| dnode.used_bytes());
        let before = i64::try_from(before).unwrap_or(i64::MAX);
        let expected = before
            .wrapping_add(counted.born.used)
            .wrapping_sub(counted.dead.used);
        let stored = i64::try_from(new.used_bytes()).unwrap_or(i64::MAX);
        if stored != expected {
            let detail = format!("its dnode says {stored} bytes used, its blocks take {expected}");
            let finding = Finding::new(FindingKind::DnodeUsed, detail);
            self.tell(finding.of(&tally.tree.name).object(object.id.0));
        }
    }

    fn log_block(&self, block: &LogVisit<'_, Self::Tree>) -> Step {
        self.claim_log_block(block)
    }
    fn log_content(&self, block: &LogVisit<'_, Self::Tree>, content: Option<&LogBlock>) {
        self.judge_log_content(block, content);
    }
    fn log_records(&self, block: &LogVisit<'_, Self::Tree>, content: &LogBlock, records: &[u8]) {
        self.claim_logged(block, content, records);
    }
}

impl BlockCheck<'_> {
    pub(super) fn tell(&self, finding: Finding) {
        if self.watch.is_none() {
            self.findings.add(finding);
        }
    }
    pub(super) fn bad(&self, tally: &Tally, object: u64, detail: String) {
        let finding = Finding::new(FindingKind::BadPointer, detail);
        self.tell(finding.of(&tally.tree.name).object(object));
    }

    /// Charges the space of a block. If less is left, the traversal ends.
    pub(super) fn charge(&self, bytes: u64) -> bool {
        let charged = self.claims.charge(bytes);
        if charged == Err(Spent::Now) {
            self.tell_over_budget();
        }
        charged.is_ok()
    }

    pub(super) fn tell_over_budget(&self) {
        let detail = "the pool's pointers claim more than fits on its devices";
        self.tell(Finding::new(FindingKind::BadPointer, detail));
    }

    fn unreadable(&self, tally: &Tally, error: &BlockError) {
        let finding = Finding::new(FindingKind::Unreadable, error.to_string());
        let object = error.address().object.0;
        self.tell(finding.of(&tally.tree.name).object(object));
    }
}
