//! How a top-level vdev is divided into metaslabs.

use core::fmt;
use core::ops::Range;

use millpond_ondisk::space_map::SpaceMapUnits;
use millpond_ondisk::{Ashift, VdevId};

use crate::AllocError;

/// The smallest metaslab size found in old pools, as log2 of bytes.
const METASLAB_SHIFT_MIN: u8 = 17;
/// A normal or special vdev reserves a metaslab for the intent log if it has more than this many.
const EMBEDDED_LOG_METASLABS_ABOVE: usize = 64;

/// The allocation class of a top-level vdev. Page `docs/format/space-accounting.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AllocationClass {
    /// Everything that has no other class.
    Normal,
    /// Intent log blocks. Not counted in the pool's size.
    Log,
    /// Metadata and small blocks.
    Special,
    /// Dedup tables.
    Dedup,
}

impl AllocationClass {
    /// The class for a vdev's bias: absent, `log`, `special` or `dedup`. `None` for other values.
    #[must_use]
    pub fn from_bias(bias: Option<&str>) -> Option<Self> {
        Some(match bias {
            None => Self::Normal,
            Some("log") => Self::Log,
            Some("special") => Self::Special,
            Some("dedup") => Self::Dedup,
            Some(_) => return None,
        })
    }
}

/// Identifies a metaslab by vdev and index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MetaslabId {
    /// The top-level vdev.
    pub vdev: VdevId,
    /// Its index on the vdev, from 0.
    pub index: u64,
}

impl fmt::Display for MetaslabId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "metaslab {} of vdev {}", self.index, self.vdev)
    }
}

/// A metaslab's location. Page `docs/format/space-map.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metaslab {
    /// Its id.
    pub id: MetaslabId,
    /// Byte range on the top-level vdev.
    pub range: Range<u64>,
    /// log2 of a unit of its space map.
    pub ashift: Ashift,
}

impl Metaslab {
    /// Size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }
    /// How entries of its space map convert to bytes.
    #[must_use]
    pub fn units(&self) -> SpaceMapUnits {
        SpaceMapUnits {
            shift: self.ashift.0,
            start_bytes: self.range.start,
            size_bytes: Some(self.size_bytes()),
        }
    }
}

/// The space of a concrete top-level vdev, as configured. Page `docs/format/space-map.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VdevGeometry {
    vdev: VdevId,
    asize_bytes: u64,
    ashift: Ashift,
    metaslab_shift: u8,
    /// dRAID: alignment of metaslabs, in bytes.
    group_bytes: Option<u64>,
}

