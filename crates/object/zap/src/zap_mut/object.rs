//! ZAPs in objects that are open for change.

use super::{NewZap, ZapMut, ZapShape, ZapStore};
use crate::{Zap, ZapError, ZapSource};
use millpond_env::sync::Arc;
use millpond_object::{
    Block, BlockAddress, NewObject, Object, ObjectError, ObjectSet, ReadableObject,
};
use millpond_ondisk::{BlockId, Level, ObjectId, ObjectType};
use millpond_txg::Transaction;

impl ZapSource for Object {
    fn read_block(&self, id: BlockId) -> Result<Arc<Block>, ObjectError> {
        Object::read_block(self, id)
    }
    fn address(&self, id: BlockId) -> BlockAddress {
        Object::address(self, Level(0), id)
    }
}

/// The blocks of an object together with the transaction that changes them.
#[derive(Debug, Clone)]
pub struct ObjectBlocks<'t> {
    object: Arc<Object>,
    tx: &'t Transaction,
}

impl ZapStore for ObjectBlocks<'_> {
    fn source(&self) -> Arc<dyn ZapSource> {
        Arc::clone(&self.object) as Arc<dyn ZapSource>
    }
    fn block_bytes(&self) -> u32 {
        u32::try_from(self.object.block_bytes()).unwrap_or(u32::MAX)
    }
    fn set_block_bytes(&self, bytes: u32) -> Result<(), ObjectError> {
        self.object.set_block_bytes(self.tx, bytes, None)
    }
    fn write_block(&self, id: BlockId, content: Vec<u8>) -> Result<(), ObjectError> {
        self.object.write_block(self.tx, id, content)
    }
    fn edit_block(&self, id: BlockId, edit: &mut dyn FnMut(&mut [u8])) -> Result<(), ObjectError> {
        self.object.edit_block(self.tx, id, edit)
    }
    fn free_blocks(&self, first: BlockId, count: u64) -> Result<(), ObjectError> {
        let bytes = self.object.block_bytes();
        let offset = first.0.saturating_mul(bytes);
        let length = count.saturating_mul(bytes);
        self.object.free_range(self.tx, offset, length)
    }
}

impl<'t> ZapMut<ObjectBlocks<'t>> {
    /// The ZAP in an object, to be changed in `tx`. Reads nothing yet.
    #[must_use]
    pub fn of(object: &Arc<Object>, tx: &'t Transaction) -> Self {
        Self::new(ObjectBlocks {
            object: Arc::clone(object),
            tx,
        })
    }
    /// The ZAP in object `id` of a set, to be changed in `tx`.
    ///
    /// # Errors
    /// If there is no such object.
    pub fn of_set(
        set: &Arc<ObjectSet>,
        id: ObjectId,
        tx: &'t Transaction,
    ) -> Result<Self, ZapError> {
        Ok(Self::of(&set.object(id)?, tx))
    }
    /// The object.
    #[must_use]
    pub fn object(&self) -> &Arc<Object> {
        &self.store().object
    }
}

impl Zap {
    /// Opens the ZAP in an object that is open for change, in its current state. To read for longer from a ZAP that other threads
    /// may change meanwhile, use [`crate::ZapCursor::of_changing`].
    ///
    /// # Errors
    /// As [`Zap::open`].
    pub fn of_object(object: &Arc<Object>) -> Result<Self, ZapError> {
        Self::from_source(Arc::clone(object) as Arc<dyn ZapSource>)
    }

    /// Opens the ZAP in an object, committed or open for change.
    ///
    /// # Errors
    /// As [`Zap::open`].
    pub fn of_readable(object: &ReadableObject) -> Result<Self, ZapError> {
        match object {
            ReadableObject::Committed(object) => Self::open(object.clone()),
            ReadableObject::Open(object) => Self::of_object(object),
        }
    }
}

impl ZapShape {
    /// Parameters of an object with this shape and without bonus.
    #[must_use]
    pub fn object(self, object_type: ObjectType) -> NewObject {
        NewObject {
            indirect_shift: self.indirect_shift,
            ..NewObject::new(object_type).with_block_bytes(self.block_bytes)
        }
    }
}

/// Creates an object with an empty ZAP in it.
///
/// # Errors
/// As [`ObjectSet::allocate`] and [`ZapMut::create`].
pub fn allocate_zap(
    set: &Arc<ObjectSet>,
    tx: &Transaction,
    object: NewObject,
    zap: &NewZap,
) -> Result<Arc<Object>, ZapError> {
    let object = set.allocate(tx, object)?;
    ZapMut::of(&object, tx).create(zap)?;
    Ok(object)
}
