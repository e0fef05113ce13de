//! The properties `primarycache` and `prefetch` of a real pool decide what is read from its device.

use crate::rig::Rig;
use millpond_engine::{
    Caller, FileSystem, OpenOptions, Pool, PropertyValue, Search, Volume, WriteAt, WriteOptions,
};
use std::sync::Arc;

const ALL: u64 = 2;
const METADATA: u64 = 1;
const NONE: u64 = 0;
/// Twenty records and a part of one.
const LENGTH: usize = (20 << 17) + 5000;

struct Tank {
    pool: Pool,
    content: Vec<u8>,
}

impl Tank {
    /// A pool with a file in `tank/a`, a snapshot of it, and a volume with the same content; opened again, so
    /// that nothing is cached.
    fn new(rig: &Rig, length: usize, record_bytes: u64, options: &OpenOptions) -> Self {
        let pool = rig.stripe("tank").create().unwrap();
        let content = millpond_sim::noise(7, length);
        let number = |name: &str, number| (name.to_owned(), PropertyValue::Number(number));
        let datasets = pool.datasets();
        let records = number("recordsize", record_bytes);
        datasets.create_filesystem("tank/a", &[records]).unwrap();
        datasets
            .create_volume("tank/v", &[number("volsize", 16 << 20)])
            .unwrap();
        write(&pool, "file", &content);
        pool.volume("tank/v").unwrap().write(0, &content).unwrap();
        pool.sync().unwrap();
        pool.datasets().snapshot(&["tank/a@s"], &[]).unwrap();
        pool.export().unwrap();
        let search = Search::new([rig.folder()]);
        let pool = Pool::open(&search, "tank", options, &WriteOptions::default()).unwrap();
        Self { pool, content }
    }

    fn set(&self, dataset: &str, property: &str, number: u64) {
        let change = (property.to_owned(), PropertyValue::Number(number));
        (self.pool.datasets())
            .set_properties(dataset, &[change])
            .unwrap();
    }

    /// The bytes that an action reads from the device.
    fn cost(&self, act: impl FnOnce()) -> usize {
        let read = || {
            self.pool.inner().store().topology().counters[0]
                .stats()
                .read_bytes
        };
        let before = read();
        act();
        usize::try_from(read() - before).unwrap()
    }
}

fn write(pool: &Pool, name: &str, content: &[u8]) {
    let (files, node) = crate::records::create(pool, name);
    files
        .write(&Caller::root(), &node, WriteAt::Offset(0), content)
        .unwrap();
}

/// Something open that has the content.
enum Reader {
    File(Arc<FileSystem>),
    Volume(Arc<Volume>),
}

impl Reader {
    fn read(&self, name: &str, content: &[u8], step: usize) {
        let node = match self {
            Self::File(files) => Some(files.root().unwrap().lookup(name.as_bytes()).unwrap()),
            Self::Volume(_) => None,
        };
        for at in (0..content.len()).step_by(step) {
            let mut bytes = vec![0; step.min(content.len() - at)];
            match self {
                Self::File(_) => {
                    let node = node.as_ref().unwrap();
                    let count = node.read(at as u64, &mut bytes).unwrap();
                    assert_eq!(count, bytes.len());
                }
                Self::Volume(volume) => volume.read(at as u64, &mut bytes).unwrap(),
            }
            assert!(bytes == content[at..][..bytes.len()], "bytes from {at}");
        }
    }
}

#[test]
fn primarycache_decides_what_is_read_from_the_device_again() {
    let rig = Rig::new(1, 128);
    let options = OpenOptions {
        prefetch: false,
        cache_bytes: Some(64 << 20),
        ..OpenOptions::default()
    };
    let tank = Tank::new(&rig, LENGTH, 128 << 10, &options);
    let view = tank.pool.committed().unwrap();
    let snapshot = view.dataset("tank/a@s").unwrap();
    let readers = [
        Reader::File(tank.pool.file_system("tank/a").unwrap()),
        Reader::File(snapshot.file_system().unwrap()),
        Reader::Volume(tank.pool.volume("tank/v").unwrap()),
    ];
    // The second read, with the first to forget what was cached before.
    let again = |reader: &Reader| {
        reader.read("file", &tank.content, 1 << 20);
        tank.cost(|| reader.read("file", &tank.content, 1 << 20))
    };
    for (number, reader) in readers.iter().enumerate() {
        assert_eq!(again(reader), 0, "reader {number}: everything is cached");
    }
    // All three inherit it.
    tank.set("tank", "primarycache", METADATA);
    for (number, reader) in readers.iter().enumerate() {
        let cost = again(reader);
        // The last record is stored with its zeros, and compressed. Of a volume it stays until its end is read.
        let least = match reader {
            Reader::File(_) => LENGTH,
            Reader::Volume(_) => 20 << 17,
        };
        let range = least..LENGTH + (128 << 10);
        assert!(range.contains(&cost), "reader {number}: {cost} bytes");
    }
    let of_data = again(&readers[0]);
    tank.set("tank/a", "primarycache", NONE);
    for (number, reader) in readers.iter().take(2).enumerate() {
        let cost = again(reader);
        assert!(cost > of_data, "reader {number}: metadata is read, too");
        let metadata = cost - of_data;
        assert!(metadata < 512 << 10, "reader {number}: {metadata} bytes");
    }
    tank.pool
        .datasets()
        .inherit("tank/a", "primarycache", false)
        .unwrap();
    again(&readers[0]);
    assert_eq!(again(&readers[0]), of_data);
    tank.set("tank", "primarycache", ALL);
    for (number, reader) in readers.iter().enumerate() {
        assert_eq!(again(reader), 0, "reader {number}");
    }
}

