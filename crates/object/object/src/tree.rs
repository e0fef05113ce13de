//! Reads the block tree of a dnode.

use crate::claims::Claims;
use crate::{Block, BlockAddress, Caching, ObjectError};
use millpond_block::{BlockStore, PointerValidity, PooledBuf, Retention};
use millpond_crypt::DatasetKey;
use millpond_env::sync::Arc;
use millpond_ondisk::{
    BlockId, BlockPointer, DecodeError, Dnode, Endian, Level, ObjectId, SPILL_BLOCK_ID,
};
use std::ops::Range;

/// A block tree as its dnode describes it.
#[derive(Clone, Copy)]
pub(crate) struct Tree<'a> {
    pub(crate) store: &'a BlockStore,
    pub(crate) key: Option<&'a Arc<DatasetKey>>,
    pub(crate) dataset: u64,
    pub(crate) object: ObjectId,
    pub(crate) dnode: &'a Dnode,
    /// Which blocks stay in the cache after they were read.
    pub(crate) caching: Caching,
    /// Whether the reader continues where it stopped. A block that is not kept stays until the reader has had
    /// all of it; otherwise each of its parts would be read from the devices again.
    pub(crate) is_sequential: bool,
    /// Whether a sync may have overwritten blocks of the tree meanwhile.
    pub(crate) validity: PointerValidity<'a>,
}

impl<'a> Tree<'a> {
    /// For a reader of which this is known.
    pub(crate) fn with_validity(&self, validity: PointerValidity<'a>) -> Self {
        Self { validity, ..*self }
    }

    pub(crate) fn address(&self, level: u8, id: u64) -> BlockAddress {
        BlockAddress {
            dataset: self.dataset,
            object: self.object,
            level: Level(level),
            block: BlockId(id),
        }
    }

    pub(crate) fn invalid(&self, reason: &'static str) -> ObjectError {
        ObjectError::Invalid {
            dataset: self.dataset,
            object: self.object,
            error: DecodeError::new("block tree", reason, 0),
        }
    }

    /// What becomes of a block in the cache, of which the reader has or has not had the end.
    fn retention(&self, level: u8, has_rest: bool) -> Retention {
        let is_metadata = level > 0 || self.dnode.object_type.is_metadata();
        match self.caching.retention(is_metadata) {
            Retention::Drop if has_rest && self.is_sequential => Retention::Rest,
            retention => retention,
        }
    }

    /// Walks down to `level`, stopping early at a hole. Returns the pointer and its level.
    pub(crate) fn descend(&self, level: u8, id: u64) -> Result<(BlockPointer, u8), ObjectError> {
        self.descend_by(level, id, |pointer, address| {
            let retention = self.retention_on_way(address.level.0, level, id);
            self.read(pointer, address, retention)
        })
    }

    /// What becomes of the block at level `at` on the way to block `id` of `level`. A sequential reader has had
    /// the end of it with the last block below it.
    fn retention_on_way(&self, at: u8, level: u8, id: u64) -> Retention {
        if self.caching.kept.contains(true) {
            return self.caching.retention(true);
        }
        let bits = |levels: u8| (self.dnode.pointers_shift()).saturating_mul(levels.into());
        let unused = 64u32.saturating_sub(bits(at.saturating_sub(level)));
        let mask = u64::MAX.checked_shr(unused).unwrap_or(0);
        let last = (self.dnode.block_id_max.0)
            .checked_shr(bits(level))
            .unwrap_or(0);
        self.retention(at, id & mask != mask && id < last)
    }

    /// Walks down as [`Tree::descend`] does, but returns `None` on any failure. See
    /// [`BlockStore::prefetch`].
    fn descend_for_prefetch(&self, level: u8, id: u64) -> Option<(BlockPointer, u8)> {
        let read = |pointer: &BlockPointer, address| {
            let block = self.store.prefetch(pointer, address, self.key);
            block.ok_or_else(|| self.invalid("an indirect block is not to be had ahead"))
        };
        self.descend_by(level, id, read).ok()
    }

    /// Prefetches a block of any level into `buffer`, if that is large enough. Returns false if neither this
    /// block nor the ones after it can be prefetched.
    pub(crate) fn prefetch(&self, level: u8, id: u64, buffer: PooledBuf) -> bool {
        match self.find_for_prefetch(level, id) {
            None => false,
            Some(None) => true,
            Some(Some(pointer)) => {
                let address = self.address(level, id);
                (self.store).prefetch_block(&pointer, address, self.key, buffer)
            }
        }
    }

