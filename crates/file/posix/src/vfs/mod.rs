//! What front ends that serve files ask of a file system: [`Vfs`].
//!
//! FUSE and network servers see inode numbers, names, cookies and attributes; they see no object set
//! and no transaction. [`LiveFileSystem`](crate::live::LiveFileSystem) serves itself, [`StoredFiles`] serves
//! what cannot change, [`WithSnapshots`] adds `.zfs/snapshot` to a live file system.

mod live;
mod snapshots;
mod stored;

pub use snapshots::{SnapshotEntry, SnapshotPort, WithSnapshots};
pub use stored::StoredFiles;

use crate::live::{
    Allocate, BeginError, Caller, FileError, FileSystemStat, LiveNode, NAME_BYTES_MAX, NewMode,
    RenameMode, Seek, SetAttributes, SpecialFile, WriteAt, XattrMode,
};
use crate::{FileKind, Keeping, Node, Stat};
use millpond_env::sync::Arc;
use millpond_ondisk::ObjectId;

/// How many bits of an inode number are the object's.
const OBJECT_BITS: u32 = 48;

/// The number that programs see of a file: its object number in the lower 48 bits. The upper 16 are 0 for
/// the file system itself and the *tag* of a snapshot below `.zfs/snapshot`, so that a file and its copy in
/// a snapshot never have the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InodeNumber(pub u64);

impl InodeNumber {
    /// The number of an object below a tag.
    #[must_use]
    pub fn new(tag: u16, object: ObjectId) -> Self {
        Self(u64::from(tag) << OBJECT_BITS | object.0 & ((1 << OBJECT_BITS) - 1))
    }
    /// The object's number in its file system.
    #[must_use]
    pub fn object(self) -> ObjectId {
        ObjectId(self.0 & ((1 << OBJECT_BITS) - 1))
    }
    /// Which snapshot, 0 for none.
    #[must_use]
    pub fn tag(self) -> u16 {
        (self.0 >> OBJECT_BITS) as u16
    }
}

/// A file held open through a [`Vfs`]. Cheap to clone. Good only for the `Vfs` that it came from.
#[derive(Debug, Clone)]
pub struct VfsNode {
    number: InodeNumber,
    generation: u64,
    kind: FileKind,
    body: Body,
}

#[derive(Debug, Clone)]
enum Body {
    Live(LiveNode),
    Stored(Arc<Node>),
    /// `.zfs` or `.zfs/snapshot`.
    Virtual,
}

impl VfsNode {
    /// The inode number.
    #[must_use]
    pub fn number(&self) -> InodeNumber {
        self.number
    }
    /// With the number it names the file for ever.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }
    /// What it is; that never changes.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.kind
    }
    /// Whether its last name is gone: it lives as long as it is held.
    #[must_use]
    pub fn is_unlinked(&self) -> bool {
        matches!(&self.body, Body::Live(node) if node.is_unlinked())
    }
    /// Whether nothing that is known of it may be kept: what is in it comes and goes without
    /// anybody writing to it, as snapshots do.
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        matches!(self.body, Body::Virtual)
    }
    /// Whether nothing of it ever changes.
    #[must_use]
    pub fn is_stored(&self) -> bool {
        matches!(self.body, Body::Stored(_))
    }
}

/// One line of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VfsEntry {
    /// The name.
    pub name: Vec<u8>,
    /// The number of what it stands for.
    pub number: InodeNumber,
    /// What that is, if the directory says so.
    pub kind: Option<FileKind>,
    /// Where the listing goes on behind it; good for ever.
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

