//! Encrypted datasets are created, written, locked and unlocked. `zdb` checks every block and count; what the images
//! hold is searched for known text; wrong keys and forged blocks give typed errors.

use crate::cloning::{bytes_of, judged, judged_by_zdb, make, node, remove};
use crate::sim;
use millpond_engine::{
    Caller, DatasetError, DestroyOptions, FileSystem, KeyChange, KeyFormat, KeyRefusal,
    NewLayout::Mirror, NewLayout::Raidz, NewLayout::Single, Pool, Refusal, RootKey, View, WriteAt,
    XattrMode,
};
use millpond_ondisk::ObjectSetKind;
use millpond_sim::{PowerCut, World, noise};
use millpond_tests::workload::{Life, SUITES, text};
use std::sync::Arc;

pub(crate) const KEY: &[u8] = b"0123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef";
pub(crate) const OTHER: &[u8] = b"1123456789abcdef0123456789ABCDEF0123456789abcdef0123456789abcdef";
/// Text that must not be on any device.
const SECRET: &[u8] = b"an otter sleeps on its back and holds the hand of another";

pub(crate) fn hex_key(world: &World, key: &[u8]) -> RootKey {
    RootKey::derive(&world.env(), KeyFormat::Hex, "prompt", None, key).unwrap()
}

/// Creates an encryption root with [`KEY`].
pub(crate) fn root(world: &World, pool: &Pool, name: &str, suite: &str, more: &[(&str, &str)]) {
    let mut properties = vec![text("encryption", suite), text("keyformat", "hex")];
    properties.extend(more.iter().map(|(name, value)| text(name, value)));
    let (key, kind) = (hex_key(world, KEY), ObjectSetKind::FileSystem);
    (pool.datasets())
        .create_encryption_root(name, kind, &properties, &key)
        .unwrap();
}

pub(crate) fn unlock(pool: &Pool, name: &str, key: &[u8]) {
    pool.committed().unwrap().load_key(name, key).unwrap();
}

fn reads(view: &View, name: &str, file: &str) -> Vec<u8> {
    let files = view.dataset(name).unwrap().file_system().unwrap();
    bytes_of(&node(&files, file))
}

/// Compressible text with the secret in it.
pub(crate) fn prose(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![];
    while bytes.len() < length {
        bytes.extend_from_slice(SECRET);
        bytes.extend(noise(seed + bytes.len() as u64, 40));
    }
    bytes.truncate(length);
    bytes
}

fn hits(world: &World, needle: &[u8]) -> usize {
    let folder = tempfile::tempdir().unwrap();
    sim::to_files(world, folder.path());
    let images = std::fs::read_dir(folder.path()).unwrap();
    let images = images.map(|image| std::fs::read(image.unwrap().path()).unwrap());
    images
        .map(|bytes| {
            let mut count = 0;
            let mut at = 0;
            while let Some(found) = find(&bytes[at..], needle) {
                count += 1;
                at += found + 1;
            }
            count
        })
        .sum()
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|byte| *byte == needle[0]) {
        if bytes[at + found..].starts_with(needle) {
            return Some(at + found);
        }
        at += found + 1;
    }
    None
}

fn write(files: &Arc<FileSystem>, name: &str, at: u64, bytes: &[u8]) {
    let node = node(files, name);
    let at = WriteAt::Offset(at);
    files.write(&Caller::root(), &node, at, bytes).unwrap();
}

