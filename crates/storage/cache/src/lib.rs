//! Layer `storage`: the adaptive replacement cache (ARC).
//!
//! A bounded map from keys to shared values, each with a weight in bytes. A value that was requested once is
//! *recent*, one that was used again is *frequent*; both are kept apart for data and for metadata. Each list
//! leaves *ghosts*: the hashes of what was evicted from it. A request for a ghost says that its list was too
//! small, and moves the targets: between recent and frequent values, and between data and metadata. A
//! *speculative* entry holds a prefetched value that has not been requested. Speculative entries have a
//! bounded share, evict neither frequent values nor fresher speculative entries, and become recent when they
//! are first requested.
//!
//! This crate has no notion of blocks, devices or formats. The scheme is that of N. Megiddo and D. S. Modha,
//! "ARC: A Self-Tuning, Low Overhead Replacement Cache" (2003).
//!
//! ```
//! use millpond_cache::{Cache, Class};
//! let cache: Cache<u64, &str> = Cache::new(1 << 20);
//! cache.insert(1, "one", Class::Data, 100);
//! assert_eq!(cache.get(&1, Class::Data), Some("one"));
//! ```
#![forbid(unsafe_code)]

mod ghost;
mod lists;
mod shard;
#[cfg(test)]
mod tests;

use foldhash::quality::RandomState;
use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use shard::{New, Shard};
use std::hash::{BuildHasher, Hash};

/// The most shards, each with a lock: enough that the threads of a large machine seldom contend.
const SHARDS_MAX: u64 = 64;
/// The share of a shard at the first limit, so that the largest block of a pool (16 MiB) fits.
const SHARD_BYTES_MIN: u64 = 64 << 20;

/// What an entry holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Content of files and volumes.
    Data = 0,
    /// Everything else: indirect blocks, dnodes, directories, space maps.
    Metadata = 1,
}

/// A bounded, thread-safe, adaptive cache.
///
/// A cache of one shard (less than 128 MiB) finds the same values after the same requests in every process.
pub struct Cache<K, V> {
    shards: Box<[Mutex<Shard<K, V>, rank::Leaf>]>,
    limit_bytes: AtomicU64,
    /// Random, so that nobody can forge keys that collide.
    hasher: RandomState,
}

/// Statistics of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStatistics {
    /// The most that all values may weigh, in bytes.
    pub limit_bytes: u64,
    /// Look-ups that found their value.
    pub hits: u64,
    /// Look-ups that found a recent value.
    pub recent_hits: u64,
    /// Look-ups that found a frequent value.
    pub frequent_hits: u64,
    /// Look-ups that found metadata.
    pub metadata_hits: u64,
    /// Look-ups that did not find their value.
    pub misses: u64,
    /// Look-ups of metadata that did not find their value.
    pub metadata_misses: u64,
    /// Inserted values that had been evicted a short while ago.
    pub ghost_hits: u64,
    /// Those that had been frequent.
    pub frequent_ghost_hits: u64,
    /// Weight of all values, in bytes.
    pub weight_bytes: u64,
    /// Weight of the content of files and volumes that was requested, in bytes.
    pub data_bytes: u64,
    /// Weight of the metadata that was requested, in bytes.
    pub metadata_bytes: u64,
    /// Weight of the frequent values, in bytes.
    pub frequent_bytes: u64,
    /// Weight of the evicted values whose ghosts are kept, in bytes. They take no such memory.
    pub ghost_bytes: u64,
    /// Number of values.
    pub entries: u64,
    /// Weight of the speculative entries that were not requested yet, in bytes.
    pub speculative_bytes: u64,
    /// Speculative entries that were requested.
    pub speculative_used: u64,
    /// Values evicted for others, or because the limit fell.
    pub evicted: u64,
    /// Weight of those, in bytes.
    pub evicted_bytes: u64,
}

