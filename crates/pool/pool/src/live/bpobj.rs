//! Lists of block pointers, changed in syncing context.
//!
//! A list is what stands between a block that nobody references any more and the space that it
//! frees: deadlists, `free_bpobj`, `sync_bplist` and livelists are made of them. Sums in the header
//! cover sub-lists, so whoever moves a list below another one moves its sums too.
//!
//! Page `docs/format/bpobj.md`.

use super::context::{SpaceChange, SyncContext};
use crate::PoolError;
use crate::error::Reading;
use millpond_env::sync::Arc;
use millpond_object::{LiveObject, NewObject};
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{
    BLOCK_POINTER_BYTES, BlockId, BlockPointer, BpObjectEntries, BpObjectEntry, BpObjectForm,
    BpObjectPhys, DecodeError, Endian, ObjectId, ObjectType, WordArray,
};

const WHAT: &str = "block pointer list";
const ENTRY_BYTES: u64 = BLOCK_POINTER_BYTES as u64;
/// Data blocks of lists; of `sync_bplist` [`SYNC_LIST_BLOCK_BYTES`].
const BLOCK_BYTES: u32 = 128 << 10;
const SYNC_LIST_BLOCK_BYTES: u32 = 16 << 10;
/// A dnode's own compression: none.
const COMPRESSION_OFF: u8 = 2;
/// Lists nest at most this deep: a writer hangs lists below lists that hang below nothing, and moves
/// of moves make few levels. Bounds the walk over hostile ones.
const DEPTH_MAX: u32 = 64;

/// What the visitor of a drained list answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// The entry is done with and leaves the list.
    Taken,
    /// Enough for now: this entry and all before it stay.
    Enough,
}

/// A list of block pointers in the MOS, open for changes.
#[derive(Debug, Clone)]
pub struct BpObject {
    object: Arc<LiveObject>,
}

impl BpObject {
    /// The longest header that the pool allows at this moment.
    #[must_use]
    pub fn form_for_new(ctx: &SyncContext<'_>) -> BpObjectForm {
        match ctx.pool().version() {
            ..=2 => BpObjectForm::Count,
            3..=25 => BpObjectForm::Sizes,
            _ if ctx.feature_count("com.delphix:livelist") > 0 => BpObjectForm::Freed,
            _ => BpObjectForm::SubObjects,
        }
    }

    /// Makes an empty list.
    ///
    /// # Errors
    /// If the MOS cannot be changed.
    pub fn create(ctx: &SyncContext<'_>) -> Result<Self, PoolError> {
        let header = BpObjectPhys::empty(Self::form_for_new(ctx)).encode();
        let new = NewObject::new(ObjectType::BPOBJ)
            .with_block_bytes(BLOCK_BYTES)
            .with_bonus(ObjectType::BPOBJ_HEADER, header);
        let object = ctx.mos().allocate(ctx.tx(), new).reading(WHAT)?;
        Ok(Self { object })
    }

    /// Makes the list of frees that wait for the next txg: its blocks are never compressed, so that
    /// appending to it late in a txg does not change their size.
    ///
    /// # Errors
    /// If the MOS cannot be changed.
    pub fn create_sync_list(ctx: &SyncContext<'_>) -> Result<Self, PoolError> {
        let header = BpObjectPhys::empty(Self::form_for_new(ctx)).encode();
        let mut new = NewObject::new(ObjectType::BPOBJ)
            .with_block_bytes(SYNC_LIST_BLOCK_BYTES)
            .with_bonus(ObjectType::BPOBJ_HEADER, header);
        new.compression = COMPRESSION_OFF;
        let object = ctx.mos().allocate(ctx.tx(), new).reading(WHAT)?;
        Ok(Self { object })
    }

    /// Opens a list.
    ///
    /// # Errors
    /// If there is none of this number.
    pub fn open(ctx: &SyncContext<'_>, id: ObjectId) -> Result<Self, PoolError> {
        let object = ctx.mos().object(id).reading(WHAT)?;
        let list = Self { object };
        list.phys()?;
        Ok(list)
    }

