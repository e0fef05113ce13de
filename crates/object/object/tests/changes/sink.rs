//! A sink on an in-memory device that tracks live blocks.

use millpond_block::{BlockCache, BlockStore, Topology};
use millpond_checksum::checksum;
use millpond_compress::{ZstdLevel, compress};
use millpond_device::{Device, DeviceError, MemoryDevice};
use millpond_env::sync::{Arc, Mutex};
use millpond_object::{BlockError, BlockSink, Leak, ObjectError, WriteJob};
use millpond_ondisk::{
    BlockPointer, ChecksumKind, CompressionKind, Dva, Endian, Guid, Level, ObjectType,
    VDEV_DATA_START_BYTES, VdevId,
};
use millpond_vdev::{IndirectTables, LeafTable, Reflow, VdevConfig, VdevTree, VdevType};
use std::collections::BTreeMap;

/// Never reuses space, so that every earlier state stays readable.
pub struct TestSink {
    device: Arc<HookedDevice>,
    state: Mutex<SinkState>,
}

const JUNK: u8 = 0xa5;

#[derive(Debug)]
struct HookedDevice {
    inner: MemoryDevice,
    before_read: Mutex<Option<Hook>>,
}

/// A hook that runs once, during a request.
struct Hook(Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}

impl Device for HookedDevice {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn sector_bytes(&self) -> u32 {
        self.inner.sector_bytes()
    }
    fn read(&self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let hook = self.before_read.lock().take();
        if let Some(Hook(hook)) = hook {
            hook();
        }
        self.inner.read(offset_bytes, buffer)
    }
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.write(offset_bytes, bytes)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset_bytes, length_bytes)
    }
}

#[derive(Default)]
struct SinkState {
    end: u64,
    /// Offset of every referenced block, with its size and the number of references. A block without references may
    /// get one again until the sync ends.
    alive: BTreeMap<u64, (u64, u64)>,
    kills: u64,
    writes: u64,
    rewrites: u64,
    largest_batch: usize,
    leaks: Vec<Leak>,
}

impl TestSink {
    pub fn new() -> Self {
        Self {
            device: Arc::new(HookedDevice {
                inner: MemoryDevice::new(vec![0; 1 << 30]),
                before_read: Mutex::default(),
            }),
            state: Mutex::new(SinkState::default()),
        }
    }

    pub fn store(&self) -> Arc<BlockStore> {
        let mut leaf = VdevConfig::new(VdevType::File, Guid(2));
        (leaf.id, leaf.ashift) = (Some(0), 9);
        (leaf.asize_bytes, leaf.metaslab_shift) = (1000 << 20, 24);
        let tree = VdevTree::new(VdevConfig::root(Guid(1), vec![leaf]), Reflow::default()).unwrap();
        let devices = vec![Some(Arc::clone(&self.device) as Arc<dyn Device>)];
        let (health, indirect) = (LeafTable::all_good(1), IndirectTables::default());
        let topology = Topology::new(tree, devices, health, indirect);
        Arc::new(BlockStore::new(topology, BlockCache::new(8 << 20)))
    }

    pub fn alive(&self) -> BTreeMap<u64, (u64, u64)> {
        let mut state = self.state.lock();
        state.alive.retain(|_, (_, references)| *references > 0);
        state.alive.clone()
    }
    /// Returns the blocks that could not be freed since the last call.
    pub fn take_leaks(&self) -> Vec<Leak> {
        std::mem::take(&mut self.state.lock().leaks)
    }
    /// Overwrites all copies of a block on the device.
    pub fn damage(&self, pointer: &BlockPointer) {
        for dva in pointer.dvas() {
            self.damage_copy(dva, pointer.psize_bytes());
        }
    }
    /// Overwrites one copy of a block of this size.
    pub fn damage_copy(&self, dva: Dva, size_bytes: u64) {
        let junk = vec![JUNK; size_bytes as usize];
        let place = VDEV_DATA_START_BYTES + dva.offset_bytes;
        self.device.write(place, &junk).unwrap();
    }
    /// Whether a copy of a block still has what [`TestSink::damage_copy`] wrote.
    pub fn is_damaged(&self, dva: Dva) -> bool {
        let mut found = [0; 512];
        let place = VDEV_DATA_START_BYTES + dva.offset_bytes;
        self.device.read(place, &mut found).unwrap();
        found == [JUNK; 512]
    }
    /// Runs a hook at the next read.
    pub fn before_read(&self, hook: impl FnOnce() + Send + 'static) {
        *self.device.before_read.lock() = Some(Hook(Box::new(hook)));
    }
    pub fn rewrites(&self) -> u64 {
        self.state.lock().rewrites
    }
    pub fn writes(&self) -> u64 {
        self.state.lock().writes
    }
    pub fn largest_batch(&self) -> usize {
        self.state.lock().largest_batch
    }

    fn kill_in(state: &mut SinkState, pointer: &BlockPointer) {
        for dva in pointer.dvas() {
            let Some((size, references)) = state.alive.get_mut(&dva.offset_bytes) else {
                panic!("killed twice: {pointer:?}");
            };
            assert_eq!(*size, dva.asize_bytes);
            assert!(*references > 0, "killed twice: {pointer:?}");
            *references -= 1;
            state.kills += 1;
        }
    }

