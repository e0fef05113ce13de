//! Space maps stored in MOS objects: implements the allocator's ports.
//!
//! In memory this module keeps the space map object of each metaslab, the txgs that have logs, and the txg
//! since which a metaslab's changes are only in the logs. It changes them together with the objects, in
//! syncing context.
//!
//! Pages `docs/format/space-map.md`, `docs/format/log-space-map.md`.

use crate::error::Reading;
use crate::pool::Pool;
use crate::space::PoolSpaceMaps;
use crate::sync::context::SyncContext;
use crate::{Features, PoolError, PoolView};
use millpond_alloc::{
    AllocError, LogRecord, MapName, MapShape, MetaslabId, OpenedLog, OpenedMetaslab, OpenedVdev,
    SpaceMapForms, SpaceMapStore, SpaceMapWriter, SpaceRecord, StoreError, VdevGeometry, VdevSpace,
    decode_log_records, decode_records,
};
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_object::{NewObject, Object, ObjectSet};
use millpond_ondisk::pool_directory::{key, vdev_key};
use millpond_ondisk::space_map::SPACE_MAP_HEADER_BYTES_HISTOGRAM;
use millpond_ondisk::{
    BlockId, DecodeError, Endian, ObjectId, ObjectType, SpaceMapPhys, Txg, VdevId,
};
use millpond_vdev::VdevTree;
use std::collections::{BTreeMap, BTreeSet};

/// Size of the data blocks of logs, and of metaslabs' space maps in pools with log space maps, in bytes.
const LARGE_BLOCK_BYTES: u32 = 128 << 10;
/// Size of the data blocks of metaslabs' space maps in pools without log space maps, in bytes.
const SMALL_BLOCK_BYTES: u32 = 16 << 10;
/// log2 of the size of space maps' indirect blocks in bytes.
const INDIRECT_SHIFT: u8 = 14;

pub(crate) const HISTOGRAM: &str = "com.delphix:spacemap_histogram";
pub(crate) const LOG_SPACE_MAP: &str = "com.delphix:log_spacemap";
pub(crate) const SPACE_MAP_V2: &str = "com.delphix:spacemap_v2";

/// The space map formats that a pool's features allow.
pub(crate) fn forms(features: &Features) -> SpaceMapForms {
    SpaceMapForms {
        has_two_words: features.is_active(SPACE_MAP_V2),
        has_logs: features.count(LOG_SPACE_MAP).is_some(),
    }
}

/// The locations of a pool's space maps.
#[derive(Debug, Default)]
pub(crate) struct SpaceMapLocations {
    vdevs: BTreeMap<VdevId, VdevMaps>,
    logs: BTreeMap<Txg, ObjectId>,
}

#[derive(Debug)]
struct VdevMaps {
    geometry: VdevGeometry,
    /// The object that stores `maps`.
    array: Option<ObjectId>,
    /// Space map object by metaslab; 0 for none.
    maps: Vec<u64>,
    /// The object that stores `unflushed`.
    unflushed_array: Option<ObjectId>,
    /// First unflushed txg by metaslab.
    unflushed: Vec<u64>,
}

impl VdevMaps {
    fn map(&self, index: u64) -> Option<ObjectId> {
        let index = usize::try_from(index).ok()?;
        ObjectId(*self.maps.get(index)?).some()
    }
}

/// The space maps of a pool open for changes, as read by the allocator.
#[derive(Debug, Clone)]
pub(crate) struct SpaceMapObjects {
    mos: Arc<ObjectSet>,
    pub(crate) locations: Arc<Mutex<SpaceMapLocations, rank::SpaceMapTables>>,
}

impl SpaceMapObjects {
    /// Creates the state of a pool without space maps.
    pub(crate) fn new(
        mos: Arc<ObjectSet>,
        geometries: impl IntoIterator<Item = VdevGeometry>,
    ) -> Self {
        let maps = Self {
            mos,
            locations: Arc::default(),
        };
        for geometry in geometries {
            maps.add_vdev(geometry);
        }
        maps
    }

