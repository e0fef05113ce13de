//! An object set on one device in memory, with transaction groups and a sink that replace those of a pool.
//!
//! Every allocated and freed block is recorded, so that leaks and double frees are found.

#![allow(dead_code)]

use millpond_block::{BlockCache, BlockStore, Topology};
use millpond_checksum::checksum;
use millpond_device::{Device, MemoryDevice};
use millpond_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex};
use millpond_env::{Clock, Entropy, Env, thread};
use millpond_object::{
    Accounting, AccountingChange, BlockError, BlockSink, Leak, NewObjectSet, ObjectError,
    ObjectSet, WriteJob, WritePolicy,
};
use millpond_ondisk::{
    BlockPointer, ChecksumKind, CompressionKind, Dva, Endian, Guid, ObjectSetKind, Txg,
    VDEV_DATA_START_BYTES, VdevId,
};
use millpond_posix::{
    Estimate, FileSystem, NewFileSystem, Settings, Space, TransactionError, TransactionSource,
    create_file_system,
};
use millpond_txg::{DirtyLimits, Transaction, TxgError, TxgGroups};
use millpond_vdev::{IndirectTables, LeafTable, Reflow, VdevConfig, VdevTree, VdevType};
use millpond_zap::{AtZero, ZapMut};
use std::collections::BTreeMap;
use std::time::Duration;

pub const DATASET: u64 = 7;
const DEVICE_BYTES: u64 = 1 << 30;

/// A clock that advances a little at each reading.
struct SteppingClock(AtomicU64);

impl Clock for SteppingClock {
    fn wall_ns(&self) -> u64 {
        1_700_000_000_000_000_000 + self.0.fetch_add(1_000_003, Ordering::Relaxed)
    }
    fn monotonic_ns(&self) -> u64 {
        self.0.fetch_add(1_000, Ordering::Relaxed)
    }
}

struct Sequence(AtomicU64);

impl Entropy for Sequence {
    fn fill(&self, bytes: &mut [u8]) {
        for byte in bytes {
            let step = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            *byte = (step.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 56) as u8;
        }
    }
}

pub fn env() -> Env {
    Env {
        clock: Arc::new(SteppingClock(AtomicU64::new(0))),
        entropy: Arc::new(Sequence(AtomicU64::new(1))),
        tunables: Arc::default(),
    }
}

/// Writes blocks sequentially, uncompressed, and never reuses space.
pub struct Sink {
    device: Arc<MemoryDevice>,
    end: AtomicU64,
    /// The sizes of allocated blocks by offset.
    living: Mutex<BTreeMap<u64, u64>>,
}

impl Sink {
    fn kill_pointer(&self, pointer: &BlockPointer) {
        if pointer.is_hole() || pointer.is_embedded() {
            return;
        }
        let dva = dva_of(pointer);
        let removed = self.living.lock().remove(&dva.offset_bytes);
        assert_eq!(
            removed,
            Some(dva.asize_bytes),
            "a block died that did not live"
        );
    }
    /// Overwrites a block on the device.
    pub fn damage(&self, pointer: &BlockPointer) {
        let place = VDEV_DATA_START_BYTES + dva_of(pointer).offset_bytes;
        self.device.write(place, &[0xa5; 512]).unwrap();
    }
    pub fn living(&self) -> BTreeMap<u64, u64> {
        self.living.lock().clone()
    }

    fn write_one(&self, job: &WriteJob) -> BlockPointer {
        self.kill_pointer(&job.previous);
        let size = job.content.len() as u64;
        let sizes = (size / 512 - 1) | (size / 512 - 1) << 16;
        let kind = u64::from(job.object_type.0) << 48 | u64::from(job.level.0) << 56 | 1 << 63;
        let mut pointer = BlockPointer::default();
        let may_be_hole = job.policy.compression != CompressionKind::Off;
        if may_be_hole && job.content.iter().all(|byte| *byte == 0) {
            if job.policy.has_hole_birth && job.previous.birth() != Txg(0) {
                pointer.words[6] = (size / 512 - 1) | kind;
                pointer.words[10] = job.txg.0;
            }
            return pointer;
        }
        let offset = self.end.fetch_add(size, Ordering::Relaxed);
        self.living.lock().insert(offset, size);
        self.device
            .write(VDEV_DATA_START_BYTES + offset, &job.content)
            .unwrap();
        let dva = Dva {
            vdev: VdevId(0),
            offset_bytes: offset,
            asize_bytes: size,
            is_gang: false,
        };
        pointer.words[..2].copy_from_slice(&dva.to_words());
        pointer.words[6] = sizes
            | u64::from(CompressionKind::Off.number()) << 32
            | u64::from(ChecksumKind::Fletcher4.number()) << 40
            | kind;
        (pointer.words[10], pointer.words[11]) = (job.txg.0, job.fill);
        let words = checksum(ChecksumKind::Fletcher4, &job.content, Endian::Little, None).unwrap();
        pointer.words[12..].copy_from_slice(&words);
        pointer
    }
}

