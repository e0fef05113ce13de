//! The file system interface for front ends: [`Vfs`].
//!
//! FUSE and network servers work with inode numbers, names, cookies and attributes. They do not access object
//! sets or transactions. [`FileSystem`](crate::FileSystem) implements [`Vfs`] itself, and [`ZfsCtlDir`] adds
//! `.zfs/snapshot` to a file system that is open for change.

mod ctldir;
mod file_system;

pub use ctldir::{SnapshotEntry, SnapshotPort, ZfsCtlDir};

use crate::{
    Allocate, CacheHint, Caller, FileError, FileKind, FileSystemStat, NAME_BYTES_MAX, NewMode,
    Node, RenameMode, Seek, SetAttributes, SpecialFile, Stat, TransactionError, WriteAt, XattrMode,
};
use millpond_ondisk::ObjectId;

/// The number of bits of an inode number that hold the object id.
const OBJECT_BITS: u32 = 48;

/// The inode number that programs see.
///
/// The lower 48 bits are the object id. The upper 16 bits are 0 for the file system itself, and the *tag* of
/// a snapshot for files below `.zfs/snapshot`. A file and its copy in a snapshot thus never have the same
/// number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InodeNumber(pub u64);

impl InodeNumber {
    /// The inode number of an object with a tag.
    #[must_use]
    pub fn new(tag: u16, object: ObjectId) -> Self {
        Self(u64::from(tag) << OBJECT_BITS | object.0 & ((1 << OBJECT_BITS) - 1))
    }
    /// The object id in the file system.
    #[must_use]
    pub fn object(self) -> ObjectId {
        ObjectId(self.0 & ((1 << OBJECT_BITS) - 1))
    }
    /// The snapshot's tag; 0 for none.
    #[must_use]
    pub fn tag(self) -> u16 {
        (self.0 >> OBJECT_BITS) as u16
    }
}

/// An open file of a [`Vfs`]. Cheap to clone. It is valid only for the `Vfs` that returned it.
#[derive(Debug, Clone)]
pub struct VfsNode {
    number: InodeNumber,
    /// `None` for `.zfs` and `.zfs/snapshot`.
    file: Option<Node>,
}

impl VfsNode {
    /// A file; of a snapshot with its tag, otherwise with tag 0.
    fn of_file(tag: u16, node: Node) -> Self {
        Self {
            number: InodeNumber::new(tag, node.id()),
            file: Some(node),
        }
    }
    fn of_virtual(number: InodeNumber) -> Self {
        Self { number, file: None }
    }
    /// The file. [`FileError::NotSupported`] for a virtual directory.
    fn file(&self) -> Result<&Node, FileError> {
        self.file.as_ref().ok_or(FileError::NotSupported)
    }
    /// The inode number.
    #[must_use]
    pub fn number(&self) -> InodeNumber {
        self.number
    }
    /// Together with the inode number it identifies the file forever.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.file.as_ref().map_or(1, Node::generation)
    }
    /// The file type. It never changes.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.file.as_ref().map_or(FileKind::Directory, Node::kind)
    }
    /// Whether its last name is removed, so that it lives only as long as it is open.
    #[must_use]
    pub fn is_unlinked(&self) -> bool {
        self.file.as_ref().is_some_and(Node::is_unlinked)
    }
    /// Whether nothing about it may be cached. The entries of a virtual directory change without writes to
    /// it, because snapshots are created and destroyed.
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        self.file.is_none()
    }
    /// Whether it never changes.
    #[must_use]
    pub fn is_committed(&self) -> bool {
        let file = self.file.as_ref();
        file.is_some_and(|file| file.object().committed().is_some())
    }
}

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VfsEntry {
    /// The name.
    pub name: Vec<u8>,
    /// The inode number of the file.
    pub number: InodeNumber,
    /// The file type, if the directory stores it.
    pub kind: Option<FileKind>,
    /// The position after this entry. It stays valid forever.
    pub cookie: u64,
}

/// One side of a rename, link or removal: a directory and a name in it.
#[derive(Debug, Clone, Copy)]
pub struct VfsPlace<'p> {
    /// The directory.
    pub directory: &'p VfsNode,
    /// The name.
    pub name: &'p [u8],
}

