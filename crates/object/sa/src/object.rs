//! Attributes and tables in the objects of an object set open for change.

use super::{SaFile, SaLayouts, SaTables};
use crate::form::Content;
use crate::{Attributes, ObjectBytes, SaError, SaRegistration, SaRegistry};
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_object::{Block, NewObject, Object, ObjectError, ObjectSet};
use millpond_ondisk::{BlockId, DecodeError, Endian, ObjectId, ObjectType};
use millpond_txg::Transaction;
use millpond_zap::{NewZap, Zap, ZapMut, ZapShape, ZapValue, allocate_zap, new_salt};

/// The master node has the same object id in every file system.
const MASTER_NODE: ObjectId = ObjectId(1);
const REGISTRY: &[u8] = b"REGISTRY";
const LAYOUTS: &[u8] = b"LAYOUTS";
/// The bonus of an object with an access control list, which OpenZFS reserves and does not use.
const ACL_BONUS_BYTES: usize = 320;

/// A file's object together with the transaction that changes it.
#[derive(Debug, Clone)]
pub struct SaObject<'t> {
    set: Arc<ObjectSet>,
    object: Arc<Object>,
    tx: &'t Transaction,
}

impl<'t> SaObject<'t> {
    /// Binds an object of the set to the transaction that will change its attributes.
    #[must_use]
    pub fn new(set: &Arc<ObjectSet>, object: &Arc<Object>, tx: &'t Transaction) -> Self {
        Self {
            set: Arc::clone(set),
            object: Arc::clone(object),
            tx,
        }
    }
}

impl SaFile for SaObject<'_> {
    fn id(&self) -> ObjectId {
        self.object.id()
    }
    fn bonus_type(&self) -> ObjectType {
        self.object.bonus_type()
    }
    fn dnode_bytes(&self) -> usize {
        usize::from(self.object.dnode_slots()) * 512
    }
    fn bonus(&self) -> Arc<[u8]> {
        self.object.bonus()
    }
    fn spill(&self) -> Result<Option<Arc<Block>>, ObjectError> {
        self.object.spill()
    }
    fn set_bonus(&self, bytes: Vec<u8>) -> Result<(), ObjectError> {
        self.object.set_bonus(self.tx, bytes)
    }
    fn set_attributes_bonus(&self, bytes: Vec<u8>) -> Result<(), ObjectError> {
        self.object.set_typed_bonus(self.tx, ObjectType::SA, bytes)
    }
    fn free_acl(&self, id: ObjectId) -> Result<(), ObjectError> {
        free_acl(&self.set, self.tx, id)
    }
    fn store_acl(&self, object_type: ObjectType, bytes: Vec<u8>) -> Result<ObjectId, ObjectError> {
        let mut new = NewObject::new(object_type).with_block_bytes(block_bytes(bytes.len()));
        if object_type == ObjectType::ACL {
            new = new.with_bonus(ObjectType::SYSACL, vec![0; ACL_BONUS_BYTES]);
        }
        let object = self.set.allocate(self.tx, new)?;
        object.write(self.tx, 0, &bytes)?;
        Ok(object.id())
    }
    fn store_target(&self, target: &[u8]) -> Result<(), ObjectError> {
        let bytes = block_bytes(target.len());
        self.object.set_block_bytes(self.tx, bytes, None)?;
        self.object.write(self.tx, 0, target)
    }
    fn set_spill(&self, content: Option<Vec<u8>>) -> Result<(), ObjectError> {
        self.object.set_spill(self.tx, content)
    }
}

/// The block size of an object with this many bytes, which is one block for all lists and targets of a correct writer.
fn block_bytes(bytes: usize) -> u32 {
    let bytes = bytes.next_multiple_of(512).min(128 << 10);
    u32::try_from(bytes).unwrap_or(128 << 10)
}

/// Frees the object that holds an old znode's access control list. Refuses to free an object of any other
/// type.
fn free_acl(set: &Arc<ObjectSet>, tx: &Transaction, id: ObjectId) -> Result<(), ObjectError> {
    let holds_a_list = [ObjectType::ACL, ObjectType::OLD_ACL];
    if !holds_a_list.contains(&set.object(id)?.object_type()) {
        return Err(ObjectError::Invalid {
            dataset: set.dataset(),
            object: id,
            error: DecodeError::new("znode", "its access control list is in no such object", 176),
        });
    }
    set.free(tx, id)
}

impl ObjectBytes for Arc<ObjectSet> {
    fn read(&self, id: ObjectId, length_bytes: usize) -> Result<(Vec<u8>, Endian), ObjectError> {
        let object = self.object(id)?;
        let endian = object.read_block(BlockId(0))?.endian;
        let mut bytes = vec![0; length_bytes];
        object.read(0, &mut bytes)?;
        Ok((bytes, endian))
    }
}

/// Registry and layouts of an object set open for change. New ZAPs get their salts from the environment.
#[derive(Clone)]
pub struct ObjectTables {
    set: Arc<ObjectSet>,
    env: Env,
    master: ObjectId,
}

