//! Records and the layout of their headers.

use crate::begin::Begin;
use crate::field::{Header, records};
use crate::{EMBEDDED_BYTES_MAX, HEADER_BYTES};
use millpond_ondisk::{BLOCK_BYTES_MAX, Endian};

/// Where each header but that of [`Begin`] holds the running checksum.
pub(crate) const CHECKSUM_AT: usize = 280;
/// No bonus area is larger: it is in a dnode of at most 16 KiB.
const BONUS_BYTES_MAX: u64 = 16 << 10;

/// Flags of [`ObjectRecord`], [`Write`], [`Spill`] and [`ObjectRange`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordFlags;

impl RecordFlags {
    /// The checksum of a [`Write`] could serve as a key of deduplication.
    pub const DEDUP_CHECKSUM: u8 = 1;
    /// A raw block was written in the other byte order than the stream's.
    pub const RAW_BYTE_SWAP: u8 = 2;
    /// An object has a spill block.
    pub const OBJECT_SPILL: u8 = 4;
    /// A spill block is the same as in the older snapshot.
    pub const SPILL_UNMODIFIED: u8 = 4;
}

records! {
    /// An object exists: it is created, or takes this shape. The payload is its bonus area.
    ObjectRecord {
        /// Its id.
        object: u64 = 8,
        /// Its type.
        object_type: u32 = 16,
        /// The type of its bonus area.
        bonus_type: u32 = 20,
        /// The size of its data blocks in bytes.
        block_bytes: u32 = 24,
        /// The bytes in use of the bonus area.
        bonus_bytes: u32 = 28,
        /// Its checksum function.
        checksum: u8 = 32,
        /// Its compression function.
        compression: u8 = 33,
        /// The slots of 512 bytes that its dnode takes; 0 means 1.
        slots: u8 = 34,
        /// [`RecordFlags`].
        flags: u8 = 35,
        /// In raw streams the length of the payload, otherwise 0.
        raw_bonus_bytes: u32 = 36,
        /// The guid of the snapshot that is sent.
        to_guid: u64 = 40,
        /// In raw streams the binary logarithm of the size of indirect blocks.
        indirect_shift: u8 = 48,
        /// In raw streams the levels of its tree.
        levels: u8 = 49,
        /// In raw streams the count of pointers in its dnode.
        pointers: u8 = 50,
        /// In raw streams the id of its last block.
        last_block: u64 = 56,
    }
    /// No object of a range exists.
    FreeObjects {
        /// The first id.
        first: u64 = 8,
        /// The count of ids.
        count: u64 = 16,
        /// The guid of the snapshot that is sent.
        to_guid: u64 = 24,
    }
    /// A block. The payload is its content, perhaps compressed or encrypted.
    Write {
        /// The object.
        object: u64 = 8,
        /// The object's type.
        object_type: u32 = 16,
        /// Its offset in bytes.
        offset: u64 = 24,
        /// Its size in bytes before compression.
        logical_bytes: u64 = 32,
        /// The guid of the snapshot that is sent.
        to_guid: u64 = 40,
        /// The function of `key`'s checksum; 2 (off) if there is none.
        checksum: u8 = 48,
        /// [`RecordFlags`].
        flags: u8 = 49,
        /// The compression of the payload; 0 if it is plain.
        compression: u8 = 50,
        /// The checksum of the block pointer. Readers ignore it.
        key: [u64; 4] = 56,
        /// Sizes and compression of the block pointer, as in a dedup table's key.
        key_properties: u64 = 88,
        /// The length of a compressed payload in bytes, 0 for a plain one.
        compressed_bytes: u64 = 96,
        /// In raw streams the salt.
        salt: [u8; 8] = 104,
        /// In raw streams the initialization vector.
        iv: [u8; 12] = 112,
        /// In raw streams the authentication code.
        mac: [u8; 16] = 124,
    }
    /// A range of an object is a hole, or redacted.
    Free {
        /// The object.
        object: u64 = 8,
        /// Where the range begins, in bytes.
        offset: u64 = 16,
        /// Its length in bytes; [`TO_THE_END`](crate::TO_THE_END) for everything from there on.
        length: u64 = 24,
        /// The guid of the snapshot that is sent.
        to_guid: u64 = 32,
    }
    /// The end of a stream.
    End {
        /// The running checksum of everything before it.
        checksum: [u64; 4] = 8,
        /// The guid of the snapshot that was sent; 0 in a package.
        to_guid: u64 = 40,
    }
    /// A block that an earlier [`Write`] holds. Only old senders write it.
    WriteByRef {
        /// The object.
        object: u64 = 8,
        /// Its offset in bytes.
        offset: u64 = 16,
        /// Its length in bytes.
        length: u64 = 24,
        /// The guid of the snapshot that is sent.
        to_guid: u64 = 32,
        /// The `to_guid` of the stream that has the earlier record.
        source_guid: u64 = 40,
        /// The object of the earlier record.
        source_object: u64 = 48,
        /// The offset of the earlier record.
        source_offset: u64 = 56,
        /// The function of the checksum.
        checksum: u8 = 64,
        /// [`RecordFlags`].
        flags: u8 = 65,
        /// The checksum of the block.
        key: [u64; 4] = 72,
        /// Sizes and compression of the block.
        key_properties: u64 = 104,
    }
    /// The spill block of an object. The payload is its content.
    Spill {
        /// The object.
        object: u64 = 8,
        /// Its size in bytes.
        length: u64 = 16,
        /// The guid of the snapshot that is sent.
        to_guid: u64 = 24,
        /// [`RecordFlags`].
        flags: u8 = 32,
        /// In raw streams the compression of the payload.
        compression: u8 = 33,
        /// In raw streams the length of the payload in bytes, otherwise 0.
        compressed_bytes: u64 = 40,
        /// In raw streams the salt.
        salt: [u8; 8] = 48,
        /// In raw streams the initialization vector.
        iv: [u8; 12] = 56,
        /// In raw streams the authentication code.
        mac: [u8; 16] = 68,
        /// The object's type; some senders leave it 0.
        object_type: u32 = 84,
    }
    /// A block so small that its pointer holds it. The payload is what the pointer holds.
    WriteEmbedded {
        /// The object.
        object: u64 = 8,
        /// Its offset in bytes.
        offset: u64 = 16,
        /// The size of the object's blocks in bytes.
        length: u64 = 24,
        /// The guid of the snapshot that is sent.
        to_guid: u64 = 32,
        /// Its compression.
        compression: u8 = 40,
        /// What is embedded: 0 for data.
        kind: u8 = 41,
        /// Its size in bytes before compression.
        logical_bytes: u32 = 48,
        /// The bytes of the payload in use.
        stored_bytes: u32 = 52,
    }
    /// The encryption of the dnode block that holds the next objects. Only raw streams have it.
    ObjectRange {
        /// The first object.
        first: u64 = 8,
        /// The count of slots.
        slots: u64 = 16,
        /// The guid of the snapshot that is sent.
        to_guid: u64 = 24,
        /// The salt.
        salt: [u8; 8] = 32,
        /// The initialization vector.
        iv: [u8; 12] = 40,
        /// The authentication code.
        mac: [u8; 16] = 52,
        /// [`RecordFlags`].
        flags: u8 = 68,
    }
}