    /// Its object number.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.object.id()
    }

    /// Its header, with the sums over everything below it.
    ///
    /// # Errors
    /// If the bonus is too short to be one.
    pub fn phys(&self) -> Result<BpObjectPhys, PoolError> {
        // Bonuses in memory are little-endian, whoever wrote them.
        BpObjectPhys::decode(&self.object.bonus(), Endian::Little).reading(WHAT)
    }

    fn set_phys(&self, ctx: &SyncContext<'_>, phys: &BpObjectPhys) -> Result<(), PoolError> {
        self.object.set_bonus(ctx.tx(), phys.encode()).reading(WHAT)
    }

    /// Appends a pointer; holes are passed over. `is_freed` is for livelists.
    ///
    /// # Errors
    /// If the MOS cannot be changed.
    pub fn append(
        &self,
        ctx: &SyncContext<'_>,
        pointer: &BlockPointer,
        is_freed: bool,
    ) -> Result<(), PoolError> {
        self.append_all(ctx, &[(*pointer, is_freed)])
    }

    /// Appends several pointers with one change of the header.
    ///
    /// # Errors
    /// If the MOS cannot be changed.
    pub fn append_all(
        &self,
        ctx: &SyncContext<'_>,
        pointers: &[(BlockPointer, bool)],
    ) -> Result<(), PoolError> {
        let mut phys = self.phys()?;
        let mut bytes = Vec::with_capacity(pointers.len() * BLOCK_POINTER_BYTES);
        let mut count = 0;
        for (pointer, is_freed) in pointers {
            let entry = BpObjectEntry {
                pointer: *pointer,
                is_freed: *is_freed,
            };
            let Some(entry) = entry.encode() else {
                continue;
            };
            bytes.extend_from_slice(&entry);
            count += 1;
            let size = ctx.space_of(pointer);
            if *is_freed {
                phys.freed_count = phys.freed_count.saturating_add(1);
                add(&mut phys, -size);
            } else {
                add(&mut phys, size);
            }
        }
        if count == 0 {
            return Ok(());
        }
        let at = phys.pointer_count.saturating_mul(ENTRY_BYTES);
        self.object.write(ctx.tx(), at, &bytes).reading(WHAT)?;
        phys.pointer_count = phys.pointer_count.saturating_add(count);
        self.set_phys(ctx, &phys)
    }

    /// Moves everything of the list `other` into this one; `other` is gone afterwards or hangs below
    /// this one, either way its number must not be used again. The shared empty list is only
    /// released.
    ///
    /// # Errors
    /// If a list cannot be read or the MOS cannot be changed.
    pub fn append_list(&self, ctx: &SyncContext<'_>, other: ObjectId) -> Result<(), PoolError> {
        if is_shared_empty(ctx, other)? {
            return release_shared_empty(ctx);
        }
        let sub = Self::open(ctx, other)?;
        let mut from = sub.phys()?;
        let sums = sums_of(&from);
        let freed = from.freed_count;
        if from.is_empty() {
            return ctx.mos().free(ctx.tx(), other).reading(WHAT);
        }
        // Short arrays of sub-lists are poured into ours, so that lists do not nest deeper with
        // each snapshot that goes.
        if let Some(array) = from.sub_objects {
            let array = ctx.mos().object(array).reading(WHAT)?;
            if from.sub_object_count.saturating_mul(8) <= array.block_bytes() {
                for id in read_numbers(&array, 0, from.sub_object_count)? {
                    self.add_sub_object(ctx, id)?;
                }
                ctx.mos().free(ctx.tx(), array.id()).reading(WHAT)?;
                from.sub_objects = None;
                from.sub_object_count = 0;
                sub.set_phys(ctx, &from)?;
            }
        }
        let own = from.pointer_count.saturating_mul(ENTRY_BYTES);
        if from.sub_objects.is_none() && own <= sub.object.block_bytes() {
            let block = sub.object.read_block(BlockId(0)).reading(WHAT)?;
            let valid = block.bytes.len().min(own as usize);
            // Through the decoder, since the block may be of the other byte order.
            let bytes: Vec<u8> = BpObjectEntries::new(&block.bytes[..valid], block.endian)
                .filter_map(|entry| entry.encode())
                .flatten()
                .collect();
            if bytes.len() as u64 != own {
                let error = DecodeError::new(WHAT, "an entry is a hole", 0);
                return Err(error).reading(WHAT);
            }
            let mut phys = self.phys()?;
            let at = phys.pointer_count.saturating_mul(ENTRY_BYTES);
            self.object.write(ctx.tx(), at, &bytes).reading(WHAT)?;
            phys.pointer_count = phys.pointer_count.saturating_add(from.pointer_count);
            self.set_phys(ctx, &phys)?;
            ctx.mos().free(ctx.tx(), other).reading(WHAT)?;
        } else {
            self.add_sub_object(ctx, other)?;
        }
        let mut phys = self.phys()?;
        add(&mut phys, sums);
        phys.freed_count = phys.freed_count.saturating_add(freed);
        self.set_phys(ctx, &phys)
    }

    /// Hangs a list below this one. The sums are the caller's business.
    fn add_sub_object(&self, ctx: &SyncContext<'_>, id: ObjectId) -> Result<(), PoolError> {
        let mut phys = self.phys()?;
        if phys.form < BpObjectForm::SubObjects {
            let error = DecodeError::new(WHAT, "its header has no room for sub-lists", 32);
            return Err(error).reading(WHAT);
        }
        let array = match phys.sub_objects {
            Some(array) => ctx.mos().object(array).reading(WHAT)?,
            None => {
                let new = NewObject::new(ObjectType::BPOBJ_SUBOBJ).with_block_bytes(BLOCK_BYTES);
                let array = ctx.mos().allocate(ctx.tx(), new).reading(WHAT)?;
                phys.sub_objects = Some(array.id());
                array
            }
        };
        let at = phys.sub_object_count.saturating_mul(8);
        array
            .write(ctx.tx(), at, &id.0.to_le_bytes())
            .reading(WHAT)?;
        phys.sub_object_count = phys.sub_object_count.saturating_add(1);
        self.set_phys(ctx, &phys)
    }

    /// Calls `each` with every entry, those of sub-lists too; nothing changes.
    ///
    /// # Errors
    /// If a list cannot be read, lists nest deeper than any writer nests them, or `each` fails.
    pub fn for_each(
        &self,
        ctx: &SyncContext<'_>,
        each: &mut dyn FnMut(&BpObjectEntry) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        self.walk(ctx, 0, each)
    }

    fn walk(
        &self,
        ctx: &SyncContext<'_>,
        depth: u32,
        each: &mut dyn FnMut(&BpObjectEntry) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        check_depth(depth)?;
        let phys = self.phys()?;
        let per_block = (self.object.block_bytes() / ENTRY_BYTES).max(1);
        let mut done = 0;
        while done < phys.pointer_count {
            let block = self
                .object
                .read_block(BlockId(done / per_block))
                .reading(WHAT)?;
            let count = (phys.pointer_count - done).min(per_block);
            let valid = block.bytes.len().min((count * ENTRY_BYTES) as usize);
            for entry in BpObjectEntries::new(&block.bytes[..valid], block.endian) {
                each(&entry)?;
            }
            done += per_block;
        }
        for id in self.sub_lists(ctx, &phys)? {
            Self::open(ctx, id)?.walk(ctx, depth + 1, each)?;
        }
        Ok(())
    }

    fn sub_lists(
        &self,
        ctx: &SyncContext<'_>,
        phys: &BpObjectPhys,
    ) -> Result<Vec<ObjectId>, PoolError> {
        let Some(array) = phys.sub_objects else {
            return Ok(vec![]);
        };
        let array = ctx.mos().object(array).reading(WHAT)?;
        read_numbers(&array, 0, phys.sub_object_count)
    }

    /// Takes entries from the end until `each` has enough or none is left. What was taken is gone
    /// from the list, and its sums with it, so that a list is whole at every txg. Returns whether
    /// the list is empty now.
    ///
    /// # Errors
    /// As [`BpObject::for_each`]; then what was taken so far is *not* taken off: the txg fails.
    pub fn drain(
        &self,
        ctx: &SyncContext<'_>,
        each: &mut dyn FnMut(&BpObjectEntry) -> Result<Drain, PoolError>,
    ) -> Result<bool, PoolError> {
        self.drain_at(ctx, 0, each).map(|(is_empty, _, _)| is_empty)
    }

    /// Returns whether nothing is left, and what was taken (sums, and how many freed ones).
    fn drain_at(
        &self,
        ctx: &SyncContext<'_>,
        depth: u32,
        each: &mut dyn FnMut(&BpObjectEntry) -> Result<Drain, PoolError>,
    ) -> Result<(bool, SpaceChange, u64), PoolError> {
        check_depth(depth)?;
        let mut phys = self.phys()?;
        let (mut sums, mut freed) = (SpaceChange::default(), 0);
        let had = phys.pointer_count;
        let per_block = (self.object.block_bytes() / ENTRY_BYTES).max(1);
        let mut is_enough = false;
        'blocks: while phys.pointer_count > 0 {
            let id = (phys.pointer_count - 1) / per_block;
            let block = self.object.read_block(BlockId(id)).reading(WHAT)?;
            let count = phys.pointer_count - id * per_block;
            let valid = block.bytes.len().min((count * ENTRY_BYTES) as usize);
            if valid == 0 {
                let error = DecodeError::new(WHAT, "its blocks are shorter than an entry", 0);
                return Err(error).reading(WHAT);
            }
            for entry in BpObjectEntries::new(&block.bytes[..valid], block.endian).rev() {
                if each(&entry)? == Drain::Enough {
                    is_enough = true;
                    break 'blocks;
                }
                phys.pointer_count -= 1;
                let size = ctx.space_of(&entry.pointer);
                sums += if entry.is_freed { -size } else { size };
                freed += u64::from(entry.is_freed);
            }
        }
        if phys.pointer_count < had {
            let keep = phys.pointer_count.saturating_mul(ENTRY_BYTES);
            let block = self.object.block_bytes();
            // The block that is still partly used stays whole.
            let from = keep.div_ceil(block).saturating_mul(block);
            self.object
                .free_range(ctx.tx(), from, u64::MAX)
                .reading(WHAT)?;
        }
        while !is_enough && phys.sub_object_count > 0 {
            let Some(array_id) = phys.sub_objects else {
                break;
            };
            let array = ctx.mos().object(array_id).reading(WHAT)?;
            let last = phys.sub_object_count - 1;
            let Some(id) = read_numbers(&array, last, 1)?.first().copied() else {
                break;
            };
            let sub = Self::open(ctx, id)?;
            let (is_empty, sub_sums, sub_freed) = sub.drain_at(ctx, depth + 1, each)?;
            sums += sub_sums;
            freed += sub_freed;
            if !is_empty {
                is_enough = true;
                continue;
            }
            ctx.mos().free(ctx.tx(), id).reading(WHAT)?;
            phys.sub_object_count = last;
            if last == 0 {
                ctx.mos().free(ctx.tx(), array_id).reading(WHAT)?;
                phys.sub_objects = None;
            }
        }
        add(&mut phys, -sums);
        phys.freed_count = phys.freed_count.saturating_sub(freed);
        self.set_phys(ctx, &phys)?;
        Ok((phys.is_empty(), sums, freed))
    }

    /// Frees a list with all sub-lists; what it lists is not touched. The shared empty one is only
    /// released.
    ///
    /// # Errors
    /// If a list cannot be read or the MOS cannot be changed.
    pub fn free(ctx: &SyncContext<'_>, id: ObjectId) -> Result<(), PoolError> {
        if is_shared_empty(ctx, id)? {
            return release_shared_empty(ctx);
        }
        Self::free_at(ctx, id, 0)
    }

    fn free_at(ctx: &SyncContext<'_>, id: ObjectId, depth: u32) -> Result<(), PoolError> {
        check_depth(depth)?;
        let list = Self::open(ctx, id)?;
        let phys = list.phys()?;
        for sub in list.sub_lists(ctx, &phys)? {
            Self::free_at(ctx, sub, depth + 1)?;
        }
        if let Some(array) = phys.sub_objects {
            ctx.mos().free(ctx.tx(), array).reading(WHAT)?;
        }
        ctx.mos().free(ctx.tx(), id).reading(WHAT)
    }
}

