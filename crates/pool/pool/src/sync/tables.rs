//! ZAPs of the MOS in syncing context: the object directory, vdev ZAPs, feature tables.

use crate::PoolError;
use crate::error::Reading;
use crate::features::counts::{FeatureChange, FeatureEdit};
use crate::sync::context::SyncContext;
use millpond_nvlist::NvList;
use millpond_object::NewObject;
use millpond_ondisk::pool_directory::{self, key};
use millpond_ondisk::zap::ZapValue;
use millpond_ondisk::{DecodeError, ObjectId, ObjectType};
use millpond_zap::{NewZap, ObjectBlocks, ZapMut, new_salt};

const FEATURES: &str = "feature table";
const TABLE: &str = "table";

impl SyncContext<'_> {
    /// Looks up an entry of the object directory that names an object; `None` if it is absent or 0.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn directory_object(&self, key: &str) -> Result<Option<ObjectId>, PoolError> {
        Ok(self
            .table_number(pool_directory::OBJECT_DIRECTORY, key)?
            .and_then(|id| ObjectId(id).some()))
    }
    /// Sets an entry of the object directory to a single number.
    ///
    /// # Errors
    /// If the directory cannot be changed.
    pub fn set_directory_number(&self, key: &str, number: u64) -> Result<(), PoolError> {
        self.set_table_number(pool_directory::OBJECT_DIRECTORY, key, number)
    }
    /// Removes an entry of the object directory, if it exists.
    ///
    /// # Errors
    /// If the directory cannot be changed.
    pub fn remove_directory_entry(&self, key: &str) -> Result<(), PoolError> {
        self.remove_table_entry(pool_directory::OBJECT_DIRECTORY, key)
    }
    /// Opens a ZAP of the MOS for changes.
    ///
    /// # Errors
    /// If there is no such object.
    pub fn table(&self, id: ObjectId) -> Result<ZapMut<ObjectBlocks<'_>>, PoolError> {
        let object = self.mos().object(id).reading(TABLE)?;
        Ok(ZapMut::of(&object, self.tx()))
    }
    /// Creates an empty ZAP in the MOS.
    ///
    /// # Errors
    /// If the MOS cannot be changed.
    pub fn create_table(&self, object_type: ObjectType) -> Result<ObjectId, PoolError> {
        let new = NewObject::new(object_type);
        let object = self.mos().allocate(self.tx(), new).reading(TABLE)?;
        let zap = NewZap::plain(new_salt(self.pool.env()));
        ZapMut::of(&object, self.tx()).create(&zap).reading(TABLE)?;
        Ok(object.id())
    }
    /// Looks up an entry that holds a single number.
    ///
    /// # Errors
    /// If the ZAP cannot be read.
    pub fn table_number(&self, id: ObjectId, name: &str) -> Result<Option<u64>, PoolError> {
        self.table(id)?.lookup_u64(name.as_bytes()).reading(TABLE)
    }
    /// Sets an entry to a single number.
    ///
    /// # Errors
    /// If the ZAP cannot be changed.
    pub fn set_table_number(&self, id: ObjectId, name: &str, number: u64) -> Result<(), PoolError> {
        self.table(id)?
            .update_u64(name.as_bytes(), number)
            .reading(TABLE)
    }
    /// Removes an entry, if it exists.
    ///
    /// # Errors
    /// If the ZAP cannot be changed.
    pub fn remove_table_entry(&self, id: ObjectId, name: &str) -> Result<(), PoolError> {
        self.table(id)?.remove(name.as_bytes()).reading(TABLE)?;
        Ok(())
    }

    /// Whether a feature is enabled, active or not.
    #[must_use]
    pub fn feature_is_enabled(&self, guid: &str) -> bool {
        self.pool.state.read().features.is_enabled(guid)
    }
    /// A feature's reference count; 0 if it is disabled.
    #[must_use]
    pub fn feature_count(&self, guid: &str) -> u64 {
        let state = self.pool.state.read();
        state.features.features().count(guid).unwrap_or(0)
    }
    /// Increments a feature's reference count.
    ///
    /// # Errors
    /// If it is not enabled, or the MOS cannot be changed.
    pub fn feature_increment(&self, guid: &str) -> Result<(), PoolError> {
        self.feature_add(guid, 1)
    }
    /// Decrements a feature's reference count.
    ///
    /// # Errors
    /// If it is not active, or the MOS cannot be changed.
    pub fn feature_decrement(&self, guid: &str) -> Result<(), PoolError> {
        self.feature_add(guid, -1)
    }
    /// Changes a feature's reference count by several at once.
    ///
    /// # Errors
    /// If it is not enabled, would be used less than not at all, or the MOS cannot be changed.
    pub fn feature_add(&self, guid: &str, change: i64) -> Result<(), PoolError> {
        if change == 0 {
            return Ok(());
        }
        let change = self.pool.state.write().features.add(guid, change)?;
        self.store_features(&change)
    }

    /// Stores a change in the feature tables. Changes of features that are required to read the MOS also go
    /// into labels and configuration.
    ///
    /// # Errors
    /// If the MOS cannot be changed.
    pub(crate) fn store_features(&self, change: &FeatureChange) -> Result<(), PoolError> {
        for edit in &change.edits {
            let table = match edit {
                FeatureEdit::Count {
                    is_for_write: true, ..
                } => key::FEATURES_FOR_WRITE,
                FeatureEdit::Count { .. } => key::FEATURES_FOR_READ,
                FeatureEdit::Description { .. } => key::FEATURE_DESCRIPTIONS,
                FeatureEdit::EnabledTxg { .. } => key::FEATURE_ENABLED_TXG,
            };
            let id = match self.directory_object(table)? {
                Some(id) => id,
                None => {
                    let id = self.create_table(ObjectType::METADATA_ZAP)?;
                    self.set_directory_number(table, id.0)?;
                    id
                }
            };
            match edit {
                FeatureEdit::Count { guid, count, .. } => {
                    self.set_table_number(id, guid, *count)?;
                }
                FeatureEdit::EnabledTxg { guid, txg } => {
                    self.set_table_number(id, guid, txg.0)?;
                }
                FeatureEdit::Description { guid, text } => {
                    let mut bytes = text.as_bytes().to_vec();
                    bytes.push(0);
                    let value = ZapValue {
                        integer_bytes: 1,
                        bytes,
                    };
                    self.table(id)?
                        .update(guid.as_bytes(), &value)
                        .reading(FEATURES)?;
                }
            }
        }
        if change.changes_labels {
            let mut state = self.pool.state.write();
            let list = state.features.label_features();
            state.config.features_for_read = Some(list);
            state.config_generation += 1;
        }
        Ok(())
    }

    /// Stores a packed list in the object that an entry of the object directory names. Creates the object
    /// and the entry if absent.
    ///
    /// # Errors
    /// If the list cannot be encoded, or the MOS cannot be changed.
    pub fn write_packed_list(&self, key: &str, list: &NvList) -> Result<(), PoolError> {
        let mut bytes = list
            .encode_xdr()
            .map_err(|_| DecodeError::new(PACKED, "it cannot be encoded", 0))
            .reading(PACKED)?;
        let length = bytes.len() as u64;
        let object = match self.directory_object(key)? {
            Some(id) => self.mos().object(id).reading(PACKED)?,
            None => {
                let new = NewObject::new(ObjectType::PACKED_NVLIST)
                    .with_block_bytes(PACKED_BLOCK_BYTES)
                    .with_bonus(ObjectType::PACKED_NVLIST_SIZE, vec![0; 8]);
                let object = self.mos().allocate(self.tx(), new).reading(PACKED)?;
                self.set_directory_number(key, object.id().0)?;
                object
            }
        };
        // Write whole blocks, padded with zeros after the list.
        let block = object.block_bytes().max(1);
        let padded = length.div_ceil(block).saturating_mul(block);
        bytes.resize(padded as usize, 0);
        object.write(self.tx(), 0, &bytes).reading(PACKED)?;
        object
            .free_range(self.tx(), padded, u64::MAX)
            .reading(PACKED)?;
        object
            .set_bonus(self.tx(), length.to_le_bytes().to_vec())
            .reading(PACKED)
    }
}

const PACKED: &str = "packed list";
/// Size of the data blocks of packed lists in bytes.
const PACKED_BLOCK_BYTES: u32 = 16 << 10;