#[test]
fn each_suite_writes_what_it_and_zdb_read() {
    let world = World::without_journal(601);
    let pool = sim::create(&world, &[(Mirror, 2)], 256);
    let mut expected = vec![];
    for (number, suite) in (0u64..).zip(SUITES) {
        let name = format!("tank/{suite}");
        let more = match number % 3 {
            0 => vec![("compression", "off"), ("recordsize", "16384")],
            1 => vec![("copies", "2"), ("checksum", "sha256")],
            _ => vec![
                ("recordsize", "1048576"),
                ("dnodesize", "auto"),
                ("xattr", "sa"),
            ],
        };
        root(&world, &pool, &name, suite, &more);
        let child = format!("{name}/below");
        pool.datasets().create_filesystem(&child, &[]).unwrap();
        for dataset in [&name, &child] {
            let files = pool.file_system(dataset).unwrap();
            make(&files, "noise", &noise(number, 300_000));
            make(&files, "prose", &prose(number, 250_000));
            make(&files, "tiny", b"seven b");
            make(&files, "gone", &prose(number, 50_000));
            let with_spill = make(&files, "attributes", b"");
            for attribute in 0..12u64 {
                let name = format!("user.{attribute}");
                let bytes = noise(attribute, 150);
                let caller = Caller::root();
                let mode = XattrMode::Set;
                (files.set_xattr(&caller, &with_spill, name.as_bytes(), &bytes, mode)).unwrap();
            }
            pool.sync().unwrap();
            write(&files, "prose", 100_000, &noise(number + 99, 60_000));
            remove(&files, "gone");
            let mut prose = prose(number, 250_000);
            prose[100_000..160_000].copy_from_slice(&noise(number + 99, 60_000));
            expected.push((dataset.clone(), "prose", prose));
            expected.push((dataset.clone(), "noise", noise(number, 300_000)));
            expected.push((dataset.clone(), "tiny", b"seven b".to_vec()));
        }
        pool.datasets()
            .snapshot(&[&format!("{name}@s")], &[])
            .unwrap();
    }
    pool.sync().unwrap();
    let committed = pool.committed().unwrap();
    for (dataset, file, bytes) in &expected {
        assert!(
            reads(&committed, dataset, file) == *bytes,
            "{dataset} {file}"
        );
    }
    drop(committed);
    pool.export().unwrap();
    assert_eq!(hits(&world, SECRET), 0, "plain text on a device");
    judged(&world);
    judged_by_zdb(&world, "all suites");
    // Opened again, everything is locked until the key is loaded.
    let pool = sim::open(&world).unwrap();
    for suite in SUITES {
        let name = format!("tank/{suite}");
        let refused = pool.file_system(&name).unwrap_err();
        assert!(matches!(
            refused,
            millpond_engine::Error::Dataset(DatasetError::Locked { .. })
        ));
        unlock(&pool, &name, KEY);
        for dataset in [name.clone(), format!("{name}/below")] {
            let files = pool.file_system(&dataset).unwrap();
            write(&files, "tiny", 0, b"eight by");
            make(&files, "later", &prose(5, 70_000));
        }
    }
    pool.sync().unwrap();
    let view = pool.committed().unwrap();
    for (dataset, file, bytes) in &expected {
        let bytes = match *file {
            "tiny" => b"eight by",
            _ => &bytes[..],
        };
        assert!(reads(&view, dataset, file) == bytes, "{dataset} {file}");
    }
    drop(view);
    pool.export().unwrap();
    judged(&world);
    judged_by_zdb(&world, "all suites, changed");
}

#[test]
fn fsync_and_replay_work_and_the_log_is_sealed() {
    let world = World::new(602);
    let pool = sim::create(&world, &[(Single, 1)], 128);
    root(&world, &pool, "tank/e", "aes-256-gcm", &[]);
    let files = pool.file_system("tank/e").unwrap();
    make(&files, "kept", &prose(1, 5000));
    pool.sync().unwrap();
    let small = make(&files, "small", SECRET);
    files.fsync(&small).unwrap();
    let large = make(&files, "large", &prose(2, 200_000));
    files.fsync(&large).unwrap();
    let moment = world.journal().len();
    drop((small, large, files));
    drop(pool);
    let world = world.reborn(moment, &PowerCut::NothingUnflushed);
    assert_eq!(hits(&world, SECRET), 0, "plain text on a device");
    // Claimed without the key, and kept over exports.
    for _ in 0..2 {
        sim::open(&world).unwrap().export().unwrap();
        judged_by_zdb(&world, "a claimed log");
    }
    let pool = sim::open(&world).unwrap();
    unlock(&pool, "tank/e", KEY);
    let files = pool.file_system("tank/e").unwrap();
    assert!(bytes_of(&node(&files, "small")) == SECRET);
    assert!(bytes_of(&node(&files, "large")) == prose(2, 200_000));
    drop(files);
    pool.export().unwrap();
    judged(&world);
    judged_by_zdb(&world, "a replayed log");
}

