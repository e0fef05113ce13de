//! An object's attributes beside its blocks: types, bonus and spill block.

use crate::Object;
use crate::state::DirtyBlock;
use crate::{Block, ObjectError};
use millpond_env::sync::Arc;
use millpond_ondisk::ObjectType;
use millpond_txg::Transaction;

impl Object {
    /// The used bonus bytes, little-endian.
    #[must_use]
    pub fn bonus(&self) -> Arc<[u8]> {
        Arc::clone(&self.state().shape().bonus)
    }
    /// The type of the bonus and its used bytes (little-endian), read together.
    #[must_use]
    pub fn typed_bonus(&self) -> (ObjectType, Arc<[u8]>) {
        let state = self.state();
        let shape = state.shape();
        (shape.bonus_type, Arc::clone(&shape.bonus))
    }
    /// Replaces the bonus bytes. Their number becomes the bonus length.
    ///
    /// # Errors
    /// If they do not fit ([`Object::bonus_bytes_max`]), or the object was freed.
    pub fn set_bonus(&self, tx: &Transaction, bytes: Vec<u8>) -> Result<(), ObjectError> {
        self.reshape_bonus(tx, None, bytes)
    }
    /// Replaces the bonus bytes and their type. No reader sees one without the other.
    ///
    /// # Errors
    /// As [`Object::set_bonus`]; if the type does not exist.
    pub fn set_typed_bonus(
        &self,
        tx: &Transaction,
        bonus_type: ObjectType,
        bytes: Vec<u8>,
    ) -> Result<(), ObjectError> {
        if !bonus_type.is_valid() {
            return Err(self.refuse("no such object type"));
        }
        self.reshape_bonus(tx, Some(bonus_type), bytes)
    }
    fn reshape_bonus(
        &self,
        tx: &Transaction,
        bonus_type: Option<ObjectType>,
        bytes: Vec<u8>,
    ) -> Result<(), ObjectError> {
        let (mut state, slot) = self.change(tx)?;
        let has_spill = state.slots[slot..].iter().any(|s| s.shape.has_spill);
        if bytes.len() > self.bonus_room(has_spill) {
            return Err(self.refuse("bonus does not fit"));
        }
        let bonus: Arc<[u8]> = bytes.into();
        state.reshape(slot, |shape| {
            shape.bonus_type = bonus_type.unwrap_or(shape.bonus_type);
            shape.bonus = Arc::clone(&bonus);
            shape.bonus_tail = None;
        });
        Ok(())
    }
    /// Changes the types of the object and its bonus.
    ///
    /// # Errors
    /// If the object was freed, or the type does not exist.
    pub fn set_types(
        &self,
        tx: &Transaction,
        object_type: ObjectType,
        bonus_type: ObjectType,
    ) -> Result<(), ObjectError> {
        if object_type == ObjectType::NONE || !object_type.is_valid() || !bonus_type.is_valid() {
            return Err(self.refuse("no such object type"));
        }
        let (mut state, slot) = self.change(tx)?;
        state.reshape(slot, |shape| {
            (shape.object_type, shape.bonus_type) = (object_type, bonus_type);
        });
        Ok(())
    }

    /// Changes the object's own checksum and compression functions, 0 to inherit. The caller ensures that the pool has
    /// the features that they need.
    ///
    /// # Errors
    /// If the object was freed.
    pub fn set_functions(
        &self,
        tx: &Transaction,
        checksum: u8,
        compression: u8,
    ) -> Result<(), ObjectError> {
        let (mut state, slot) = self.change(tx)?;
        state.reshape(slot, |shape| shape.functions = (checksum, compression));
        Ok(())
    }

    /// Whether there is a spill block.
    #[must_use]
    pub fn has_spill(&self) -> bool {
        self.state().shape().has_spill
    }

    /// Returns the spill block, if there is one.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn spill(&self) -> Result<Option<Arc<Block>>, ObjectError> {
        loop {
            let state = self.state();
            let newest = state.slots.iter().rev().find_map(|s| s.spill.as_ref());
            if let Some(spill) = newest {
                return Ok(spill.as_ref().map(DirtyBlock::view));
            }
            let synced = Arc::clone(&state.synced);
            drop(state);
            if let Some(block) = self.ask_synced(&synced, |tree| tree.read_spill())? {
                return Ok(block);
            }
        }
    }
    /// Replaces or removes the spill block. Its size is a multiple of 512 bytes and at most 128 KiB. The
    /// bonus must leave room for the pointer, so shorten it first.
    ///
    /// # Errors
    /// If the size is not valid, the bonus leaves no room for the pointer, or the object was freed.
    pub fn set_spill(&self, tx: &Transaction, content: Option<Vec<u8>>) -> Result<(), ObjectError> {
        if let Some(content) = &content
            && (content.is_empty() || content.len() > 128 << 10 || content.len() % 512 != 0)
        {
            return Err(self.refuse("a spill block has 512 bytes to 128 KiB"));
        }
        let (mut state, slot) = self.change(tx)?;
        let room = self.room(true);
        let newer = &mut state.slots[slot..];
        let fits = |bonus: &[u8]| room.is_some_and(|room| bonus.len() <= room);
        if content.is_some() && newer.iter().any(|s| !fits(&s.shape.bonus)) {
            return Err(self.refuse("the bonus leaves no room for a spill block's pointer"));
        }
        let charged = content.as_ref().map_or(0, Vec::len) as u64;
        let content = content.map(|content| DirtyBlock::new(Arc::new(content)));
        for (at, newer) in newer.iter_mut().enumerate() {
            if at == 0 || newer.spill.is_some() {
                newer.spill = Some(content.clone());
            }
            newer.shape.has_spill = content.is_some();
        }
        drop(state);
        tx.charge(charged);
        Ok(())
    }
}
