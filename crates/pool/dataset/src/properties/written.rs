//! Computes how much was written since an earlier state, from sizes and deadlists alone.
//!
//! Page `docs/format/space-accounting.md`, "Written".

use crate::error::Named;
use crate::properties::names::dataset_phys;
use crate::{Dataset, DatasetError};
use millpond_env::sync::Arc;
use millpond_object::ObjectView;
use millpond_ondisk::dsl::hex_key_number;
use millpond_ondisk::{
    BLOCK_POINTER_BYTES, BlockId, BookmarkFlags, BookmarkPhys, BookmarkSizes, BpObjectEntries,
    BpObjectPhys, DeadlistPhys, DecodeError, DslDatasetPhys, ObjectId, ObjectType, Txg,
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
    let freed = deadlist_sizes(pool, phys.deadlist)?.referenced;
    Ok(phys
        .referenced_bytes
        .saturating_add(freed)
        .saturating_sub(previous.referenced_bytes))
}

/// What was written after `since`, an earlier state in the same chain of snapshots; `None` if it is not in the
/// chain. Reads one deadlist per snapshot in between.
pub(super) fn since(
    pool: &Arc<PoolView>,
    phys: &DslDatasetPhys,
    since: &Since,
) -> Result<Option<BookmarkSizes>, DatasetError> {
    let mut freed = BookmarkSizes::default();
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
            (true, None) => deadlist_sizes(pool, at.deadlist)?,
            (false, _) => deadlist_sizes_born_up_to(pool, at.deadlist, since.txg)?,
        };
        freed = sum(freed, part);
        if is_last {
            return Ok(Some(difference(phys, freed, since)));
        }
        at = dataset_phys(pool, previous)?;
    }
    let Some(before_next) = since.freed_before_next else {
        return Ok(None);
    };
    freed = sum(freed, before_next);
    Ok(Some(difference(phys, freed, since)))
}

fn sizes_of(phys: &DslDatasetPhys) -> BookmarkSizes {
    BookmarkSizes {
        referenced: phys.referenced_bytes,
        compressed: phys.compressed_bytes,
        uncompressed: phys.uncompressed_bytes,
    }
}

fn each(one: BookmarkSizes, other: BookmarkSizes, combine: fn(u64, u64) -> u64) -> BookmarkSizes {
    BookmarkSizes {
        referenced: combine(one.referenced, other.referenced),
        compressed: combine(one.compressed, other.compressed),
        uncompressed: combine(one.uncompressed, other.uncompressed),
    }
}

fn sum(one: BookmarkSizes, other: BookmarkSizes) -> BookmarkSizes {
    each(one, other, u64::saturating_add)
}

fn difference(phys: &DslDatasetPhys, freed: BookmarkSizes, since: &Since) -> BookmarkSizes {
    each(sum(sizes_of(phys), freed), since.sizes, u64::saturating_sub)
}

impl Dataset {
    /// The sizes of all blocks that it refers to.
    #[must_use]
    pub fn sizes(&self) -> BookmarkSizes {
        sizes_of(self.phys())
    }

    /// The sizes of its blocks that were born after an earlier snapshot; `None` if it does not descend from it.
    ///
    /// # Errors
    /// If a deadlist cannot be read.
    pub fn sizes_since(&self, earlier: &Dataset) -> Result<Option<BookmarkSizes>, DatasetError> {
        let earlier = Since::snapshot(earlier.id(), earlier.phys());
        since(self.pool(), self.phys(), &earlier)
    }

    /// The sizes of its blocks that were born after a bookmark; `None` if it does not descend from it, or the bookmark
    /// does not say enough.
    ///
    /// # Errors
    /// If a deadlist cannot be read.
    pub fn sizes_since_bookmark(
        &self,
        earlier: &BookmarkPhys,
    ) -> Result<Option<BookmarkSizes>, DatasetError> {
        match Since::bookmark(earlier) {
            Some(earlier) => since(self.pool(), self.phys(), &earlier),
            None => Ok(None),
        }
    }
}

/// The earlier state to compare with.
pub(super) struct Since {
    pub(super) txg: Txg,
    /// The snapshot; `None` for a bookmark.
    pub(super) snapshot: Option<ObjectId>,
    pub(super) sizes: BookmarkSizes,
    /// For a bookmark: what was freed between it and the next snapshot.
    pub(super) freed_before_next: Option<BookmarkSizes>,
}

