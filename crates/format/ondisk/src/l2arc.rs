//! The structures on a cache device (L2ARC): device header, log blocks and their entries.
//!
//! Page `docs/format/l2arc.md`.

use crate::{
    Ashift, CompressionKind, DecodeError, Endian, Guid, LeafLayout, Reader, SECTOR_SHIFT, Txg,
    VDEV_DATA_START_BYTES, Writer, unsealed_label_region,
};

/// Byte offset of the device header on a cache device.
pub const HEADER_OFFSET_BYTES: u64 = VDEV_DATA_START_BYTES;
/// Bytes of a log block before compression.
pub const LOG_BLOCK_BYTES: usize = 65536;
/// The most entries of a log block.
pub const ENTRIES_MAX: u64 = 1022;
/// Bytes of an entry.
const ENTRY_BYTES: usize = 64;
/// Byte offset of the first entry in a log block.
const ENTRIES_OFFSET_BYTES: usize = 128;
/// One entry of a log block describes this much of the device, in bytes, on average.
const BYTES_PER_ENTRY: u64 = 16 << 20;
/// Below this end of the cache area the device has no log blocks.
const PERSISTENT_BYTES_MIN: u64 = 1 << 30;
/// `fletcher4` in a log block pointer.
const FLETCHER4: u64 = 7;

/// The layout of a cache device. Page `docs/format/l2arc.md`, "The device".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheLayout {
    /// log2 of the unit of all offsets and aligned sizes.
    pub ashift: Ashift,
    /// Where the area for buffers and log blocks begins, in bytes from the start of the device.
    pub start_bytes: u64,
    /// Where it ends.
    pub end_bytes: u64,
}

impl CacheLayout {
    /// The layout of a device of `device_bytes`; `None` if it is too small, or the ashift is not 9 to 16.
    #[must_use]
    pub fn new(device_bytes: u64, ashift: Ashift) -> Option<Self> {
        if !(9..=16).contains(&ashift.0) {
            return None;
        }
        let unit = 1u64 << ashift.0;
        let asize = LeafLayout::new(device_bytes)?.asize_bytes();
        let asize = asize & !unit.saturating_sub(1);
        Some(Self {
            ashift,
            start_bytes: HEADER_OFFSET_BYTES.saturating_add(unit),
            end_bytes: HEADER_OFFSET_BYTES.saturating_add(asize),
        })
    }

    /// Bytes of the device header with its trailer: one unit of the device.
    #[must_use]
    pub fn header_bytes(self) -> usize {
        1usize << self.ashift.0
    }
    /// Bytes of the area for buffers and log blocks.
    #[must_use]
    pub fn area_bytes(self) -> u64 {
        self.end_bytes.saturating_sub(self.start_bytes)
    }
    /// The entries of each log block; 0 if the device is too small to have any.
    #[must_use]
    pub fn log_entries(self) -> u64 {
        match self.end_bytes < PERSISTENT_BYTES_MIN {
            true => 0,
            false => (self.area_bytes() / BYTES_PER_ENTRY).min(ENTRIES_MAX),
        }
    }
    /// A size rounded up to the unit of the device.
    #[must_use]
    pub fn aligned(self, bytes: u64) -> u64 {
        bytes
            .checked_next_multiple_of(1u64 << self.ashift.0)
            .unwrap_or(u64::MAX)
    }
}

/// A pointer to a log block. Zeros if there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogBlockPointer {
    /// Byte offset of the log block on the device.
    pub offset_bytes: u64,
    /// Sum of the aligned sizes of the buffers that it describes, in bytes.
    pub payload_bytes: u64,
    /// Byte offset of the first of them.
    pub payload_start_bytes: u64,
    /// Sizes and functions; see the accessors.
    pub properties: u64,
    /// Fletcher-4 of the log block as it is stored, with its padding.
    pub checksum: [u64; 4],
}

