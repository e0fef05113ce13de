//! Layer `storage`: the cache.
//!
//! A bounded map from any small key to any shared value, each with a weight in bytes. Two queues keep a
//! scan from evicting values in frequent use: a value enters *probation* and moves to *protected* when it
//! is requested a second time; probation is evicted first. A *speculative* entry holds a prefetched value
//! that has not been requested. Speculative entries have a bounded share, evict neither protected values
//! nor fresher speculative entries, and enter probation when they are first requested. This crate has no
//! notion of blocks, devices or formats.
//!
//! ```
//! use millpond_cache::Cache;
//! let cache: Cache<u64, &str> = Cache::new(1 << 20);
//! cache.insert(1, "one", 100);
//! assert_eq!(cache.get(&1), Some("one"));
//! ```
#![forbid(unsafe_code)]

use millpond_env::rank;
use millpond_env::sync::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash};

/// The most shards, each with a lock: enough that the threads of a large machine seldom contend.
const SHARDS_MAX: u64 = 16;
/// The least share of a shard, so that the largest block of a pool (16 MiB) fits.
const SHARD_BYTES_MIN: u64 = 64 << 20;

/// A bounded, thread-safe, scan-resistant cache.
pub struct Cache<K, V> {
    shards: Vec<Mutex<Shard<K, V>, rank::Leaf>>,
    /// The hash keys are the same in every process, so that the same requests find the same values. Someone
    /// who forges blocks that all fall into one shard only slows down their own pool; within a shard the
    /// keys are random.
    hasher: BuildHasherDefault<DefaultHasher>,
}

/// Statistics of a cache.
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
    /// Weight of the speculative entries that were not requested yet, in bytes.
    pub speculative_bytes: u64,
    /// Speculative entries that were requested.
    pub speculative_used: u64,
}

/// The eviction queue of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    /// Prefetched, and not requested yet.
    Speculative,
    /// Requested once.
    Probation,
    /// Requested more than once.
    Protected,
}

struct Entry<V> {
    value: V,
    weight_bytes: u64,
    stamp: u64,
    queue: Queue,
}

struct Shard<K, V> {
    limit_bytes: u64,
    entries: HashMap<K, Entry<V>>,
    speculative: BTreeMap<u64, K>,
    probation: BTreeMap<u64, K>,
    protected: BTreeMap<u64, K>,
    weight_bytes: u64,
    speculative_bytes: u64,
    protected_bytes: u64,
    stamp: u64,
    hits: u64,
    misses: u64,
    speculative_used: u64,
}