impl Since {
    /// The state of a snapshot.
    pub(super) fn snapshot(id: ObjectId, phys: &DslDatasetPhys) -> Self {
        Self {
            txg: phys.creation_txg,
            snapshot: Some(id),
            sizes: sizes_of(phys),
            freed_before_next: None,
        }
    }
    /// The state of a bookmark; `None` if the bookmark does not store the totals.
    pub(super) fn bookmark(phys: &BookmarkPhys) -> Option<Self> {
        let has_sums = phys.flags.contains(BookmarkFlags::HAS_FREED_BEFORE_NEXT);
        has_sums.then_some(Self {
            txg: phys.creation_txg,
            snapshot: None,
            sizes: phys.sizes,
            freed_before_next: Some(phys.freed_before_next),
        })
    }
}

/// The sizes of all blocks in a deadlist.
fn deadlist_sizes(
    pool: &Arc<PoolView>,
    id: Option<ObjectId>,
) -> Result<BookmarkSizes, DatasetError> {
    let Some(object) = deadlist(pool, id)? else {
        return Ok(BookmarkSizes::default());
    };
    sizes_of_deadlist(&object)
}

fn sizes_of_deadlist(object: &ObjectView) -> Result<BookmarkSizes, DatasetError> {
    let bonus = object.bonus().named(DEADLIST)?;
    let endian = object.dnode().endian;
    if object.dnode().object_type == ObjectType::BPOBJ {
        let list = BpObjectPhys::decode(bonus, endian).named(DEADLIST)?;
        return Ok(sizes_of_list(&list));
    }
    let header = DeadlistPhys::decode(bonus, endian).named(DEADLIST)?;
    Ok(BookmarkSizes {
        referenced: header.used_bytes,
        compressed: header.compressed_bytes,
        uncompressed: header.uncompressed_bytes,
    })
}

fn sizes_of_list(list: &BpObjectPhys) -> BookmarkSizes {
    BookmarkSizes {
        referenced: list.bytes,
        compressed: list.compressed_bytes,
        uncompressed: list.uncompressed_bytes,
    }
}

/// The sizes of a deadlist's blocks born up to `txg`, which must be a key of the deadlist or the end of its
/// range.
fn deadlist_sizes_born_up_to(
    pool: &Arc<PoolView>,
    id: Option<ObjectId>,
    txg: Txg,
) -> Result<BookmarkSizes, DatasetError> {
    let Some(object) = deadlist(pool, id)? else {
        return Ok(BookmarkSizes::default());
    };
    if object.dnode().object_type == ObjectType::BPOBJ {
        return old_list_sizes_born_up_to(pool, &object, txg);
    }
    let mut total = BookmarkSizes::default();
    // The sum of an empty one is known. Many are empty, and each has as many lists as there are snapshots before it.
    if sizes_of_deadlist(&object)? == total {
        return Ok(total);
    }
    let zap = Zap::open(object).named(DEADLIST)?;
    for entry in zap.iter() {
        let entry = entry.named(DEADLIST)?;
        let (Some(key), Some(list)) = (hex_key_number(&entry.name), entry.value.first()) else {
            continue;
        };
        if key < txg.0 {
            let list = pool.mos().object(ObjectId(list)).named(DEADLIST)?;
            let bonus = list.bonus().named(DEADLIST)?;
            let phys = BpObjectPhys::decode(bonus, list.dnode().endian).named(DEADLIST)?;
            total = sum(total, sizes_of_list(&phys));
        }
    }
    Ok(total)
}

/// Before pool version 26 a deadlist is a single list, which must be read completely.
fn old_list_sizes_born_up_to(
    pool: &Arc<PoolView>,
    object: &ObjectView,
    txg: Txg,
) -> Result<BookmarkSizes, DatasetError> {
    let bonus = object.bonus().named(DEADLIST)?;
    let phys = BpObjectPhys::decode(bonus, object.dnode().endian).named(DEADLIST)?;
    let mut left = phys.pointer_count;
    let per_block = (object.block_bytes() / BLOCK_POINTER_BYTES as u64).max(1);
    let mut total = BookmarkSizes::default();
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
                let pointer = &entry.pointer;
                let sizes = BookmarkSizes {
                    referenced: pool.deflated_pointer_bytes(pointer),
                    compressed: pointer.psize_bytes(),
                    uncompressed: pointer.lsize_bytes(),
                };
                total = sum(total, sizes);
            }
        }
        left -= count;
        next = BlockId(next.0.saturating_add(1));
    }
    Ok(total)
}

fn deadlist(
    pool: &Arc<PoolView>,
    id: Option<ObjectId>,
) -> Result<Option<ObjectView>, DatasetError> {
    id.map(|id| pool.mos().object(id).named(DEADLIST))
        .transpose()
}

const DEADLIST: &str = "deadlist";
