//! Values of two forms, and candidates.

use super::*;

/// A value in two forms; both have the same content here.
pub(super) fn two(value: u64, compact_bytes: u64, expanded_bytes: u64) -> Forms<u64> {
    Forms {
        compact: value,
        compact_bytes,
        expanded: Some((value, expanded_bytes)),
        content_bytes: expanded_bytes,
    }
}

/// A value whose compact form is itself, and whose expanded form is that and a thousand.
fn thousand(value: u64) -> Forms<u64> {
    Forms {
        expanded: Some((value + 1000, 400)),
        ..two(value, 100, 400)
    }
}

#[test]
fn expanded_forms_go_before_values_when_space_is_needed() {
    let cache = Cache::new(16 * 1000);
    for key in 0..32u64 {
        cache.insert_forms(key, thousand(key), Data);
    }
    let stats = cache.statistics();
    assert_eq!((stats.weight_bytes, stats.expanded_bytes), (16_000, 12_800));
    assert_eq!(cache.get(&0, Data), Some(1000), "all fit");
    for key in 32..120u64 {
        cache.insert_forms(key, thousand(key), Data);
        if key % 8 == 0 {
            assert_eq!(
                cache.get(&0, Data),
                Some(1000),
                "it is used again and again"
            );
        }
    }
    let stats = cache.statistics();
    assert_eq!((stats.entries, stats.evicted), (120, 0));
    // A small cache keeps a quarter for them: ten of 400.
    assert_eq!(stats.expanded_bytes, 4000);
    assert_eq!(stats.content_bytes, 120 * 400);
    assert_eq!(cache.get(&1, Data), Some(1));
    assert_eq!(cache.get(&119, Data), Some(1119));
    // A reader that has expanded it gives the form back.
    drop(cache.expand(&1, (1001, 400)));
    assert_eq!(cache.get(&1, Data), Some(1001));
    drop(cache.expand(&500, (1500, 400)));
    assert!(!cache.contains(&500), "only what is there is expanded");
}

#[test]
fn an_expanded_form_leaves_with_its_value() {
    let cache = Cache::new(16 * 1000);
    cache.insert_forms(1u64, thousand(1), Data);
    assert_eq!(cache.peek(&1), Some(1001));
    assert_eq!(cache.insert_forms(1, thousand(1), Data), [1, 1001]);
    assert_eq!(cache.take(&1), Some(1001));
    let stats = cache.statistics();
    assert_eq!((stats.weight_bytes, stats.expanded_bytes), (0, 0));
    assert_eq!((stats.entries, stats.content_bytes), (0, 0));
    let forms = thousand(2);
    assert_eq!(
        cache.insert_with(2, forms, Data, Retention::Drop),
        [2, 1002]
    );
}

#[test]
fn a_value_too_heavy_expanded_is_kept_compact() {
    let cache = Cache::new(16 * 1000);
    assert_eq!(cache.insert_forms(1u64, two(1, 100, 15_000), Data), [1]);
    assert_eq!(cache.statistics().weight_bytes, 100);
    drop(cache.expand(&1, (1, 15_000)));
    assert_eq!(cache.statistics().weight_bytes, 100);
}

#[test]
fn prefetched_values_stay_expanded_until_their_reader_comes() {
    let cache = Cache::new(16 * 1000);
    for key in 0..8u64 {
        assert!(cache.insert_speculative(key, thousand(key), Data).0);
    }
    for key in 1000..1040u64 {
        cache.insert_forms(key, thousand(key), Data);
    }
    for key in 0..8 {
        assert_eq!(cache.get(&key, Data), Some(1000 + key));
    }
    // From now on they compete with the others.
    assert_eq!(cache.statistics().speculative_bytes, 0);
    for key in 2000..2100u64 {
        cache.insert_forms(key, thousand(key), Data);
    }
    assert_eq!(cache.statistics().expanded_bytes, 4000);
}

#[test]
fn expanded_forms_of_prefetched_values_stay_within_their_share() {
    let cache = Cache::new(16 * 1000);
    let share = cache.share_bytes();
    for key in 0..4u64 {
        assert!(cache.insert_speculative(key, Forms::one(key, 50), Data).0);
    }
    for key in 0..4u64 {
        drop(cache.expand(&key, (1000 + key, share / 4 - 200)));
    }
    let stats = cache.statistics();
    assert!(stats.speculative_bytes <= 16 * 1000 / 4, "{stats:?}");
    assert!(stats.expanded_bytes > 0);
}

#[test]
fn candidates_are_the_values_that_are_evicted_next() {
    let cache = Cache::new(16 * 1000);
    let keys = |count| -> Vec<u64> {
        let candidates = cache.candidates(count, |key| *key < 1000);
        candidates.iter().map(|candidate| candidate.key).collect()
    };
    for key in 1..4u64 {
        cache.insert(key, key, Data, 100);
    }
    cache.insert(4, 4, Metadata, 100);
    cache.insert_with(5, Forms::one(5, 100), Metadata, Retention::KeepInMemory);
    cache.insert_with(6, Forms::one(6, 100), Data, Retention::Rest);
    assert!(cache.insert_speculative(7, Forms::one(7, 100), Data).0);
    assert_eq!(
        keys(100),
        [4, 3, 2, 1],
        "the newest while nothing is evicted"
    );
    assert_eq!(cache.get(&5, Metadata), Some(5));
    assert_eq!(cache.get_with(&7, Data, Retention::KeepInMemory), Some(7));
    assert_eq!(
        keys(100),
        [5, 4, 3, 2, 1],
        "requested by one who permits it"
    );
    pass_time(&cache);
    assert_eq!(cache.get(&2, Data), Some(2));
    for key in 1000..1100u64 {
        cache.insert(key, key, Data, 200);
    }
    cache.insert(8, 8, Data, 100);
    cache.insert(9, 9, Data, 100);
    assert_eq!(keys(100), [4, 5, 2, 8, 9]);
    assert_eq!(keys(1), [4, 2], "one of each list");
}
