//! Where labels lie on a leaf device, and what protects their regions.
//!
//! Page `docs/format/label.md`.

use crate::{
    CHECKSUM_TRAILER_BYTES, CHECKSUM_TRAILER_MAGIC, ChecksumTrailer, DecodeError, Endian,
    VDEV_DATA_START_BYTES,
};

/// Bytes of one label.
pub const LABEL_BYTES: u64 = 256 << 10;
/// Labels on a leaf: two at the start, two at the end.
pub const LABEL_COUNT: usize = 4;
/// Bytes of the smallest leaf that a pool takes.
pub const LEAF_BYTES_MIN: u64 = 64 << 20;
/// Byte offset of the boot environment block inside a label.
pub const BOOT_ENV_OFFSET_BYTES: u64 = 0x2000;
/// Bytes of the boot environment block.
pub const BOOT_ENV_BYTES: usize = 8 << 10;
/// Byte offset of the configuration inside a label.
pub const LABEL_CONFIG_OFFSET_BYTES: u64 = 0x4000;
/// Bytes of the configuration region, trailer included.
pub const LABEL_CONFIG_BYTES: usize = 112 << 10;
/// Byte offset of the uberblock ring inside a label.
pub const UBERBLOCK_RING_OFFSET_BYTES: u64 = 0x20000;
/// Bytes of the uberblock ring.
pub const UBERBLOCK_RING_BYTES: usize = 128 << 10;

/// How a leaf device of one size is divided. Page `docs/format/label.md`, "A leaf device".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafLayout {
    psize_bytes: u64,
}

impl LeafLayout {
    /// The layout for a device of `device_bytes`; `None` below 64 MiB, which no pool takes.
    #[must_use]
    pub fn new(device_bytes: u64) -> Option<Self> {
        let psize_bytes = device_bytes & !LABEL_BYTES.saturating_sub(1);
        (psize_bytes >= LEAF_BYTES_MIN).then_some(Self { psize_bytes })
    }
    /// Bytes that the pool sees: the device's size rounded down to 256 KiB.
    #[must_use]
    pub fn psize_bytes(self) -> u64 {
        self.psize_bytes
    }
    /// Bytes of allocatable space, which begins at [`VDEV_DATA_START_BYTES`].
    #[must_use]
    pub fn asize_bytes(self) -> u64 {
        self.psize_bytes
            .saturating_sub(VDEV_DATA_START_BYTES)
            .saturating_sub(LABEL_BYTES.saturating_mul(2))
    }
    /// Byte offset of label `index` (0 to 3) on the device.
    #[must_use]
    pub fn label_offset_bytes(self, index: usize) -> Option<u64> {
        let index = u64::try_from(index).ok()?;
        match index {
            0 | 1 => index.checked_mul(LABEL_BYTES),
            2 | 3 => self
                .psize_bytes
                .checked_sub(LABEL_BYTES.checked_mul(4u64.checked_sub(index)?)?),
            _ => None,
        }
    }
    /// Byte offsets of the four labels.
    #[must_use]
    pub fn label_offsets_bytes(self) -> [u64; LABEL_COUNT] {
        [0, 1, 2, 3].map(|index| self.label_offset_bytes(index).unwrap_or(u64::MAX))
    }
}

/// The 40 bytes at the end of each protected region of a label: a magic number that tells the byte
/// order, and the region's SHA-256 digest. Page `docs/format/label.md`, "Region checksum".
///
/// This crate computes no digest. Whoever does: digest the bytes of [`RegionTrailer::covered`],
/// then those of [`RegionTrailer::verifier`]; read the 32-byte digest as four big-endian words;
/// compare with `stored`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionTrailer {
    /// The byte order of the region's writer.
    pub endian: Endian,
    /// The digest's words as stored.
    pub stored: [u64; 4],
}

impl RegionTrailer {
    /// Bytes of the trailer.
    pub const BYTES: usize = CHECKSUM_TRAILER_BYTES;
    const CHECKSUM_BYTES: usize = 32;

