//! Records of the intent log: each one a system call that changed an object set.
//!
//! Names, data and lists of access control entries are slices of the log block; nothing is copied
//! but short lists of such slices. Page `docs/format/intent-log-records.md`.

mod acl;
mod attributes;
mod create;
mod decode;
mod encode;

pub use acl::LogAcl;
pub use attributes::{LogAttributes, LogStamp, SetAttributesRecord};
pub use create::{CreateKind, CreateRecord, SizedObject};
pub use decode::{LogRecordFrame, LogRecordFrames};

use crate::{BlockPointer, DecodeError, Endian, ObjectId, Txg};

/// Bytes of the header that every record begins with.
pub const LOG_RECORD_HEADER_BYTES: usize = 32;
/// Bytes of a write record in front of its data.
pub const LOG_WRITE_BYTES: usize = 192;

/// A record. Page `docs/format/intent-log-records.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord<'a> {
    /// The txg that the change belongs to; once it is synced the record is history.
    pub txg: Txg,
    /// Strictly increasing along a chain, with gaps.
    pub sequence: u64,
    /// Names are to be compared without regard to case.
    pub is_case_insensitive: bool,
    /// What was done.
    pub body: LogRecordBody<'a>,
}

/// What a record says was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogRecordBody<'a> {
    /// Something was made in a directory (types 1 to 4 and 14 to 19).
    Create(CreateRecord<'a>),
    /// A name was taken away (types 5 and 6).
    Remove {
        /// Whether it was a directory's.
        is_directory: bool,
        /// The directory that the name was in.
        directory: ObjectId,
        /// The name.
        name: &'a [u8],
    },
    /// A file got another name (type 7).
    Link {
        /// The directory that the name is in.
        directory: ObjectId,
        /// The file.
        object: ObjectId,
        /// The name.
        name: &'a [u8],
    },
    /// A file's name was moved (types 8, 22, 23).
    Rename {
        /// What happened to the target and the source.
        kind: RenameKind,
        /// The directory that the name was in.
        source_directory: ObjectId,
        /// The directory that it is in now.
        target_directory: ObjectId,
        /// The old name.
        source_name: &'a [u8],
        /// The new name.
        target_name: &'a [u8],
    },
    /// Bytes were written (type 9).
    Write {
        /// The file; 1 in a volume.
        object: ObjectId,
        /// Byte offset.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Where they are.
        content: WriteContent<'a>,
    },
    /// Bytes were written whose block an earlier record has: only the end of the file may have to
    /// move (type 20).
    WriteAgain {
        /// The file.
        object: ObjectId,
        /// Byte offset.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// A file was cut, or a hole was made in it (type 10).
    Truncate {
        /// The file.
        object: ObjectId,
        /// Byte offset; the new size if `length` is 0.
        offset: u64,
        /// Bytes; 0 to the end.
        length: u64,
    },
    /// Attributes were set (type 11).
    SetAttributes(SetAttributesRecord<'a>),
    /// An access control list in its first form was set (type 12): entries of 12 bytes.
    SetAclV0 {
        /// The file.
        object: ObjectId,
        /// The entries, as stored.
        entries: &'a [u8],
    },
    /// An access control list was set (type 13).
    SetAcl {
        /// The file.
        object: ObjectId,
        /// The list.
        acl: LogAcl<'a>,
    },
    /// An extended attribute was set or removed (type 21).
    SetXattr {
        /// The file.
        object: ObjectId,
        /// The attribute's name.
        name: &'a [u8],
        /// Its value; empty to remove it.
        value: &'a [u8],
    },
    /// Blocks of another file were linked in (type 24).
    CloneRange {
        /// The file.
        object: ObjectId,
        /// Byte offset, a multiple of the block size.
        offset: u64,
        /// Bytes.
        length: u64,
        /// The block size in bytes.
        block_bytes: u64,
        /// The blocks' pointers.
        pointers: LoggedPointers<'a>,
    },
}

/// What a rename did beside moving a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameKind {
    /// What had the new name is gone.
    Plain,
    /// The two changed places.
    Exchange,
    /// A whiteout took the old name.
    Whiteout {
        /// The whiteout's object.
        object: SizedObject,
        /// Its type and permissions.
        mode: u64,
        /// Its owner.
        uid: u64,
        /// Its group.
        gid: u64,
        /// Its generation.
        generation: u64,
        /// Its creation: seconds and nanoseconds.
        creation_time: [u64; 2],
        /// Its device number.
        device: u64,
    },
}

/// Where the bytes of a write are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteContent<'a> {
    /// In the record.
    Immediate(&'a [u8]),
    /// In a block of the pool: all of the file's block. It may be embedded in the pointer, or a
    /// hole with a size (zeros).
    Indirect(BlockPointer),
}

/// The pointers in a clone record, decoded one by one.
#[derive(Debug, Clone, Copy)]
pub struct LoggedPointers<'a> {
    bytes: &'a [u8],
    endian: Endian,
}