impl VdevGeometry {
    /// Makes the geometry from a vdev's configuration: allocatable size, ashift, `metaslab_shift`, and for
    /// dRAID the group width in children.
    ///
    /// # Errors
    /// If the shifts are invalid or the group does not fit into 64 bits.
    pub fn new(
        vdev: VdevId,
        asize_bytes: u64,
        ashift: Ashift,
        metaslab_shift: u8,
        draid_group_width: Option<u64>,
    ) -> Result<Self, AllocError> {
        let fail = |reason| AllocError::Geometry {
            vdev: vdev.0,
            reason,
        };
        if !(9..=16).contains(&ashift.0) {
            return Err(fail("ashift outside 9 to 16"));
        }
        if !(METASLAB_SHIFT_MIN..=62).contains(&metaslab_shift) {
            return Err(fail("metaslab shift outside 17 to 62"));
        }
        let group_bytes = match draid_group_width {
            None => None,
            Some(0) => return Err(fail("group without children")),
            Some(width) => Some(
                width
                    .checked_mul(ashift.bytes())
                    .filter(|bytes| bytes.checked_shr(u32::from(metaslab_shift)) == Some(0))
                    .ok_or_else(|| fail("group is larger than a metaslab"))?,
            ),
        };
        Ok(Self {
            vdev,
            asize_bytes,
            ashift,
            metaslab_shift,
            group_bytes,
        })
    }
    /// The top-level vdev.
    #[must_use]
    pub fn vdev(&self) -> VdevId {
        self.vdev
    }
    /// log2 of the smallest allocation in bytes.
    #[must_use]
    pub fn ashift(&self) -> Ashift {
        self.ashift
    }
    /// The number of metaslabs. A configuration from disk may claim up to 2^47: bound loops by the metaslab
    /// array instead.
    #[must_use]
    pub fn metaslab_count(&self) -> u64 {
        self.asize_bytes
            .checked_shr(u32::from(self.metaslab_shift))
            .unwrap_or(0)
    }
    /// The bytes that all metaslabs cover together: the last part of the vdev that is smaller than a metaslab is not
    /// used.
    #[must_use]
    pub fn allocatable_bytes(&self) -> u64 {
        self.metaslab_count()
            .checked_shl(u32::from(self.metaslab_shift))
            .unwrap_or(u64::MAX)
    }
    /// The metaslab at `index`, or `None` if there is none.
    #[must_use]
    pub fn metaslab(&self, index: u64) -> Option<Metaslab> {
        if index >= self.metaslab_count() {
            return None;
        }
        let size = 1u64.checked_shl(u32::from(self.metaslab_shift))?;
        let mut start = index.checked_mul(size)?;
        let mut end = start.checked_add(size)?;
        if let Some(group) = self.group_bytes {
            start = start.checked_next_multiple_of(group)?;
            let whole = end.checked_sub(start)?.checked_div(group)?;
            end = start.checked_add(whole.checked_mul(group)?)?;
        }
        Some(Metaslab {
            id: MetaslabId {
                vdev: self.vdev,
                index,
            },
            range: start..end,
            ashift: self.ashift,
        })
    }
    /// The metaslab that contains all of `range` (bytes on the vdev), or `None`.
    #[must_use]
    pub fn metaslab_of(&self, range: &Range<u64>) -> Option<Metaslab> {
        let index = range.start.checked_shr(u32::from(self.metaslab_shift))?;
        let metaslab = self.metaslab(index)?;
        let inside = metaslab.range.start <= range.start && range.end <= metaslab.range.end;
        (inside && !range.is_empty()).then_some(metaslab)
    }
    /// The end of the last metaslab, in bytes of the vdev's allocatable space.
    #[must_use]
    pub fn end_bytes(&self) -> u64 {
        self.metaslab_count()
            .checked_shl(u32::from(self.metaslab_shift))
            .unwrap_or(0)
    }
    /// The total size of all metaslabs in bytes: the vdev's raw space, as in `zpool list -v`.
    #[must_use]
    pub fn space_bytes(&self) -> u64 {
        match self.group_bytes {
            None => self.end_bytes(),
            // No group is larger than a metaslab, so each metaslab loses less than two groups. Summing over
            // a few thousand metaslabs is cheap. A malicious configuration may claim more, but has no
            // metaslab array to match.
            Some(_) => (0..self.metaslab_count().min(1 << 20))
                .filter_map(|index| self.metaslab(index))
                .map(|metaslab| metaslab.size_bytes())
                .fold(0, u64::saturating_add),
        }
    }
}

/// log2 of the metaslab size that a new vdev of `asize_bytes` gets. Page `docs/format/space-map.md`.
#[must_use]
pub fn metaslab_shift_for_new_vdev(asize_bytes: u64) -> u8 {
    // Position of the highest bit, counted from 1.
    let high_bit = |value: u64| 64u32.saturating_sub(value.leading_zeros());
    let count = asize_bytes >> 29;
    let mut shift = if count < 16 {
        high_bit(asize_bytes >> 4)
    } else if count > 200 {
        high_bit(asize_bytes.checked_div(200).unwrap_or(0))
    } else {
        29
    };
    if shift < 24 {
        shift = 24;
    } else if shift > 34 {
        shift = 34;
        if asize_bytes >> 34 > 131_072 {
            shift = high_bit(asize_bytes >> 17);
        }
    }
    u8::try_from(shift).unwrap_or(u8::MAX)
}

