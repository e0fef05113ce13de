//! Open files.

use crate::{Error, FileSystem, Metadata};
use millpond_engine::{CHUNK_BYTES, FileError, Node, Seek as SeekTo, SetAttributes, WriteAt};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

/// An open regular file with a position, as [`std::fs::File`].
///
/// [`File::read_at`] and [`File::write_all_at`] do not use the position, and can be called by several threads.
#[derive(Debug)]
pub struct File {
    files: FileSystem,
    node: Node,
    /// `DATASET:PATH`, for errors.
    subject: Arc<str>,
    position: u64,
}

impl File {
    pub(crate) fn new(files: &FileSystem, path: &Path, node: Node) -> Self {
        Self {
            files: files.clone(),
            node,
            subject: format!("{}:{}", files.name(), path.display()).into(),
            position: 0,
        }
    }

    fn with_path<T>(&self, outcome: Result<T, FileError>) -> Result<T, Error> {
        outcome.map_err(|error| {
            let error = self.files.pin().explained(error.into());
            error.about(&self.subject)
        })
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.node.size_bytes()
    }

    /// Whether the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its attributes.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Damaged`], [`crate::ErrorKind::Device`].
    pub fn metadata(&self) -> Result<Metadata, Error> {
        self.with_path(self.node.stat()).map(Metadata)
    }

    /// Reads bytes at an offset. Returns their count, which is less than asked for only at the end of the file.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Damaged`], [`crate::ErrorKind::Device`].
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Error> {
        self.with_path(self.node.read(offset, buffer))
    }

    /// Writes all bytes at an offset. A long write uses several transactions: after an error or a crash its
    /// first part may be written.
    ///
    /// # Errors
    /// [`crate::ErrorKind::ReadOnly`], [`crate::ErrorKind::NoSpace`], [`crate::ErrorKind::QuotaExceeded`].
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        let (files, caller) = (self.files.files(), self.files.caller());
        let written = files.write(caller, &self.node, WriteAt::Offset(offset), bytes);
        self.with_path(written).map(drop)
    }

    /// Copies `length` bytes from `from_offset` of another file of the pool, or of a snapshot, to an offset of this
    /// one. Returns their count, which is less if the other file ends before.
    ///
    /// Where both ranges have whole records in the same places, and the other file's are on stable storage, this file
    /// refers to them afterwards: nothing is read or written, and the pool needs no space for them.
    ///
    /// # Errors
    /// As [`File::read_at`] and [`File::write_all_at`].
    pub fn copy_from(
        &self,
        from: &File,
        from_offset: u64,
        offset: u64,
        length: u64,
    ) -> Result<u64, Error> {
        let (files, caller) = (self.files.files(), self.files.caller());
        let (from, to) = ((&from.node, from_offset), (&self.node, offset));
        self.with_path(files.copy_range(caller, from, to, length))
    }

    /// Writes all bytes at the end of the file. Returns the offset where they start.
    ///
    /// # Errors
    /// As [`File::write_all_at`].
    pub fn append(&self, bytes: &[u8]) -> Result<u64, Error> {
        let (files, caller) = (self.files.files(), self.files.caller());
        self.with_path(files.write(caller, &self.node, WriteAt::End, bytes))
    }

    /// Shortens the file, or extends it with a hole.
    ///
    /// # Errors
    /// As [`File::write_all_at`].
    pub fn set_len(&self, bytes: u64) -> Result<(), Error> {
        let set = SetAttributes {
            size_bytes: Some(bytes),
            ..SetAttributes::default()
        };
        let (files, caller) = (self.files.files(), self.files.caller());
        self.with_path(files.set_attributes(caller, &self.node, &set))
    }

    /// The offset of the next byte that is not in a hole, from `offset` on; `None` if there is none.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Damaged`], [`crate::ErrorKind::Device`].
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>, Error> {
        match self.node.seek(SeekTo::Data, offset) {
            Err(FileError::NoData) => Ok(None),
            found => self.with_path(found).map(Some),
        }
    }

    /// The offset of the next hole, from `offset` on; the length if there is none.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Damaged`], [`crate::ErrorKind::Device`].
    pub fn next_hole(&self, offset: u64) -> Result<u64, Error> {
        match self.node.seek(SeekTo::Hole, offset) {
            Err(FileError::NoData) => Ok(self.len()),
            found => self.with_path(found),
        }
    }

    /// Waits until all changes of this file and of its name are on stable storage.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Suspended`], [`crate::ErrorKind::Device`].
    pub fn sync_all(&self) -> Result<(), Error> {
        self.with_path(self.files.files().fsync(&self.node))
    }
}

impl Read for File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.read_at(buffer, self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

/// The bytes that one transaction writes at a position. More would leave a part written after an error, which
/// [`Write::write`] must not.
pub(crate) fn in_one_transaction(bytes: &[u8], position: u64) -> &[u8] {
    let left = CHUNK_BYTES - position % CHUNK_BYTES;
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    bytes.get(..left).unwrap_or(bytes)
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = in_one_transaction(bytes, self.position);
        self.write_all_at(bytes, self.position)?;
        self.position += bytes.len() as u64;
        Ok(bytes.len())
    }

    /// Has no effect: nothing waits in the handle. See [`File::sync_all`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = sought(self.position, self.len(), to)?;
        Ok(self.position)
    }
}

/// The position after a seek.
pub(crate) fn sought(position: u64, length: u64, to: SeekFrom) -> io::Result<u64> {
    let found = match to {
        SeekFrom::Start(offset) => Some(offset),
        SeekFrom::Current(distance) => position.checked_add_signed(distance),
        SeekFrom::End(distance) => length.checked_add_signed(distance),
    };
    found.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}
