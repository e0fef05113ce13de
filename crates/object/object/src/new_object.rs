//! Parameters of new objects and object sets.

use crate::raw::RawHead;
use millpond_block::WriteKey;
use millpond_env::sync::Arc;
use millpond_ondisk::{BLOCK_POINTER_BYTES, DNODE_SLOT_BYTES, ObjectType};

/// Parameters of a new object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewObject {
    /// Its type.
    pub object_type: ObjectType,
    /// Size of a data block in bytes: a multiple of 512 up to 16 MiB.
    pub block_bytes: u32,
    /// log2 of the size of an indirect block, 12 to 17.
    pub indirect_shift: u8,
    /// The type of its bonus.
    pub bonus_type: ObjectType,
    /// The bonus bytes. Their number decides how many block pointers the dnode has.
    pub bonus: Vec<u8>,
    /// Slots of 512 bytes for the dnode, 1 to 32.
    pub slots: u8,
    /// The dnode's own checksum function, 0 to inherit.
    pub checksum: u8,
    /// The dnode's own compression function, 0 to inherit.
    pub compression: u8,
}

impl NewObject {
    /// An object with blocks of 512 bytes, no bonus, one slot.
    #[must_use]
    pub fn new(object_type: ObjectType) -> Self {
        Self {
            object_type,
            block_bytes: 512,
            indirect_shift: 17,
            bonus_type: ObjectType::NONE,
            bonus: Vec::new(),
            slots: 1,
            checksum: 0,
            compression: 0,
        }
    }
    /// The number of block pointers that its dnode will have. Files keep room for attributes, other objects for
    /// pointers. `None` if the bonus does not fit.
    #[must_use]
    pub fn pointer_count(&self) -> Option<usize> {
        let room = (usize::from(self.slots) * DNODE_SLOT_BYTES).checked_sub(192)?;
        let left = room.checked_sub(self.bonus.len())?;
        Some(match self.bonus_type {
            ObjectType::SA => 1,
            _ => (1 + left / BLOCK_POINTER_BYTES).min(3),
        })
    }
    /// Sets the size of its data blocks in bytes.
    #[must_use]
    pub fn with_block_bytes(mut self, bytes: u32) -> Self {
        self.block_bytes = bytes;
        self
    }
    /// Sets its bonus.
    #[must_use]
    pub fn with_bonus(mut self, bonus_type: ObjectType, bonus: Vec<u8>) -> Self {
        (self.bonus_type, self.bonus) = (bonus_type, bonus);
        self
    }
    /// Sets the number of slots of its dnode.
    #[must_use]
    pub fn with_slots(mut self, slots: u8) -> Self {
        self.slots = slots;
        self
    }
}

/// Parameters of a new object set.
#[derive(Debug, Clone)]
pub struct NewObjectSet {
    /// log2 of the size of the dnode array's indirect blocks.
    pub indirect_shift: u8,
    /// Flags of the object set block: which accounting is complete from the start.
    pub flags: u64,
    /// The key with which its blocks are encrypted; `None` outside encrypted datasets.
    pub key: Option<Arc<WriteKey>>,
    /// Set for an encrypted object set that a raw stream fills without its key.
    pub raw: Option<RawHead>,
}

impl Default for NewObjectSet {
    fn default() -> Self {
        Self {
            indirect_shift: 17,
            flags: 0,
            key: None,
            raw: None,
        }
    }
}