impl<K: Hash + Eq + Clone, V: Clone> Cache<K, V> {
    /// A cache whose values weigh at most `limit_bytes` in total.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        let count = (limit_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        let limit = limit_bytes / count;
        let shards = (0..count).map(|_| Mutex::new(Shard::new(limit))).collect();
        Self {
            shards,
            hasher: BuildHasherDefault::new(),
        }
    }

    fn shard(&self, key: &K) -> &Mutex<Shard<K, V>, rank::Leaf> {
        use std::hash::BuildHasher;
        let index = self.hasher.hash_one(key) as usize % self.shards.len();
        &self.shards[index]
    }

    /// The value under `key`, if any; it becomes harder to evict.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<V> {
        self.shard(key).lock().get(key)
    }

    /// Inserts `value`, evicting others as needed. A value heavier than seven eighths of a shard's share is
    /// not kept at all, so that one huge block cannot empty the cache.
    ///
    /// Returns the evicted values and the one previously under this key. So the caller can reuse their
    /// memory, and none is freed while others wait for the lock.
    pub fn insert(&self, key: K, value: V, weight_bytes: u64) -> Vec<V> {
        let mut gone = vec![];
        (self.shard(&key).lock()).insert(key, value, weight_bytes, &mut gone);
        gone
    }

    /// Inserts `value` as a speculative entry, if there is space. Returns whether it was kept, and the
    /// evicted values.
    ///
    /// Speculative entries weigh at most [`Cache::speculative_bytes_max`] in total. A new one evicts values that
    /// were requested once and stale speculative entries, never protected values.
    pub fn insert_speculative(&self, key: K, value: V, weight_bytes: u64) -> (bool, Vec<V>) {
        let mut gone = vec![];
        let mut shard = self.shard(&key).lock();
        let is_kept = shard.insert_speculative(key, value, weight_bytes, &mut gone);
        drop(shard);
        (is_kept, gone)
    }

    /// Whether a speculative entry of this weight would be kept now. The call itself makes space: it evicts
    /// stale speculative entries.
    #[must_use]
    pub fn has_room_for_speculative(&self, key: &K, weight_bytes: u64) -> bool {
        self.shard(key)
            .lock()
            .has_room_for_speculative(weight_bytes)
    }

    /// The most that unrequested speculative entries may weigh, in bytes: a quarter of the limit.
    #[must_use]
    pub fn speculative_bytes_max(&self) -> u64 {
        let shares = self.shards.iter().map(|shard| shard.lock().limit_bytes / 4);
        shares.sum()
    }

    /// Whether there is a value under `key`. This does not count as a look-up.
    #[must_use]
    pub fn contains(&self, key: &K) -> bool {
        self.shard(key).lock().entries.contains_key(key)
    }

    /// The value under `key`, if any. This does not count as a look-up, and eviction is unaffected.
    #[must_use]
    pub fn peek(&self, key: &K) -> Option<V> {
        let shard = self.shard(key).lock();
        shard.entries.get(key).map(|entry| entry.value.clone())
    }

    /// Removes the value under `key` if it was requested exactly once: its only reader is done with it.
    #[must_use]
    pub fn take_if_used_once(&self, key: &K) -> Option<V> {
        let mut shard = self.shard(key).lock();
        let is_once = (shard.entries.get(key)).is_some_and(|entry| entry.queue == Queue::Probation);
        is_once.then(|| shard.remove(key))?
    }

    /// Removes and returns the value under `key`, if any.
    #[must_use]
    pub fn take(&self, key: &K) -> Option<V> {
        self.shard(key).lock().remove(key)
    }

    /// Evicts everything.
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
            sum.speculative_bytes += shard.speculative_bytes;
            sum.speculative_used += shard.speculative_used;
        }
        sum
    }
}

