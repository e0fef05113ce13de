//! Times of requests, with a clock that only devices advance.

use crate::pool::{Arena, TXG, address, job, noise};
use millpond_block::{
    BlockCache, BlockStore, BlockWrite, IoClass, IoClock, IoStats, LeafCounters, Topology,
};
use millpond_device::{Device, DeviceError, MemoryDevice};
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex, OnceLock};
use millpond_env::{Clock, Env};
use millpond_ondisk::Guid;
use millpond_vdev::{IndirectTables, LeafId, LeafTable, Reflow, VdevConfig, VdevTree, VdevType};

const MS: u64 = 1_000_000;

#[derive(Debug, Default)]
struct Time(AtomicU64);

impl Clock for Time {
    fn wall_ns(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    fn monotonic_ns(&self) -> u64 {
        self.wall_ns()
    }
}

/// A device whose reads take 1 ms, and whose writes take 4 ms at first.
#[derive(Debug)]
struct Slow {
    inner: MemoryDevice,
    time: Arc<Time>,
    counters: OnceLock<Arc<LeafCounters>>,
    /// Requests pending and active, of all classes, as seen by each request.
    seen: Mutex<Vec<(u64, u64)>>,
    panics: AtomicBool,
    write_ns: AtomicU64,
}

impl Slow {
    fn take(&self, ns: u64) {
        if let Some(counters) = self.counters.get() {
            let now = counters.io_stats();
            let counts = (now.pending.iter().sum(), now.active.iter().sum());
            self.seen.lock().push(counts);
        }
        assert!(!self.panics.load(Ordering::SeqCst), "as told");
        self.time.0.fetch_add(ns, Ordering::SeqCst);
    }
}

impl Device for Slow {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn sector_bytes(&self) -> u32 {
        512
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.take(MS);
        self.inner.read(offset_bytes, buffer)
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.take(self.write_ns.load(Ordering::SeqCst));
        self.inner.write(offset_bytes, bytes)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

struct Stripe {
    store: BlockStore,
    arena: Arena,
    devices: Vec<Arc<Slow>>,
}

impl Stripe {
    /// Single disks; everything happens on the calling thread, in order.
    fn new(disks: u64) -> Self {
        let time = Arc::new(Time::default());
        let tops = (0..disks).map(|id| {
            let mut leaf = VdevConfig::new(VdevType::File, Guid(10 + id));
            (leaf.id, leaf.ashift) = (Some(id), 9);
            (leaf.asize_bytes, leaf.metaslab_shift) = (8 << 20, 20);
            leaf
        });
        let root = VdevConfig::root(Guid(1), tops.collect());
        let tree = VdevTree::new(root, Reflow::default()).unwrap();
        let devices: Vec<Arc<Slow>> = (0..disks)
            .map(|_| {
                Arc::new(Slow {
                    inner: MemoryDevice::new(vec![0; 12 << 20]),
                    time: Arc::clone(&time),
                    counters: OnceLock::new(),
                    seen: Mutex::default(),
                    panics: AtomicBool::new(false),
                    write_ns: AtomicU64::new(4 * MS),
                })
            })
            .collect();
        let present = devices
            .iter()
            .map(|device| Some(Arc::clone(device) as Arc<dyn Device>));
        let health = LeafTable::all_good(tree.leaf_count());
        let indirect = IndirectTables::default();
        let arena = Arena::new(&tree);
        let mut topology = Topology::new(tree, present.collect(), health, indirect);
        topology.clock = IoClock::of(&Env {
            clock: time,
            ..Env::real()
        });
        for (device, counters) in devices.iter().zip(&topology.counters) {
            device.counters.set(Arc::clone(counters)).unwrap();
        }
        let store = BlockStore::new(topology, BlockCache::new(8 << 20));
        store.set_write_threads(1);
        Self {
            store,
            arena,
            devices,
        }
    }

    fn waits(&self, leaf: u32) -> IoStats {
        self.store.topology().io_stats(LeafId(leaf))
    }