impl LogBlockPointer {
    /// A pointer to a log block that takes `stored_bytes` with its padding.
    #[must_use]
    pub fn new(offset_bytes: u64, stored_bytes: u64, compression: CompressionKind) -> Self {
        let properties = sectors(LOG_BLOCK_BYTES as u64)
            | sectors(stored_bytes) << 16
            | u64::from(compression.number() & 0x7f) << 32
            | FLETCHER4 << 40;
        Self {
            offset_bytes,
            properties,
            ..Self::default()
        }
    }
    /// Whether there is a log block. Says nothing about whether the offsets are possible.
    #[must_use]
    pub fn is_present(&self) -> bool {
        *self != Self::default()
    }
    /// Bytes of the log block before compression.
    #[must_use]
    pub fn logical_bytes(&self) -> u64 {
        size_bytes(self.properties)
    }
    /// Bytes of the log block as it is stored, with its padding.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        size_bytes(self.properties >> 16)
    }
    /// The offset after the log block; saturates.
    #[must_use]
    pub fn end_bytes(&self) -> u64 {
        self.offset_bytes.saturating_add(self.stored_bytes())
    }
    /// How the log block is compressed, if this is known.
    #[must_use]
    pub fn compression(&self) -> Option<CompressionKind> {
        CompressionKind::from_number(low_bits(self.properties >> 32, 0x7f))
    }
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            offset_bytes: reader.u64()?,
            payload_bytes: reader.u64()?,
            payload_start_bytes: reader.u64()?,
            properties: reader.u64()?,
            checksum: [reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?],
        })
    }
    fn encode(&self, writer: &mut Writer) {
        writer.put_u64(self.offset_bytes);
        writer.put_u64(self.payload_bytes);
        writer.put_u64(self.payload_start_bytes);
        writer.put_u64(self.properties);
        self.checksum.iter().for_each(|word| writer.put_u64(*word));
    }
}

/// The device header. Page `docs/format/l2arc.md`, "The device header".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceHeader {
    /// The pool.
    pub pool_guid: Guid,
    /// The cache device.
    pub vdev_guid: Guid,
    /// Entries of each log block, 0 for a device without log blocks.
    pub log_entries: u64,
    /// Byte offset up to which the area ahead of the hand is free.
    pub evict_bytes: u64,
    /// Whether nothing was overwritten yet.
    pub is_first_sweep: bool,
    /// Where the area begins.
    pub start_bytes: u64,
    /// Where it ends.
    pub end_bytes: u64,
    /// The newest log block, and the one before it.
    pub newest: [LogBlockPointer; 2],
    /// Bytes of all log blocks.
    pub log_bytes: u64,
    /// The number of log blocks.
    pub log_blocks: u64,
    /// When the whole device was last trimmed, in seconds since 1970.
    pub trim_time_s: u64,
    /// What became of that: 0 none, 4 complete.
    pub trim_state: u64,
}

impl DeviceHeader {
    /// The magic number: "ZFSCACHE".
    pub const MAGIC: u64 = 0x5a46_5343_4143_4845;
    /// The version of the format.
    pub const VERSION: u64 = 1;
    const NAME: &str = "cache device header";

    /// Decodes a header of either byte order. Does not verify its checksum (`millpond_checksum::verify_label`
    /// does that).
    ///
    /// # Errors
    /// If the bytes are too few, the magic number matches neither byte order, or the version is not 1.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let endian = endian_of(Self::NAME, bytes, Self::MAGIC)?;
        let mut reader = Reader::new(Self::NAME, bytes, endian);
        reader.skip(8)?;
        if reader.u64()? != Self::VERSION {
            return Err(DecodeError::new(Self::NAME, "version is not 1", 8));
        }
        Ok(Self {
            pool_guid: Guid(reader.u64()?),
            vdev_guid: Guid(reader.u64()?),
            log_entries: reader.u64()?,
            evict_bytes: reader.u64()?,
            is_first_sweep: reader.u64()? & 1 == 1,
            start_bytes: reader.u64()?,
            end_bytes: reader.u64()?,
            newest: [
                LogBlockPointer::decode(&mut reader)?,
                LogBlockPointer::decode(&mut reader)?,
            ],
            log_bytes: reader.u64()?,
            log_blocks: reader.u64()?,
            trim_time_s: reader.u64()?,
            trim_state: reader.u64()?,
        })
    }

    /// Encodes the header as `header_bytes` little-endian bytes whose last 40 are left for the trailer
    /// (`millpond_checksum::seal_label`). `None` if they are too few.
    #[must_use]
    pub fn encode(&self, header_bytes: usize) -> Option<Vec<u8>> {
        let mut writer = Writer::with_capacity(header_bytes);
        for word in [
            Self::MAGIC,
            Self::VERSION,
            self.pool_guid.0,
            self.vdev_guid.0,
            self.log_entries,
            self.evict_bytes,
            u64::from(self.is_first_sweep),
            self.start_bytes,
            self.end_bytes,
        ] {
            writer.put_u64(word);
        }
        self.newest.iter().for_each(|log| log.encode(&mut writer));
        for word in [
            self.log_bytes,
            self.log_blocks,
            self.trim_time_s,
            self.trim_state,
        ] {
            writer.put_u64(word);
        }
        unsealed_label_region(&writer.finish(), header_bytes)
    }
}