impl BlockSink for Sink {
    fn write(&self, jobs: Vec<WriteJob>) -> Vec<Result<BlockPointer, BlockError>> {
        jobs.iter().map(|job| Ok(self.write_one(job))).collect()
    }
    fn kill(&self, pointer: &BlockPointer) -> Result<(), ObjectError> {
        self.kill_pointer(pointer);
        Ok(())
    }
    fn leak(&self, leak: Leak) {
        panic!("{leak:?}");
    }
    fn deflated_bytes(&self, pointer: &BlockPointer) -> u64 {
        if pointer.is_hole() || pointer.is_embedded() {
            return 0;
        }
        dva_of(pointer).asize_bytes
    }
}

/// The transaction source for tests, in place of the dataset layer.
pub struct Port {
    groups: Arc<TxgGroups>,
    pub available_bytes: AtomicU64,
    pub long_names: AtomicU64,
    /// The number of transactions begun.
    pub begun: AtomicU64,
    /// No transaction begins while a test holds it.
    gate: Mutex<()>,
    pub is_suspended: AtomicBool,
    /// Whether a thread of the rig syncs.
    has_thread: AtomicBool,
}

impl TransactionSource for Port {
    fn begin(&self, estimate: Estimate) -> Result<Transaction, TransactionError> {
        if estimate.bytes > self.available_bytes.load(Ordering::Relaxed) && !estimate.is_freeing {
            return Err(TransactionError::NoSpace);
        }
        self.begun.fetch_add(1, Ordering::Relaxed);
        let _open = self.gate.lock();
        self.groups.begin(estimate.bytes).map_err(suspended)
    }
    fn wait_open_synced(&self) -> Result<(), TransactionError> {
        assert!(self.has_thread.load(Ordering::Relaxed), "nobody would sync");
        let open = self.groups.open_txg();
        self.groups.wait_synced(open).map_err(suspended)
    }
    fn space(&self) -> Space {
        Space {
            referenced_bytes: 1 << 20,
            available_bytes: self.available_bytes.load(Ordering::Relaxed),
        }
    }
    fn note_long_name(&self, _tx: &Transaction) {
        self.long_names.fetch_add(1, Ordering::Relaxed);
    }
    fn note_accounting(&self, _tx: &Transaction, _counts_objects: bool, _has_projects: bool) {}
}

fn suspended(error: TxgError) -> TransactionError {
    TransactionError::Suspended {
        reason: error.to_string(),
    }
}

/// The object set and everything below it.
pub struct Rig {
    pub env: Env,
    pub set: Arc<ObjectSet>,
    pub store: Arc<BlockStore>,
    pub groups: Arc<TxgGroups>,
    pub sink: Arc<Sink>,
    pub port: Arc<Port>,
}