/// An empty list for a deadlist: the shared one where the pool has feature `empty_bpobj`, else one of
/// its own.
///
/// # Errors
/// If the MOS cannot be changed.
pub fn new_empty_list(ctx: &SyncContext<'_>) -> Result<ObjectId, PoolError> {
    if !ctx.feature_is_enabled(EMPTY_BPOBJ) {
        return BpObject::create(ctx).map(|list| list.id());
    }
    let shared = match ctx.directory_object(key::EMPTY_BPOBJ)? {
        Some(id) => id,
        None => {
            let id = BpObject::create(ctx)?.id();
            ctx.set_directory_number(key::EMPTY_BPOBJ, id.0)?;
            id
        }
    };
    ctx.feature_increment(EMPTY_BPOBJ)?;
    Ok(shared)
}

/// Whether a number is that of the list that all empty ones share. Nothing may be appended to it.
///
/// # Errors
/// If the object directory cannot be read.
pub fn is_shared_empty(ctx: &SyncContext<'_>, id: ObjectId) -> Result<bool, PoolError> {
    if ctx.feature_count(EMPTY_BPOBJ) == 0 {
        return Ok(false);
    }
    Ok(ctx.directory_object(key::EMPTY_BPOBJ)? == Some(id))
}

/// One reference less to the shared empty list; with the last one it goes.
///
/// # Errors
/// If the MOS cannot be changed.
pub fn release_shared_empty(ctx: &SyncContext<'_>) -> Result<(), PoolError> {
    ctx.feature_decrement(EMPTY_BPOBJ)?;
    if ctx.feature_count(EMPTY_BPOBJ) > 0 {
        return Ok(());
    }
    if let Some(id) = ctx.directory_object(key::EMPTY_BPOBJ)? {
        ctx.mos().free(ctx.tx(), id).reading(WHAT)?;
        ctx.remove_directory_entry(key::EMPTY_BPOBJ)?;
    }
    Ok(())
}