    /// Loads the space maps of a committed state.
    pub(crate) fn load(mos: Arc<ObjectSet>, pool: &PoolView) -> Result<Self, PoolError> {
        let read = PoolSpaceMaps::load(pool)?;
        let mut locations = SpaceMapLocations {
            logs: read.logs()?,
            ..SpaceMapLocations::default()
        };
        for (id, vdev) in read.into_vdevs() {
            locations.vdevs.insert(
                id,
                VdevMaps {
                    geometry: vdev.geometry,
                    array: vdev.array,
                    maps: vdev.maps,
                    unflushed_array: vdev.unflushed_array,
                    unflushed: vdev.unflushed,
                },
            );
        }
        Ok(Self {
            mos,
            locations: Arc::new(Mutex::new(locations)),
        })
    }

    /// Adds a top-level vdev that has no space maps yet.
    pub(crate) fn add_vdev(&self, geometry: VdevGeometry) {
        let count = usize::try_from(geometry.metaslab_count()).unwrap_or(0);
        let vdev = VdevMaps {
            geometry,
            array: None,
            maps: vec![0; count],
            unflushed_array: None,
            unflushed: vec![0; count],
        };
        self.locations.lock().vdevs.insert(geometry.vdev(), vdev);
    }

    /// Forgets vdevs that the pool does not have any more.
    pub(crate) fn forget_vdevs(&self, vdevs: &BTreeSet<VdevId>) {
        let mut locations = self.locations.lock();
        locations.vdevs.retain(|id, _| !vdevs.contains(id));
    }

    /// Forgets a vdev, and returns the objects that store its space.
    pub(crate) fn take_vdev(&self, vdev: VdevId) -> Vec<ObjectId> {
        let Some(maps) = self.locations.lock().vdevs.remove(&vdev) else {
            return vec![];
        };
        let all = maps.maps.into_iter().filter_map(|map| ObjectId(map).some());
        all.chain(maps.array).chain(maps.unflushed_array).collect()
    }

    /// Makes room for the new metaslabs of a vdev that grew. Returns how many it had.
    pub(crate) fn grow_vdev(&self, geometry: VdevGeometry) -> u64 {
        let mut locations = self.locations.lock();
        let Some(vdev) = locations.vdevs.get_mut(&geometry.vdev()) else {
            return 0;
        };
        let before = vdev.maps.len();
        let count = usize::try_from(geometry.metaslab_count()).unwrap_or(before);
        vdev.geometry = geometry;
        vdev.maps.resize(count.max(before), 0);
        vdev.unflushed.resize(count.max(before), 0);
        before as u64
    }

    /// The geometry of each vdev.
    pub(crate) fn geometries(&self) -> BTreeMap<VdevId, VdevGeometry> {
        let locations = self.locations.lock();
        let vdevs = locations.vdevs.iter();
        vdevs.map(|(id, vdev)| (*id, vdev.geometry)).collect()
    }

    /// The metaslab array of a vdev. If absent, it is created and recorded in the configuration.
    pub(crate) fn ensure_array(
        &self,
        ctx: &SyncContext<'_>,
        vdev: VdevId,
    ) -> Result<Arc<Object>, PoolError> {
        let what = "metaslab array";
        let (array, count) = {
            let locations = self.locations.lock();
            let maps = locations.vdevs.get(&vdev);
            (
                maps.and_then(|maps| maps.array),
                maps.map_or(0, |maps| maps.maps.len()),
            )
        };
        if let Some(id) = array {
            return ctx.mos().object(id).reading(what);
        }
        let new = NewObject::new(ObjectType::OBJECT_ARRAY);
        let array = ctx.mos().allocate(ctx.tx(), new).reading(what)?;
        // All slots exist from the start, so that readers find zeros instead of the end of the object.
        array
            .write(ctx.tx(), 0, &vec![0; count * 8])
            .reading(what)?;
        if let Some(maps) = self.locations.lock().vdevs.get_mut(&vdev) {
            maps.array = Some(array.id());
        }
        ctx.pool.change_top(vdev, |top| {
            top.metaslab_array = array.id();
        });
        Ok(array)
    }

