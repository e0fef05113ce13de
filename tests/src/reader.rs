//! The interface to a pool that the comparison needs.

use std::collections::BTreeMap;

/// Why something could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadError {
    /// The data is lost or the device failed: programs see EIO.
    Io(String),
    /// Refused intentionally: an unsupported version or feature, or a missing key.
    Refused(String),
    /// Any other error, which always fails the test.
    Other(String),
    /// The reader does not support this query. The comparison records this and continues.
    NotOffered(&'static str),
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(words) => write!(f, "I/O error: {words}"),
            Self::Refused(words) => write!(f, "refused: {words}"),
            Self::Other(words) => f.write_str(words),
            Self::NotOffered(what) => write!(f, "{what} cannot be asked for"),
        }
    }
}

/// The result of a query.
pub type Answer<T> = Result<T, ReadError>;

/// Kinds of datasets, by the words of `zfs list -t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DatasetKind {
    /// A file system.
    Filesystem,
    /// A block volume.
    Volume,
    /// A snapshot of either.
    Snapshot,
    /// A bookmark.
    Bookmark,
}

/// A property's value as `zfs get -Hp` prints it, and its source.
pub type Properties = BTreeMap<String, (String, String)>;

/// The attributes of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    /// `file dir symlink chr blk fifo sock`.
    pub kind: String,
    /// Permission bits, without the bits of the kind.
    pub mode: u32,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Links.
    pub nlink: u64,
    /// Size in bytes (of a directory: its entries plus two).
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Nanoseconds since 1970.
    pub mtime_ns: i128,
    /// Nanoseconds since 1970.
    pub ctime_ns: i128,
    /// Nanoseconds since 1970.
    pub atime_ns: i128,
    /// Target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Major and minor number of a device node.
    pub rdev: Option<(u64, u64)>,
    /// Extended attributes by their Linux names (`user.x`, `system.posix_acl_access`).
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

/// One row of `zfs userspace`, `groupspace` or `projectspace`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpaceRow {
    /// User, group or project id.
    pub id: u64,
    /// Bytes used.
    pub used_bytes: u64,
    /// Quota in bytes, 0 for none.
    pub quota_bytes: u64,
    /// Objects used, if the file system counts them.
    pub objects: Option<u64>,
    /// Object quota, 0 for none.
    pub objects_quota: Option<u64>,
}

/// The kind of owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceOf {
    /// Users.
    Users,
    /// Groups.
    Groups,
    /// Projects.
    Projects,
}

/// A hold on a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hold {
    /// Its tag.
    pub tag: String,
    /// When it was placed, in seconds since 1970.
    pub placed_s: u64,
}

/// A pool opened for reading, with all keys loaded.
pub trait PoolReader {
    /// The pool's name.
    fn name(&mut self) -> Answer<String>;

    /// The pool's properties, as in `zpool get -Hp all`.
    fn pool_properties(&mut self) -> Answer<Properties> {
        Err(ReadError::NotOffered("pool properties"))
    }

    /// The internal history with user commands, one line per record, oldest first.
    fn history(&mut self) -> Answer<Vec<String>> {
        Err(ReadError::NotOffered("the pool's history"))
    }

    /// Every dataset except those that `zfs list -t all` hides.
    fn datasets(&mut self) -> Answer<Vec<(String, DatasetKind)>>;

    /// A dataset's properties, as in `zfs get -Hp all`.
    fn properties(&mut self, _dataset: &str) -> Answer<Properties> {
        Err(ReadError::NotOffered("properties of datasets"))
    }

    /// The holds of a snapshot.
    fn holds(&mut self, _snapshot: &str) -> Answer<Vec<Hold>> {
        Err(ReadError::NotOffered("holds"))
    }

    /// Space used by owner, and quotas.
    fn space(&mut self, _dataset: &str, _of: SpaceOf) -> Answer<Vec<SpaceRow>> {
        Err(ReadError::NotOffered("space by owner"))
    }

    /// The object of a file system's (or its snapshot's) root directory.
    fn root(&mut self, dataset: &str) -> Answer<u64>;

    /// The entries of a directory, without `.` and `..`, in any order: names and objects.
    fn list(&mut self, dataset: &str, directory: u64) -> Answer<Vec<(Vec<u8>, u64)>>;

    /// The attributes of a file.
    fn attributes(&mut self, dataset: &str, object: u64) -> Answer<Attributes>;

    /// Fills `buffer` from the file's content, which is long enough.
    fn read(&mut self, dataset: &str, object: u64, offset: u64, buffer: &mut [u8]) -> Answer<()>;

    /// The file's data ranges (offset, length in bytes) as SEEK_DATA and SEEK_HOLE report them.
    fn extents(&mut self, _dataset: &str, _object: u64) -> Answer<Vec<(u64, u64)>> {
        Err(ReadError::NotOffered("holes of files"))
    }

    /// Size of a volume (or a snapshot of one) in bytes.
    fn volume_size(&mut self, dataset: &str) -> Answer<u64>;

    /// Fills `buffer` from the volume's content, which is long enough.
    fn read_volume(&mut self, dataset: &str, offset: u64, buffer: &mut [u8]) -> Answer<()>;
}
