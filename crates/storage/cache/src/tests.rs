//! Tests of the adaptive replacement.

mod forms;

use super::*;
use crate::Class::{Data, Metadata};
use forms::two;
use proptest::prelude::*;
use std::collections::HashMap;

/// Inserts values that nobody requests again, so that later requests of older ones count as new uses.
fn pass_time(cache: &Cache<u64, u64>) {
    for key in 0..16 {
        cache.insert(u64::MAX - key, 0, Data, 1);
    }
}

/// A cache with the given frequent keys.
fn with_frequent(
    limit: u64,
    keys: std::ops::Range<u64>,
    class: Class,
    weight: u64,
) -> Cache<u64, u64> {
    let cache = Cache::new(limit);
    for key in keys.clone() {
        cache.insert(key, key, class, weight);
    }
    pass_time(&cache);
    for key in keys {
        assert_eq!(cache.get(&key, class), Some(key));
    }
    cache
}

fn count(cache: &Cache<u64, u64>, mut keys: std::ops::Range<u64>) -> usize {
    keys.by_ref().filter(|key| cache.contains(key)).count()
}

#[test]
fn the_weight_never_exceeds_the_limit() {
    let cache = Cache::new(16 * 1000);
    for key in 0..10_000u64 {
        let class = if key % 3 == 0 { Metadata } else { Data };
        cache.insert(key, key, class, 1 + key % 300);
        let _ = cache.get(&(key / 2), class);
        assert!(cache.statistics().weight_bytes <= 16 * 1000);
    }
    assert!(cache.statistics().entries > 20);
}

/// A key of which only the first part is hashed.
#[derive(Clone, PartialEq, Eq)]
struct Pair(u64, u64);