    /// Prefetches data blocks with one call to the devices, each into a buffer that is used if it is large
    /// enough. Stops at the first that cannot be found.
    pub(crate) fn prefetch_data(&self, blocks: impl Iterator<Item = (u64, PooledBuf)>) {
        let mut found = vec![];
        for (id, buffer) in blocks {
            match self.find_for_prefetch(0, id) {
                None => break,
                Some(None) => {}
                Some(Some(pointer)) => found.push((pointer, self.address(0, id), buffer)),
            }
        }
        // The reader itself meets and reports any failure.
        let _ = self.store.prefetch_blocks(found, self.key);
    }

    /// The pointer of a block to prefetch; the inner value is `None` if nothing is stored. `None` if neither
    /// this block nor the ones after it can be prefetched.
    fn find_for_prefetch(&self, level: u8, id: u64) -> Option<Option<BlockPointer>> {
        let (pointer, at) = self.descend_for_prefetch(level, id)?;
        if at != level || pointer.is_hole() || pointer.is_embedded() {
            return Some(None);
        }
        let lsize = match level {
            0 => self.dnode.data_block_bytes(),
            _ => self.dnode.indirect_block_bytes(),
        };
        let is_sound = pointer.level().0 == level && pointer.lsize_bytes() == lsize;
        is_sound.then_some(Some(pointer))
    }

    /// Walks down to a data block as [`Tree::descend`] does, but fails where an indirect block is not cached.
    fn descend_in_cache(&self, id: u64) -> Result<(BlockPointer, u8), ObjectError> {
        self.descend_by(0, id, |pointer, _| {
            let block = self.store.cached(pointer, self.key);
            block.ok_or_else(|| self.invalid("an indirect block is not in memory"))
        })
    }

    /// Whether reading a data block needs no device.
    pub(crate) fn is_cached(&self, id: u64) -> bool {
        self.descend_in_cache(id).is_ok_and(|(pointer, _)| {
            pointer.is_hole() || pointer.is_embedded() || self.store.is_cached(&pointer, self.key)
        })
    }

