//! Opens and reads a volume.

use crate::VolumeError;
use crate::error::Errors;
use crate::write::Writing;
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_object::{ObjectError, ObjectSet, ObjectSetView, ReadableObject, unhurried};
use millpond_ondisk::{ObjectId, ObjectSetKind};
use millpond_posix::TransactionSource;
use millpond_zap::Zap;

/// The data object.
pub(crate) const DATA: ObjectId = ObjectId(1);
/// The object that holds the property table.
pub(crate) const PROPERTIES: ObjectId = ObjectId(2);
/// The entry of that table with the volume's size in bytes.
pub(crate) const SIZE: &[u8] = b"size";

/// An open volume, or a snapshot of one. All threads share it.
///
/// Reading a committed volume takes no lock. In a volume that is open for change, requests to different blocks
/// run in parallel: a request locks its byte range before its transaction begins, and holds it until the request
/// ends. Page `docs/format/volume.md`.
pub struct Volume {
    name: Arc<str>,
    data: ReadableObject,
    size_bytes: AtomicU64,
    /// `None` if the volume can only be read.
    writing: Option<Writing>,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Volume {
    /// Opens the volume in a committed object set, for reading. Errors use `name`.
    ///
    /// Without its key, the size and the holes of an encrypted volume are readable, but not its data.
    ///
    /// # Errors
    /// [`VolumeError::NotAVolume`] for a file system; [`VolumeError::NoSize`]; if one of its two objects
    /// cannot be read.
    pub fn open(name: &str, set: &Arc<ObjectSetView>) -> Result<Self, VolumeError> {
        let object = |id| set.object(id).map(ReadableObject::Committed);
        Self::from_objects(name, set.kind(), object, |_| None)
    }

    /// Opens the volume in an object set for reading and writing. Errors use `name`.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn open_for_change(
        name: &str,
        set: &Arc<ObjectSet>,
        source: Arc<dyn TransactionSource>,
    ) -> Result<Self, VolumeError> {
        let object = |id| set.object(id).map(ReadableObject::Open);
        Self::from_objects(name, set.kind(), object, |objects| match objects {
            (ReadableObject::Open(data), ReadableObject::Open(table)) => {
                Some(Writing::new(set, data, table, source))
            }
            _ => None,
        })
    }

    fn from_objects(
        name: &str,
        kind: ObjectSetKind,
        object: impl Fn(ObjectId) -> Result<ReadableObject, ObjectError>,
        writing: impl FnOnce((&ReadableObject, &ReadableObject)) -> Option<Writing>,
    ) -> Result<Self, VolumeError> {
        let errors = Errors(name);
        if kind != ObjectSetKind::Volume {
            let name = name.to_owned();
            return Err(VolumeError::NotAVolume { name });
        }
        let object = |id| object(id).map_err(|error| errors.object(error));
        let (data, table) = (object(DATA)?, object(PROPERTIES)?);
        let size = Zap::of_readable(&table).and_then(|table| table.lookup_u64(SIZE));
        let size = size.map_err(|error| errors.zap(error))?;
        let size = size.ok_or_else(|| VolumeError::NoSize {
            name: name.to_owned(),
        })?;
        Ok(Self {
            name: name.into(),
            writing: writing((&data, &table)),
            data,
            size_bytes: AtomicU64::new(size),
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
        self.size_bytes.load(Ordering::Acquire)
    }
    /// The caller has locked the range between the old size and the new one.
    pub(crate) fn set_size_bytes(&self, size_bytes: u64) {
        self.size_bytes.store(size_bytes, Ordering::Release);
    }
    /// The size of its blocks in bytes (`volblocksize`).
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.data.block_bytes()
    }
    /// The object that holds the data. Byte *n* of the object is byte *n* of the volume.
    #[must_use]
    pub fn data(&self) -> &ReadableObject {
        &self.data
    }
    /// The state for writing.
    ///
    /// # Errors
    /// [`VolumeError::Transaction`] if the volume can only be read.
    pub(crate) fn writing(&self) -> Result<&Writing, VolumeError> {
        let writing = self.writing.as_ref();
        writing.ok_or_else(|| self.errors().read_only())
    }

    pub(crate) fn errors(&self) -> Errors<'_> {
        Errors(&self.name)
    }
    pub(crate) fn check_range(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<u64, VolumeError> {
        let size_bytes = self.size_bytes();
        let end = offset_bytes.checked_add(length_bytes);
        end.filter(|end| *end <= size_bytes)
            .ok_or_else(|| VolumeError::BeyondEnd {
                name: self.name.to_string(),
                offset_bytes,
                length_bytes,
                size_bytes,
            })
    }

    /// Fills `buffer` from `offset_bytes`. Holes read as zeros. Reads see writes that are not synced yet.
    ///
    /// # Errors
    /// [`VolumeError::BeyondEnd`] before anything is read. Otherwise if a block cannot be read; the buffer's
    /// content is then undefined.
    pub fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), VolumeError> {
        let length = buffer.len() as u64;
        let range = offset_bytes..offset_bytes.saturating_add(length);
        let _range = self.writing.as_ref().map(|w| w.ranges().read(range));
        self.check_range(offset_bytes, length)?;
        let read = unhurried(|| self.data.read(offset_bytes, buffer));
        read.map_err(|error| self.errors().object(error))
    }
}
