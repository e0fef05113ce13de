//! Block pointer lists (bpobjs), changed in syncing context.
//!
//! A list holds dead blocks until their space is freed. Deadlists, `free_bpobj`, `sync_bplist` and
//! livelists consist of such lists. The totals in a list's header include its sub-lists, so code that moves
//! a list below another one must move the totals too.
//!
//! Page `docs/format/bpobj.md`.

use crate::PoolError;
use crate::error::Reading;
use crate::sync::context::{SpaceChange, SyncContext};
use millpond_env::sync::Arc;
use millpond_object::{NewObject, Object};
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::{
    BLOCK_POINTER_BYTES, BlockId, BlockPointer, BpObjectEntries, BpObjectEntry, BpObjectForm,
    BpObjectPhys, DecodeError, Endian, ObjectId, ObjectType, WordArray,
};

const WHAT: &str = "block pointer list";
const ENTRY_BYTES: u64 = BLOCK_POINTER_BYTES as u64;
/// Size of a list's data blocks in bytes; `sync_bplist` uses [`SYNC_LIST_BLOCK_BYTES`].
const BLOCK_BYTES: u32 = 128 << 10;
const SYNC_LIST_BLOCK_BYTES: u32 = 16 << 10;
/// The dnode's compression setting for uncompressed blocks.
const COMPRESSION_OFF: u8 = 2;
/// The deepest nesting of lists that is accepted.
///
/// A writer attaches a list only below a list that is not a sub-list itself, and repeated moves add few
/// further levels. The limit bounds the walk over hostile lists.
const DEPTH_MAX: u32 = 64;

/// The result of the visitor of a drained list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// The entry is processed and leaves the list.
    Remove,
    /// Stop: this entry and all before it stay in the list.
    Stop,
}

/// A list of block pointers in the MOS, open for changes.
#[derive(Debug, Clone)]
pub struct BpObject {
    object: Arc<Object>,
}

impl BpObject {
    /// The longest header form that the pool currently allows.
    #[must_use]
    pub fn form_for_new(ctx: &SyncContext<'_>) -> BpObjectForm {
        match ctx.pool().version() {
            ..=2 => BpObjectForm::Count,
            3..=25 => BpObjectForm::Sizes,
            _ if ctx.feature_count("com.delphix:livelist") > 0 => BpObjectForm::Freed,
            _ => BpObjectForm::SubObjects,
        }
    }

    /// Creates an empty list.
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

    /// Creates the list of frees deferred to the next txg.
    ///
    /// Its blocks are never compressed, so that appending late in a txg does not change their size.
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
    /// If the object does not exist or is not such a list.
    pub fn open(ctx: &SyncContext<'_>, id: ObjectId) -> Result<Self, PoolError> {
        let object = ctx.mos().object(id).reading(WHAT)?;
        let list = Self { object };
        list.phys()?;
        Ok(list)
    }