const EMPTY_BPOBJ: &str = "com.delphix:empty_bpobj";

fn check_depth(depth: u32) -> Result<(), PoolError> {
    if depth > DEPTH_MAX {
        return Err(DecodeError::new(WHAT, "lists nest too deep", 0)).reading(WHAT);
    }
    Ok(())
}

fn sums_of(phys: &BpObjectPhys) -> SpaceChange {
    SpaceChange {
        used: phys.bytes as i64,
        compressed: phys.compressed_bytes as i64,
        uncompressed: phys.uncompressed_bytes as i64,
    }
}

/// Sums may pass below zero in livelists on the way; they are kept modulo 2^64 as everywhere.
fn add(phys: &mut BpObjectPhys, change: SpaceChange) {
    phys.bytes = phys.bytes.wrapping_add_signed(change.used);
    if phys.form >= BpObjectForm::Sizes {
        phys.compressed_bytes = phys.compressed_bytes.wrapping_add_signed(change.compressed);
        phys.uncompressed_bytes = phys
            .uncompressed_bytes
            .wrapping_add_signed(change.uncompressed);
    }
}

/// `count` numbers of an array of objects, from `first` on. Memory is bounded by the array's blocks:
/// what lies beyond its last block is not asked for.
fn read_numbers(array: &LiveObject, first: u64, count: u64) -> Result<Vec<ObjectId>, PoolError> {
    let per_block = (array.block_bytes() / 8).max(1);
    let room = array
        .block_id_max()
        .0
        .saturating_add(1)
        .saturating_mul(per_block);
    let end = first.saturating_add(count);
    if end > room {
        let error = DecodeError::new(WHAT, "more sub-lists than its array holds", 40);
        return Err(error).reading(WHAT);
    }
    let mut numbers = vec![];
    let mut at = first;
    while at < end {
        let block = array.read_block(BlockId(at / per_block)).reading(WHAT)?;
        let words = WordArray::new(&block.bytes, block.endian);
        let within = at % per_block;
        let take = (per_block - within).min(end - at);
        numbers.extend(
            words
                .iter()
                .skip(within as usize)
                .take(take as usize)
                .map(ObjectId),
        );
        at += take;
    }
    Ok(numbers)
}
