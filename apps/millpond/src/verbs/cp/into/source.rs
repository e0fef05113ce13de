//! What a tree that is copied into a pool looks like, wherever it is.

use millpond::{FileKind, Timestamp};
use millpond_env::sync::Arc;

/// What `stat` tells, as far as copies keep it.
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
    /// How many names it has.
    pub links: u64,
    /// What tells it from all other files: device or dataset, and number there.
    pub id: (u64, u64),
}

/// One name of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    /// What it is, if the directory tells.
    pub kind: Option<FileKind>,
    /// Its number, if the directory tells.
    pub number: u64,
}

/// Names and values of extended attributes, sorted.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// A file of any kind to be copied. Errors are told to people.
pub trait Source: Send + Sync {
    /// What it is.
    fn facts(&self) -> Facts;
    /// The names in a directory, in byte order.
    fn entries(&self) -> Result<Vec<Entry>, String>;
    /// The file under one of these names.
    fn child(&self, entry: &Entry) -> Result<Arc<dyn Source>, String>;
    /// Where a symbolic link leads.
    fn link_target(&self) -> Result<Vec<u8>, String>;
    /// Its extended attributes, POSIX lists among them.
    fn xattrs(&self) -> Result<Xattrs, String>;
    /// The next bytes that are no hole, from `from_bytes` on: where they begin and end.
    fn next_data(&self, from_bytes: u64) -> Result<Option<(u64, u64)>, String>;
    /// Fills the buffer as far as the file goes; tells how much that was.
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<usize, String>;
}