    /// The state of every vdev and log that the allocator needs to start.
    pub(crate) fn opened(
        &self,
        tree: &Arc<VdevTree>,
    ) -> Result<(Vec<OpenedVdev>, BTreeMap<Txg, OpenedLog>), AllocError> {
        let locations = self.locations.lock();
        let mut vdevs = vec![];
        for (id, vdev) in &locations.vdevs {
            let mut metaslabs = vec![];
            for (index, unflushed) in (0u64..).zip(&vdev.unflushed) {
                let metaslab = MetaslabId { vdev: *id, index };
                let wrap = |source| AllocError::Store { metaslab, source };
                let map = match vdev.map(index) {
                    None => None,
                    Some(map) => {
                        let (object, header) = self.open(map).map_err(wrap)?;
                        Some((shape(&object), header))
                    }
                };
                metaslabs.push(OpenedMetaslab {
                    map,
                    unflushed_txg: Txg(*unflushed),
                });
            }
            vdevs.push(OpenedVdev {
                space: VdevSpace::from_tree(tree, vdev.geometry),
                metaslabs,
            });
        }
        let mut logs = BTreeMap::new();
        for (txg, log) in &locations.logs {
            let (object, header) = self.open(*log).map_err(AllocError::Logs)?;
            let shape = shape(&object);
            logs.insert(*txg, OpenedLog { shape, header });
        }
        Ok((vdevs, logs))
    }

    fn open(&self, id: ObjectId) -> Result<(Arc<Object>, SpaceMapPhys), StoreError> {
        let object = self.mos.object(id).map_err(unreadable)?;
        let phys = SpaceMapPhys::decode(&object.bonus(), Endian::Little)?;
        Ok((object, phys))
    }
}

impl SpaceMapStore for SpaceMapObjects {
    fn replay(
        &self,
        metaslab: MetaslabId,
        each: &mut dyn FnMut(SpaceRecord) -> Result<(), AllocError>,
    ) -> Result<(), AllocError> {
        let wrap = |source| AllocError::Store { metaslab, source };
        let found = {
            let locations = self.locations.lock();
            locations.vdevs.get(&metaslab.vdev).and_then(|vdev| {
                let map = vdev.map(metaslab.index)?;
                Some((map, vdev.geometry.metaslab(metaslab.index)?))
            })
        };
        let Some((map, place)) = found else {
            return Ok(());
        };
        let (object, phys) = self.open(map).map_err(wrap)?;
        let units = place.units();
        each_piece(&object, phys.length_bytes, &wrap, &mut |bytes, endian| {
            decode_records(bytes, endian, &units, wrap, each)
        })
    }

    fn unflushed_txg(&self, metaslab: MetaslabId) -> Result<Txg, AllocError> {
        let locations = self.locations.lock();
        let index = usize::try_from(metaslab.index).unwrap_or(usize::MAX);
        let vdev = locations.vdevs.get(&metaslab.vdev);
        let txg = vdev.and_then(|vdev| vdev.unflushed.get(index));
        Ok(Txg(txg.copied().unwrap_or(0)))
    }

    fn replay_logs(
        &self,
        each: &mut dyn FnMut(LogRecord) -> Result<(), AllocError>,
    ) -> Result<(), AllocError> {
        let logs = self.locations.lock().logs.clone();
        for (txg, log) in logs {
            let (object, phys) = self.open(log).map_err(AllocError::Logs)?;
            each_piece(
                &object,
                phys.length_bytes,
                &AllocError::Logs,
                &mut |bytes, endian| decode_log_records(bytes, endian, txg, AllocError::Logs, each),
            )?;
        }
        Ok(())
    }
}

/// Callback that receives the valid bytes of a block of a space map and their byte order.
type EachPiece<'a> = &'a mut dyn FnMut(&[u8], Endian) -> Result<(), AllocError>;

fn each_piece(
    object: &Object,
    length_bytes: u64,
    wrap: &dyn Fn(StoreError) -> AllocError,
    each: EachPiece<'_>,
) -> Result<(), AllocError> {
    let size = object.block_bytes().max(1);
    let blocks = object.block_id_max().0.saturating_add(1);
    if length_bytes > blocks.saturating_mul(size) {
        let error = DecodeError::new("space map", "it is longer than its object", 8);
        return Err(wrap(error.into()));
    }
    let mut at = 0;
    while at < length_bytes {
        let block = object
            .read_block(BlockId(at / size))
            .map_err(|error| wrap(unreadable(error)))?;
        let count = (length_bytes - at).min(block.bytes.len() as u64) as usize;
        each(&block.bytes[..count], block.endian)?;
        at += size;
    }
    Ok(())
}

fn unreadable(error: impl std::fmt::Display) -> StoreError {
    StoreError::Unreadable(error.to_string())
}

