//! Encrypted object sets that a raw stream changes, without their key.
//!
//! Blocks keep the form and the codes that the sender gave them. The codes of dnode blocks cover the shape of every
//! object, so dnodes must become exactly those of the sender. Nothing but the receiver of a stream uses such a set.
//!
//! Pages: `docs/format/encryption.md`, `docs/format/send-stream.md`, "Raw streams".

use crate::core::{HeadChange, blank_dnode};
use crate::state::{DirtyBlock, Shape};
use crate::writer::Run;
use crate::{Object, ObjectError, ObjectSet, WritePolicy};
use millpond_block::{BlockStore, EncodedContent, Seal};
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_ondisk::{
    BlockId, BlockPointer, CompressionKind, Dnode, DnodeArrayShape, ObjectId, ObjectType,
};
use millpond_txg::Transaction;
use std::collections::BTreeMap;

/// What a raw stream says of an object set: the shape of its dnode array, and the code over it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawHead {
    /// The code over the object set's kind and its dnode array.
    pub portable_mac: [u8; 32],
    /// The shape of the dnode array.
    pub array: DnodeArrayShape,
}

/// The dnode of an object, as a raw stream says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawDnode {
    /// The object's type.
    pub object_type: ObjectType,
    /// The size of its data blocks in bytes.
    pub block_bytes: u32,
    /// The binary logarithm of the size of its indirect blocks, 12 to 17.
    pub indirect_shift: u8,
    /// The levels of its tree.
    pub levels: u8,
    /// The count of pointers in the dnode.
    pub pointers: u8,
    /// Slots of 512 bytes that the dnode takes.
    pub slots: u8,
    /// The type of the bonus.
    pub bonus_type: ObjectType,
    /// The part of the bonus area that is in use, perhaps encrypted.
    pub bonus: Vec<u8>,
    /// The rest of the bonus area.
    pub bonus_tail: Vec<u8>,
    /// Its checksum function as stored.
    pub checksum: u8,
    /// Its compression function as stored.
    pub compression: u8,
    /// The id of its last block.
    pub last_block: u64,
    /// Whether it has a spill block.
    pub has_spill: bool,
}

/// The codes of dnode blocks that are not written yet.
#[derive(Debug, Default)]
pub(crate) struct RawSeals(Mutex<BTreeMap<u64, Seal>, rank::Leaf>);

impl RawSeals {
    /// A dnode block with its codes. Those that came are used once: later they are in the pointer.
    pub(crate) fn sealed(
        &self,
        block: u64,
        content: Arc<Vec<u8>>,
        previous: &BlockPointer,
    ) -> EncodedContent {
        let given = self.0.lock().remove(&block);
        let seal = given.unwrap_or_else(|| match previous.is_encrypted() {
            true => Seal {
                salt: previous.crypt_salt(),
                iv: previous.crypt_iv(),
                mac: previous.crypt_mac(),
            },
            false => Seal::default(),
        });
        EncodedContent {
            compression: CompressionKind::Off,
            bytes: content,
            seal: Some(seal),
        }
    }
}

impl Run<'_> {
    /// A dnode's own function. Those of raw sets are the sender's choice.
    pub(crate) fn own_function(&self, number: u8) -> u8 {
        match self.core.raw {
            Some(_) => 0,
            None => number,
        }
    }
}

/// A policy for a set that may be encrypted. The key is needed for owners, and for the key of a dedup table.
pub(crate) fn protected_policy(policy: WritePolicy, has_key: bool, is_raw: bool) -> WritePolicy {
    let policy = WritePolicy {
        is_encrypted: has_key || is_raw,
        ..policy
    };
    match is_raw {
        false => policy,
        true => WritePolicy {
            accounts_users: false,
            accounts_objects: false,
            accounts_projects: false,
            dedup: None,
            ..policy
        },
    }
}

