//! The file system interface for front ends: [`Vfs`].
//!
//! FUSE and network servers work with inode numbers, names, cookies and attributes. They do not access object
//! sets or transactions. [`FileSystem`] implements [`Vfs`] itself, and [`ZfsCtlDir`] adds
//! `.zfs/snapshot` to a file system that is open for change.

mod ctldir;

pub use ctldir::{OpenSnapshots, SnapshotChange, SnapshotEntry, SnapshotPort, ZfsCtlDir};

use crate::{
    AclKind, Allocate, CacheHint, Caller, DirEntryRef, FileError, FileKind, FileSystem,
    FileSystemStat, NewMode, Node, RenameMode, Seek, SetAttributes, SpecialFile, Stat, WriteAt,
    XattrMode,
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
    /// Whether its space usage stays the same until the file is changed through the [`Vfs`]. If not, the usage
    /// in [`Vfs::stat`] becomes exact a few seconds later.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.file.as_ref().is_none_or(Node::is_settled)
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

impl<'p> VfsPlace<'p> {
    fn entry(&self) -> Result<DirEntryRef<'p>, FileError> {
        Ok(DirEntryRef {
            directory: self.directory.file()?,
            name: self.name,
        })
    }
}

/// The most blocks that one call of [`Vfs::copy_range`] shares: it must not occupy its caller for minutes where records
/// are small.
pub const SHARED_BLOCKS_MAX: u64 = 65_536;

/// A file system as front ends see it. All threads share it; every call may block.
///
/// An implementation chooses the [`FileSystem`] that serves a file, and overrides what it answers by itself.
/// Errors are those of the operations of the same name of [`FileSystem`] and [`Node`].
pub trait Vfs: Send + Sync {
    /// The file system that is served.
    fn file_system(&self) -> &FileSystem;
    /// The file system of a file, for operations that read it.
    fn reading<'n>(&'n self, node: &'n VfsNode) -> Result<&'n FileSystem, FileError>;
    /// The file system of a file, for operations that change it.
    fn changing(&self, node: &VfsNode) -> Result<&FileSystem, FileError>;
    /// The root directory.
    fn root(&self) -> Result<VfsNode, FileError> {
        Ok(VfsNode::of_file(0, self.file_system().root()?))
    }
    /// The file with this number and generation. Generation 0 matches any file that has the number now;
    /// listings use it. [`FileError::Stale`] if the file is gone.
    fn node(&self, number: InodeNumber, generation: u64) -> Result<VfsNode, FileError>;
    /// Looks up a name.
    fn lookup(&self, place: VfsPlace<'_>) -> Result<VfsNode, FileError> {
        self.reading(place.directory)?;
        let found = place.directory.file()?.lookup(place.name)?;
        Ok(VfsNode::of_file(place.directory.number.tag(), found))
    }
    /// Everything that `stat` shows, except the inode number.
    fn stat(&self, node: &VfsNode) -> Result<Stat, FileError> {
        self.reading(node)?;
        node.file()?.stat()
    }
    /// The target of a symbolic link.
    fn link_target(&self, node: &VfsNode) -> Result<Vec<u8>, FileError> {
        self.reading(node)?;
        let target = node.file()?.link_target()?;
        target.ok_or_else(|| FileError::invalid("not a symbolic link"))
    }
    /// Lists up to `count` entries from a cookie on, including `.` and `..`. 0 is the start; an empty list is
    /// the end.
    fn list(&self, node: &VfsNode, cookie: u64, count: usize) -> Result<Vec<VfsEntry>, FileError> {
        self.reading(node)?;
        let tag = node.number.tag();
        let listed = node.file()?.list(cookie, count)?.into_iter();
        Ok(listed
            .map(|line| VfsEntry {
                name: line.entry.name,
                number: InodeNumber::new(tag, line.entry.id),
                kind: line.entry.kind,
                cookie: line.cookie,
            })
            .collect())
    }
    /// Whether direct I/O with this file must be aligned to pages, as the property `direct` says.
    fn aligns_direct_io(&self, node: &VfsNode) -> bool {
        let file = node.file();
        file.is_ok_and(|file| file.file_system().settings().aligns_direct_io)
    }
    /// Reads bytes of a regular file, up to its end. `hint` controls caching of the content.
    fn read_with_hint(
        &self,
        node: &VfsNode,
        offset: u64,
        buffer: &mut [u8],
        hint: CacheHint,
    ) -> Result<usize, FileError> {
        let files = self.reading(node)?;
        let count = node.file()?.read_with_hint(offset, buffer, hint)?;
        // A snapshot that is destroyed during the read does not keep its blocks.
        self.reading(node)?;
        if let Ok(writing) = files.writing() {
            writing.counters().read(count);
        }
        Ok(count)
    }
    /// Finds the next data or hole.
    fn seek(&self, node: &VfsNode, what: Seek, offset: u64) -> Result<u64, FileError> {
        self.reading(node)?;
        node.file()?.seek(what, offset)
    }
    /// The names of extended attributes.
    fn xattr_names(&self, node: &VfsNode) -> Result<Vec<Vec<u8>>, FileError> {
        self.reading(node)?;
        node.file()?.xattr_names()
    }
    /// The value of an extended attribute.
    fn xattr(&self, node: &VfsNode, name: &[u8]) -> Result<Vec<u8>, FileError> {
        self.reading(node)?;
        node.file()?.xattr(name)?.ok_or(FileError::NoAttribute)
    }
    /// Space and file counts of the file system, as seen from a file.
    fn stat_file_system(&self, node: &VfsNode) -> Result<FileSystemStat, FileError> {
        self.file_system().stat_file_system(node.file()?)
    }

