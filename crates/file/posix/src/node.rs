//! One file of any kind.

use crate::error::PosixError;
use crate::file_system::FileSystem;
use crate::stat::{FileKind, Stat};
use millpond_env::sync::Arc;
use millpond_object::Object;
use millpond_ondisk::{DecodeError, ObjectId};
use millpond_sa::{Ace, Attributes};

/// An open file, directory, link or device node, with its attributes as they stood when it was
/// opened. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Node {
    files: Arc<FileSystem>,
    object: Object,
    attributes: Arc<Attributes>,
    kind: FileKind,
    size_bytes: u64,
}

impl Node {
    pub(crate) fn open(files: Arc<FileSystem>, object: Object) -> Result<Self, PosixError> {
        let attributes = files.registry().attributes(&object)?;
        let invalid = |reason| PosixError::Invalid {
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

    /// The file system that it belongs to.
    #[must_use]
    pub fn file_system(&self) -> &Arc<FileSystem> {
        &self.files
    }
    /// Its object, for those who look below the file.
    #[must_use]
    pub fn object(&self) -> &Object {
        &self.object
    }
    /// Its object number, which is its inode number.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.object.id()
    }
    /// What kind of file it is.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.kind
    }
    /// Length in bytes; of a directory its entries and 2.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
    pub(crate) fn attributes(&self) -> &Attributes {
        &self.attributes
    }
    pub(crate) fn invalid(&self, structure: &'static str, reason: &'static str) -> PosixError {
        PosixError::Invalid {
            dataset: self.object.object_set().dataset(),
            object: self.id(),
            error: DecodeError::new(structure, reason, 0),
        }
    }

    /// Everything that `stat` tells.
    ///
    /// # Errors
    /// If an attribute that every file has is missing or damaged.
    pub fn stat(&self) -> Result<Stat, PosixError> {
        Stat::read(self)
    }
    /// The directory that holds it, or held it: a file with several links names one of them, which
    /// may be gone.
    ///
    /// # Errors
    /// If the attribute is missing or damaged.
    pub fn parent_id(&self) -> Result<ObjectId, PosixError> {
        Ok(self.attributes.parent()?)
    }
    /// Where a symbolic link leads, at most 64 KiB; `None` for other files.
    ///
    /// # Errors
    /// If the target cannot be read.
    pub fn link_target(&self) -> Result<Option<Vec<u8>>, PosixError> {
        Ok(self
            .attributes
            .symlink_target()?
            .map(std::borrow::Cow::into_owned))
    }
    /// Its NFSv4 access control list, which every file has: as a rule the one that its mode means.
    ///
    /// # Errors
    /// If it cannot be read or decoded.
    pub fn nfs4_acl(&self) -> Result<Option<Vec<Ace>>, PosixError> {
        Ok(self.attributes.acl()?)
    }
}