impl ObjectSet {
    /// Opens the encrypted object set at `root` for a raw stream, without its key.
    ///
    /// # Errors
    /// As [`ObjectSet::open`].
    pub fn open_raw(
        store: Arc<BlockStore>,
        dataset: u64,
        root: BlockPointer,
        policy: WritePolicy,
    ) -> Result<Arc<Self>, ObjectError> {
        let raw = Some(RawSeals::default());
        Self::open_with(store, dataset, root, policy, (None, raw))
    }

    /// Whether it is changed by a raw stream, without its key.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        self.core.raw.is_some()
    }

    /// Takes over what a raw stream says of the set. Accounting of owners is not complete from then on.
    ///
    /// # Errors
    /// [`ObjectError::Refused`] if the dnode array here has another shape, or more blocks.
    pub fn set_raw_head(&self, tx: &Transaction, raw: RawHead) -> Result<(), ObjectError> {
        let refuse = |reason| Err(self.core.refuse(ObjectId(0), reason));
        let mut table = self.core.table.lock();
        let array = &table.synced.meta;
        if (array.levels, array.indirect_block_shift)
            != (raw.array.levels, raw.array.indirect_shift)
        {
            return refuse("its dnode array has another shape than the stream says");
        }
        if array.block_id_max.0 > raw.array.last_block {
            return refuse("its dnode array is longer than the stream says");
        }
        let change = HeadChange {
            flags: Some(0),
            raw: Some(raw),
            ..table.heads.get(&tx.txg()).copied().unwrap_or_default()
        };
        table.heads.insert(tx.txg(), change);
        Ok(())
    }

    /// Gives a block of dnodes the codes with which it is written next.
    pub fn seal_dnodes(&self, block: BlockId, seal: Seal) {
        if let Some(raw) = &self.core.raw {
            raw.0.lock().insert(block.0, seal);
        }
    }

    /// Creates an object with this id.
    ///
    /// # Errors
    /// [`ObjectError::Refused`] if the id is in use, was freed in a txg that is not synced yet, or the dnode is not valid.
    pub fn allocate_raw(
        self: &Arc<Self>,
        tx: &Transaction,
        id: ObjectId,
        new: &RawDnode,
    ) -> Result<Arc<Object>, ObjectError> {
        let dnode = new.blank(&self.core, id)?;
        let slots = new.slots;
        let taken = self.number(|numbers, last| numbers.take(tx.txg(), id, slots, last))?;
        let id = taken.ok_or_else(|| self.core.refuse(id, "its number is not free"))?;
        Ok(self.add(tx, id, dnode))
    }
}

impl RawDnode {
    /// A dnode without blocks.
    fn blank(&self, core: &crate::core::Core, id: ObjectId) -> Result<Dnode, ObjectError> {
        let refuse = |reason| Err(core.refuse(id, reason));
        let may_be_large = core.policy.read().may_have_large_dnodes;
        if !(1..=32).contains(&self.slots) || self.slots > 1 && !may_be_large {
            return refuse("a dnode has 1 to 32 slots, and only 1 without large_dnode");
        }
        if !(1..=3).contains(&self.pointers) || !(12..=17).contains(&self.indirect_shift) {
            return refuse("no such block tree");
        }
        let sectors = core.block_sectors(id, self.block_bytes)?;
        let mut dnode = blank_dnode(self.object_type, sectors, usize::from(self.pointers));
        self.shape(sectors).apply(&mut dnode);
        dnode.levels = self.levels;
        dnode.extra_slots = self.slots - 1;
        let area = dnode.bonus_area_bytes();
        if self.bonus.len() + self.bonus_tail.len() > area {
            return refuse("bonus does not fit");
        }
        // What a reader would refuse must not reach the disk.
        match dnode
            .encode()
            .and_then(|bytes| Dnode::decode(&bytes, dnode.endian))
        {
            Ok(Some(_)) => Ok(dnode),
            _ => refuse("no such dnode"),
        }
    }

