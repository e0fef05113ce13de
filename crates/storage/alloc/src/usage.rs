//! Calculates the space values that `zpool list` and `zfs list` print.
//!
//! All sizes are in bytes. "Raw" sizes include parity, "deflated" sizes do not.
//!
//! Page `docs/format/space-accounting.md`.

use millpond_ondisk::{BlockPointer, VdevId};

use crate::AllocationClass;

/// The ratio of a vdev without overhead.
const RATIO_ONE: u64 = 512;
/// The block size for which deflate ratios are defined.
const RATIO_BLOCK_BYTES: u64 = 128 << 10;
const SLOP_BYTES_MAX: u64 = 128 << 30;
const SLOP_BYTES_MIN: u64 = 128 << 20;

/// The deflate ratio of a vdev on which a block of 128 KiB takes `asize_bytes`: 512 without overhead.
/// Removed vdevs always have 512, and RAID-Z expansion does not change it. 0 if the size is less than a
/// sector.
#[must_use]
pub fn deflate_ratio(asize_bytes: u64) -> u64 {
    RATIO_BLOCK_BYTES.checked_div(asize_bytes >> 9).unwrap_or(0)
}

/// Converts raw bytes of a vdev to deflated bytes.
#[must_use]
pub fn deflated_bytes(raw_bytes: u64, ratio: u64) -> u64 {
    (raw_bytes >> 9).saturating_mul(ratio)
}

/// The size that a block pointer charges to its dataset ("dsize"): the deflated sizes of its addresses.
///
/// `ratio_of` returns a vdev's ratio; `None` (a vdev that does not exist) counts without overhead. For
/// pools without the `deflate` entry return 512 for all.
pub fn deflated_pointer_bytes(
    pointer: &BlockPointer,
    ratio_of: impl Fn(VdevId) -> Option<u64>,
) -> u64 {
    pointer
        .dvas()
        .map(|dva| deflated_bytes(dva.asize_bytes, ratio_of(dva.vdev).unwrap_or(RATIO_ONE)))
        .fold(0, u64::saturating_add)
}

/// Space usage of one concrete top-level vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VdevUsage {
    /// Its allocation class.
    pub class: AllocationClass,
    /// Raw bytes of its metaslabs.
    pub space_bytes: u64,
    /// Raw bytes allocated: the headers of its maps plus unflushed changes.
    pub allocated_bytes: u64,
    /// Its deflate ratio.
    pub deflate_ratio: u64,
    /// Raw bytes of the metaslab reserved for the intent log, if any.
    pub embedded_log_bytes: u64,
    /// Whether allocation is disabled (being removed, or `allocating=off`).
    pub is_non_allocating: bool,
}

/// Sums over a class or the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassUsage {
    /// Raw bytes of the metaslabs: SIZE.
    pub space_bytes: u64,
    /// Raw bytes allocated: ALLOC.
    pub allocated_bytes: u64,
}

impl ClassUsage {
    /// Raw free bytes: FREE.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.space_bytes.saturating_sub(self.allocated_bytes)
    }
    /// Percent in use: CAP; 0 without space.
    #[must_use]
    pub fn capacity_percent(&self) -> u64 {
        let percent = u128::from(self.allocated_bytes)
            .saturating_mul(100)
            .checked_div(u128::from(self.space_bytes))
            .unwrap_or(0);
        u64::try_from(percent).unwrap_or(u64::MAX)
    }
    fn sum<'a>(vdevs: impl Iterator<Item = &'a VdevUsage>) -> Self {
        vdevs.fold(Self::default(), |sum, vdev| Self {
            space_bytes: sum.space_bytes.saturating_add(vdev.space_bytes),
            allocated_bytes: sum.allocated_bytes.saturating_add(vdev.allocated_bytes),
        })
    }
}

/// What a pool's space usage is computed from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PoolUsage {
    /// Every concrete top-level vdev.
    pub vdevs: Vec<VdevUsage>,
    /// Deflated bytes that dedup saves: references minus the blocks in the tables.
    pub dedup_saved_bytes: u64,
    /// Deflated bytes that cloning saves.
    pub clone_saved_bytes: u64,
    /// Bytes that only a checkpoint keeps allocated.
    pub checkpoint_bytes: u64,
    /// Deflated bytes on `sync_bplist`.
    pub deferred_free_bytes: u64,
    /// Whether allocated bytes of special and dedup vdevs add to the usable space, as in OpenZFS 2.4.
    /// (OpenZFS 2.3 leaves them out, so its `available` is too small.)
    pub counts_special_classes: bool,
}

