//! Space maps in the pool's own objects, in the form that the allocator crate requests.
//!
//! Pages `docs/format/space-map.md`, `docs/format/log-space-map.md`.

use crate::error::Reading;
use crate::{PoolError, PoolView};
use millpond_alloc::{
    AllocError, LogRecord, Metaslab, MetaslabId, SpaceMapStore, SpaceRecord, StoreError,
    VdevGeometry, decode_log_records, decode_records,
};
use millpond_object::{Block, ObjectView};
use millpond_ondisk::pool_directory::{key, vdev_key};
use millpond_ondisk::{BlockId, DecodeError, ObjectId, SpaceMapPhys, Txg, VdevId, WordArray, dsl};
use millpond_vdev::{DraidGeometry, VdevNode};
use millpond_zap::Zap;
use std::collections::BTreeMap;

/// The most metaslabs of a pool that are accepted.
///
/// Correct writers create a few hundred per vdev, and about 2^18 for the largest vdevs. The limit bounds
/// the memory that a hostile configuration can request to some hundred megabytes.
const METASLABS_MAX: u64 = 1 << 21;

/// The space maps of an open pool: the object of each metaslab, and what is unflushed.
///
/// Keeps two words per metaslab in memory.
#[derive(Debug)]
pub struct PoolSpaceMaps<'a> {
    pool: &'a PoolView,
    vdevs: BTreeMap<VdevId, Vdev>,
}

/// A vdev's metaslabs: their space map objects, and the txg since which their changes are only in the logs.
#[derive(Debug)]
pub(crate) struct Vdev {
    pub(crate) geometry: VdevGeometry,
    /// The object that stores `maps`.
    pub(crate) array: Option<ObjectId>,
    /// Space map object by metaslab; 0 for none.
    pub(crate) maps: Vec<u64>,
    /// The object that stores `unflushed`.
    pub(crate) unflushed_array: Option<ObjectId>,
    /// First unflushed txg by metaslab.
    pub(crate) unflushed: Vec<u64>,
}

impl<'a> PoolSpaceMaps<'a> {
    /// Reads the arrays of all top-level vdevs that allocate space.
    ///
    /// # Errors
    /// If an array cannot be read, or the configuration's geometry is impossible.
    pub fn load(pool: &'a PoolView) -> Result<Self, PoolError> {
        let topology = pool.store().topology();
        let mut vdevs = BTreeMap::new();
        let mut room = METASLABS_MAX;
        for (id, node) in topology.tree.tops() {
            if node.is_concrete() {
                let vdev = Vdev::load(pool, id, node, room)?;
                room = room.saturating_sub(vdev.maps.len() as u64);
                vdevs.insert(id, vdev);
            }
        }
        Ok(Self { pool, vdevs })
    }

    /// The geometry of each vdev.
    #[must_use]
    pub fn geometries(&self) -> BTreeMap<VdevId, VdevGeometry> {
        self.vdevs
            .iter()
            .map(|(id, vdev)| (*id, vdev.geometry))
            .collect()
    }
    /// All metaslabs of a vdev with the headers of their space maps.
    ///
    /// Takes about 400 bytes per metaslab; [`PoolSpaceMaps::each_header`] avoids that.
    ///
    /// # Errors
    /// If a header cannot be read.
    pub fn headers(&self, id: VdevId) -> Result<Vec<(Metaslab, Option<SpaceMapPhys>)>, PoolError> {
        let mut headers = vec![];
        self.each_header(id, &mut |metaslab, header| headers.push((metaslab, header)))?;
        Ok(headers)
    }
    /// Calls `each` with every metaslab of a vdev and the header of its space map; `None` for an unused
    /// metaslab.
    ///
    /// # Errors
    /// If a header cannot be read.
    pub fn each_header(
        &self,
        id: VdevId,
        each: &mut dyn FnMut(Metaslab, Option<SpaceMapPhys>),
    ) -> Result<(), PoolError> {
        let Some(vdev) = self.vdevs.get(&id) else {
            return Ok(());
        };
        for (index, map) in (0u64..).zip(&vdev.maps) {
            let Some(metaslab) = vdev.geometry.metaslab(index) else {
                break;
            };
            let header = match ObjectId(*map).some() {
                None => None,
                Some(map) => Some(open_map(self.pool, map)?.1),
            };
            each(metaslab, header);
        }
        Ok(())
    }

