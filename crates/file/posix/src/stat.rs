//! File types, and the attributes that `stat` shows.

use crate::state::NodeState;
use millpond_object::ReadableObject;
use millpond_ondisk::ObjectId;
use millpond_sa::{FileFlags, Fuid, Timestamp};

/// The uid and gid shown for identities of other systems' domains.
const NOBODY: u32 = 65534;
const MODE_KIND: u64 = 0o170_000;

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileKind {
    /// A named pipe.
    Fifo,
    /// A character device.
    CharacterDevice,
    /// A directory.
    Directory,
    /// A block device.
    BlockDevice,
    /// A regular file.
    Regular,
    /// A symbolic link.
    Symlink,
    /// A socket.
    Socket,
}

impl FileKind {
    /// The file type in the upper four bits of a mode.
    #[must_use]
    pub fn from_mode(mode: u64) -> Option<Self> {
        Self::from_entry_type((mode & MODE_KIND) >> 12)
    }
    /// The file type in the upper four bits of a directory entry's value.
    #[must_use]
    pub fn from_entry_type(number: u64) -> Option<Self> {
        Some(match number {
            1 => Self::Fifo,
            2 => Self::CharacterDevice,
            4 => Self::Directory,
            6 => Self::BlockDevice,
            8 => Self::Regular,
            10 => Self::Symlink,
            12 => Self::Socket,
            _ => return None,
        })
    }
    /// The number for the upper four bits of modes and of directory entries' values.
    #[must_use]
    pub fn entry_type(self) -> u64 {
        match self {
            Self::Fifo => 1,
            Self::CharacterDevice => 2,
            Self::Directory => 4,
            Self::BlockDevice => 6,
            Self::Regular => 8,
            Self::Symlink => 10,
            Self::Socket => 12,
        }
    }
    /// The letter that `ls -l` shows.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::Fifo => 'p',
            Self::CharacterDevice => 'c',
            Self::Directory => 'd',
            Self::BlockDevice => 'b',
            Self::Regular => '-',
            Self::Symlink => 'l',
            Self::Socket => 's',
        }
    }
}

/// A file's attributes, as programs see them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The object id, which is also the inode number.
    pub id: ObjectId,
    /// The file type.
    pub kind: FileKind,
    /// The permissions, with set-user, set-group and sticky bits: 12 bits.
    pub permissions: u32,
    /// The number of links.
    pub links: u64,
    /// The uid; 65534 for an owner of another system's domain.
    pub uid: u32,
    /// The gid; 65534 for a group of another system's domain.
    pub gid: u32,
    /// The owner as stored.
    pub owner: Fuid,
    /// The group as stored.
    pub group: Fuid,
    /// The length in bytes; for a directory, the number of entries plus 2.
    pub size_bytes: u64,
    /// The space used, including the dnode, in units of 512 bytes.
    pub sectors: u64,
    /// The block size in bytes.
    pub block_bytes: u64,
    /// The access time.
    pub atime: Timestamp,
    /// The modification time.
    pub mtime: Timestamp,
    /// The change time of content or attributes.
    pub ctime: Timestamp,
    /// The birth time.
    pub crtime: Timestamp,
    /// The major and minor number of a device node.
    pub device: Option<(u32, u32)>,
    /// The txg in which the file was created. Together with the object id it identifies the file forever.
    pub generation: u64,
    /// Immutable, append-only and other flags.
    pub flags: FileFlags,
    /// The project, if there is one.
    pub project: Option<u64>,
}

/// What `stat` shows of a file's object.
pub(crate) struct ObjectFacts {
    id: ObjectId,
    /// The space used, including the dnode, in units of 512 bytes.
    sectors: u64,
    block_bytes: u64,
}

impl ObjectFacts {
    pub(crate) fn of(object: &ReadableObject) -> Self {
        let used = object.used_bytes().saturating_add(256) / 512;
        Self {
            id: object.id(),
            sectors: used.saturating_add(object.dnode_slots()),
            block_bytes: object.block_bytes(),
        }
    }
}

impl Stat {
    pub(crate) fn new(object: &ObjectFacts, kind: FileKind, state: &NodeState) -> Self {
        // Linux stores its in-kernel device number: twelve bits major above twenty bits minor.
        let device = |number: u64| (((number >> 20) & 0xfff) as u32, (number & 0xf_ffff) as u32);
        Self {
            id: object.id,
            kind,
            permissions: (state.mode & 0o7777) as u32,
            links: state.links,
            uid: state.uid.posix().unwrap_or(NOBODY),
            gid: state.gid.posix().unwrap_or(NOBODY),
            owner: state.uid,
            group: state.gid,
            size_bytes: state.size,
            sectors: object.sectors,
            block_bytes: object.block_bytes,
            atime: state.atime,
            mtime: state.mtime,
            ctime: state.ctime,
            crtime: state.crtime,
            device: state.rdev.map(device),
            generation: state.generation,
            flags: state.flags,
            project: state.project,
        }
    }
}
