//! Opens and reads a volume.

use crate::VolumeError;
use millpond_dataset::{Dataset, DatasetKey};
use millpond_env::sync::Arc;
use millpond_object::{ObjectError, ObjectSetView, ObjectView, unhurried};
use millpond_ondisk::{ObjectId, ObjectSetKind};
use millpond_zap::Zap;

/// The data object.
pub(crate) const DATA: ObjectId = ObjectId(1);
/// The object that holds the property table.
pub(crate) const PROPERTIES: ObjectId = ObjectId(2);
/// The entry of that table with the volume's size in bytes.
pub(crate) const SIZE: &[u8] = b"size";

/// An open volume, or a snapshot of one. Cheap to clone.
///
/// All reads take `&self` and may run in parallel. Page `docs/format/volume.md`.
#[derive(Debug, Clone)]
pub struct Volume {
    name: Arc<str>,
    data: ObjectView,
    size_bytes: u64,
}

impl Volume {
    /// Opens the volume that a dataset holds.
    ///
    /// Without `key`, the size and the holes of an encrypted volume are readable, but not its data.
    ///
    /// # Errors
    /// [`VolumeError::NotAVolume`] for a file system; otherwise if one of its two objects cannot be read.
    pub fn open(dataset: &Dataset, key: Option<Arc<DatasetKey>>) -> Result<Self, VolumeError> {
        Self::from_object_set(dataset.name(), &dataset.object_set(key)?)
    }

    /// Like [`Volume::open`], from an object set that is already open. Errors use `name`.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn from_object_set(name: &str, set: &Arc<ObjectSetView>) -> Result<Self, VolumeError> {
        let object = |error: ObjectError| VolumeError::Object {
            name: name.to_owned(),
            error,
        };
        if set.kind() != ObjectSetKind::Volume {
            return Err(VolumeError::NotAVolume {
                name: name.to_owned(),
            });
        }
        let size_bytes = Zap::open(set.object(PROPERTIES).map_err(object)?)
            .and_then(|zap| zap.lookup_u64(SIZE))
            .map_err(|error| VolumeError::Zap {
                name: name.to_owned(),
                error,
            })?
            .ok_or_else(|| VolumeError::NoSize {
                name: name.to_owned(),
            })?;
        Ok(Self {
            name: name.into(),
            data: set.object(DATA).map_err(object)?,
            size_bytes,
        })
    }

    /// The name it was opened under.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
    /// The volume's size in bytes.
    ///
    /// The stored size is not checked against the pool: a volume may be far larger than its pool, and ranges
    /// that were never written read as zeros.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
    /// The size of its blocks in bytes (`volblocksize`).
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.data.block_bytes()
    }
    /// The object that holds the data. Byte *n* of the object is byte *n* of the volume.
    #[must_use]
    pub fn data(&self) -> &ObjectView {
        &self.data
    }

    /// Fills `buffer` from `offset_bytes`. Holes read as zeros.
    ///
    /// # Errors
    /// [`VolumeError::BeyondEnd`] before anything is read. Otherwise if a block cannot be read; the buffer's
    /// content is then undefined.
    pub fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), VolumeError> {
        let length_bytes = buffer.len() as u64;
        let end = offset_bytes.checked_add(length_bytes);
        if end.is_none_or(|end| end > self.size_bytes) {
            return Err(VolumeError::BeyondEnd {
                name: self.name.to_string(),
                offset_bytes,
                length_bytes,
                size_bytes: self.size_bytes,
            });
        }
        unhurried(|| self.data.read(offset_bytes, buffer)).map_err(|error| self.error(error))
    }

    pub(crate) fn error(&self, error: ObjectError) -> VolumeError {
        VolumeError::Object {
            name: self.name.to_string(),
            error,
        }
    }
}
