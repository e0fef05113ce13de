//! The cache of blocks. One is shared by all pools of a process, unless a pool asks for its own.

use crate::Block;
use crate::buffer_pool::BufferPool;
use millpond_cache::{Cache, CacheStatistics, Class, Forms, Retention};
use millpond_crypt::DatasetKey;
use millpond_env::memory::{Memory, memory};
use millpond_env::rank;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex, OnceLock};
use millpond_l2arc::{CacheDevice, CacheDeviceStats};
use millpond_ondisk::{BlockPointer, CompressionKind, Level};
use std::hash::{Hash, Hasher};

/// What an entry takes beside the content: its key, its links, its share of the table, and what the memory
/// allocator adds. In bytes.
const ENTRY_BYTES: u64 = 256;
/// What an expanded block takes beside the content, in bytes.
const EXPANDED_BYTES: u64 = 64;
/// The limit of the process's cache where the kernel does not tell how much memory there is, in bytes.
const UNKNOWN_LIMIT_BYTES: u64 = 256 << 20;
/// The least limit that the process's cache shrinks to by itself, in bytes: this or a 32nd of all memory.
const LIMIT_BYTES_MIN: u64 = 32 << 20;
/// After this many new bytes in the cache the process looks at its memory again.
const LOOK_BYTES: u64 = 16 << 20;
/// Above this share of time in which some thread waits for memory, the cache shrinks by an eighth.
const PRESSURE_PERCENT: u32 = 10;

static OF_PROCESS: OnceLock<Arc<BlockCache>> = OnceLock::new();

/// Identifies the verified content that a pointer names: the store, the first address, the properties, the
/// physical birth and the checksum.
///
/// Including the checksum ensures that a forged pointer to the same address never gets bytes that were
/// verified for another pointer. The key is included because dnode blocks read with and without a key
/// differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CacheKey {
    words: [u64; 8],
    key_guid: Option<u64>,
    store: u64,
}

impl CacheKey {
    pub(crate) fn of(store: u64, pointer: &BlockPointer, key: Option<&Arc<DatasetKey>>) -> Self {
        let words = &pointer.words;
        let [c0, c1, c2, c3] = pointer.checksum_words();
        Self {
            words: [
                words[0],
                words[1],
                words[6],
                pointer.physical_birth().0,
                c0,
                c1,
                c2,
                c3,
            ],
            key_guid: if pointer.has_crypt_bit() {
                key.map(|key| key.guid().0)
            } else {
                None
            },
            store,
        }
    }
    /// Whether both are of the same block, read with whatever key.
    pub(crate) fn is_same_block(&self, other: &Self) -> bool {
        self.words == other.words && self.store == other.store
    }
    pub(crate) fn is_of_store(&self, store: u64) -> bool {
        self.store == store
    }
    /// The first address, the properties and the physical birth, as in the pointer.
    pub(crate) fn block(&self) -> ([u64; 2], u64, u64) {
        let [first, second, properties, birth, ..] = self.words;
        ([first, second], properties, birth)
    }
}

/// Without the key, so that all entries of a block have the same hash.
impl Hash for CacheKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.words.hash(state);
        self.store.hash(state);
    }
}

/// Whether a pointer leads to data or to metadata.
pub(crate) fn class_of(pointer: &BlockPointer) -> Class {
    match pointer.level() > Level(0) || pointer.object_type().is_metadata() {
        true => Class::Metadata,
        false => Class::Data,
    }
}

/// What the cache has of a block.
#[derive(Debug, Clone)]
pub(crate) enum Cached {
    /// The content.
    Content(Arc<Block>),
    /// The bytes as they are on the devices, compressed or encrypted: `psize` bytes whose checksum was verified
    /// and which were decrypted and decompressed once already.
    Stored(Arc<Vec<u8>>),
}

/// A block that was read or written.
#[derive(Debug, Clone)]
pub(crate) struct Fetched {
    pub(crate) block: Arc<Block>,
    /// The bytes as they are on the devices; `None` if they are the content, or if they were not read.
    pub(crate) stored: Option<Arc<Vec<u8>>>,
}

