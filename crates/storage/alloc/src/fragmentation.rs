//! Fragmentation of free space, as in the `fragmentation` property.

use millpond_ondisk::Ashift;
use millpond_ondisk::space_map::SpaceHistogram;

/// Percent for free segments of 512 bytes, 1 KiB, and so on, up to 512 MiB and more.
const PERCENT_BY_SIZE: [u8; 21] = [
    100, 99, 97, 93, 88, 83, 77, 71, 64, 57, 50, 43, 36, 29, 23, 17, 12, 7, 3, 1, 0,
];

/// The contribution of one metaslab to its vdev's fragmentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaslabFragmentation {
    /// Percent, or `None` if its map has no histogram.
    pub percent: Option<u8>,
    /// Free bytes of the metaslab.
    pub free_bytes: u64,
}

/// The fragmentation of a metaslab in percent. `histogram` counts its free segments in units of the vdev's
/// ashift. 0 without free segments. Page `docs/format/space-accounting.md`.
#[must_use]
pub fn metaslab_fragmentation(histogram: &SpaceHistogram, ashift: Ashift) -> u8 {
    let mut weighted = 0u128;
    let mut total = 0u128;
    for (bucket, count) in histogram.buckets.iter().enumerate() {
        // Less than 2^64 * 2^(31 + 63), which fits into 128 bits except for counts that no metaslab has;
        // those saturate.
        let shift = bucket.saturating_add(usize::from(ashift.0));
        let bytes = u32::try_from(shift)
            .ok()
            .and_then(|shift| 1u128.checked_shl(shift))
            .unwrap_or(0)
            .saturating_mul(u128::from(*count));
        let step = shift
            .saturating_sub(9)
            .min(PERCENT_BY_SIZE.len().saturating_sub(1));
        let percent = PERCENT_BY_SIZE.get(step).copied().unwrap_or(0);
        total = total.saturating_add(bytes);
        weighted = weighted.saturating_add(bytes.saturating_mul(u128::from(percent)));
    }
    percent(weighted, total).unwrap_or(0)
}

/// The fragmentation of a vdev in percent, from its metaslabs without the one reserved for the intent log.
/// `None` ("-") if fewer than half of them have a histogram or nothing is free.
#[must_use]
pub fn vdev_fragmentation(metaslabs: &[MetaslabFragmentation]) -> Option<u8> {
    let known = metaslabs
        .iter()
        .filter(|metaslab| metaslab.percent.is_some())
        .count();
    if known.saturating_mul(2) < metaslabs.len() {
        return None;
    }
    let mut weighted = 0u128;
    let mut total = 0u128;
    for metaslab in metaslabs {
        if let Some(percent) = metaslab.percent {
            let free = u128::from(metaslab.free_bytes >> 9);
            total = total.saturating_add(free);
            weighted = weighted.saturating_add(free.saturating_mul(u128::from(percent)));
        }
    }
    percent(weighted, total)
}

/// The fragmentation of a pool in percent, from the (percent, raw space in bytes) of its normal vdevs.
/// `None` if one of them has none or there is no space.
#[must_use]
pub fn pool_fragmentation(normal_vdevs: &[(Option<u8>, u64)]) -> Option<u8> {
    let mut weighted = 0u128;
    let mut total = 0u128;
    for (percent, space_bytes) in normal_vdevs {
        let space = u128::from(*space_bytes);
        total = total.saturating_add(space);
        weighted = weighted.saturating_add(space.saturating_mul(u128::from((*percent)?)));
    }
    percent(weighted, total)
}

fn percent(weighted: u128, total: u128) -> Option<u8> {
    u8::try_from(weighted.checked_div(total)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_histogram_of_a_real_metaslab_gives_its_fragmentation() {
        let mut histogram = SpaceHistogram::default();
        histogram.buckets[..12].copy_from_slice(&[0x12, 8, 2, 5, 0xb, 2, 0, 0, 0, 0, 0, 1]);
        assert_eq!(metaslab_fragmentation(&histogram, Ashift(12)), 29);
    }

    #[test]
    fn small_segments_are_bad_and_large_ones_good() {
        let of = |bucket: usize, ashift| {
            let mut histogram = SpaceHistogram::default();
            histogram.buckets[bucket] = 3;
            metaslab_fragmentation(&histogram, Ashift(ashift))
        };
        assert_eq!(
            (of(0, 9), of(0, 12), of(20, 9), of(31, 16)),
            (100, 93, 0, 0)
        );
        assert_eq!(
            metaslab_fragmentation(&SpaceHistogram::default(), Ashift(12)),
            0
        );
        let absurd = SpaceHistogram {
            buckets: [u64::MAX; 32],
        };
        assert!(metaslab_fragmentation(&absurd, Ashift(255)) <= 100);
    }

    #[test]
    fn vdev_fragmentation_is_weighted_by_free_space() {
        let metaslab = |percent, free_bytes| MetaslabFragmentation {
            percent,
            free_bytes,
        };
        assert_eq!(
            vdev_fragmentation(&[metaslab(Some(10), 3 << 20), metaslab(Some(50), 1 << 20)]),
            Some(20)
        );
        // Half of them having a histogram is enough; fewer are not.
        assert_eq!(
            vdev_fragmentation(&[metaslab(Some(10), 512), metaslab(None, 512)]),
            Some(10)
        );
        assert_eq!(
            vdev_fragmentation(&[
                metaslab(Some(10), 512),
                metaslab(None, 1),
                metaslab(None, 1)
            ]),
            None
        );
        assert_eq!(vdev_fragmentation(&[metaslab(Some(0), 0)]), None);
        assert_eq!(vdev_fragmentation(&[]), None);
    }

    #[test]
    fn pool_fragmentation_is_weighted_by_space() {
        assert_eq!(
            pool_fragmentation(&[(Some(19), 100), (Some(7), 100), (Some(1), 100)]),
            Some(9)
        );
        assert_eq!(pool_fragmentation(&[(Some(19), 100), (None, 100)]), None);
        assert_eq!(pool_fragmentation(&[]), None);
    }
}