impl PoolUsage {
    /// SIZE and ALLOC as in `zpool list`: all vdevs except log vdevs.
    #[must_use]
    pub fn pool(&self) -> ClassUsage {
        ClassUsage::sum(
            self.vdevs
                .iter()
                .filter(|vdev| vdev.class != AllocationClass::Log),
        )
    }
    /// The sums of one class, including the embedded log of normal vdevs.
    #[must_use]
    pub fn class(&self, class: AllocationClass) -> ClassUsage {
        ClassUsage::sum(self.vdevs.iter().filter(|vdev| vdev.class == class))
    }
    /// Allocatable deflated space of the normal class: without embedded logs and non-allocating vdevs.
    #[must_use]
    pub fn normal_deflated_bytes(&self) -> u64 {
        self.vdevs
            .iter()
            .filter(|vdev| vdev.class == AllocationClass::Normal && !vdev.is_non_allocating)
            .map(|vdev| {
                let usable = vdev.space_bytes.saturating_sub(vdev.embedded_log_bytes);
                deflated_bytes(usable, vdev.deflate_ratio)
            })
            .fold(0, u64::saturating_add)
    }
    /// Deflated space reserved for the intent log.
    #[must_use]
    pub fn embedded_log_deflated_bytes(&self) -> u64 {
        self.vdevs
            .iter()
            .map(|vdev| deflated_bytes(vdev.embedded_log_bytes, vdev.deflate_ratio))
            .fold(0, u64::saturating_add)
    }
    /// The limit on the space of all datasets, for operations that leave this share of the slop.
    #[must_use]
    pub fn limit(&self, share: SlopShare) -> PoolLimit {
        let normal = self.normal_deflated_bytes();
        let special: u64 = self
            .vdevs
            .iter()
            .filter(|vdev| {
                self.counts_special_classes
                    && matches!(
                        vdev.class,
                        AllocationClass::Special | AllocationClass::Dedup
                    )
            })
            .map(|vdev| deflated_bytes(vdev.allocated_bytes, vdev.deflate_ratio))
            .fold(0, u64::saturating_add);
        let slop = slop_bytes(normal, self.embedded_log_deflated_bytes());
        let usable = normal
            .saturating_add(special)
            .saturating_add(self.dedup_saved_bytes)
            .saturating_add(self.clone_saved_bytes);
        PoolLimit {
            usable_bytes: usable,
            slop_bytes: slop,
            limit_bytes: usable
                .saturating_sub(self.checkpoint_bytes)
                .saturating_sub(self.deferred_free_bytes)
                .saturating_sub(share.of(slop)),
        }
    }
}

/// The share of the slop space that an operation must leave free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlopShare {
    /// All: for creating and writing. `available` is calculated with this share.
    All,
    /// Half: for operations that free more than they take, and administration.
    Half,
    /// A quarter: for destroying.
    Quarter,
    /// None: for discarding a checkpoint.
    None,
}

impl SlopShare {
    fn of(self, slop: u64) -> u64 {
        match self {
            Self::All => slop,
            Self::Half => slop >> 1,
            Self::Quarter => slop >> 2,
            Self::None => 0,
        }
    }
}

/// The space that a pool's datasets may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolLimit {
    /// Deflated space, plus the savings of dedup and cloning.
    pub usable_bytes: u64,
    /// The slop space, reserved so that deleting always works.
    pub slop_bytes: u64,
    /// The limit on the space of all datasets.
    pub limit_bytes: u64,
}

/// The slop space for `normal_bytes` (deflated): a 32nd, at most 128 GiB. Embedded logs count towards it,
/// up to half of it. The result is at least 128 MiB, or half of `normal_bytes` if that is less.
#[must_use]
pub fn slop_bytes(normal_bytes: u64, embedded_log_bytes: u64) -> u64 {
    let share = (normal_bytes >> 5).min(SLOP_BYTES_MAX);
    share
        .saturating_sub(embedded_log_bytes.min(share >> 1))
        .max((normal_bytes >> 1).min(SLOP_BYTES_MIN))
}