    /// Every object in which vdevs store their space usage, with a description: space maps, arrays of space
    /// maps, and arrays of unflushed txgs. [`PoolSpaceMaps::logs`] returns the logs.
    pub fn objects(&self) -> impl Iterator<Item = (ObjectId, &'static str)> + '_ {
        self.vdevs.values().flat_map(|vdev| {
            let maps = vdev.maps.iter().map(|map| (ObjectId(*map), "a space map"));
            let arrays = [
                (vdev.array, "an array of metaslabs"),
                (vdev.unflushed_array, "an array of unflushed txgs"),
            ];
            let arrays = arrays
                .into_iter()
                .filter_map(|(id, what)| Some((id?, what)));
            maps.filter(|(map, _)| map.0 != 0).chain(arrays)
        })
    }

    fn vdev(&self, metaslab: MetaslabId) -> Option<(&Vdev, usize)> {
        let index = usize::try_from(metaslab.index).ok()?;
        Some((self.vdevs.get(&metaslab.vdev)?, index))
    }

    /// Returns the loaded vdevs to a caller that will change them.
    pub(crate) fn into_vdevs(self) -> BTreeMap<VdevId, Vdev> {
        self.vdevs
    }

    /// The log space maps by txg.
    ///
    /// # Errors
    /// If the table of logs cannot be read.
    pub fn logs(&self) -> Result<BTreeMap<Txg, ObjectId>, PoolError> {
        let what = "log space maps";
        let Some(id) = self.pool.find_directory_object(key::LOG_SPACE_MAP_ZAP)? else {
            return Ok(BTreeMap::new());
        };
        let zap = Zap::open(self.pool.mos().object(id).reading(what)?).reading(what)?;
        let mut logs = BTreeMap::new();
        for entry in zap.iter() {
            let entry = entry.reading(what)?;
            if let (Some(txg), Some(log)) = (dsl::hex_key_number(&entry.name), entry.value.first())
            {
                logs.insert(Txg(txg), ObjectId(log));
            }
        }
        Ok(logs)
    }
}

/// The metaslab geometry of a top-level vdev.
pub(crate) fn geometry_of(id: VdevId, node: &VdevNode) -> Result<VdevGeometry, AllocError> {
    let config = &node.config;
    let shift = u8::try_from(config.metaslab_shift).map_err(|_| AllocError::Geometry {
        vdev: id.0,
        reason: "metaslab shift outside 17 to 62",
    })?;
    let group_width = node.draid().map(DraidGeometry::group_width);
    VdevGeometry::new(id, config.asize_bytes, node.ashift, shift, group_width)
}

impl Vdev {
    /// `room` is the number of metaslabs that the pool may still have.
    fn load(pool: &PoolView, id: VdevId, node: &VdevNode, room: u64) -> Result<Self, PoolError> {
        let config = &node.config;
        let geometry = geometry_of(id, node)?;
        let count = geometry.metaslab_count();
        if count > room {
            let reason = "more metaslabs than any writer makes";
            return Err(AllocError::Geometry { vdev: id.0, reason }.into());
        }
        let maps = match config.metaslab_array.some() {
            None => vec![0; count as usize],
            Some(array) => read_words(pool, array, count, "metaslab array")?,
        };
        let unflushed_array = match config.zap_top.and_then(ObjectId::some) {
            None => None,
            Some(zap) => vdev_zap_object(pool, zap, vdev_key::UNFLUSHED_TXGS)?,
        };
        let unflushed = match unflushed_array {
            None => vec![0; count as usize],
            Some(array) => read_words(pool, array, count, "unflushed txgs")?,
        };
        Ok(Self {
            geometry,
            array: config.metaslab_array.some(),
            maps,
            unflushed_array,
            unflushed,
        })
    }
}

impl SpaceMapStore for PoolSpaceMaps<'_> {
    fn replay(
        &self,
        metaslab: MetaslabId,
        each: &mut dyn FnMut(SpaceRecord) -> Result<(), AllocError>,
    ) -> Result<(), AllocError> {
        let wrap = |source| AllocError::Store { metaslab, source };
        let Some((vdev, index)) = self.vdev(metaslab) else {
            return Ok(());
        };
        let map = vdev.maps.get(index).and_then(|map| ObjectId(*map).some());
        let (Some(map), Some(place)) = (map, vdev.geometry.metaslab(metaslab.index)) else {
            return Ok(());
        };
        let (object, phys) = open_map(self.pool, map).map_err(|error| wrap(unreadable(&error)))?;
        let units = place.units();
        each_piece(&object, phys.length_bytes, &wrap, &mut |bytes, block| {
            decode_records(bytes, block.endian, &units, wrap, each)
        })
    }

