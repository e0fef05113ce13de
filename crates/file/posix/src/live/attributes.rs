//! Stored attributes of changing files, and changing tables.

use super::error::FileError;
use super::state::{AttributeChange, NodeState};
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_object::{LiveObject, LiveObjectSet};
use millpond_ondisk::ObjectId;
use millpond_sa::Ace;
use millpond_txg::Transaction;
use millpond_zap::{ObjectBlocks, ZapMut};

/// The table that an object is, to be changed.
pub(crate) fn zap<'t>(
    object: &Arc<LiveObject>,
    tx: &'t Transaction,
) -> ZapMut<ObjectBlocks<'t>> {
    ZapMut::of(object, tx)
}

#[derive(Debug)]
pub(crate) struct AttributeTables {}

impl AttributeTables {
    pub(crate) fn open(_set: &Arc<LiveObjectSet>) -> Result<Self, FileError> {
        todo!()
    }
    pub(crate) fn create(
        _set: &Arc<LiveObjectSet>,
        _tx: &Transaction,
        _env: &Env,
    ) -> Result<(Self, ObjectId), FileError> {
        todo!()
    }
    pub(crate) fn read(&self, _object: &Arc<LiveObject>) -> Result<NodeState, FileError> {
        todo!()
    }
    pub(crate) fn acl(&self, _object: &Arc<LiveObject>) -> Result<Vec<Ace>, FileError> {
        todo!()
    }
    pub(crate) fn packed_xattrs(
        &self,
        _object: &Arc<LiveObject>,
    ) -> Result<Option<Vec<u8>>, FileError> {
        todo!()
    }
    pub(crate) fn write(
        &self,
        _tx: &Transaction,
        _object: &Arc<LiveObject>,
        _changes: &[AttributeChange],
    ) -> Result<(), FileError> {
        todo!()
    }
}
