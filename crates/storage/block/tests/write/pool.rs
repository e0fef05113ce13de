//! Pools in memory whose devices fail on demand, and an allocator that can be full on demand.

use millpond_block::{
    Allocate, BlockAddress, BlockCache, BlockStore, BlockWrite, NoSpace, SpaceRequest, Topology,
    WrittenBlock,
};
use millpond_checksum::Salt;
use millpond_device::{Device, DeviceError, MemoryDevice, WriteRequest};
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex};
use millpond_ondisk::{BlockPointer, Dva, Guid, ObjectId, ObjectType, Txg, VdevId};
use millpond_vdev::{IndirectTables, LeafId, LeafTable, Reflow, VdevConfig, VdevTree, VdevType};
use std::collections::BTreeMap;

pub const DEVICE_BYTES: usize = 12 << 20;
pub const TXG: Txg = Txg(100);

/// A device that can fail. Durable writes are applied at once. A flush that fails loses the unflushed
/// writes and reports that once; reads still return them.
#[derive(Debug)]
pub struct Moody {
    pub inner: MemoryDevice,
    /// The contents of the disk itself.
    pub medium: Mutex<Vec<u8>>,
    unflushed: Mutex<Vec<std::ops::Range<usize>>>,
    /// How many flushes or durable writes are to fail.
    pub flushes_to_fail: AtomicU64,
    write_back_errors: AtomicU64,
    pub fails_reads: AtomicBool,
    pub fails_writes: AtomicBool,
    pub fails_flush: AtomicBool,
    /// Writes whose range touches one of these bytes fail.
    pub bad_bytes: Mutex<Vec<std::ops::Range<u64>>>,
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub flushes: AtomicU64,
    before_read: Mutex<Option<Hook>>,
    before_write: Mutex<Option<Hook>>,
    within_flush: Mutex<Option<Hook>>,
}

