//! Datasets that reach each other only, and not from their encryption root: one lies below a clone of its own snapshot.
//! They change and go with the root's key as those below the root do.

use crate::cloning::{judged, judged_by_zdb, pool_on};
use crate::encryption::{KEY, OTHER, key_refusal, root, unlock};
use crate::encryption_hostile::forge;
use crate::receive::{finish, sent};
use crate::receive_keys::{THIRD, change, is_open, reopened, root_of};
use crate::receive_packages::{receive, snapshot, write};
use crate::receive_raw::RAW;
use millpond_engine::{DestroyOptions, KeyChange, KeyRefusal, NewLayout::Single, Pool};
use millpond_env::mark;
use millpond_sim::World;
use millpond_zap::ZapValue;

/// Moves a dataset below a clone of its own snapshot.
fn below_its_clone(pool: &Pool, name: &str, clone: &str) {
    let datasets = pool.datasets();
    let origin = format!("{name}@s");
    datasets.snapshot(&[&origin], &[]).unwrap();
    datasets.clone_snapshot(&origin, clone, &[]).unwrap();
    write(pool, clone, "cloned");
    datasets.rename(name, &format!("{clone}/moved")).unwrap();
}

/// A pool with the encryption root `tank/r`, and with `tank/c` and `tank/c/moved` that share it.
fn circle(seed: u64) -> (World, Pool) {
    let world = World::without_journal(seed);
    let pool = pool_on(&world, &[(Single, 1)]);
    root(&world, &pool, "tank/r", "aes-256-gcm", &[]);
    pool.datasets().create_filesystem("tank/r/d", &[]).unwrap();
    write(&pool, "tank/r", "top");
    write(&pool, "tank/r/d", "below");
    below_its_clone(&pool, "tank/r/d", "tank/c");
    (world, pool)
}

const CIRCLE: [(&str, &str); 4] = [
    ("tank/c", "below"),
    ("tank/c", "cloned"),
    ("tank/c/moved", "below"),
    ("tank/r", "top"),
];

fn are_open(pool: &Pool, files: &[(&str, &str)]) {
    for (name, file) in files {
        assert!(is_open(pool, name, file), "{name} {file}");
    }
}

fn destroy(pool: &Pool, name: &str) {
    (pool.datasets())
        .destroy(name, DestroyOptions::default())
        .unwrap();
}

#[test]
fn a_changed_key_covers_what_only_reaches_itself() {
    let (world, pool) = circle(770);
    change(&world, &pool, "tank/r", OTHER);
    let pool = reopened(&world, pool);
    unlock(&pool, "tank/r", OTHER);
    are_open(&pool, &CIRCLE);
    // Also if the root inherits from another one.
    root(&world, &pool, "tank/top", "aes-256-gcm", &[]);
    pool.datasets().rename("tank/r", "tank/top/r").unwrap();
    (pool.datasets())
        .change_key("tank/top/r", KeyChange::Inherit)
        .unwrap();
    assert_eq!(root_of(&pool, "tank/c/moved").as_deref(), Some("tank/top"));
    let pool = reopened(&world, pool);
    unlock(&pool, "tank/top", KEY);
    are_open(&pool, &CIRCLE[..3]);
    finish(&world, pool, "inherited");
}

#[test]
fn a_changed_key_covers_two_datasets_below_clones_of_each_other() {
    let (world, pool) = circle(771);
    let datasets = pool.datasets();
    for name in ["tank/r/one", "tank/r/two"] {
        datasets.create_filesystem(name, &[]).unwrap();
        write(&pool, name, "kept");
    }
    datasets
        .snapshot(&["tank/r/one@s", "tank/r/two@s"], &[])
        .unwrap();
    for (origin, clone) in [("tank/r/one@s", "tank/1"), ("tank/r/two@s", "tank/2")] {
        datasets.clone_snapshot(origin, clone, &[]).unwrap();
    }
    datasets.rename("tank/r/one", "tank/2/one").unwrap();
    datasets.rename("tank/r/two", "tank/1/two").unwrap();
    change(&world, &pool, "tank/r", OTHER);
    let pool = reopened(&world, pool);
    unlock(&pool, "tank/r", OTHER);
    for name in ["tank/1", "tank/2", "tank/1/two", "tank/2/one"] {
        are_open(&pool, &[(name, "kept")]);
    }
    finish(&world, pool, "crosswise");
}

#[test]
fn a_promoted_root_takes_what_only_reaches_itself() {
    let (world, pool) = circle(772);
    let datasets = pool.datasets();
    datasets.snapshot(&["tank/r@s"], &[]).unwrap();
    datasets
        .clone_snapshot("tank/r@s", "tank/next", &[])
        .unwrap();
    datasets.promote("tank/next").unwrap();
    for (name, _) in CIRCLE {
        assert_eq!(root_of(&pool, name).as_deref(), Some("tank/next"), "{name}");
    }
    destroy(&pool, "tank/r");
    let pool = reopened(&world, pool);
    unlock(&pool, "tank/next", KEY);
    are_open(&pool, &CIRCLE[..3]);
    finish(&world, pool, "promoted");
}