/// A file system as front ends see it. All threads share it; every call may block.
///
/// By default, operations that change something fail with "read-only". Errors are those of the operations of
/// the same name of [`FileSystem`](crate::FileSystem) and [`Node`].
pub trait Vfs: Send + Sync {
    /// The root directory.
    fn root(&self) -> Result<VfsNode, FileError>;
    /// The file with this number and generation. Generation 0 matches any file that has the number now;
    /// listings use it. [`FileError::Stale`] if the file is gone.
    fn node(&self, number: InodeNumber, generation: u64) -> Result<VfsNode, FileError>;
    /// Looks up a name.
    fn lookup(&self, place: VfsPlace<'_>) -> Result<VfsNode, FileError>;
    /// Everything that `stat` shows, except the inode number.
    fn stat(&self, node: &VfsNode) -> Result<Stat, FileError>;
    /// The target of a symbolic link.
    fn link_target(&self, node: &VfsNode) -> Result<Vec<u8>, FileError>;
    /// Lists up to `count` entries from a cookie on, including `.` and `..`. 0 is the start; an empty list is
    /// the end.
    fn list(&self, node: &VfsNode, cookie: u64, count: usize) -> Result<Vec<VfsEntry>, FileError>;
    /// Reads bytes of a regular file, up to its end.
    fn read(&self, node: &VfsNode, offset: u64, buffer: &mut [u8]) -> Result<usize, FileError> {
        self.read_with_hint(node, offset, buffer, CacheHint::Retain)
    }
    /// Like [`Vfs::read`]. `hint` controls caching of the content.
    fn read_with_hint(
        &self,
        node: &VfsNode,
        offset: u64,
        buffer: &mut [u8],
        hint: CacheHint,
    ) -> Result<usize, FileError>;
    /// Finds the next data or hole.
    fn seek(&self, node: &VfsNode, what: Seek, offset: u64) -> Result<u64, FileError>;
    /// The names of extended attributes.
    fn xattr_names(&self, node: &VfsNode) -> Result<Vec<Vec<u8>>, FileError>;
    /// The value of an extended attribute.
    fn xattr(&self, node: &VfsNode, name: &[u8]) -> Result<Vec<u8>, FileError>;
    /// Space and file counts of the file system, as seen from a file.
    fn stat_file_system(&self, node: &VfsNode) -> Result<FileSystemStat, FileError>;

    /// Whether programs can set POSIX access control lists.
    fn has_posix_acls(&self) -> bool {
        false
    }
    /// Whether a file matches only one spelling of its name. The result of a lookup, even a negative one,
    /// then stays valid until exactly this name changes.
    fn has_exact_names(&self) -> bool {
        true
    }
    /// The longest name that can be created, in bytes. Existing names may be longer.
    fn name_bytes_max(&self) -> usize {
        NAME_BYTES_MAX
    }
    /// Whether the file system is read-only.
    fn is_read_only(&self) -> bool {
        true
    }
    /// Whether a file's space usage stays the same until the file is changed through this interface. If not,
    /// the usage in [`Vfs::stat`] becomes exact a few seconds later.
    fn is_settled(&self, _node: &VfsNode) -> bool {
        true
    }
    /// Updates the access time after a read, if the settings require it.
    fn touch_atime(&self, _node: &VfsNode) {}
    /// Frees files whose last name is removed and that are no longer open.
    fn reap(&self) -> Result<(), FileError> {
        Ok(())
    }

    /// Changes attributes.
    fn set_attributes(
        &self,
        _caller: &Caller,
        _node: &VfsNode,
        _set: &SetAttributes,
    ) -> Result<(), FileError> {
        read_only()
    }
    /// Creates a regular file, or opens an existing one. Returns whether it was created.
    fn create(
        &self,
        _caller: &Caller,
        _place: VfsPlace<'_>,
        _mode: NewMode,
        _is_exclusive: bool,
    ) -> Result<(VfsNode, bool), FileError> {
        read_only()
    }
    /// Creates a regular file without a name.
    fn create_tmpfile(
        &self,
        _caller: &Caller,
        _directory: &VfsNode,
        _mode: NewMode,
    ) -> Result<VfsNode, FileError> {
        read_only()
    }
    /// Creates a directory.
    fn make_directory(
        &self,
        _caller: &Caller,
        _place: VfsPlace<'_>,
        _mode: NewMode,
    ) -> Result<VfsNode, FileError> {
        read_only()
    }
    /// Creates a pipe, socket or device node.
    fn make_special(
        &self,
        _caller: &Caller,
        _place: VfsPlace<'_>,
        _what: SpecialFile,
        _mode: NewMode,
    ) -> Result<VfsNode, FileError> {
        read_only()
    }
    /// Creates a symbolic link.
    fn make_symlink(
        &self,
        _caller: &Caller,
        _place: VfsPlace<'_>,
        _target: &[u8],
    ) -> Result<VfsNode, FileError> {
        read_only()
    }
    /// Adds a name to a file.
    fn link(&self, _node: &VfsNode, _place: VfsPlace<'_>) -> Result<(), FileError> {
        read_only()
    }
    /// Removes a name of a file that is not a directory.
    fn unlink(&self, _place: VfsPlace<'_>) -> Result<(), FileError> {
        read_only()
    }
    /// Removes an empty directory.
    fn remove_directory(&self, _place: VfsPlace<'_>) -> Result<(), FileError> {
        read_only()
    }
    /// Renames a file.
    fn rename(
        &self,
        _caller: &Caller,
        _from: VfsPlace<'_>,
        _to: VfsPlace<'_>,
        _mode: RenameMode,
    ) -> Result<(), FileError> {
        read_only()
    }
    /// Writes bytes. Returns the offset where they start.
    fn write(
        &self,
        _caller: &Caller,
        _node: &VfsNode,
        _at: WriteAt,
        _bytes: &[u8],
    ) -> Result<u64, FileError> {
        read_only()
    }
    /// Implements `fallocate`.
    fn allocate(
        &self,
        _node: &VfsNode,
        _what: Allocate,
        _offset: u64,
        _length: u64,
    ) -> Result<(), FileError> {
        read_only()
    }
    /// Copies a range from one file to another. Returns how many bytes were copied.
    fn copy_range(
        &self,
        _caller: &Caller,
        _from: (&VfsNode, u64),
        _to: (&VfsNode, u64),
        _length: u64,
    ) -> Result<u64, FileError> {
        read_only()
    }
    /// Sets an extended attribute.
    fn set_xattr(
        &self,
        _caller: &Caller,
        _node: &VfsNode,
        _name: &[u8],
        _value: &[u8],
        _mode: XattrMode,
    ) -> Result<(), FileError> {
        read_only()
    }
    /// Removes an extended attribute.
    fn remove_xattr(&self, _node: &VfsNode, _name: &[u8]) -> Result<(), FileError> {
        read_only()
    }
    /// Returns when all earlier changes of all files are on stable storage.
    fn sync(&self) -> Result<(), FileError> {
        Ok(())
    }
    /// Returns when all earlier changes of the file, and those they depend on, are on stable storage.
    fn fsync(&self, _node: &VfsNode) -> Result<(), FileError> {
        Ok(())
    }
}

fn read_only<T>() -> Result<T, FileError> {
    Err(TransactionError::ReadOnly.into())
}