    /// Evicts data blocks that their reader has finished with. Stops at the first block whose indirect blocks
    /// are not cached.
    pub(crate) fn evict(&self, ids: Range<u64>) {
        for id in ids.start..ids.end.min(self.dnode.block_id_max.0.saturating_add(1)) {
            match self.descend_in_cache(id) {
                Ok((pointer, 0)) => self.store.evict(&pointer, self.key),
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    fn descend_by(
        &self,
        level: u8,
        id: u64,
        read: impl Fn(&BlockPointer, BlockAddress) -> Result<Arc<Block>, ObjectError>,
    ) -> Result<(BlockPointer, u8), ObjectError> {
        let top = self.dnode.levels.saturating_sub(1);
        let shift = self.dnode.pointers_shift();
        let index_at = |at: u8| {
            id.checked_shr(shift.saturating_mul(u32::from(at.saturating_sub(level))))
                .unwrap_or(0)
        };
        if level > top {
            return Err(self.invalid("no such level"));
        }
        let index = usize::try_from(index_at(top)).unwrap_or(usize::MAX);
        let Some(mut pointer) = self.dnode.block_pointers.get(index).copied() else {
            return Ok((BlockPointer::default(), top));
        };
        for at in (level..top).rev() {
            // `pointer` is at level `at + 1`.
            if pointer.is_hole() {
                return Ok((pointer, at + 1));
            }
            self.check_indirect(&pointer, at + 1)?;
            let block = read(&pointer, self.address(at + 1, index_at(at + 1)))?;
            let slot = (index_at(at) & ((1u64 << shift.min(63)) - 1)) as usize;
            let bytes = slot
                .checked_mul(128)
                .and_then(|start| block.bytes.get(start..));
            let bytes = bytes.ok_or_else(|| self.invalid("indirect block is too short"))?;
            pointer = BlockPointer::decode(bytes, block.endian)
                .map_err(|_| self.invalid("indirect block is too short"))?;
        }
        Ok((pointer, level))
    }

    /// Reads an indirect block after checking that its pointer matches its position in the tree.
    pub(crate) fn read_indirect(
        &self,
        pointer: &BlockPointer,
        level: u8,
        id: u64,
    ) -> Result<Arc<Block>, ObjectError> {
        self.check_indirect(pointer, level)?;
        let retention = self.retention(level, false);
        let address = self.address(level, id);
        self.read(pointer, address, retention)
    }

    fn check_indirect(&self, pointer: &BlockPointer, level: u8) -> Result<(), ObjectError> {
        if pointer.is_embedded() || pointer.level().0 != level {
            return Err(self.invalid("pointer's level contradicts its place"));
        }
        if pointer.lsize_bytes() != self.dnode.indirect_block_bytes() {
            return Err(self.invalid("indirect block's size contradicts the dnode"));
        }
        Ok(())
    }

    /// Returns the content of a data block. Holes and blocks beyond the end read as zeros.
    pub(crate) fn read_block(&self, id: u64) -> Result<Arc<Block>, ObjectError> {
        self.read_part(id, false)
    }

    /// As [`Tree::read_block`], for a reader that has or has not had the end of the block.
    pub(crate) fn read_part(&self, id: u64, has_rest: bool) -> Result<Arc<Block>, ObjectError> {
        let pointer = if id > self.dnode.block_id_max.0 {
            BlockPointer::default()
        } else {
            self.descend(0, id)?.0
        };
        if pointer.is_hole() {
            // At most 16 MiB: decoding a dnode bounds the block size.
            let bytes = vec![0u8; self.dnode.data_block_bytes() as usize];
            return Ok(Arc::new(Block {
                bytes: Arc::new(bytes),
                endian: Endian::Little,
                has_ciphertext: false,
            }));
        }
        if pointer.level().0 != 0 {
            return Err(self.invalid("pointer's level contradicts its place"));
        }
        if pointer.lsize_bytes() != self.dnode.data_block_bytes() {
            return Err(self.invalid("data block's size contradicts the dnode"));
        }
        self.read_data(&pointer, id, has_rest)
    }

    /// Reads data block `id` through a pointer that need not be in the tree yet.
    pub(crate) fn read_data(
        &self,
        pointer: &BlockPointer,
        id: u64,
        has_rest: bool,
    ) -> Result<Arc<Block>, ObjectError> {
        let (address, retention) = (self.address(0, id), self.retention(0, has_rest));
        self.read(pointer, address, retention)
    }

    fn read(
        &self,
        pointer: &BlockPointer,
        address: BlockAddress,
        retention: Retention,
    ) -> Result<Arc<Block>, ObjectError> {
        let (key, validity) = (self.key, self.validity);
        Ok((self.store).read_if_valid(pointer, address, key, retention, validity)?)
    }

    /// Returns the spill block, if the dnode has one.
    pub(crate) fn read_spill(&self) -> Result<Option<Arc<Block>>, ObjectError> {
        let Some(pointer) = &self.dnode.spill else {
            return Ok(None);
        };
        if pointer.is_hole() {
            return Ok(None);
        }
        if pointer.level().0 != 0 || pointer.lsize_bytes() > 128 << 10 {
            return Err(self.invalid("spill block's pointer is not valid"));
        }
        let address = self.address(0, SPILL_BLOCK_ID.0);
        let retention = self.caching.retention(true);
        let block = self.read(pointer, address, retention)?;
        Ok(Some(block))
    }

    /// Returns the first data block (or hole) at or after `from`, up to the largest block id.
    pub(crate) fn next(&self, from: u64, want_hole: bool) -> Result<Option<u64>, ObjectError> {
        let shift = self.dnode.pointers_shift();
        let tree = Self {
            is_sequential: true,
            ..*self
        };
        let mut id = from;
        // Beyond what the tree can address everything is one hole, however large the dnode claims to be.
        let end = self.dnode.addressable_blocks().unwrap_or(u64::MAX);
        let mut claims = Claims::new(self.store);
        let mut parent = None;
        while id <= self.dnode.block_id_max.0 {
            if id >= end {
                return Ok(want_hole.then_some(id));
            }
            let (pointer, level) = tree.descend(0, id)?;
            // Within one indirect block, its number of pointers bounds the search.
            if level == 0 && self.dnode.levels > 1 && parent != Some(id >> shift) {
                parent = Some(id >> shift);
                let (above, _) = tree.descend(1, id >> shift)?;
                claims
                    .charge(&above)
                    .map_err(|reason| self.invalid(reason))?;
            }
            if pointer.is_hole() == want_hole {
                return Ok(Some(id));
            }
            // A hole above the leaves covers everything below it.
            let span = shift.saturating_mul(u32::from(level));
            let next = id.checked_shr(span).unwrap_or(0).saturating_add(1);
            id = match next.checked_shl(span) {
                Some(next) if next > id => next,
                _ => return Ok(None),
            };
        }
        Ok(None)
    }
}