impl ObjectTables {
    /// The tables that an SA master node refers to.
    #[must_use]
    pub fn new(set: &Arc<ObjectSet>, env: &Env, master: ObjectId) -> Self {
        Self {
            set: Arc::clone(set),
            env: env.clone(),
            master,
        }
    }
    /// Opens the table under `key` of the SA master node, or creates it.
    fn table<'t>(
        &self,
        tx: &'t Transaction,
        key: &[u8],
        object_type: ObjectType,
    ) -> Result<ZapMut<millpond_zap::ObjectBlocks<'t>>, SaError> {
        let master = ZapMut::of_set(&self.set, self.master, tx)?;
        if let Some(id) = master.lookup_u64(key)? {
            return Ok(ZapMut::of_set(&self.set, ObjectId(id), tx)?);
        }
        let new = NewZap::plain(new_salt(&self.env));
        let object = allocate_zap(&self.set, tx, ZapShape::USUAL.object(object_type), &new)?;
        master.insert_u64(key, object.id().0)?;
        Ok(ZapMut::of(&object, tx))
    }
}

impl SaTables for ObjectTables {
    fn register(
        &mut self,
        tx: &Transaction,
        added: &[(Vec<u8>, SaRegistration)],
    ) -> Result<(), SaError> {
        let table = self.table(tx, REGISTRY, ObjectType::SA_REGISTRATION)?;
        for (name, registration) in added {
            table.insert_u64(name, registration.to_word())?;
        }
        Ok(())
    }
    fn add_layout(&mut self, tx: &Transaction, number: u16, list: &[u16]) -> Result<(), SaError> {
        let table = self.table(tx, LAYOUTS, ObjectType::SA_LAYOUTS)?;
        table.insert(number.to_string().as_bytes(), &ZapValue::from_u16s(list))?;
        Ok(())
    }
    fn carry_back(&mut self, tx: &Transaction) -> Result<(), SaError> {
        // At most 1022 layouts, in a few blocks.
        let table = self.table(tx, LAYOUTS, ObjectType::SA_LAYOUTS)?;
        let object = table.object();
        for id in 0..=object.block_id_max().0 {
            let block = object.read_block(BlockId(id))?;
            if block.endian == Endian::Little {
                object.write_block(tx, BlockId(id), block.bytes.to_vec())?;
            }
        }
        Ok(())
    }
}

impl SaLayouts {
    /// Reads the tables of a file system's object set. They grow when files need more.
    ///
    /// # Errors
    /// As [`SaRegistry::open`].
    pub fn open(set: &Arc<ObjectSet>, env: &Env) -> Result<Arc<Self>, SaError> {
        let table =
            |id: u64| -> Result<Zap, SaError> { Ok(Zap::of_object(&set.object(ObjectId(id))?)?) };
        let bytes: Arc<dyn ObjectBytes> = Arc::new(Arc::clone(set));
        let dataset = set.dataset();
        let master = table(MASTER_NODE.0)?.lookup_u64(b"SA_ATTRS")?;
        let Some(master) = master.filter(|id| *id != 0) else {
            let registry = SaRegistry::from_zaps(dataset, bytes, None, None)?;
            return Ok(Arc::new(Self::new(Arc::new(registry), None)));
        };
        let keys = table(master)?;
        let registry = keys.lookup_u64(REGISTRY)?.map(table).transpose()?;
        let layouts = keys.lookup_u64(LAYOUTS)?.map(table).transpose()?;
        let registry = SaRegistry::from_zaps(dataset, bytes, registry.as_ref(), layouts.as_ref())?;
        let tables = ObjectTables::new(set, env, ObjectId(master));
        Ok(Arc::new(Self::new(
            Arc::new(registry),
            Some(Box::new(tables)),
        )))
    }

    /// The newest attributes of a file, unsynced changes included. Reads its spill block, if it has one.
    ///
    /// # Errors
    /// As [`SaRegistry::attributes`].
    pub fn attributes(&self, object: &Object) -> Result<Attributes, SaError> {
        let registry = self.registry();
        match object.typed_bonus() {
            (ObjectType::ZNODE, bonus) => registry.znode(object.id(), &bonus, Endian::Little),
            (ObjectType::SA, bonus) => {
                let bonus = Content::Bonus(bonus.to_vec());
                registry.buffers(object.id(), bonus, object.spill())
            }
            (bonus_type, _) => Err(SaError::NotAFile {
                dataset: registry.dataset(),
                object: object.id(),
                bonus_type,
            }),
        }
    }
}

impl SaLayouts {
    /// Frees a file's object. If the file is an old znode with an external access control list, this also
    /// frees the object that holds the list.
    ///
    /// # Errors
    /// If the znode cannot be decoded or refers to something that is not such a list, or if an object cannot
    /// be freed.
    pub fn free(
        &self,
        set: &Arc<ObjectSet>,
        tx: &Transaction,
        object: &Object,
    ) -> Result<(), SaError> {
        if let (ObjectType::ZNODE, bonus) = object.typed_bonus() {
            let znode = self.registry().znode(object.id(), &bonus, Endian::Little)?;
            match znode.external_acl().map(|id| free_acl(set, tx, id)) {
                // Already freed.
                None | Some(Ok(()) | Err(ObjectError::NotFound { .. })) => {}
                Some(Err(error)) => return Err(error.into()),
            }
        }
        Ok(set.free(tx, object.id())?)
    }
}

/// Creates the empty SA master node of a new file system. The caller stores its object id in the master node
/// as `SA_ATTRS`.
///
/// # Errors
/// If it cannot be created.
pub fn create_sa_master(
    set: &Arc<ObjectSet>,
    tx: &Transaction,
    env: &Env,
) -> Result<ObjectId, SaError> {
    let object = ZapShape::USUAL.object(ObjectType::SA_MASTER);
    let zap = allocate_zap(set, tx, object, &NewZap::plain(new_salt(env)))?;
    Ok(zap.id())
}