impl Fetched {
    /// What the cache keeps of it: the stored form, and the content while there is space. A block that is neither
    /// compressed nor encrypted has one form only.
    fn forms(&self) -> Forms<Cached> {
        let content = Cached::Content(Arc::clone(&self.block));
        let content_bytes = weight_bytes(self.block.bytes.len() as u64);
        match &self.stored {
            None => Forms::one(content, content_bytes),
            Some(stored) => Forms {
                compact: Cached::Stored(Arc::clone(stored)),
                compact_bytes: weight_bytes(stored.len() as u64),
                expanded: Some((content, expanded_bytes(self.block.bytes.len() as u64))),
                content_bytes,
            },
        }
    }
}

/// A cache of verified blocks: as stored on the devices, and as content while there is space. Any number of stores
/// may share it.
pub struct BlockCache {
    pub(crate) entries: Cache<CacheKey, Cached>,
    pub(crate) buffers: BufferPool,
    stores: AtomicU64,
    /// How the limit follows the memory of the machine; `None` if it is fixed.
    range: Option<LimitRange>,
    /// The bytes that were put into it since the last look at the memory.
    unseen_bytes: AtomicU64,
    copies: Mutex<Copies, rank::Leaf>,
}

/// The cache devices of all stores that share a cache.
#[derive(Default)]
struct Copies {
    devices: Vec<Arc<CacheDevice>>,
    /// Counts of devices that are no longer in use.
    past: CacheDeviceStats,
}

impl std::fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("BlockCache");
        shown.field("statistics", &self.statistics());
        shown.finish_non_exhaustive()
    }
}

/// What the memory of the machine, or of a control group, leaves to the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpareMemory {
    /// What programs could still have, in bytes.
    pub free_bytes: u64,
    /// What the cache leaves of it to others, in bytes.
    pub reserve_bytes: u64,
    /// Whether the cache may grow now.
    pub may_grow: bool,
}

/// The bounds between which the limit of the process's cache moves, in bytes.
#[derive(Debug)]
struct LimitRange {
    min: AtomicU64,
    max: AtomicU64,
}

