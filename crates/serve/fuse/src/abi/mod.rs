//! The messages that the kernel and a FUSE server exchange: `linux/fuse.h`, interface 7.31 to 7.45.
//!
//! Integers are in the machine's byte order. Page `docs/mount.md`.

mod reply;
mod request;
pub mod slot;

pub use reply::{
    Attributes, DirectoryWriter, EntryValidity, Reply, StatxTime, encode_device, notify_epoch,
    notify_invalidate_attributes, notify_invalidate_entry, notify_invalidate_inode,
    notify_invalidate_pages,
};
pub use request::{
    InitRequest, NewFile, Operation, ProtocolError, Request, SetAttr, decode_device,
};

/// The only major version.
pub const MAJOR: u32 = 7;
/// The newest minor version this server supports.
pub const MINOR: u32 = 45;
/// The oldest minor version this server supports: Linux 5.4.
pub const MINOR_MIN: u32 = 31;
/// The minor version from which on the kernel can be told that any name may have changed.
pub const MINOR_OF_EPOCHS: u32 = 44;
/// The node of the root directory.
pub const ROOT_NODE: u64 = 1;
/// The size of a request header in bytes.
pub const REQUEST_HEADER_BYTES: usize = 40;
/// The size of a reply header in bytes.
pub const REPLY_HEADER_BYTES: usize = 16;
/// The most bytes of data in one request or reply.
pub const DATA_BYTES_MAX: usize = 1 << 20;
/// The size of a request buffer in bytes: data, header and arguments, and space for names.
pub const REQUEST_BYTES_MAX: usize = DATA_BYTES_MAX + 16384;
/// The size of a reply buffer in bytes.
pub const REPLY_BYTES_MAX: usize = DATA_BYTES_MAX + 4096;

/// Request types.
#[allow(missing_docs)]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Features that the kernel and the server negotiate at the start. Bits above 31 are sent in a second word.
#[allow(missing_docs)]
pub mod feature {
    pub const ASYNC_READ: u64 = 1;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// The bits that mark which fields of a `SETATTR` request are set.
#[allow(missing_docs)]
pub mod set_attr {
    pub const MODE: u32 = 1;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// `FUSE_WRITE_KILL_SUIDGID`: the writer may not keep the set-user and set-group bits.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `FUSE_SETXATTR_ACL_KILL_SGID`: the caller that sets an access control list may not keep the set-group bit.
pub const SETXATTR_KILL_SGID: u32 = 1;
/// `FOPEN_KEEP_CACHE`: the kernel's cached content of the file stays valid.
pub const OPEN_KEEP_CACHE: u32 = 1 << 1;
/// `FOPEN_CACHE_DIR`: the kernel may cache the directory listing.
pub const OPEN_CACHE_DIR: u32 = 1 << 3;