impl<K: Hash + Eq + Clone, V: Clone> Cache<K, V> {
    /// A cache whose values weigh at most `limit_bytes` in total.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        let count = (limit_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        let count = 1 << count.ilog2();
        Self {
            shards: (0..count).map(|_| Mutex::new(Shard::new())).collect(),
            limit_bytes: AtomicU64::new(limit_bytes),
            hasher: RandomState::default(),
        }
    }

    fn hash(&self, key: &K) -> u64 {
        self.hasher.hash_one(key)
    }
    fn shard(&self, hash: u64) -> &Mutex<Shard<K, V>, rank::Leaf> {
        // The table in the shard uses the highest and the lowest bits. The number of shards is a power of two.
        &self.shards[(hash >> 40) as usize & (self.shards.len() - 1)]
    }
    /// The most that the values of one shard weigh.
    fn share_bytes(&self) -> u64 {
        self.limit_bytes() / self.shards.len() as u64
    }

    /// The value under `key`, if any; it becomes harder to evict. `class` says what a miss was for.
    #[must_use]
    pub fn get(&self, key: &K, class: Class) -> Option<V> {
        let hash = self.hash(key);
        self.shard(hash).lock().get(hash, key, class)
    }

    /// Inserts `value`, evicting others as needed. A value heavier than seven eighths of a shard's share is
    /// not kept at all, so that one huge block cannot empty the cache.
    ///
    /// Returns the evicted values and the one previously under this key. So the caller can reuse their
    /// memory, and none is freed while others wait for the lock.
    pub fn insert(&self, key: K, value: V, class: Class, weight_bytes: u64) -> Vec<V> {
        let mut gone = vec![];
        let new = self.entry(key, value, class, weight_bytes);
        let mut shard = self.shard(new.hash).lock();
        shard.insert(new, self.share_bytes(), &mut gone);
        drop(shard);
        gone
    }

    /// Inserts `value` as a speculative entry, if there is space. Returns whether it was kept, and the
    /// evicted values.
    ///
    /// Speculative entries weigh at most [`Cache::speculative_bytes_max`] in total. A new one evicts recent
    /// values and stale speculative entries, never frequent values.
    pub fn insert_speculative(
        &self,
        key: K,
        value: V,
        class: Class,
        weight_bytes: u64,
    ) -> (bool, Vec<V>) {
        let mut gone = vec![];
        let new = self.entry(key, value, class, weight_bytes);
        let mut shard = self.shard(new.hash).lock();
        let is_kept = shard.insert_speculative(new, self.share_bytes(), &mut gone);
        drop(shard);
        (is_kept, gone)
    }

    fn entry(&self, key: K, value: V, class: Class, weight_bytes: u64) -> New<K, V> {
        New {
            hash: self.hash(&key),
            key,
            value,
            class,
            weight_bytes,
        }
    }

    /// Whether a speculative entry of this weight would be kept now. The call itself makes space: it evicts
    /// stale speculative entries.
    #[must_use]
    pub fn has_room_for_speculative(&self, key: &K, weight_bytes: u64) -> bool {
        let mut shard = self.shard(self.hash(key)).lock();
        shard.has_room_for_speculative(weight_bytes, self.share_bytes())
    }

    /// The most that unrequested speculative entries may weigh, in bytes: a quarter of the limit.
    #[must_use]
    pub fn speculative_bytes_max(&self) -> u64 {
        self.share_bytes() / 4 * self.shards.len() as u64
    }

    /// Whether there is a value under `key`. This does not count as a look-up.
    #[must_use]
    pub fn contains(&self, key: &K) -> bool {
        let hash = self.hash(key);
        self.shard(hash).lock().contains(hash, key)
    }

    /// The value under `key`, if any. This does not count as a look-up, and eviction is unaffected.
    #[must_use]
    pub fn peek(&self, key: &K) -> Option<V> {
        let hash = self.hash(key);
        self.shard(hash).lock().peek(hash, key)
    }

    /// Removes the value under `key` if it was requested exactly once: its only reader is done with it.
    #[must_use]
    pub fn take_if_used_once(&self, key: &K) -> Option<V> {
        let hash = self.hash(key);
        self.shard(hash).lock().take_if_used_once(hash, key)
    }

    /// Removes and returns the value under `key`, if any.
    #[must_use]
    pub fn take(&self, key: &K) -> Option<V> {
        let hash = self.hash(key);
        self.shard(hash).lock().remove(hash, key)
    }

    /// Removes all values whose key is chosen, for example those of a pool that is closed.
    pub fn remove_where(&self, is_chosen: impl Fn(&K) -> bool) {
        for shard in &self.shards {
            let mut gone = vec![];
            shard.lock().remove_where(&is_chosen, &mut gone);
        }
    }

    /// The most that all values may weigh, in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// Changes the limit, and evicts what is above it.
    ///
    /// The number of shards stays. So a cache that was made small and grows has few locks, and one that
    /// shrinks far does not keep the largest blocks.
    pub fn set_limit_bytes(&self, limit_bytes: u64) {
        self.limit_bytes.store(limit_bytes, Ordering::Relaxed);
        for shard in &self.shards {
            let mut gone = vec![];
            shard.lock().make_space(0, self.share_bytes(), &mut gone);
        }
    }

    /// Sums over all shards.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        let mut sum = CacheStatistics {
            limit_bytes: self.limit_bytes(),
            ..CacheStatistics::default()
        };
        for shard in &self.shards {
            sum.add(&shard.lock().statistics());
        }
        sum
    }
}

impl CacheStatistics {
    fn add(&mut self, other: &Self) {
        let Self {
            limit_bytes: _,
            hits,
            recent_hits,
            frequent_hits,
            metadata_hits,
            misses,
            metadata_misses,
            ghost_hits,
            frequent_ghost_hits,
            weight_bytes,
            data_bytes,
            metadata_bytes,
            frequent_bytes,
            ghost_bytes,
            entries,
            speculative_bytes,
            speculative_used,
            evicted,
            evicted_bytes,
        } = other;
        self.hits += hits;
        self.recent_hits += recent_hits;
        self.frequent_hits += frequent_hits;
        self.metadata_hits += metadata_hits;
        self.misses += misses;
        self.metadata_misses += metadata_misses;
        self.ghost_hits += ghost_hits;
        self.frequent_ghost_hits += frequent_ghost_hits;
        self.weight_bytes += weight_bytes;
        self.data_bytes += data_bytes;
        self.metadata_bytes += metadata_bytes;
        self.frequent_bytes += frequent_bytes;
        self.ghost_bytes += ghost_bytes;
        self.entries += entries;
        self.speculative_bytes += speculative_bytes;
        self.speculative_used += speculative_used;
        self.evicted += evicted;
        self.evicted_bytes += evicted_bytes;
    }
}