/// The metaslab of a normal or special vdev that is reserved for the intent log, from the allocated bytes
/// of each: the least used, the first among equals. `None` for vdevs of 64 metaslabs or fewer. It is not
/// recorded on disk; OpenZFS makes the same choice when it opens the vdev.
#[must_use]
pub fn embedded_log_metaslab(allocated_bytes: &[i64]) -> Option<usize> {
    if allocated_bytes.len() <= EMBEDDED_LOG_METASLABS_ABOVE {
        return None;
    }
    let (index, _) = allocated_bytes
        .iter()
        .enumerate()
        .min_by_key(|(index, bytes)| (**bytes, *index))?;
    Some(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn geometry(asize: u64, shift: u8, width: Option<u64>) -> VdevGeometry {
        VdevGeometry::new(VdevId(1), asize, Ashift(12), shift, width).unwrap()
    }

    #[test]
    fn new_vdevs_get_the_shift_of_the_verified_examples() {
        assert_eq!(metaslab_shift_for_new_vdev(62_390_272), 24);
        assert_eq!(metaslab_shift_for_new_vdev(187_170_816), 24);
        assert_eq!(metaslab_shift_for_new_vdev(517_996_544), 25);
        assert_eq!(metaslab_shift_for_new_vdev(100 << 29), 29);
        assert_eq!(metaslab_shift_for_new_vdev(0), 24);
        assert_eq!(metaslab_shift_for_new_vdev(u64::MAX), 47);
    }

    #[test]
    fn the_partial_metaslab_at_the_end_is_unused() {
        let vdev = geometry(62_390_272, 24, None);
        assert_eq!(vdev.metaslab_count(), 3);
        assert_eq!(vdev.space_bytes(), 50_331_648);
        assert_eq!(vdev.metaslab(2).unwrap().range, 2 << 24..3 << 24);
        assert_eq!(vdev.metaslab(3), None);
    }

    #[test]
    fn a_range_belongs_to_the_metaslab_that_holds_all_of_it() {
        let vdev = geometry(1 << 30, 24, None);
        let found = vdev.metaslab_of(&((1 << 24)..(1 << 24) + 4096)).unwrap();
        assert_eq!(found.id.index, 1);
        assert_eq!(vdev.metaslab_of(&((1 << 24) - 1..(1 << 24) + 1)), None);
        assert_eq!(vdev.metaslab_of(&(5..5)), None);
        assert_eq!(vdev.metaslab_of(&(1 << 30..(1 << 30) + 1)), None);
        assert_eq!(vdev.metaslab_of(&(u64::MAX - 1..u64::MAX)), None);
    }

    #[test]
    fn metaslabs_of_draid_begin_and_end_at_whole_groups() {
        // 6 children of 4 KiB: groups of 24 KiB.
        let vdev = geometry(1 << 26, 24, Some(6));
        let group = 6 * 4096;
        for index in 0..4 {
            let range = vdev.metaslab(index).unwrap().range;
            assert_eq!((range.start % group, range.end % group), (0, 0));
            assert!(range.start >= index << 24 && range.end <= (index + 1) << 24);
        }
        assert!(vdev.space_bytes() < 1 << 26);
    }

    #[test]
    fn impossible_numbers_are_refused() {
        for (ashift, shift, width) in [
            (8, 24, None),
            (17, 24, None),
            (12, 16, None),
            (12, 63, None),
            (12, 24, Some(0)),
            (12, 24, Some(u64::MAX)),
            (12, 24, Some(4096)),
        ] {
            assert!(VdevGeometry::new(VdevId(0), 1 << 30, Ashift(ashift), shift, width).is_err());
        }
    }

    #[test]
    fn the_intent_log_borrows_the_least_used_of_many_metaslabs() {
        assert_eq!(embedded_log_metaslab(&[0; 64]), None);
        assert_eq!(embedded_log_metaslab(&[0; 65]), Some(0));
        let mut used = [5i64; 65];
        used[9] = 3;
        used[11] = 3;
        assert_eq!(embedded_log_metaslab(&used), Some(9));
    }

    #[test]
    fn a_bias_names_a_class() {
        assert_eq!(
            AllocationClass::from_bias(None),
            Some(AllocationClass::Normal)
        );
        assert_eq!(
            AllocationClass::from_bias(Some("special")),
            Some(AllocationClass::Special)
        );
        assert_eq!(AllocationClass::from_bias(Some("x")), None);
    }

    proptest! {
        #[test]
        fn no_numbers_overflow(asize: u64, ashift in 9u8..=16, shift in 17u8..=62, width in proptest::option::of(1u64..300), index: u64, start: u64, end: u64) {
            if let Ok(vdev) = VdevGeometry::new(VdevId(0), asize, Ashift(ashift), shift, width) {
                let _ = vdev.metaslab(index);
                let _ = vdev.metaslab_of(&(start..end));
                prop_assert!(vdev.metaslab_count() > 1 << 20 || vdev.space_bytes() <= asize);
            }
        }
    }
}