    /// Reads the trailer from the last 40 bytes of `region`.
    ///
    /// # Errors
    /// If the region is shorter, or the magic number is there in neither byte order.
    pub fn decode(region: &[u8]) -> Result<Self, DecodeError> {
        let fail = |reason| {
            DecodeError::new(
                "label region",
                reason,
                region.len().saturating_sub(Self::BYTES),
            )
        };
        let trailer = region
            .len()
            .checked_sub(Self::BYTES)
            .and_then(|start| region.get(start..))
            .ok_or_else(|| fail("too short"))?;
        let ChecksumTrailer { endian, words } =
            ChecksumTrailer::decode(trailer).ok_or_else(|| fail("no trailer magic"))?;
        Ok(Self {
            endian,
            stored: words,
        })
    }
    /// The bytes of the region that the digest covers as they are: all but the digest itself.
    #[must_use]
    pub fn covered(region: &[u8]) -> &[u8] {
        region
            .get(..region.len().saturating_sub(Self::CHECKSUM_BYTES))
            .unwrap_or(&[])
    }
    /// The 32 bytes digested in place of the stored digest: where on the device the region starts,
    /// so that a label copied elsewhere is found out.
    #[must_use]
    pub fn verifier(self, region_offset_bytes: u64) -> [u8; 32] {
        self.word_bytes([region_offset_bytes, 0, 0, 0])
    }
    fn word_bytes(self, words: [u64; 4]) -> [u8; 32] {
        let mut bytes = [0u8; 32];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&match self.endian {
                Endian::Little => word.to_le_bytes(),
                Endian::Big => word.to_be_bytes(),
            });
        }
        bytes
    }
    /// A region of `region_bytes`: `content`, zeros, and a little-endian trailer whose digest is
    /// still zero; `None` if the content does not fit. [`RegionTrailer::seal`] completes it.
    #[must_use]
    pub fn unsealed_region(content: &[u8], region_bytes: usize) -> Option<Vec<u8>> {
        let magic_at = region_bytes.checked_sub(Self::BYTES)?;
        if content.len() > magic_at {
            return None;
        }
        let mut region = content.to_vec();
        region.resize(magic_at, 0);
        region.extend_from_slice(&CHECKSUM_TRAILER_MAGIC.to_le_bytes());
        region.resize(region_bytes, 0);
        Some(region)
    }
    /// Stores the digest's words in a region made by [`RegionTrailer::unsealed_region`].
    pub fn seal(region: &mut [u8], words: [u64; 4]) {
        let start = region.len().saturating_sub(Self::CHECKSUM_BYTES);
        let trailer = Self {
            endian: Endian::Little,
            stored: words,
        };
        if let Some(place) = region.get_mut(start..)
            && place.len() == Self::CHECKSUM_BYTES
        {
            place.copy_from_slice(&trailer.word_bytes(words));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_lie_at_both_ends_of_the_size_rounded_down() {
        let layout = LeafLayout::new((64 << 20) + (256 << 10) + 511).unwrap();
        assert_eq!(layout.psize_bytes(), (64 << 20) + (256 << 10));
        assert_eq!(
            layout.label_offsets_bytes(),
            [0, 256 << 10, (64 << 20) - (256 << 10), 64 << 20]
        );
        assert_eq!(layout.label_offset_bytes(4), None);
        assert_eq!(
            layout.asize_bytes(),
            (64 << 20) + (256 << 10) - (4 << 20) - (512 << 10)
        );
    }

    #[test]
    fn a_device_below_64_mib_has_no_layout() {
        assert_eq!(LeafLayout::new((64 << 20) - 1), None);
        assert_eq!(LeafLayout::new(0), None);
        assert!(LeafLayout::new(64 << 20).is_some());
        assert!(LeafLayout::new(u64::MAX).is_some());
    }

    #[test]
    fn the_trailers_magic_tells_the_byte_order() {
        let mut region = RegionTrailer::unsealed_region(b"config", 1024).unwrap();
        RegionTrailer::seal(&mut region, [1, 2, 3, 4]);
        let trailer = RegionTrailer::decode(&region).unwrap();
        assert_eq!(
            (trailer.endian, trailer.stored),
            (Endian::Little, [1, 2, 3, 4])
        );
        assert_eq!(&trailer.verifier(0x4000)[..9], b"\0\x40\0\0\0\0\0\0\0");
        assert_eq!(RegionTrailer::covered(&region).len(), 1024 - 32);
        for word in region.chunks_exact_mut(8) {
            word.reverse();
        }
        let trailer = RegionTrailer::decode(&region).unwrap();
        assert_eq!(
            (trailer.endian, trailer.stored),
            (Endian::Big, [1, 2, 3, 4])
        );
        assert_eq!(&trailer.verifier(0x4000)[..9], b"\0\0\0\0\0\0\x40\0\0");
        region[1024 - 40] ^= 1;
        assert!(RegionTrailer::decode(&region).is_err());
    }

    #[test]
    fn regions_too_short_for_a_trailer_are_errors() {
        for length in 0..40 {
            assert!(RegionTrailer::decode(&vec![0u8; length]).is_err());
        }
        assert_eq!(RegionTrailer::unsealed_region(&[0; 25], 64), None);
        assert_eq!(RegionTrailer::unsealed_region(&[], 39), None);
    }
}