impl<'a> LoggedPointers<'a> {
    /// The pointers in `bytes`, 128 bytes each; a cut last one is left out.
    #[must_use]
    pub fn new(bytes: &'a [u8], endian: Endian) -> Self {
        Self { bytes, endian }
    }
    /// The pointers in order.
    pub fn iter(&self) -> impl Iterator<Item = BlockPointer> + 'a {
        let endian = self.endian;
        self.bytes
            .chunks_exact(crate::BLOCK_POINTER_BYTES)
            .filter_map(move |bytes| BlockPointer::decode(bytes, endian).ok())
    }
}

impl PartialEq for LoggedPointers<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for LoggedPointers<'_> {}

impl LogRecord<'_> {
    /// Whether replay passes over the record in silence if its object is gone: it may stand
    /// behind the record that removed it.
    #[must_use]
    pub fn is_out_of_order(&self) -> bool {
        matches!(
            self.body,
            LogRecordBody::Write { .. }
                | LogRecordBody::WriteAgain { .. }
                | LogRecordBody::Truncate { .. }
                | LogRecordBody::SetAttributes(_)
                | LogRecordBody::SetAclV0 { .. }
                | LogRecordBody::SetAcl { .. }
                | LogRecordBody::SetXattr { .. }
                | LogRecordBody::CloneRange { .. }
        )
    }
}

/// Type numbers of records.
pub(super) mod kind {
    /// Set in the type: names without regard to case.
    pub const CASE_INSENSITIVE: u64 = 1 << 63;
    pub const CREATE: u64 = 1;
    pub const MKDIR: u64 = 2;
    pub const MKXATTR: u64 = 3;
    pub const SYMLINK: u64 = 4;
    pub const REMOVE: u64 = 5;
    pub const RMDIR: u64 = 6;
    pub const LINK: u64 = 7;
    pub const RENAME: u64 = 8;
    pub const WRITE: u64 = 9;
    pub const TRUNCATE: u64 = 10;
    pub const SETATTR: u64 = 11;
    pub const ACL_V0: u64 = 12;
    pub const ACL: u64 = 13;
    pub const CREATE_ACL: u64 = 14;
    pub const CREATE_ATTR: u64 = 15;
    pub const CREATE_ACL_ATTR: u64 = 16;
    pub const MKDIR_ACL: u64 = 17;
    pub const MKDIR_ATTR: u64 = 18;
    pub const MKDIR_ACL_ATTR: u64 = 19;
    pub const WRITE2: u64 = 20;
    pub const SETSAXATTR: u64 = 21;
    pub const RENAME_EXCHANGE: u64 = 22;
    pub const RENAME_WHITEOUT: u64 = 23;
    pub const CLONE_RANGE: u64 = 24;
}

fn fail(reason: &'static str, offset: usize) -> DecodeError {
    DecodeError::new("intent log record", reason, offset)
}

#[cfg(test)]
mod tests;