impl BlockCache {
    /// A cache of its own, for blocks that take at most `limit_bytes`.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self::with(limit_bytes, None))
    }

    /// A cache of its own of this size, or the one that the pools of this process share.
    #[must_use]
    pub fn of_size(limit_bytes: Option<u64>) -> Arc<Self> {
        limit_bytes.map_or_else(Self::of_process, Self::new)
    }

    fn with(limit_bytes: u64, range: Option<LimitRange>) -> Self {
        Self {
            entries: Cache::new(limit_bytes),
            buffers: BufferPool::new(buffer_pool_bytes_max(limit_bytes)),
            stores: AtomicU64::new(0),
            range,
            unseen_bytes: AtomicU64::new(0),
            copies: Mutex::default(),
        }
    }

    /// The cache that the pools of this process share.
    ///
    /// Its greatest limit is that of OpenZFS on Linux: five eighths of the memory of the machine or control
    /// group, or all but 1 GiB if that is more. Below it the limit follows the memory that is available. See
    /// `docs/memory.md`.
    #[must_use]
    pub fn of_process() -> Arc<Self> {
        let make = || {
            let total = memory().map(|memory| memory.total_bytes);
            let max = total.map_or(UNKNOWN_LIMIT_BYTES, limit_bytes_max);
            let range = LimitRange {
                min: AtomicU64::new(total.map_or(LIMIT_BYTES_MIN, limit_bytes_min)),
                max: AtomicU64::new(max),
            };
            let cache = Self::with(max, Some(range));
            cache.follow_memory();
            Arc::new(cache)
        };
        Arc::clone(OF_PROCESS.get_or_init(make))
    }

    /// The number of the next store. Entries of one are never found by another.
    pub(crate) fn add_store(&self) -> u64 {
        self.stores.fetch_add(1, Ordering::Relaxed)
    }
    /// Removes the blocks of a store that is closed.
    pub(crate) fn remove_store(&self, store: u64) {
        self.entries.remove_where(|key| key.store == store);
    }

    pub(crate) fn put(&self, key: CacheKey, fetched: &Fetched, class: Class, retention: Retention) {
        let forms = fetched.forms();
        let weight = forms.weight_bytes();
        let gone = self.entries.insert_with(key, forms, class, retention);
        self.buffers.recycle(gone);
        self.count_new(weight);
    }

    /// Returns whether the block was kept.
    pub(crate) fn put_speculative(&self, key: CacheKey, fetched: &Fetched, class: Class) -> bool {
        let forms = fetched.forms();
        let weight = forms.weight_bytes();
        let (is_kept, gone) = self.entries.insert_speculative(key, forms, class);
        self.buffers.recycle(gone);
        self.count_new(weight);
        is_kept
    }

    /// Adds the content of a block that is cached as stored.
    pub(crate) fn put_content(&self, key: &CacheKey, block: &Arc<Block>) {
        let weight = expanded_bytes(block.bytes.len() as u64);
        let content = Cached::Content(Arc::clone(block));
        self.buffers
            .recycle(self.entries.expand(key, (content, weight)));
        self.count_new(weight);
    }

    /// Looks at the memory of the machine after each [`LOOK_BYTES`] that were read or written.
    pub(crate) fn count_new(&self, bytes: u64) {
        if self.range.is_some() {
            let unseen = self.unseen_bytes.fetch_add(bytes, Ordering::Relaxed);
            if unseen.saturating_add(bytes) >= LOOK_BYTES {
                self.follow_memory();
            }
        }
    }

    /// Lets the limit of the process's cache follow the memory that is available, between its bounds. Does
    /// nothing for a cache of its own.
    ///
    /// Insertions call this often enough while the cache grows. A program that wants its idle cache to give
    /// way to others calls it every second or so.
    pub fn follow_memory(&self) {
        self.unseen_bytes.store(0, Ordering::Relaxed);
        if let Some(memory) = memory() {
            self.follow(&memory);
        }
    }

    fn follow(&self, memory: &Memory) {
        let Some(range) = &self.range else { return };
        let min = range.min.load(Ordering::Relaxed);
        let max = range.max.load(Ordering::Relaxed).max(min);
        let weight = self.entries.statistics().weight_bytes;
        let limit = wanted_limit_bytes(weight, memory).clamp(min, max);
        // Small moves are not worth the locks of all shards.
        if limit < weight || limit.abs_diff(self.limit_bytes()) > max / 64 {
            self.entries.set_limit_bytes(limit);
        }
    }

    /// Halves the limit, but not below its least: for a process whose pools nobody has used for a while. It
    /// grows again as soon as it is used. Does nothing for a cache of its own.
    pub fn shrink_when_idle(&self) {
        if let Some(range) = &self.range {
            let min = range.min.load(Ordering::Relaxed);
            let weight = self.entries.statistics().weight_bytes;
            if weight > min {
                self.entries.set_limit_bytes((weight / 2).max(min));
                self.buffers.clear();
            }
        }
    }

    /// Counts a cache device of a store in [`BlockCache::cache_device_stats`].
    pub(crate) fn add_cache_device(&self, device: &Arc<CacheDevice>) {
        self.copies.lock().devices.push(Arc::clone(device));
    }
    /// Keeps the counts of a cache device that is no longer in use.
    pub(crate) fn remove_cache_device(&self, device: &Arc<CacheDevice>) {
        let mut copies = self.copies.lock();
        let at = (copies.devices.iter()).position(|other| Arc::ptr_eq(other, device));
        let removed = at.map(|at| copies.devices.swap_remove(at));
        drop(copies);
        if let Some(removed) = removed {
            let counts = removed.stats().counts();
            self.copies.lock().past.add(&counts);
        }
    }

    /// Statistics of the cache devices of all stores that share the cache: what they hold, and the counts since it
    /// was made.
    #[must_use]
    pub fn cache_device_stats(&self) -> CacheDeviceStats {
        let (mut sum, devices) = {
            let copies = self.copies.lock();
            (copies.past, copies.devices.clone())
        };
        devices.iter().for_each(|device| sum.add(&device.stats()));
        sum
    }

    /// The most bytes that the blocks take now.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.entries.limit_bytes()
    }

    /// Sets the greatest limit, in bytes. The process's cache still follows the available memory below it.
    pub fn set_limit_bytes_max(&self, limit_bytes: u64) {
        match &self.range {
            Some(range) => {
                range.max.store(limit_bytes, Ordering::Relaxed);
                range.min.fetch_min(limit_bytes, Ordering::Relaxed);
                self.entries.set_limit_bytes(limit_bytes);
                self.follow_memory();
            }
            None => self.entries.set_limit_bytes(limit_bytes),
        }
    }

    /// The least and the greatest limit, in bytes.
    #[must_use]
    pub fn limit_range_bytes(&self) -> (u64, u64) {
        let fixed = self.limit_bytes();
        self.range.as_ref().map_or((fixed, fixed), |range| {
            (
                range.min.load(Ordering::Relaxed),
                range.max.load(Ordering::Relaxed),
            )
        })
    }

    /// What the memory leaves to the cache; `None` if the limit is fixed, or the kernel does not tell.
    #[must_use]
    pub fn spare_memory(&self) -> Option<SpareMemory> {
        self.range.as_ref()?;
        let memory = memory()?;
        let reserve_bytes = reserve_bytes(&memory);
        Some(SpareMemory {
            free_bytes: memory.available_bytes,
            reserve_bytes,
            may_grow: memory.available_bytes > reserve_bytes
                && memory.pressure_percent < PRESSURE_PERCENT,
        })
    }

    /// Hits, misses and sizes.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        self.entries.statistics()
    }
}

