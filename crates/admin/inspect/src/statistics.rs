//! Counts all blocks of a pool by object type.

use super::tree::object_error;
use millpond_block::{BlockAddress, BlockStore};
use millpond_env::sync::Arc;
use millpond_intent::{ChainEnd, IntentLog};
use millpond_object::{ObjectError, ObjectSetView};
use millpond_ondisk::intent_log::{LogRecordBody, WriteContent};
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{
    BlockId, BlockPointer, BpObjectEntry, BpObjectPhys, DslDatasetPhys, Level, ObjectId,
    ObjectType, Txg,
};
use millpond_pool::PoolView;
use millpond_traverse::{Fault, Order, Outcome, Step, Traversal, Tree, Visit, Visitor};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;

/// Upper bound of the unreadable blocks listed individually; all are counted.
pub const UNREADABLE_KEPT_MAX: usize = 100;

/// Size of an entry in a block pointer list, in bytes.
const POINTER_BYTES: u64 = 128;
/// Lists nest one level deep. Deeper ones are not followed.
const LIST_DEPTH_MAX: u32 = 2;

/// Totals over a group of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockTotals {
    /// Block pointers.
    pub count: u64,
    /// Copies that are gang blocks.
    pub ganged: u64,
    /// Bytes before compression.
    pub logical_bytes: u64,
    /// Bytes after compression; 0 for embedded blocks.
    pub physical_bytes: u64,
    /// Bytes of all copies, including parity and padding.
    pub allocated_bytes: u64,
}

impl BlockTotals {
    fn add(&mut self, pointer: &BlockPointer) {
        let into = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        into(&mut self.count, 1);
        let ganged = pointer.dvas().filter(|dva| dva.is_gang).count();
        into(&mut self.ganged, ganged as u64);
        into(&mut self.logical_bytes, pointer.lsize_bytes());
        if !pointer.is_embedded() {
            into(&mut self.physical_bytes, pointer.psize_bytes());
        }
        into(&mut self.allocated_bytes, pointer.asize_bytes());
    }
    /// Adds other totals.
    pub fn merge(&mut self, other: &Self) {
        let into = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        into(&mut self.count, other.count);
        into(&mut self.ganged, other.ganged);
        into(&mut self.logical_bytes, other.logical_bytes);
        into(&mut self.physical_bytes, other.physical_bytes);
        into(&mut self.allocated_bytes, other.allocated_bytes);
    }
}

/// The result of counting all blocks.
#[derive(Debug, Clone, Default)]
pub struct BlockStatistics {
    /// Totals by object type and level.
    pub by_type: BTreeMap<(u8, u8), BlockTotals>,
    /// Deferred frees: unreferenced blocks that the next txgs free.
    pub deferred: BlockTotals,
    /// Totals of the pointers above that have the dedup bit. A block with several pointers counts once per
    /// pointer.
    pub dedup: BlockTotals,
    /// Of the pointers above, those with embedded data, which take no space.
    pub embedded_count: u64,
    /// Blocks that could not be read; their descendants are not counted.
    pub unreadable_count: u64,
    /// The first of these, at most [`UNREADABLE_KEPT_MAX`].
    pub unreadable: Vec<(BlockAddress, ObjectError)>,
    /// Whether the count stopped early. It does if the pointers refer to more metadata than fits on the
    /// devices, or if two adjacent pointers refer to the same block, which no correct writer produces.
    pub gave_up: bool,
    /// Bytes of metadata blocks counted so far.
    charged_bytes: u64,
    charged_max: u64,
    /// The last metadata block of each type and level.
    last: BTreeMap<(u8, u8), [u64; 2]>,
}