/// A buffer on the device. Page `docs/format/l2arc.md`, "Entries".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheEntry {
    /// The first address of the block in the pool, as in its pointer.
    pub dva_words: [u64; 2],
    /// The physical birth of the block.
    pub birth: Txg,
    /// Sizes and functions; see [`EntryProperties`].
    pub properties: u64,
    /// Byte offset of the buffer on the device.
    pub offset_bytes: u64,
    /// The zstd level, as in the block's header; 0 otherwise.
    pub compression_level: u8,
}

/// The fields in the `properties` of a [`CacheEntry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryProperties {
    /// Logical bytes of the block.
    pub logical_bytes: u64,
    /// Bytes that it has on disk, and in the buffer.
    pub stored_bytes: u64,
    /// The compression function of the block's pointer.
    pub compression: u8,
    /// Whether it was prefetched.
    pub is_prefetched: bool,
    /// Whether it is metadata.
    pub is_metadata: bool,
    /// Whether its dataset is encrypted, or its blocks are authenticated.
    pub is_protected: bool,
    /// Whether it had been used more than once.
    pub is_frequent: bool,
}

impl EntryProperties {
    /// The word in the entry.
    #[must_use]
    pub fn encode(self) -> u64 {
        sectors(self.logical_bytes)
            | sectors(self.stored_bytes) << 16
            | u64::from(self.compression & 0x7f) << 32
            | u64::from(self.is_prefetched) << 39
            | if self.is_metadata { 2u64 } else { 1 } << 48
            | u64::from(self.is_protected) << 56
            | if self.is_frequent { 3u64 } else { 1 } << 57
    }
    /// The fields of the word in an entry. Every word has some.
    #[must_use]
    pub fn decode(word: u64) -> Self {
        Self {
            logical_bytes: size_bytes(word),
            stored_bytes: size_bytes(word >> 16),
            compression: low_bits(word >> 32, 0x7f),
            is_prefetched: word >> 39 & 1 == 1,
            is_metadata: low_bits(word >> 48, 0xff) == 2,
            is_protected: word >> 56 & 1 == 1,
            is_frequent: word >> 57 & 0xf == 3,
        }
    }
}

/// A log block: what a part of the device holds. Page `docs/format/l2arc.md`, "Log blocks".
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CacheLogBlock {
    /// The log block two back: two chains interleave.
    pub previous: LogBlockPointer,
    /// The buffers, in the order in which they were written.
    pub entries: Vec<CacheEntry>,
}

impl CacheLogBlock {
    /// The magic number: "LOGBLKHD".
    pub const MAGIC: u64 = 0x4c4f_4742_4c4b_4844;
    const NAME: &str = "cache log block";

    /// Decodes a decompressed log block of either byte order with `count` entries, at most [`ENTRIES_MAX`].
    /// Does not verify its checksum. At most 64 KiB are allocated.
    ///
    /// # Errors
    /// If the bytes are too few for the entries, or the magic number matches neither byte order.
    pub fn decode(bytes: &[u8], count: u64) -> Result<Self, DecodeError> {
        let endian = endian_of(Self::NAME, bytes, Self::MAGIC)?;
        let mut reader = Reader::new(Self::NAME, bytes, endian);
        reader.skip(8)?;
        let previous = LogBlockPointer::decode(&mut reader)?;
        reader.skip(ENTRIES_OFFSET_BYTES.saturating_sub(reader.position()))?;
        let mut entries = Vec::new();
        for _ in 0..count.min(ENTRIES_MAX) {
            entries.push(CacheEntry::decode(&mut reader)?);
        }
        Ok(Self { previous, entries })
    }

