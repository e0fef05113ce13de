//! Overflow-checked conversion between bytes and the sectors of a vdev.

use millpond_ondisk::Ashift;

/// The sector size of a top-level vdev: `1 << ashift` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sector {
    shift: u32,
}

impl Sector {
    /// The sector size for this ashift, or `None` if the ashift is invalid.
    pub(crate) fn new(ashift: Ashift) -> Option<Self> {
        (9..=16).contains(&ashift.0).then_some(Self {
            shift: u32::from(ashift.0),
        })
    }

    pub(crate) fn bytes(self) -> u64 {
        1u64.checked_shl(self.shift).unwrap_or(u64::MAX)
    }

    /// The number of whole sectors in `bytes`, rounded down.
    pub(crate) fn whole(self, bytes: u64) -> u64 {
        bytes.checked_shr(self.shift).unwrap_or(0)
    }

    /// The number of sectors that hold `bytes`, rounded up.
    pub(crate) fn covering(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.bytes())
    }

    /// The size of `sectors` in bytes; `None` on overflow.
    pub(crate) fn to_bytes(self, sectors: u64) -> Option<u64> {
        sectors.checked_mul(self.bytes())
    }

    pub(crate) fn is_aligned(self, bytes: u64) -> bool {
        self.to_bytes(self.whole(bytes)) == Some(bytes)
    }
}

/// `value` rounded up to a multiple of `unit`; `None` for a unit of 0 or on overflow.
pub(crate) fn round_up(value: u64, unit: u64) -> Option<u64> {
    value.checked_next_multiple_of(unit)
}

/// `value` rounded down to a multiple of `unit`; `None` for a unit of 0.
pub(crate) fn round_down(value: u64, unit: u64) -> Option<u64> {
    value.checked_sub(value.checked_rem(unit)?)
}
