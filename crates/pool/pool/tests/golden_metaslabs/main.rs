//! Replays every metaslab of pools created by OpenZFS, and compares the resulting statistics with the
//! output of `zpool get` and `zfs get`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation
)]

#[allow(dead_code)]
#[path = "../golden_import/images.rs"]
mod images;

use images::{Case, cases};
use millpond_alloc::{
    AllocError, AllocationClass, LogRecord, MetaslabFragmentation, MetaslabId, PoolUsage,
    SlopShare, SpaceMapStore, SpaceRecord, StoreError, UnflushedLogs, VdevGeometry, VdevUsage,
    decode_log_records, decode_records, deflated_bytes, embedded_log_metaslab, load_metaslab,
    metaslab_fragmentation, pool_fragmentation, vdev_fragmentation,
};
use millpond_env::Env;
use millpond_ondisk::dsl::hex_key_number;
use millpond_ondisk::pool_directory::{key, vdev_key};
use millpond_ondisk::{
    Ashift, BlockId, BpObjectPhys, DslDirectoryPhys, Endian, ObjectId, SpaceMapPhys, Txg, VdevId,
};
use millpond_pool::import::{find_pools, scan_devices};
use millpond_pool::{OpenOptions, PoolView};
use millpond_vdev::{Reflow, VdevTree};
use millpond_zap::Zap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most bytes that the txgs of an export may change.
const LAST_TXGS_BYTES: u64 = 256 << 10;

/// Callback that receives the bytes of a data block and their byte order.
type EachBlock<'a> = dyn FnMut(&[u8], Endian) -> Result<(), AllocError> + 'a;

/// One concrete top-level vdev.
struct Top {
    geometry: VdevGeometry,
    class: AllocationClass,
    is_non_allocating: bool,
    maps: Vec<u64>,
    unflushed: Vec<u64>,
    checkpoint_map: Option<ObjectId>,
}

struct Maps {
    pool: Arc<PoolView>,
    tops: BTreeMap<VdevId, Top>,
    logs: Vec<(Txg, ObjectId)>,
}

impl Maps {
    fn new(pool: Arc<PoolView>) -> Self {
        let tree = pool.config().list("vdev_tree").unwrap().clone();
        let mut tops = BTreeMap::new();
        for (index, vdev) in tree.list_array("children").unwrap().iter().enumerate() {
            let number = |name: &str| vdev.opt_u64(name).unwrap().unwrap_or(0);
            if number("metaslab_array") == 0 {
                continue;
            }
            let id = VdevId(index as u32);
            let zap = vdev
                .opt_u64("com.delphix:vdev_zap_top")
                .unwrap()
                .map(|zap| Zap::open(pool.mos().object(ObjectId(zap)).unwrap()).unwrap());
            let entry = |name: &str| {
                let zap = zap.as_ref()?;
                zap.lookup_u64(name.as_bytes()).unwrap()
            };
            let bias = zap.as_ref().and_then(|zap| {
                let value = zap.lookup(vdev_key::ALLOCATION_BIAS.as_bytes()).unwrap()?;
                let text = value.as_bytes().unwrap().to_vec();
                Some(
                    String::from_utf8(text.split(|byte| *byte == 0).next().unwrap().to_vec())
                        .unwrap(),
                )
            });
            let mut class = AllocationClass::from_bias(bias.as_deref()).unwrap();
            if number("is_log") == 1 {
                class = AllocationClass::Log;
            }
            let width = (vdev.string("type") == Ok("draid"))
                .then(|| number("draid_ndata") + number("nparity"));
            let geometry = VdevGeometry::new(
                id,
                number("asize"),
                Ashift(number("ashift") as u8),
                number("metaslab_shift") as u8,
                width,
            )
            .unwrap();
            let count = geometry.metaslab_count() as usize;
            let words = |object: u64| words(&pool, ObjectId(object), count);
            tops.insert(
                id,
                Top {
                    class,
                    is_non_allocating: number("non_allocating") == 1,
                    maps: words(number("metaslab_array")),
                    unflushed: entry(vdev_key::UNFLUSHED_TXGS)
                        .map(words)
                        .unwrap_or_default(),
                    checkpoint_map: entry(vdev_key::CHECKPOINT_SPACE_MAP).map(ObjectId),
                    geometry,
                },
            );
        }
        let mut logs = Vec::new();
        if let Some(zap) = pool.find_directory_object(key::LOG_SPACE_MAP_ZAP).unwrap() {
            for entry in Zap::open(pool.mos().object(zap).unwrap()).unwrap().iter() {
                let entry = entry.unwrap();
                let txg = Txg(hex_key_number(&entry.name).unwrap());
                logs.push((txg, ObjectId(entry.value.first().unwrap())));
            }
        }
        logs.sort();
        Self { pool, tops, logs }
    }
    fn header(&self, map: ObjectId) -> SpaceMapPhys {
        let object = self.pool.mos().object(map).unwrap();
        SpaceMapPhys::decode(object.bonus().unwrap(), object.dnode().endian).unwrap()
    }
    /// Calls `each` with every data block of a space map, truncated at its length.
    fn blocks(&self, map: ObjectId, each: &mut EachBlock<'_>) -> Result<(), AllocError> {
        let object = self.pool.mos().object(map).unwrap();
        let (mut left, mut index) = (self.header(map).length_bytes as usize, 0);
        while left > 0 {
            let block = object.read_block(BlockId(index)).unwrap();
            let count = left.min(block.bytes.len());
            each(&block.bytes[..count], block.endian)?;
            (left, index) = (left - count, index + 1);
        }
        Ok(())
    }
}