impl BlockStatistics {
    /// The total of all blocks, including deferred frees.
    #[must_use]
    pub fn total(&self) -> BlockTotals {
        let mut total = BlockTotals::default();
        for totals in self.by_type.values().chain([&self.deferred]) {
            total.merge(totals);
        }
        total
    }
    /// Totals by object type over all levels.
    #[must_use]
    pub fn types(&self) -> BTreeMap<ObjectTypeNumber, BlockTotals> {
        let mut types: BTreeMap<u8, BlockTotals> = BTreeMap::new();
        for ((number, _), totals) in &self.by_type {
            types.entry(*number).or_default().merge(totals);
        }
        types
    }
    fn add(&mut self, pointer: &BlockPointer) {
        if pointer.is_embedded() {
            self.embedded_count = self.embedded_count.saturating_add(1);
        }
        let key = (pointer.object_type().0, pointer.level().0);
        self.by_type.entry(key).or_default().add(pointer);
        if pointer.is_dedup() {
            self.dedup.add(pointer);
        }
    }
    /// Charges a metadata block that will be read to the budget. Each has exactly one parent.
    fn charge(&mut self, bytes: u64) -> ControlFlow<()> {
        self.charged_bytes = self.charged_bytes.saturating_add(bytes);
        if self.charged_bytes > self.charged_max {
            self.gave_up = true;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
    /// Counts a block below an object set.
    fn take(&mut self, level: Level, pointer: &BlockPointer) -> ControlFlow<()> {
        self.add(pointer);
        let is_metadata = level.0 > 0 || pointer.object_type() == ObjectType::DNODE;
        if !is_metadata || pointer.is_embedded() {
            return ControlFlow::Continue(());
        }
        // Adjacent pointers to the same block: a small forged tree could otherwise stand for 2^60 blocks.
        let key = (pointer.object_type().0, level.0);
        let place = [pointer.words[0], pointer.words[1]];
        if self.last.insert(key, place) == Some(place) {
            self.gave_up = true;
            return ControlFlow::Break(());
        }
        self.charge(pointer.psize_bytes())
    }
    fn miss(&mut self, address: BlockAddress, error: ObjectError) {
        self.unreadable_count = self.unreadable_count.saturating_add(1);
        if self.unreadable.len() < UNREADABLE_KEPT_MAX {
            self.unreadable.push((address, error));
        }
    }
}

/// The number of an object type, as stored in dnodes and pointers.
pub type ObjectTypeNumber = u8;

/// Counts all blocks referenced by the MOS, the datasets and the intent logs, and the deferred frees of the
/// next txgs.
///
/// Each block counts where it was born: a block in snapshots counts for the first snapshot that has it, as in
/// `zdb -b`. No key is needed, but for an encrypted dataset only the log chain itself is counted. A
/// deduplicated block counts once per pointer. Blocks referenced only by a checkpoint, and datasets being
/// destroyed in the background, are not counted.
///
/// Reads each indirect block and each block of dnodes once, and keeps none. Calls `progress` with the
/// statistics from time to time; the count ends if it breaks.
pub fn block_statistics(
    pool: &Arc<PoolView>,
    progress: &mut dyn FnMut(&BlockStatistics) -> ControlFlow<()>,
) -> BlockStatistics {
    let mut count = Count {
        store: pool.store(),
        found: BlockStatistics {
            charged_max: pool.store().topology().capacity_bytes(),
            ..BlockStatistics::default()
        },
        progress,
    };
    let _ = count.pool(pool);
    count.found
}

struct Count<'a> {
    store: &'a Arc<BlockStore>,
    found: BlockStatistics,
    progress: &'a mut dyn FnMut(&BlockStatistics) -> ControlFlow<()>,
}

impl Count<'_> {
    fn pool(&mut self, pool: &Arc<PoolView>) -> ControlFlow<()> {
        self.object_set(Tree {
            born_after: Some(Txg(0)),
            ..Tree::new(0, *pool.mos().root(), ())
        })?;
        // Find datasets by their objects rather than by name, so that none is missed.
        for object in pool.mos().objects() {
            let Ok(object) = object else { continue };
            if object.dnode().bonus_type != ObjectType::DSL_DATASET {
                continue;
            }
            let phys = object
                .bonus()
                .map(|bonus| DslDatasetPhys::decode(bonus, object.dnode().endian));
            if let Ok(Ok(phys)) = phys {
                self.dataset(pool, object.id(), &phys)?;
            }
        }
        self.deferred(pool);
        ControlFlow::Continue(())
    }

    fn dataset(
        &mut self,
        pool: &Arc<PoolView>,
        id: ObjectId,
        phys: &DslDatasetPhys,
    ) -> ControlFlow<()> {
        let root = phys.block_pointer;
        if root.is_hole() {
            return ControlFlow::Continue(());
        }
        let set = match ObjectSetView::open(Arc::clone(pool.store()), id.0, root, None) {
            Ok(set) => set,
            Err(error) => {
                self.found.miss(BlockAddress::object_set(id.0), error);
                return ControlFlow::Continue(());
            }
        };
        if !phys.is_snapshot()
            && let Some(log) = IntentLog::open(&set)
        {
            self.log(&log, pool.uberblock().txg);
        }
        self.object_set(Tree {
            born_after: Some(phys.previous_snapshot_txg),
            ..Tree::new(id.0, root, ())
        })
    }