/// Writes space maps for the allocator within one txg.
pub(crate) struct MapWriter<'a> {
    pub(crate) ctx: &'a SyncContext<'a>,
    pub(crate) maps: &'a SpaceMapObjects,
}

impl MapWriter<'_> {
    fn pool(&self) -> &Pool {
        self.ctx.pool
    }

    fn object_of(&self, map: MapName) -> Result<Arc<Object>, PoolError> {
        let id = {
            let locations = self.maps.locations.lock();
            match map {
                MapName::Metaslab(metaslab) => locations
                    .vdevs
                    .get(&metaslab.vdev)
                    .and_then(|vdev| vdev.map(metaslab.index)),
                MapName::Log(txg) => locations.logs.get(&txg).copied(),
            }
        };
        let missing = || DecodeError::new("space map", "the map was never made", 0);
        let id = id.ok_or_else(missing).reading("space map")?;
        self.ctx.mos().object(id).reading("space map")
    }

    fn create_map(&self, block_bytes: u32) -> Result<Arc<Object>, PoolError> {
        let has_histogram = self.ctx.feature_is_enabled(HISTOGRAM);
        let phys = SpaceMapPhys {
            object: None,
            length_bytes: 0,
            allocated_bytes: 0,
            histogram: has_histogram.then(Default::default),
        };
        let mut new = NewObject::new(ObjectType::SPACE_MAP)
            .with_block_bytes(block_bytes)
            .with_bonus(ObjectType::SPACE_MAP_HEADER, phys.encode());
        new.indirect_shift = INDIRECT_SHIFT;
        let object = self
            .ctx
            .mos()
            .allocate(self.ctx.tx(), new)
            .reading("space map")?;
        if has_histogram {
            self.ctx.feature_increment(HISTOGRAM)?;
        }
        Ok(object)
    }

    /// Creates a map with large blocks that belongs to no metaslab.
    pub(crate) fn create_large_map(&self) -> Result<Arc<Object>, PoolError> {
        self.create_map(LARGE_BLOCK_BYTES)
    }

    fn try_create(&self, map: MapName) -> Result<MapShape, PoolError> {
        match map {
            MapName::Metaslab(metaslab) => {
                let block_bytes = if self.ctx.feature_is_enabled(LOG_SPACE_MAP) {
                    LARGE_BLOCK_BYTES
                } else {
                    SMALL_BLOCK_BYTES
                };
                let object = self.create_map(block_bytes)?;
                self.note_map(metaslab, object.id())?;
                Ok(shape(&object))
            }
            MapName::Log(txg) => {
                let object = self.create_map(LARGE_BLOCK_BYTES)?;
                let zap = match self.ctx.directory_object(key::LOG_SPACE_MAP_ZAP)? {
                    Some(zap) => zap,
                    None => {
                        let zap = self.ctx.create_table(ObjectType::METADATA_ZAP)?;
                        self.ctx
                            .set_directory_number(key::LOG_SPACE_MAP_ZAP, zap.0)?;
                        zap
                    }
                };
                if self.ctx.feature_count(LOG_SPACE_MAP) == 0 {
                    self.ctx.feature_increment(LOG_SPACE_MAP)?;
                }
                self.ctx
                    .set_table_number(zap, &log_key(txg), object.id().0)?;
                self.maps.locations.lock().logs.insert(txg, object.id());
                Ok(shape(&object))
            }
        }
    }

    /// Writes a space map's object id into its vdev's array, creating the array if needed.
    fn note_map(&self, metaslab: MetaslabId, map: ObjectId) -> Result<(), PoolError> {
        let what = "metaslab array";
        let ctx = self.ctx;
        let array = self.maps.ensure_array(ctx, metaslab.vdev)?;
        let at = metaslab.index.saturating_mul(8);
        array
            .write(ctx.tx(), at, &map.0.to_le_bytes())
            .reading(what)?;
        let mut locations = self.maps.locations.lock();
        if let Some(vdev) = locations.vdevs.get_mut(&metaslab.vdev) {
            let index = usize::try_from(metaslab.index).unwrap_or(usize::MAX);
            if let Some(slot) = vdev.maps.get_mut(index) {
                *slot = map.0;
            }
        }
        Ok(())
    }

    fn try_set_unflushed(&self, metaslab: MetaslabId, txg: Txg) -> Result<(), PoolError> {
        let what = "unflushed txgs";
        let ctx = self.ctx;
        let array = {
            let locations = self.maps.locations.lock();
            let vdev = locations.vdevs.get(&metaslab.vdev);
            vdev.and_then(|vdev| vdev.unflushed_array)
        };
        let array = match array {
            Some(id) => ctx.mos().object(id).reading(what)?,
            None => {
                let new =
                    NewObject::new(ObjectType::METADATA_U64).with_block_bytes(LARGE_BLOCK_BYTES);
                let array = ctx.mos().allocate(ctx.tx(), new).reading(what)?;
                let zap = self
                    .pool()
                    .top_zap(metaslab.vdev)
                    .ok_or_else(|| PoolError::NoEntry {
                        key: "com.delphix:vdev_zap_top".into(),
                    })?;
                ctx.set_table_number(zap, vdev_key::UNFLUSHED_TXGS, array.id().0)?;
                array
            }
        };
        let at = metaslab.index.saturating_mul(8);
        array
            .write(ctx.tx(), at, &txg.0.to_le_bytes())
            .reading(what)?;
        let mut locations = self.maps.locations.lock();
        if let Some(vdev) = locations.vdevs.get_mut(&metaslab.vdev) {
            vdev.unflushed_array = Some(array.id());
            let index = usize::try_from(metaslab.index).unwrap_or(usize::MAX);
            if let Some(slot) = vdev.unflushed.get_mut(index) {
                *slot = txg.0;
            }
        }
        Ok(())
    }

    fn try_remove_log(&self, txg: Txg) -> Result<(), PoolError> {
        let Some(id) = self.maps.locations.lock().logs.remove(&txg) else {
            return Ok(());
        };
        let object = self.ctx.mos().object(id).reading("log space map")?;
        if object.bonus().len() >= SPACE_MAP_HEADER_BYTES_HISTOGRAM {
            self.ctx.feature_decrement(HISTOGRAM)?;
        }
        self.ctx
            .mos()
            .free(self.ctx.tx(), id)
            .reading("log space map")?;
        if let Some(zap) = self.ctx.directory_object(key::LOG_SPACE_MAP_ZAP)? {
            self.ctx.remove_table_entry(zap, &log_key(txg))?;
        }
        Ok(())
    }

    fn try_append(&self, map: MapName, offset_bytes: u64, bytes: &[u8]) -> Result<(), PoolError> {
        self.object_of(map)?
            .write(self.ctx.tx(), offset_bytes, bytes)
            .reading("space map")
    }
}