fn words(pool: &PoolView, object: ObjectId, count: usize) -> Vec<u64> {
    let object = pool.mos().object(object).unwrap();
    let mut bytes = vec![0; count * 8];
    let end = bytes.len().min(object.length_bytes() as usize);
    let endian = object.read_block(BlockId(0)).unwrap().endian;
    object.read(0, &mut bytes[..end]).unwrap();
    millpond_ondisk::WordArray::new(&bytes, endian)
        .iter()
        .collect()
}

impl SpaceMapStore for Maps {
    fn replay(
        &self,
        metaslab: MetaslabId,
        each: &mut dyn FnMut(SpaceRecord) -> Result<(), AllocError>,
    ) -> Result<(), AllocError> {
        let top = &self.tops[&metaslab.vdev];
        let map = ObjectId(top.maps[metaslab.index as usize]);
        if map == ObjectId(0) {
            return Ok(());
        }
        let units = top.geometry.metaslab(metaslab.index).unwrap().units();
        let wrap = |source| AllocError::Store { metaslab, source };
        self.blocks(map, &mut |bytes, endian| {
            decode_records(bytes, endian, &units, wrap, each)
        })
    }
    fn unflushed_txg(&self, metaslab: MetaslabId) -> Result<Txg, AllocError> {
        let unflushed = &self.tops[&metaslab.vdev].unflushed;
        Ok(Txg(unflushed
            .get(metaslab.index as usize)
            .copied()
            .unwrap_or(0)))
    }
    fn replay_logs(
        &self,
        each: &mut dyn FnMut(LogRecord) -> Result<(), AllocError>,
    ) -> Result<(), AllocError> {
        for (txg, map) in &self.logs {
            self.blocks(*map, &mut |bytes, endian| {
                decode_log_records(
                    bytes,
                    endian,
                    *txg,
                    |error: StoreError| AllocError::Logs(error),
                    each,
                )
            })?;
        }
        Ok(())
    }
}

fn open(case: &Case) -> Arc<PoolView> {
    let found = scan_devices(case.candidates());
    let candidate = find_pools(&found, 0).remove(0);
    PoolView::open(&Env::real(), &candidate, &OpenOptions::default()).unwrap()
}

