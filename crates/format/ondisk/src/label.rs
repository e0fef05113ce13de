//! The positions of labels on a leaf device, and the protected regions in a label.
//!
//! Page `docs/format/label.md`.

use crate::{CHECKSUM_TRAILER_BYTES, VDEV_DATA_START_BYTES};

/// Bytes of one label.
pub const LABEL_BYTES: u64 = 256 << 10;
/// The number of labels on a leaf: two at the start, two at the end.
pub const LABEL_COUNT: usize = 4;
/// The minimum size of a leaf in bytes.
pub const LEAF_BYTES_MIN: u64 = 64 << 20;
/// Byte offset of the boot environment block inside a label.
pub const BOOT_ENV_OFFSET_BYTES: u64 = 0x2000;
/// Bytes of the boot environment block.
pub const BOOT_ENV_BYTES: usize = 8 << 10;
/// Byte offset of the configuration inside a label.
pub const LABEL_CONFIG_OFFSET_BYTES: u64 = 0x4000;
/// Bytes of the configuration region, including the trailer.
pub const LABEL_CONFIG_BYTES: usize = 112 << 10;
/// Byte offset of the uberblock ring inside a label.
pub const UBERBLOCK_RING_OFFSET_BYTES: u64 = 0x20000;
/// Bytes of the uberblock ring.
pub const UBERBLOCK_RING_BYTES: usize = 128 << 10;

/// The layout of a leaf device of a given size. Page `docs/format/label.md`, "A leaf device".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafLayout {
    psize_bytes: u64,
}

impl LeafLayout {
    /// The layout of a device of `device_bytes`; `None` below the minimum of 64 MiB.
    #[must_use]
    pub fn new(device_bytes: u64) -> Option<Self> {
        let psize_bytes = device_bytes & !LABEL_BYTES.saturating_sub(1);
        (psize_bytes >= LEAF_BYTES_MIN).then_some(Self { psize_bytes })
    }
    /// The usable size in bytes: the device's size rounded down to 256 KiB.
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

/// Builds a protected region of a label: `content` padded with zeros. Page `docs/format/label.md`, "Region
/// checksum".
///
/// The last 40 bytes are reserved for magic number and checksum, which `millpond_checksum::seal_label` sets.
/// `None` if the content does not fit.
#[must_use]
pub fn unsealed_label_region(content: &[u8], region_bytes: usize) -> Option<Vec<u8>> {
    if content.len() > region_bytes.checked_sub(CHECKSUM_TRAILER_BYTES)? {
        return None;
    }
    let mut region = content.to_vec();
    region.resize(region_bytes, 0);
    Some(region)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_at_both_ends_of_the_size_rounded_down() {
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
    fn label_content_must_leave_space_for_the_trailer() {
        let region = unsealed_label_region(b"config", 1024).unwrap();
        assert_eq!((region.len(), &region[..7]), (1024, &b"config\0"[..]));
        assert!(unsealed_label_region(&[0; 24], 64).is_some());
        assert_eq!(unsealed_label_region(&[0; 25], 64), None);
        assert_eq!(unsealed_label_region(&[], 39), None);
    }

    #[test]
    fn the_regions_of_a_label_follow_each_other_and_fill_it() {
        let regions = [
            (BOOT_ENV_OFFSET_BYTES, BOOT_ENV_BYTES),
            (LABEL_CONFIG_OFFSET_BYTES, LABEL_CONFIG_BYTES),
            (UBERBLOCK_RING_OFFSET_BYTES, UBERBLOCK_RING_BYTES),
        ];
        let mut end = 8 << 10;
        for (start, length) in regions {
            assert_eq!(start, end);
            end = start + length as u64;
        }
        assert_eq!(end, LABEL_BYTES);
    }
}
