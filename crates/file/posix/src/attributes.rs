//! The stored attributes of files that change, and changes to ZAP tables.

use crate::error::FileError;
use crate::file_system::VERSION;
use crate::state::{AttributeChange, NodeState};
use crate::version::FUIDS;
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_object::{Object, ObjectError, ObjectSet};
use millpond_ondisk::{ObjectId, ObjectType};
use millpond_sa::{
    Ace, Attributes, ObjectTables, SaChange, SaLayouts, SaObject, ZnodeAclForm, create_sa_master,
};
use millpond_txg::Transaction;
use millpond_zap::{NewZap, ObjectBlocks, ZapMut, ZapShape};

/// Opens an object's ZAP table for changes.
pub(crate) fn zap<'t>(object: &Arc<Object>, tx: &'t Transaction) -> ZapMut<ObjectBlocks<'t>> {
    ZapMut::of(object, tx)
}

/// Creates an object with an empty ZAP table.
pub(crate) fn make_zap(
    set: &Arc<ObjectSet>,
    tx: &Transaction,
    object_type: ObjectType,
    new: &NewZap,
) -> Result<Arc<Object>, FileError> {
    let object = set.allocate(tx, ZapShape::USUAL.object(object_type))?;
    zap(&object, tx).create(new)?;
    Ok(object)
}

/// How a file system stores the attributes of its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttributeForm {
    /// System attributes: version 5.
    System,
    /// Old znodes: earlier versions.
    Znode(ZnodeAclForm),
}

impl AttributeForm {
    pub(crate) fn of_version(version: u64) -> Self {
        match version {
            0..FUIDS => Self::Znode(ZnodeAclForm::Old),
            FUIDS..VERSION => Self::Znode(ZnodeAclForm::Fuid),
            _ => Self::System,
        }
    }
    /// The bonus type of a new file.
    pub(crate) fn bonus_type(self) -> ObjectType {
        match self {
            Self::System => ObjectType::SA,
            Self::Znode(_) => ObjectType::ZNODE,
        }
    }
}

/// The object set's attribute registry and layouts, and how files' attributes are read and written.
#[derive(Debug)]
pub(crate) struct AttributeTables {
    set: Arc<ObjectSet>,
    layouts: Arc<SaLayouts>,
}

impl AttributeTables {
    /// Opens the tables of a file system, which its master node points to.
    pub(crate) fn open(set: &Arc<ObjectSet>, env: &Env) -> Result<Self, FileError> {
        let layouts = SaLayouts::open(set, env)?;
        let set = Arc::clone(set);
        Ok(Self { set, layouts })
    }
    /// Creates the tables for a file system that has none. Files that change from now on use them.
    ///
    /// Returns their object id.
    pub(crate) fn make(&self, tx: &Transaction, env: &Env) -> Result<ObjectId, FileError> {
        let id = create_sa_master(&self.set, tx, env)?;
        let tables = ObjectTables::new(&self.set, env, id);
        self.layouts.give_tables(Box::new(tables));
        Ok(id)
    }
    /// Whether a file's attributes still have the format of versions before 5.
    pub(crate) fn is_old(object: &Object) -> bool {
        object.bonus_type() == ObjectType::ZNODE
    }

    /// Reads a file's current attributes.
    pub(crate) fn attributes(&self, object: &Object) -> Result<Attributes, FileError> {
        Ok(self.layouts.attributes(object)?)
    }
    /// Reads a file's current fixed-size attributes.
    pub(crate) fn read(&self, object: &Object) -> Result<NodeState, FileError> {
        Ok(NodeState::read(&self.attributes(object)?)?)
    }
    /// Reads a file's NFSv4 ACL.
    pub(crate) fn acl(&self, object: &Object) -> Result<Vec<Ace>, FileError> {
        Ok(self.attributes(object)?.acl()?.unwrap_or_default())
    }

    /// Writes the attributes of a new file, whose bonus is of the form's type.
    pub(crate) fn write_new(
        &self,
        tx: &Transaction,
        object: &Arc<Object>,
        attributes: &[AttributeChange],
        form: AttributeForm,
    ) -> Result<(), FileError> {
        let attributes: Vec<_> = attributes
            .iter()
            .map(|(attribute, bytes)| (*attribute, bytes.as_slice()))
            .collect();
        let file = SaObject::new(&self.set, object, tx);
        let layouts = &self.layouts;
        match form {
            AttributeForm::System => layouts.replace(tx, &file, &attributes)?,
            AttributeForm::Znode(acl) => layouts.write_new_znode(tx, &file, &attributes, acl)?,
        }
        Ok(())
    }
    /// Changes some of a file's attributes. The caller holds the file's change lock.
    pub(crate) fn write(
        &self,
        tx: &Transaction,
        object: &Arc<Object>,
        changes: &[AttributeChange],
        form: AttributeForm,
    ) -> Result<(), FileError> {
        if changes.is_empty() {
            return Ok(());
        }
        let changes: Vec<_> = changes
            .iter()
            .map(|(attribute, bytes)| SaChange::Set(*attribute, bytes))
            .collect();
        let file = SaObject::new(&self.set, object, tx);
        let layouts = &self.layouts;
        match form {
            AttributeForm::System => layouts.change(tx, &file, &changes)?,
            AttributeForm::Znode(acl) => layouts.change_znode_in_place(tx, &file, &changes, acl)?,
        }
        Ok(())
    }
    /// Frees a file's object and everything that belongs to its attributes. Returns false if it is already
    /// gone.
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
