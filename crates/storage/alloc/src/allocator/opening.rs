//! Makes an allocator from a pool's objects.

use std::collections::BTreeMap;

use millpond_env::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use millpond_env::sync::{Arc, Mutex, RwLock};
use millpond_ondisk::{DecodeError, SpaceMapPhys, Txg, VdevId};

use super::metaslab::MetaslabAllocator;
use super::port::{LogPolicy, MapShape, SpaceMapForms};
use super::request::VdevSpace;
use super::state::{MetaslabState, OwnMap};
use super::sync::Writing;
use super::vdev::VdevAllocator;
use super::{HELD_PATIENCE, PoolAllocator, Registry};
use crate::{
    AllocError, AllocationClass, SpaceMapStore, StoreError, UnflushedLogs, embedded_log_metaslab,
};

/// Pools with more metaslabs are refused: writers make a few hundred for each vdev.
const METASLABS_MAX: u64 = 1 << 21;
/// The limit on free ranges of loaded metaslabs in memory, about 200 bytes each.
const LOADED_RANGES_MAX: usize = 2 << 20;
/// The most ranges that pinned states may hold back. Each takes about 100 bytes.
const HELD_RANGES_MAX: usize = 1 << 20;

/// One metaslab as found on disk.
#[derive(Debug, Clone, Default)]
pub struct OpenedMetaslab {
    /// Its map with the header, if it was ever used.
    pub map: Option<(MapShape, SpaceMapPhys)>,
    /// The first txg whose changes are in the logs; 0 if it never had changes in logs.
    pub unflushed_txg: Txg,
}

/// One concrete top-level vdev as found on disk.
#[derive(Debug, Clone)]
pub struct OpenedVdev {
    /// Its space settings.
    pub space: VdevSpace,
    /// Its metaslabs by index. Those missing at the end were never used.
    pub metaslabs: Vec<OpenedMetaslab>,
}

/// The log space map of a txg as found on disk.
#[derive(Debug, Clone)]
pub struct OpenedLog {
    /// Its object.
    pub shape: MapShape,
    /// Its header.
    pub header: SpaceMapPhys,
}

impl PoolAllocator {
    /// The allocator of a new pool: everything is free.
    ///
    /// # Errors
    /// If there are too many metaslabs.
    pub fn new(
        vdevs: Vec<VdevSpace>,
        store: Arc<dyn SpaceMapStore + Send + Sync>,
        forms: SpaceMapForms,
    ) -> Result<Self, AllocError> {
        let vdevs = vdevs.into_iter().map(|space| OpenedVdev {
            space,
            metaslabs: Vec::new(),
        });
        let (logs, unflushed) = (BTreeMap::new(), UnflushedLogs::default());
        Self::open(vdevs.collect(), logs, unflushed, store, forms)
    }
    /// The allocator of a pool found on disk. `unflushed` is the replay of all of `logs`. Metaslabs are
    /// loaded on demand.
    ///
    /// # Errors
    /// If there are too many metaslabs, or a metaslab has unflushed changes from a txg without a log.
    pub fn open(
        vdevs: Vec<OpenedVdev>,
        logs: BTreeMap<Txg, OpenedLog>,
        mut unflushed: UnflushedLogs,
        store: Arc<dyn SpaceMapStore + Send + Sync>,
        forms: SpaceMapForms,
    ) -> Result<Self, AllocError> {
        let mut writing = Writing::new(forms, LogPolicy::default());
        for (txg, log) in logs {
            writing.adopt_log(txg, &log);
        }
        let mut live = BTreeMap::new();
        for opened in vdevs {
            let vdev = open_vdev(opened, &mut unflushed, &mut writing)?;
            live.insert(vdev.id(), Arc::new(vdev));
        }
        Ok(Self {
            vdevs: RwLock::new(Arc::new(live)),
            store,
            rotors: Default::default(),
            registry: Mutex::new(Registry::default()),
            writing: Mutex::new(writing),
            faults: Mutex::new(Vec::new()),
            committed: AtomicU64::new(0),
            pinned: RwLock::new(Arc::from([])),
            loaded_ranges_max: LOADED_RANGES_MAX,
            held_ranges: AtomicUsize::new(0),
            holds: Arc::default(),
            notes_frees: AtomicBool::new(false),
            held_patience: HELD_PATIENCE,
            held_ranges_max: HELD_RANGES_MAX,
            gangs_from_bytes: AtomicU64::new(u64::MAX),
        })
    }
}

/// A vdev on which everything is free.
pub(super) fn fresh_vdev(space: VdevSpace) -> Result<VdevAllocator, AllocError> {
    let opened = OpenedVdev {
        space,
        metaslabs: Vec::new(),
    };
    let mut writing = Writing::new(SpaceMapForms::default(), LogPolicy::default());
    open_vdev(opened, &mut UnflushedLogs::default(), &mut writing)
}

fn open_vdev(
    opened: OpenedVdev,
    unflushed: &mut UnflushedLogs,
    writing: &mut Writing,
) -> Result<VdevAllocator, AllocError> {
    let geometry = opened.space.geometry;
    let vdev: VdevId = geometry.vdev();
    let refuse = |reason| AllocError::Geometry {
        vdev: vdev.0,
        reason,
    };
    if geometry.metaslab_count() > METASLABS_MAX {
        return Err(refuse("more metaslabs than any writer makes"));
    }
    let mut found = opened.metaslabs.into_iter();
    let (mut metaslabs, mut in_maps) = (Vec::new(), Vec::new());
    for index in 0..geometry.metaslab_count() {
        let place = geometry
            .metaslab(index)
            .ok_or_else(|| refuse("a metaslab lies beyond 64 bits"))?;
        let OpenedMetaslab { map, unflushed_txg } = found.next().unwrap_or_default();
        let changes = unflushed.take(place.id);
        if unflushed_txg != Txg(0) {
            if !writing.has_log(unflushed_txg) {
                let reason = "a metaslab has unflushed changes from a txg without a log";
                let error = DecodeError::new("log space map", reason, 0);
                return Err(AllocError::Logs(StoreError::Corrupt(error)));
            }
            writing.joined(place.id, unflushed_txg, changes.ranges());
        }
        let header = map.as_ref().map(|(_, header)| header);
        in_maps.push(header.map_or(0, |header| header.allocated_bytes));
        let histogram = header.and_then(|header| header.histogram);
        let map = map.as_ref().map(|(shape, header)| OwnMap {
            shape: *shape,
            length_bytes: header.length_bytes,
            allocated_bytes: header.allocated_bytes,
        });
        let state = MetaslabState::new(place, map, histogram, unflushed_txg, changes);
        metaslabs.push(Arc::new(MetaslabAllocator::new(state)));
    }
    let embedded_log = match opened.space.class {
        AllocationClass::Normal | AllocationClass::Special => embedded_log_metaslab(&in_maps),
        AllocationClass::Log | AllocationClass::Dedup => None,
    };
    Ok(VdevAllocator::new(opened.space, metaslabs, embedded_log))
}
