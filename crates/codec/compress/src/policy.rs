//! Decides whether a block is stored compressed, and how long the stored form is.

use crate::{ZstdLevel, compress};
use millpond_ondisk::CompressionKind;

/// The longest encoded form that an embedded block pointer can hold, in bytes.
const EMBEDDED_BYTES_MAX: usize = 112;

/// The allocation units of a pool's normal-class devices, in bytes.
///
/// A unit is `1 << ashift` of each normal top-level vdev and of the devices below it.
/// Page `docs/format/compression.md`, "Stored or not".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocationUnits {
    smallest: usize,
    divisor: usize,
}

impl AllocationUnits {
    /// Takes the smallest unit and the greatest common divisor of all units, in bytes. Values below one
    /// sector (512) count as one sector.
    #[must_use]
    pub fn new(smallest_bytes: u32, divisor_bytes: u32) -> Self {
        let bytes = |value: u32| usize::try_from(value.max(512)).unwrap_or(512);
        Self {
            smallest: bytes(smallest_bytes),
            divisor: bytes(divisor_bytes),
        }
    }
    /// The maximum length at which the encoded form of a block of `lsize` bytes is worth storing.
    #[must_use]
    pub fn limit_bytes(self, kind: CompressionKind, lsize: usize) -> usize {
        let limit = lsize.saturating_sub(lsize / 8);
        if kind == CompressionKind::Zle {
            return limit;
        }
        let rounded = limit.saturating_sub(limit.checked_rem(self.divisor).unwrap_or(0));
        if rounded < self.smallest {
            EMBEDDED_BYTES_MAX
        } else {
            rounded
        }
    }
    /// The physical size of an encoded form of `length` bytes, padding included. `None` if that is not below
    /// `lsize`, so that the block is stored uncompressed.
    #[must_use]
    pub fn stored_bytes(self, length: usize, lsize: usize) -> Option<usize> {
        let stored = if length <= self.smallest {
            self.smallest
        } else {
            length.checked_next_multiple_of(self.divisor)?
        };
        (stored < lsize).then_some(stored)
    }
}

/// The form in which a block is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredForm {
    /// All bytes are zero: the block becomes a hole and nothing is stored.
    Hole,
    /// Stored unchanged, with compression function "off".
    Raw,
    /// Encoded, without padding. With at most 112 bytes the block may be embedded. Otherwise
    /// [`AllocationUnits::stored_bytes`] returns the padded length, or `None` if the block must be stored
    /// uncompressed after all.
    Encoded(Vec<u8>),
}

/// Chooses the stored form of a block that is written with function `kind`.
///
/// "off" does not look for zeros; "empty" only looks for zeros.
#[must_use]
pub fn stored_form(
    kind: CompressionKind,
    zstd_level: ZstdLevel,
    source: &[u8],
    units: AllocationUnits,
) -> StoredForm {
    if kind == CompressionKind::Off {
        return StoredForm::Raw;
    }
    if source.iter().all(|byte| *byte == 0) {
        return StoredForm::Hole;
    }
    let limit = units.limit_bytes(kind, source.len());
    let Some(encoded) = compress(kind, zstd_level, source, limit) else {
        return StoredForm::Raw;
    };
    let storable = units.stored_bytes(encoded.len(), source.len()).is_some();
    if storable || encoded.len() <= EMBEDDED_BYTES_MAX {
        StoredForm::Encoded(encoded)
    } else {
        StoredForm::Raw
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_seven_eighths_rounded_down_to_the_common_unit() {
        let units = AllocationUnits::new(4096, 4096);
        let limit = |kind, lsize| units.limit_bytes(kind, lsize);
        assert_eq!(limit(CompressionKind::Lz4, 131_072), 114_688);
        assert_eq!(limit(CompressionKind::Lz4, 16_384), 12_288);
        assert_eq!(limit(CompressionKind::Zle, 16_384), 14_336);
        // 3584 rounds down to nothing, so only an embedded pointer could hold it.
        assert_eq!(limit(CompressionKind::Lz4, 4096), 112);
        let mixed = AllocationUnits::new(4096, 512);
        assert_eq!(mixed.limit_bytes(CompressionKind::Zstd, 5000), 4096);
        assert_eq!(mixed.limit_bytes(CompressionKind::Zstd, 4096), 112);
    }

    #[test]
    fn compressed_blocks_are_kept_if_they_save_space() {
        let units = AllocationUnits::new(4096, 4096);
        let form =
            |source: &[u8]| stored_form(CompressionKind::Lz4, ZstdLevel::default(), source, units);
        let length = |form| match form {
            StoredForm::Encoded(bytes) => Some(bytes.len()),
            StoredForm::Hole | StoredForm::Raw => None,
        };
        // Irregular numbers, then zeros.
        let noise = |noisy: usize, size: usize| -> Vec<u8> {
            let byte = |at: usize| ((at * at * 2_654_435_761) >> 13) as u8;
            (0..size)
                .map(|at| if at < noisy { byte(at) } else { 0 })
                .collect()
        };
        let saves_space = length(form(&noise(3000, 131_072)));
        assert!(
            saves_space.is_some_and(|length| length > EMBEDDED_BYTES_MAX),
            "{saves_space:?}"
        );
        let fits_a_pointer = length(form(&noise(40, 4096)));
        assert!(
            fits_a_pointer.is_some_and(|length| length <= EMBEDDED_BYTES_MAX),
            "{fits_a_pointer:?}"
        );
        assert_eq!(length(form(&noise(3000, 4096))), None);
    }

    #[test]
    fn the_stored_size_is_in_whole_units_and_below_the_logical_size() {
        let units = AllocationUnits::new(4096, 4096);
        assert_eq!(units.stored_bytes(60, 131_072), Some(4096));
        assert_eq!(units.stored_bytes(4097, 131_072), Some(8192));
        assert_eq!(units.stored_bytes(12_288, 12_288), None);
        assert_eq!(units.stored_bytes(60, 4096), None);
    }

    #[test]
    fn zeros_are_holes_for_every_function_but_off() {
        let units = AllocationUnits::new(512, 512);
        let form = |kind| stored_form(kind, ZstdLevel::DEFAULT, &[0; 2048], units);
        assert_eq!(form(CompressionKind::Off), StoredForm::Raw);
        for kind in [
            CompressionKind::Empty,
            CompressionKind::Lz4,
            CompressionKind::Zle,
        ] {
            assert_eq!(form(kind), StoredForm::Hole);
        }
        let some = [1u8; 2048];
        assert_eq!(
            stored_form(CompressionKind::Empty, ZstdLevel::DEFAULT, &some, units),
            StoredForm::Raw
        );
        assert!(matches!(
            stored_form(CompressionKind::Lz4, ZstdLevel::DEFAULT, &some, units),
            StoredForm::Encoded(bytes) if bytes.len() < 112
        ));
    }
}
