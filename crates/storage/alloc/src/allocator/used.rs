//! Lists the space that may hold blocks.

use core::ops::Range;
use millpond_env::sync::Arc;
use millpond_ondisk::{Txg, VdevId};

use super::PoolAllocator;
use super::metaslab::MetaslabAllocator;
use crate::{AllocError, StoreError};

/// The most ranges that are listed at once.
const RANGES_MAX: usize = 1024;
/// How often a metaslab is loaded that another thread's need for memory unloads again.
const LOADS_MAX: usize = 3;

/// Space of one metaslab that may hold blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedSpace {
    /// Ranges on the top-level vdev in bytes, ascending.
    pub ranges: Vec<Range<u64>>,
    /// Up to here nothing else may hold blocks.
    pub next_bytes: u64,
}

/// Collects ranges up to a number of bytes.
pub(super) struct Collector {
    found: Vec<Range<u64>>,
    left_bytes: u64,
    at: u64,
}

impl Collector {
    fn new(from: u64, bytes_max: u64) -> Self {
        Self {
            found: vec![],
            left_bytes: bytes_max.max(1),
            at: from,
        }
    }
    pub(super) fn at(&self) -> u64 {
        self.at
    }
    pub(super) fn is_full(&self) -> bool {
        self.left_bytes == 0 || self.found.len() >= RANGES_MAX
    }
    /// Passes free space.
    pub(super) fn skip_to(&mut self, at: u64) {
        if !self.is_full() {
            self.at = self.at.max(at);
        }
    }
    /// Takes the space up to an offset, as much as there is room for.
    pub(super) fn take_to(&mut self, end: u64) {
        let end = end.min(self.at.saturating_add(self.left_bytes));
        if self.is_full() || end <= self.at {
            return;
        }
        self.left_bytes = self.left_bytes.saturating_sub(end.saturating_sub(self.at));
        match self.found.last_mut() {
            Some(last) if last.end == self.at => last.end = end,
            _ => self.found.push(self.at..end),
        }
        self.at = end;
    }
}

impl PoolAllocator {
    /// Lists space of a vdev that may hold blocks of the present state, of older ones that may still be read, or of open
    /// txgs: all that cannot be allocated now. It is that of one metaslab, from an offset on, at most as many bytes as given.
    /// `None` if there are no more metaslabs.
    ///
    /// All space of a metaslab that cannot be loaded is listed; the error is reported.
    #[must_use]
    pub fn used_space(&self, vdev: VdevId, from_bytes: u64, bytes_max: u64) -> Option<UsedSpace> {
        let vdevs = self.vdevs();
        let mut metaslabs = vdevs.get(&vdev)?.metaslabs.iter();
        let metaslab = metaslabs.find(|metaslab| metaslab.place.range.end > from_bytes)?;
        let from = from_bytes.max(metaslab.place.range.start);
        let mut collector = Collector::new(from, bytes_max);
        if !self.collect_used(metaslab, &mut collector) {
            collector.take_to(metaslab.place.range.end);
        }
        Some(UsedSpace {
            ranges: collector.found,
            next_bytes: collector.at,
        })
    }

    /// Lists space of a vdev that blocks own as of `txg`, which is being synced, with all that was freed in it so far. It is
    /// that of one metaslab, from an offset on, at most as many bytes as given. `None` if there are no more metaslabs.
    ///
    /// # Errors
    /// If the metaslab cannot be loaded.
    pub fn owned_space(
        &self,
        vdev: VdevId,
        txg: Txg,
        from_bytes: u64,
        bytes_max: u64,
    ) -> Result<Option<UsedSpace>, AllocError> {
        let vdevs = self.vdevs();
        let Some(vdev) = vdevs.get(&vdev) else {
            return Ok(None);
        };
        let mut metaslabs = vdev.metaslabs.iter();
        let metaslab = metaslabs.find(|metaslab| metaslab.place.range.end > from_bytes);
        let Some(metaslab) = metaslab else {
            return Ok(None);
        };
        let from = from_bytes.max(metaslab.place.range.start);
        for _ in 0..LOADS_MAX {
            metaslab.load(&*self.store)?;
            let mut collector = Collector::new(from, bytes_max);
            if metaslab.with(|state| state.collect_owned(txg, &mut collector))? {
                return Ok(Some(UsedSpace {
                    ranges: collector.found,
                    next_bytes: collector.at,
                }));
            }
        }
        let metaslab = metaslab.place.id;
        let reason = "it is unloaded again and again";
        let source = StoreError::Unreadable(reason.to_owned());
        Err(AllocError::Store { metaslab, source })
    }

    /// The bytes of a vdev that blocks own as of `txg`; `None` if there is no such vdev.
    #[must_use]
    pub fn owned_bytes(&self, vdev: VdevId, txg: Txg) -> Option<u64> {
        let vdevs = self.vdevs();
        let metaslabs = vdevs.get(&vdev)?.metaslabs.iter();
        let bytes = metaslabs.map(|metaslab| metaslab.with(|state| state.owned_bytes(txg)));
        Some(bytes.fold(0, u64::saturating_add))
    }

    /// How many pieces of space blocks own on a vdev, about: pieces that touch count as one. Loads its metaslabs.
    ///
    /// # Errors
    /// If a metaslab cannot be loaded.
    pub fn owned_pieces(&self, vdev: VdevId) -> Result<u64, AllocError> {
        let (mut at, mut pieces) = (0, 0u64);
        while let Some(owned) = self.owned_space(vdev, Txg(u64::MAX), at, u64::MAX)? {
            pieces = pieces.saturating_add(owned.ranges.len() as u64);
            at = owned.next_bytes;
        }
        Ok(pieces)
    }

    /// Returns whether the metaslab could be loaded.
    fn collect_used(&self, metaslab: &Arc<MetaslabAllocator>, collector: &mut Collector) -> bool {
        for _ in 0..LOADS_MAX {
            if let Err(error) = metaslab.load(&*self.store) {
                self.report(error);
                return false;
            }
            if metaslab.with(|state| state.collect_used(collector)) {
                return true;
            }
        }
        false
    }
}
