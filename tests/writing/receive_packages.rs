//! Packages of whole trees: what the sender renamed, promoted, destroyed and made is the same afterwards.

use crate::cloning::{bytes_of, judged, judged_by_zdb, make, node, pool_on};
use crate::encryption::{KEY, prose, root, unlock};
use crate::receive_cuts::state_of;
use crate::receive_encrypted::is_encrypted;
use crate::receive_raw::RAW;
use millpond_engine::{
    DestroyOptions, NewLayout::Single, PackageOptions, Pool, ReceiveProblem, ReceiveRequest,
    ReceiveStep, SendFlags, SendRequest, Unwatched,
};
use millpond_sim::World;
use millpond_tests::workload::text;
use std::collections::BTreeMap;

/// Of each dataset below `top`, without its name: the guid of its origin, and names and guids of its snapshots.
type Tree = BTreeMap<String, (Option<u64>, Vec<(String, u64)>)>;

fn tree_of(pool: &Pool, top: &str) -> Tree {
    let view = pool.committed().unwrap();
    let mut tree = Tree::new();
    for name in pool.datasets().names_below(top).unwrap() {
        let dataset = view.dataset(&name).unwrap().inner().clone();
        let origin = dataset.origin().unwrap().map(|one| one.guid().0);
        let snapshots = dataset.snapshots().unwrap().into_iter();
        let snapshots = snapshots
            .map(|one| (one.snapshot_name().unwrap().to_owned(), one.guid().0))
            .collect();
        let key = name.strip_prefix(top).unwrap().to_owned();
        tree.insert(key, (origin, snapshots));
    }
    tree
}

pub(crate) fn package(pool: &Pool, name: &str, from: Option<&str>, flags: SendFlags) -> Vec<u8> {
    let request = SendRequest {
        name: name.to_owned(),
        from: from.map(str::to_owned),
        has_between: from.is_some(),
        package: PackageOptions {
            is_recursive: true,
            ..PackageOptions::default()
        },
        flags,
        ..SendRequest::default()
    };
    let mut bytes = vec![];
    pool.send(&request, &mut bytes).unwrap();
    bytes
}

pub(crate) fn receive(pool: &Pool, name: &str, bytes: &[u8]) -> Vec<ReceiveStep> {
    let request = ReceiveRequest {
        name: name.to_owned(),
        is_forced: true,
        ..ReceiveRequest::default()
    };
    let outcome = pool.receive(&request, bytes, &mut Unwatched);
    assert_eq!(outcome.failure, None, "{name}");
    outcome.steps
}

pub(crate) fn write(pool: &Pool, name: &str, file: &str) {
    let files = pool.file_system(name).unwrap();
    make(&files, file, &prose(file.len() as u64, 40_000));
}

pub(crate) fn snapshot(pool: &Pool, top: &str, snapshot: &str) {
    let names = pool.datasets().names_below(top).unwrap();
    let full: Vec<String> = names
        .iter()
        .map(|name| format!("{name}@{snapshot}"))
        .collect();
    let full: Vec<&str> = full.iter().map(String::as_str).collect();
    pool.datasets().snapshot(&full, &[]).unwrap();
}

