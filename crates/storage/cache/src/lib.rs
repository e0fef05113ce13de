//! Layer `storage`: the adaptive replacement cache (ARC).
//!
//! A bounded map from keys to shared values, each with a weight in bytes. A value that was requested once is
//! *recent*, one that was used again is *frequent*; both are kept apart for data and for metadata. Each list
//! leaves *ghosts*: the hashes of what was evicted from it. A request for a ghost says that its list was too
//! small, and moves the targets: between recent and frequent values, and between data and metadata. A
//! *speculative* entry holds a prefetched value that has not been requested. Speculative entries have a
//! bounded share, evict neither frequent values nor fresher speculative entries, and become recent when they
//! are first requested. A reader whose values are not to be kept looks up with a [`Retention`].
//!
//! A value may have two forms ([`Forms`]): a compact one, and an expanded one that is quicker to use. Look-ups
//! find the expanded form while it is there. It is the first to go when space is needed: then the expanded forms
//! keep a 32nd of the cache, at least 4 MiB of each shard.
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

mod candidates;
mod expanded;
mod ghost;
mod lists;
mod shard;
mod statistics;
#[cfg(test)]
mod tests;

pub use candidates::Candidate;
pub use statistics::{CacheStatistics, Lookups};

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

/// What a look-up found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The value.
    Hit,
    /// Another caller that is reading it.
    IoHit,
    /// Nothing.
    Miss,
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

/// What becomes of a value after it was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Retention {
    /// It stays, subject to eviction.
    #[default]
    Keep,
    /// It stays, but is no candidate to be copied elsewhere ([`Cache::candidates`]) before it is requested with
    /// [`Retention::Keep`].
    KeepInMemory,
    /// Its reader will request the rest of it next, and then drop it. Until then it is a speculative entry, if
    /// there is space.
    Rest,
    /// It is removed.
    Drop,
}

impl Retention {
    /// Whether the value stays.
    #[must_use]
    pub fn is_kept(self) -> bool {
        matches!(self, Self::Keep | Self::KeepInMemory)
    }
}

/// A value to insert, in one form or two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forms<V> {
    /// The compact form, or the only one.
    pub compact: V,
    /// What it weighs, in bytes.
    pub compact_bytes: u64,
    /// The form that look-ups find while there is space for it, and what it weighs in addition, in bytes.
    pub expanded: Option<(V, u64)>,
    /// The size of the content for the statistics, expanded or not, in bytes.
    pub content_bytes: u64,
}

