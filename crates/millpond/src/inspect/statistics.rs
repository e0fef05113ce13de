//! Counting all blocks of a pool by what they hold.

use super::tree::{TreeWalk, WalkStep};
use millpond_block::BlockAddress;
use millpond_env::sync::Arc;
use millpond_intent::IntentLog;
use millpond_object::{Accounting, Object, ObjectError, ObjectSet};
use millpond_ondisk::{BlockPointer, DslDatasetPhys, ObjectId, ObjectType, Txg};
use millpond_pool::Pool;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// How many unreadable blocks are remembered by name; all are counted.
pub const UNREADABLE_KEPT_MAX: usize = 100;

/// Sums over some blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockTotals {
    /// Pointers.
    pub count: u64,
    /// Of these, pointers to gang blocks.
    pub ganged: u64,
    /// Bytes before compression.
    pub logical_bytes: u64,
    /// Bytes after compression.
    pub physical_bytes: u64,
    /// Bytes of all copies with parity and padding.
    pub allocated_bytes: u64,
}

impl BlockTotals {
    fn add(&mut self, pointer: &BlockPointer) {
        let into = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        into(&mut self.count, 1);
        into(&mut self.ganged, u64::from(pointer.is_gang()));
        into(&mut self.logical_bytes, pointer.lsize_bytes());
        into(&mut self.physical_bytes, pointer.psize_bytes());
        into(&mut self.allocated_bytes, pointer.asize_bytes());
    }
    /// Adds other sums.
    pub fn merge(&mut self, other: &Self) {
        let into = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        into(&mut self.count, other.count);
        into(&mut self.ganged, other.ganged);
        into(&mut self.logical_bytes, other.logical_bytes);
        into(&mut self.physical_bytes, other.physical_bytes);
        into(&mut self.allocated_bytes, other.allocated_bytes);
    }
}

/// What a count of all blocks found.
#[derive(Debug, Clone, Default)]
pub struct BlockStatistics {
    /// Sums by object type and level.
    pub by_type: BTreeMap<(u8, u8), BlockTotals>,
    /// Sums by dedup bit: of the pointers above, those that have it. A block that several point to
    /// counts as often.
    pub dedup: BlockTotals,
    /// Of the pointers above, those that hold their data themselves and take no space.
    pub embedded_count: u64,
    /// Blocks that could not be read, so that what hangs below was not counted.
    pub unreadable_count: u64,
    /// The first of these.
    pub unreadable: Vec<(BlockAddress, ObjectError)>,
}

impl BlockStatistics {
    /// The sum of everything.
    #[must_use]
    pub fn total(&self) -> BlockTotals {
        let mut total = BlockTotals::default();
        for totals in self.by_type.values() {
            total.merge(totals);
        }
        total
    }
    /// Sums by object type over all levels.
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
    fn miss(&mut self, address: BlockAddress, error: ObjectError) {
        self.unreadable_count = self.unreadable_count.saturating_add(1);
        if self.unreadable.len() < UNREADABLE_KEPT_MAX {
            self.unreadable.push((address, error));
        }
    }
}

/// The number of an object type, as it stands in dnodes and pointers.
pub type ObjectTypeNumber = u8;

/// Counts all blocks that the MOS, every dataset and every intent log point to, each where it
/// was born: a block that a snapshot has counts for the first snapshot that has it, as in
/// `zdb -b`. No key is needed. Lists of blocks that are still to be freed are not counted.
///
/// Reads every indirect block and every block of dnodes once, and keeps none. `progress` is told the
/// count now and then; where it breaks, the count ends.
pub fn block_statistics(
    pool: &Arc<Pool>,
    progress: &mut dyn FnMut(&BlockStatistics) -> ControlFlow<()>,
) -> BlockStatistics {
    let mut count = Count {
        found: BlockStatistics::default(),
        progress,
    };
    let _ = count.pool(pool);
    count.found
}

struct Count<'a> {
    found: BlockStatistics,
    progress: &'a mut dyn FnMut(&BlockStatistics) -> ControlFlow<()>,
}

