//! The allocator of a writable pool. Page `docs/allocator.md`.

mod condense;
mod fit;
mod hold;
mod logs;
mod metaslab;
mod opening;
mod port;
mod report;
mod request;
mod rotor;
mod state;
mod sync;
mod synced;
mod used;
mod vdev;

#[cfg(test)]
mod tests;

pub use hold::{HeldSpace, Hold, HoldLimits};
pub use opening::{OpenedLog, OpenedMetaslab, OpenedVdev};
pub use port::{LogPolicy, MapName, MapShape, SpaceMapForms, SpaceMapWriter};
pub use request::{AllocRequest, BlockSizes, NoSpace, Placement, VdevSpace};
pub use used::UsedSpace;

use core::ops::Range;
use core::time::Duration;
use millpond_env::mark;
use millpond_env::rank;
use std::collections::{BTreeMap, BTreeSet};

use millpond_env::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use millpond_env::sync::{Arc, Mutex, RwLock};
use millpond_ondisk::{Dva, Txg, VdevId};

use self::metaslab::MetaslabAllocator;
use self::rotor::{Candidate, Rotor};
use self::state::Deferral;
use self::sync::Writing;
use self::vdev::{LANES, Part, VdevAllocator, Want};
use crate::{AllocError, AllocationClass, MetaslabId, SpaceMapStore, VdevGeometry};

/// The most metaslab load errors to keep.
const FAULTS_MAX: usize = 64;
/// How long an allocation waits for one hold to end, as long as others wait for a device that does not answer.
const HELD_PATIENCE: Duration = Duration::from_secs(30);

/// The allocator of a pool: tracks the free space of its vdevs, allocates and frees space in each txg, and
/// writes the changes to space maps.
///
/// Shared by all threads. Does no device I/O itself: it loads metaslabs through [`SpaceMapStore`] and
/// writes them through [`SpaceMapWriter`]. Locks are internal and never held while a caller's code runs,
/// except those of a metaslab's map and of [`PoolAllocator::sync_pass`]; allocations elsewhere never wait
/// for these. The same sequence of calls always has the same results.
///
/// In each txg, [`allocate`](Self::allocate) and [`free`](Self::free) come first. Then each sync pass calls
/// [`sync_pass`](Self::sync_pass), until there is nothing left to write. Then the uberblock is written, and
/// [`synced`](Self::synced) is called.
pub struct PoolAllocator {
    /// Replaced as a whole when a vdev is added, removed or changed.
    vdevs: RwLock<Arc<BTreeMap<VdevId, Arc<VdevAllocator>>>, rank::Leaf>,
    store: Arc<dyn SpaceMapStore + Send + Sync>,
    /// One for each lane, so that lanes do not contend.
    rotors: [Mutex<BTreeMap<Pool, Rotor>, rank::Leaf>; LANES],
    registry: Mutex<Registry, rank::MetaslabList>,
    /// State of the sync thread.
    writing: Mutex<Writing, rank::AllocatorSync>,
    faults: Mutex<Vec<AllocError>, rank::Leaf>,
    /// The last txg that is known to be committed.
    committed: AtomicU64,
    /// The txgs of pinned committed states, ascending.
    pinned: RwLock<Arc<[Txg]>, rank::Leaf>,
    loaded_ranges_max: usize,
    /// The ranges that pinned states held back after the last txg.
    held_ranges: AtomicUsize,
    held_ranges_max: usize,
    holds: Arc<hold::Holds>,
    /// Whether [`PoolAllocator::hold_freed`] will ask for what is freed.
    notes_frees: AtomicBool,
    /// How long an allocation waits for one hold to end.
    held_patience: Duration,
    /// Blocks from this size on get no contiguous space; `u64::MAX` for none.
    gangs_from_bytes: AtomicU64,
}

/// A set of vdevs, or of reserved metaslabs, that serve the same allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Pool {
    Class(AllocationClass),
    EmbeddedLog,
}

