//! Layer `storage`: what stays in memory.
//!
//! A bounded map from any small key to any shared value, each with a weight in bytes. Two queues
//! keep a scan from flushing what is used again and again: a value enters *probation* and moves to
//! *protected* when it is asked for a second time; probation is emptied first. This crate knows no
//! block, no device and no format.
//!
//! ```
//! use millpond_cache::Cache;
//! let cache: Cache<u64, &str> = Cache::new(1 << 20);
//! cache.insert(1, "one", 100);
//! assert_eq!(cache.get(&1), Some("one"));
//! ```
#![forbid(unsafe_code)]

use millpond_env::sync::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Locks of the map: enough that the threads of a large machine seldom meet.
const SHARDS_MAX: u64 = 16;
/// A shard's share is at least this, so that the largest block of a pool (16 MiB) finds room.
const SHARD_BYTES_MIN: u64 = 64 << 20;

/// A bounded, thread-safe, scan-resistant cache.
pub struct Cache<K, V> {
    shards: Vec<Mutex<Shard<K, V>>>,
    hasher: std::hash::RandomState,
}

/// What a cache holds and how well it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStatistics {
    /// Look-ups that found their value.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Weight of all values, in bytes.
    pub weight_bytes: u64,
    /// Number of values.
    pub entries: u64,
}

struct Entry<V> {
    value: V,
    weight_bytes: u64,
    stamp: u64,
    is_protected: bool,
}

struct Shard<K, V> {
    limit_bytes: u64,
    entries: HashMap<K, Entry<V>>,
    probation: BTreeMap<u64, K>,
    protected: BTreeMap<u64, K>,
    weight_bytes: u64,
    protected_bytes: u64,
    stamp: u64,
    hits: u64,
    misses: u64,
}

impl<K: Hash + Eq + Clone, V: Clone> Cache<K, V> {
    /// A cache whose values weigh at most `limit_bytes` together.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        let count = (limit_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        let limit = limit_bytes / count;
        let shards = (0..count).map(|_| Mutex::new(Shard::new(limit))).collect();
        Self {
            shards,
            hasher: std::hash::RandomState::new(),
        }
    }

    fn shard(&self, key: &K) -> &Mutex<Shard<K, V>> {
        use std::hash::BuildHasher;
        let index = self.hasher.hash_one(key) as usize % self.shards.len();
        &self.shards[index]
    }

    /// The value kept under `key`, if any; it becomes harder to evict.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<V> {
        self.shard(key).lock().get(key)
    }

    /// Keeps `value`, evicting others as needed. A value heavier than seven eighths of a shard's share
    /// is not kept at all, so that one huge block cannot empty the cache.
    pub fn insert(&self, key: K, value: V, weight_bytes: u64) {
        self.shard(&key).lock().insert(key, value, weight_bytes);
    }

    /// Forgets everything.
    pub fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let limit = shard.limit_bytes;
            *shard = Shard::new(limit);
        }
    }

    /// Sums over all shards.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        let mut sum = CacheStatistics::default();
        for shard in &self.shards {
            let shard = shard.lock();
            sum.hits += shard.hits;
            sum.misses += shard.misses;
            sum.weight_bytes += shard.weight_bytes;
            sum.entries += shard.entries.len() as u64;
        }
        sum
    }
}

impl<K: Hash + Eq + Clone, V: Clone> Shard<K, V> {
    fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            entries: HashMap::new(),
            probation: BTreeMap::new(),
            protected: BTreeMap::new(),
            weight_bytes: 0,
            protected_bytes: 0,
            stamp: 0,
            hits: 0,
            misses: 0,
        }
    }

    fn get(&mut self, key: &K) -> Option<V> {
        self.stamp += 1;
        let Some(entry) = self.entries.get_mut(key) else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        if entry.is_protected {
            self.protected.remove(&entry.stamp);
        } else {
            self.probation.remove(&entry.stamp);
            entry.is_protected = true;
            self.protected_bytes += entry.weight_bytes;
        }
        entry.stamp = self.stamp;
        self.protected.insert(self.stamp, key.clone());
        let value = entry.value.clone();
        self.shrink_protected();
        Some(value)
    }

    /// Protected values take at most three quarters; the oldest of them go back to probation.
    fn shrink_protected(&mut self) {
        while self.protected_bytes > self.limit_bytes / 4 * 3 {
            let Some((_, key)) = self.protected.pop_first() else {
                return;
            };
            self.stamp += 1;
            if let Some(entry) = self.entries.get_mut(&key) {
                self.protected_bytes -= entry.weight_bytes;
                entry.is_protected = false;
                entry.stamp = self.stamp;
                self.probation.insert(self.stamp, key);
            }
        }
    }

    fn insert(&mut self, key: K, value: V, weight_bytes: u64) {
        self.remove(&key);
        if weight_bytes > self.limit_bytes / 8 * 7 {
            return;
        }
        while self.weight_bytes + weight_bytes > self.limit_bytes {
            let oldest = self
                .probation
                .first_key_value()
                .or(self.protected.first_key_value());
            let Some((_, victim)) = oldest else { break };
            let victim = victim.clone();
            self.remove(&victim);
        }
        self.stamp += 1;
        self.probation.insert(self.stamp, key.clone());
        self.weight_bytes += weight_bytes;
        let stamp = self.stamp;
        self.entries.insert(
            key,
            Entry {
                value,
                weight_bytes,
                stamp,
                is_protected: false,
            },
        );
    }

    fn remove(&mut self, key: &K) {
        let Some(entry) = self.entries.remove(key) else {
            return;
        };
        self.weight_bytes -= entry.weight_bytes;
        if entry.is_protected {
            self.protected_bytes -= entry.weight_bytes;
            self.protected.remove(&entry.stamp);
        } else {
            self.probation.remove(&entry.stamp);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weight_never_exceeds_the_limit() {
        let cache = Cache::new(16 * 1000);
        for key in 0..10_000u64 {
            cache.insert(key, key, 1 + key % 300);
            let _ = cache.get(&(key / 2));
            assert!(cache.statistics().weight_bytes <= 16 * 1000);
        }
        assert!(cache.statistics().entries > 20);
    }

    #[test]
    fn a_scan_does_not_flush_what_was_used_twice() {
        let cache = Cache::new(16 * 1000);
        for key in 0..16u64 {
            cache.insert(key, key, 50);
            assert_eq!(cache.get(&key), Some(key));
        }
        for key in 1000..100_000u64 {
            cache.insert(key, key, 50);
        }
        let kept = (0..16u64).filter(|key| cache.get(key).is_some()).count();
        assert_eq!(kept, 16);
    }

    #[test]
    fn a_value_too_heavy_is_not_kept_and_evicts_nothing() {
        let cache = Cache::new(16 * 1000);
        cache.insert(1u64, 1u64, 10);
        cache.insert(2, 2, 1_000_000);
        assert_eq!(cache.get(&1), Some(1));
        assert_eq!(cache.get(&2), None);
    }

    #[test]
    fn the_largest_block_of_a_pool_is_kept_by_the_usual_cache() {
        let cache = Cache::new(256 << 20);
        cache.insert(1u64, 1u64, 16 << 20);
        assert_eq!(cache.get(&1), Some(1));
    }

    #[test]
    fn replacing_a_value_keeps_the_sum_right() {
        let cache = Cache::new(16 * 1000);
        cache.insert(1u64, 1u64, 500);
        assert_eq!(cache.get(&1), Some(1));
        cache.insert(1, 2, 20);
        assert_eq!(cache.get(&1), Some(2));
        assert_eq!(cache.statistics().weight_bytes, 20);
    }
}
