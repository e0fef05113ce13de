//! Construction of block pointers from their fields.
//!
//! Page `docs/format/block-pointer.md`.

use crate::{
    BlockPointer, ChecksumKind, CompressionKind, Dva, Level, ObjectType, SECTOR_SHIFT, Txg,
};

/// The largest payload of an embedded pointer in bytes.
pub const EMBEDDED_BYTES_MAX: usize = 112;

/// Indices of the payload words of an embedded pointer, in order: all but the property and birth words.
const PAYLOAD_WORDS: [usize; 14] = [0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14, 15];

/// The fields of a pointer to a stored block. Page `docs/format/block-pointer.md`.
///
/// The block is little-endian, not encrypted and not in a dedup table. Its logical and physical births are
/// equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredBlock<'a> {
    /// One to three addresses; further ones are ignored.
    pub dvas: &'a [Dva],
    /// Logical size in bytes, a multiple of 512 up to 32 MiB.
    pub lsize_bytes: u64,
    /// Physical size in bytes, a multiple of 512 up to 32 MiB.
    pub psize_bytes: u64,
    /// The compression function.
    pub compression: CompressionKind,
    /// The checksum function.
    pub checksum: ChecksumKind,
    /// The checksum.
    pub checksum_words: [u64; 4],
    /// The type of the content.
    pub object_type: ObjectType,
    /// Height in the block tree.
    pub level: Level,
    /// The txg that writes the block.
    pub birth: Txg,
    /// The number of blocks (or objects) below.
    pub fill: u64,
}

impl StoredBlock<'_> {
    /// Builds the pointer. Sizes that exceed their fields are truncated; check with
    /// [`BlockPointer::validate`] or by reading the sizes back.
    #[must_use]
    pub fn pointer(&self) -> BlockPointer {
        let mut pointer = BlockPointer::default();
        for (pair, dva) in pointer.words.chunks_exact_mut(2).take(3).zip(self.dvas) {
            pair.copy_from_slice(&dva.to_words());
        }
        put(
            &mut pointer,
            6,
            sectors(self.lsize_bytes)
                | sectors(self.psize_bytes) << 16
                | u64::from(self.compression.number()) << 32
                | u64::from(self.checksum.number()) << 40
                | kind(self.object_type, self.level)
                | 1 << 63,
        );
        put(&mut pointer, 10, self.birth.0);
        put(&mut pointer, 11, self.fill);
        for (word, value) in (12..).zip(self.checksum_words) {
            put(&mut pointer, word, value);
        }
        pointer
    }
}

impl BlockPointer {
    /// A hole with a birth (feature `hole_birth`). All fields except size, type, level and birth are 0.
    #[must_use]
    pub fn hole(lsize_bytes: u64, object_type: ObjectType, level: Level, birth: Txg) -> Self {
        let mut pointer = Self::default();
        put(
            &mut pointer,
            6,
            sectors(lsize_bytes) | kind(object_type, level),
        );
        put(&mut pointer, 10, birth.0);
        pointer
    }

    /// Marks the block as an entry of a dedup table (bit D).
    pub fn set_dedup_bit(&mut self) {
        if let Some(properties) = self.words.get_mut(6) {
            *properties |= 1 << 62;
        }
    }

    /// The same pointer without the dedup bit, as of a block whose entry was removed from its table.
    #[must_use]
    pub fn without_dedup_bit(&self) -> Self {
        let mut pointer = *self;
        if let Some(properties) = pointer.words.get_mut(6) {
            *properties &= !(1 << 62);
        }
        pointer
    }

    /// An embedded pointer of level 0.
    ///
    /// `None` if the payload is empty or longer than [`EMBEDDED_BYTES_MAX`], or the block is empty or larger
    /// than 32 MiB.
    #[must_use]
    pub fn embedded(
        payload: &[u8],
        lsize_bytes: u64,
        compression: CompressionKind,
        object_type: ObjectType,
        birth: Txg,
    ) -> Option<Self> {
        let psize = u64::try_from(payload.len()).ok()?;
        if psize == 0 || payload.len() > EMBEDDED_BYTES_MAX || lsize_bytes > 1 << 25 {
            return None;
        }
        let mut pointer = Self::default();
        put(
            &mut pointer,
            6,
            lsize_bytes.checked_sub(1)?
                | psize.checked_sub(1)? << 25
                | u64::from(compression.number()) << 32
                | 1 << 39
                | kind(object_type, Level(0))
                | 1 << 63,
        );
        put(&mut pointer, 10, birth.0);
        for (bytes, word) in payload.chunks(8).zip(PAYLOAD_WORDS) {
            let mut value = [0; 8];
            for (to, from) in value.iter_mut().zip(bytes) {
                *to = *from;
            }
            put(&mut pointer, word, u64::from_le_bytes(value));
        }
        Some(pointer)
    }
}

fn put(pointer: &mut BlockPointer, word: usize, value: u64) {
    if let Some(slot) = pointer.words.get_mut(word) {
        *slot = value;
    }
}