impl SpaceMapWriter for MapWriter<'_> {
    fn create(&self, map: MapName) -> Result<MapShape, StoreError> {
        self.try_create(map).map_err(unreadable)
    }
    fn truncate(&self, metaslab: MetaslabId) -> Result<MapShape, StoreError> {
        let object = self
            .object_of(MapName::Metaslab(metaslab))
            .map_err(unreadable)?;
        object
            .free_range(self.ctx.tx(), 0, u64::MAX)
            .map_err(unreadable)?;
        Ok(shape(&object))
    }
    fn append(&self, map: MapName, offset_bytes: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.try_append(map, offset_bytes, bytes)
            .map_err(unreadable)
    }
    fn put_header(&self, map: MapName, header: &SpaceMapPhys) -> Result<(), StoreError> {
        let object = self.object_of(map).map_err(unreadable)?;
        object
            .set_bonus(self.ctx.tx(), header.encode())
            .map_err(unreadable)
    }
    fn set_unflushed_txg(&self, metaslab: MetaslabId, txg: Txg) -> Result<(), StoreError> {
        self.try_set_unflushed(metaslab, txg).map_err(unreadable)
    }
    fn remove_log(&self, txg: Txg) -> Result<(), StoreError> {
        self.try_remove_log(txg).map_err(unreadable)
    }
}

fn shape(object: &Object) -> MapShape {
    MapShape {
        object: object.id(),
        block_bytes: object.block_bytes(),
        has_histogram: object.bonus().len() >= SPACE_MAP_HEADER_BYTES_HISTOGRAM,
    }
}

fn log_key(txg: Txg) -> String {
    format!("{:x}", txg.0)
}