#[test]
fn a_raw_increment_leaves_the_key_of_what_only_reaches_itself() {
    let _mark = mark::expect("sent-key-left");
    let world = World::without_journal(773);
    let pool = pool_on(&world, &[(Single, 1)]);
    root(&world, &pool, "tank/e", "aes-256-gcm", &[]);
    write(&pool, "tank/e", "one");
    snapshot(&pool, "tank/e", "1");
    receive(&pool, "tank/d", &sent(&pool, "tank/e@1", None, RAW));
    unlock(&pool, "tank/d", KEY);
    (pool.datasets())
        .create_filesystem("tank/d/own", &[])
        .unwrap();
    write(&pool, "tank/d/own", "mine");
    below_its_clone(&pool, "tank/d/own", "tank/c");
    change(&world, &pool, "tank/e", OTHER);
    write(&pool, "tank/e", "two");
    snapshot(&pool, "tank/e", "2");
    let more = sent(&pool, "tank/e@2", Some("tank/e@1"), RAW);
    receive(&pool, "tank/d", &more);
    let pool = reopened(&world, pool);
    unlock(&pool, "tank/d", KEY);
    are_open(
        &pool,
        &[
            ("tank/d", "two"),
            ("tank/c", "cloned"),
            ("tank/c/moved", "mine"),
        ],
    );
    finish(&world, pool, "increment");
}

#[test]
fn an_encryption_root_is_not_destroyed_while_others_need_it() {
    let (world, pool) = circle(774);
    // With and without its key.
    let pool = reopened(&world, pool);
    for _ in 0..2 {
        let refused = (pool.datasets()).destroy("tank/r", DestroyOptions::default());
        let why = key_refusal(refused.clone());
        assert_eq!(why, KeyRefusal::RootOfOthers("'tank/c/moved'".into()));
        let words = refused.unwrap_err().to_string();
        assert!(words.contains("run 'zfs change-key'"), "{words}");
        unlock(&pool, "tank/r", KEY);
    }
    change(&world, &pool, "tank/c/moved", THIRD);
    destroy(&pool, "tank/r");
    let pool = reopened(&world, pool);
    unlock(&pool, "tank/c/moved", THIRD);
    are_open(&pool, &CIRCLE[..3]);
    finish(&world, pool, "a root of its own");
}

/// The root, and what shares it elsewhere, go in one list: that of `zfs destroy -r` of a dataset above.
#[test]
fn encryption_roots_go_with_all_that_needs_them() {
    let (world, pool) = circle(775);
    let datasets = pool.datasets();
    datasets.rename("tank/c/moved", "tank/r/d").unwrap();
    datasets.create_filesystem("tank/c/own", &[]).unwrap();
    let all = ["tank/c/own", "tank/c", "tank/r/d@s", "tank/r/d", "tank/r"];
    datasets.destroy_in_order(&all, None).unwrap();
    finish(&world, pool, "all gone");
}

/// A root that an earlier version destroyed, although others needed its key. Another directory may have its id by now.
#[test]
fn a_lost_encryption_root_does_not_hide_the_pool() {
    for is_reused in [false, true] {
        let (world, pool) = circle(776);
        write(&pool, "tank/c/moved", "later");
        (pool.datasets())
            .snapshot(&["tank/c/moved@t"], &[])
            .unwrap();
        // It is no root then, and may go.
        forge(&pool, "tank/r", "DSL_CRYPTO_ROOT_DDOBJ", |value| {
            value.bytes[0] ^= 0x40;
        });
        pool.export().unwrap();
        let pool = crate::sim::open(&world).unwrap();
        destroy(&pool, "tank/r");
        if is_reused {
            pool.datasets().create_filesystem("tank/new", &[]).unwrap();
            let view = pool.committed().unwrap();
            let id = view.dataset("tank/new").unwrap().inner().directory().id();
            forge(&pool, "tank/c", "DSL_CRYPTO_ROOT_DDOBJ", |root| {
                *root = ZapValue::from_u64s(&[id.0]);
            });
        }
        let view = pool.committed().unwrap();
        for found in view.datasets() {
            let found = found.unwrap();
            let listed = found.literal_properties().unwrap();
            let value = |name: &str| {
                let property = listed.iter().find(|property| property.name == name);
                property.map(|property| property.value.clone())
            };
            if found.name().starts_with("tank/c") {
                assert_eq!(value("encryption").as_deref(), Some("aes-256-gcm"));
                assert_eq!(value("encryptionroot"), None);
                assert_eq!(value("keystatus").as_deref(), Some("unavailable"));
                let refused = view.load_key(found.name(), KEY).unwrap_err().to_string();
                assert!(refused.contains("no longer exists"), "{refused}");
            }
        }
        drop(view);
        // A raw copy has the key that the root had.
        receive(
            &pool,
            "tank/saved",
            &sent(&pool, "tank/c/moved@t", None, RAW),
        );
        unlock(&pool, "tank/saved", KEY);
        are_open(&pool, &[("tank/saved", "below"), ("tank/saved", "later")]);
        // And the others can go.
        let datasets = pool.datasets();
        datasets.rename("tank/c/moved", "tank/moved").unwrap();
        let all = ["tank/c", "tank/moved@t", "tank/moved@s", "tank/moved"];
        datasets.destroy_in_order(&all, None).unwrap();
        finish(&world, pool, "saved");
    }
}

/// The key of a root was changed without those of others, by an earlier version.
#[test]
fn what_an_earlier_key_of_a_root_wraps_holds_nothing_up() {
    let _mark = mark::expect("key-of-an-earlier-root");
    let (world, pool) = circle(777);
    forge(&pool, "tank/c", "DSL_CRYPTO_MAC", |value| {
        value.bytes[0] ^= 0x40;
    });
    pool.export().unwrap();
    let pool = crate::sim::open(&world).unwrap();
    unlock(&pool, "tank/r", KEY);
    change(&world, &pool, "tank/r", OTHER);
    let pool = reopened(&world, pool);
    unlock(&pool, "tank/r", OTHER);
    are_open(&pool, &CIRCLE[3..]);
    destroy(&pool, "tank/r");
    pool.export().unwrap();
    judged(&world);
    judged_by_zdb(&world, "an earlier key");
}