/// What one form of a block takes in the cache with its entry, in bytes.
fn weight_bytes(content_bytes: u64) -> u64 {
    content_bytes.saturating_add(ENTRY_BYTES)
}

/// What the content of a block takes that is cached as stored, too, in bytes.
fn expanded_bytes(content_bytes: u64) -> u64 {
    content_bytes.saturating_add(EXPANDED_BYTES)
}

/// What both forms of a block take in the cache, in bytes.
pub(crate) fn forms_bytes(pointer: &BlockPointer) -> u64 {
    let is_plain = pointer.compression() == Some(CompressionKind::Off);
    match is_plain && !pointer.has_crypt_bit() {
        true => weight_bytes(pointer.lsize_bytes()),
        false => weight_bytes(pointer.psize_bytes())
            .saturating_add(expanded_bytes(pointer.lsize_bytes())),
    }
}

fn limit_bytes_max(total_bytes: u64) -> u64 {
    (total_bytes / 8 * 5)
        .max(total_bytes.saturating_sub(1 << 30))
        .max(LIMIT_BYTES_MIN)
}

fn limit_bytes_min(total_bytes: u64) -> u64 {
    (total_bytes / 32).max(LIMIT_BYTES_MIN)
}

/// What the cache leaves to other programs, in bytes.
fn reserve_bytes(memory: &Memory) -> u64 {
    (memory.total_bytes / 16).clamp(32 << 20, 1 << 30)
}

/// The limit for a cache that takes `weight` bytes now: what it has, and half of what is available beyond a
/// reserve for other programs else.
fn wanted_limit_bytes(weight: u64, memory: &Memory) -> u64 {
    let reserve = reserve_bytes(memory);
    let limit = match memory.available_bytes.checked_sub(reserve) {
        Some(spare) => weight.saturating_add(spare / 2),
        None => weight.saturating_sub(reserve - memory.available_bytes),
    };
    match memory.pressure_percent >= PRESSURE_PERCENT {
        true => limit.min(weight - weight / 8),
        false => limit,
    }
}

