//! Computes how much was written since an earlier state, from sizes and deadlists alone.
//!
//! Page `docs/format/space-accounting.md`, "Written".

use crate::DatasetError;
use crate::error::Named;
use crate::properties::names::dataset_phys;
use millpond_env::sync::Arc;
use millpond_object::ObjectView;
use millpond_ondisk::dsl::hex_key_number;
use millpond_ondisk::{
    BLOCK_POINTER_BYTES, BlockId, BookmarkFlags, BookmarkPhys, BpObjectEntries, BpObjectPhys,
    DeadlistPhys, DecodeError, DslDatasetPhys, ObjectId, ObjectType, Txg,
};
use millpond_pool::PoolView;
use millpond_zap::Zap;

/// Deflated bytes of a dataset's blocks born after its previous snapshot. Reads two objects, regardless of
/// the number of snapshots.
pub(super) fn since_previous(
    pool: &Arc<PoolView>,
    phys: &DslDatasetPhys,
) -> Result<u64, DatasetError> {
    let Some(previous) = phys.previous_snapshot else {
        return Ok(phys.referenced_bytes);
    };
    let previous = dataset_phys(pool, previous)?;
    let freed = deadlist_bytes(pool, phys.deadlist)?;
    Ok(phys
        .referenced_bytes
        .saturating_add(freed)
        .saturating_sub(previous.referenced_bytes))
}

/// Bytes written after `since`, an earlier state in the same chain of snapshots; `None` if it is not in the
/// chain. Reads one deadlist per snapshot in between.
pub(super) fn since(
    pool: &Arc<PoolView>,
    phys: &DslDatasetPhys,
    since: &Since,
) -> Result<Option<u64>, DatasetError> {
    let mut freed = 0u64;
    let mut at = phys.clone();
    let mut later_txg = Txg(u64::MAX);
    loop {
        let previous_txg = at.previous_snapshot_txg;
        // Each snapshot must be older than the next one; otherwise the chain is a cycle.
        if previous_txg >= later_txg {
            let error = DecodeError::new("DSL dataset", "snapshots are not in order", 16);
            return Err(error).named("chain of snapshots");
        }
        later_txg = previous_txg;
        let Some(previous) = at.previous_snapshot else {
            return Ok(None);
        };
        if previous_txg < since.txg {
            // A bookmark of a destroyed snapshot stores how much was freed before the next snapshot.
            if since.snapshot.is_some() {
                return Ok(None);
            }
            break;
        }
        let is_last = previous_txg == since.txg;
        if is_last && since.snapshot.is_some_and(|id| id != previous) {
            return Ok(None);
        }
        let part = match (is_last, since.freed_before_next) {
            (true, Some(freed)) => freed,
            (true, None) => deadlist_bytes(pool, at.deadlist)?,
            (false, _) => deadlist_bytes_born_up_to(pool, at.deadlist, since.txg)?,
        };
        freed = freed.saturating_add(part);
        if is_last {
            return Ok(Some(difference(phys, freed, since)));
        }
        at = dataset_phys(pool, previous)?;
    }
    let Some(before_next) = since.freed_before_next else {
        return Ok(None);
    };
    freed = freed.saturating_add(before_next);
    Ok(Some(difference(phys, freed, since)))
}

fn difference(phys: &DslDatasetPhys, freed: u64, since: &Since) -> u64 {
    phys.referenced_bytes
        .saturating_add(freed)
        .saturating_sub(since.referenced_bytes)
}

/// The earlier state to compare with.
pub(super) struct Since {
    pub(super) txg: Txg,
    /// The snapshot; `None` for a bookmark.
    pub(super) snapshot: Option<ObjectId>,
    pub(super) referenced_bytes: u64,
    /// For a bookmark: bytes freed between it and the next snapshot.
    pub(super) freed_before_next: Option<u64>,
}

