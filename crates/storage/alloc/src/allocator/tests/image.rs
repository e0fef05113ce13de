//! Space maps as bytes in memory, in place of a pool's objects.

use std::collections::BTreeMap;

use super::*;
use crate::{
    LogRecord, Metaslab, SpaceRecord, StoreError, UnflushedLogs, decode_log_records,
    decode_records, load_metaslab,
};
use millpond_ondisk::{Endian, ObjectId, SpaceMapPhys};

/// One state of all maps.
#[derive(Debug, Clone, Default)]
pub(super) struct Image {
    pub(super) maps: BTreeMap<MapName, Map>,
    pub(super) unflushed: BTreeMap<MetaslabId, Txg>,
    next_object: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Map {
    pub(super) shape: MapShape,
    pub(super) bytes: Vec<u8>,
    pub(super) header: SpaceMapPhys,
}

/// The state that is being changed.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) image: Mutex<Image>,
    pub(super) block_bytes: u64,
    pub(super) places: BTreeMap<MetaslabId, Metaslab>,
    /// Metaslabs whose maps cannot be read.
    pub(super) unreadable: Mutex<Vec<MetaslabId>>,
}

impl Memory {
    pub(super) fn new(vdevs: &[VdevSpace], block_bytes: u64, image: Image) -> Arc<Self> {
        let places = vdevs
            .iter()
            .flat_map(|vdev| {
                let geometry = vdev.geometry;
                (0..geometry.metaslab_count()).map(move |index| geometry.metaslab(index).unwrap())
            })
            .map(|place| (place.id, place))
            .collect();
        Arc::new(Self {
            image: Mutex::new(image),
            block_bytes,
            places,
            unreadable: Mutex::default(),
        })
    }
    pub(super) fn snapshot(&self) -> Image {
        self.image.lock().clone()
    }
    fn fresh(&self, name: MapName, image: &mut Image) -> MapShape {
        image.next_object += 1;
        let shape = MapShape {
            object: ObjectId(image.next_object),
            block_bytes: self.block_bytes,
            has_histogram: true,
        };
        let map = Map {
            shape,
            bytes: vec![],
            header: SpaceMapPhys {
                object: None,
                length_bytes: 0,
                allocated_bytes: 0,
                histogram: Some(Default::default()),
            },
        };
        image.maps.insert(name, map);
        shape
    }
}

impl SpaceMapStore for Memory {
    fn replay(
        &self,
        metaslab: MetaslabId,
        each: &mut dyn FnMut(SpaceRecord) -> Result<(), AllocError>,
    ) -> Result<(), AllocError> {
        let wrap = |source| AllocError::Store { metaslab, source };
        if self.unreadable.lock().contains(&metaslab) {
            return Err(wrap(StoreError::Unreadable("broken".into())));
        }
        let map = self
            .image
            .lock()
            .maps
            .get(&MapName::Metaslab(metaslab))
            .cloned();
        let Some(map) = map else { return Ok(()) };
        let units = self.places[&metaslab].units();
        // Block by block, as objects are read.
        let valid = &map.bytes[..map.header.length_bytes as usize];
        for block in valid.chunks(self.block_bytes as usize) {
            decode_records(block, Endian::Little, &units, wrap, each)?;
        }
        Ok(())
    }
    fn unflushed_txg(&self, metaslab: MetaslabId) -> Result<Txg, AllocError> {
        let image = self.image.lock();
        Ok(image.unflushed.get(&metaslab).copied().unwrap_or(Txg(0)))
    }
    fn replay_logs(
        &self,
        each: &mut dyn FnMut(LogRecord) -> Result<(), AllocError>,
    ) -> Result<(), AllocError> {
        for (name, map) in self.snapshot().maps {
            if let MapName::Log(txg) = name {
                let valid = &map.bytes[..map.header.length_bytes as usize];
                for block in valid.chunks(self.block_bytes as usize) {
                    decode_log_records(block, Endian::Little, txg, AllocError::Logs, each)?;
                }
            }
        }
        Ok(())
    }
}

impl SpaceMapWriter for Memory {
    fn create(&self, map: MapName) -> Result<MapShape, StoreError> {
        let mut image = self.image.lock();
        assert!(!image.maps.contains_key(&map), "{map:?} is made twice");
        Ok(self.fresh(map, &mut image))
    }
    fn truncate(&self, metaslab: MetaslabId) -> Result<MapShape, StoreError> {
        let mut image = self.image.lock();
        let name = MapName::Metaslab(metaslab);
        assert!(image.maps.contains_key(&name));
        Ok(self.fresh(name, &mut image))
    }
    fn append(&self, map: MapName, offset_bytes: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let mut image = self.image.lock();
        let map = image.maps.get_mut(&map).expect("a map that exists");
        assert_eq!(map.bytes.len() as u64, offset_bytes, "an append at the end");
        map.bytes.extend_from_slice(bytes);
        Ok(())
    }
    fn put_header(&self, map: MapName, header: &SpaceMapPhys) -> Result<(), StoreError> {
        let mut image = self.image.lock();
        let map = image.maps.get_mut(&map).expect("a map that exists");
        assert_eq!(header.length_bytes, map.bytes.len() as u64);
        assert_eq!(header.object, Some(map.shape.object));
        // Round trip through the bytes of the bonus.
        map.header = SpaceMapPhys::decode(&header.encode(), Endian::Little).unwrap();
        Ok(())
    }
    fn set_unflushed_txg(&self, metaslab: MetaslabId, txg: Txg) -> Result<(), StoreError> {
        self.image.lock().unflushed.insert(metaslab, txg);
        Ok(())
    }
    fn remove_log(&self, txg: Txg) -> Result<(), StoreError> {
        let removed = self.image.lock().maps.remove(&MapName::Log(txg));
        assert!(removed.is_some(), "the log of {txg} exists");
        Ok(())
    }
}