/// The value of a size field: sectors, minus one.
fn sectors(bytes: u64) -> u64 {
    (bytes >> SECTOR_SHIFT).saturating_sub(1) & 0xffff
}

fn kind(object_type: ObjectType, level: Level) -> u64 {
    u64::from(object_type.0) << 48 | u64::from(level.0 & 0x1f) << 56
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Endian, VdevId, testing::hex};

    #[test]
    fn a_built_root_pointer_has_the_bytes_of_a_real_one() {
        let bytes = hex(
            "080000000000000090190000000000000800000000000000a08d0000000000000800000000000000b0060100000000000700070002070b80000000000000000000000000000000000000000000000000290000000000000034 00000000000000bb754d10030000002df95c59c30b00000d3fb6f5359b1600d0b59bcdcf70fe1c",
        );
        let dva = |offset_bytes| Dva {
            vdev: VdevId(0),
            offset_bytes,
            asize_bytes: 0x1000,
            is_gang: false,
        };
        let made = StoredBlock {
            dvas: &[dva(0x33_2000), dva(0x11b_4000), dva(0x20d_6000)],
            lsize_bytes: 0x1000,
            psize_bytes: 0x1000,
            compression: CompressionKind::Off,
            checksum: ChecksumKind::Fletcher4,
            checksum_words: [
                0x0000_0003_104d_75bb,
                0x0000_0bc3_595c_f92d,
                0x0016_9b35_f5b6_3f0d,
                0x1cfe_70cf_cd9b_b5d0,
            ],
            object_type: ObjectType::OBJECT_SET,
            level: Level(0),
            birth: Txg(41),
            fill: 52,
        };
        assert_eq!(made.pointer().encode().as_slice(), bytes.as_slice());
    }

    #[test]
    fn a_built_embedded_pointer_has_the_bytes_of_a_real_one() {
        let bytes = hex(
            "0000001821030001 00518039666a040a 000f0200ffd85000 0000000000000000 0000000000000000 0000000000000000 ff0100368f000f80 0000000000000000 0000000000000000 0000000000000000 0400000000000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000 0000000000000000",
        );
        let real = BlockPointer::decode(&bytes, Endian::Little).unwrap();
        let payload = real.embedded_payload().unwrap();
        let made = BlockPointer::embedded(
            payload.as_bytes(),
            512,
            CompressionKind::Lz4,
            real.object_type(),
            Txg(4),
        );
        assert_eq!(made, Some(real));
    }

    #[test]
    fn embedded_payloads_round_trip_up_to_the_longest() {
        let bytes: Vec<u8> = (1..=120).collect();
        for length in 1..=112 {
            let made = BlockPointer::embedded(
                &bytes[..length],
                131_072,
                CompressionKind::Zstd,
                ObjectType::PLAIN_FILE,
                Txg(7),
            )
            .unwrap();
            assert_eq!(made.validate(), Ok(()));
            assert_eq!(
                made.embedded_payload().unwrap().as_bytes(),
                &bytes[..length]
            );
            assert_eq!((made.lsize_bytes(), made.birth()), (131_072, Txg(7)));
            assert_eq!(made.compression(), Some(CompressionKind::Zstd));
        }
        let of = |length: usize, lsize| {
            let kind = ObjectType::PLAIN_FILE;
            BlockPointer::embedded(&bytes[..length], lsize, CompressionKind::Lz4, kind, Txg(7))
        };
        assert_eq!(of(113, 512), None);
        assert_eq!(of(0, 512), None);
        assert_eq!(of(1, 0), None);
        assert_eq!(of(1, (1 << 25) + 1), None);
        assert_eq!(of(1, 1 << 25).unwrap().lsize_bytes(), 1 << 25);
    }

    #[test]
    fn a_hole_made_from_its_parts_has_the_word_of_a_real_one() {
        let hole = BlockPointer::hole(4096, ObjectType::OTHER_U8, Level(0), Txg(12));
        let mut real = BlockPointer::default();
        real.words[6] = 0x0019_0000_0000_0007;
        real.words[10] = 12;
        assert_eq!(hole, real);
        let largest = BlockPointer::hole(16 << 20, ObjectType::DNODE, Level(31), Txg(1));
        assert_eq!(
            (largest.lsize_bytes(), largest.level()),
            (16 << 20, Level(31))
        );
    }

    #[test]
    fn each_field_has_its_own_bits() {
        let made = StoredBlock {
            dvas: &[],
            lsize_bytes: 0x1_0000 * 512,
            psize_bytes: 3 * 512,
            compression: CompressionKind::Zstd,
            checksum: ChecksumKind::Blake3,
            checksum_words: [0; 4],
            object_type: ObjectType::PLAIN_FILE,
            level: Level(5),
            birth: Txg(1),
            fill: 1,
        };
        assert_eq!(made.pointer().words[6], 0x8513_0e10_0002_ffff);
    }
}
