//! Volumes that are open for changes.

mod records;

pub use records::ReplayBlock;

use crate::VolumeError;
use crate::volume::{DATA, PROPERTIES, SIZE};
use millpond_env::Env;
use millpond_env::sync::{Arc, Mutex, RwLock};
use millpond_object::{NewObject, Object, ObjectError, ObjectSet, unhurried};
use millpond_ondisk::{BlockId, ObjectSetKind, ObjectType};
use millpond_posix::live::{Estimate, RangeLocks, TransactionError, TransactionSource};
use millpond_txg::Transaction;
use millpond_zap::{NewZap, Zap, ZapError, ZapMut, ZapShape, new_salt};

/// The most bytes written in one transaction.
const CHUNK_BYTES: u64 = 4 << 20;
/// About the most blocks freed in one transaction: a third of what one txg frees.
const FREE_BLOCKS_MAX: u64 = 1 << 15;
/// The most bytes that freeing that many blocks dirties: indirect blocks.
const FREE_DIRTY_BYTES: u64 = 8 << 20;
/// The most bytes that changing the property table dirties.
const TABLE_BYTES: u64 = 64 << 10;
const BLOCK_BYTES_MAX: u32 = 16 << 20;

/// Creates a volume of zeros in an empty object set of kind "volume".
///
/// `size_bytes` is a multiple of `block_bytes`, which is a power of two from 512 bytes to 16 MiB and never
/// changes (`volblocksize`). Page `docs/format/volume.md`.
///
/// # Errors
/// [`VolumeError::Refused`] for an invalid size or block size; if the objects cannot be created.
pub fn create_volume(
    name: &str,
    set: &Arc<ObjectSet>,
    tx: &Transaction,
    env: &Env,
    size_bytes: u64,
    block_bytes: u32,
) -> Result<(), VolumeError> {
    let errors = Errors(name);
    let is_block = block_bytes.is_power_of_two() && (512..=BLOCK_BYTES_MAX).contains(&block_bytes);
    if !is_block {
        return Err(errors.refused("blocks are a power of two from 512 bytes to 16 MiB"));
    }
    errors.check_size(size_bytes, u64::from(block_bytes))?;
    let data = NewObject::new(ObjectType::ZVOL).with_block_bytes(block_bytes);
    set.allocate_at(tx, DATA, data)
        .map_err(|error| errors.object(error))?;
    let table = ZapShape::USUAL.object(ObjectType::ZVOL_PROP);
    let table = set
        .allocate_at(tx, PROPERTIES, table)
        .map_err(|error| errors.object(error))?;
    let table = ZapMut::of(&table, tx);
    table
        .create(&NewZap::plain(new_salt(env)))
        .and_then(|()| table.insert_u64(SIZE, size_bytes))
        .map_err(|error| errors.zap(error))
}

/// A volume open for changes. All threads share it; requests to different blocks run in parallel.
///
/// Locks: a request locks its byte range before its transaction begins, and holds it until the request ends.
pub struct LiveVolume {
    name: Arc<str>,
    set: Arc<ObjectSet>,
    data: Arc<Object>,
    table: Arc<Object>,
    begin: Arc<dyn TransactionSource>,
    size_bytes: RwLock<u64>,
    /// Held while the size changes.
    resizing: Mutex<()>,
    ranges: RangeLocks,
}