    fn shape(&self, sectors: u16) -> Shape {
        Shape {
            object_type: self.object_type,
            bonus_type: self.bonus_type,
            indirect_shift: self.indirect_shift,
            block_sectors: sectors,
            block_id_max: self.last_block,
            bonus: Arc::from(self.bonus.as_slice()),
            bonus_tail: match self.bonus_tail.as_slice() {
                [] => None,
                tail => Some(Arc::from(tail)),
            },
            has_spill: self.has_spill,
            levels: self.levels,
            functions: (self.checksum, self.compression),
        }
    }
}

impl Object {
    /// Whether a raw stream's dnode can replace this one while its blocks stay.
    #[must_use]
    pub fn can_become(&self, raw: &RawDnode) -> bool {
        let state = self.state();
        let shape = state.shape();
        (raw.slots, usize::from(raw.pointers)) == (self.dnode_slots(), self.pointer_count())
            && raw.indirect_shift == shape.indirect_shift
            && raw.levels >= state.synced.levels.max(shape.levels)
    }

    /// Gives the object a raw stream's dnode. Blocks past its last one were freed, and all if they have another size.
    ///
    /// # Errors
    /// [`ObjectError::Refused`] if it does not fit ([`Object::can_become`]), is not valid, or the object was freed.
    pub fn set_raw(&self, tx: &Transaction, raw: &RawDnode) -> Result<(), ObjectError> {
        let sectors = self.core.block_sectors(self.id(), raw.block_bytes)?;
        raw.blank(&self.core, self.id())?;
        if !self.can_become(raw) {
            return Err(self.refuse("its dnode has another shape"));
        }
        let shape = raw.shape(sectors);
        let (mut state, slot) = self.change(tx)?;
        for newer in &mut state.slots[slot..] {
            if !shape.has_spill && newer.shape.has_spill {
                newer.spill = Some(None);
            }
            newer.shape = shape.clone();
        }
        Ok(())
    }

    /// Replaces a block by one in the form in which it is stored, with its codes. `bytes` is its size as content.
    ///
    /// # Errors
    /// If that is not the size of the object's blocks, the block is past the last one, an indirect block above it cannot be
    /// read, or the object was freed.
    pub fn write_sealed(
        &self,
        tx: &Transaction,
        id: BlockId,
        bytes: u64,
        stored: EncodedContent,
    ) -> Result<(), ObjectError> {
        if id > self.block_id_max() {
            return Err(self.refuse("a block past its last one"));
        }
        // The plain content is not known. The stored form is written, and these zeros are never read.
        let unknown = vec![0; usize::try_from(bytes).unwrap_or(0)];
        self.write_encoded(tx, id, unknown, stored)
    }

    /// Whether the spill block of the last sync stays.
    #[must_use]
    pub fn keeps_spill(&self) -> bool {
        let state = self.state();
        let is_stored = state.synced.spill.is_some_and(|pointer| !pointer.is_hole());
        is_stored && state.slots.iter().all(|slot| slot.spill.is_none())
    }

    /// Replaces the spill block by one in the form in which it is stored, with its codes. `bytes` is its size as content.
    ///
    /// # Errors
    /// If the size is not valid, the dnode has no place for its pointer, or the object was freed.
    pub fn set_sealed_spill(
        &self,
        tx: &Transaction,
        bytes: u64,
        stored: EncodedContent,
    ) -> Result<(), ObjectError> {
        let size = usize::try_from(bytes).unwrap_or(0);
        if size == 0 || size > 128 << 10 || !size.is_multiple_of(512) {
            return Err(self.refuse("a spill block has 512 bytes to 128 KiB"));
        }
        let (mut state, slot) = self.change(tx)?;
        if !state.slots[slot].shape.has_spill {
            return Err(self.refuse("its dnode has no spill block"));
        }
        let charged = (stored.bytes.len() + size) as u64;
        let block = DirtyBlock::with_encoded(Arc::new(vec![0; size]), stored);
        state.slots[slot].spill = Some(Some(block));
        drop(state);
        tx.charge(charged);
        Ok(())
    }
}