impl std::hash::Hash for Pair {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

#[test]
fn all_values_of_one_hash_can_be_taken() {
    let cache = Cache::new(16 * 1000);
    for key in 0..60 {
        cache.insert(Pair(key % 3, key), key, Data, 10);
    }
    let mut taken = cache.take_each(&Pair(1, 0), |key| key.0 == 1 && key.1 < 30);
    taken.sort_unstable();
    assert_eq!(
        taken,
        (0..30).filter(|key| key % 3 == 1).collect::<Vec<_>>()
    );
    let again = cache.take_each(&Pair(1, 0), |key| key.0 == 1 && key.1 < 30);
    assert!(again.is_empty());
    let left = cache.statistics();
    assert_eq!((left.entries, left.weight_bytes), (50, 500));
    assert!(cache.contains(&Pair(1, 31)) && cache.contains(&Pair(0, 0)));
}

#[test]
fn a_scan_does_not_evict_values_used_twice() {
    let cache = with_frequent(16 * 1000, 0..16, Data, 50);
    for key in 1000..100_000u64 {
        cache.insert(key, key, Data, 50);
    }
    assert_eq!(count(&cache, 0..16), 16);
}

#[test]
fn requests_in_a_row_count_as_one_use() {
    let cache = Cache::new(16 * 1000);
    cache.insert(1u64, 1u64, Data, 50);
    for _ in 0..100 {
        assert_eq!(cache.get(&1, Data), Some(1));
    }
    assert_eq!(cache.statistics().frequent_bytes, 0);
    for key in 1000..2000u64 {
        cache.insert(key, key, Data, 50);
    }
    assert!(!cache.contains(&1), "a scan evicts it");
}

#[test]
fn a_value_that_comes_back_soon_is_frequent() {
    let cache = Cache::new(16 * 1000);
    cache.insert(1u64, 1u64, Data, 500);
    for key in 1000..1040u64 {
        cache.insert(key, key, Data, 500);
    }
    assert!(!cache.contains(&1));
    cache.insert(1, 1, Data, 500);
    let stats = cache.statistics();
    assert_eq!((stats.ghost_hits, stats.frequent_bytes), (1, 500));
}

/// After much frequent use, a working set that moves on is kept by recency again.
#[test]
fn the_targets_follow_the_work() {
    let cache = with_frequent(64 * 1000, 0..60, Data, 1000);
    // Two passes over each new set of 40, again and again: as long as recent values have too small a share, the
    // second pass finds only ghosts.
    let mut late = 0;
    for set in 1..40u64 {
        for _ in 0..2 {
            for key in set * 100..set * 100 + 40 {
                match cache.get(&key, Data) {
                    Some(_) => late += u64::from(set >= 20),
                    None => drop(cache.insert(key, key, Data, 1000)),
                }
            }
        }
    }
    assert!(late > 20 * 40 * 8 / 10, "{late} hits");
}

#[test]
fn metadata_that_is_missed_gets_more_space() {
    let cache = Cache::new(64 * 1000);
    let mut late = 0;
    for round in 0..200u64 {
        for key in 0..40u64 {
            match cache.get(&key, Metadata) {
                Some(_) => late += u64::from(round >= 100),
                None => drop(cache.insert(key, key, Metadata, 1000)),
            }
        }
        for key in 0..64 {
            let key = 1000 + round * 64 + key;
            assert_eq!(cache.get(&key, Data), None);
            cache.insert(key, key, Data, 1000);
        }
    }
    assert!(late > 100 * 40 * 9 / 10, "{late} hits");
}

#[test]
fn data_evicts_metadata_that_nobody_wants() {
    let cache = Cache::new(64 * 1000);
    for key in 0..60u64 {
        cache.insert(key, key, Metadata, 1000);
    }
    for key in 1000..1200u64 {
        cache.insert(key, key, Data, 1000);
    }
    let stats = cache.statistics();
    assert!(stats.metadata_bytes <= 17 * 1000, "{stats:?}");
    assert!(stats.data_bytes >= 46 * 1000, "{stats:?}");
}

#[test]
fn a_value_too_heavy_is_not_kept_and_evicts_nothing() {
    let cache = Cache::new(16 * 1000);
    cache.insert(1u64, 1u64, Data, 10);
    cache.insert(2, 2, Data, 1_000_000);
    assert_eq!(cache.get(&1, Data), Some(1));
    assert_eq!(cache.get(&2, Data), None);
}

#[test]
fn the_largest_block_of_a_pool_is_kept_by_the_usual_cache() {
    for limit in [256 << 20, 200 << 20, 20 << 30, 700 << 30] {
        let cache = Cache::new(limit);
        cache.insert(1u64, 1u64, Data, 16 << 20);
        assert_eq!(cache.get(&1, Data), Some(1));
    }
}

#[test]
fn replacing_a_value_keeps_the_sum_right() {
    let cache = Cache::new(16 * 1000);
    cache.insert(1u64, 1u64, Data, 500);
    assert_eq!(cache.get(&1, Data), Some(1));
    cache.insert(1, 2, Metadata, 20);
    assert_eq!(cache.get(&1, Metadata), Some(2));
    assert_eq!(cache.statistics().weight_bytes, 20);
    assert_eq!(cache.statistics().metadata_bytes, 20);
}

#[test]
fn removed_entries_and_their_weight_are_gone() {
    let cache = Cache::new(16 * 1000);
    cache.insert(1u64, 1u64, Data, 500);
    assert!(cache.insert_speculative(2, Forms::one(2, 500), Data).0);
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
fn a_lower_limit_evicts_at_once_and_a_higher_one_is_used() {
    let cache = Cache::new(4 * SHARD_BYTES_MIN);
    for key in 0..256u64 {
        cache.insert(key, key, Data, 1 << 20);
    }
    cache.set_limit_bytes(40 << 20);
    assert!(cache.statistics().weight_bytes <= 40 << 20);
    assert!(cache.statistics().weight_bytes > 30 << 20);
    cache.set_limit_bytes(512 << 20);
    for key in 0..300u64 {
        cache.insert(key, key, Data, 1 << 20);
    }
    assert_eq!(count(&cache, 0..300), 300);
    cache.set_limit_bytes(0);
    assert_eq!(cache.statistics().entries, 0);
    cache.insert(1, 1, Data, 1);
    assert!(!cache.contains(&1));
}

#[test]
fn what_belongs_to_a_closed_pool_is_removed() {
    let cache = Cache::new(4 * SHARD_BYTES_MIN);
    for key in 0..1000u64 {
        cache.insert(key, key, Data, 1000);
    }
    cache.remove_where(|key| key % 2 == 0);
    let stats = cache.statistics();
    assert_eq!((stats.entries, stats.weight_bytes), (500, 500_000));
    assert_eq!(cache.get(&1, Data), Some(1));
    cache.remove_where(|_| true);
    assert_eq!(cache.statistics().entries, 0);
    cache.insert(2, 2, Data, 10);
    assert_eq!(cache.get(&2, Data), Some(2));
}

#[test]
fn a_used_speculative_entry_becomes_a_value_read_once() {
    let cache = Cache::new(16 * 1000);
    assert!(
        cache
            .insert_speculative(1u64, Forms::one(1u64, 500), Data)
            .0
    );
    assert_eq!(cache.statistics().speculative_bytes, 500);
    assert_eq!(cache.get(&1, Data), Some(1));
    let stats = cache.statistics();
    assert_eq!((stats.speculative_bytes, stats.speculative_used), (0, 1));
    // A scan of values read once evicts it: it was not promoted.
    for key in 1000..2000u64 {
        cache.insert(key, key, Data, 500);
    }
    assert!(!cache.contains(&1));
}

#[test]
fn speculative_entries_never_evict_used_values() {
    let cache = with_frequent(16 * 1000, 0..24, Data, 500);
    let mut kept = 0;
    for key in 1000..100_000u64 {
        kept += u64::from(cache.insert_speculative(key, Forms::one(key, 100), Data).0);
        let stats = cache.statistics();
        assert!(stats.speculative_bytes <= cache.speculative_bytes_max());
        assert!(stats.weight_bytes <= 16 * 1000);
    }
    assert!(kept > 40);
    assert_eq!(count(&cache, 0..24), 24);
}

#[test]
fn new_speculative_entries_evict_only_stale_ones() {
    let cache = Cache::new(16 * 1000);
    for key in 0..40u64 {
        assert!(cache.insert_speculative(key, Forms::one(key, 100), Data).0);
    }
    let (is_kept, _) = cache.insert_speculative(100, Forms::one(100, 100), Data);
    assert!(!is_kept, "the share is taken");
    assert_eq!(count(&cache, 0..40), 40);
    // Other readers continue, and none requests the speculative entries.
    for key in 1000..1400u64 {
        cache.insert(key, key, Data, 100);
        let _ = cache.get(&key, Data);
    }
    assert!(cache.insert_speculative(100, Forms::one(100, 100), Data).0);
}

#[test]
fn a_speculative_entry_does_not_replace_a_value() {
    let cache = Cache::new(16 * 1000);
    cache.insert(1u64, 1u64, Data, 500);
    assert!(cache.insert_speculative(1, Forms::one(2, 500), Data).0);
    assert_eq!(cache.get(&1, Data), Some(1));
    assert!(
        !cache
            .insert_speculative(2, Forms::one(2, 16 * 1000), Data)
            .0
    );
    assert!(cache.contains(&1) && !cache.contains(&2));
}

#[test]
fn evicted_values_are_returned() {
    let cache = Cache::new(1000);
    assert!(cache.insert(1u64, 'a', Data, 400).is_empty());
    assert!(cache.insert(2, 'b', Data, 400).is_empty());
    assert_eq!(cache.insert(1, 'c', Data, 400), ['a'], "it had this key");
    assert_eq!(cache.insert(3, 'd', Data, 400), ['b']);
    let (is_kept, gone) = cache.insert_speculative(4, Forms::one('e', 240), Data);
    assert!(is_kept);
    assert_eq!(gone, ['c']);
}

#[test]
fn only_values_read_once_are_taken_back() {
    let cache = Cache::new(16 * 1000);
    assert!(
        cache
            .insert_speculative(1u64, Forms::one(1u64, 100), Data)
            .0
    );
    assert_eq!(cache.take_if_used_once(&1), None, "nobody asked for it yet");
    assert_eq!(cache.get(&1, Data), Some(1));
    assert_eq!(cache.take_if_used_once(&1), Some(1));
    assert_eq!(cache.get(&1, Data), None);
    cache.insert(2, 2, Data, 100);
    assert_eq!(cache.get(&2, Data), Some(2));
    assert_eq!(
        cache.take_if_used_once(&2),
        None,
        "somebody else wants it, too"
    );
    assert_eq!(cache.take_if_used_once(&3), None);
    assert_eq!(cache.statistics().weight_bytes, 100);
}

#[derive(Debug, Clone)]
enum Act {
    Get(u64),
    Insert(u64, bool, u64),
    Speculate(u64, u64),
    Take(u64),
    Limit(u64),
    RemoveOdd,
    InsertForms(u64, u64, u64),
    Expand(u64, u64),
    Use(u64, bool),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..64u64).prop_map(Act::Get),
        4 => (0..64u64, any::<bool>(), 0..400u64).prop_map(|(k, m, w)| Act::Insert(k, m, w)),
        2 => (0..64u64, 0..200u64).prop_map(|(k, w)| Act::Speculate(k, w)),
        1 => (0..64u64).prop_map(Act::Take),
        1 => (0..4000u64).prop_map(Act::Limit),
        1 => Just(Act::RemoveOdd),
        4 => (0..64u64, 0..200u64, 0..400u64).prop_map(|(k, w, e)| Act::InsertForms(k, w, e)),
        3 => (0..64u64, 0..400u64).prop_map(|(k, e)| Act::Expand(k, e)),
        2 => (0..64u64, any::<bool>()).prop_map(|(k, d)| Act::Use(k, d)),
    ]
}