/// Metaslabs that need processing.
#[derive(Debug, Default)]
struct Registry {
    /// Metaslabs with changes that are in no map yet.
    changed: BTreeSet<MetaslabId>,
    /// Metaslabs with deferred frees or recent allocations; updated when changes are processed.
    busy: BTreeSet<MetaslabId>,
}

impl core::fmt::Debug for PoolAllocator {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PoolAllocator")
            .field("vdevs", &self.vdevs().len())
            .finish_non_exhaustive()
    }
}

impl PoolAllocator {
    /// Allocates space for every copy of a block: on different vdevs, else in different metaslabs, else
    /// anywhere. Copies never overlap. The addresses are not marked as those of gang blocks.
    ///
    /// May read space maps. Without space it waits for what is held ([`PoolAllocator::hold_free`]), and for nothing else:
    /// for one request of the holder, and at most 30 s if its device does not answer.
    ///
    /// # Errors
    /// If one of the copies finds no contiguous space. Nothing is allocated then.
    pub fn allocate(&self, txg: Txg, request: &AllocRequest<'_>) -> Result<Vec<Dva>, NoSpace> {
        let gangs_from_bytes = self.gangs_from_bytes.load(Ordering::Relaxed);
        if request.psize_bytes >= gangs_from_bytes && request.placement != Placement::Log {
            return Err(NoSpace {
                psize_bytes: request.psize_bytes,
                largest_free_bytes: gangs_from_bytes,
            });
        }
        let mark = self.holds.mark();
        self.try_allocate(txg, request).or_else(|refusal| {
            let again = || self.try_allocate(txg, request);
            let found = self.holds.wait(mark, self.held_patience, again);
            found.unwrap_or(Err(refusal))
        })
    }

    fn try_allocate(&self, txg: Txg, request: &AllocRequest<'_>) -> Result<Vec<Dva>, NoSpace> {
        let vdevs = self.vdevs();
        let pools = fallbacks(&vdevs, request.placement);
        for (place, pool) in pools.iter().enumerate() {
            if let Some(found) = self.allocate_from(&vdevs, *pool, txg, request) {
                if place > 0 {
                    mark::hit("another-class-allocates");
                }
                return Ok(found);
            }
        }
        let largest_free_bytes = pools
            .iter()
            .flat_map(|pool| self.members(&vdevs, *pool, txg).map(|vdev| (*pool, vdev)))
            .map(|(pool, vdev)| vdev.largest_bytes(pool.part()))
            .max();
        Err(NoSpace {
            psize_bytes: request.psize_bytes,
            largest_free_bytes: largest_free_bytes.unwrap_or(0),
        })
    }

    /// For tests: blocks of at least `bytes`, apart from those of logs, get no contiguous space from now on,
    /// so that they become gang blocks. Pieces as small as two sectors must stay possible.
    pub fn force_gangs(&self, bytes: u64) {
        self.gangs_from_bytes.store(bytes, Ordering::Relaxed);
    }

    fn allocate_from(
        &self,
        vdevs: &BTreeMap<VdevId, Arc<VdevAllocator>>,
        pool: Pool,
        txg: Txg,
        request: &AllocRequest<'_>,
    ) -> Option<Vec<Dva>> {
        let candidates: Vec<Candidate> = self
            .members(vdevs, pool, txg)
            .map(|vdev| Candidate {
                vdev: vdev.id(),
                free_bytes: vdev.space_bytes().saturating_sub(vdev.allocated_bytes()),
                data_disks: vdev.space.data_disks,
            })
            .collect();
        if candidates.is_empty() {
            return None;
        }
        let lane = request.lane.checked_rem(LANES).unwrap_or(0);
        let rotors = self.rotors.get(lane)?;
        let want = Want {
            txg,
            lane,
            part: pool.part(),
            store: &*self.store,
            report: &|error| self.report(error),
        };
        let mut found: Vec<Dva> = Vec::new();
        for _ in 0..request.copies.max(1) {
            let order = rotors.lock().entry(pool).or_default().order(&candidates);
            let taken: Vec<Dva> = found.iter().chain(request.avoid).copied().collect();
            let place = self.place(vdevs, &want, request.psize_bytes, &order, &taken);
            let Some((dva, passed)) = place else {
                if !found.is_empty() {
                    mark::hit("no-room-for-second-copy");
                }
                for dva in found {
                    // Cannot fail: it was just allocated.
                    let _ = self.free(txg, &dva, txg, true);
                }
                return None;
            };
            let mut rotors = rotors.lock();
            let rotor = rotors.entry(pool).or_default();
            for vdev in passed {
                rotor.pass(vdev);
            }
            rotor.charge(dva.vdev, dva.asize_bytes);
            found.push(dva);
        }
        Some(found)
    }