impl Since {
    /// The state of a snapshot.
    pub(super) fn snapshot(id: ObjectId, phys: &DslDatasetPhys) -> Self {
        Self {
            txg: phys.creation_txg,
            snapshot: Some(id),
            referenced_bytes: phys.referenced_bytes,
            freed_before_next: None,
        }
    }
    /// The state of a bookmark; `None` if the bookmark does not store the totals.
    pub(super) fn bookmark(phys: &BookmarkPhys) -> Option<Self> {
        let has_sums = phys.flags.contains(BookmarkFlags::HAS_FREED_BEFORE_NEXT);
        has_sums.then_some(Self {
            txg: phys.creation_txg,
            snapshot: None,
            referenced_bytes: phys.sizes.referenced,
            freed_before_next: Some(phys.freed_before_next.referenced),
        })
    }
}

/// The total of a whole deadlist in bytes.
fn deadlist_bytes(pool: &Arc<PoolView>, id: Option<ObjectId>) -> Result<u64, DatasetError> {
    let Some(object) = deadlist(pool, id)? else {
        return Ok(0);
    };
    let bonus = object.bonus().named(DEADLIST)?;
    let endian = object.dnode().endian;
    if object.dnode().object_type == ObjectType::BPOBJ {
        let list = BpObjectPhys::decode(bonus, endian).named(DEADLIST)?;
        return Ok(list.bytes);
    }
    let header = DeadlistPhys::decode(bonus, endian).named(DEADLIST)?;
    Ok(header.used_bytes)
}

/// The total of a deadlist's blocks born up to `txg`, in bytes. `txg` must be a key of the deadlist or the
/// end of its range.
fn deadlist_bytes_born_up_to(
    pool: &Arc<PoolView>,
    id: Option<ObjectId>,
    txg: Txg,
) -> Result<u64, DatasetError> {
    let Some(object) = deadlist(pool, id)? else {
        return Ok(0);
    };
    if object.dnode().object_type == ObjectType::BPOBJ {
        return old_list_bytes_born_up_to(pool, &object, txg);
    }
    let zap = Zap::open(object).named(DEADLIST)?;
    let mut sum = 0u64;
    for entry in zap.iter() {
        let entry = entry.named(DEADLIST)?;
        let (Some(key), Some(list)) = (hex_key_number(&entry.name), entry.value.first()) else {
            continue;
        };
        if key < txg.0 {
            let list = pool.mos().object(ObjectId(list)).named(DEADLIST)?;
            let bonus = list.bonus().named(DEADLIST)?;
            let phys = BpObjectPhys::decode(bonus, list.dnode().endian).named(DEADLIST)?;
            sum = sum.saturating_add(phys.bytes);
        }
    }
    Ok(sum)
}

/// Before pool version 26 a deadlist is a single list, which must be read completely.
fn old_list_bytes_born_up_to(
    pool: &Arc<PoolView>,
    object: &ObjectView,
    txg: Txg,
) -> Result<u64, DatasetError> {
    let bonus = object.bonus().named(DEADLIST)?;
    let phys = BpObjectPhys::decode(bonus, object.dnode().endian).named(DEADLIST)?;
    let mut left = phys.pointer_count;
    let per_block = (object.block_bytes() / BLOCK_POINTER_BYTES as u64).max(1);
    let mut sum = 0u64;
    let mut next = BlockId(0);
    while left > 0 {
        // A list has no holes. A hole is damage, and without this check a list of holes would be read
        // without end.
        if object.next_data_block(next).named(DEADLIST)? != Some(next) {
            let error = DecodeError::new("block pointer list", "shorter than its count", 0);
            return Err(error).named(DEADLIST);
        }
        let block = object.read_block(next).named(DEADLIST)?;
        let count = left.min(per_block);
        for entry in BpObjectEntries::new(&block.bytes, block.endian).take(count as usize) {
            if entry.pointer.birth() <= txg {
                sum = sum.saturating_add(pool.deflated_pointer_bytes(&entry.pointer));
            }
        }
        left -= count;
        next = BlockId(next.0.saturating_add(1));
    }
    Ok(sum)
}

fn deadlist(
    pool: &Arc<PoolView>,
    id: Option<ObjectId>,
) -> Result<Option<ObjectView>, DatasetError> {
    id.map(|id| pool.mos().object(id).named(DEADLIST))
        .transpose()
}

const DEADLIST: &str = "deadlist";