    /// Takes out the snapshots that programs use, so that they stay open when this file system is replaced by another one.
    fn take_snapshots(&self) -> OpenSnapshots {
        OpenSnapshots::default()
    }
    /// Continues with the snapshots that programs used in the file system before.
    fn keep_snapshots(&self, _snapshots: OpenSnapshots) {}

    /// Whether programs can set POSIX access control lists.
    fn has_posix_acls(&self) -> bool {
        self.file_system().settings().acl_kind == AclKind::Posix
    }
    /// Whether a file matches only one spelling of its name. The result of a lookup, even a negative one,
    /// then stays valid until exactly this name changes.
    fn has_exact_names(&self) -> bool {
        self.file_system().names().is_exact()
    }
    /// The longest name that can be created, in bytes. Existing names may be longer.
    fn name_bytes_max(&self) -> usize {
        self.file_system().name_bytes_max()
    }
    /// Whether the file system is read-only.
    fn is_read_only(&self) -> bool {
        self.file_system().settings().is_read_only
    }
    /// Updates the access time after a read, if the settings require it.
    fn touch_atime(&self, node: &VfsNode) {
        if let Ok(node) = node.file() {
            self.file_system().touch_atime(node);
        }
    }
    /// Frees files whose last name is removed and that are no longer open.
    fn reap(&self) -> Result<(), FileError> {
        match self.file_system().committed() {
            Some(_) => Ok(()),
            None => self.file_system().reap(),
        }
    }