    /// Allocates space for one copy, as far from `taken` as possible. Returns its address, and the vdevs
    /// that had no space.
    fn place(
        &self,
        vdevs: &BTreeMap<VdevId, Arc<VdevAllocator>>,
        want: &Want<'_>,
        psize_bytes: u64,
        order: &[VdevId],
        taken: &[Dva],
    ) -> Option<(Dva, Vec<VdevId>)> {
        let metaslabs: Vec<MetaslabId> = taken
            .iter()
            .filter_map(|dva| Some(vdevs.get(&dva.vdev)?.holder_of(dva)?.place.id))
            .collect();
        let is_used = |vdev: &VdevId| taken.iter().any(|dva| dva.vdev == *vdev);
        let elsewhere = order.iter().filter(|vdev| !is_used(vdev));
        let same_vdev = order.iter().filter(|vdev| is_used(vdev));
        let mut passed = Vec::new();
        let tries = elsewhere
            .map(|vdev| (vdev, &[][..]))
            .chain(same_vdev.clone().map(|vdev| (vdev, metaslabs.as_slice())))
            .chain(same_vdev.map(|vdev| (vdev, &[][..])));
        for (id, avoid) in tries {
            let Some(vdev) = vdevs.get(id) else {
                continue;
            };
            let Some(asize_bytes) = vdev.space.sizes.asize(*id, psize_bytes, want.txg) else {
                continue;
            };
            let Some((metaslab, offset_bytes)) = vdev.allocate(want, asize_bytes, avoid) else {
                passed.push(*id);
                continue;
            };
            self.note_change(metaslab);
            let dva = Dva {
                vdev: *id,
                offset_bytes,
                asize_bytes,
                is_gang: false,
            };
            return Some((dva, passed));
        }
        None
    }

    /// Frees an address in `txg`, which is being synced. For a gang block this frees only the header; its
    /// children are freed separately. `birth` is the txg in which the block was written.
    ///
    /// The range becomes allocatable once two more txgs are synced and no pinned state contains it. It becomes
    /// allocatable at once if `is_unreferenced` is set and it was allocated in `txg` itself. Set
    /// `is_unreferenced` only for blocks that nothing on disk points to, so never for intent log blocks.
    ///
    /// # Errors
    /// If no concrete vdev contains it (removed vdevs are handled by the caller), or part of it is already
    /// free. In the second case two blocks claimed to own it, and nothing more may be written to the pool.
    pub fn free(
        &self,
        txg: Txg,
        dva: &Dva,
        birth: Txg,
        is_unreferenced: bool,
    ) -> Result<(), AllocError> {
        let vdevs = self.vdevs();
        let (vdev, metaslab, range) = find(&vdevs, dva)?;
        let pinned = Arc::clone(&self.pinned.read());
        let older = pinned.iter().rev().find(|pin| **pin < birth);
        let deferral = Deferral {
            freed: txg,
            absent_until: older.copied().unwrap_or(Txg(0)),
        };
        let at_once = metaslab.with(|state| state.free(deferral, &range, is_unreferenced))?;
        self.note_change(metaslab);
        if at_once {
            vdev.note_available(range.end.saturating_sub(range.start));
        }
        Ok(())
    }

