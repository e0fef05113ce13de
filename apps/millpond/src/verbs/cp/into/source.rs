//! The interface of a source tree, independent of where it is stored.

use millpond_engine::{FileKind, Timestamp};
use millpond_env::sync::Arc;

/// The `stat` values that a copy preserves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    pub kind: FileKind,
    /// The twelve permission bits.
    pub permissions: u32,
    pub uid: u32,
    pub gid: u32,
    pub size_bytes: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    /// Major and minor number of a device node.
    pub device: Option<(u32, u32)>,
    /// Number of names.
    pub links: u64,
    /// Unique identity: the device or dataset, and the inode number or object id in it.
    pub id: (u64, u64),
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    /// Its kind, if the directory stores it.
    pub kind: Option<FileKind>,
    /// Its inode number or object id, if the directory stores it.
    pub number: u64,
}

/// Names and values of extended attributes, sorted.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// A source file of any kind. Errors are messages for the user.
pub trait Source: Send + Sync {
    /// Its `stat` values.
    fn facts(&self) -> Facts;
    /// The entries of a directory, in byte order of their names.
    fn entries(&self) -> Result<Vec<Entry>, String>;
    /// Opens one of these entries.
    fn child(&self, entry: &Entry) -> Result<Arc<dyn Source>, String>;
    /// The target of a symbolic link.
    fn link_target(&self) -> Result<Vec<u8>, String>;
    /// Its extended attributes, including POSIX ACLs.
    fn xattrs(&self) -> Result<Xattrs, String>;
    /// The start and end of the next run of data at or after `from_bytes`.
    fn next_data(&self, from_bytes: u64) -> Result<Option<(u64, u64)>, String>;
    /// Reads into the buffer up to the end of the file. Returns the number of bytes read.
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<usize, String>;
}