impl std::fmt::Debug for LiveVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveVolume")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl LiveVolume {
    /// Opens the volume in an object set. Errors use `name`.
    ///
    /// # Errors
    /// [`VolumeError::NotAVolume`] for a file system; [`VolumeError::NoSize`]; if one of its two objects
    /// cannot be read.
    pub fn open(
        name: &str,
        set: &Arc<ObjectSet>,
        begin: Arc<dyn TransactionSource>,
    ) -> Result<Self, VolumeError> {
        let errors = Errors(name);
        if set.kind() != ObjectSetKind::Volume {
            let name = name.to_owned();
            return Err(VolumeError::NotAVolume { name });
        }
        let object = |id| set.object(id).map_err(|error| errors.object(error));
        let (data, table) = (object(DATA)?, object(PROPERTIES)?);
        let size = Zap::of_object(&table).and_then(|table| table.lookup_u64(SIZE));
        let size = size.map_err(|error| errors.zap(error))?;
        let size = size.ok_or_else(|| VolumeError::NoSize {
            name: name.to_owned(),
        })?;
        Ok(Self {
            name: name.into(),
            set: Arc::clone(set),
            data,
            table,
            begin,
            size_bytes: RwLock::new(size),
            resizing: Mutex::new(()),
            ranges: RangeLocks::default(),
        })
    }

    /// The name it was opened under.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
    /// The volume's size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        *self.size_bytes.read()
    }
    /// The size of its blocks in bytes (`volblocksize`).
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.data.block_bytes()
    }

    fn errors(&self) -> Errors<'_> {
        Errors(&self.name)
    }
    fn check_range(&self, offset_bytes: u64, length_bytes: u64) -> Result<u64, VolumeError> {
        let size_bytes = self.size_bytes();
        let end = offset_bytes.checked_add(length_bytes);
        end.filter(|end| *end <= size_bytes)
            .ok_or_else(|| VolumeError::BeyondEnd {
                name: self.name.to_string(),
                offset_bytes,
                length_bytes,
                size_bytes,
            })
    }
    fn begin(&self, bytes: u64) -> Result<Transaction, VolumeError> {
        self.begin_as(Estimate {
            bytes,
            ..Estimate::default()
        })
    }
    fn begin_freeing(&self, bytes: u64, freed_blocks: u64) -> Result<Transaction, VolumeError> {
        self.begin_as(Estimate {
            bytes,
            is_freeing: true,
            freed_blocks,
            ..Estimate::default()
        })
    }
    fn begin_as(&self, estimate: Estimate) -> Result<Transaction, VolumeError> {
        let begun = self.begin.begin(estimate);
        begun.map_err(|error| self.errors().begin(error))
    }
    /// Extends a range to whole blocks, because changes to one block must happen in txg order.
    fn blocks_around(&self, start: u64, end: u64) -> std::ops::Range<u64> {
        let block = self.block_bytes();
        start - start % block..end.div_ceil(block).saturating_mul(block)
    }

    /// Fills `buffer` from `offset_bytes`. Reads see writes that are not synced yet.
    ///
    /// # Errors
    /// [`VolumeError::BeyondEnd`] before anything is read; otherwise if a block cannot be read.
    pub fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), VolumeError> {
        let end = offset_bytes.saturating_add(buffer.len() as u64);
        let _range = self.ranges.read(offset_bytes..end);
        self.check_range(offset_bytes, buffer.len() as u64)?;
        let read = unhurried(|| self.data.read(offset_bytes, buffer));
        read.map_err(|error| self.errors().object(error))
    }

    /// Writes bytes. A long write uses several transactions.
    ///
    /// # Errors
    /// [`VolumeError::BeyondEnd`] before anything is written; [`VolumeError::TransactionSource`]; if a block that is only
    /// partly overwritten cannot be read.
    pub fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), VolumeError> {
        let length = bytes.len() as u64;
        let around = self.blocks_around(offset_bytes, offset_bytes.saturating_add(length));
        let range = self.ranges.write(around);
        let end = self.check_range(offset_bytes, length)?;
        self.write_all(offset_bytes, end, bytes)?;
        drop(range);
        self.settle()
    }

    fn write_all(&self, offset_bytes: u64, end: u64, bytes: &[u8]) -> Result<(), VolumeError> {
        let (mut from, mut rest) = (offset_bytes, bytes);
        while from < end {
            let to = (from - from % CHUNK_BYTES + CHUNK_BYTES).min(end);
            let (now, later) = rest.split_at((to - from) as usize);
            let tx = self.begin((to - from) + 2 * self.block_bytes())?;
            let written = self.data.write(&tx, from, now);
            written.map_err(|error| self.errors().object(error))?;
            self.record_write(&tx, from, now);
            (from, rest) = (to, later);
        }
        Ok(())
    }

    /// Frees the blocks that lie wholly inside a range. They then read as zeros.
    ///
    /// The rest of the range does not change.
    ///
    /// # Errors
    /// As [`LiveVolume::write`].
    pub fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), VolumeError> {
        let end = self.check_range(offset_bytes, length_bytes)?;
        let block = self.block_bytes();
        let start = offset_bytes.div_ceil(block).saturating_mul(block);
        let end = end - end % block;
        if start >= end {
            return Ok(());
        }
        self.zero(start, end - start)
    }

    /// Makes a range read as zeros, and frees the blocks that lie wholly inside it.
    ///
    /// # Errors
    /// As [`LiveVolume::write`].
    pub fn zero(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), VolumeError> {
        let around = self.blocks_around(offset_bytes, offset_bytes.saturating_add(length_bytes));
        let range = self.ranges.write(around);
        let end = self.check_range(offset_bytes, length_bytes)?;
        self.free(offset_bytes, end)?;
        drop(range);
        self.settle()
    }

    /// Frees a range that the caller has locked, a limited number of blocks per transaction.
    fn free(&self, start: u64, end: u64) -> Result<(), VolumeError> {
        self.free_each(start, end, &|tx, at, length| {
            self.record_free(tx, at, length);
        })
    }

    fn free_each(
        &self,
        start: u64,
        end: u64,
        record: &dyn Fn(&Transaction, u64, u64),
    ) -> Result<(), VolumeError> {
        let block = self.block_bytes();
        let mut at = start;
        while at < end {
            let range = BlockId(at / block)..BlockId(end.div_ceil(block));
            let chunk = self.data.next_free_chunk(range.clone(), FREE_BLOCKS_MAX);
            if chunk.blocks == 0 {
                let next = self.data.next_data(range.start, false);
                let next = next.map_err(|error| self.errors().object(error))?;
                if next.is_none_or(|next| next >= range.end) {
                    return Ok(());
                }
            }
            let to = chunk.end.map_or(end, |to| to.0.saturating_mul(block));
            let tx = self.begin_freeing(FREE_DIRTY_BYTES + 2 * block, chunk.blocks)?;
            let freed = self.data.free_range(&tx, at, to - at);
            freed.map_err(|error| self.errors().object(error))?;
            record(&tx, at, to - at);
            at = to;
        }
        Ok(())
    }

    /// Frees blocks beyond the volume's end.
    ///
    /// Such blocks exist if the power failed while the volume was being shrunk. A caller that opens a volume
    /// for changes must call this first; it is cheap if there is nothing to free. It writes no log record,
    /// because those bytes cannot be read.
    ///
    /// # Errors
    /// [`VolumeError::TransactionSource`]; if the volume's tree cannot be read.
    pub fn free_behind_end(&self) -> Result<(), VolumeError> {
        let _resizing = self.resizing.lock();
        let block = self.block_bytes();
        let end = self.size_bytes().div_ceil(block).saturating_mul(block);
        let _range = self.ranges.write(end..u64::MAX);
        self.free_each(end, u64::MAX, &|_, _, _| {})
    }

    /// Changes the size, which must be a multiple of the block size.
    ///
    /// When a volume shrinks, the blocks beyond the new end are freed after the smaller size is on stable
    /// storage. If the power fails before that, they are freed when the volume is opened again
    /// ([`LiveVolume::free_behind_end`]), and in any case before the volume grows. New space thus reads as
    /// zeros.
    ///
    /// # Errors
    /// [`VolumeError::Refused`] for an invalid size; [`VolumeError::TransactionSource`]; if the table cannot be changed.
    pub fn resize(&self, size_bytes: u64) -> Result<(), VolumeError> {
        self.errors().check_size(size_bytes, self.block_bytes())?;
        let _resizing = self.resizing.lock();
        let old = self.size_bytes();
        if size_bytes > old {
            let _range = self.ranges.write(old..u64::MAX);
            self.free(old, size_bytes)?;
        }
        {
            // The lock excludes all requests beyond the end while the end moves.
            let _range = self.ranges.write(old.min(size_bytes)..u64::MAX);
            let tx = self.begin(TABLE_BYTES)?;
            if let Some(log) = self.begin.log() {
                log.append_unlogged(&tx, None);
            }
            let table = ZapMut::of(&self.table, &tx);
            let changed = table.update_u64(SIZE, size_bytes);
            changed.map_err(|error| self.errors().zap(error))?;
            *self.size_bytes.write() = size_bytes;
        }
        if size_bytes < old {
            let synced = self.begin.wait_open_synced();
            synced.map_err(|error| self.errors().begin(error))?;
            let _range = self.ranges.write(size_bytes..u64::MAX);
            self.free(size_bytes, old)?;
        }
        self.settle()
    }

    /// Puts everything written before the call on stable storage.
    ///
    /// # Errors
    /// [`VolumeError::TransactionSource`] if the pool is suspended before that.
    pub fn commit_log(&self) -> Result<(), VolumeError> {
        match self.begin.log() {
            Some(log) => log.commit(None).map_err(|error| self.errors().begin(error)),
            None => self.wait_synced(),
        }
    }

    /// The block device name for [`LiveVolume::commit_log`].
    ///
    /// # Errors
    /// [`VolumeError::TransactionSource`] if the pool is suspended before that.
    pub fn flush(&self) -> Result<(), VolumeError> {
        self.commit_log()
    }

    fn wait_synced(&self) -> Result<(), VolumeError> {
        let synced = self.begin.wait_open_synced();
        synced.map_err(|error| self.errors().begin(error))
    }
}

/// Builds errors that name the volume.
#[derive(Clone, Copy)]
struct Errors<'n>(&'n str);

impl Errors<'_> {
    fn object(self, error: ObjectError) -> VolumeError {
        VolumeError::Object {
            name: self.0.to_owned(),
            error,
        }
    }
    fn zap(self, error: ZapError) -> VolumeError {
        VolumeError::Zap {
            name: self.0.to_owned(),
            error,
        }
    }
    fn begin(self, error: TransactionError) -> VolumeError {
        VolumeError::TransactionSource {
            name: self.0.to_owned(),
            error,
        }
    }
    fn refused(self, reason: &'static str) -> VolumeError {
        VolumeError::Refused {
            name: self.0.to_owned(),
            reason,
        }
    }
    fn check_size(self, size_bytes: u64, block_bytes: u64) -> Result<(), VolumeError> {
        if size_bytes == 0
            || !size_bytes.is_multiple_of(block_bytes)
            || size_bytes > i64::MAX as u64
        {
            return Err(self.refused("a volume's size is a multiple of its block size, not 0"));
        }
        Ok(())
    }
}