impl Rig {
    /// An empty object set that is not synced yet.
    pub fn empty(kind: ObjectSetKind) -> (Self, Transaction) {
        Self::with_limits(kind, DirtyLimits::default())
    }
    pub fn with_limits(kind: ObjectSetKind, limits: DirtyLimits) -> (Self, Transaction) {
        let env = env();
        let device = Arc::new(MemoryDevice::new(vec![0; DEVICE_BYTES as usize]));
        let mut leaf = VdevConfig::new(VdevType::File, Guid(2));
        (leaf.id, leaf.ashift) = (Some(0), 9);
        (leaf.asize_bytes, leaf.metaslab_shift) = (DEVICE_BYTES - (5 << 20), 24);
        let tree = VdevTree::new(VdevConfig::root(Guid(1), vec![leaf]), Reflow::default()).unwrap();
        let devices = vec![Some(Arc::clone(&device) as Arc<dyn Device>)];
        let (health, indirect) = (LeafTable::all_good(1), IndirectTables::default());
        let topology = Topology::new(tree, devices, health, indirect);
        let store = Arc::new(BlockStore::new(topology, BlockCache::new(8 << 20)));
        let groups = TxgGroups::new(&env, Txg(10), limits);
        let tx = groups.begin(1 << 20).unwrap();
        let shape = NewObjectSet {
            flags: if kind == ObjectSetKind::FileSystem {
                7
            } else {
                0
            },
            ..NewObjectSet::default()
        };
        let policy = WritePolicy::dataset();
        let set = ObjectSet::create(Arc::clone(&store), DATASET, kind, shape, policy, &tx);
        let port = Arc::new(Port {
            groups: Arc::clone(&groups),
            available_bytes: AtomicU64::new(1 << 40),
            long_names: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            gate: Mutex::new(()),
            is_suspended: AtomicBool::new(false),
            has_thread: AtomicBool::new(false),
        });
        let sink = Arc::new(Sink {
            device,
            end: AtomicU64::new(1 << 20),
            living: Mutex::new(BTreeMap::new()),
        });
        let rig = Self {
            env,
            set,
            store,
            groups,
            sink,
            port,
        };
        (rig, tx)
    }

    /// A new file system, synced.
    pub fn new(new: &NewFileSystem, settings: Settings) -> (Self, Arc<FileSystem>) {
        let (rig, tx) = Self::empty(ObjectSetKind::FileSystem);
        create_file_system(&rig.set, &tx, &rig.env, new).unwrap();
        drop(tx);
        rig.sync();
        let files = rig.open(settings);
        (rig, files)
    }

    pub fn begin_port(&self) -> Arc<dyn TransactionSource> {
        Arc::clone(&self.port) as Arc<dyn TransactionSource>
    }
    pub fn open(&self, settings: Settings) -> Arc<FileSystem> {
        FileSystem::open_for_change(
            Arc::clone(&self.set),
            self.begin_port(),
            &self.env,
            settings,
        )
        .unwrap()
    }
    /// Drops everything in memory and opens the object set as of the last sync.
    pub fn reopen(&mut self, settings: Settings) -> Arc<FileSystem> {
        let policy = self.set.policy();
        let root = self.set.root();
        self.set = ObjectSet::open(Arc::clone(&self.store), DATASET, root, policy, None).unwrap();
        self.open(settings)
    }

    /// Syncs the open txg, and those before it.
    pub fn sync(&self) {
        let txg = self.groups.open_txg();
        self.groups.ask(txg);
        while self.groups.synced_txg() < txg {
            self.sync_next(Duration::from_millis(10));
        }
    }
    fn sync_next(&self, timeout: Duration) {
        let Some(syncing) = self.groups.next_to_sync(timeout) else {
            return;
        };
        let txg = syncing.txg();
        let sink = &*self.sink;
        let synced = self.set.sync(txg, 1, sink).unwrap();
        if !synced.accounting.is_empty() {
            let tx = syncing.transaction();
            for change in &synced.accounting {
                self.account(&tx, change);
            }
            let synced = self.set.sync(txg, 2, sink).unwrap();
            assert!(synced.accounting.is_empty(), "accounting is not accounted");
        }
        self.groups.synced(txg);
    }
    fn account(&self, tx: &Transaction, change: &AccountingChange) {
        let object = self.set.special(change.which, tx).unwrap();
        let table = ZapMut::of(&object, tx);
        let owner = change.owner;
        if object
            .read_block(millpond_ondisk::BlockId(0))
            .unwrap()
            .bytes[7]
            == 0
        {
            let new = millpond_zap::NewZap::plain(millpond_zap::new_salt(&self.env));
            table.create(&new).unwrap();
        }
        let add = |key: String, delta| {
            table
                .increment(key.as_bytes(), delta, AtZero::Remove)
                .unwrap();
        };
        add(format!("{owner:x}"), change.bytes);
        add(format!("obj-{owner:x}"), change.objects);
    }

    /// The committed state, through the read-only code.
    pub fn committed(&self) -> Arc<FileSystem> {
        FileSystem::open(self.set.committed().unwrap()).unwrap()
    }

