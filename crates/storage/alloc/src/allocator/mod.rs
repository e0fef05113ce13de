//! The allocator of a pool that is being changed. Page `docs/allocator.md`.

mod condense;
mod fit;
mod logs;
mod metaslab;
mod opening;
mod port;
mod report;
mod request;
mod rotor;
mod state;
mod sync;
mod turn;
mod vdev;

#[cfg(test)]
mod tests;

pub use opening::{OpenedLog, OpenedMetaslab, OpenedVdev};
pub use port::{LogPolicy, MapName, MapShape, SpaceMapForms, SpaceMapWriter};
pub use request::{AllocRequest, BlockSizes, NoSpace, Placement, VdevSpace};

use core::ops::Range;
use millpond_env::mark;
use std::collections::{BTreeMap, BTreeSet};

use millpond_env::sync::{Arc, Mutex, RwLock};
use millpond_ondisk::{Dva, Txg, VdevId};

use self::metaslab::LiveMetaslab;
use self::rotor::{Candidate, Rotor};
use self::sync::Writing;
use self::vdev::{LANES, LiveVdev, Part, Want};
use crate::{AllocError, AllocationClass, MetaslabId, SpaceMapStore};

/// Errors of metaslabs that could not be loaded are kept up to this number.
const FAULTS_MAX: usize = 64;

/// The allocator of a pool: which space of its vdevs is free, what is handed out and given back in
/// each txg, and how that gets into space maps.
///
/// Shared by all threads. Does no device I/O itself: metaslabs are loaded through [`SpaceMapStore`]
/// and written through [`SpaceMapWriter`]. Locks are taken inside and are never held while a
/// caller's code runs, but for those of a metaslab's map and of [`PoolAllocator::sync_pass`], which
/// no allocation elsewhere waits for. Given the same calls one after the other it always does the
/// same.
///
/// The life of a txg: [`allocate`](Self::allocate) and [`free`](Self::free), then for each pass of
/// its sync [`sync_pass`](Self::sync_pass) until nothing is left to write, then the uberblock, then
/// [`synced`](Self::synced).
pub struct PoolAllocator {
    /// Replaced as a whole when a vdev comes, goes or changes.
    vdevs: RwLock<Arc<BTreeMap<VdevId, Arc<LiveVdev>>>>,
    store: Arc<dyn SpaceMapStore + Send + Sync>,
    /// One for each lane, so that lanes do not wait for each other.
    rotors: [Mutex<BTreeMap<Pool, Rotor>>; LANES],
    registry: Mutex<Registry>,
    /// What only the thread that syncs uses.
    writing: Mutex<Writing>,
    faults: Mutex<Vec<AllocError>>,
    loaded_ranges_max: usize,
}

/// Vdevs, or parts of them, that stand in for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Pool {
    Class(AllocationClass),
    EmbeddedLog,
}

/// Which metaslabs have something to be done.
#[derive(Debug, Default)]
struct Registry {
    /// Changes that no map has yet.
    changed: BTreeSet<MetaslabId>,
    /// Something waits, or was handed out lately, as far as changes were looked through.
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
    /// Finds space for every copy of a block: on different vdevs, else in different metaslabs, else
    /// anywhere; distinct in any case. The addresses are not marked as those of gang blocks.
    ///
    /// May read space maps, and waits for nothing else.
    ///
    /// # Errors
    /// If one of the copies finds no room in one piece. Nothing is allocated then.
    pub fn allocate(&self, txg: Txg, request: &AllocRequest<'_>) -> Result<Vec<Dva>, NoSpace> {
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
            .flat_map(|pool| members(&vdevs, *pool, txg).map(|vdev| (*pool, vdev)))
            .map(|(pool, vdev)| vdev.largest_bytes(pool.part()))
            .max();
        Err(NoSpace {
            psize_bytes: request.psize_bytes,
            largest_free_bytes: largest_free_bytes.unwrap_or(0),
        })
    }

