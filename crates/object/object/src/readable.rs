//! An object for reading, no matter whether it is committed or open for change.

use crate::prefetch::CacheHint;
use crate::{Object, ObjectError, ObjectView};
use millpond_block::Block;
use millpond_env::sync::Arc;
use millpond_ondisk::{BlockId, ObjectId};

/// The logarithm of the size of a block pointer.
const POINTER_SHIFT: u32 = 7;

/// Content that is read in the same way from a committed object and from one that is open for change. Cheap to
/// clone.
#[derive(Debug, Clone)]
pub enum ReadableObject {
    /// An object of a committed state. Reading it takes no lock.
    Committed(ObjectView),
    /// An object open for change, in its current state.
    Open(Arc<Object>),
}

impl ReadableObject {
    /// The object id.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        match self {
            Self::Committed(object) => object.id(),
            Self::Open(object) => object.id(),
        }
    }
    /// The object, if it is of a committed state.
    #[must_use]
    pub fn committed(&self) -> Option<&ObjectView> {
        match self {
            Self::Committed(object) => Some(object),
            Self::Open(_) => None,
        }
    }
    /// The size of a data block in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        match self {
            Self::Committed(object) => object.block_bytes(),
            Self::Open(object) => object.block_bytes(),
        }
    }
    /// The space used, in bytes. Of an open object, as of the last synced txg.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        match self {
            Self::Committed(object) => object.dnode().used_bytes(),
            Self::Open(object) => object.used_bytes(),
        }
    }
    /// The number of 512-byte slots of its dnode.
    #[must_use]
    pub fn dnode_slots(&self) -> u64 {
        match self {
            Self::Committed(object) => object.dnode().slots(),
            Self::Open(object) => object.dnode_slots().into(),
        }
    }
    /// The logarithm of the number of pointers in an indirect block.
    #[must_use]
    pub fn pointers_shift(&self) -> u32 {
        match self {
            Self::Committed(object) => object.dnode().pointers_shift(),
            Self::Open(object) => u32::from(object.indirect_shift()).saturating_sub(POINTER_SHIFT),
        }
    }

    /// Returns a data block. Holes, and blocks beyond the end, are zeros.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read_block(&self, id: BlockId) -> Result<Arc<Block>, ObjectError> {
        match self {
            Self::Committed(object) => object.read_block(id),
            Self::Open(object) => object.read_block(id),
        }
    }
    /// Fills `buffer` from `offset_bytes`. Holes, and bytes beyond the end, read as zeros.
    ///
    /// # Errors
    /// If a block cannot be read; the buffer's content is then undefined.
    pub fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), ObjectError> {
        self.read_with_hint(offset_bytes, buffer, CacheHint::Retain)
    }
    /// Like [`ReadableObject::read`]. `hint` says what happens to the cached content afterwards.
    ///
    /// # Errors
    /// As [`ReadableObject::read`].
    pub fn read_with_hint(
        &self,
        offset_bytes: u64,
        buffer: &mut [u8],
        hint: CacheHint,
    ) -> Result<(), ObjectError> {
        self.read_until(offset_bytes, buffer, hint, false)
    }
    /// Like [`ReadableObject::read_with_hint`]. `is_end` says that the content ends with the buffer, somewhere
    /// in a block, and its reader asks for no more.
    ///
    /// # Errors
    /// As [`ReadableObject::read`].
    pub fn read_until(
        &self,
        offset_bytes: u64,
        buffer: &mut [u8],
        hint: CacheHint,
        is_end: bool,
    ) -> Result<(), ObjectError> {
        match self {
            Self::Committed(object) => object.read_until(offset_bytes, buffer, hint, is_end),
            Self::Open(object) => object.read_until(offset_bytes, buffer, hint, is_end),
        }
    }

    /// Returns the first block at or after `from` that is not a hole; `None` if only holes follow.
    ///
    /// # Errors
    /// If an indirect block cannot be read.
    pub fn next_data_block(&self, from: BlockId) -> Result<Option<BlockId>, ObjectError> {
        match self {
            Self::Committed(object) => object.next_data_block(from),
            Self::Open(object) => object.next_data(from, false),
        }
    }
    /// Returns the first hole at or after `from`. The end of the object counts as a hole.
    ///
    /// # Errors
    /// As [`ReadableObject::next_data_block`].
    pub fn next_hole_block(&self, from: BlockId) -> Result<BlockId, ObjectError> {
        match self {
            Self::Committed(object) => object.next_hole_block(from),
            Self::Open(object) => {
                let end = BlockId(object.block_id_max().0.saturating_add(1));
                Ok(object.next_data(from, true)?.unwrap_or(end.max(from)))
            }
        }
    }
}

impl From<ObjectView> for ReadableObject {
    fn from(object: ObjectView) -> Self {
        Self::Committed(object)
    }
}
impl From<Arc<Object>> for ReadableObject {
    fn from(object: Arc<Object>) -> Self {
        Self::Open(object)
    }
}