/// A record of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is described where it is defined")]
pub enum Record {
    Begin(Box<Begin>),
    Object(ObjectRecord),
    FreeObjects(FreeObjects),
    Write(Write),
    Free(Free),
    End(End),
    WriteByRef(WriteByRef),
    Spill(Spill),
    WriteEmbedded(WriteEmbedded),
    ObjectRange(ObjectRange),
    /// A range whose content was left out on purpose.
    Redact(Free),
}

impl Record {
    /// Decodes a header.
    ///
    /// # Errors
    /// What no writer produces.
    pub(crate) fn load(header: &Header, endian: Endian) -> Result<Self, &'static str> {
        let kind = crate::field::Field::load(header, 0, endian);
        Ok(match kind {
            0u32 => Self::Begin(Box::new(Begin::load(header, endian)?)),
            1 => Self::Object(ObjectRecord::load(header, endian)),
            2 => Self::FreeObjects(FreeObjects::load(header, endian)),
            3 => Self::Write(Write::load(header, endian)),
            4 => Self::Free(Free::load(header, endian)),
            5 => Self::End(End::load(header, endian)),
            6 => Self::WriteByRef(WriteByRef::load(header, endian)),
            7 => Self::Spill(Spill::load(header, endian)),
            8 => Self::WriteEmbedded(WriteEmbedded::load(header, endian)),
            9 => Self::ObjectRange(ObjectRange::load(header, endian)),
            10 => Self::Redact(Free::load(header, endian)),
            _ => return Err("unknown type"),
        })
    }

    /// Its header without the running checksum.
    pub(crate) fn header(&self) -> Header {
        let mut header = [0; HEADER_BYTES];
        match self {
            Self::Begin(begin) => begin.store(&mut header),
            Self::Object(object) => object.store(&mut header, 1),
            Self::FreeObjects(free) => free.store(&mut header, 2),
            Self::Write(write) => write.store(&mut header, 3),
            Self::Free(free) => free.store(&mut header, 4),
            Self::End(end) => end.store(&mut header, 5),
            Self::WriteByRef(write) => write.store(&mut header, 6),
            Self::Spill(spill) => spill.store(&mut header, 7),
            Self::WriteEmbedded(write) => write.store(&mut header, 8),
            Self::ObjectRange(range) => range.store(&mut header, 9),
            Self::Redact(range) => range.store(&mut header, 10),
        }
        header
    }

    /// The length of its payload in bytes.
    ///
    /// # Errors
    /// A length that no correct record has.
    pub fn payload_bytes(&self) -> Result<u64, &'static str> {
        let block = |bytes: u64| match bytes <= BLOCK_BYTES_MAX {
            true => Ok(bytes),
            false => Err("a block of more than 16 MiB"),
        };
        match self {
            Self::Begin(begin) => begin.payload_bytes(),
            Self::Object(object) => {
                let bytes = match object.raw_bonus_bytes {
                    0 => u64::from(object.bonus_bytes).next_multiple_of(8),
                    bytes => u64::from(bytes),
                };
                match bytes <= BONUS_BYTES_MAX {
                    true => Ok(bytes),
                    false => Err("a bonus area of more than 16 KiB"),
                }
            }
            Self::Write(write) if write.compression != 0 => block(write.compressed_bytes),
            Self::Write(write) => block(write.logical_bytes),
            Self::Spill(spill) if spill.compressed_bytes != 0 => block(spill.compressed_bytes),
            Self::Spill(spill) => block(spill.length),
            Self::WriteEmbedded(write) => match write.stored_bytes <= EMBEDDED_BYTES_MAX {
                true => Ok(u64::from(write.stored_bytes).next_multiple_of(8)),
                false => Err("an embedded block of more than 112 bytes"),
            },
            Self::FreeObjects(_)
            | Self::Free(_)
            | Self::End(_)
            | Self::WriteByRef(_)
            | Self::ObjectRange(_)
            | Self::Redact(_) => Ok(0),
        }
    }
}