/// A hook that runs once, during a request.
struct Hook(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

impl Moody {
    fn error(action: &'static str) -> DeviceError {
        DeviceError::Io {
            action,
            offset_bytes: 0,
            length_bytes: 0,
            errno: 5,
            message: "as told".into(),
        }
    }
    /// Loses the unflushed writes.
    pub fn forget_unflushed(&self) {
        self.unflushed.lock().clear();
    }
    /// Makes ranges durable, or loses them.
    fn settle(&self, ranges: Vec<std::ops::Range<usize>>) -> Result<(), DeviceError> {
        let left = &self.flushes_to_fail;
        let one_less = |left: u64| left.checked_sub(1);
        let is_told = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
        if is_told.is_ok() || self.fails_flush.load(Ordering::SeqCst) {
            self.write_back_errors.fetch_add(1, Ordering::SeqCst);
            return Err(Self::error("flush"));
        }
        let mut medium = self.medium.lock();
        for range in ranges {
            let start = range.start as u64;
            self.inner.read(start, &mut medium[range])?;
        }
        Ok(())
    }
    /// Runs a hook at the next read.
    pub fn before_read(&self, hook: impl FnOnce() + Send + 'static) {
        *self.before_read.lock() = Some(Hook(Box::new(hook)));
    }
    /// Runs a hook at the next write.
    pub fn before_write(&self, hook: impl FnOnce() + Send + 'static) {
        *self.before_write.lock() = Some(Hook(Box::new(hook)));
    }
    /// Runs a hook at the next flush. The flush does not cover what the hook writes.
    pub fn within_flush(&self, hook: impl FnOnce() + Send + 'static) {
        *self.within_flush.lock() = Some(Hook(Box::new(hook)));
    }
    pub fn fail_writes(&self, fails: bool) {
        self.fails_writes.store(fails, Ordering::SeqCst);
    }
}

impl Device for Moody {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn sector_bytes(&self) -> u32 {
        512
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        // The hook may set the next one.
        let hook = self.before_read.lock().take();
        if let Some(Hook(hook)) = hook {
            hook();
        }
        self.reads.fetch_add(1, Ordering::SeqCst);
        if self.fails_reads.load(Ordering::SeqCst) {
            return Err(Self::error("read"));
        }
        self.inner.read(offset_bytes, buffer)
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let hook = self.before_write.lock().take();
        if let Some(Hook(hook)) = hook {
            hook();
        }
        self.writes.fetch_add(1, Ordering::SeqCst);
        let end = offset_bytes + bytes.len() as u64;
        let mut bad = self.bad_bytes.lock().clone().into_iter();
        if self.fails_writes.load(Ordering::SeqCst)
            || bad.any(|bad| bad.start < end && offset_bytes < bad.end)
        {
            return Err(Self::error("write"));
        }
        self.inner.write(offset_bytes, bytes)?;
        let range = offset_bytes as usize..end as usize;
        self.unflushed.lock().push(range);
        Ok(())
    }
    fn write_durable(&self, requests: &mut [WriteRequest<'_>]) {
        for request in requests {
            request.outcome = self.write(request.offset_bytes, request.bytes);
            if request.outcome.is_ok() {
                let range = self.unflushed.lock().pop();
                request.outcome = self.settle(range.into_iter().collect());
            }
        }
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        let ranges = std::mem::take(&mut *self.unflushed.lock());
        let hook = self.within_flush.lock().take();
        if let Some(Hook(hook)) = hook {
            hook();
        }
        self.settle(ranges)
    }
    fn write_back_errors(&self) -> u64 {
        self.write_back_errors.load(Ordering::SeqCst)
    }
    fn discard(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Allocates ever higher addresses, from each vdev in turn; optionally only up to a run length.
pub struct Arena {
    tree: VdevTree,
    state: Mutex<ArenaState>,
}

struct ArenaState {
    next: Vec<u64>,
    turn: usize,
    /// The longest free run, and how many runs there are.
    run_max: u64,
    runs_left: u64,
    live: BTreeMap<(VdevId, u64), u64>,
}

impl Arena {
    pub fn new(tree: &VdevTree) -> Self {
        Self {
            tree: tree.clone(),
            state: Mutex::new(ArenaState {
                next: vec![0; tree.top_count()],
                turn: 0,
                run_max: u64::MAX,
                runs_left: u64::MAX,
                live: BTreeMap::new(),
            }),
        }
    }
    /// Limits free space to `runs` runs of at most `bytes`.
    pub fn shatter(&self, bytes: u64, runs: u64) {
        let mut state = self.state.lock();
        (state.run_max, state.runs_left) = (bytes, runs);
    }
    pub fn live_bytes(&self) -> u64 {
        self.state.lock().live.values().sum()
    }
}

impl Allocate for Arena {
    fn allocate(&self, txg: Txg, request: &SpaceRequest<'_>) -> Result<Vec<Dva>, NoSpace> {
        assert_eq!(txg, TXG);
        let mut state = self.state.lock();
        let mut dvas: Vec<Dva> = vec![];
        let tops = self.tree.top_count();
        for _ in 0..request.copies {
            let vdev = VdevId((state.turn % tops) as u32);
            state.turn += 1;
            let asize = if request.is_gang_header {
                self.tree.gang_header_asize(vdev)
            } else {
                self.tree.asize(vdev, request.psize_bytes, txg)
            };
            let asize = asize.unwrap();
            if asize > state.run_max || state.runs_left == 0 {
                for dva in dvas {
                    state.live.remove(&(dva.vdev, dva.offset_bytes));
                    state.runs_left += 1;
                }
                return Err(NoSpace);
            }
            state.runs_left -= 1;
            let offset = state.next[vdev.0 as usize];
            state.next[vdev.0 as usize] += asize;
            assert_eq!(state.live.insert((vdev, offset), asize), None);
            dvas.push(Dva {
                vdev,
                offset_bytes: offset,
                asize_bytes: asize,
                is_gang: false,
            });
        }
        Ok(dvas)
    }
    fn release(&self, txg: Txg, dva: &Dva) -> Result<(), String> {
        assert_eq!(txg, TXG);
        assert!(!dva.is_gang);
        let mut state = self.state.lock();
        let asize = state.live.remove(&(dva.vdev, dva.offset_bytes));
        assert_eq!(asize, Some(dva.asize_bytes));
        Ok(())
    }
}

pub struct Pool {
    pub devices: Vec<Arc<Moody>>,
    pub tree: VdevTree,
    pub health: LeafTable,
    pub store: BlockStore,
    pub arena: Arena,
    pub is_dynamic: bool,
}

/// A vdev of a test: how many leaves it has, and how many of them may fail.
#[derive(Debug, Clone, Copy)]
pub enum Vdev {
    Disk,
    Mirror(u64),
    Raidz(u64, u64),
    /// Of one group.
    Draid(u64, u64),
}

impl Pool {
    pub fn new(vdevs: &[(Vdev, u64)]) -> Self {
        Self::with(vdevs, false, 0)
    }

    pub fn with(vdevs: &[(Vdev, u64)], is_dynamic: bool, threads: usize) -> Self {
        let mut guid = 10;
        let mut leaf = || {
            guid += 1;
            let mut leaf = VdevConfig::new(VdevType::File, Guid(guid));
            leaf.path = Some(format!("disk{guid}"));
            leaf
        };
        let mut tops = vec![];
        for (number, (vdev, ashift)) in vdevs.iter().enumerate() {
            let of = |kind, children| VdevConfig {
                children,
                ..VdevConfig::new(kind, Guid(1000 + number as u64))
            };
            let mut top = match vdev {
                Vdev::Disk => leaf(),
                Vdev::Mirror(sides) => of(VdevType::Mirror, (0..*sides).map(|_| leaf()).collect()),
                Vdev::Raidz(children, parity) => VdevConfig {
                    nparity: Some(*parity),
                    ..of(VdevType::Raidz, (0..*children).map(|_| leaf()).collect())
                },
                Vdev::Draid(children, parity) => VdevConfig {
                    nparity: Some(*parity),
                    draid_ndata: Some(children - parity),
                    draid_nspares: Some(0),
                    draid_ngroups: Some(1),
                    ..of(VdevType::Draid, (0..*children).map(|_| leaf()).collect())
                },
            };
            (top.id, top.ashift) = (Some(number as u64), *ashift);
            (top.asize_bytes, top.metaslab_shift) = (8 << 20, 20);
            tops.push(top);
        }
        let root = VdevConfig::root(Guid(1), tops);
        let tree = VdevTree::new(root, Reflow::default()).unwrap();
        let devices: Vec<Arc<Moody>> = (0..tree.leaf_count())
            .map(|_| {
                Arc::new(Moody {
                    reads: AtomicU64::new(0),
                    inner: MemoryDevice::new(vec![0xa5; DEVICE_BYTES]),
                    medium: Mutex::new(vec![0xa5; DEVICE_BYTES]),
                    unflushed: Mutex::default(),
                    flushes_to_fail: AtomicU64::new(0),
                    write_back_errors: AtomicU64::new(0),
                    fails_reads: AtomicBool::new(false),
                    fails_writes: AtomicBool::new(false),
                    fails_flush: AtomicBool::new(false),
                    bad_bytes: Mutex::new(vec![]),
                    writes: AtomicU64::new(0),
                    flushes: AtomicU64::new(0),
                    before_read: Mutex::default(),
                    before_write: Mutex::default(),
                    within_flush: Mutex::default(),
                })
            })
            .collect();
        let health = LeafTable::all_good(tree.leaf_count());
        let pool = Self {
            store: store(&tree, &devices, &health, is_dynamic),
            arena: Arena::new(&tree),
            devices,
            tree,
            health,
            is_dynamic,
        };
        pool.store.set_write_threads(threads);
        pool
    }

    /// A new store over the same devices, with empty cache and counters.
    pub fn reopened(&self) -> BlockStore {
        store(&self.tree, &self.devices, &self.health, self.is_dynamic)
    }

    /// Makes a leaf absent for stores that are opened from now on.
    pub fn remove(&mut self, leaf: u32) {
        self.health.entry(LeafId(leaf)).unwrap().is_readable = false;
    }

    pub fn write(&self, jobs: Vec<BlockWrite>) -> Vec<WrittenBlock> {
        let written = self.store.write(TXG, &self.arena, jobs);
        written.into_iter().map(Result::unwrap).collect()
    }

    pub fn write_one(&self, job: BlockWrite) -> WrittenBlock {
        self.write(vec![job]).remove(0)
    }

    /// Reads through a store with an empty cache.
    pub fn read(&self, pointer: &BlockPointer) -> Vec<u8> {
        let store = self.reopened();
        store.read(pointer, address(), None).unwrap().bytes.to_vec()
    }
}

fn store(
    tree: &VdevTree,
    devices: &[Arc<Moody>],
    health: &LeafTable,
    is_dynamic: bool,
) -> BlockStore {
    let devices = devices
        .iter()
        .map(|device| Some(Arc::clone(device) as Arc<dyn Device>))
        .collect();
    let indirect = IndirectTables::default();
    let mut topology = Topology::new(tree.clone(), devices, health.clone(), indirect);
    topology.has_large_gang_headers = is_dynamic;
    let store = BlockStore::new(topology, BlockCache::new(8 << 20));
    store.set_salt(Salt([7; 32]));
    store
}

pub fn address() -> BlockAddress {
    BlockAddress {
        dataset: 5,
        object: ObjectId(7),
        ..BlockAddress::default()
    }
}

pub fn job(content: Vec<u8>) -> BlockWrite {
    BlockWrite::new(address(), ObjectType::PLAIN_FILE, Arc::new(content))
}

/// Bytes that do not compress.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// Bytes that compress to about half.
pub fn text(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = noise(seed, length);
    for chunk in bytes.chunks_mut(64) {
        let half = chunk.len() / 2;
        chunk[half..].fill(b' ');
    }
    bytes
}