proptest! {
    /// A value found is the one inserted last, and all sums are those of the entries.
    #[test]
    fn values_and_sums_are_those_of_the_entries(acts in proptest::collection::vec(act(), 0..400)) {
        let cache = Cache::new(3000);
        let mut last: HashMap<u64, (u64, u64)> = HashMap::new();
        for (number, act) in (0u64..).zip(acts) {
            match act {
                Act::Get(key) => {
                    if let Some(value) = cache.get(&key, Data) {
                        prop_assert_eq!(value, last[&key].0);
                    }
                }
                Act::Insert(key, is_metadata, weight) => {
                    let class = if is_metadata { Metadata } else { Data };
                    cache.insert(key, number, class, weight);
                    last.insert(key, (number, weight));
                }
                Act::Speculate(key, weight) => {
                    let had = cache.contains(&key);
                    cache.insert_speculative(key, Forms::one(number, weight), Data);
                    if !had {
                        last.insert(key, (number, weight));
                    }
                }
                Act::Take(key) => {
                    if let Some(value) = cache.take(&key) {
                        prop_assert_eq!(value, last[&key].0);
                    }
                }
                Act::Limit(limit) => cache.set_limit_bytes(limit),
                Act::RemoveOdd => cache.remove_where(|key| key % 2 == 1),
                Act::InsertForms(key, weight, expanded) => {
                    cache.insert_forms(key, two(number, weight, expanded), Data);
                    last.insert(key, (number, weight));
                }
                Act::Expand(key, weight) => {
                    let value = last.get(&key).map_or(0, |(value, _)| *value);
                    drop(cache.expand(&key, (value, weight)));
                }
                Act::Use(key, is_dropped) => {
                    let retention = if is_dropped { Retention::Drop } else { Retention::Rest };
                    if let Some(value) = cache.get_with(&key, Data, retention) {
                        prop_assert_eq!(value, last[&key].0);
                    }
                }
            }
            let kept: Vec<u64> = (0..64).filter(|key| cache.contains(key)).collect();
            let compact: u64 = kept.iter().map(|key| last[key].1).sum();
            let stats = cache.statistics();
            let weight = stats.weight_bytes;
            prop_assert_eq!(stats.entries, kept.len() as u64);
            prop_assert_eq!(weight - stats.expanded_bytes, compact);
            prop_assert_eq!(stats.data_bytes + stats.metadata_bytes + stats.speculative_bytes, weight);
            prop_assert!(weight <= cache.limit_bytes());
            prop_assert!(stats.speculative_bytes <= cache.limit_bytes() / 4);
        }
    }
}

