//! Stored attributes of changing files, and changing tables.

use super::error::FileError;
use super::state::{AttributeChange, NodeState};
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_object::{LiveObject, LiveObjectSet, ObjectError};
use millpond_ondisk::{ObjectId, ObjectType};
use millpond_sa::{Ace, Attributes, LiveTables, SaChange, SaLayouts, SaObject, create_sa_master};
use millpond_txg::Transaction;
use millpond_zap::{NewZap, ObjectBlocks, ZapMut, ZapShape};

/// The table that an object is, to be changed.
pub(crate) fn zap<'t>(object: &Arc<LiveObject>, tx: &'t Transaction) -> ZapMut<ObjectBlocks<'t>> {
    ZapMut::of(object, tx)
}

/// A new object with an empty table.
pub(crate) fn make_zap(
    set: &Arc<LiveObjectSet>,
    tx: &Transaction,
    object_type: ObjectType,
    new: &NewZap,
) -> Result<Arc<LiveObject>, FileError> {
    let object = set.allocate(tx, ZapShape::USUAL.object(object_type))?;
    zap(&object, tx).create(new)?;
    Ok(object)
}

/// What the object set knows of attributes, and how files' attributes are read and written.
#[derive(Debug)]
pub(crate) struct AttributeTables {
    set: Arc<LiveObjectSet>,
    layouts: Arc<SaLayouts>,
}

impl AttributeTables {
    /// Of a file system whose master node says where they are.
    pub(crate) fn open(set: &Arc<LiveObjectSet>, env: &Env) -> Result<Self, FileError> {
        let layouts = SaLayouts::open(set, env)?;
        let set = Arc::clone(set);
        Ok(Self { set, layouts })
    }
    /// Makes tables for a file system that has none, for files that are changed from now on; where they are.
    pub(crate) fn make(&self, tx: &Transaction, env: &Env) -> Result<ObjectId, FileError> {
        let id = create_sa_master(&self.set, tx, env)?;
        let tables = LiveTables::new(&self.set, env, id);
        self.layouts.give_tables(Box::new(tables));
        Ok(id)
    }
    /// Whether a file's attributes are still in the form of versions before 5.
    pub(crate) fn is_old(object: &LiveObject) -> bool {
        object.bonus_type() == ObjectType::ZNODE
    }

    fn attributes(&self, object: &LiveObject) -> Result<Attributes, FileError> {
        Ok(self.layouts.attributes(object)?)
    }
    /// A file's attributes of fixed size, as they stand now.
    pub(crate) fn read(&self, object: &LiveObject) -> Result<NodeState, FileError> {
        Ok(NodeState::read(&self.attributes(object)?)?)
    }
    /// A file's NFSv4 list.
    pub(crate) fn acl(&self, object: &LiveObject) -> Result<Vec<Ace>, FileError> {
        Ok(self.attributes(object)?.acl()?.unwrap_or_default())
    }
    /// Where a symbolic link leads.
    pub(crate) fn target(&self, object: &LiveObject) -> Result<Option<Vec<u8>>, FileError> {
        let attributes = self.attributes(object)?;
        let target = attributes.symlink_target()?;
        Ok(target.map(std::borrow::Cow::into_owned))
    }
    /// The packed list of extended attributes.
    pub(crate) fn packed_xattrs(&self, object: &LiveObject) -> Result<Option<Vec<u8>>, FileError> {
        let attributes = self.attributes(object)?;
        Ok(attributes.xattr_list().map(<[u8]>::to_vec))
    }

    /// Gives a new file its attributes.
    pub(crate) fn write_new(
        &self,
        tx: &Transaction,
        object: &Arc<LiveObject>,
        attributes: &[AttributeChange],
    ) -> Result<(), FileError> {
        let attributes: Vec<_> = attributes
            .iter()
            .map(|(attribute, bytes)| (*attribute, bytes.as_slice()))
            .collect();
        let file = SaObject::new(&self.set, object, tx);
        Ok(self.layouts.replace(tx, &file, &attributes)?)
    }
    /// Changes some of a file's attributes. The caller holds a lock that all who change this file hold.
    pub(crate) fn write(
        &self,
        tx: &Transaction,
        object: &Arc<LiveObject>,
        changes: &[AttributeChange],
    ) -> Result<(), FileError> {
        if changes.is_empty() {
            return Ok(());
        }
        let changes: Vec<_> = changes
            .iter()
            .map(|(attribute, bytes)| SaChange::Set(*attribute, bytes))
            .collect();
        let file = SaObject::new(&self.set, object, tx);
        Ok(self.layouts.change(tx, &file, &changes)?)
    }
    /// Frees a file's object with all that belongs to its attributes; false if it is gone already.
    pub(crate) fn free(&self, tx: &Transaction, id: ObjectId) -> Result<bool, FileError> {
        let object = match self.set.object(id) {
            Ok(object) => object,
            Err(ObjectError::NotFound { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        self.layouts.free(&self.set, tx, &object)?;
        Ok(true)
    }
}