/// The size of the buffer pool: a sixteenth of the cache, at most 16 MiB.
fn buffer_pool_bytes_max(cache_bytes: u64) -> usize {
    (cache_bytes / 16).min(16 << 20) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn machine(total_mib: u64, available_mib: u64, pressure_percent: u32) -> Memory {
        Memory {
            total_bytes: total_mib * MIB,
            available_bytes: available_mib * MIB,
            pressure_percent,
        }
    }

    #[test]
    fn the_greatest_limit_is_that_of_openzfs() {
        assert_eq!(limit_bytes_max(2 << 30), 1280 * MIB);
        assert_eq!(limit_bytes_max(24 << 30), 23 << 30);
        assert_eq!(limit_bytes_min(64 << 30), 2 << 30);
        assert_eq!(limit_bytes_min(512 * MIB), 32 * MIB);
    }

    #[test]
    fn the_limit_leaves_a_reserve_to_others() {
        let wanted = |weight, memory| wanted_limit_bytes(weight * MIB, &memory) / MIB;
        assert_eq!(
            wanted(100, machine(1024, 864, 0)),
            500,
            "half of what is spare"
        );
        assert_eq!(wanted(500, machine(1024, 64, 0)), 500, "nothing is spare");
        assert_eq!(wanted(500, machine(1024, 14, 0)), 450, "others need it");
        assert_eq!(wanted(20, machine(1024, 14, 0)), 0);
        assert_eq!(wanted(800, machine(8192, 4096, 9)), 800 + 1792);
        assert_eq!(wanted(800, machine(8192, 4096, 10)), 700, "under pressure");
    }

    #[test]
    fn the_process_s_cache_follows_the_memory_between_its_bounds() {
        let range = LimitRange {
            min: AtomicU64::new(32 * MIB),
            max: AtomicU64::new(640 * MIB),
        };
        let cache = BlockCache::with(640 * MIB, Some(range));
        let fill = |from: u64| {
            for store in from..from + 600 {
                let key = CacheKey {
                    words: [0; 8],
                    key_guid: None,
                    store,
                };
                let block = Block {
                    bytes: Arc::new(vec![0; 1 << 20]),
                    endian: millpond_ondisk::Endian::Little,
                    has_ciphertext: false,
                };
                let fetched = Fetched {
                    block: Arc::new(block),
                    stored: None,
                };
                drop((cache.entries).insert_forms(key, fetched.forms(), Class::Data));
            }
        };
        cache.follow(&machine(1024, 1000, 0));
        assert_eq!(cache.limit_bytes(), 468 * MIB);
        fill(0);
        let full = cache.statistics().weight_bytes;
        assert!(full > 400 * MIB && full <= 468 * MIB, "{full}");
        cache.follow(&machine(1024, 20, 0));
        assert_eq!(cache.limit_bytes(), full - 44 * MIB);
        assert!(cache.statistics().weight_bytes <= full - 44 * MIB);
        cache.follow(&machine(1024, 0, 50));
        cache.shrink_when_idle();
        cache.shrink_when_idle();
        let shrunk = cache.limit_bytes();
        assert!(shrunk < full / 4, "{shrunk}");
        (0..9).for_each(|_| cache.shrink_when_idle());
        assert!(cache.statistics().weight_bytes <= 32 * MIB);
        cache.follow(&machine(1024, 900, 0));
        assert!(cache.limit_bytes() > 400 * MIB, "it grows back");
        cache.set_limit_bytes_max(64 * MIB);
        cache.follow(&machine(1024, 900, 0));
        assert_eq!(cache.limit_bytes(), 64 * MIB);
        assert_eq!(cache.limit_range_bytes(), (32 * MIB, 64 * MIB));
    }

    #[test]
    fn a_cache_of_its_own_keeps_its_limit() {
        let cache = BlockCache::new(64 * MIB);
        cache.follow(&machine(1024, 0, 90));
        cache.shrink_when_idle();
        assert_eq!(cache.limit_bytes(), 64 * MIB);
        assert_eq!(cache.limit_range_bytes(), (64 * MIB, 64 * MIB));
    }
}