/// A file system as front ends see it. Shared by all threads; every call may block.
///
/// What changes something is refused with "read-only" unless an implementation says otherwise. Errors are
/// those of the operations of the same name of [`LiveFileSystem`](crate::live::LiveFileSystem).
pub trait Vfs: Send + Sync {
    /// The root directory.
    fn root(&self) -> Result<VfsNode, FileError>;
    /// The file of this number and generation; a generation of 0 stands for whichever file has the
    /// number now, for the use of listings. [`FileError::Stale`] if it is gone.
    fn node(&self, number: InodeNumber, generation: u64) -> Result<VfsNode, FileError>;
    /// The file with this name.
    fn lookup(&self, place: VfsPlace<'_>) -> Result<VfsNode, FileError>;
    /// Everything that `stat` tells, but for the inode number.
    fn stat(&self, node: &VfsNode) -> Result<Stat, FileError>;
    /// Where a symbolic link leads.
    fn link_target(&self, node: &VfsNode) -> Result<Vec<u8>, FileError>;
    /// Up to `count` entries from a cookie on, `.` and `..` among them; 0 is the start, an empty list
    /// the end.
    fn list(&self, node: &VfsNode, cookie: u64, count: usize) -> Result<Vec<VfsEntry>, FileError>;
    /// Reads bytes of an ordinary file, as far as it goes.
    fn read(&self, node: &VfsNode, offset: u64, buffer: &mut [u8]) -> Result<usize, FileError> {
        self.read_keeping(node, offset, buffer, Keeping::Here)
    }
    /// As [`Vfs::read`], saying what is to become of the content in memory.
    fn read_keeping(
        &self,
        node: &VfsNode,
        offset: u64,
        buffer: &mut [u8],
        keeping: Keeping,
    ) -> Result<usize, FileError>;
    /// Where the next data or hole is.
    fn seek(&self, node: &VfsNode, what: Seek, offset: u64) -> Result<u64, FileError>;
    /// Names of extended attributes.
    fn xattr_names(&self, node: &VfsNode) -> Result<Vec<Vec<u8>>, FileError>;
    /// The value of an extended attribute.
    fn xattr(&self, node: &VfsNode, name: &[u8]) -> Result<Vec<u8>, FileError>;
    /// How full the file system is, as seen from a file.
    fn stat_file_system(&self, node: &VfsNode) -> Result<FileSystemStat, FileError>;

    /// Whether programs can set POSIX access control lists.
    fn has_posix_acls(&self) -> bool {
        false
    }
    /// Whether a name stands only for itself: what was said of one name, also that it is not there, holds
    /// until exactly this name is changed.
    fn has_exact_names(&self) -> bool {
        true
    }
    /// The longest name that can be made, in bytes. Longer ones may be there.
    fn name_bytes_max(&self) -> usize {
        NAME_BYTES_MAX
    }
    /// Whether nothing can be changed.
    fn is_read_only(&self) -> bool {
        true
    }
    /// Whether figures of a file's space stay as they are until it is changed through this. Where they do not, those of
    /// [`Vfs::stat`] become exact some seconds later.
    fn is_settled(&self, _node: &VfsNode) -> bool {
        true
    }
    /// Notes that a file was read, where settings want that.
    fn touch_atime(&self, _node: &VfsNode) {}
    /// Frees files whose last name and last holder are gone.
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
    /// Makes an ordinary file, or finds the one there; tells whether it was made.
    fn create(
        &self,
        _caller: &Caller,
        _place: VfsPlace<'_>,
        _mode: NewMode,
        _is_exclusive: bool,
    ) -> Result<(VfsNode, bool), FileError> {
        read_only()
    }
    /// Makes an ordinary file without a name.
    fn make_unnamed(
        &self,
        _caller: &Caller,
        _directory: &VfsNode,
        _mode: NewMode,
    ) -> Result<VfsNode, FileError> {
        read_only()
    }
    /// Makes a directory.
    fn make_directory(
        &self,
        _caller: &Caller,
        _place: VfsPlace<'_>,
        _mode: NewMode,
    ) -> Result<VfsNode, FileError> {
        read_only()
    }
    /// Makes a pipe, socket or device node.
    fn make_special(
        &self,
        _caller: &Caller,
        _place: VfsPlace<'_>,
        _what: SpecialFile,
        _mode: NewMode,
    ) -> Result<VfsNode, FileError> {
        read_only()
    }
    /// Makes a symbolic link.
    fn make_symlink(
        &self,
        _caller: &Caller,
        _place: VfsPlace<'_>,
        _target: &[u8],
    ) -> Result<VfsNode, FileError> {
        read_only()
    }
    /// Gives a file another name.
    fn link(&self, _node: &VfsNode, _place: VfsPlace<'_>) -> Result<(), FileError> {
        read_only()
    }
    /// Removes a name of anything but a directory.
    fn unlink(&self, _place: VfsPlace<'_>) -> Result<(), FileError> {
        read_only()
    }
    /// Removes an empty directory.
    fn remove_directory(&self, _place: VfsPlace<'_>) -> Result<(), FileError> {
        read_only()
    }
    /// Moves a file from one name to another.
    fn rename(
        &self,
        _caller: &Caller,
        _from: VfsPlace<'_>,
        _to: VfsPlace<'_>,
        _mode: RenameMode,
    ) -> Result<(), FileError> {
        read_only()
    }
    /// Writes bytes; tells where they went.
    fn write(
        &self,
        _caller: &Caller,
        _node: &VfsNode,
        _at: WriteAt,
        _bytes: &[u8],
    ) -> Result<u64, FileError> {
        read_only()
    }
    /// What `fallocate` does.
    fn allocate(
        &self,
        _node: &VfsNode,
        _what: Allocate,
        _offset: u64,
        _length: u64,
    ) -> Result<(), FileError> {
        read_only()
    }
    /// Copies a range from one file to another; tells how many bytes were copied.
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
    /// Returns when everything that was done to any file is on stable storage.
    fn sync(&self) -> Result<(), FileError> {
        Ok(())
    }
    /// Returns when what was done to the file, and what that depends on, is on stable storage.
    fn fsync(&self, _node: &VfsNode) -> Result<(), FileError> {
        Ok(())
    }
}

fn read_only<T>() -> Result<T, FileError> {
    Err(BeginError::ReadOnly.into())
}