impl Count<'_> {
    fn pool(&mut self, pool: &Arc<Pool>) -> ControlFlow<()> {
        self.object_set(pool.mos(), Txg(0))?;
        // Datasets are found by their objects, not by name, so that none is missed.
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
        ControlFlow::Continue(())
    }

    fn dataset(
        &mut self,
        pool: &Arc<Pool>,
        id: ObjectId,
        phys: &DslDatasetPhys,
    ) -> ControlFlow<()> {
        let root = phys.block_pointer;
        if root.is_hole() {
            return ControlFlow::Continue(());
        }
        let set = match ObjectSet::open(Arc::clone(pool.store()), id.0, root, None) {
            Ok(set) => set,
            Err(error) => {
                self.found.miss(BlockAddress::object_set(id.0), error);
                return ControlFlow::Continue(());
            }
        };
        if !phys.is_snapshot()
            && let Some(log) = IntentLog::open(&set)
        {
            self.log(&log);
        }
        self.object_set(&set, phys.previous_snapshot_txg)
    }

    /// The blocks of a log that hold anything, and the ones that claimed writes point to.
    fn log(&mut self, log: &IntentLog) {
        for block in log.blocks() {
            self.found.add(&block.pointer);
        }
    }

    fn object_set(&mut self, set: &Arc<ObjectSet>, born_after: Txg) -> ControlFlow<()> {
        if set.root().birth() <= born_after {
            return ControlFlow::Continue(());
        }
        self.found.add(set.root());
        let meta = set.meta_object();
        let per_block = (meta.block_bytes() / 512).max(1);
        let mut result = ControlFlow::Continue(());
        let found = &mut self.found;
        let progress = &mut *self.progress;
        // The blocks of dnodes, and with each the objects in it.
        let walk = TreeWalk::new(&meta).born_after(born_after);
        let _ = walk.run(&mut |step| {
            let is_dnodes = match &step {
                WalkStep::Pointer { address, .. } => {
                    (address.level.0 == 0).then_some(address.block)
                }
                WalkStep::Unreadable { .. } => None,
            };
            take(found, step);
            if let Some(block) = is_dnodes {
                let first = block.0.saturating_mul(per_block);
                objects_in(found, set, first, per_block, born_after);
                result = progress(found);
            }
            result
        });
        result?;
        for which in [Accounting::User, Accounting::Group, Accounting::Project] {
            if let Some(object) = set.accounting(which) {
                one_object(&mut self.found, &object, born_after);
            }
        }
        ControlFlow::Continue(())
    }
}

/// Counts the blocks of the objects with numbers from `first` on.
fn objects_in(
    found: &mut BlockStatistics,
    set: &Arc<ObjectSet>,
    first: u64,
    count: u64,
    born_after: Txg,
) {
    let end = first.saturating_add(count);
    let mut after = first.saturating_sub(1);
    loop {
        let object = match set.next_object(ObjectId(after)) {
            Ok(Some(object)) if object.id().0 < end => object,
            Ok(_) => return,
            Err(error) => {
                // One bad dnode does not hide the others of its block.
                let bad = match &error {
                    ObjectError::Invalid { object, .. } => Some(object.0),
                    _ => None,
                };
                let address = BlockAddress {
                    dataset: set.dataset(),
                    object: ObjectId(bad.unwrap_or(first)),
                    ..BlockAddress::default()
                };
                match bad {
                    Some(id) if id >= end => return,
                    _ => found.miss(address, error),
                }
                match bad {
                    Some(id) if id > after => {
                        after = id;
                        continue;
                    }
                    _ => return,
                }
            }
        };
        after = object.id().0;
        one_object(found, &object, born_after);
    }
}

fn one_object(found: &mut BlockStatistics, object: &Object, born_after: Txg) {
    let _ = TreeWalk::new(object)
        .born_after(born_after)
        .run(&mut |step| {
            take(found, step);
            ControlFlow::Continue(())
        });
}

fn take(found: &mut BlockStatistics, step: WalkStep<'_>) {
    match step {
        WalkStep::Pointer { pointer, .. } => found.add(pointer),
        WalkStep::Unreadable { address, error } => found.miss(address, error),
    }
}