#[test]
fn written_blocks_stay_cached_as_primarycache_says() {
    let rig = Rig::new(1, 128);
    let options = OpenOptions {
        prefetch: false,
        cache_bytes: Some(64 << 20),
        ..OpenOptions::default()
    };
    let tank = Tank::new(&rig, LENGTH, 128 << 10, &options);
    let files = Reader::File(tank.pool.file_system("tank/a").unwrap());
    let written = |name: &str, number| {
        tank.set("tank/a", "primarycache", number);
        write(&tank.pool, name, &tank.content);
        tank.pool.sync().unwrap();
        tank.cost(|| files.read(name, &tank.content, LENGTH))
    };
    assert_eq!(written("one", ALL), 0);
    let data = written("two", METADATA);
    assert!(data >= LENGTH, "{data}");
    assert!(written("three", NONE) > data);
}

#[test]
fn freed_blocks_leave_the_cache() {
    let rig = Rig::new(1, 128);
    let options = OpenOptions {
        cache_bytes: Some(64 << 20),
        ..OpenOptions::default()
    };
    let tank = Tank::new(&rig, LENGTH, 128 << 10, &options);
    let files = tank.pool.file_system("tank/a").unwrap();
    let node = files.root().unwrap().lookup(b"file").unwrap();
    let cached = || tank.pool.inner().store().cache_statistics();
    for _ in 0..12 {
        (files.write(&Caller::root(), &node, WriteAt::Offset(0), &tank.content)).unwrap();
        tank.pool.sync().unwrap();
        assert!(cached().data_bytes >= LENGTH as u64);
    }
    // One version of the file, and not the eleven before.
    let now = cached();
    assert!(now.data_bytes < 2 * LENGTH as u64, "{now:?}");
    let two = |weight: u64| weight < 2 * LENGTH as u64 + (4 << 20);
    assert!(two(now.weight_bytes), "{now:?}");
}

#[test]
fn a_pool_opened_for_reading_obeys_primarycache_too() {
    let rig = Rig::new(1, 128);
    let options = OpenOptions {
        prefetch: false,
        cache_bytes: Some(64 << 20),
        ..OpenOptions::default()
    };
    let tank = Tank::new(&rig, LENGTH, 128 << 10, &options);
    tank.set("tank/v", "primarycache", METADATA);
    let Tank { pool, content } = tank;
    pool.export().unwrap();
    let search = Search::new([rig.folder()]);
    let view = millpond_engine::View::open(&search, "tank", &options).unwrap();
    let data_of = |dataset: &str| {
        let before = view.inner().store().cache_statistics().data_bytes;
        let dataset = view.dataset(dataset).unwrap();
        let reader = match dataset.has_files().unwrap() {
            true => Reader::File(dataset.file_system().unwrap()),
            false => Reader::Volume(Arc::new(dataset.volume().unwrap())),
        };
        reader.read("file", &content, 1 << 20);
        view.inner().store().cache_statistics().data_bytes - before
    };
    assert_eq!(data_of("tank/v"), 0);
    assert!(data_of("tank/a") > LENGTH as u64);
}

#[test]
fn prefetch_decides_what_is_read_before_it_is_requested() {
    let rig = Rig::new(1, 128);
    // More blocks than one indirect block points to.
    let options = OpenOptions {
        cache_bytes: Some(64 << 20),
        ..OpenOptions::default()
    };
    let tank = Tank::new(&rig, 1500 << 12, 4096, &options);
    let view = tank.pool.committed().unwrap();
    let snapshot = view.dataset("tank/a@s").unwrap();
    let readers = [
        Reader::File(tank.pool.file_system("tank/a").unwrap()),
        Reader::File(snapshot.file_system().unwrap()),
    ];
    // Look-ups by prefetch: of data, of metadata.
    let prefetched = |reader: &Reader| {
        let store = tank.pool.inner().store();
        let before = store.cache_statistics().prefetch;
        reader.read("file", &tank.content, 16 << 10);
        store.wait_for_prefetch();
        let now = store.cache_statistics().prefetch;
        let of_metadata = |counts: &millpond_engine::CacheLookups| {
            counts.metadata_hits + counts.metadata_io_hits + counts.metadata_misses
        };
        let metadata = of_metadata(&now) - of_metadata(&before);
        (now.count() - before.count() - metadata, metadata)
    };
    for reader in &readers {
        tank.set("tank", "prefetch", NONE);
        assert_eq!(prefetched(reader), (0, 0));
        tank.set("tank", "prefetch", METADATA);
        let (data, metadata) = prefetched(reader);
        assert_eq!(data, 0);
        assert!(metadata > 0);
        tank.set("tank", "prefetch", ALL);
        assert!(prefetched(reader).0 > 0);
    }
}