fn changed(is_raw: bool) {
    let world = World::without_journal(740);
    let pool = pool_on(&world, &[(Single, 1)]);
    let datasets = pool.datasets();
    let (top, flags) = match is_raw {
        true => ("tank/e", RAW),
        false => ("tank/t", SendFlags::default()),
    };
    match is_raw {
        true => root(&world, &pool, top, "aes-256-gcm", &[]),
        false => datasets.create_filesystem(top, &[]).unwrap(),
    }
    let own = |name: &str| format!("{top}/{name}");
    for name in ["x", "x/deep", "gone"] {
        datasets.create_filesystem(&own(name), &[]).unwrap();
        write(&pool, &own(name), "first");
    }
    snapshot(&pool, top, "1");
    datasets
        .clone_snapshot(&own("x@1"), &own("clone"), &[])
        .unwrap();
    write(&pool, &own("clone"), "in-clone");
    snapshot(&pool, top, "2");
    receive(
        &pool,
        "tank/r",
        &package(&pool, &format!("{top}@2"), None, flags),
    );
    assert_eq!(tree_of(&pool, "tank/r"), tree_of(&pool, top));
    // The clone takes over, names change, one goes, one comes, one snapshot has another name.
    datasets.promote(&own("clone")).unwrap();
    datasets.rename(&own("x"), &own("y")).unwrap();
    datasets.rename(&own("y/deep"), &own("up")).unwrap();
    for snapshot in ["gone@1", "gone@2"] {
        datasets
            .destroy(&own(snapshot), DestroyOptions::default())
            .unwrap();
    }
    datasets
        .destroy(&own("gone"), DestroyOptions::default())
        .unwrap();
    datasets.create_filesystem(&own("new"), &[]).unwrap();
    for name in ["new", "y", "up", "clone"] {
        write(&pool, &own(name), "second");
    }
    datasets
        .rename(&format!("{top}@1"), &format!("{top}@one"))
        .unwrap();
    snapshot(&pool, top, "3");
    let (to, from) = (format!("{top}@3"), format!("{top}@2"));
    let steps = receive(&pool, "tank/r", &package(&pool, &to, Some(&from), flags));
    let promoted = ReceiveStep::Promoted {
        name: "tank/r/clone".to_owned(),
        is_done: true,
    };
    assert!(steps.contains(&promoted), "{steps:#?}");
    assert_eq!(tree_of(&pool, "tank/r"), tree_of(&pool, top));
    if is_raw {
        // All hang on one key, as at the sender.
        let view = pool.committed().unwrap();
        for name in datasets.names_below("tank/r").unwrap() {
            let root = view.encryption_root(&name).unwrap();
            assert_eq!(root.as_deref(), Some("tank/r"), "{name}");
        }
        unlock(&pool, "tank/r", KEY);
        let view = pool.committed().unwrap();
        for name in datasets.names_below("tank/r").unwrap() {
            assert!(!view.dataset(&name).unwrap().is_locked().unwrap());
        }
    }
    for _ in 0..3 {
        pool.sync().unwrap();
    }
    pool.export().unwrap();
    judged(&world);
    judged_by_zdb(&world, "package");
}

#[test]
fn a_tree_follows_what_the_sender_changed() {
    changed(false);
}

#[test]
fn a_raw_tree_follows_what_the_sender_changed() {
    changed(true);
}

/// Receives an increment into `tank/b/src`, whose child is gone.
fn without_its_child(pool: &Pool, bytes: &[u8], is_forced: bool) {
    let request = ReceiveRequest {
        name: "tank/b/src".to_owned(),
        is_forced,
        ..ReceiveRequest::default()
    };
    let failure = pool.receive(&request, bytes, &mut Unwatched).failure;
    let wanted = ReceiveProblem::NoDestination("tank/b/src/kid".to_owned());
    assert_eq!(failure.unwrap().problem, wanted, "{is_forced}");
}

/// It has the older snapshot too, but that is no reason to change it.
#[test]
fn another_copy_of_the_tree_is_left_alone_where_a_child_is_gone() {
    let world = World::without_journal(744);
    let pool = pool_on(&world, &[(Single, 1)]);
    let datasets = pool.datasets();
    for name in ["tank/t", "tank/t/kid", "tank/b2"] {
        datasets.create_filesystem(name, &[]).unwrap();
    }
    write(&pool, "tank/t/kid", "one");
    snapshot(&pool, "tank/t", "1");
    let full = package(&pool, "tank/t@1", None, SendFlags::default());
    let others = ["tank/b2/src", "tank/b/src2", "tank/b/a"];
    for name in ["tank/b/src"].iter().chain(&others) {
        receive(&pool, name, &full);
    }
    write(&pool, "tank/t/kid", "two");
    snapshot(&pool, "tank/t", "2");
    let more = package(&pool, "tank/t@2", Some("tank/t@1"), SendFlags::default());
    for name in ["tank/b/src/kid@1", "tank/b/src/kid"] {
        datasets.destroy(name, DestroyOptions::default()).unwrap();
    }
    // One that was not changed would take it without a word.
    for name in &others[..2] {
        write(&pool, &format!("{name}/kid"), "mine");
        snapshot(&pool, &format!("{name}/kid"), "mine");
    }
    let state = |pool: &Pool| {
        others.map(|name| {
            let kid = format!("{name}/kid");
            (
                tree_of(pool, name),
                state_of(&pool.committed().unwrap(), &kid),
            )
        })
    };
    let before = state(&pool);
    for is_forced in [false, true] {
        without_its_child(&pool, &more, is_forced);
        assert!(state(&pool) == before, "{is_forced}");
    }
    pool.export().unwrap();
    judged(&world);
}

