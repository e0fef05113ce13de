//! One top-level vdev: chooses a metaslab for each allocation.

use millpond_env::sync::Arc;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_ondisk::{Dva, Txg, VdevId};

use super::metaslab::MetaslabAllocator;
use super::request::{VdevSpace, range_of};
use crate::{AllocError, MetaslabId, SpaceMapStore};

/// How many metaslabs of a vdev are filled in parallel.
pub(super) const LANES: usize = 4;
/// Once the largest piece of a metaslab has shrunk by this many powers of two, the metaslab is compared
/// with others again, even if it still has space.
const MAGNITUDES_USED_UP: u32 = 4;
const NOBODY: u64 = u64::MAX;
/// How many further copies of a block a vdev may hold.
const FURTHER_COPIES: usize = 2;
/// How many metaslabs of a vdev are being filled at most.
pub(super) const ACTIVE_MAX: usize = LANES + FURTHER_COPIES;

/// A subset of a vdev's metaslabs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// All except the one reserved for the intent log.
    Ordinary,
    /// The one reserved for the intent log.
    EmbeddedLog,
}

/// A lane, or the further copies of all lanes, and the metaslab that it currently fills.
#[derive(Debug)]
struct Lane {
    active: AtomicU64,
    /// log2 of the metaslab's largest piece when it was chosen.
    magnitude: AtomicU64,
}

impl Lane {
    const fn new() -> Self {
        Self {
            active: AtomicU64::new(NOBODY),
            magnitude: AtomicU64::new(0),
        }
    }
}

/// A top-level vdev.
#[derive(Debug)]
pub(super) struct VdevAllocator {
    pub(super) space: VdevSpace,
    pub(super) metaslabs: Vec<Arc<MetaslabAllocator>>,
    pub(super) embedded_log: Option<usize>,
    space_bytes: u64,
    /// Allocated or deferred bytes; shared with the value that replaces this one when settings change.
    pub(super) allocated: Arc<AtomicU64>,
    lanes: Arc<[Lane; LANES]>,
    /// For the second copies of blocks on this vdev, and for the third.
    further: Arc<[Lane; FURTHER_COPIES]>,
}

impl VdevAllocator {
    pub(super) fn new(
        space: VdevSpace,
        metaslabs: Vec<Arc<MetaslabAllocator>>,
        embedded_log: Option<usize>,
    ) -> Self {
        let allocated = metaslabs
            .iter()
            .map(|metaslab| metaslab.with(|state| state.allocated_bytes()))
            .fold(0, u64::saturating_add);
        Self {
            space,
            embedded_log,
            space_bytes: metaslabs
                .iter()
                .map(|metaslab| metaslab.place.size_bytes())
                .fold(0, u64::saturating_add),
            allocated: Arc::new(AtomicU64::new(allocated)),
            lanes: Arc::new([const { Lane::new() }; LANES]),
            further: Arc::new([const { Lane::new() }; FURTHER_COPIES]),
            metaslabs,
        }
    }
    /// The same vdev with other settings.
    pub(super) fn with_space(&self, space: VdevSpace) -> Self {
        Self {
            space,
            metaslabs: self.metaslabs.clone(),
            embedded_log: self.embedded_log,
            space_bytes: self.space_bytes,
            allocated: self.allocated.clone(),
            lanes: self.lanes.clone(),
            further: self.further.clone(),
        }
    }
    /// The same vdev with more metaslabs: those of `all` that it lacks.
    pub(super) fn grown(&self, space: VdevSpace, all: Vec<Arc<MetaslabAllocator>>) -> Self {
        let mut vdev = self.with_space(space);
        let before = vdev.metaslabs.len();
        vdev.metaslabs.extend(all.into_iter().skip(before));
        let sizes = vdev.metaslabs.iter();
        vdev.space_bytes = sizes
            .map(|metaslab| metaslab.place.size_bytes())
            .fold(0, u64::saturating_add);
        vdev
    }
    pub(super) fn id(&self) -> VdevId {
        self.space.vdev()
    }
    pub(super) fn metaslab(&self, index: u64) -> Option<&Arc<MetaslabAllocator>> {
        self.metaslabs.get(usize::try_from(index).ok()?)
    }
    /// The metaslab that contains all of an address.
    pub(super) fn holder_of(&self, dva: &Dva) -> Option<&Arc<MetaslabAllocator>> {
        let range = range_of(&self.space, dva)?;
        let metaslab = self.space.geometry.metaslab_of(&range)?;
        self.metaslab(metaslab.id.index)
    }
    pub(super) fn space_bytes(&self) -> u64 {
        self.space_bytes
    }
    pub(super) fn allocated_bytes(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }
    pub(super) fn note_allocated(&self, bytes: u64) {
        self.allocated.fetch_add(bytes, Ordering::Relaxed);
    }
    pub(super) fn note_available(&self, bytes: u64) {
        self.allocated.fetch_sub(bytes, Ordering::Relaxed);
    }
    /// Whether the vdev may hold a block of `txg`, if the last committed txg is `committed`.
    pub(super) fn is_usable(&self, txg: Txg, committed: Txg) -> bool {
        let from = self.space.usable_from;
        let is_known = from.0.saturating_sub(1) <= committed.0;
        self.space.is_allocating && from <= txg && is_known && !self.metaslabs.is_empty()
    }
    /// The metaslabs that are being filled.
    pub(super) fn active(&self) -> [u64; ACTIVE_MAX] {
        let mut active = [NOBODY; ACTIVE_MAX];
        let lanes = self.lanes.iter().chain(self.further.iter());
        for (slot, lane) in active.iter_mut().zip(lanes) {
            *slot = lane.active.load(Ordering::Relaxed);
        }
        active
    }
    /// An upper bound of the largest free piece in the metaslabs of `part`.
    pub(super) fn largest_bytes(&self, part: Part) -> u64 {
        self.of(part)
            .map(|(_, metaslab)| metaslab.largest_bytes())
            .max()
            .unwrap_or(0)
    }
    fn of(&self, part: Part) -> impl Iterator<Item = (usize, &Arc<MetaslabAllocator>)> {
        let embedded_log = self.embedded_log;
        self.metaslabs
            .iter()
            .enumerate()
            .filter(move |(index, _)| match part {
                Part::Ordinary => embedded_log != Some(*index),
                Part::EmbeddedLog => embedded_log == Some(*index),
            })
    }

