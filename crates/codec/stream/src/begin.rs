//! The first record of a stream.

use crate::BEGIN_PAYLOAD_BYTES_MAX;
use crate::field::{Field, Header, records};
use millpond_ondisk::Endian;

/// The magic number of every [`Begin`].
pub(crate) const MAGIC: u64 = 0x2_F5BA_CBAC;
/// Where it is in the header.
pub(crate) const MAGIC_AT: usize = 8;
const NAME_AT: usize = 56;
const NAME_BYTES: usize = 256;

/// What begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StreamKind {
    /// The change to one snapshot.
    #[default]
    Stream,
    /// Several streams.
    Package,
}

bitflags::bitflags! {
    /// The features that a stream uses: the reader must know them all.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct StreamFeatures: u64 {
        /// It has [`WriteByRef`](crate::WriteByRef)s. Refused today.
        const DEDUP = 1 << 0;
        /// Its checksums came from the pool. Refused today.
        const DEDUP_PROPERTIES = 1 << 1;
        /// A file system with system attributes, which may have spill blocks.
        const SPILL = 1 << 2;
        /// It has [`WriteEmbedded`](crate::WriteEmbedded)s.
        const EMBEDDED = 1 << 16;
        /// Payloads may be compressed by lz4.
        const LZ4 = 1 << 17;
        /// Blocks may be larger than 128 KiB.
        const LARGE_BLOCKS = 1 << 19;
        /// It continues an interrupted stream.
        const RESUMING = 1 << 20;
        /// Blocks were left out on purpose.
        const REDACTED = 1 << 21;
        /// Payloads may be compressed.
        const COMPRESSED = 1 << 22;
        /// Dnodes may take more than one slot.
        const LARGE_DNODE = 1 << 23;
        /// Encrypted blocks as they are stored.
        const RAW = 1 << 24;
        /// Payloads may be compressed by zstd.
        const ZSTD = 1 << 25;
        /// A package with holds.
        const HOLDS = 1 << 26;
        /// The dataset was sent with small blocks before, and now with large ones.
        const SWITCH_TO_LARGE_BLOCKS = 1 << 27;
        /// Names may have more than 255 bytes.
        const LONG_NAMES = 1 << 28;
        /// Micro ZAPs may be larger than 128 KiB.
        const LARGE_MICRO_ZAP = 1 << 29;
    }
}

bitflags::bitflags! {
    /// Flags of a [`Begin`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct BeginFlags: u32 {
        /// The older snapshot is one of another dataset.
        const CLONE = 1;
        /// Names of the file system differ in more than case.
        const CASE_INSENSITIVE = 2;
        /// It has all [`Free`](crate::Free)s, so that a full stream can be received as a clone.
        const FREE_RECORDS = 4;
        /// The flags of spill blocks mean something.
        const SPILL_BLOCKS = 8;
        const _ = !0;
    }
}

records! {
    /// The numbers of a [`Begin`].
    Numbers {
        payload_bytes: u32 = 4,
        magic: u64 = 8,
        version_info: u64 = 16,
        creation_s: u64 = 24,
        object_set_type: u32 = 32,
        flags: u32 = 36,
        to_guid: u64 = 40,
        from_guid: u64 = 48,
    }
}

/// The first record of a stream or a package. Its payload is an nvlist.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Begin {
    /// The length of the payload in bytes.
    pub payload_length: u32,
    /// What begins.
    pub kind: StreamKind,
    /// What a reader must know.
    pub features: StreamFeatures,
    /// When the snapshot was made, in seconds since 1970; 0 in a package.
    pub creation_s: u64,
    /// The type of the object set: 2 for a file system, 3 for a volume; 0 in a package.
    pub object_set_type: u32,
    /// More about it.
    pub flags: BeginFlags,
    /// The guid of the snapshot that is sent; 0 in a package.
    pub to_guid: u64,
    /// The guid of the older snapshot; 0 if everything is sent.
    pub from_guid: u64,
    /// The full name of the snapshot, at most 255 bytes.
    pub to_name: Vec<u8>,
}

impl Begin {
    pub(crate) fn load(header: &Header, endian: Endian) -> Result<Self, &'static str> {
        let numbers = Numbers::load(header, endian);
        if numbers.magic != MAGIC {
            return Err("bad magic number");
        }
        let kind = match numbers.version_info & 3 {
            1 => StreamKind::Stream,
            2 => StreamKind::Package,
            _ => return Err("neither a stream nor a package"),
        };
        let name: [u8; NAME_BYTES] = Field::load(header, NAME_AT, endian);
        let mut parts = name.split(|byte| *byte == 0);
        Ok(Self {
            payload_length: numbers.payload_bytes,
            kind,
            features: StreamFeatures::from_bits_retain(numbers.version_info >> 2),
            creation_s: numbers.creation_s,
            object_set_type: numbers.object_set_type,
            flags: BeginFlags::from_bits_retain(numbers.flags),
            to_guid: numbers.to_guid,
            from_guid: numbers.from_guid,
            to_name: parts.next().unwrap_or_default().to_vec(),
        })
    }

    pub(crate) fn store(&self, header: &mut Header) {
        let kind = match self.kind {
            StreamKind::Stream => 1,
            StreamKind::Package => 2,
        };
        let numbers = Numbers {
            payload_bytes: self.payload_length,
            magic: MAGIC,
            version_info: self.features.bits() << 2 | kind,
            creation_s: self.creation_s,
            object_set_type: self.object_set_type,
            flags: self.flags.bits(),
            to_guid: self.to_guid,
            from_guid: self.from_guid,
        };
        numbers.store(header, 0);
        let mut name = [0; NAME_BYTES];
        // The last byte stays 0.
        let places = name.iter_mut().take(NAME_BYTES.saturating_sub(1));
        places
            .zip(&self.to_name)
            .for_each(|(place, byte)| *place = *byte);
        name.store(header, NAME_AT);
    }

    pub(crate) fn payload_bytes(&self) -> Result<u64, &'static str> {
        let bytes = u64::from(self.payload_length);
        match bytes <= BEGIN_PAYLOAD_BYTES_MAX && bytes.is_multiple_of(4) {
            true => Ok(bytes),
            false => Err("a list of more than 64 MiB, or of broken words"),
        }
    }
}