#[test]
fn a_waiting_log_goes_with_its_dataset() {
    for is_rollback in [false, true] {
        let world = World::new(603);
        let pool = sim::create(&world, &[(Single, 1)], 128);
        root(&world, &pool, "tank/e", "aes-128-ccm", &[]);
        if is_rollback {
            pool.datasets().snapshot(&["tank/e@s"], &[]).unwrap();
        }
        let files = pool.file_system("tank/e").unwrap();
        let small = make(&files, "small", SECRET);
        files.fsync(&small).unwrap();
        let large = make(&files, "large", &prose(2, 200_000));
        files.fsync(&large).unwrap();
        files.fsync(&large).unwrap();
        let moment = world.journal().len();
        drop((small, large, files));
        drop(pool);
        let world = world.reborn(moment, &PowerCut::NothingUnflushed);
        let pool = sim::open(&world).unwrap();
        let datasets = pool.datasets();
        match is_rollback {
            true => datasets.rollback("tank/e@s").unwrap(),
            false => datasets
                .destroy("tank/e", DestroyOptions::default())
                .unwrap(),
        }
        for _ in 0..5 {
            pool.sync().unwrap();
        }
        pool.export().unwrap();
        judged(&world);
        judged_by_zdb(&world, "gone with its log");
    }
}