    /// The metaslab and the range of an address that stays allocated although nothing refers to it any more, because
    /// a checkpoint does.
    ///
    /// # Errors
    /// As [`PoolAllocator::free`].
    pub fn kept(&self, txg: Txg, dva: &Dva) -> Result<(MetaslabId, Range<u64>), AllocError> {
        let vdevs = self.vdevs();
        let (_, metaslab, range) = find(&vdevs, dva)?;
        metaslab.with(|state| state.check_allocated(txg, &range))?;
        Ok((metaslab.place.id, range))
    }

    /// Loads the metaslab of an address, so that [`PoolAllocator::kept`] knows all that is free there.
    ///
    /// # Errors
    /// If no concrete vdev contains it, or the space map cannot be read.
    pub fn load_holder(&self, dva: &Dva) -> Result<(), AllocError> {
        let vdevs = self.vdevs();
        let (_, metaslab, _) = find(&vdevs, dva)?;
        metaslab.load(&*self.store)
    }

    /// Claims the range of an intent log block before anything is allocated. The maps show it as free,
    /// because it was written after the last synced txg. The claim is recorded in `txg`. For a gang block
    /// it covers only the header.
    ///
    /// # Errors
    /// If the range is not free (the log is damaged), or its metaslab cannot be loaded.
    pub fn claim(&self, txg: Txg, dva: &Dva) -> Result<(), AllocError> {
        let vdevs = self.vdevs();
        let (vdev, metaslab, range) = find(&vdevs, dva)?;
        metaslab.load(&*self.store)?;
        metaslab.with(|state| state.claim(txg, &range))?;
        vdev.note_allocated(range.end.saturating_sub(range.start));
        self.note_change(metaslab);
        Ok(())
    }

    /// Whether an address is valid in this pool: on a concrete vdev, within one metaslab.
    #[must_use]
    pub fn holds(&self, dva: &Dva) -> bool {
        find(&self.vdevs(), dva).is_ok()
    }
    /// Errors of metaslabs that could not be loaded since the last call. These metaslabs are not used.
    #[must_use]
    pub fn take_faults(&self) -> Vec<AllocError> {
        core::mem::take(&mut *self.faults.lock())
    }

    /// Adds a vdev on which everything is free. It is used as [`VdevSpace::usable_from`] says.
    ///
    /// # Errors
    /// If its id is in use, or it has too many metaslabs.
    pub fn add_vdev(&self, space: VdevSpace) -> Result<(), AllocError> {
        let vdev = opening::fresh_vdev(space)?;
        let mut vdevs = self.vdevs.write();
        if vdevs.contains_key(&vdev.id()) {
            return Err(AllocError::Geometry {
                vdev: vdev.id().0,
                reason: "there is a vdev of that number",
            });
        }
        Arc::make_mut(&mut vdevs).insert(vdev.id(), Arc::new(vdev));
        Ok(())
    }
    /// Adds metaslabs, on which everything is free, to a vdev that became larger. The txg that stores its new size must
    /// be committed. Returns the number of bytes added.
    ///
    /// # Errors
    /// If the vdev does not exist, or there are too many metaslabs.
    pub fn grow_vdev(&self, geometry: VdevGeometry) -> Result<u64, AllocError> {
        let vdev = geometry.vdev();
        let refuse = |reason| AllocError::Geometry {
            vdev: vdev.0,
            reason,
        };
        let found = self.vdevs.read().get(&vdev).cloned();
        let found = found.ok_or_else(|| refuse("no such vdev"))?;
        // Made without the lock, under which no other is taken.
        let all = opening::fresh_vdev(VdevSpace {
            geometry,
            ..found.space.clone()
        })?;
        let mut vdevs = self.vdevs.write();
        let old = vdevs.get(&vdev).ok_or_else(|| refuse("no such vdev"))?;
        let space = VdevSpace {
            geometry,
            ..old.space.clone()
        };
        let new = old.grown(space, all.metaslabs);
        let added = new.space_bytes().saturating_sub(old.space_bytes());
        Arc::make_mut(&mut vdevs).insert(vdev, Arc::new(new));
        Ok(added)
    }
    /// Updates the settings of a vdev except its geometry and class: whether it is allocating, and how much
    /// space blocks take on it. Does nothing if it does not exist.
    pub fn update_vdev(&self, vdev: VdevId, update: impl FnOnce(&mut VdevSpace)) {
        let mut vdevs = self.vdevs.write();
        let Some(old) = vdevs.get(&vdev) else { return };
        let mut space = old.space.clone();
        update(&mut space);
        space.geometry = old.space.geometry;
        space.class = old.space.class;
        let new = Arc::new(old.with_space(space));
        Arc::make_mut(&mut vdevs).insert(vdev, new);
    }