impl Image {
    pub(super) fn logs(&self) -> Vec<Txg> {
        let log = |name: &MapName| match name {
            MapName::Log(txg) => Some(*txg),
            MapName::Metaslab(_) => None,
        };
        self.maps.keys().filter_map(log).collect()
    }
    /// An allocator made from this state alone, and its store.
    pub(super) fn open(
        &self,
        vdevs: &[VdevSpace],
        block_bytes: u64,
        forms: SpaceMapForms,
    ) -> (PoolAllocator, Arc<Memory>) {
        let memory = Memory::new(vdevs, block_bytes, self.clone());
        let geometries = vdevs.iter().map(|vdev| (vdev.vdev(), vdev.geometry));
        let unflushed =
            UnflushedLogs::load(&*memory, &geometries.collect(), &|_| false).expect("good logs");
        let opened = vdevs.iter().map(|space| OpenedVdev {
            space: space.clone(),
            metaslabs: (0..space.geometry.metaslab_count())
                .map(|index| {
                    let id = space.geometry.metaslab(index).unwrap().id;
                    let map = self.maps.get(&MapName::Metaslab(id));
                    OpenedMetaslab {
                        map: map.map(|map| (map.shape, map.header.clone())),
                        unflushed_txg: self.unflushed.get(&id).copied().unwrap_or(Txg(0)),
                    }
                })
                .collect(),
        });
        let logs = self.maps.iter().filter_map(|(name, map)| match name {
            MapName::Log(txg) => Some((
                *txg,
                OpenedLog {
                    shape: map.shape,
                    header: map.header.clone(),
                },
            )),
            MapName::Metaslab(_) => None,
        });
        let allocator = PoolAllocator::open(
            opened.collect(),
            logs.collect(),
            unflushed,
            memory.clone(),
            forms,
        );
        (allocator.expect("a pool that opens"), memory)
    }

    /// Replays everything strictly, using only the reading side. Checks the rules of page
    /// `docs/format/log-space-map.md`. Returns the allocated ranges by vdev.
    pub(super) fn check(
        &self,
        vdevs: &[VdevSpace],
        block_bytes: u64,
        guessed: &BTreeSet<MetaslabId>,
    ) -> Vec<Vec<core::ops::Range<u64>>> {
        let memory = Memory::new(vdevs, block_bytes, self.clone());
        let geometries: BTreeMap<_, _> = vdevs
            .iter()
            .map(|vdev| (vdev.vdev(), vdev.geometry))
            .collect();
        let logs = self.logs();
        for (id, since) in self.unflushed.iter().filter(|(_, since)| since.0 != 0) {
            assert!(
                logs.contains(since),
                "{id} is unflushed since {since}, logs are {logs:?}"
            );
        }
        if let Some(oldest) = self.unflushed.values().filter(|since| since.0 != 0).min() {
            assert!(
                logs.iter().all(|log| log >= oldest),
                "{logs:?} reach before {oldest}"
            );
        }
        for (name, map) in &self.maps {
            // The records that a reader gets block by block must add up to the header's value.
            let mut sum = 0i64;
            let mut add = |record: SpaceRecord| {
                let size = (record.range.end - record.range.start) as i64;
                sum += match record.action {
                    millpond_ondisk::SpaceAction::Allocate => size,
                    millpond_ondisk::SpaceAction::Free => -size,
                };
            };
            match name {
                MapName::Metaslab(id) => memory
                    .replay(*id, &mut |record| {
                        add(record);
                        Ok(())
                    })
                    .unwrap(),
                MapName::Log(txg) => memory
                    .replay_logs(&mut |record| {
                        if record.txg == *txg {
                            add(record.record);
                        }
                        Ok(())
                    })
                    .unwrap(),
            }
            assert_eq!(map.header.allocated_bytes, sum, "{name:?}");
        }
        let unflushed = UnflushedLogs::load(&*memory, &geometries, &|_| false).unwrap();
        let mut all = vec![];
        for geometry in geometries.values() {
            let mut allocated = vec![];
            for index in 0..geometry.metaslab_count() {
                let place = geometry.metaslab(index).unwrap();
                let space = load_metaslab(&*memory, place.clone(), &unflushed).unwrap();
                if let Some(map) = self.maps.get(&MapName::Metaslab(place.id)) {
                    let changes = unflushed.of(place.id).map_or(0, |of| of.allocated_bytes());
                    assert_eq!(
                        map.header.allocated_bytes + changes,
                        space.allocated_bytes() as i64
                    );
                    let exact = Some(space.free.histogram(place.ashift.0));
                    if !guessed.contains(&place.id) {
                        assert_eq!(map.header.histogram, exact, "{}", place.id);
                    }
                } else {
                    assert_eq!(space.allocated_bytes(), 0);
                }
                allocated.extend(space.free.gaps(&place.range));
            }
            all.push(allocated);
        }
        all
    }
}