    fn unflushed_txg(&self, metaslab: MetaslabId) -> Result<Txg, AllocError> {
        let txg = self
            .vdev(metaslab)
            .and_then(|(vdev, index)| vdev.unflushed.get(index));
        Ok(Txg(txg.copied().unwrap_or(0)))
    }

    fn replay_logs(
        &self,
        each: &mut dyn FnMut(LogRecord) -> Result<(), AllocError>,
    ) -> Result<(), AllocError> {
        let logs = self
            .logs()
            .map_err(|error| AllocError::Logs(unreadable(&error)))?;
        for (txg, log) in logs {
            let (object, phys) =
                open_map(self.pool, log).map_err(|error| AllocError::Logs(unreadable(&error)))?;
            each_piece(
                &object,
                phys.length_bytes,
                &AllocError::Logs,
                &mut |bytes, block| {
                    decode_log_records(bytes, block.endian, txg, AllocError::Logs, each)
                },
            )?;
        }
        Ok(())
    }
}

/// Opens a space map and its header.
pub(crate) fn open_map(
    pool: &PoolView,
    id: ObjectId,
) -> Result<(ObjectView, SpaceMapPhys), PoolError> {
    let what = "space map";
    let object = pool.mos().object(id).reading(what)?;
    let bonus = object.bonus().reading(what)?;
    let phys = SpaceMapPhys::decode(bonus, object.dnode().endian).reading(what)?;
    Ok((object, phys))
}

/// Looks up an entry of a vdev's ZAP that names an object.
pub(crate) fn vdev_zap_object(
    pool: &PoolView,
    zap: ObjectId,
    name: &str,
) -> Result<Option<ObjectId>, PoolError> {
    let what = "vdev ZAP";
    let zap = Zap::open(pool.mos().object(zap).reading(what)?).reading(what)?;
    let id = zap.lookup_u64(name.as_bytes()).reading(what)?;
    Ok(id.and_then(|id| ObjectId(id).some()))
}

/// Reads the first `count` words of an array. Words beyond the end of the object are 0. Holes are skipped.
fn read_words(
    pool: &PoolView,
    id: ObjectId,
    count: u64,
    what: &'static str,
) -> Result<Vec<u64>, PoolError> {
    let object = pool.mos().object(id).reading(what)?;
    let per_block = (object.block_bytes() / 8).max(1);
    let mut words = vec![0; count as usize];
    let mut next = BlockId(0);
    while let Some(block) = object.next_data_block(next).reading(what)? {
        let Some(start) = block
            .0
            .checked_mul(per_block)
            .filter(|start| *start < count)
        else {
            break;
        };
        let content = object.read_block(block).reading(what)?;
        let array = WordArray::new(&content.bytes, content.endian);
        for (slot, word) in words.iter_mut().skip(start as usize).zip(array.iter()) {
            *slot = word;
        }
        next = BlockId(block.0.saturating_add(1));
    }
    Ok(words)
}

/// Callback that receives the valid bytes of a block of a space map, and the block.
type EachPiece<'a> = &'a mut dyn FnMut(&[u8], &Block) -> Result<(), AllocError>;

/// Passes the valid bytes of each block of a space map to `each`, in order.
fn each_piece(
    object: &ObjectView,
    length_bytes: u64,
    wrap: &dyn Fn(StoreError) -> AllocError,
    each: EachPiece<'_>,
) -> Result<(), AllocError> {
    if length_bytes > object.length_bytes() {
        let error = DecodeError::new("space map", "it is longer than its object", 8);
        return Err(wrap(error.into()));
    }
    let size = object.block_bytes().max(1);
    let mut at = 0;
    while at < length_bytes {
        let block = object
            .read_block(BlockId(at / size))
            .map_err(|error| wrap(StoreError::Unreadable(error.to_string())))?;
        let count = (length_bytes - at).min(block.bytes.len() as u64) as usize;
        each(&block.bytes[..count], &block)?;
        at += size;
    }
    Ok(())
}

fn unreadable(error: &PoolError) -> StoreError {
    StoreError::Unreadable(error.to_string())
}