impl<K: Hash + Eq + Clone, V: Clone> Shard<K, V> {
    fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            entries: HashMap::new(),
            speculative: BTreeMap::new(),
            probation: BTreeMap::new(),
            protected: BTreeMap::new(),
            weight_bytes: 0,
            speculative_bytes: 0,
            protected_bytes: 0,
            stamp: 0,
            hits: 0,
            misses: 0,
            speculative_used: 0,
        }
    }

    fn get(&mut self, key: &K) -> Option<V> {
        self.stamp += 1;
        let Some(entry) = self.entries.get_mut(key) else {
            self.misses += 1;
            return None;
        };
        self.hits += 1;
        let (value, old, queue) = (entry.value.clone(), entry.stamp, entry.queue);
        entry.stamp = self.stamp;
        match queue {
            Queue::Speculative => {
                self.speculative.remove(&old);
                self.speculative_bytes -= entry.weight_bytes;
                self.speculative_used += 1;
                entry.queue = Queue::Probation;
                self.probation.insert(self.stamp, key.clone());
                return Some(value);
            }
            Queue::Probation => {
                self.probation.remove(&old);
                entry.queue = Queue::Protected;
                self.protected_bytes += entry.weight_bytes;
            }
            Queue::Protected => {
                self.protected.remove(&old);
            }
        }
        self.protected.insert(self.stamp, key.clone());
        self.shrink_protected();
        Some(value)
    }

    /// Protected values take at most three quarters of the limit; the oldest ones move back to probation.
    fn shrink_protected(&mut self) {
        while self.protected_bytes > self.limit_bytes / 4 * 3 {
            let Some((_, key)) = self.protected.pop_first() else {
                return;
            };
            self.stamp += 1;
            if let Some(entry) = self.entries.get_mut(&key) {
                self.protected_bytes -= entry.weight_bytes;
                entry.queue = Queue::Probation;
                entry.stamp = self.stamp;
                self.probation.insert(self.stamp, key);
            }
        }
    }

    fn insert(&mut self, key: K, value: V, weight_bytes: u64, gone: &mut Vec<V>) {
        gone.extend(self.remove(&key));
        if weight_bytes > self.limit_bytes / 8 * 7 {
            return;
        }
        while self.weight_bytes + weight_bytes > self.limit_bytes {
            let oldest = self
                .stale_speculative()
                .or(self.probation.first_key_value().map(|(_, key)| key))
                .or(self.speculative.first_key_value().map(|(_, key)| key))
                .or(self.protected.first_key_value().map(|(_, key)| key));
            let Some(victim) = oldest else { break };
            let victim = victim.clone();
            gone.extend(self.remove(&victim));
        }
        self.put(key, value, weight_bytes, Queue::Probation);
    }

    fn put(&mut self, key: K, value: V, weight_bytes: u64, queue: Queue) {
        self.stamp += 1;
        let stamp = self.stamp;
        match queue {
            Queue::Speculative => {
                self.speculative.insert(stamp, key.clone());
                self.speculative_bytes += weight_bytes;
            }
            Queue::Probation => {
                self.probation.insert(stamp, key.clone());
            }
            Queue::Protected => {
                self.protected.insert(stamp, key.clone());
                self.protected_bytes += weight_bytes;
            }
        }
        self.weight_bytes += weight_bytes;
        let entry = Entry {
            value,
            weight_bytes,
            stamp,
            queue,
        };
        self.entries.insert(key, entry);
    }

    /// The oldest speculative entry, if it is stale: since it was inserted, the shard has seen more than
    /// two events for each entry, plus 64. Its reader is unlikely to come.
    fn stale_speculative(&self) -> Option<&K> {
        let (stamp, key) = self.speculative.first_key_value()?;
        let events_max = self.entries.len() as u64 * 2 + 64;
        (self.stamp - stamp > events_max).then_some(key)
    }

    fn has_room_for_speculative(&mut self, weight_bytes: u64) -> bool {
        // Each request for space ages the existing entries, so that it succeeds in the end.
        self.stamp += 1;
        let share = self.limit_bytes / 4;
        while self.speculative_bytes + weight_bytes > share {
            let Some(victim) = self.stale_speculative().cloned() else {
                return false;
            };
            self.remove(&victim);
        }
        let held = self.protected_bytes + self.speculative_bytes;
        held + weight_bytes <= self.limit_bytes
    }

    fn insert_speculative(
        &mut self,
        key: K,
        value: V,
        weight_bytes: u64,
        gone: &mut Vec<V>,
    ) -> bool {
        if self.entries.contains_key(&key) {
            return true;
        }
        if !self.has_room_for_speculative(weight_bytes) {
            return false;
        }
        while self.weight_bytes + weight_bytes > self.limit_bytes {
            let Some((_, victim)) = self.probation.first_key_value() else {
                return false;
            };
            let victim = victim.clone();
            gone.extend(self.remove(&victim));
        }
        self.put(key, value, weight_bytes, Queue::Speculative);
        true
    }

    fn remove(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.remove(key)?;
        self.weight_bytes -= entry.weight_bytes;
        match entry.queue {
            Queue::Speculative => {
                self.speculative_bytes -= entry.weight_bytes;
                self.speculative.remove(&entry.stamp);
            }
            Queue::Probation => {
                self.probation.remove(&entry.stamp);
            }
            Queue::Protected => {
                self.protected_bytes -= entry.weight_bytes;
                self.protected.remove(&entry.stamp);
            }
        }
        Some(entry.value)
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
    fn a_scan_does_not_evict_values_used_twice() {
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
    fn the_same_requests_find_the_same_values_in_any_process() {
        let kept = || -> Vec<u64> {
            let cache = Cache::new(8 * SHARD_BYTES_MIN);
            assert_eq!(cache.shards.len(), 8);
            (0..400u64).for_each(|key| drop(cache.insert(key, key, 2 << 20)));
            (0..400).filter(|key| cache.get(key).is_some()).collect()
        };
        let first = kept();
        assert!(first.len() < 257, "{first:?}");
        assert_eq!(kept(), first);
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

    #[test]
    fn removed_entries_and_their_weight_are_gone() {
        let cache = Cache::new(16 * 1000);
        cache.insert(1u64, 1u64, 500);
        assert!(cache.insert_speculative(2, 2, 500).0);
        assert_eq!(
            (cache.take(&1), cache.take(&2), cache.take(&3)),
            (Some(1), Some(2), None)
        );
        let stats = cache.statistics();
        assert_eq!(
            (stats.weight_bytes, stats.speculative_bytes, stats.entries),
            (0, 0, 0)
        );
    }

    #[test]
    fn a_used_speculative_entry_becomes_a_value_read_once() {
        let cache = Cache::new(16 * 1000);
        assert!(cache.insert_speculative(1u64, 1u64, 500).0);
        assert_eq!(cache.statistics().speculative_bytes, 500);
        assert_eq!(cache.get(&1), Some(1));
        let stats = cache.statistics();
        assert_eq!((stats.speculative_bytes, stats.speculative_used), (0, 1));
        // A scan of values read once evicts it: it was not promoted to protected.
        for key in 1000..2000u64 {
            cache.insert(key, key, 500);
        }
        assert!(!cache.contains(&1));
    }

    #[test]
    fn speculative_entries_never_evict_used_values() {
        let cache = Cache::new(16 * 1000);
        for key in 0..24u64 {
            cache.insert(key, key, 500);
            assert_eq!(cache.get(&key), Some(key));
        }
        let mut kept = 0;
        for key in 1000..100_000u64 {
            kept += u64::from(cache.insert_speculative(key, key, 100).0);
            let stats = cache.statistics();
            assert!(stats.speculative_bytes <= cache.speculative_bytes_max());
            assert!(stats.weight_bytes <= 16 * 1000);
        }
        assert!(kept > 40);
        assert_eq!((0..24u64).filter(|key| cache.contains(key)).count(), 24);
    }

    #[test]
    fn new_speculative_entries_evict_only_stale_ones() {
        let cache = Cache::new(16 * 1000);
        for key in 0..40u64 {
            assert!(cache.insert_speculative(key, key, 100).0);
        }
        assert!(
            !cache.insert_speculative(100, 100, 100).0,
            "the share is taken"
        );
        assert_eq!((0..40u64).filter(|key| cache.contains(key)).count(), 40);
        // Other readers continue, and none requests the speculative entries.
        for key in 1000..1400u64 {
            cache.insert(key, key, 100);
            let _ = cache.get(&key);
        }
        assert!(cache.insert_speculative(100, 100, 100).0);
    }

    #[test]
    fn a_speculative_entry_does_not_replace_a_value() {
        let cache = Cache::new(16 * 1000);
        cache.insert(1u64, 1u64, 500);
        assert!(cache.insert_speculative(1, 2, 500).0);
        assert_eq!(cache.get(&1), Some(1));
        assert!(!cache.insert_speculative(2, 2, 16 * 1000).0);
        assert!(cache.contains(&1) && !cache.contains(&2));
    }

    #[test]
    fn evicted_values_are_returned() {
        let cache = Cache::new(1000);
        assert!(cache.insert(1u64, 'a', 400).is_empty());
        assert!(cache.insert(2, 'b', 400).is_empty());
        assert_eq!(cache.insert(1, 'c', 400), ['a'], "it had this key");
        assert_eq!(cache.insert(3, 'd', 400), ['b']);
        let (is_kept, gone) = cache.insert_speculative(4, 'e', 240);
        assert!(is_kept);
        assert_eq!(gone, ['c']);
    }

    #[test]
    fn only_values_read_once_are_taken_back() {
        let cache = Cache::new(16 * 1000);
        assert!(cache.insert_speculative(1u64, 1u64, 100).0);
        assert_eq!(cache.take_if_used_once(&1), None, "nobody asked for it yet");
        assert_eq!(cache.get(&1), Some(1));
        assert_eq!(cache.take_if_used_once(&1), Some(1));
        assert_eq!(cache.get(&1), None);
        cache.insert(2, 2, 100);
        assert_eq!(cache.get(&2), Some(2));
        assert_eq!(
            cache.take_if_used_once(&2),
            None,
            "somebody else wants it, too"
        );
        assert_eq!(cache.take_if_used_once(&3), None);
        assert_eq!(cache.statistics().weight_bytes, 100);
    }
}