    fn store_one(&self, state: &mut SinkState, job: &WriteJob) -> BlockPointer {
        if job.is_clone {
            let clone = job.stored.unwrap();
            assert_eq!(clone.birth(), job.txg);
            for dva in clone.dvas() {
                let (_, references) = state.alive.get_mut(&dva.offset_bytes).unwrap();
                *references += 1;
            }
            Self::kill_in(state, &job.previous);
            return clone;
        }
        let content = &job.content;
        let is_zero = content.iter().all(|byte| *byte == 0);
        let mut pointer = BlockPointer::default();
        if is_zero && job.policy.compression != CompressionKind::Off {
            if job.policy.has_hole_birth && job.previous.birth().0 != 0 {
                pointer.words[6] = (content.len() as u64 / 512 - 1)
                    | u64::from(job.object_type.0) << 48
                    | u64::from(job.level.0) << 56;
                pointer.words[10] = job.txg.0;
            }
            Self::kill_in(state, &job.previous);
            return pointer;
        }
        let mut kind = job.policy.compression;
        let limit = content.len() - content.len() / 8;
        let mut stored = compress(kind, ZstdLevel::DEFAULT, content, limit);
        if kind == CompressionKind::Off {
            stored = None;
        }
        let may_embed = job.policy.may_embed
            && job.level == Level(0)
            && ![ObjectType::DNODE, ObjectType::OBJECT_SET].contains(&job.object_type);
        if let Some(payload) = stored.as_ref().filter(|one| may_embed && one.len() <= 112) {
            Self::kill_in(state, &job.previous);
            return embedded(job, payload);
        }
        if let Some(stored) = &mut stored {
            stored.resize(stored.len().next_multiple_of(512), 0);
        }
        let stored = match stored.filter(|one| one.len() < content.len()) {
            Some(stored) => stored,
            None => {
                kind = CompressionKind::Off;
                content.to_vec()
            }
        };
        let size = stored.len() as u64;
        let in_place =
            job.may_rewrite() && !job.previous.is_embedded() && job.previous.psize_bytes() == size;
        let copies = usize::from(job.policy.copies);
        let dvas: Vec<Dva> = if in_place {
            state.rewrites += 1;
            job.previous.dvas().collect()
        } else {
            Self::kill_in(state, &job.previous);
            (0..copies)
                .map(|_| {
                    let offset = state.end;
                    state.end += size;
                    state.alive.insert(offset, (size, 1));
                    Dva {
                        vdev: VdevId(0),
                        offset_bytes: offset,
                        asize_bytes: size,
                        is_gang: false,
                    }
                })
                .collect()
        };
        for (at, dva) in dvas.iter().enumerate() {
            pointer.words[at * 2..at * 2 + 2].copy_from_slice(&dva.to_words());
            let place = VDEV_DATA_START_BYTES + dva.offset_bytes;
            self.device.write(place, &stored).unwrap();
        }
        let function = ChecksumKind::Fletcher4;
        pointer.words[6] = (content.len() as u64 / 512 - 1)
            | (size / 512 - 1) << 16
            | u64::from(kind.number()) << 32
            | u64::from(function.number()) << 40
            | u64::from(job.object_type.0) << 48
            | u64::from(job.level.0) << 56
            | 1 << 63;
        (pointer.words[10], pointer.words[11]) = (job.txg.0, job.fill);
        let words = checksum(function, &stored, Endian::Little, None).unwrap();
        pointer.words[12..].copy_from_slice(&words);
        state.writes += 1;
        pointer
    }
}

fn embedded(job: &WriteJob, payload: &[u8]) -> BlockPointer {
    let mut bytes = [0u8; 112];
    bytes[..payload.len()].copy_from_slice(payload);
    let mut pointer = BlockPointer::default();
    let places = [0usize, 1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14, 15];
    for (chunk, place) in bytes.chunks_exact(8).zip(places) {
        pointer.words[place] = u64::from_le_bytes(chunk.try_into().unwrap());
    }
    pointer.words[6] = (job.content.len() as u64 - 1)
        | (payload.len() as u64 - 1) << 25
        | u64::from(job.policy.compression.number()) << 32
        | 1 << 39
        | u64::from(job.object_type.0) << 48
        | u64::from(job.level.0) << 56
        | 1 << 63;
    pointer.words[10] = job.txg.0;
    pointer
}

impl BlockSink for TestSink {
    fn write(&self, jobs: Vec<WriteJob>) -> Vec<Result<BlockPointer, BlockError>> {
        let mut state = self.state.lock();
        state.largest_batch = state.largest_batch.max(jobs.len());
        let stored = jobs.iter().map(|job| {
            if !job.previous.is_hole() && job.previous.birth() == job.txg {
                assert!(job.pass >= 2, "written twice in a pass: {}", job.address);
            }
            Ok(self.store_one(&mut state, job))
        });
        stored.collect()
    }
    fn kill(&self, pointer: &BlockPointer) -> Result<(), ObjectError> {
        Self::kill_in(&mut self.state.lock(), pointer);
        Ok(())
    }
    fn leak(&self, leak: Leak) {
        self.state.lock().leaks.push(leak);
    }
    fn deflated_bytes(&self, pointer: &BlockPointer) -> u64 {
        pointer.asize_bytes()
    }
}