    /// Encodes the log block as [`LOG_BLOCK_BYTES`] little-endian bytes. Entries beyond [`ENTRIES_MAX`] are left
    /// out.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(LOG_BLOCK_BYTES);
        writer.put_u64(Self::MAGIC);
        self.previous.encode(&mut writer);
        writer.put(&[0; 56]);
        let count = usize::try_from(ENTRIES_MAX).unwrap_or(0);
        for entry in self.entries.iter().take(count) {
            entry.encode(&mut writer);
        }
        let mut bytes = writer.finish();
        bytes.resize(LOG_BLOCK_BYTES, 0);
        bytes
    }
}

impl CacheEntry {
    /// The fields of [`CacheEntry::properties`].
    #[must_use]
    pub fn fields(&self) -> EntryProperties {
        EntryProperties::decode(self.properties)
    }
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let entry = Self {
            dva_words: [reader.u64()?, reader.u64()?],
            birth: Txg(reader.u64()?),
            properties: reader.u64()?,
            offset_bytes: reader.u64()?,
            compression_level: low_bits(reader.u64()?, 0xff),
        };
        reader.skip(ENTRY_BYTES.saturating_sub(48))?;
        Ok(entry)
    }
    fn encode(&self, writer: &mut Writer) {
        for word in [
            self.dva_words[0],
            self.dva_words[1],
            self.birth.0,
            self.properties,
            self.offset_bytes,
            u64::from(self.compression_level),
            0,
            0,
        ] {
            writer.put_u64(word);
        }
    }
}

/// The byte order in which the first word is the magic number.
fn endian_of(name: &'static str, bytes: &[u8], magic: u64) -> Result<Endian, DecodeError> {
    match Reader::new(name, bytes, Endian::Little).u64()? {
        word if word == magic => Ok(Endian::Little),
        word if word.swap_bytes() == magic => Ok(Endian::Big),
        _ => Err(DecodeError::new(name, "no magic", 0)),
    }
}

fn low_bits(word: u64, mask: u64) -> u8 {
    u8::try_from(word & mask).unwrap_or(0)
}

/// A size as sectors of 512 bytes less one, in 16 bits.
fn sectors(bytes: u64) -> u64 {
    (bytes >> SECTOR_SHIFT).saturating_sub(1) & 0xffff
}