    fn jobs(count: u64) -> Vec<BlockWrite> {
        (0..count).map(|seed| job(noise(seed, 8192))).collect()
    }
}

/// Index and count of the non-empty buckets.
fn filled(counts: &[u64]) -> Vec<(usize, u64)> {
    let pairs = counts.iter().copied().enumerate();
    pairs.filter(|(_, count)| *count > 0).collect()
}

fn bucket(ns: u64) -> usize {
    ns.ilog2() as usize
}

const ASYNC_WRITE: usize = IoClass::AsyncWrite as usize;

#[test]
fn adjacent_writes_count_as_one_operation() {
    let pool = Stripe::new(1);
    let written = pool.store.write(TXG, &pool.arena, Stripe::jobs(3));
    assert!(written.iter().all(Result::is_ok));
    let waits = pool.waits(0);
    assert_eq!(filled(&waits.total[1].counts), [(bucket(12 * MS), 1)]);
    assert_eq!(waits.total[1], waits.disk[1]);
    assert_eq!(waits.total[1].sum_ns, 12 * MS);
    assert_eq!(waits.queue[ASYNC_WRITE].counts, [1]);
    assert_eq!(filled(&waits.asked[ASYNC_WRITE]), [(13, 3)]);
    assert_eq!(filled(&waits.joined[ASYNC_WRITE]), [(14, 1)]);
    assert_eq!(waits.total[0].counts, []);
    // All three are with the device from the start.
    assert_eq!(*pool.devices[0].seen.lock(), [(0, 3); 3]);
}

#[test]
fn queue_time_is_counted_for_later_leaves() {
    let pool = Stripe::new(2);
    let written = pool.store.write(TXG, &pool.arena, Stripe::jobs(2));
    assert!(written.iter().all(Result::is_ok));
    let (first, second) = (pool.waits(0), pool.waits(1));
    assert_eq!(first.total[1].sum_ns, 4 * MS);
    assert_eq!(second.total[1].sum_ns, 8 * MS);
    assert_eq!(second.disk[1].sum_ns, 4 * MS);
    assert_eq!(
        filled(&second.queue[ASYNC_WRITE].counts),
        [(bucket(4 * MS), 1)]
    );
    assert_eq!((second.pending, second.active), ([0; 7], [0; 7]));
}

#[test]
fn reads_are_counted_once_by_their_class() {
    let pool = Stripe::new(1);
    let mut written = pool.store.write_durable(TXG, &pool.arena, Stripe::jobs(1));
    let pointer = written.remove(0).unwrap().pointer;
    for _ in 0..2 {
        let read = pool.store.read_uncached(&pointer, address(), None);
        read.unwrap();
    }
    pool.store.audit(&pointer, address()).unwrap();
    assert!(pool.store.prefetch(&pointer, address(), None).is_some());
    let waits = pool.waits(0);
    let asked = |class: IoClass| filled(&waits.asked[class as usize]);
    assert_eq!(asked(IoClass::SyncWrite), [(13, 1)]);
    assert_eq!(asked(IoClass::AsyncWrite), []);
    assert_eq!(asked(IoClass::SyncRead), [(13, 2)]);
    assert_eq!(asked(IoClass::Scrub), [(13, 1)]);
    assert_eq!(asked(IoClass::AsyncRead), [(13, 1)]);
    let reads: u64 = waits.total[0].counts.iter().sum();
    let stats = pool.store.topology().leaf_stats(LeafId(0));
    assert_eq!((reads, stats.reads), (4, 4));
    assert_eq!(waits.disk[0].sum_ns, 4 * MS);
    assert_eq!(waits.joined, <[Vec<u64>; 7]>::default());
}

#[test]
fn nothing_waits_for_ever_after_a_device_panicked() {
    let pool = Stripe::new(1);
    let mut written = pool.store.write(TXG, &pool.arena, Stripe::jobs(1));
    let pointer = written.remove(0).unwrap().pointer;
    pool.devices[0].panics.store(true, Ordering::SeqCst);
    let attempt = |work: &dyn Fn()| {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        assert!(caught.is_err());
    };
    attempt(&|| drop(pool.store.write(TXG, &pool.arena, Stripe::jobs(2))));
    attempt(&|| drop(pool.store.read_uncached(&pointer, address(), None)));
    let waits = pool.waits(0);
    assert_eq!((waits.pending, waits.active), ([0; 7], [0; 7]));
    assert_eq!(waits.total[0].counts, [], "it never came back");
}

#[test]
fn requests_over_30_s_are_slow_until_clear() {
    let pool = Stripe::new(1);
    let device = pool.store.topology().leaf_device(LeafId(0)).unwrap();
    device.write(0, &[0; 512]).unwrap();
    assert_eq!(pool.waits(0).slow, 0);
    pool.devices[0]
        .write_ns
        .store(30_000 * MS, Ordering::SeqCst);
    device.write(0, &[0; 512]).unwrap();
    assert_eq!(pool.waits(0).slow, 1);
    pool.store.topology().counters[0].clear_errors();
    assert_eq!(pool.waits(0).slow, 0);
    let total = pool.waits(0).total[1].clone();
    assert_eq!(filled(&total.counts), [(bucket(4 * MS), 1), (34, 1)]);
}

#[test]
fn labels_count_as_synchronous_writes() {
    let pool = Stripe::new(1);
    let device = pool.store.topology().leaf_device(LeafId(0)).unwrap();
    device.write(0, &[0; 1024]).unwrap();
    device.flush().unwrap();
    let stats = pool.store.topology().leaf_stats(LeafId(0));
    assert_eq!(
        (stats.writes, stats.write_bytes, stats.flushes),
        (1, 1024, 1)
    );
    let waits = pool.waits(0);
    assert_eq!(filled(&waits.asked[IoClass::SyncWrite as usize]), [(10, 1)]);
    assert_eq!(filled(&waits.total[1].counts), [(bucket(4 * MS), 1)]);
}