/// Without force: what was renamed to a place outside the tree continues there.
#[test]
fn an_increment_finds_what_was_renamed_here() {
    let world = World::without_journal(745);
    let pool = pool_on(&world, &[(Single, 1)]);
    let datasets = pool.datasets();
    for name in ["tank/t", "tank/t/kid"] {
        datasets.create_filesystem(name, &[]).unwrap();
    }
    write(&pool, "tank/t/kid", "one");
    snapshot(&pool, "tank/t", "1");
    let full = package(&pool, "tank/t@1", None, SendFlags::default());
    receive(&pool, "tank/b/src", &full);
    let mut from = "tank/t@1".to_owned();
    let moves = [
        ("tank/b/src/kid", "tank/b/own", ["tank/b/src", "tank/b/own"]),
        (
            "tank/b/own",
            "tank/b/src/kid",
            ["tank/b/src", "tank/b/src/kid"],
        ),
        ("tank/b/src", "tank/b/all", ["tank/b/all", "tank/b/all/kid"]),
    ];
    for (number, (old, new, holders)) in moves.into_iter().enumerate() {
        datasets.rename(old, new).unwrap();
        write(&pool, "tank/t/kid", &format!("more{number}"));
        let name = format!("m{number}");
        snapshot(&pool, "tank/t", &name);
        let to = format!("tank/t@{name}");
        let more = package(&pool, &to, Some(&from), SendFlags::default());
        let request = ReceiveRequest {
            name: "tank/b/src".to_owned(),
            ..ReceiveRequest::default()
        };
        let outcome = pool.receive(&request, &more[..], &mut Unwatched);
        assert_eq!(outcome.failure, None, "{new}");
        let view = pool.committed().unwrap();
        for holder in holders {
            view.dataset(&format!("{holder}@{name}")).unwrap();
        }
        from = to;
    }
    pool.export().unwrap();
    judged(&world);
}

/// Blocks in pointers are no reason to refuse them.
#[test]
fn plain_parts_of_a_raw_tree_stay_plain_below_encrypted_ones() {
    let world = World::without_journal(743);
    let pool = pool_on(&world, &[(Single, 1)]);
    root(&world, &pool, "tank/e", "aes-256-gcm", &[]);
    let plain = [text("encryption", "off"), text("compression", "lz4")];
    (pool.datasets().create_filesystem("tank/e/u", &plain)).unwrap();
    root(&world, &pool, "tank/e/u/e", "aes-128-ccm", &[]);
    for name in ["tank/e", "tank/e/u", "tank/e/u/e"] {
        make(&pool.file_system(name).unwrap(), "few", &[b'x'; 3000]);
        write(&pool, name, "many");
    }
    snapshot(&pool, "tank/e", "1");
    receive(&pool, "tank/got", &package(&pool, "tank/e@1", None, RAW));
    for (name, is_locked) in [("", true), ("/u", false), ("/u/e", true)] {
        let name = format!("tank/got{name}");
        assert_eq!(is_encrypted(&pool, &name), is_locked, "{name}");
        if is_locked {
            unlock(&pool, &name, KEY);
        }
        let files = pool.file_system(&name).unwrap();
        assert_eq!(bytes_of(&node(&files, "few")), [b'x'; 3000], "{name}");
        let many = bytes_of(&node(&files, "many"));
        assert!(many == prose(4, 40_000), "{name}");
    }
    pool.export().unwrap();
    judged(&world);
    judged_by_zdb(&world, "a raw tree with a plain part");
}
