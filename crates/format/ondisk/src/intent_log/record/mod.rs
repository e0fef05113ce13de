//! Records of the intent log, one for each system call that changed an object set.
//!
//! Names, data and access control entries are slices of the log block. Only short lists of such slices are
//! allocated. Page `docs/format/intent-log-records.md`.

mod acl;
mod attributes;
mod create;
mod decode;
mod encode;

pub use acl::LogAcl;
pub use attributes::{LogAttributes, LogStamp, SetAttributesRecord};
pub use create::{CreateKind, CreateRecord, CreatedObject, SizedObject};
pub use decode::{LogRecordFrame, LogRecordFrames};

use crate::{BlockPointer, DecodeError, Endian, ObjectId, Txg};

/// Size of the common record header in bytes.
pub const LOG_RECORD_HEADER_BYTES: usize = 32;
/// Size of a write record before its data, in bytes.
pub const LOG_WRITE_BYTES: usize = 192;

/// A record. Page `docs/format/intent-log-records.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord<'a> {
    /// The txg of the change; once it is synced the record is obsolete.
    pub txg: Txg,
    /// Sequence number, strictly increasing along a chain, with gaps.
    pub sequence: u64,
    /// Whether names are compared case-insensitively.
    pub is_case_insensitive: bool,
    /// The operation.
    pub body: LogRecordBody<'a>,
}

impl<'a> LogRecord<'a> {
    /// A record without a sequence number, which it gets when it is written.
    #[must_use]
    pub fn new(txg: Txg, body: LogRecordBody<'a>) -> Self {
        Self {
            txg,
            sequence: 0,
            is_case_insensitive: false,
            body,
        }
    }
}

/// The operation of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogRecordBody<'a> {
    /// Creates an object in a directory (types 1 to 4 and 14 to 19).
    Create(CreateRecord<'a>),
    /// Removes a name (types 5 and 6).
    Remove {
        /// Whether the name is that of a directory.
        is_directory: bool,
        /// The directory that contained the name.
        directory: ObjectId,
        /// The name.
        name: &'a [u8],
    },
    /// Links a file (type 7).
    Link {
        /// The directory that contains the new name.
        directory: ObjectId,
        /// The file.
        object: ObjectId,
        /// The new name.
        name: &'a [u8],
    },
    /// Renames a file (types 8, 22, 23).
    Rename {
        /// The effect on the target and the source.
        kind: RenameKind,
        /// The directory that contained the name.
        source_directory: ObjectId,
        /// The directory that contains it now.
        target_directory: ObjectId,
        /// The old name.
        source_name: &'a [u8],
        /// The new name.
        target_name: &'a [u8],
    },
    /// Writes data (type 9).
    Write {
        /// The file; 1 in a volume.
        object: ObjectId,
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// The data.
        content: WriteContent<'a>,
    },
    /// Writes data to a block that an earlier record contains (type 20). Replay may only have to extend the
    /// file.
    WriteAgain {
        /// The file.
        object: ObjectId,
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// Truncates a file or punches a hole (type 10).
    Truncate {
        /// The file.
        object: ObjectId,
        /// Byte offset; the new size if `length` is 0.
        offset: u64,
        /// Length in bytes; 0 means up to the end.
        length: u64,
    },
    /// Sets attributes (type 11).
    SetAttributes(SetAttributesRecord<'a>),
    /// Sets an access control list in the old format with entries of 12 bytes (type 12).
    SetAclV0 {
        /// The file.
        object: ObjectId,
        /// The entries, as stored.
        entries: &'a [u8],
    },
    /// Sets an access control list (type 13).
    SetAcl {
        /// The file.
        object: ObjectId,
        /// The list.
        acl: LogAcl<'a>,
    },
    /// Sets or removes an extended attribute (type 21).
    SetXattr {
        /// The file.
        object: ObjectId,
        /// The attribute's name.
        name: &'a [u8],
        /// Its value; empty to remove the attribute.
        value: &'a [u8],
    },
    /// Clones blocks of another file (type 24).
    CloneRange {
        /// The file.
        object: ObjectId,
        /// Byte offset, a multiple of the block size.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// The block size in bytes.
        block_bytes: u64,
        /// The blocks' pointers.
        pointers: LoggedPointers<'a>,
    },
}

/// The variant of a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameKind {
    /// Replaces the target.
    Plain,
    /// Exchanges source and target.
    Exchange,
    /// Leaves a whiteout under the old name.
    Whiteout(CreatedObject),
}

/// Where the data of a write is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteContent<'a> {
    /// In the record.
    Immediate(&'a [u8]),
    /// In a block of the pool, which is the whole block of the file. It may be embedded in the pointer, or be
    /// a hole with a size (zeros).
    Indirect(BlockPointer),
}

/// The pointers in a clone record, decoded on demand.
#[derive(Debug, Clone, Copy)]
pub struct LoggedPointers<'a> {
    bytes: &'a [u8],
    endian: Endian,
}

impl<'a> LoggedPointers<'a> {
    /// The pointers in `bytes`, 128 bytes each; an incomplete last one is ignored.
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
    /// Whether replay silently skips the record if its object does not exist. Such a record may follow the
    /// one that removed the object.
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
    /// Flag in the type: names are compared case-insensitively.
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