/// The limits of a directory from its own fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirectoryLimits {
    /// Bytes charged to the directory.
    pub used_bytes: u64,
    /// Quota; 0 for none.
    pub quota_bytes: u64,
    /// Reservation; 0 for none.
    pub reserved_bytes: u64,
}

/// The space available in a directory, given that in its parent. For the root, pass the pool's limit minus
/// the root's used bytes as `parent_available`, without any reservation.
#[must_use]
pub fn available_in_directory(parent_available: u64, limits: DirectoryLimits) -> u64 {
    let reserved_left = limits.reserved_bytes.saturating_sub(limits.used_bytes);
    let from_parent = parent_available.saturating_add(reserved_left);
    if limits.quota_bytes == 0 {
        return from_parent;
    }
    from_parent.min(limits.quota_bytes.saturating_sub(limits.used_bytes))
}

/// The limits of a head dataset in addition to those of its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeadLimits {
    /// Referenced bytes.
    pub referenced_bytes: u64,
    /// Bytes born since the last snapshot.
    pub unique_bytes: u64,
    /// Quota on referenced bytes; 0 for none.
    pub ref_quota_bytes: u64,
    /// Reservation for referenced bytes; 0 for none.
    pub ref_reserved_bytes: u64,
}

/// The space available in a head dataset (its `available` property), given that in its directory.
#[must_use]
pub fn available_in_head(directory_available: u64, limits: HeadLimits) -> u64 {
    let reserved_left = limits
        .ref_reserved_bytes
        .saturating_sub(limits.unique_bytes);
    let available = directory_available.saturating_add(reserved_left);
    if limits.ref_quota_bytes == 0 {
        return available;
    }
    available.min(
        limits
            .ref_quota_bytes
            .saturating_sub(limits.referenced_bytes),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vdev(class: AllocationClass, space_bytes: u64, deflate_ratio: u64) -> VdevUsage {
        VdevUsage {
            class,
            space_bytes,
            allocated_bytes: 0,
            deflate_ratio,
            embedded_log_bytes: 0,
            is_non_allocating: false,
        }
    }

    fn pool(space_bytes: u64, deflate_ratio: u64) -> PoolUsage {
        PoolUsage {
            vdevs: vec![vdev(AllocationClass::Normal, space_bytes, deflate_ratio)],
            ..PoolUsage::default()
        }
    }

    /// `available` of a root directory that uses `used` bytes.
    fn root_available(usage: &PoolUsage, used: u64) -> u64 {
        usage.limit(SlopShare::All).limit_bytes - used
    }

    #[test]
    fn root_available_matches_the_verified_pools() {
        let mut cloned = pool(83_886_080, 512);
        cloned.clone_saved_bytes = 606_208;
        assert_eq!(cloned.limit(SlopShare::All).slop_bytes, 41_943_040);
        assert_eq!(root_available(&cloned, 2_711_552), 39_837_696);
        let mut checkpointed = pool(83_886_080, 512);
        checkpointed.checkpoint_bytes = 2_306_048;
        assert_eq!(root_available(&checkpointed, 2_854_912), 36_782_080);
        let removed = pool(1_006_632_960, 512);
        assert_eq!(removed.limit(SlopShare::All).slop_bytes, 134_217_728);
        assert_eq!(root_available(&removed, 1_675_264), 870_739_968);
        assert_eq!(
            root_available(&pool(50_331_648, 512), 2_211_840),
            22_953_984
        );
        let raidz = pool(184_549_376, 341);
        assert_eq!(raidz.normal_deflated_bytes(), 122_912_768);
        assert_eq!(root_available(&raidz, 11_544_896), 49_911_488);
    }

    #[test]
    fn deflate_ratios_follow_the_block_of_128_kib() {
        assert_eq!(deflate_ratio(131_072), 512);
        // RAID-Z1 of 3, ashift 12: 32 data and 16 parity sectors.
        assert_eq!(deflate_ratio(48 << 12), 341);
        assert_eq!(deflate_ratio(0), 0);
    }

    #[test]
    fn the_pools_size_counts_special_and_dedup_but_no_logs() {
        let mut usage = pool(83_886_080, 512);
        usage
            .vdevs
            .push(vdev(AllocationClass::Special, 67_108_864, 512));
        usage
            .vdevs
            .push(vdev(AllocationClass::Dedup, 67_108_864, 512));
        usage
            .vdevs
            .push(vdev(AllocationClass::Log, 67_108_864, 512));
        usage.vdevs[1].allocated_bytes = 1 << 20;
        assert_eq!(usage.pool().space_bytes, 218_103_808);
        assert_eq!(usage.pool().free_bytes(), 218_103_808 - (1 << 20));
        assert_eq!(
            usage.class(AllocationClass::Special).allocated_bytes,
            1 << 20
        );
        let old = usage.limit(SlopShare::All);
        usage.counts_special_classes = true;
        let new = usage.limit(SlopShare::All);
        assert_eq!(new.usable_bytes - old.usable_bytes, 1 << 20);
        assert_eq!(new.slop_bytes, old.slop_bytes);
    }

    #[test]
    fn slop_space_is_clamped_and_yields_to_embedded_logs() {
        assert_eq!(slop_bytes(100 << 20, 0), 50 << 20);
        assert_eq!(slop_bytes(1 << 30, 0), 128 << 20);
        assert_eq!(slop_bytes(1 << 40, 0), 32 << 30);
        assert_eq!(slop_bytes(1 << 50, 0), 128 << 30);
        assert_eq!(slop_bytes(1 << 40, 4 << 30), 28 << 30);
        assert_eq!(slop_bytes(1 << 40, 64 << 30), 16 << 30);
        assert_eq!(slop_bytes(0, 0), 0);
    }

    #[test]
    fn parts_of_the_slop_are_open_to_some() {
        let usage = pool(1 << 40, 512);
        let limit = |share| usage.limit(share).limit_bytes;
        assert_eq!(limit(SlopShare::None) - limit(SlopShare::All), 32 << 30);
        assert_eq!(limit(SlopShare::None) - limit(SlopShare::Half), 16 << 30);
        assert_eq!(limit(SlopShare::None) - limit(SlopShare::Quarter), 8 << 30);
    }

    #[test]
    fn non_allocating_vdevs_and_embedded_logs_are_not_normal_space() {
        let mut usage = pool(1 << 30, 512);
        usage
            .vdevs
            .push(vdev(AllocationClass::Normal, 1 << 30, 512));
        usage.vdevs[0].is_non_allocating = true;
        usage.vdevs[1].embedded_log_bytes = 1 << 20;
        assert_eq!(usage.normal_deflated_bytes(), (1 << 30) - (1 << 20));
        assert_eq!(usage.embedded_log_deflated_bytes(), 1 << 20);
        assert_eq!(usage.pool().space_bytes, 2 << 30);
    }

    #[test]
    fn capacity_is_rounded_down() {
        let usage = ClassUsage {
            space_bytes: 1000,
            allocated_bytes: 999,
        };
        assert_eq!((usage.capacity_percent(), usage.free_bytes()), (99, 1));
        assert_eq!(ClassUsage::default().capacity_percent(), 0);
    }

    #[test]
    fn quotas_cut_and_reservations_add() {
        let limits = DirectoryLimits {
            used_bytes: 30,
            quota_bytes: 100,
            reserved_bytes: 50,
        };
        assert_eq!(available_in_directory(1000, limits), 70);
        assert_eq!(available_in_directory(10, limits), 30);
        assert_eq!(
            available_in_directory(
                10,
                DirectoryLimits {
                    used_bytes: 200,
                    ..limits
                }
            ),
            0
        );
        assert_eq!(available_in_directory(10, DirectoryLimits::default()), 10);
        let head = HeadLimits {
            referenced_bytes: 20,
            unique_bytes: 5,
            ref_quota_bytes: 50,
            ref_reserved_bytes: 15,
        };
        assert_eq!(available_in_head(100, head), 30);
        assert_eq!(available_in_head(3, head), 13);
        assert_eq!(available_in_head(3, HeadLimits::default()), 3);
    }

    #[test]
    fn a_pointer_charges_the_deflated_size_of_each_copy() {
        let mut pointer = BlockPointer::default();
        pointer.words[0] = 24;
        pointer.words[1] = 8;
        pointer.words[2] = 16 | 1 << 32;
        pointer.words[3] = 8;
        let ratio = |vdev: VdevId| Some(if vdev == VdevId(0) { 341 } else { 512 });
        assert_eq!(deflated_pointer_bytes(&pointer, ratio), 24 * 341 + 16 * 512);
        assert_eq!(deflated_pointer_bytes(&BlockPointer::default(), ratio), 0);
    }
}