    /// Changes attributes.
    fn set_attributes(
        &self,
        caller: &Caller,
        node: &VfsNode,
        set: &SetAttributes,
    ) -> Result<(), FileError> {
        let files = self.changing(node)?;
        files.set_attributes(caller, node.file()?, set)
    }
    /// Creates a regular file, or opens an existing one. Returns whether it was created.
    fn create(
        &self,
        caller: &Caller,
        at: VfsPlace<'_>,
        mode: NewMode,
        is_exclusive: bool,
    ) -> Result<(VfsNode, bool), FileError> {
        let (files, directory) = (self.changing(at.directory)?, at.directory.file()?);
        let (node, is_new) = files.create(caller, directory, at.name, mode, is_exclusive)?;
        Ok((VfsNode::of_file(0, node), is_new))
    }
    /// Creates a regular file without a name.
    fn create_tmpfile(
        &self,
        caller: &Caller,
        directory: &VfsNode,
        mode: NewMode,
    ) -> Result<VfsNode, FileError> {
        let files = self.changing(directory)?;
        let node = files.create_tmpfile(caller, directory.file()?, mode)?;
        Ok(VfsNode::of_file(0, node))
    }
    /// Creates a directory.
    fn make_directory(
        &self,
        caller: &Caller,
        at: VfsPlace<'_>,
        mode: NewMode,
    ) -> Result<VfsNode, FileError> {
        let (files, directory) = (self.changing(at.directory)?, at.directory.file()?);
        let node = files.make_directory(caller, directory, at.name, mode)?;
        Ok(VfsNode::of_file(0, node))
    }
    /// Creates a pipe, socket or device node.
    fn make_special(
        &self,
        caller: &Caller,
        at: VfsPlace<'_>,
        what: SpecialFile,
        mode: NewMode,
    ) -> Result<VfsNode, FileError> {
        let (files, directory) = (self.changing(at.directory)?, at.directory.file()?);
        let node = files.make_special(caller, directory, at.name, what, mode)?;
        Ok(VfsNode::of_file(0, node))
    }
    /// Creates a symbolic link.
    fn make_symlink(
        &self,
        caller: &Caller,
        at: VfsPlace<'_>,
        target: &[u8],
    ) -> Result<VfsNode, FileError> {
        let (files, directory) = (self.changing(at.directory)?, at.directory.file()?);
        let node = files.make_symlink(caller, directory, at.name, target)?;
        Ok(VfsNode::of_file(0, node))
    }
    /// Adds a name to a file.
    fn link(&self, node: &VfsNode, at: VfsPlace<'_>) -> Result<(), FileError> {
        self.changing(node)?;
        let files = self.changing(at.directory)?;
        files.link(node.file()?, at.directory.file()?, at.name)
    }
    /// Removes a name of a file that is not a directory.
    fn unlink(&self, at: VfsPlace<'_>) -> Result<(), FileError> {
        let files = self.changing(at.directory)?;
        files.unlink(at.directory.file()?, at.name)
    }
    /// Removes an empty directory. [`ZfsCtlDir`] asks whether the caller may destroy a snapshot.
    fn remove_directory(&self, _caller: &Caller, at: VfsPlace<'_>) -> Result<(), FileError> {
        let files = self.changing(at.directory)?;
        files.remove_directory(at.directory.file()?, at.name)
    }
    /// Renames a file.
    fn rename(
        &self,
        caller: &Caller,
        from: VfsPlace<'_>,
        to: VfsPlace<'_>,
        mode: RenameMode,
    ) -> Result<(), FileError> {
        self.changing(from.directory)?;
        let files = self.changing(to.directory)?;
        files.rename(caller, from.entry()?, to.entry()?, mode)
    }
    /// Writes bytes. Returns the offset where they start.
    fn write(
        &self,
        caller: &Caller,
        node: &VfsNode,
        at: WriteAt,
        bytes: &[u8],
    ) -> Result<u64, FileError> {
        self.changing(node)?.write(caller, node.file()?, at, bytes)
    }
    /// Implements `fallocate`.
    fn allocate(
        &self,
        node: &VfsNode,
        what: Allocate,
        offset: u64,
        length: u64,
    ) -> Result<(), FileError> {
        let files = self.changing(node)?;
        files.allocate(node.file()?, what, offset, length)
    }
    /// Stores the content of a range again with the properties of today ([`FileSystem::rewrite`]).
    fn rewrite(
        &self,
        node: &VfsNode,
        offset: u64,
        length: u64,
        keeps_births: bool,
    ) -> Result<(), FileError> {
        let files = self.changing(node)?;
        files.rewrite(node.file()?, offset, length, keeps_births)
    }
    /// Copies a range from one file to another, also from one of a snapshot. Returns how many bytes were copied. Ends once
    /// `copied_max` bytes were not shared but copied, or [`SHARED_BLOCKS_MAX`] blocks were shared.
    fn copy_range(
        &self,
        caller: &Caller,
        from: (&VfsNode, u64),
        to: (&VfsNode, u64),
        length: u64,
        copied_max: u64,
    ) -> Result<u64, FileError> {
        if from.0.is_virtual() {
            return Err(FileError::CrossProject);
        }
        let files = self.changing(to.0)?;
        let (from, to) = ((from.0.file()?, from.1), (to.0.file()?, to.1));
        let length = length.min(SHARED_BLOCKS_MAX.saturating_mul(from.0.block_bytes()));
        files.copy_range_within(caller, from, to, length, copied_max)
    }
    /// Sets an extended attribute.
    fn set_xattr(
        &self,
        caller: &Caller,
        node: &VfsNode,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), FileError> {
        let files = self.changing(node)?;
        files.set_xattr(caller, node.file()?, name, value, mode)
    }
    /// Removes an extended attribute.
    fn remove_xattr(&self, node: &VfsNode, name: &[u8]) -> Result<(), FileError> {
        self.changing(node)?.remove_xattr(node.file()?, name)
    }
    /// Returns when all earlier changes of all files are on stable storage.
    fn sync(&self) -> Result<(), FileError> {
        self.file_system().commit_log()
    }
    /// Returns when all earlier changes of the file, and those they depend on, are on stable storage. For the root
    /// directory, all changes of all files are: `syncfs` never reaches a FUSE server, so this takes its place.
    fn fsync(&self, node: &VfsNode) -> Result<(), FileError> {
        let files = self.file_system();
        match node.file() {
            Ok(file) if node.number.tag() == 0 => match file.id() == files.root_id() {
                true => self.sync(),
                false => files.fsync(file),
            },
            _ => Ok(()),
        }
    }
}

/// A file system alone, without `.zfs`.
impl Vfs for FileSystem {
    fn file_system(&self) -> &FileSystem {
        self
    }
    fn reading<'n>(&'n self, _node: &'n VfsNode) -> Result<&'n FileSystem, FileError> {
        Ok(self)
    }
    fn changing(&self, _node: &VfsNode) -> Result<&FileSystem, FileError> {
        Ok(self)
    }
    fn node(&self, number: InodeNumber, generation: u64) -> Result<VfsNode, FileError> {
        if number.tag() != 0 {
            return Err(FileError::Stale);
        }
        let node = match generation {
            0 => self.node(number.object())?,
            _ => self.node_of_generation(number.object(), generation)?,
        };
        // Hidden objects of extended attributes are not files.
        if node.is_xattr_directory()? {
            return Err(FileError::Stale);
        }
        Ok(VfsNode::of_file(0, node))
    }
}