    /// Allocates `asize_bytes` in a metaslab that is not in `avoid`. Loads metaslabs as needed; skips those
    /// that cannot be loaded. Returns the metaslab and the offset.
    pub(super) fn allocate(
        &self,
        want: &Want<'_>,
        asize_bytes: u64,
        avoid: &[MetaslabId],
    ) -> Option<(&MetaslabAllocator, u64)> {
        let lane = match avoid.len().checked_sub(1) {
            None => self.lanes.get(want.lane.checked_rem(LANES)?)?,
            Some(copy) => self.further.get(copy.min(FURTHER_COPIES - 1))?,
        };
        let fits = |metaslab: &Arc<MetaslabAllocator>| {
            metaslab.largest_bytes() >= asize_bytes && !avoid.contains(&metaslab.place.id)
        };
        if want.part == Part::Ordinary {
            let active = self.metaslab(lane.active.load(Ordering::Relaxed));
            if let Some(metaslab) = active.filter(|metaslab| fits(metaslab)) {
                let magnitude = magnitude(metaslab.largest_bytes());
                let used_up = u64::from(magnitude.saturating_add(MAGNITUDES_USED_UP));
                if used_up > lane.magnitude.load(Ordering::Relaxed)
                    && let Some(offset) = self.allocate_in(metaslab, want, asize_bytes)
                {
                    return Some((metaslab, offset));
                }
            }
        }
        // Prefer the largest piece (rounded to a power of two), then a metaslab that no other lane fills,
        // then one that is loaded, then the lowest index.
        let others = self.active();
        let own = lane.active.load(Ordering::Relaxed);
        let rank = |(index, metaslab): &(usize, &Arc<MetaslabAllocator>)| {
            let number = metaslab.place.id.index;
            let is_taken = number != own && others.contains(&number);
            (
                u32::MAX.saturating_sub(magnitude(metaslab.largest_bytes())),
                is_taken,
                !metaslab.is_loaded(),
                *index,
            )
        };
        let fitting = || self.of(want.part).filter(|(_, metaslab)| fits(metaslab));
        let take = |metaslab| {
            let offset = self.allocate_in(metaslab, want, asize_bytes)?;
            if want.part == Part::Ordinary {
                let left = magnitude(metaslab.largest_bytes());
                lane.magnitude.store(u64::from(left), Ordering::Relaxed);
                lane.active
                    .store(metaslab.place.id.index, Ordering::Relaxed);
            }
            Some((metaslab.as_ref(), offset))
        };
        // Almost always the first choice has the space. With thousands of metaslabs, sorting them costs more than writing the
        // block.
        let (first, metaslab) = fitting().min_by_key(&rank)?;
        if let Some(found) = take(metaslab) {
            return Some(found);
        }
        let mut rest: Vec<_> = fitting()
            .filter(|(index, _)| *index != first)
            .map(|candidate| (rank(&candidate), candidate.1))
            .collect();
        rest.sort_unstable_by_key(|(rank, _)| *rank);
        rest.into_iter().find_map(|(_, metaslab)| take(metaslab))
    }
    fn allocate_in(
        &self,
        metaslab: &Arc<MetaslabAllocator>,
        want: &Want<'_>,
        asize_bytes: u64,
    ) -> Option<u64> {
        if let Err(error) = metaslab.load(want.store) {
            (want.report)(error);
            return None;
        }
        if metaslab.largest_bytes() < asize_bytes {
            return None;
        }
        let offset = metaslab.with(|state| state.allocate(want.txg, asize_bytes))?;
        self.note_allocated(asize_bytes);
        Some(offset)
    }
}

/// The constant parameters of one allocation.
pub(super) struct Want<'a> {
    pub(super) txg: Txg,
    pub(super) lane: usize,
    pub(super) part: Part,
    pub(super) store: &'a dyn SpaceMapStore,
    /// Receives the error of a metaslab that could not be loaded.
    pub(super) report: &'a dyn Fn(AllocError),
}

fn magnitude(bytes: u64) -> u32 {
    bytes.checked_ilog2().unwrap_or(0)
}
