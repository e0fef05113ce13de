//! Changes that a pool cannot store: texts that no table can hold, and limits without their feature. They are refused
//! before anything is changed, and the pool works on.

use crate::encryption::{KEY, root};
use crate::receive::finish;
use crate::sim;
use millpond_engine::{
    AllocationClass::Normal, DatasetError, KeyFormat, NewLayout::Single, Pool, RootKey,
};
use millpond_sim::World;
use millpond_tests::workload::text;

/// The longest value: with its NUL it fills 8192 bytes.
const TEXT_BYTES_MAX: usize = 8191;

/// A path of short names with this many bytes.
fn path(length: usize) -> String {
    let mut path = "/abcdefg".repeat(length.div_ceil(8));
    path.truncate(length);
    path
}

/// A value with this many bytes that the property would take if it were shorter.
fn value_of(property: &str, length: usize) -> String {
    match property {
        "sharenfs" => format!("rw={}", path(length - 3)),
        _ => path(length),
    }
}

/// Expects a refusal, after which the pool is changed as before.
fn refused(pool: &Pool, what: &str, outcome: Result<(), DatasetError>) {
    let error = outcome.unwrap_err();
    let is_refusal = matches!(
        error,
        DatasetError::InvalidProperty { .. } | DatasetError::Refused { .. }
    );
    assert!(is_refusal, "{what}: {error:?}");
    pool.datasets()
        .set_properties("tank", &[text("test:last", what)])
        .unwrap_or_else(|error| panic!("after {what}: {error}"));
    pool.sync().unwrap();
}

#[test]
fn long_values_of_properties_are_refused() {
    let world = World::without_journal(101);
    let pool = sim::create(&world, &[(Single, 1)], 64);
    let datasets = pool.datasets();
    datasets.create_filesystem("tank/a", &[]).unwrap();
    for name in ["mountpoint", "sharenfs", "test:user"] {
        let long = text(name, &value_of(name, TEXT_BYTES_MAX + 1));
        let outcome = datasets.set_properties("tank/a", std::slice::from_ref(&long));
        refused(&pool, name, outcome);
        let outcome = datasets.create_filesystem("tank/new", std::slice::from_ref(&long));
        refused(&pool, name, outcome);
        // A received one is left out.
        let left_out = datasets.receive_properties("tank/a", &[long], &[]).unwrap();
        assert_eq!(left_out.len(), 1, "{name}");
        let most = text(name, &value_of(name, TEXT_BYTES_MAX));
        datasets.set_properties("tank/a", &[most]).unwrap();
    }
    let long = [text("test:user", &path(TEXT_BYTES_MAX + 1))];
    let outcome = datasets.snapshot(&["tank/a@new"], &long);
    refused(&pool, "snapshot", outcome);
    datasets.snapshot(&["tank/a@s"], &[]).unwrap();
    let outcome = datasets.set_properties("tank/a@s", &long);
    refused(&pool, "set of a snapshot", outcome);
    finish(&world, pool, "refused");
}

#[test]
fn long_names_of_properties_are_refused() {
    let world = World::without_journal(102);
    let pool = sim::create(&world, &[(Single, 1)], 64);
    let datasets = pool.datasets();
    datasets.create_filesystem("tank/a", &[]).unwrap();
    // From now on inherited properties are marked.
    datasets
        .receive_properties("tank/a", &[text("test:user", "x")], &[])
        .unwrap();
    datasets.snapshot(&["tank/a@s"], &[]).unwrap();
    for length in [247, 248, 249, 250, 255, 256, 1023, 1024] {
        let name = format!("test:{}", "x".repeat(length - 5));
        let change = [text(&name, "y")];
        for dataset in ["tank/a", "tank/a@s"] {
            if length <= 255 {
                datasets.set_properties(dataset, &change).unwrap();
                datasets.inherit(dataset, &name, false).unwrap();
            } else {
                refused(&pool, "set", datasets.set_properties(dataset, &change));
                refused(&pool, "inherit", datasets.inherit(dataset, &name, false));
            }
        }
        // Entries of received values have longer names.
        let left_out = datasets.receive_properties("tank/a", &change, &[]).unwrap();
        assert_eq!(left_out.is_empty(), length == 247, "{length}");
        datasets
            .receive_snapshot_properties("tank/a@s", &change)
            .unwrap();
        for name in [name, "test:x\0".to_owned()] {
            let names = std::slice::from_ref(&name);
            datasets
                .receive_properties("tank/a", &change, names)
                .unwrap();
            datasets.exclude_received("tank/a", names).unwrap();
        }
        pool.sync().unwrap();
    }
    finish(&world, pool, "refused");
}

#[test]
fn long_locations_of_keys_are_refused() {
    let world = World::without_journal(103);
    let pool = sim::create(&world, &[(Single, 1)], 64);
    root(&world, &pool, "tank/a", "on", &[]);
    let long = format!("file://{}", path(TEXT_BYTES_MAX));
    let changes = [text("keylocation", &long)];
    let outcome = pool.datasets().set_properties("tank/a", &changes);
    refused(&pool, "keylocation", outcome);
    let derived = RootKey::derive(&world.env(), KeyFormat::Hex, &long, None, KEY);
    assert!(derived.is_err(), "a key that comes from a long place");
    finish(&world, pool, "refused");
}

#[test]
fn tags_with_a_nul_are_refused() {
    let world = World::without_journal(104);
    let pool = sim::create(&world, &[(Single, 1)], 64);
    let datasets = pool.datasets();
    datasets.snapshot(&["tank@s"], &[]).unwrap();
    refused(&pool, "hold", datasets.hold(&["tank@s"], "a\0b"));
    datasets.hold(&["tank@s"], &"x".repeat(255)).unwrap();
    finish(&world, pool, "refused");
}

#[test]
fn limits_without_their_feature_are_refused() {
    let (tops, without) = ([(Normal, Single, 1)], Some("filesystem_limits"));
    for is_old in [false, true] {
        let world = World::without_journal(105);
        let pool = match is_old {
            false => sim::create_without(&world, &tops, 64, sim::by_caller(), without),
            true => sim::create_old(&world, &[(Single, 1)], 64, 28),
        };
        let datasets = pool.datasets();
        for name in ["filesystem_limit", "snapshot_limit"] {
            for value in ["5", "none"] {
                let limit = text(name, value);
                let outcome = datasets.set_properties("tank", std::slice::from_ref(&limit));
                refused(&pool, name, outcome);
                let outcome = datasets.create_filesystem("tank/new", std::slice::from_ref(&limit));
                refused(&pool, name, outcome);
                let left_out = datasets.receive_properties("tank", &[limit], &[]).unwrap();
                assert_eq!(left_out.len(), 1, "{name}");
            }
        }
        finish(&world, pool, "refused");
    }
}