    fn vdevs(&self) -> Arc<BTreeMap<VdevId, Arc<VdevAllocator>>> {
        self.vdevs.read().clone()
    }
    fn metaslab(&self, id: MetaslabId) -> Option<(Arc<VdevAllocator>, Arc<MetaslabAllocator>)> {
        let vdev = self.vdevs.read().get(&id.vdev)?.clone();
        let metaslab = vdev.metaslab(id.index)?.clone();
        Some((vdev, metaslab))
    }
    fn note_change(&self, metaslab: &MetaslabAllocator) {
        if metaslab.list() {
            self.registry.lock().changed.insert(metaslab.place.id);
        }
    }
    /// The vdevs that may hold a block of `txg`.
    fn members<'v>(
        &self,
        vdevs: &'v BTreeMap<VdevId, Arc<VdevAllocator>>,
        pool: Pool,
        txg: Txg,
    ) -> impl Iterator<Item = &'v Arc<VdevAllocator>> + use<'v> {
        let committed = Txg(self.committed.load(Ordering::Acquire));
        vdevs.values().filter(move |vdev| {
            let belongs = match pool {
                Pool::Class(class) => vdev.space.class == class,
                Pool::EmbeddedLog => vdev.embedded_log.is_some(),
            };
            belongs && vdev.is_usable(txg, committed)
        })
    }
    fn report(&self, error: AllocError) {
        let mut faults = self.faults.lock();
        if faults.len() < FAULTS_MAX {
            faults.push(error);
        }
    }
}

impl Pool {
    fn part(self) -> Part {
        match self {
            Self::Class(_) => Part::Ordinary,
            Self::EmbeddedLog => Part::EmbeddedLog,
        }
    }
}

/// The pools to allocate from for this placement, in order of preference.
fn fallbacks(vdevs: &BTreeMap<VdevId, Arc<VdevAllocator>>, placement: Placement) -> Vec<Pool> {
    use AllocationClass::{Dedup, Log, Normal, Special};
    let has_dedup = vdevs.values().any(|vdev| vdev.space.class == Dedup);
    match placement {
        Placement::Normal => vec![Pool::Class(Normal)],
        Placement::Special => vec![Pool::Class(Special), Pool::Class(Normal)],
        Placement::Dedup if has_dedup => vec![Pool::Class(Dedup), Pool::Class(Normal)],
        Placement::Dedup => vec![Pool::Class(Special), Pool::Class(Normal)],
        Placement::Log => vec![Pool::Class(Log), Pool::EmbeddedLog, Pool::Class(Normal)],
    }
}

/// The vdev, metaslab and range of an address.
type Holder<'a> = (
    &'a Arc<VdevAllocator>,
    &'a Arc<MetaslabAllocator>,
    Range<u64>,
);

/// Finds the vdev, metaslab and range of an address.
fn find<'a>(
    vdevs: &'a BTreeMap<VdevId, Arc<VdevAllocator>>,
    dva: &Dva,
) -> Result<Holder<'a>, AllocError> {
    let none = AllocError::NoMetaslab { dva: *dva };
    let Some(vdev) = vdevs.get(&dva.vdev) else {
        return Err(none);
    };
    let (Some(range), Some(metaslab)) = (request::range_of(&vdev.space, dva), vdev.holder_of(dva))
    else {
        return Err(none);
    };
    let unit = vdev.space.geometry.ashift().bytes();
    if !range.start.is_multiple_of(unit) || !range.end.is_multiple_of(unit) {
        return Err(none);
    }
    Ok((vdev, metaslab, range))
}