    fn allocate_from(
        &self,
        vdevs: &BTreeMap<VdevId, Arc<LiveVdev>>,
        pool: Pool,
        txg: Txg,
        request: &AllocRequest<'_>,
    ) -> Option<Vec<Dva>> {
        let candidates: Vec<Candidate> = members(vdevs, pool, txg)
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
                    // Cannot fail: it was just handed out.
                    let _ = self.free(txg, &dva, true);
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

    /// Finds room for one copy away from `taken`, as far as possible. Returns it with the vdevs that
    /// had no room.
    fn place(
        &self,
        vdevs: &BTreeMap<VdevId, Arc<LiveVdev>>,
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

    /// Gives an address back in `txg`, which is being synced. Of a gang block that is its header
    /// alone: its children are given back on their own.
    ///
    /// The range can be handed out again when the txg after next is synced. With `is_unreferenced` it
    /// can at once, if it was handed out in `txg` itself: say so only of blocks that nothing written
    /// points to, which is never so for blocks of the intent log.
    ///
    /// # Errors
    /// If no concrete vdev holds it (removed vdevs are the caller's matter), or some of it is free
    /// already: then two blocks claimed to own it, and nothing more must be written to the pool.
    pub fn free(&self, txg: Txg, dva: &Dva, is_unreferenced: bool) -> Result<(), AllocError> {
        let vdevs = self.vdevs();
        let (vdev, metaslab, range) = find(&vdevs, dva)?;
        let at_once = metaslab.with(|state| state.free(txg, &range, is_unreferenced))?;
        self.note_change(metaslab);
        if at_once {
            vdev.note_available(range.end.saturating_sub(range.start));
        }
        Ok(())
    }

    /// Takes a range that a block of the intent log was found in, before anything is allocated: the
    /// maps call it free, since it was written after the last synced txg. Recorded in `txg`. Of a
    /// gang block it takes the header alone.
    ///
    /// # Errors
    /// If it is not free (the log is damaged), or its metaslab cannot be loaded.
    pub fn claim(&self, txg: Txg, dva: &Dva) -> Result<(), AllocError> {
        let vdevs = self.vdevs();
        let (vdev, metaslab, range) = find(&vdevs, dva)?;
        metaslab.load(&*self.store)?;
        metaslab.with(|state| state.claim(txg, &range))?;
        vdev.note_allocated(range.end.saturating_sub(range.start));
        self.note_change(metaslab);
        Ok(())
    }

    /// Whether an address can be part of this pool: on a concrete vdev, within one metaslab.
    #[must_use]
    pub fn holds(&self, dva: &Dva) -> bool {
        find(&self.vdevs(), dva).is_ok()
    }
    /// Errors of metaslabs that could not be loaded, and were left alone, since the last call.
    #[must_use]
    pub fn take_faults(&self) -> Vec<AllocError> {
        core::mem::take(&mut *self.faults.lock())
    }

    /// Adds a vdev on which everything is free. [`VdevSpace::usable_from`] says from when on.
    ///
    /// # Errors
    /// If there is one of that number already, or it has too many metaslabs.
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
    /// Replaces what is known of a vdev but for its geometry and class: whether it is allocated
    /// from, how much blocks take on it. Does nothing if it does not exist.
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

    fn vdevs(&self) -> Arc<BTreeMap<VdevId, Arc<LiveVdev>>> {
        self.vdevs.read().clone()
    }
    fn metaslab(&self, id: MetaslabId) -> Option<(Arc<LiveVdev>, Arc<LiveMetaslab>)> {
        let vdev = self.vdevs.read().get(&id.vdev)?.clone();
        let metaslab = vdev.metaslab(id.index)?.clone();
        Some((vdev, metaslab))
    }
    fn note_change(&self, metaslab: &LiveMetaslab) {
        if metaslab.list() {
            self.registry.lock().changed.insert(metaslab.place.id);
        }
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

/// Where blocks of this placement go, in order of preference.
fn fallbacks(vdevs: &BTreeMap<VdevId, Arc<LiveVdev>>, placement: Placement) -> Vec<Pool> {
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

/// The vdevs that a block of `txg` may lie on.
fn members(
    vdevs: &BTreeMap<VdevId, Arc<LiveVdev>>,
    pool: Pool,
    txg: Txg,
) -> impl Iterator<Item = &Arc<LiveVdev>> {
    vdevs.values().filter(move |vdev| {
        let belongs = match pool {
            Pool::Class(class) => vdev.space.class == class,
            Pool::EmbeddedLog => vdev.embedded_log.is_some(),
        };
        belongs && vdev.is_usable(txg)
    })
}

/// Where an address lies: its vdev, metaslab and range.
type Holder<'a> = (&'a Arc<LiveVdev>, &'a Arc<LiveMetaslab>, Range<u64>);

/// The vdev, metaslab and range of an address.
fn find<'a>(
    vdevs: &'a BTreeMap<VdevId, Arc<LiveVdev>>,
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
