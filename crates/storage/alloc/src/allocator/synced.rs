//! Completes a txg once it is on stable storage.

use millpond_env::sync::Arc;
use millpond_env::sync::atomic::Ordering;
use millpond_ondisk::{Txg, VdevId};

use super::PoolAllocator;
use super::metaslab::MetaslabAllocator;
use crate::{AllocError, AllocationClass, SlopShare, deflated_bytes};

/// How many later txgs must be synced before freed space becomes allocatable.
pub(super) const DEFER_TXGS: u64 = 2;

impl PoolAllocator {
    /// The newest txg whose freed space may become allocatable when `txg` is on stable storage: `txg` itself
    /// if the pool [is short](Self::is_short), else the one two txgs before it.
    #[must_use]
    pub fn reusable_until(txg: Txg, is_short: bool) -> Txg {
        match is_short {
            true => txg,
            false => Txg(txg.0.saturating_sub(DEFER_TXGS)),
        }
    }

    /// Notes that `txg` is committed. Vdevs that it added are used from then on ([`VdevSpace::usable_from`]).
    ///
    /// [`VdevSpace::usable_from`]: crate::VdevSpace::usable_from
    pub fn note_committed(&self, txg: Txg) {
        self.committed.fetch_max(txg.0, Ordering::AcqRel);
    }

    /// Completes `txg`, once its uberblock is on stable storage (or if it had nothing to write).
    ///
    /// Space freed up to `until` ([`PoolAllocator::reusable_until`]) becomes allocatable, except blocks of the
    /// committed states of the txgs in `pinned`, ascending, which something still reads. No state before
    /// `until` may be pinned from now on. Unloads metaslabs if too many ranges are in memory.
    ///
    /// # Errors
    /// If freed space is already free: nothing more may be written to the pool.
    pub fn synced(&self, txg: Txg, until: Txg, pinned: &[Txg]) -> Result<(), AllocError> {
        self.set_pinned(pinned);
        let busy = core::mem::take(&mut self.registry.lock().busy);
        let mut held_ranges = 0usize;
        let notes_frees = self.notes_frees.load(Ordering::Relaxed);
        for id in busy {
            let Some((vdev, metaslab)) = self.metaslab(id) else {
                continue;
            };
            let released = metaslab.with(|state| state.release(txg, until, pinned, notes_frees))?;
            vdev.note_available(released.bytes);
            held_ranges = held_ranges.saturating_add(released.held_ranges);
            if !released.is_idle {
                self.registry.lock().busy.insert(id);
            }
        }
        self.held_ranges.store(held_ranges, Ordering::Relaxed);
        self.unload_idle();
        Ok(())
    }

    /// Makes space freed up to `until` allocatable while a later txg is written, except blocks of the committed
    /// states of the txgs in `pinned`, as [`PoolAllocator::synced`] does. `until` must be on stable storage.
    ///
    /// # Errors
    /// As [`PoolAllocator::synced`].
    pub fn release_freed(&self, until: Txg, pinned: &[Txg]) -> Result<(), AllocError> {
        self.set_pinned(pinned);
        // The list stays as it is: another thread may do the same, and must not return before all is done.
        let notes_frees = self.notes_frees.load(Ordering::Relaxed);
        let busy: Vec<_> = self.registry.lock().busy.iter().copied().collect();
        for id in busy {
            let Some((vdev, metaslab)) = self.metaslab(id) else {
                continue;
            };
            let released =
                metaslab.with(|state| state.release(until, until, pinned, notes_frees))?;
            vdev.note_available(released.bytes);
        }
        Ok(())
    }

    /// Whether the ranges that pinned states hold back take too much memory. The pins should end.
    #[must_use]
    pub fn holds_too_many_ranges(&self) -> bool {
        self.held_ranges.load(Ordering::Relaxed) > self.held_ranges_max
    }

    /// Tells which committed states are pinned, ascending: frees of younger blocks are not held back for them.
    ///
    /// An outdated list does no harm. A state that it lacks may hold back frees of blocks younger than itself
    /// while it is pinned. No list lets space be reused early: [`PoolAllocator::synced`] decides that, by the
    /// list passed to it.
    pub fn set_pinned(&self, pinned: &[Txg]) {
        *self.pinned.write() = pinned.into();
    }

    /// Whether the normal class has no more free space than the slop.
    #[must_use]
    pub fn is_short(&self) -> bool {
        let usage = self.usage();
        let free = usage
            .vdevs
            .iter()
            .filter(|vdev| vdev.class == AllocationClass::Normal && !vdev.is_non_allocating)
            .map(|vdev| {
                let free = vdev.space_bytes.saturating_sub(vdev.allocated_bytes);
                deflated_bytes(free, vdev.deflate_ratio)
            })
            .fold(0, u64::saturating_add);
        free <= usage.limit(SlopShare::All).slop_bytes
    }

    /// Unloads the least recently used metaslabs while too many ranges are in memory, except those that
    /// lanes are filling.
    fn unload_idle(&self) {
        let mut loaded = 0usize;
        let mut idle: Vec<(Txg, usize, Arc<MetaslabAllocator>)> = Vec::new();
        for vdev in self.vdevs().values() {
            let active = vdev.active();
            for metaslab in vdev.metaslabs.iter().filter(|one| one.is_loaded()) {
                let (ranges, can_unload, last_used) = metaslab
                    .with(|state| (state.loaded_ranges(), state.can_unload(), state.last_used));
                loaded = loaded.saturating_add(ranges);
                if can_unload && !active.contains(&metaslab.place.id.index) {
                    idle.push((last_used, ranges, metaslab.clone()));
                }
            }
        }
        if loaded <= self.loaded_ranges_max {
            return;
        }
        idle.sort_by_key(|(last_used, _, metaslab)| (*last_used, metaslab.place.id));
        for (_, ranges, metaslab) in idle {
            if loaded <= self.loaded_ranges_max {
                break;
            }
            metaslab.with(|state| state.unload());
            loaded = loaded.saturating_sub(ranges);
        }
    }

    /// Forgets a removed vdev on which nothing is allocated. Its log entries are skipped from now on; the
    /// caller has to free its maps, metaslab array and unflushed txgs.
    pub fn remove_vdev(&self, vdev: VdevId) {
        Arc::make_mut(&mut self.vdevs.write()).remove(&vdev);
        self.writing.lock().forget(|metaslab| metaslab.vdev == vdev);
        let mut registry = self.registry.lock();
        registry.changed.retain(|metaslab| metaslab.vdev != vdev);
        registry.busy.retain(|metaslab| metaslab.vdev != vdev);
    }

    /// A vdev's allocated bytes, deferred frees included; `None` if there is no such vdev.
    #[must_use]
    pub fn allocated_bytes(&self, vdev: VdevId) -> Option<u64> {
        Some(self.vdevs().get(&vdev)?.allocated_bytes())
    }
}
