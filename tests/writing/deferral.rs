//! Leaves that come to need a resilver while one runs.

use crate::scan::{finish, is_sound, leaf, lived, missed, online, scanner, state};
use crate::sim;
use millpond_engine::{NewLayout::Mirror, Pool};
use millpond_ondisk::{ScanFunction, ScanPhase};
use millpond_sim::World;
use millpond_tests::workload::Life;

fn count(pool: &Pool) -> u64 {
    let features = pool.inner().features();
    features.count("com.datto:resilver_defer").unwrap()
}

/// Two mirrors of which one leaf each was away. The resilver of the first leaf runs and has passed a fifth of the blocks.
fn begun(world: &World, shape: &str) -> (Pool, Life) {
    let (pool, mut life) = lived(world, shape, &[(Mirror, 2), (Mirror, 2)], 120);
    for number in [1, 3] {
        let away = leaf(&pool, number);
        pool.inner().offline_leaf(away, Default::default()).unwrap();
    }
    life.steps(&pool, 60);
    pool.sync().unwrap();
    online(world, &pool, 1);
    assert!(pool.inner().start_resilver().unwrap());
    loop {
        assert!(scanner().slice(pool.inner()).unwrap());
        let state = state(&pool);
        assert_eq!(state.phase, ScanPhase::Scanning);
        if state.examined_bytes * 5 >= state.to_examine_bytes {
            break;
        }
    }
    (pool, life)
}

/// The second leaf of each mirror holds everything.
fn seconds_are_whole(world: &World, pool: &Pool, life: &Life, shape: &str) {
    for number in [0, 2] {
        world.disks()[number].set_absent(true);
    }
    life.compare(&pool.committed().unwrap(), shape);
    for number in [0, 2] {
        world.disks()[number].set_absent(false);
    }
}

#[test]
fn a_leaf_that_returns_during_a_resilver_waits_for_the_next_one() {
    for is_imported_again in [false, true] {
        let world = World::without_journal(41);
        let (mut pool, life) = begun(&world, "deferred");
        let begun_at = state(&pool).examined_bytes;
        online(&world, &pool, 3);
        assert!(!pool.inner().start_resilver().unwrap());
        assert!(!pool.inner().start_resilver().unwrap(), "again");
        assert_eq!((state(&pool).examined_bytes, count(&pool)), (begun_at, 1));
        if is_imported_again {
            pool.export().unwrap();
            pool = sim::open(&world).unwrap();
            assert_eq!(count(&pool), 1);
        }
        finish(&pool);
        assert_eq!(state(&pool).phase, ScanPhase::Finished);
        assert_eq!(missed(&pool, 1), 0);
        assert!(missed(&pool, 3) > 0);
        assert!(pool.inner().start_resilver().unwrap());
        assert_eq!(count(&pool), 0);
        finish(&pool);
        assert_eq!(missed(&pool, 3), 0);
        seconds_are_whole(&world, &pool, &life, "deferred");
        pool.export().unwrap();
        is_sound(&world, &life, "deferred");
    }
}

#[test]
fn a_resilver_on_request_takes_deferred_leaves_along() {
    let world = World::without_journal(42);
    let (pool, life) = begun(&world, "restarted");
    online(&world, &pool, 3);
    assert!(!pool.inner().start_resilver().unwrap());
    pool.inner().restart_resilver().unwrap();
    assert_eq!((state(&pool).examined_bytes, count(&pool)), (0, 0));
    let text = crate::initialize::history(&pool);
    for event in ["scan aborted, restarting", "starting deferred resilver"] {
        assert!(text.contains(event), "{event}: {text}");
    }
    finish(&pool);
    assert_eq!((missed(&pool, 1), missed(&pool, 3)), (0, 0));
    seconds_are_whole(&world, &pool, &life, "restarted");
    pool.export().unwrap();
    is_sound(&world, &life, "restarted");
}

#[test]
fn a_young_resilver_starts_again_and_covers_the_leaf() {
    let world = World::without_journal(43);
    let (pool, mut life) = lived(&world, "young", &[(Mirror, 2), (Mirror, 2)], 120);
    for number in [1, 3] {
        let away = leaf(&pool, number);
        pool.inner().offline_leaf(away, Default::default()).unwrap();
    }
    life.steps(&pool, 20);
    online(&world, &pool, 1);
    assert!(pool.inner().start_resilver().unwrap());
    online(&world, &pool, 3);
    assert!(pool.inner().start_resilver().unwrap());
    assert_eq!(count(&pool), 0);
    finish(&pool);
    let state = state(&pool);
    assert_eq!(
        (state.function, state.phase),
        (ScanFunction::Resilver, ScanPhase::Finished)
    );
    assert_eq!((missed(&pool, 1), missed(&pool, 3)), (0, 0));
    seconds_are_whole(&world, &pool, &life, "young");
}

#[test]
fn a_deferred_leaf_that_goes_ends_the_use_of_the_feature() {
    let world = World::without_journal(44);
    let (pool, life) = begun(&world, "gone");
    online(&world, &pool, 3);
    assert!(!pool.inner().start_resilver().unwrap());
    assert_eq!(count(&pool), 1);
    pool.inner().detach_leaf(leaf(&pool, 3)).unwrap();
    assert_eq!(count(&pool), 0);
    finish(&pool);
    assert_eq!(missed(&pool, 1), 0);
    pool.export().unwrap();
    is_sound(&world, &life, "gone");
}