/// Look-ups of readers: hits, of them transient, I/O hits, misses.
fn demand(cache: &Cache<u64, u64>) -> [u64; 4] {
    let stats = cache.statistics();
    let counts = stats.demand;
    [
        counts.hits,
        stats.transient_hits,
        counts.io_hits,
        counts.misses,
    ]
}

#[test]
fn a_value_that_is_dropped_is_found_once_more_at_most() {
    let cache = Cache::new(16 * 1000);
    cache.insert(1u64, 1u64, Data, 500);
    assert!(cache.insert_speculative(2, Forms::one(2, 500), Data).0);
    for key in [1, 2] {
        assert_eq!(cache.get_with(&key, Data, Retention::Drop), Some(key));
        assert_eq!(cache.get_with(&key, Data, Retention::Drop), None);
    }
    assert_eq!(
        cache.insert_with(3, Forms::one(3, 500), Data, Retention::Drop),
        [3],
        "it is not kept at all"
    );
    let stats = cache.statistics();
    assert_eq!((stats.entries, stats.weight_bytes), (0, 0));
    assert_eq!((stats.speculative_used, stats.evicted), (1, 0));
    assert_eq!(demand(&cache), [2, 2, 0, 2]);
    // It leaves no ghost from which the cache would learn.
    cache.insert(1, 1, Data, 500);
    assert_eq!(cache.statistics().ghost_hits, 0);
}