    /// The list's object id.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.object.id()
    }

    /// The list's header, with totals that include its sub-lists.
    ///
    /// # Errors
    /// If the bonus is too short for a header.
    pub fn phys(&self) -> Result<BpObjectPhys, PoolError> {
        // Bonus buffers in memory are little-endian, whatever the on-disk byte order.
        BpObjectPhys::decode(&self.object.bonus(), Endian::Little).reading(WHAT)
    }

    fn set_phys(&self, ctx: &SyncContext<'_>, phys: &BpObjectPhys) -> Result<(), PoolError> {
        self.object.set_bonus(ctx.tx(), phys.encode()).reading(WHAT)
    }

    /// Appends a pointer; ignores holes. `is_freed` is for livelists.
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

    /// Appends several pointers with a single header update.
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

    /// Moves the content of the list `other` into this one.
    ///
    /// Afterwards `other` is either freed or a sub-list of this list, so the caller must not use its object
    /// id again. If `other` is the shared empty list, only its reference is released.
    ///
    /// # Errors
    /// If a list cannot be read or the MOS cannot be changed.
    pub fn append_list(&self, ctx: &SyncContext<'_>, other: ObjectId) -> Result<(), PoolError> {
        if is_shared_empty(ctx, other)? {
            return release_shared_empty(ctx, 1);
        }
        let sub = Self::open(ctx, other)?;
        let mut from = sub.phys()?;
        let sums = sums_of(&from);
        let freed = from.freed_count;
        if from.is_empty() {
            return ctx.mos().free(ctx.tx(), other).reading(WHAT);
        }
        // Short arrays of sub-lists are merged into this list's array, so that nesting does not grow with
        // each destroyed snapshot.
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
            // Decode and encode, since the block may have the other byte order.
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

    /// Attaches a list as a sub-list. The caller updates the totals.
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

    /// Calls `each` with every entry, including those of sub-lists. Does not change the list.
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

    /// Removes entries from the end until `each` returns [`Drain::Stop`] or the list is empty. Returns
    /// whether it is empty.
    ///
    /// The entries and their share of the totals leave the list together, so the list is consistent in
    /// every txg.
    ///
    /// # Errors
    /// As for [`BpObject::for_each`]. In that case the entries processed so far are *not* removed, and the
    /// txg must fail.
    pub fn drain(
        &self,
        ctx: &SyncContext<'_>,
        each: &mut dyn FnMut(&BpObjectEntry) -> Result<Drain, PoolError>,
    ) -> Result<bool, PoolError> {
        self.drain_at(ctx, 0, each).map(|(is_empty, _, _)| is_empty)
    }

    /// Returns whether the list is empty, the totals of the removed entries, and how many of them were
    /// marked freed.
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
                if each(&entry)? == Drain::Stop {
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
            // Keep the block that is still partly used.
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

    /// Frees a list with all its sub-lists, but not the blocks that they list. For the shared empty list it
    /// only releases the reference.
    ///
    /// # Errors
    /// If a list cannot be read or the MOS cannot be changed.
    pub fn free(ctx: &SyncContext<'_>, id: ObjectId) -> Result<(), PoolError> {
        if is_shared_empty(ctx, id)? {
            return release_shared_empty(ctx, 1);
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

/// Returns an empty list for a deadlist: the shared one if feature `empty_bpobj` is enabled, else a new
/// list.
///
/// # Errors
/// If the MOS cannot be changed.
pub fn new_empty_list(ctx: &SyncContext<'_>) -> Result<ObjectId, PoolError> {
    match acquire_shared_empty(ctx, 1)? {
        Some(shared) => Ok(shared),
        None => BpObject::create(ctx).map(|list| list.id()),
    }
}

/// Takes `count` references to the shared empty list. `None` if feature `empty_bpobj` is disabled.
///
/// # Errors
/// If the MOS cannot be changed.
pub fn acquire_shared_empty(
    ctx: &SyncContext<'_>,
    count: usize,
) -> Result<Option<ObjectId>, PoolError> {
    if !ctx.feature_is_enabled(EMPTY_BPOBJ) {
        return Ok(None);
    }
    let shared = match ctx.directory_object(key::EMPTY_BPOBJ)? {
        Some(id) => id,
        None => {
            let id = BpObject::create(ctx)?.id();
            ctx.set_directory_number(key::EMPTY_BPOBJ, id.0)?;
            id
        }
    };
    ctx.feature_add(EMPTY_BPOBJ, i64::try_from(count).unwrap_or(i64::MAX))?;
    Ok(Some(shared))
}

/// The shared empty list, to which nothing may be appended; `None` if nothing refers to it.
///
/// # Errors
/// If the object directory cannot be read.
pub fn shared_empty(ctx: &SyncContext<'_>) -> Result<Option<ObjectId>, PoolError> {
    match ctx.feature_count(EMPTY_BPOBJ) {
        0 => Ok(None),
        _ => ctx.directory_object(key::EMPTY_BPOBJ),
    }
}

/// Whether an object id is that of the shared empty list.
///
/// # Errors
/// If the object directory cannot be read.
pub fn is_shared_empty(ctx: &SyncContext<'_>, id: ObjectId) -> Result<bool, PoolError> {
    Ok(shared_empty(ctx)? == Some(id))
}

/// Releases references to the shared empty list and frees it with the last one.
///
/// # Errors
/// If the MOS cannot be changed.
pub fn release_shared_empty(ctx: &SyncContext<'_>, count: usize) -> Result<(), PoolError> {
    if count == 0 {
        return Ok(());
    }
    let change = i64::try_from(count).unwrap_or(i64::MAX);
    ctx.feature_add(EMPTY_BPOBJ, -change)?;
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

/// Livelist totals may be temporarily negative; like all totals they are stored modulo 2^64.
fn add(phys: &mut BpObjectPhys, change: SpaceChange) {
    phys.bytes = phys.bytes.wrapping_add_signed(change.used);
    if phys.form >= BpObjectForm::Sizes {
        phys.compressed_bytes = phys.compressed_bytes.wrapping_add_signed(change.compressed);
        phys.uncompressed_bytes = phys
            .uncompressed_bytes
            .wrapping_add_signed(change.uncompressed);
    }
}

/// Reads `count` object ids of an array, starting at index `first`. The array's last block bounds the
/// memory used: ids beyond it are not read.
fn read_numbers(array: &Object, first: u64, count: u64) -> Result<Vec<ObjectId>, PoolError> {
    let per_block = (array.block_bytes() / 8).max(1);
    let capacity = array
        .block_id_max()
        .0
        .saturating_add(1)
        .saturating_mul(per_block);
    let end = first.saturating_add(count);
    if end > capacity {
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