fn size_bytes(sectors: u64) -> u64 {
    (sectors & 0xffff).saturating_add(1) << SECTOR_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::swapped_words;
    use proptest::prelude::*;

    /// The beginning of the header of a device that `zdb -lll` printed field by field.
    const HEADER: [u64; 18] = [
        0x4548_4341_4353_465a,
        0x0100_0000_0000_0000,
        0x1111_0000_0000_0000,
        0x2222_0000_0000_0000,
        0x0300_0000_0000_0000,
        0x0002_4000_0000_0000,
        0x0100_0000_0000_0000,
        0x0002_4000_0000_0000,
        0x0000_4003_0000_0000,
        0x0032_4000_0000_0000,
        0x0030_0000_0000_0000,
        0x0002_4000_0000_0000,
        0x7f00_7f00_0207_0000,
        0xd7c7_73a7_0000_0000,
        0x8925_4e34_d929_0000,
        0xe616_c979_2bc4_3a05,
        0x01b6_642d_3135_ed89,
        0,
    ];

    fn header() -> DeviceHeader {
        let mut newest = LogBlockPointer::new(0x40_3200, 65536, CompressionKind::Off);
        newest.payload_bytes = 0x3000;
        newest.payload_start_bytes = 0x40_0200;
        newest.checksum = [
            0xa773_c7d7,
            0x29d9_344e_2589,
            0x053a_c42b_79c9_16e6,
            0x89ed_3531_2d64_b601,
        ];
        DeviceHeader {
            pool_guid: Guid(0x1111),
            vdev_guid: Guid(0x2222),
            log_entries: 3,
            evict_bytes: 0x40_0200,
            is_first_sweep: true,
            start_bytes: 0x40_0200,
            end_bytes: 0x340_0000,
            newest: [newest, LogBlockPointer::default()],
            log_bytes: 65536,
            log_blocks: 1,
            trim_time_s: 0,
            trim_state: 0,
        }
    }

    #[test]
    fn the_header_has_the_bytes_that_zdb_accepted() {
        let bytes = header().encode(512).unwrap();
        let expected: Vec<u8> = HEADER.iter().flat_map(|word| word.to_be_bytes()).collect();
        assert_eq!(bytes[..expected.len()], expected);
        assert_eq!(bytes.len(), 512);
        assert_eq!(DeviceHeader::decode(&bytes), Ok(header()));
        assert_eq!(DeviceHeader::decode(&swapped_words(&bytes)), Ok(header()));
        assert!(DeviceHeader::decode(&bytes[..231]).is_err());
        let mut other = bytes;
        other[8] = 2;
        assert!(DeviceHeader::decode(&other).is_err());
        assert_eq!(header().encode(256), None);
    }

    #[test]
    fn an_entry_has_the_properties_that_zdb_accepted() {
        let fields = EntryProperties {
            logical_bytes: 8192,
            stored_bytes: 4096,
            compression: CompressionKind::Lz4.number(),
            is_prefetched: false,
            is_metadata: false,
            is_protected: false,
            is_frequent: false,
        };
        assert_eq!(fields.encode(), 0x0201_000f_0007_000f);
        assert_eq!(EntryProperties::decode(0x0201_000f_0007_000f), fields);
    }

    #[test]
    fn a_log_block_decodes_as_it_was_encoded() {
        let entry = |number| CacheEntry {
            dva_words: [8, number],
            birth: Txg(100),
            properties: 0x0201_000f_0007_000f,
            offset_bytes: number * 4096,
            compression_level: 3,
        };
        let block = CacheLogBlock {
            previous: header().newest[0],
            entries: (0..1022).map(entry).collect(),
        };
        let bytes = block.encode();
        assert_eq!(bytes.len(), LOG_BLOCK_BYTES);
        assert_eq!(bytes[..8], *b"DHKLBGOL");
        let decoded = CacheLogBlock::decode(&bytes, 1022);
        assert_eq!(decoded.as_ref(), Ok(&block));
        let decoded = CacheLogBlock::decode(&swapped_words(&bytes), u64::MAX);
        assert_eq!(decoded, Ok(block));
        assert!(CacheLogBlock::decode(&bytes[..4096], 1022).is_err());
        assert!(CacheLogBlock::decode(&[0; 65536], 0).is_err());
    }

    #[test]
    fn a_device_has_a_log_from_one_gibibyte_on() {
        let layout = |mib: u64, ashift| CacheLayout::new(mib << 20, Ashift(ashift)).unwrap();
        let small = layout(64, 9);
        assert_eq!((small.start_bytes, small.log_entries()), (0x40_0200, 0));
        assert_eq!(small.end_bytes, (64 << 20) - (512 << 10));
        assert_eq!(small.header_bytes(), 512);
        let large = layout(2048, 12);
        assert_eq!((large.start_bytes, large.log_entries()), (0x40_1000, 127));
        assert_eq!(layout(100 << 10, 12).log_entries(), 1022);
        assert_eq!(large.aligned(1), 4096);
        assert_eq!(large.aligned(u64::MAX), u64::MAX);
        assert_eq!(CacheLayout::new(1 << 20, Ashift(9)), None);
        assert_eq!(CacheLayout::new(1 << 30, Ashift(17)), None);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_an_error_or_a_value(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..700),
            magic in 0..3u8,
            count in any::<u64>(),
        ) {
            let word = [DeviceHeader::MAGIC, CacheLogBlock::MAGIC, 0][usize::from(magic)];
            if bytes.len() >= 16 && magic < 2 {
                bytes[..8].copy_from_slice(&word.to_le_bytes());
                bytes[8..16].copy_from_slice(&1u64.to_le_bytes());
            }
            if let Ok(header) = DeviceHeader::decode(&bytes) {
                let encoded = header.encode(512).unwrap();
                prop_assert_eq!(DeviceHeader::decode(&encoded), Ok(header));
            }
            if let Ok(block) = CacheLogBlock::decode(&bytes, count) {
                prop_assert_eq!(CacheLogBlock::decode(&block.encode(), block.entries.len() as u64), Ok(block));
            }
        }
    }
}
