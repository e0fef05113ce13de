//! One object: its dnode and its tree of blocks.

use crate::{ObjectError, ObjectSet};
use millpond_block::{Block, BlockAddress};
use millpond_env::sync::Arc;
use millpond_ondisk::{
    BlockId, BlockPointer, DecodeError, Dnode, Endian, Level, ObjectId, SPILL_BLOCK_ID,
};

/// An open object. Cheap to clone; holds its object set open.
#[derive(Debug, Clone)]
pub struct Object {
    set: Arc<ObjectSet>,
    id: ObjectId,
    dnode: Arc<Dnode>,
    is_locked: bool,
}

impl Object {
    pub(crate) fn new(
        set: Arc<ObjectSet>,
        id: ObjectId,
        dnode: Arc<Dnode>,
        is_locked: bool,
    ) -> Self {
        Self {
            set,
            id,
            dnode,
            is_locked,
        }
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.id
    }
    /// Its dnode. The bonus in it is ciphertext if [`Object::bonus`] says locked.
    #[must_use]
    pub fn dnode(&self) -> &Dnode {
        &self.dnode
    }
    /// The set that it belongs to.
    #[must_use]
    pub fn object_set(&self) -> &Arc<ObjectSet> {
        &self.set
    }
    /// The bonus bytes, in the byte order of the dnode ([`Dnode::endian`]).
    ///
    /// # Errors
    /// [`ObjectError::Locked`] if they are ciphertext.
    pub fn bonus(&self) -> Result<&[u8], ObjectError> {
        if self.is_locked {
            return Err(ObjectError::Locked {
                dataset: self.set.dataset(),
                object: self.id,
            });
        }
        Ok(&self.dnode.bonus)
    }
    /// Size of a data block in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.dnode.data_block_bytes()
    }
    /// Bytes up to the end of the last block that may hold data.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        self.dnode
            .block_id_max
            .0
            .saturating_add(1)
            .saturating_mul(self.block_bytes())
    }
    /// The largest data block id that may be other than a hole.
    #[must_use]
    pub fn block_id_max(&self) -> BlockId {
        self.dnode.block_id_max
    }
    /// How one of its blocks is named in errors.
    #[must_use]
    pub fn address(&self, level: Level, block: BlockId) -> BlockAddress {
        BlockAddress {
            dataset: self.set.dataset(),
            object: self.id,
            level,
            block,
        }
    }

    pub(crate) fn invalid(&self, reason: &'static str) -> ObjectError {
        ObjectError::Invalid {
            dataset: self.set.dataset(),
            object: self.id,
            error: DecodeError::new("block tree", reason, 0),
        }
    }

    /// The pointer to block `id` at `level`; a hole for whatever lies beyond the tree.
    ///
    /// # Errors
    /// If an indirect block above it cannot be read, or a pointer on the way contradicts the dnode.
    pub fn pointer(&self, level: Level, id: BlockId) -> Result<BlockPointer, ObjectError> {
        self.descend(level.0, id.0).map(|(pointer, _)| pointer)
    }

    /// Walks down to `level`, stopping early at a hole. Returns the pointer and its level.
    pub(crate) fn descend(&self, level: u8, id: u64) -> Result<(BlockPointer, u8), ObjectError> {
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
            let block = self.read_indirect(&pointer, at + 1, index_at(at + 1))?;
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

    fn read_indirect(
        &self,
        pointer: &BlockPointer,
        level: u8,
        id: u64,
    ) -> Result<Arc<Block>, ObjectError> {
        if pointer.is_embedded() || pointer.level().0 != level {
            return Err(self.invalid("pointer's level contradicts its place"));
        }
        if pointer.lsize_bytes() != self.dnode.indirect_block_bytes() {
            return Err(self.invalid("indirect block's size contradicts the dnode"));
        }
        let address = self.address(Level(level), BlockId(id));
        Ok(self.set.store().read(pointer, address, self.set.key())?)
    }

    /// The content of a data block; zeros for a hole and for whatever lies beyond the end.
    ///
    /// # Errors
    /// If the block or one above it cannot be read, or its pointer contradicts the dnode.
    pub fn read_block(&self, id: BlockId) -> Result<Arc<Block>, ObjectError> {
        let pointer = if id > self.block_id_max() {
            BlockPointer::default()
        } else {
            self.pointer(Level(0), id)?
        };
        if pointer.is_hole() {
            // At most 16 MiB: decoding a dnode bounds the block size.
            let bytes = vec![0u8; self.block_bytes() as usize];
            return Ok(Arc::new(Block {
                bytes,
                endian: Endian::Little,
                has_ciphertext: false,
            }));
        }
        if pointer.level().0 != 0 {
            return Err(self.invalid("pointer's level contradicts its place"));
        }
        if pointer.lsize_bytes() != self.block_bytes() {
            return Err(self.invalid("data block's size contradicts the dnode"));
        }
        let address = self.address(Level(0), id);
        Ok(self.set.store().read(&pointer, address, self.set.key())?)
    }

    /// Fills `buffer` from `offset_bytes`; zeros for holes and beyond the end.
    ///
    /// # Errors
    /// As [`Object::read_block`]; the buffer's content is then undefined.
    pub fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), ObjectError> {
        let size = self.block_bytes();
        let mut offset = offset_bytes;
        let mut rest = buffer;
        while !rest.is_empty() {
            let within = (offset % size) as usize;
            let count = rest.len().min(size as usize - within);
            let (now, later) = rest.split_at_mut(count);
            let id = BlockId(offset / size);
            if id > self.block_id_max() {
                now.fill(0);
                later.fill(0);
                return Ok(());
            }
            let block = self.read_block(id)?;
            now.copy_from_slice(&block.bytes[within..within + count]);
            offset = offset.saturating_add(count as u64);
            rest = later;
        }
        Ok(())
    }

    /// The spill block, if the dnode has one.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read_spill(&self) -> Result<Option<Arc<Block>>, ObjectError> {
        let Some(pointer) = &self.dnode.spill else {
            return Ok(None);
        };
        if pointer.is_hole() {
            return Ok(None);
        }
        if pointer.level().0 != 0 || pointer.lsize_bytes() > 128 << 10 {
            return Err(self.invalid("spill block's pointer is not valid"));
        }
        let address = self.address(Level(0), SPILL_BLOCK_ID);
        Ok(Some(self.set.store().read(
            pointer,
            address,
            self.set.key(),
        )?))
    }
}
