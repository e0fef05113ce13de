//! One file of any type.

use crate::error::FileError;
use crate::file_system::FileSystem;
use crate::stat::{FileKind, Stat};
use millpond_env::sync::Arc;
use millpond_object::ObjectView;
use millpond_ondisk::{DecodeError, ObjectId};
use millpond_sa::{Ace, Attributes};

/// An open file, directory, link or device node, with its attributes as of when it was opened. Cheap to
/// clone.
#[derive(Debug, Clone)]
pub struct Node {
    files: Arc<FileSystem>,
    object: ObjectView,
    attributes: Arc<Attributes>,
    kind: FileKind,
    size_bytes: u64,
}

impl Node {
    pub(crate) fn open(files: Arc<FileSystem>, object: ObjectView) -> Result<Self, FileError> {
        let attributes = files.registry().attributes(&object)?;
        let invalid = |reason| FileError::Corrupt {
            dataset: object.object_set().dataset(),
            object: object.id(),
            error: DecodeError::new("file attributes", reason, 0),
        };
        if attributes.generation()? == 0 {
            return Err(invalid("generation 0"));
        }
        let kind = FileKind::from_mode(attributes.mode()?)
            .ok_or_else(|| invalid("mode is of no kind of file"))?;
        let size_bytes = attributes.size()?;
        Ok(Self {
            files,
            object,
            attributes: Arc::new(attributes),
            kind,
            size_bytes,
        })
    }

    /// The file system of the file.
    #[must_use]
    pub fn file_system(&self) -> &Arc<FileSystem> {
        &self.files
    }
    /// The file's object, for access below the file layer.
    #[must_use]
    pub fn object(&self) -> &ObjectView {
        &self.object
    }
    /// The object id, which is also the inode number.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.object.id()
    }
    /// The file type.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.kind
    }
    /// The length in bytes; for a directory, the number of entries plus 2.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
    pub(crate) fn attributes(&self) -> &Attributes {
        &self.attributes
    }
    pub(crate) fn invalid(&self, structure: &'static str, reason: &'static str) -> FileError {
        FileError::Corrupt {
            dataset: self.object.object_set().dataset(),
            object: self.id(),
            error: DecodeError::new(structure, reason, 0),
        }
    }

    /// Everything that `stat` shows.
    ///
    /// # Errors
    /// If an attribute that every file has is missing or damaged.
    pub fn stat(&self) -> Result<Stat, FileError> {
        Stat::read(self)
    }
    /// The directory that holds the file, or once did.
    ///
    /// For a file with several links, it is the directory of one of them, and that link may be gone.
    ///
    /// # Errors
    /// If the attribute is missing or damaged.
    pub fn parent_id(&self) -> Result<ObjectId, FileError> {
        Ok(self.attributes.parent()?)
    }
    /// The target of a symbolic link, at most 64 KiB; `None` for other files.
    ///
    /// # Errors
    /// If the target cannot be read.
    pub fn link_target(&self) -> Result<Option<Vec<u8>>, FileError> {
        Ok(self
            .attributes
            .symlink_target()?
            .map(std::borrow::Cow::into_owned))
    }
    /// The file's NFSv4 ACL. Every file has one; usually it is equivalent to the mode.
    ///
    /// # Errors
    /// If it cannot be read or decoded.
    pub fn nfs4_acl(&self) -> Result<Option<Vec<Ace>>, FileError> {
        Ok(self.attributes.acl()?)
    }
}