#[test]
fn the_rest_of_a_value_waits_as_a_speculative_entry() {
    let cache = Cache::new(16 * 1000);
    cache.insert_with(1u64, Forms::one(1u64, 500), Data, Retention::Rest);
    assert!(cache.insert_speculative(2, Forms::one(2, 500), Data).0);
    for _ in 0..3 {
        for key in [1, 2] {
            assert_eq!(cache.get_with(&key, Data, Retention::Rest), Some(key));
        }
    }
    let stats = cache.statistics();
    assert_eq!((stats.speculative_bytes, stats.data_bytes), (1000, 0));
    assert_eq!(stats.speculative_used, 1, "only one was prefetched");
    // A reader that keeps values makes it one of those.
    assert_eq!(cache.get(&2, Data), Some(2));
    assert_eq!(cache.statistics().data_bytes, 500);
    assert_eq!(cache.get_with(&1, Data, Retention::Drop), Some(1));
    assert_eq!(cache.statistics().speculative_bytes, 0);
    assert_eq!(cache.statistics().speculative_used, 1);
}

#[test]
fn a_miss_counts_once_whatever_follows() {
    let cache = Cache::new(16 * 1000);
    let keep = Retention::Keep;
    // Read by its caller.
    assert_eq!(cache.get(&1u64, Metadata), None::<u64>);
    assert_eq!(cache.get_again(&1, Metadata, keep), None);
    assert_eq!(demand(&cache), [0, 0, 0, 1]);
    // Another one has read it in between.
    assert_eq!(cache.get(&2, Data), None);
    cache.insert(2, 2, Data, 500);
    assert_eq!(cache.get_again(&2, Data, keep), Some(2));
    assert_eq!(demand(&cache), [1, 0, 0, 1]);
    // Another one is reading it, as a prefetch.
    assert_eq!(cache.get(&3, Data), None);
    cache.count_joined(&3, Data);
    assert!(cache.insert_speculative(3, Forms::one(3, 500), Data).0);
    cache.note_used(&3, Data, keep);
    assert_eq!(demand(&cache), [1, 0, 1, 1]);
    let stats = cache.statistics();
    assert_eq!((stats.speculative_used, stats.data_bytes), (1, 1000));
    assert_eq!(stats.demand.metadata_misses, 1);
    for outcome in [Outcome::Hit, Outcome::IoHit, Outcome::Miss] {
        cache.count_prefetch(&4, Metadata, outcome);
    }
    let prefetch = cache.statistics().prefetch;
    assert_eq!(prefetch.count(), 3);
    let metadata = [
        prefetch.metadata_hits,
        prefetch.metadata_io_hits,
        prefetch.metadata_misses,
    ];
    assert_eq!(metadata, [1; 3]);
    assert_eq!(demand(&cache), [1, 0, 1, 1], "readers are counted apart");
}