/// Compares the values recorded for a pool with those computed here.
fn compare(case: &Case, complaints: &mut Vec<String>) -> u64 {
    let maps = Maps::new(open(case));
    let tree = VdevTree::new(maps.pool.assembly().root.clone(), Reflow::default()).unwrap();
    let geometries: BTreeMap<_, _> = maps
        .tops
        .iter()
        .map(|(id, top)| (*id, top.geometry))
        .collect();
    let logs = UnflushedLogs::load(&maps, &geometries, &|_| true).unwrap();
    let mut usage = PoolUsage::default();
    let (mut fragmentation, mut loaded) = (Vec::new(), 0);
    for (id, top) in &maps.tops {
        let (mut allocated, mut metaslabs, mut used) = (0, Vec::new(), Vec::new());
        for (index, map) in top.maps.iter().enumerate() {
            let metaslab = top.geometry.metaslab(index as u64).unwrap();
            let name = metaslab.id;
            let space = load_metaslab(&maps, metaslab, &logs).unwrap();
            loaded += 1;
            let header = (*map != 0).then(|| maps.header(ObjectId(*map)));
            let own = header.as_ref().map_or(0, |header| header.allocated_bytes);
            let unflushed = logs.of(name).map_or(0, |changes| changes.allocated_bytes());
            if own + unflushed != space.allocated_bytes() as i64 {
                complaints.push(format!("{}: {name}: replay and header differ", case.name));
            }
            used.push(own);
            allocated += space.allocated_bytes();
            metaslabs.push(MetaslabFragmentation {
                percent: match &header {
                    None => Some(0),
                    Some(header) => header
                        .histogram
                        .map(|histogram| metaslab_fragmentation(&histogram, top.geometry.ashift())),
                },
                free_bytes: space.free.bytes(),
            });
        }
        let lent = (top.class == AllocationClass::Normal)
            .then(|| embedded_log_metaslab(&used))
            .flatten();
        let embedded_log_bytes = lent.map_or(0, |index| {
            metaslabs.remove(index);
            top.geometry.metaslab(index as u64).unwrap().size_bytes()
        });
        if top.class == AllocationClass::Normal {
            fragmentation.push((
                vdev_fragmentation(&metaslabs),
                top.geometry.space_bytes() - embedded_log_bytes,
            ));
        }
        if let Some(map) = top.checkpoint_map {
            usage.checkpoint_bytes += maps.header(map).allocated_bytes.unsigned_abs();
        }
        usage.vdevs.push(VdevUsage {
            class: top.class,
            space_bytes: top.geometry.space_bytes(),
            allocated_bytes: allocated,
            deflate_ratio: tree.deflate_ratio(*id).unwrap(),
            embedded_log_bytes,
            is_non_allocating: top.is_non_allocating,
        });
    }
    let root = maps.pool.directory_object(key::ROOT_DATASET).unwrap();
    let root = maps.pool.mos().object(root).unwrap();
    let root = DslDirectoryPhys::decode(root.bonus().unwrap(), root.dnode().endian).unwrap();
    usage.counts_special_classes = case.name.starts_with("v24-");
    let saved = case.record["zpool_get"]["bclonesaved"][0].as_str();
    usage.clone_saved_bytes = saved.and_then(|text| text.parse().ok()).unwrap_or(0);
    let limit = usage.limit(SlopShare::All);
    // Some records describe the pool after an import that changed it.
    let is_of_image = case.record["state"].as_str().unwrap_or("").is_empty();
    let mut check = |what: &str, ours: u64, theirs: &str, tolerance: u64| {
        let theirs: u64 = theirs.parse().unwrap();
        if !is_of_image && !["size", "charged"].contains(&what) {
            return;
        }
        if ours.abs_diff(theirs) > tolerance {
            complaints.push(format!(
                "{}: {what}: {ours} here, {theirs} in the record",
                case.name
            ));
        }
    };
    // The record was taken before the export, whose last txgs free and allocate a little.
    let pool = usage.pool();
    check("size", pool.space_bytes, case.property("size"), 0);
    check(
        "allocated",
        pool.allocated_bytes,
        case.property("allocated"),
        LAST_TXGS_BYTES,
    );
    check(
        "free",
        pool.free_bytes(),
        case.property("free"),
        LAST_TXGS_BYTES,
    );
    check(
        "capacity",
        pool.capacity_percent(),
        case.property("capacity"),
        1,
    );
    // Old pools without histograms have no fragmentation value.
    let percent = pool_fragmentation(&fragmentation);
    let recorded = case.property("fragmentation");
    assert_eq!(percent.is_none(), recorded == "-", "{}", case.name);
    if let Some(percent) = percent {
        check("fragmentation", u64::from(percent), recorded, 5);
    }
    let has_dedup = case.property("dedupratio") != "1.00";
    if !has_dedup {
        let available = limit.limit_bytes.saturating_sub(root.used_bytes);
        let properties = &case.record["datasets"][0]["properties"];
        let recorded = properties["available"][0].as_str().unwrap();
        check("available", available, recorded, LAST_TXGS_BYTES);
    }
    // The root is charged for all allocated space to the byte, except what tables share, reservations hold
    // and logs keep. Deferred frees and space kept by a checkpoint are not charged.
    let shares = has_dedup || usage.clone_saved_bytes > 0;
    let datasets = case.record["datasets"].as_array().unwrap();
    let reserves = datasets.iter().any(|dataset| {
        ["reservation", "refreservation"].iter().any(|name| {
            let value = dataset["properties"][name][0].as_str().unwrap_or("0");
            !["0", "none", "-"].contains(&value)
        })
    });
    if !shares && !reserves {
        let deflated: u64 = usage
            .vdevs
            .iter()
            .map(|vdev| deflated_bytes(vdev.allocated_bytes, vdev.deflate_ratio))
            .sum();
        let list = maps.pool.directory_object(key::SYNC_BPLIST).unwrap();
        let list = maps.pool.mos().object(list).unwrap();
        let list = BpObjectPhys::decode(list.bonus().unwrap(), list.dnode().endian).unwrap();
        let charged = deflated - list.bytes - usage.checkpoint_bytes;
        // A clean export may leave a log block of 4 KiB that no dataset is charged for.
        let log_block_bytes = if case.name == "zpl" { 4096 } else { 0 };
        let charged = (charged - log_block_bytes).to_string();
        check("charged", root.used_bytes, &charged, 0);
    }
    loaded
}

#[test]
fn replayed_metaslabs_match_the_recorded_statistics() {
    let mut complaints = Vec::new();
    let mut loaded = 0;
    for case in cases() {
        loaded += compare(&case, &mut complaints);
    }
    println!("{loaded} metaslabs replayed");
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
