//! Loads the clone tables when a pool is opened for changes: headers and counters, not the entries.

use super::{
    BLOCK_CLONING, COUNTER_BLOCK_BYTES, CloneTable, CloneTables, WHAT, counters_of, invalid,
};
use crate::error::Reading;
use crate::{PoolError, PoolView};
use millpond_alloc::VdevGeometry;
use millpond_ondisk::dedup::{CLONE_RANGE_BYTES, CloneCounters};
use millpond_ondisk::pool_directory::clone_table_key;
use millpond_ondisk::{CloneTablePhys, ObjectId, VdevId};
use millpond_zap::Zap;
use std::collections::{BTreeMap, BTreeSet};

impl CloneTables {
    /// Loads the tables of a committed state.
    ///
    /// # Errors
    /// If a table cannot be read, or its header, its counters, the number of its entries and the feature's count
    /// contradict each other. Blocks could then be freed that are still in use.
    pub(crate) fn load(
        read: &PoolView,
        geometries: &BTreeMap<VdevId, VdevGeometry>,
    ) -> Result<Self, PoolError> {
        let mut all = Self::default();
        for (vdev, geometry) in geometries {
            if let Some(id) = read.find_directory_object(&clone_table_key(*vdev))? {
                all.tables.insert(*vdev, load_one(read, id, geometry)?);
            }
        }
        let counted = read.features().count(BLOCK_CLONING).unwrap_or(0);
        if counted != all.tables.len() as u64 {
            return Err(invalid("the feature counts another number of tables", 0));
        }
        Ok(all)
    }
}

fn load_one(
    read: &PoolView,
    id: ObjectId,
    geometry: &VdevGeometry,
) -> Result<CloneTable, PoolError> {
    let object = read.mos().object(id).reading(WHAT)?;
    let bonus = object.bonus().reading(WHAT)?;
    let phys = CloneTablePhys::decode(bonus, object.dnode().endian).reading(WHAT)?;
    if phys.range_bytes != CLONE_RANGE_BYTES {
        return Err(invalid("ranges of another size", 32));
    }
    if phys.counter_count > counters_of(geometry)? {
        return Err(invalid("more counters than its vdev has ranges", 8));
    }
    let entries = phys.entries.ok_or_else(|| invalid("no entries", 0))?;
    let zap = Zap::open(read.mos().object(entries).reading(WHAT)?).reading(WHAT)?;
    if !zap.has_word_keys() {
        return Err(invalid("its entries have names", 0));
    }
    if zap.entry_count().reading(WHAT)? != phys.entry_count {
        return Err(invalid("another number of entries than it says", 24));
    }
    let mut counters = Vec::with_capacity(phys.counter_count as usize);
    let mut block = vec![0; COUNTER_BLOCK_BYTES];
    while (counters.len() as u64) < phys.counter_count {
        let at = (counters.len() as u64).saturating_mul(2);
        let left = phys.counter_count.saturating_sub(counters.len() as u64);
        let bytes = left.saturating_mul(2).min(COUNTER_BLOCK_BYTES as u64) as usize;
        let block = block.get_mut(..bytes).unwrap_or_default();
        object.read(at, block).reading(WHAT)?;
        let stored = CloneCounters::new(block, phys.counter_endian);
        counters.extend((0..bytes as u64 / 2).map(|index| stored.get(index)));
    }
    let counted: u64 = counters.iter().map(|counter| u64::from(*counter)).sum();
    if counted != phys.entry_count {
        return Err(invalid("its counters contradict the number of entries", 24));
    }
    Ok(CloneTable {
        object: id,
        entries,
        phys,
        counters,
        changed_blocks: BTreeSet::new(),
        is_changed: false,
    })
}
