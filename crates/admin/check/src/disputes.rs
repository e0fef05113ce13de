//! Disputed claims: ranges that were free or already claimed. Finds their owners, and whether they are free
//! in the space maps.

use super::space::Space;
use millpond_alloc::{MetaslabSpace, UnflushedLogs, load_metaslab};
use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_ondisk::{Dva, VdevId};
use millpond_pool::{PoolSpaceMaps, PoolView};
use std::collections::BTreeMap;
use std::ops::Range;

/// A range whose claim was not granted because it was free or already claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Dispute {
    pub(super) vdev: VdevId,
    pub(super) range: Range<u64>,
}

/// An owner of a disputed range.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Holder {
    pub(super) dataset: String,
    pub(super) object: u64,
    pub(super) words: String,
}

/// Upper bound of the owners recorded per disputed range.
const HOLDERS_MAX: usize = 8;

/// Disputed ranges by vdev and start offset: the end offset, and the owners of overlapping blocks.
type Ranges = BTreeMap<(VdevId, u64), (u64, Vec<Holder>)>;

/// The disputed ranges for which a second pass finds owners.
pub(super) struct Watch {
    ranges: Mutex<Ranges, rank::CheckSums>,
    /// The length of the longest range in bytes. A range that overlaps a claim starts at most this far before
    /// it.
    longest_bytes: u64,
}

impl Watch {
    /// Of several disputes with the same start, only the longest is kept.
    pub(super) fn new(disputes: &[Dispute]) -> Self {
        let mut ranges = Ranges::new();
        let mut longest_bytes = 0;
        for Dispute { vdev, range } in disputes {
            let known = ranges.entry((*vdev, range.start)).or_insert((0, vec![]));
            known.0 = known.0.max(range.end);
            longest_bytes = longest_bytes.max(range.end.saturating_sub(range.start));
        }
        Self {
            ranges: Mutex::new(ranges),
            longest_bytes,
        }
    }

    /// Records the owner of an address if it overlaps a disputed range.
    pub(super) fn look(&self, dva: &Dva, holder: &dyn Fn() -> Holder) {
        let start = dva.offset_bytes;
        let end = start.saturating_add(dva.asize_bytes);
        let from = start.saturating_sub(self.longest_bytes);
        let mut ranges = self.ranges.lock();
        for (_, (to, holders)) in ranges.range_mut((dva.vdev, from)..(dva.vdev, end)) {
            if start < *to && holders.len() < HOLDERS_MAX {
                holders.push(holder());
            }
        }
    }

    /// The owners of a disputed range, sorted.
    pub(super) fn holders(&self, dispute: &Dispute) -> Vec<Holder> {
        let ranges = self.ranges.lock();
        let mut holders = ranges
            .get(&(dispute.vdev, dispute.range.start))
            .map_or(vec![], |(_, holders)| holders.clone());
        holders.sort();
        holders
    }
}

/// The free space according to the space maps. Queries must be sorted by position, because only one metaslab
/// is in memory at a time.
pub(super) struct FreeSpace<'p> {
    maps: PoolSpaceMaps<'p>,
    logs: UnflushedLogs,
    loaded: Option<MetaslabSpace>,
}

impl<'p> FreeSpace<'p> {
    /// Loads the maps. `None` if they cannot be read; then no space is known to be free.
    pub(super) fn load(pool: &'p PoolView) -> Option<Self> {
        let maps = PoolSpaceMaps::load(pool).ok()?;
        let topology = pool.store().topology();
        let exists = |id: VdevId| topology.tree.top(id).is_some();
        let logs = UnflushedLogs::load(&maps, &maps.geometries(), &exists).ok()?;
        Some(Self {
            maps,
            logs,
            loaded: None,
        })
    }

    /// Whether any part of a range is free.
    pub(super) fn has(&mut self, space: &Space, dispute: &Dispute) -> bool {
        let Some(metaslab) = space.metaslab_of(dispute) else {
            return false;
        };
        let is_loaded = |loaded: &MetaslabSpace| loaded.metaslab.id == metaslab.id;
        if !self.loaded.as_ref().is_some_and(is_loaded) {
            self.loaded = load_metaslab(&self.maps, metaslab, &self.logs).ok();
        }
        let loaded = self.loaded.as_ref();
        loaded.is_some_and(|loaded| loaded.free.overlaps(&dispute.range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dispute(range: Range<u64>) -> Dispute {
        let vdev = VdevId(1);
        Dispute { vdev, range }
    }

    #[test]
    fn claims_inside_disputed_ranges_are_noted() {
        let disputes = [
            dispute(0..4096),
            dispute(512..1024),
            dispute(512..2048),
            dispute(8192..8704),
        ];
        let watch = Watch::new(&disputes);
        let look = |vdev: u32, offset_bytes: u64, asize_bytes: u64, object: u64| {
            let dva = Dva {
                vdev: VdevId(vdev),
                offset_bytes,
                asize_bytes,
                is_gang: false,
            };
            watch.look(&dva, &|| Holder {
                dataset: String::new(),
                object,
                words: String::new(),
            });
        };
        look(1, 1024, 512, 7);
        look(1, 4096, 4096, 8);
        look(0, 512, 512, 9);
        look(1, 8703, 1, 10);
        let objects = |dispute: &Dispute| -> Vec<u64> {
            let holders = watch.holders(dispute);
            holders.iter().map(|holder| holder.object).collect()
        };
        assert_eq!(objects(&disputes[0]), [7]);
        assert_eq!(objects(&disputes[1]), [7]);
        assert_eq!(objects(&disputes[2]), [7]);
        assert_eq!(objects(&disputes[3]), [10]);
    }
}
