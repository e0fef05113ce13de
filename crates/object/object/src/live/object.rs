//! One object that changes.

use super::set::Core;
use crate::{Block, BlockAddress, ObjectError};
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockId, Level, ObjectId, ObjectType};
use millpond_txg::Transaction;

/// An object open for change: the newest state of its blocks and bonus, and what is dirty in each txg.
/// There is one for each number in memory. Shared by all threads.
#[derive(Debug)]
pub struct LiveObject {
    core: Arc<Core>,
    id: ObjectId,
}

impl LiveObject {
    fn not_ready<T>(&self) -> Result<T, ObjectError> {
        Err(self.core.refuse(self.id, "not built yet"))
    }
    /// Its number.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.id
    }
    /// What it is.
    #[must_use]
    pub fn object_type(&self) -> ObjectType {
        ObjectType::NONE
    }
    /// What its bonus is.
    #[must_use]
    pub fn bonus_type(&self) -> ObjectType {
        ObjectType::NONE
    }
    /// Size of a data block in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        512
    }
    /// The largest data block id that may be other than a hole; 0 also for an object without blocks.
    #[must_use]
    pub fn block_id_max(&self) -> BlockId {
        BlockId(0)
    }
    /// Space that its blocks take as of the last sync, in bytes.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        0
    }
    /// Slots of 512 bytes that its dnode takes.
    #[must_use]
    pub fn dnode_slots(&self) -> u8 {
        1
    }
    /// The longest bonus that fits, in bytes, less while there is a spill block.
    #[must_use]
    pub fn bonus_bytes_max(&self) -> usize {
        320
    }
    /// Whether it was freed (perhaps not synced yet). Changes are refused then.
    #[must_use]
    pub fn is_freed(&self) -> bool {
        false
    }
    /// How one of its blocks is named in errors.
    #[must_use]
    pub fn address(&self, level: Level, block: BlockId) -> BlockAddress {
        BlockAddress {
            dataset: self.core.dataset(),
            object: self.id,
            level,
            block,
        }
    }
    /// Fills `buffer` from byte `offset`; zeros for holes and beyond the end. Sees unsynced changes.
    ///
    /// # Errors
    /// If a block cannot be read; the buffer's content is then undefined.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), ObjectError> {
        let _ = (offset, buffer);
        self.not_ready()
    }
    /// The content of a data block, unsynced changes included; zeros for a hole and beyond the end.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read_block(&self, id: BlockId) -> Result<Arc<Block>, ObjectError> {
        let _ = id;
        self.not_ready()
    }
    /// The first data block (or hole) at or after `from`; `None` if there is none up to the end. Sees
    /// unsynced changes; an unsynced block of zeros counts as data.
    ///
    /// # Errors
    /// If an indirect block cannot be read.
    pub fn next_data(
        &self,
        from: BlockId,
        want_hole: bool,
    ) -> Result<Option<BlockId>, ObjectError> {
        let _ = (from, want_hole);
        self.not_ready()
    }
    /// Writes bytes at byte `offset`. Blocks that are only partly overwritten are read first.
    ///
    /// # Errors
    /// If such a block cannot be read, the object was freed, or its block size is not a power of two and
    /// the range reaches behind its only block.
    pub fn write(&self, tx: &Transaction, offset: u64, bytes: &[u8]) -> Result<(), ObjectError> {
        let _ = (tx, offset, bytes);
        self.not_ready()
    }
    /// Gives a whole block new content, without copying it.
    ///
    /// # Errors
    /// If `content` is not as long as a block, or as [`LiveObject::write`].
    pub fn write_block(
        &self,
        tx: &Transaction,
        id: BlockId,
        content: Vec<u8>,
    ) -> Result<(), ObjectError> {
        let _ = (tx, id, content);
        self.not_ready()
    }
    /// Makes a byte range read as zeros and frees the whole blocks in it; `length` [`u64::MAX`] means to
    /// the end. A range that reaches the end shortens the object.
    ///
    /// # Errors
    /// If a block at the range's edge cannot be read, or the object was freed.
    pub fn free_range(
        &self,
        tx: &Transaction,
        offset: u64,
        length: u64,
    ) -> Result<(), ObjectError> {
        let _ = (tx, offset, length);
        self.not_ready()
    }
    /// Changes the size of data blocks (a multiple of 512), and of indirect blocks if asked to.
    ///
    /// # Errors
    /// If there is more than block 0, or more than one level for the indirect blocks' change.
    pub fn set_block_bytes(
        &self,
        tx: &Transaction,
        bytes: u32,
        indirect_shift: Option<u8>,
    ) -> Result<(), ObjectError> {
        let _ = (tx, bytes, indirect_shift);
        self.not_ready()
    }
    /// The bonus bytes in use, little-endian.
    #[must_use]
    pub fn bonus(&self) -> Arc<[u8]> {
        Arc::from([])
    }
    /// Gives it other bonus bytes; their number becomes the bonus length.
    ///
    /// # Errors
    /// If they do not fit ([`LiveObject::bonus_bytes_max`]), or the object was freed.
    pub fn set_bonus(&self, tx: &Transaction, bytes: Vec<u8>) -> Result<(), ObjectError> {
        let _ = (tx, bytes);
        self.not_ready()
    }
    /// Changes what the object and its bonus are.
    ///
    /// # Errors
    /// If the object was freed.
    pub fn set_types(
        &self,
        tx: &Transaction,
        object_type: ObjectType,
        bonus_type: ObjectType,
    ) -> Result<(), ObjectError> {
        let _ = (tx, object_type, bonus_type);
        self.not_ready()
    }
    /// The spill block, if there is one.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn spill(&self) -> Result<Option<Arc<Block>>, ObjectError> {
        self.not_ready()
    }
    /// Gives it another spill block (a multiple of 512 bytes, at most 128 KiB), or none.
    ///
    /// # Errors
    /// If the bonus leaves no room for the pointer, or the object was freed.
    pub fn set_spill(&self, tx: &Transaction, content: Option<Vec<u8>>) -> Result<(), ObjectError> {
        let _ = (tx, content);
        self.not_ready()
    }
}