pub(crate) fn key_refusal(outcome: Result<(), DatasetError>) -> KeyRefusal {
    match outcome {
        Err(DatasetError::Refused {
            why: Refusal::Key(why),
            ..
        }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn clones_share_keys_and_roots_move_by_promotion_and_change() {
    let world = World::without_journal(604);
    let pool = sim::create(&world, &[(Single, 1)], 128);
    let datasets = pool.datasets();
    root(&world, &pool, "tank/e", "aes-256-gcm", &[]);
    datasets.create_filesystem("tank/e/kid", &[]).unwrap();
    datasets.create_filesystem("tank/plain", &[]).unwrap();
    let files = pool.file_system("tank/e").unwrap();
    make(&files, "f", &prose(1, 200_000));
    drop(files);
    pool.sync().unwrap();
    datasets
        .snapshot(&["tank/e@s", "tank/e/kid@s"], &[])
        .unwrap();
    datasets
        .clone_snapshot("tank/e@s", "tank/clone", &[])
        .unwrap();
    datasets.create_filesystem("tank/clone/kid", &[]).unwrap();
    let clone = pool.file_system("tank/clone").unwrap();
    assert!(bytes_of(&node(&clone, "f")) == prose(1, 200_000));
    write(&clone, "f", 0, b"of the clone");
    drop(clone);
    let own = hex_key(&world, OTHER);
    let why = key_refusal(datasets.change_key("tank/clone", KeyChange::Own(&own)));
    assert_eq!(why, KeyRefusal::OfClone);
    let why = key_refusal(datasets.change_key("tank/plain", KeyChange::Own(&own)));
    assert_eq!(why, KeyRefusal::NotEncrypted);
    let why = key_refusal(datasets.change_key("tank/e", KeyChange::Inherit));
    assert_eq!(why, KeyRefusal::ParentNotEncrypted);
    let why = key_refusal(datasets.change_key("tank/e/kid", KeyChange::Inherit));
    assert_eq!(why, KeyRefusal::NotARoot);
    let why = key_refusal(datasets.rename("tank/e/kid", "tank/outside"));
    assert_eq!(why, KeyRefusal::MovedOutside);
    // A changed key covers the clone and what is below it.
    datasets.change_key("tank/e", KeyChange::Own(&own)).unwrap();
    let root_of = |name: &str| {
        let view = pool.committed().unwrap();
        let dataset = view.dataset(name).unwrap();
        let root = dataset.inner().directory().encryption_root().unwrap();
        root.unwrap().name().to_owned()
    };
    for name in ["tank/e", "tank/e/kid", "tank/clone", "tank/clone/kid"] {
        assert_eq!(root_of(name), "tank/e", "{name}");
    }
    // A child becomes a root and inherits again.
    let third = hex_key(&world, KEY);
    datasets
        .change_key("tank/e/kid", KeyChange::Own(&third))
        .unwrap();
    assert_eq!(root_of("tank/e/kid"), "tank/e/kid");
    datasets.rename("tank/e/kid", "tank/moved").unwrap();
    datasets.rename("tank/moved", "tank/e/kid").unwrap();
    datasets
        .change_key("tank/e/kid", KeyChange::Inherit)
        .unwrap();
    assert_eq!(root_of("tank/e/kid"), "tank/e");
    // Promoted, the clone is the root of all.
    datasets.promote("tank/clone").unwrap();
    for name in ["tank/e", "tank/e/kid", "tank/clone", "tank/clone/kid"] {
        assert_eq!(root_of(name), "tank/clone", "{name}");
    }
    for name in ["tank/e", "tank/e/kid", "tank/clone/kid"] {
        make(&pool.file_system(name).unwrap(), "after", &prose(3, 9000));
    }
    datasets.rollback("tank/e/kid@s").unwrap();
    assert!(datasets.unload_key("tank/clone").unwrap());
    assert!(!datasets.unload_key("tank/clone").unwrap());
    assert!(pool.file_system("tank/e").is_err());
    pool.export().unwrap();
    judged(&world);
    judged_by_zdb(&world, "keys changed");
    let pool = sim::open(&world).unwrap();
    let wrong = pool
        .committed()
        .unwrap()
        .load_key("tank/clone", KEY)
        .unwrap_err();
    assert!(
        wrong
            .to_string()
            .contains("Incorrect key provided for 'tank/clone'."),
        "{wrong}"
    );
    unlock(&pool, "tank/clone", OTHER);
    let files = pool.file_system("tank/e").unwrap();
    assert!(bytes_of(&node(&files, "f")) == prose(1, 200_000));
    let busy = pool.datasets().unload_key("tank/clone").unwrap_err();
    assert!(matches!(
        busy,
        DatasetError::Refused {
            why: Refusal::Busy,
            ..
        }
    ));
    drop(files);
    // Everything goes, and nothing stays of the features.
    for name in [
        "tank/e/kid@s",
        "tank/e/kid",
        "tank/e",
        "tank/clone/kid",
        "tank/clone@s",
        "tank/clone",
    ] {
        pool.datasets()
            .destroy(name, DestroyOptions::default())
            .unwrap();
    }
    for _ in 0..6 {
        pool.sync().unwrap();
    }
    pool.export().unwrap();
    judged(&world);
    judged_by_zdb(&world, "all destroyed");
}

#[test]
fn blocks_are_shared_within_a_master_key_only() {
    let world = World::without_journal(607);
    let pool = sim::create(&world, &[(Single, 1)], 128);
    let datasets = pool.datasets();
    root(
        &world,
        &pool,
        "tank/e",
        "aes-256-gcm",
        &[("recordsize", "16384")],
    );
    root(
        &world,
        &pool,
        "tank/other",
        "aes-256-gcm",
        &[("recordsize", "16384")],
    );
    datasets
        .create_filesystem("tank/plain", &[text("recordsize", "16384")])
        .unwrap();
    let bytes = noise(3, 100_000);
    let e = pool.file_system("tank/e").unwrap();
    let source = make(&e, "f", &bytes);
    pool.sync().unwrap();
    datasets.snapshot(&["tank/e@s"], &[]).unwrap();
    datasets
        .clone_snapshot("tank/e@s", "tank/clone", &[])
        .unwrap();
    let saved = || {
        pool.committed()
            .unwrap()
            .inner()
            .space()
            .unwrap()
            .clones
            .saved_bytes
    };
    for (name, is_shared) in [
        ("tank/other", false),
        ("tank/plain", false),
        ("tank/e", true),
        ("tank/clone", true),
    ] {
        let files = pool.file_system(name).unwrap();
        let before = saved();
        let copy = crate::cloning::copy_file(&files, &source, "copy");
        pool.sync().unwrap();
        assert!(bytes_of(&copy) == bytes, "{name}");
        assert_eq!(saved() > before, is_shared, "{name}");
    }
    // And not into an encrypted dataset from a plain one.
    let plain = pool.file_system("tank/plain").unwrap();
    let before = saved();
    crate::cloning::copy_file(&e, &node(&plain, "copy"), "back");
    pool.sync().unwrap();
    assert_eq!(saved(), before);
    assert!(bytes_of(&node(&e, "back")) == bytes);
    drop((source, e, plain));
    pool.export().unwrap();
    judged(&world);
    judged_by_zdb(&world, "shared blocks");
}

#[test]
fn a_log_in_a_snapshot_is_cleared_in_what_comes_from_it() {
    for is_loaded in [true, false] {
        let world = World::without_journal(608);
        let pool = sim::create(&world, &[(Single, 1)], 128);
        root(&world, &pool, "tank/e", "aes-256-ccm", &[]);
        let files = pool.file_system("tank/e").unwrap();
        // The second commit is a block of the chain that the header points to.
        for number in 0..3u64 {
            let file = make(&files, &format!("f{number}"), &prose(number, 9000));
            files.fsync(&file).unwrap();
        }
        pool.datasets().snapshot(&["tank/e@s"], &[]).unwrap();
        make(&files, "later", b"gone with the rollback");
        drop(files);
        let pool = match is_loaded {
            true => pool,
            false => {
                pool.export().unwrap();
                sim::open(&world).unwrap()
            }
        };
        let datasets = pool.datasets();
        datasets
            .clone_snapshot("tank/e@s", "tank/clone", &[])
            .unwrap();
        datasets.rollback("tank/e@s").unwrap();
        if !is_loaded {
            unlock(&pool, "tank/e", KEY);
        }
        for name in ["tank/e", "tank/clone"] {
            let files = pool.file_system(name).unwrap();
            assert!(files.root().unwrap().lookup(b"later").is_err());
            for number in 0..3u64 {
                let file = node(&files, &format!("f{number}"));
                assert!(bytes_of(&file) == prose(number, 9000), "{name}");
            }
            let own = make(&files, "own", b"of its own");
            files.fsync(&own).unwrap();
        }
        pool.export().unwrap();
        judged(&world);
        judged_by_zdb(&world, "a log in a snapshot");
    }
}

/// Random work on files, volumes, snapshots, clones and promotions, all below one encryption root.
#[test]
fn random_work_below_an_encrypted_root_is_read_as_it_was_written() {
    for (seed, suite, tops) in [
        (1, "aes-256-gcm", vec![(Single, 1)]),
        (2, "aes-128-ccm", vec![(Mirror, 2)]),
        (3, "aes-192-gcm", vec![(Raidz(1), 3)]),
    ] {
        let world = World::without_journal(609 + seed);
        let properties = [("encryption", suite), ("keyformat", "hex")];
        let key = hex_key(&world, KEY);
        let pool = sim::create_encrypted(&world, &tops, 1024, &properties, key);
        let mut life = Life::new("tank", "encrypted", seed);
        life.file_bytes_max = 60_000;
        life.dataset_percent = 20;
        life.is_encrypted = true;
        life.steps(&pool, 150);
        pool.sync().unwrap();
        life.compare(&pool.committed().unwrap(), "committed");
        life.close_file_systems();
        pool.export().unwrap();
        judged(&world);
        judged_by_zdb(&world, "random work");
        let view = sim::read(&world).unwrap();
        view.load_key("tank", KEY).unwrap();
        life.compare(&view, "read again");
        drop(view);
        let pool = sim::open(&world).unwrap();
        unlock(&pool, "tank", KEY);
        life.steps(&pool, 60);
        pool.sync().unwrap();
        life.compare(&pool.committed().unwrap(), "gone on");
        life.close_file_systems();
        pool.export().unwrap();
        judged(&world);
        judged_by_zdb(&world, "random work, gone on");
    }
}
