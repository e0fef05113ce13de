//! The cache of blocks. One is shared by all pools of a process, unless a pool asks for its own.

use crate::Block;
use crate::buffer_pool::BufferPool;
use millpond_cache::{Cache, CacheStatistics, Class};
use millpond_crypt::DatasetKey;
use millpond_env::memory::{Memory, memory};
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::sync::{Arc, OnceLock};
use millpond_ondisk::{BlockPointer, Level};

/// What an entry takes beside the content: its key, its links, its share of the table, and what the memory
/// allocator adds. In bytes.
const ENTRY_BYTES: u64 = 256;
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
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
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
}

/// Whether a pointer leads to data or to metadata.
pub(crate) fn class_of(pointer: &BlockPointer) -> Class {
    match pointer.level() > Level(0) || pointer.object_type().is_metadata() {
        true => Class::Metadata,
        false => Class::Data,
    }
}

/// A cache of the verified content of blocks: decrypted and decompressed. Any number of stores may share it.
pub struct BlockCache {
    pub(crate) entries: Cache<CacheKey, Arc<Block>>,
    pub(crate) buffers: BufferPool,
    stores: AtomicU64,
    /// How the limit follows the memory of the machine; `None` if it is fixed.
    range: Option<LimitRange>,
    /// The bytes that were put into it since the last look at the memory.
    unseen_bytes: AtomicU64,
}

impl std::fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("BlockCache");
        shown.field("statistics", &self.statistics());
        shown.finish_non_exhaustive()
    }
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

    pub(crate) fn put(&self, key: CacheKey, block: &Arc<Block>, class: Class) {
        let weight = weight_bytes(block.bytes.len() as u64);
        let gone = self.entries.insert(key, Arc::clone(block), class, weight);
        self.buffers.recycle_blocks(gone);
        self.count_new(weight);
    }

    /// Returns whether the block was kept.
    pub(crate) fn put_speculative(&self, key: CacheKey, block: &Arc<Block>, class: Class) -> bool {
        let weight = weight_bytes(block.bytes.len() as u64);
        let (is_kept, gone) =
            (self.entries).insert_speculative(key, Arc::clone(block), class, weight);
        self.buffers.recycle_blocks(gone);
        self.count_new(weight);
        is_kept
    }

    /// Looks at the memory of the machine after each [`LOOK_BYTES`].
    fn count_new(&self, bytes: u64) {
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

    /// Hits, misses and sizes.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        self.entries.statistics()
    }
}

/// What a block takes in the cache, in bytes.
pub(crate) fn weight_bytes(content_bytes: u64) -> u64 {
    content_bytes.saturating_add(ENTRY_BYTES)
}

fn limit_bytes_max(total_bytes: u64) -> u64 {
    (total_bytes / 8 * 5)
        .max(total_bytes.saturating_sub(1 << 30))
        .max(LIMIT_BYTES_MIN)
}

fn limit_bytes_min(total_bytes: u64) -> u64 {
    (total_bytes / 32).max(LIMIT_BYTES_MIN)
}

/// The limit for a cache that takes `weight` bytes now: what it has, and half of what is available beyond a
/// reserve for other programs else.
fn wanted_limit_bytes(weight: u64, memory: &Memory) -> u64 {
    let reserve = (memory.total_bytes / 16).clamp(32 << 20, 1 << 30);
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
                let weight = weight_bytes(1 << 20);
                drop((cache.entries).insert(key, Arc::new(block), Class::Data, weight));
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