    /// Runs `body` while another thread syncs txgs continuously.
    pub fn with_sync_thread<R>(&self, body: impl FnOnce() -> R) -> R {
        struct Stopping<'s>(&'s AtomicBool);
        impl Drop for Stopping<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Release);
            }
        }
        let stop = AtomicBool::new(false);
        self.port.has_thread.store(true, Ordering::Relaxed);
        thread::scope(|scope| {
            let syncing = scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    self.groups.ask(self.groups.open_txg());
                    self.sync_next(Duration::from_millis(1));
                }
            });
            // Stop the thread also if the body panics.
            let stopping = Stopping(&stop);
            let result = body();
            drop(stopping);
            self.port.has_thread.store(false, Ordering::Relaxed);
            syncing.join().unwrap();
            result
        })
    }

    /// Runs `search` while `write` has its locks and waits for its transaction. Returns what was found.
    pub fn search_during<R: Send>(
        &self,
        write: impl FnOnce() + Send,
        search: impl FnOnce() -> R + Send,
    ) -> R {
        let begun = self.port.begun.load(Ordering::Relaxed);
        thread::scope(|scope| {
            let gate = self.port.gate.lock();
            scope.spawn(write);
            while self.port.begun.load(Ordering::Relaxed) == begun {
                thread::yield_now();
            }
            let searching = scope.spawn(search);
            // A search that takes no lock ends meanwhile.
            for _ in 0..100_000 {
                thread::yield_now();
            }
            drop(gate);
            searching.join().unwrap()
        })
    }

    /// Checks that the allocated blocks are exactly those that the committed object set refers to.
    pub fn check_space(&self) {
        let mut found = BTreeMap::new();
        let committed = self.set.committed().unwrap();
        collect(&mut found, committed.root());
        let metas = [
            Some(committed.meta_object()),
            committed.accounting(Accounting::User),
            committed.accounting(Accounting::Group),
            committed.accounting(Accounting::Project),
        ];
        for object in metas.into_iter().flatten() {
            collect_object(&mut found, &object);
        }
        for object in committed.objects() {
            collect_object(&mut found, &object.unwrap());
        }
        assert_eq!(found, self.sink.living(), "blocks leak or are lost");
    }

    /// Checks that the usage counters of owners are the sums over all files.
    pub fn check_accounting(&self) {
        let committed = self.set.committed().unwrap();
        let files = FileSystem::open(Arc::clone(&committed)).unwrap();
        let mut wanted: [BTreeMap<Vec<u8>, u64>; 3] = Default::default();
        for object in committed.objects() {
            let object = object.unwrap();
            let Ok(node) = files.node(object.id()) else {
                continue;
            };
            let stat = node.stat().unwrap();
            let owners = [stat.owner.0, stat.group.0, stat.project.unwrap_or(0)];
            for (sums, owner) in wanted.iter_mut().zip(owners) {
                let used = 512 + object.dnode().used_bytes();
                *sums.entry(format!("{owner:x}").into_bytes()).or_default() += used;
                *sums
                    .entry(format!("obj-{owner:x}").into_bytes())
                    .or_default() += 1;
            }
        }
        let kinds = [Accounting::User, Accounting::Group, Accounting::Project];
        for (which, wanted) in kinds.into_iter().zip(wanted) {
            let mut found = BTreeMap::new();
            let object = committed.accounting(which).unwrap();
            for entry in millpond_zap::Zap::open(object).unwrap().iter() {
                let entry = entry.unwrap();
                found.insert(entry.name, entry.value.first().unwrap());
            }
            assert_eq!(found, wanted, "{which:?}");
        }
    }
}

fn collect(found: &mut BTreeMap<u64, u64>, pointer: &BlockPointer) {
    if pointer.is_hole() || pointer.is_embedded() {
        return;
    }
    let dva = dva_of(pointer);
    let before = found.insert(dva.offset_bytes, dva.asize_bytes);
    assert_eq!(before, None, "a block is referred to twice");
}

fn collect_object(found: &mut BTreeMap<u64, u64>, object: &millpond_object::ObjectView) {
    let dnode = object.dnode();
    if let Some(spill) = &dnode.spill {
        collect(found, spill);
    }
    let fan = dnode.indirect_block_bytes() / 128;
    for (at, pointer) in dnode.block_pointers.iter().enumerate() {
        collect_tree(found, object, pointer, dnode.levels - 1, at as u64, fan);
    }
}