impl<V> Forms<V> {
    /// A value of one form.
    pub fn one(value: V, weight_bytes: u64) -> Self {
        Self {
            compact: value,
            compact_bytes: weight_bytes,
            expanded: None,
            content_bytes: weight_bytes,
        }
    }
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
        self.shard(hash).lock().get(hash, key, class, true)
    }

    /// The value under `key`, if any, for a request after which it becomes `retention`. `class` says what a
    /// miss was for. With [`Retention::Keep`] this is [`Cache::get`].
    #[must_use]
    pub fn get_with(&self, key: &K, class: Class, retention: Retention) -> Option<V> {
        let hash = self.hash(key);
        let mut gone = vec![];
        let mut shard = self.shard(hash).lock();
        match retention {
            Retention::Keep => shard.get(hash, key, class, true),
            Retention::KeepInMemory => shard.get(hash, key, class, false),
            other => shard.get_transient(hash, key, class, other, &mut gone),
        }
    }

    /// Adds an expanded form to the value under `key`, if there is one without: `expanded` is the form and what
    /// it weighs in addition, in bytes. Returns the values that are gone, as [`Cache::insert`] does.
    pub fn expand(&self, key: &K, expanded: (V, u64)) -> Vec<V> {
        let (hash, mut gone) = (self.hash(key), vec![]);
        let mut shard = self.shard(hash).lock();
        shard.expand(hash, key, expanded, self.share_bytes(), &mut gone);
        drop(shard);
        gone
    }

    /// Repeats a look-up that missed, as [`Cache::get_with`]. Both count as one.
    #[must_use]
    pub fn get_again(&self, key: &K, class: Class, retention: Retention) -> Option<V> {
        let hash = self.hash(key);
        self.shard(hash).lock().uncount_miss(class);
        self.get_with(key, class, retention)
    }

    /// Takes the count of a look-up that missed back: another look-up of its caller counts instead.
    pub fn uncount_miss(&self, key: &K, class: Class) {
        self.shard(self.hash(key)).lock().uncount_miss(class);
    }

    /// Says that the caller of a look-up that missed waits for another caller's read of the value: the miss
    /// becomes an I/O hit.
    pub fn count_joined(&self, key: &K, class: Class) {
        let mut shard = self.shard(self.hash(key)).lock();
        shard.uncount_miss(class);
        shard.count_io_hit(class);
    }

    /// Says that a speculative entry was used by a caller that waited for it. This does not count as a look-up.
    pub fn note_used(&self, key: &K, class: Class, retention: Retention) {
        let (hash, mut gone) = (self.hash(key), vec![]);
        let mut shard = self.shard(hash).lock();
        shard.note_used(hash, key, class, retention, &mut gone);
    }

    /// Counts a look-up of a prefetcher, and what it found.
    pub fn count_prefetch(&self, key: &K, class: Class, outcome: Outcome) {
        let mut shard = self.shard(self.hash(key)).lock();
        shard.count_prefetch(class, outcome);
    }

    /// Inserts a value of one form, evicting others as needed. A value heavier than seven eighths of a shard's
    /// share is not kept at all, so that one huge block cannot empty the cache.
    ///
    /// Returns the evicted values and the one previously under this key. So the caller can reuse their
    /// memory, and none is freed while others wait for the lock.
    pub fn insert(&self, key: K, value: V, class: Class, weight_bytes: u64) -> Vec<V> {
        self.insert_forms(key, Forms::one(value, weight_bytes), class)
    }

    /// As [`Cache::insert`], for a value of one form or two.
    pub fn insert_forms(&self, key: K, forms: Forms<V>, class: Class) -> Vec<V> {
        self.insert_kept(self.entry(key, forms, class))
    }

    fn insert_kept(&self, new: New<K, V>) -> Vec<V> {
        let mut gone = vec![];
        let mut shard = self.shard(new.hash).lock();
        shard.insert(new, self.share_bytes(), &mut gone);
        drop(shard);
        gone
    }

    /// Inserts a value as a speculative entry, if there is space. Returns whether it was kept, and the
    /// evicted values.
    ///
    /// Speculative entries weigh at most [`Cache::speculative_bytes_max`] in total. A new one evicts recent
    /// values and stale speculative entries, never frequent values.
    pub fn insert_speculative(&self, key: K, forms: Forms<V>, class: Class) -> (bool, Vec<V>) {
        let mut gone = vec![];
        let mut new = self.entry(key, forms, class);
        new.requests = 0;
        let mut shard = self.shard(new.hash).lock();
        let is_kept = shard.insert_speculative(new, self.share_bytes(), &mut gone);
        drop(shard);
        (is_kept, gone)
    }

    /// Inserts the value of a request that becomes `retention`. Returns the values that are gone, as
    /// [`Cache::insert`] does.
    pub fn insert_with(
        &self,
        key: K,
        forms: Forms<V>,
        class: Class,
        retention: Retention,
    ) -> Vec<V> {
        match retention {
            Retention::Keep => self.insert_forms(key, forms, class),
            Retention::KeepInMemory => {
                let mut new = self.entry(key, forms, class);
                new.is_candidate = false;
                self.insert_kept(new)
            }
            Retention::Drop => {
                let expanded = forms.expanded.map(|(value, _)| value);
                [Some(forms.compact), expanded]
                    .into_iter()
                    .flatten()
                    .collect()
            }
            Retention::Rest => {
                let mut gone = vec![];
                let new = self.entry(key, forms, class);
                let mut shard = self.shard(new.hash).lock();
                shard.insert_speculative(new, self.share_bytes(), &mut gone);
                drop(shard);
                gone
            }
        }
    }

    fn entry(&self, key: K, forms: Forms<V>, class: Class) -> New<K, V> {
        New {
            hash: self.hash(&key),
            key,
            forms,
            class,
            requests: 1,
            is_candidate: true,
        }
    }

    /// Whether a speculative entry of this weight would be kept now. The call itself makes space: it evicts
    /// stale speculative entries.
    #[must_use]
    pub fn has_room_for_speculative(&self, key: &K, weight_bytes: u64) -> bool {
        let mut gone = vec![];
        let mut shard = self.shard(self.hash(key)).lock();
        shard.has_room_for_speculative(weight_bytes, self.share_bytes(), &mut gone)
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
        let (hash, mut gone) = (self.hash(key), vec![]);
        let mut shard = self.shard(hash).lock();
        shard.take_if_used_once(hash, key, &mut gone)
    }

    /// Removes and returns the value under `key`, if any.
    #[must_use]
    pub fn take(&self, key: &K) -> Option<V> {
        let (hash, mut gone) = (self.hash(key), vec![]);
        let mut shard = self.shard(hash).lock();
        shard.remove(hash, key, &mut gone)
    }

    /// Removes and returns all forms of the values whose key is chosen, among those whose key has the same hash as `key`.
    #[must_use]
    pub fn take_each(&self, key: &K, is_chosen: impl Fn(&K) -> bool) -> Vec<V> {
        let (hash, mut gone) = (self.hash(key), vec![]);
        let mut shard = self.shard(hash).lock();
        shard.remove_each(hash, &is_chosen, &mut gone);
        gone
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
            shard.lock().shrink(self.share_bytes(), &mut gone);
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
