//! Read access of the dataset layer to the MOS, in and outside syncing context.

use millpond_env::sync::Arc;
use millpond_object::{Object, ObjectError, ObjectSet};
use millpond_ondisk::{
    DecodeError, DslDatasetPhys, DslDirectoryPhys, Endian, ObjectId, ObjectType, PoolVersion,
};
use millpond_pool::Pool;
use millpond_pool::PoolError;
use millpond_zap::{Zap, ZapEntry, ZapError, ZapValue};

/// The newest state of the MOS. Outside syncing context, a value may change right after it is read. A table
/// is read consistently only while no operation of this layer changes it.
#[derive(Clone, Copy)]
pub(crate) struct MosView<'p> {
    pub(crate) pool: &'p Pool,
}

/// Adds to a lower-level error what was being read or changed.
pub(crate) trait During<T> {
    fn during(self, what: &'static str) -> Result<T, PoolError>;
}
impl<T> During<T> for Result<T, ObjectError> {
    fn during(self, what: &'static str) -> Result<T, PoolError> {
        self.map_err(|error| PoolError::Object { what, error })
    }
}
impl<T> During<T> for Result<T, ZapError> {
    fn during(self, what: &'static str) -> Result<T, PoolError> {
        self.map_err(|error| PoolError::Zap { what, error })
    }
}
impl<T> During<T> for Result<T, DecodeError> {
    fn during(self, what: &'static str) -> Result<T, PoolError> {
        self.map_err(|error| PoolError::Invalid { what, error })
    }
}

/// Creates an error for structures of this layer that contradict each other.
pub(crate) fn contradiction(what: &'static str, reason: &'static str) -> PoolError {
    PoolError::Invalid {
        what,
        error: DecodeError::new(what, reason, 0),
    }
}

/// The object that `id` refers to, which must exist.
pub(crate) fn required(id: Option<ObjectId>, reason: &'static str) -> Result<ObjectId, PoolError> {
    id.ok_or_else(|| contradiction(DATASET, reason))
}

pub(crate) const DIRECTORY: &str = "dataset directory";
pub(crate) const DATASET: &str = "dataset";

impl<'p> MosView<'p> {
    pub(crate) fn mos(&self) -> &'p Arc<ObjectSet> {
        self.pool.mos()
    }

    /// The pool's version.
    pub(crate) fn version(&self) -> PoolVersion {
        PoolVersion(self.pool.version())
    }

    pub(crate) fn object(
        &self,
        id: ObjectId,
        what: &'static str,
    ) -> Result<Arc<Object>, PoolError> {
        self.mos().object(id).during(what)
    }

    /// Reads the bonus of an object, which must have this bonus type.
    pub(crate) fn bonus(
        &self,
        id: ObjectId,
        bonus_type: ObjectType,
        what: &'static str,
    ) -> Result<Arc<[u8]>, PoolError> {
        let object = self.object(id, what)?;
        if object.bonus_type() != bonus_type {
            return Err(contradiction(what, "the object is something else"));
        }
        Ok(object.bonus())
    }

    pub(crate) fn directory(&self, id: ObjectId) -> Result<DslDirectoryPhys, PoolError> {
        let bonus = self.bonus(id, ObjectType::DSL_DIRECTORY, DIRECTORY)?;
        DslDirectoryPhys::decode(&bonus, Endian::Little).during(DIRECTORY)
    }

    pub(crate) fn dataset(&self, id: ObjectId) -> Result<DslDatasetPhys, PoolError> {
        let bonus = self.bonus(id, ObjectType::DSL_DATASET, DATASET)?;
        DslDatasetPhys::decode(&bonus, Endian::Little).during(DATASET)
    }

    pub(crate) fn table(&self, id: ObjectId) -> Result<Zap, PoolError> {
        Zap::from_source(self.object(id, DATASET)?).during(DATASET)
    }

    pub(crate) fn lookup(&self, zap: ObjectId, key: &str) -> Result<Option<u64>, PoolError> {
        self.table(zap)?.lookup_u64(key.as_bytes()).during(DATASET)
    }

    pub(crate) fn lookup_value(
        &self,
        zap: ObjectId,
        key: &str,
    ) -> Result<Option<ZapValue>, PoolError> {
        self.table(zap)?.lookup(key.as_bytes()).during(DATASET)
    }

    /// All entries of a ZAP. Memory is bounded by the size of the ZAP.
    pub(crate) fn entries(&self, zap: ObjectId) -> Result<Vec<ZapEntry>, PoolError> {
        let table = self.table(zap)?;
        table.iter().map(|entry| entry.during(DATASET)).collect()
    }

    pub(crate) fn entry_count(&self, zap: ObjectId) -> Result<u64, PoolError> {
        self.table(zap)?.entry_count().during(DATASET)
    }

    /// The members of a set of numbers, ascending.
    pub(crate) fn set_members(&self, set: ObjectId) -> Result<Vec<ObjectId>, PoolError> {
        let mut members: Vec<_> = self
            .entries(set)?
            .iter()
            .filter_map(|entry| entry.value.first().map(ObjectId))
            .collect();
        members.sort();
        Ok(members)
    }

    /// Whether a directory's or dataset's own object has become a ZAP.
    pub(crate) fn is_zapified(&self, id: ObjectId) -> Result<bool, PoolError> {
        Ok(self.object(id, DATASET)?.object_type() == ObjectType::METADATA_ZAP)
    }

    /// Looks up an entry of such a ZAP; `None` if the entry is absent or the object is not a ZAP.
    pub(crate) fn extension(&self, id: ObjectId, key: &str) -> Result<Option<Vec<u64>>, PoolError> {
        if !self.is_zapified(id)? {
            return Ok(None);
        }
        let value = self.lookup_value(id, key)?;
        Ok(value.map(|value| value.integers().collect()))
    }

    /// Like [`MosView::extension`], for an entry that is a single number.
    pub(crate) fn extension_number(
        &self,
        id: ObjectId,
        key: &str,
    ) -> Result<Option<u64>, PoolError> {
        let words = self.extension(id, key)?;
        Ok(words.and_then(|words| words.first().copied()))
    }
}