    /// Counts the blocks of a log that are allocated in the space maps: those allocated in a txg up to the
    /// last synced one, and those of a claimed log. This includes the last block, which is not written yet.
    /// In a claimed log, blocks referenced by records count too.
    fn log(&mut self, log: &IntentLog, synced: Txg) {
        let claim_txg = log.header().claim_txg;
        let is_claimed = claim_txg != Txg(0);
        let is_allocated = |pointer: &BlockPointer| is_claimed || pointer.birth() <= synced;
        let mut chain = log.blocks();
        for block in chain.by_ref() {
            if is_allocated(&block.pointer) {
                self.found.add(&block.pointer);
            }
            for record in block.records().filter(|_| is_claimed) {
                let body = record.decode().map(|record| record.body);
                if let Ok(LogRecordBody::Write {
                    content: WriteContent::Indirect(pointer),
                    ..
                }) = body
                    && !pointer.is_hole()
                    && pointer.birth() >= claim_txg
                {
                    self.found.add(&pointer);
                }
            }
        }
        let next = chain.next_pointer();
        let is_next = matches!(
            chain.end(),
            Some(ChainEnd::Unreadable(_) | ChainEnd::Broken(_))
        );
        if is_next && !next.is_hole() && is_allocated(next) {
            self.found.add(next);
        }
    }

    /// Counts the blocks in the list of deferred frees and in the list of a destroyed dataset's blocks.
    fn deferred(&mut self, pool: &Arc<PoolView>) {
        for name in [key::SYNC_BPLIST, key::FREE_BPOBJ] {
            if let Ok(Some(id)) = pool.find_directory_object(name) {
                let mut seen = HashSet::new();
                self.list(pool, id, LIST_DEPTH_MAX, &mut seen);
            }
        }
    }

    fn list(
        &mut self,
        pool: &Arc<PoolView>,
        id: ObjectId,
        depth: u32,
        seen: &mut HashSet<ObjectId>,
    ) {
        // A list has exactly one parent. A list seen twice is part of a cycle.
        if !seen.insert(id) {
            return;
        }
        let outcome = self.list_entries(pool, id, depth, seen);
        if let Err(error) = outcome {
            let address = BlockAddress {
                object: id,
                ..BlockAddress::default()
            };
            self.found.miss(address, error);
        }
    }

    fn list_entries(
        &mut self,
        pool: &Arc<PoolView>,
        id: ObjectId,
        depth: u32,
        seen: &mut HashSet<ObjectId>,
    ) -> Result<(), ObjectError> {
        let object = pool.mos().object(id)?;
        let invalid = |error| ObjectError::Invalid {
            dataset: 0,
            object: id,
            error,
        };
        let header =
            BpObjectPhys::decode(object.bonus()?, object.dnode().endian).map_err(invalid)?;
        let capacity = object.length_bytes() / POINTER_BYTES;
        for index in 0..header.pointer_count.min(capacity) {
            let mut bytes = [0u8; POINTER_BYTES as usize];
            let at = index * POINTER_BYTES;
            object.read(at, &mut bytes)?;
            let block = object.read_block(BlockId(at / object.block_bytes().max(1)))?;
            let entry = BpObjectEntry::decode(&bytes, block.endian).map_err(invalid)?;
            self.found.deferred.add(&entry.pointer);
            if self.found.charge(POINTER_BYTES).is_break() {
                return Ok(());
            }
        }
        let Some(sub_objects) = header.sub_objects.filter(|_| depth > 0) else {
            return Ok(());
        };
        let table = pool.mos().object(sub_objects)?;
        for index in 0..header.sub_object_count.min(table.length_bytes() / 8) {
            let mut bytes = [0u8; 8];
            table.read(index * 8, &mut bytes)?;
            let block = table.read_block(BlockId(index * 8 / table.block_bytes().max(1)))?;
            self.list(pool, ObjectId(block.endian.u64(bytes)), depth - 1, seen);
        }
        Ok(())
    }

    /// Counts an object set, and what is below it.
    fn object_set(&mut self, tree: Tree<()>) -> ControlFlow<()> {
        let store = self.store;
        let blocks = Blocks(RefCell::new(self));
        match Traversal::new(store, &blocks).run_in_order(tree, Order::ParentsFirst, None) {
            Outcome::Complete => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    }
}

struct Blocks<'b, 'a>(RefCell<&'b mut Count<'a>>);

impl Visitor for Blocks<'_, '_> {
    type Tree = ();
    type Object = ();
    const KEEPS_BLOCKS: bool = false;

    fn visit(&self, block: &Visit<'_, Self>) -> Step {
        let count = &mut **self.0.borrow_mut();
        let mut flow = match block.is_root() {
            true => {
                count.found.add(block.pointer);
                ControlFlow::Continue(())
            }
            false => count.found.take(block.level, block.pointer),
        };
        if block.leads_on() && block.level.0 == 0 && flow.is_continue() {
            flow = (count.progress)(&count.found);
        }
        match flow {
            ControlFlow::Continue(()) => Step::Descend,
            ControlFlow::Break(()) => Step::Stop,
        }
    }

    fn fault(&self, block: &Visit<'_, Self>, fault: Fault) -> Step {
        let (address, error) = object_error(block, fault);
        self.0.borrow_mut().found.miss(address, error);
        Step::Skip
    }
}