fn collect_tree(
    found: &mut BTreeMap<u64, u64>,
    object: &millpond_object::ObjectView,
    pointer: &BlockPointer,
    level: u8,
    id: u64,
    fan: u64,
) {
    collect(found, pointer);
    if pointer.is_hole() || level == 0 {
        return;
    }
    let set = object.object_set();
    let address = object.address(millpond_ondisk::Level(level), millpond_ondisk::BlockId(id));
    let block = set.store().read(pointer, address, None).unwrap();
    for (at, bytes) in block.bytes.chunks_exact(128).enumerate() {
        let child = BlockPointer::decode(bytes, block.endian).unwrap();
        collect_tree(found, object, &child, level - 1, id * fan + at as u64, fan);
    }
}

fn dva_of(pointer: &BlockPointer) -> Dva {
    Dva::from_words([pointer.words[0], pointer.words[1]]).unwrap()
}

/// Checks that a committed file system is consistent.
///
/// Every name leads to a file with as many links as names. Directories count their entries and have the right
/// parents. Files without a name are in the unlinked set. No other files exist. Returns the number of files.
pub fn check_consistency(set: &Arc<millpond_object::ObjectSetView>) -> usize {
    use millpond_posix::FileKind;
    let files = FileSystem::open(Arc::clone(set)).unwrap();
    let mut names: BTreeMap<u64, u64> = BTreeMap::new();
    let mut seen = BTreeMap::new();
    let mut hidden = BTreeMap::new();
    let mut parents = BTreeMap::new();
    for object in set.objects() {
        let object = object.unwrap();
        let of_files = [
            millpond_ondisk::ObjectType::SA,
            millpond_ondisk::ObjectType::ZNODE,
        ];
        if !of_files.contains(&object.dnode().bonus_type) {
            continue;
        }
        let node = files.node(object.id()).unwrap();
        let stat = node.stat().unwrap();
        if node.is_xattr_directory().unwrap() {
            hidden.insert(node.id().0, node.parent_id().unwrap());
            continue;
        }
        if stat.kind == FileKind::Directory {
            let mut directories = 0;
            let mut count = 0;
            for entry in node.entries().unwrap() {
                let entry = entry.unwrap();
                *names.entry(entry.id.0).or_default() += 1;
                count += 1;
                // Entries of version 1 have no type.
                let is_directory = match entry.kind {
                    Some(kind) => kind == FileKind::Directory,
                    None => files.node(entry.id).unwrap().kind() == FileKind::Directory,
                };
                if is_directory {
                    directories += 1;
                    let before = parents.insert(entry.id.0, node.id().0);
                    assert_eq!(before, None, "a directory has two names");
                }
            }
            assert_eq!(stat.size_bytes, count + 2, "entries of {}", node.id());
            if stat.links > 0 {
                assert_eq!(
                    stat.links,
                    directories + 2,
                    "links of directory {}",
                    node.id()
                );
            }
        }
        seen.insert(node.id().0, (stat, node.parent_id().unwrap().0));
    }
    let unlinked: Vec<u64> = files.unlinked().unwrap().iter().map(|id| id.0).collect();
    for (id, (stat, parent)) in &seen {
        let count = names.remove(id).unwrap_or(0);
        if *id == files.root_id().0 {
            assert_eq!(count, 0);
            continue;
        }
        assert_eq!(
            unlinked.contains(id),
            count == 0,
            "unlinked set and object {id}"
        );
        if stat.kind == FileKind::Directory {
            assert_eq!(stat.links == 0, count == 0);
            if count > 0 {
                assert_eq!(parents.get(id), Some(parent), "parent of directory {id}");
            }
        } else {
            assert_eq!(stat.links, count, "links of object {id}");
        }
    }
    assert_eq!(names, BTreeMap::new(), "names that lead to nothing");
    // Every directory leads to the root.
    for id in parents.keys() {
        let mut at = *id;
        for _ in 0..=parents.len() {
            match parents.get(&at) {
                Some(parent) => at = *parent,
                None => break,
            }
        }
        let is_root = at == files.root_id().0;
        assert!(
            is_root || unlinked.contains(&at),
            "directory {id} hangs in the air at {at}"
        );
    }
    for (id, parent) in hidden {
        let is_known = seen.contains_key(&parent.0) || unlinked.contains(&id);
        let is_inside = set.object(parent).is_ok();
        assert!(
            is_known || is_inside,
            "hidden object {id} belongs to nothing"
        );
    }
    seen.len()
}
