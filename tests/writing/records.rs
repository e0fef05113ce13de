//! Files of records that are larger together than the cache, and what cache devices have of them.

use crate::rig::Rig;
use millpond_block::CacheDeviceStats;
use millpond_device::FileDevice;
use millpond_engine::{
    Caller, FileSystem, NewMode, Node, OpenOptions, Pool, PoolBuilder, Search, WriteAt,
};
use std::sync::Arc;

pub const RECORD: usize = 128 << 10;
pub const RECORDS: usize = 160;
/// Sixteen records, at most.
pub const CACHE_BYTES: u64 = 2 << 20;

pub fn content(seed: u64) -> Vec<u8> {
    millpond_sim::noise(seed, RECORDS * RECORD)
}

/// A pool on the first image whose cache device, the second, is in use.
pub fn with_cache_device(rig: &Rig) -> Pool {
    let plan = PoolBuilder::new("tank").single(&rig.images[0]);
    let pool = plan.cache(&rig.images[1]).create().unwrap();
    pool.datasets().create_filesystem("tank/a", &[]).unwrap();
    pool.export().unwrap();
    open_with_cache_device(rig)
}

/// Opens it again.
pub fn open_with_cache_device(rig: &Rig) -> Pool {
    let options = OpenOptions {
        cache_bytes: Some(CACHE_BYTES),
        ..OpenOptions::default()
    };
    let search = Search::new([rig.folder()]);
    let pool = Pool::open(&search, "tank", &options, &Default::default()).unwrap();
    let for_writing = millpond_device::OpenOptions {
        write: true,
        ..millpond_device::OpenOptions::default()
    };
    let device = FileDevice::open(&rig.images[1], for_writing).unwrap();
    pool.inner().use_cache_device(Arc::new(device)).unwrap();
    pool
}

/// Creates an empty file in `tank/a`.
pub fn create(pool: &Pool, name: &str) -> (Arc<FileSystem>, Node) {
    let files = pool.file_system("tank/a").unwrap();
    let (root, mode) = (files.root().unwrap(), NewMode::exactly(0o644));
    let created = files.create(&Caller::root(), &root, name.as_bytes(), mode, true);
    let (node, _) = created.unwrap();
    (files, node)
}

/// Creates a file with this content, a record at a time.
pub fn write(pool: &Pool, name: &str, content: &[u8]) {
    let (files, node) = create(pool, name);
    for (number, record) in content.chunks(RECORD).enumerate() {
        let at = WriteAt::Offset((number * RECORD) as u64);
        files.write(&Caller::root(), &node, at, record).unwrap();
        if number % 8 == 7 {
            pool.sync().unwrap();
        }
    }
    pool.sync().unwrap();
}

/// Reads a file in an order that causes no prefetch, and feeds the cache device meanwhile.
pub fn read(pool: &Pool, name: &str, content: &[u8]) {
    let files = pool.file_system("tank/a").unwrap();
    let node = files.root().unwrap().lookup(name.as_bytes()).unwrap();
    for number in 0..RECORDS {
        let record = number * 37 % RECORDS;
        let mut bytes = vec![0; RECORD];
        assert_eq!(
            node.read((record * RECORD) as u64, &mut bytes).unwrap(),
            RECORD
        );
        assert!(
            bytes == content[record * RECORD..][..RECORD],
            "record {record}"
        );
        if number % 4 == 3 {
            pool.inner().feed_cache_devices();
        }
    }
}

/// Statistics of the only cache device.
pub fn stats(pool: &Pool) -> CacheDeviceStats {
    let stats = pool.inner().cache_device_stats();
    stats.first().map(|(_, stats)| *stats).unwrap_or_default()
}
