//! Files stored again with the properties of today: their content stays, also in snapshots and clones, and with kept births
//! incremental streams leave them out.

use crate::cloning::{RECORD, bytes_of, copy_file, judged, judged_by_zdb, make, node, pool_on};
use crate::encryption::root;
use crate::receive::{finish, received, sent};
use crate::sim;
use millpond_engine::{
    Caller, FileError, FileSystem, NewLayout::Single, Pool, PropertyValue, SendFlags, WriteAt,
};
use millpond_env::mark;
use millpond_ondisk::{BlockId, BlockPointer};
use millpond_pool::PoolSetting;
use millpond_sim::{World, noise};
use millpond_tests::recount;
use millpond_tests::workload::{Life, text};
use std::sync::Arc;

/// Forty records with a hole in the middle, half of them compressible.
fn content() -> Vec<u8> {
    let record = RECORD as usize;
    let mut bytes = noise(1, 40 * record + 5000);
    for record in bytes.chunks_mut(record).step_by(2) {
        for line in record.chunks_mut(64) {
            let half = line.len() / 2;
            line[..half].fill(7);
        }
    }
    bytes[10 * record..14 * record].fill(0);
    bytes
}

fn enable(pool: &Pool) {
    let feature = PoolSetting::EnableFeature("physical_rewrite");
    pool.inner().set_property(&feature).unwrap();
}

fn used_bytes(pool: &Pool) -> u64 {
    for _ in 0..3 {
        pool.sync().unwrap();
    }
    pool.inner().allocator().usage().pool().allocated_bytes
}

/// The pointers of a file's records as stored.
fn pointers(files: &Arc<FileSystem>, name: &str) -> Vec<BlockPointer> {
    let set = files.object_set().unwrap();
    let object = set.object(node(files, name).stat().unwrap().id).unwrap();
    let pointers = (0..=object.block_id_max().0).map(BlockId);
    pointers
        .map(|id| object.stored_pointer(id).unwrap().unwrap())
        .collect()
}

fn rewrite(files: &Arc<FileSystem>, name: &str, keeps_births: bool) {
    let file = node(files, name);
    files.rewrite(&file, 0, 0, keeps_births).unwrap();
}

fn properties(pool: &Pool, all: &[(&str, &str)]) {
    let all: Vec<(String, PropertyValue)> =
        all.iter().map(|(name, value)| text(name, value)).collect();
    pool.datasets().set_properties("tank/a", &all).unwrap();
}

#[test]
fn blocks_get_the_properties_of_today_and_nothing_else_changes() {
    let world = World::without_journal(710);
    let pool = pool_on(&world, &[(Single, 1)]);
    properties(&pool, &[("compression", "zle")]);
    let files = pool.file_system("tank/a").unwrap();
    make(&files, "file", &content());
    make(&files, "small", b"a few words");
    pool.sync().unwrap();
    let (before, stat) = (used_bytes(&pool), node(&files, "file").stat().unwrap());
    let old = pointers(&files, "file");
    properties(&pool, &[("compression", "lz4"), ("checksum", "sha512")]);
    rewrite(&files, "file", false);
    rewrite(&files, "small", false);
    assert!(
        bytes_of(&node(&files, "file")) == content(),
        "while it is dirty"
    );
    let after = used_bytes(&pool);
    assert!(after + 90_000 < before, "{before} {after}");
    let new = pointers(&files, "file");
    for (old, new) in old.iter().zip(&new) {
        assert_eq!(old.is_hole(), new.is_hole());
        assert!(old.is_hole() || new.birth() > old.birth());
        assert!(new.is_hole() || new.checksum_kind() != old.checksum_kind());
    }
    assert_eq!(new.iter().filter(|one| one.is_hole()).count(), 4);
    let now = node(&files, "file").stat().unwrap();
    assert_eq!((now.mtime, now.ctime), (stat.mtime, stat.ctime));
    assert_eq!(now.size_bytes, stat.size_bytes);
    assert!(bytes_of(&node(&files, "file")) == content());
    assert_eq!(bytes_of(&node(&files, "small")), b"a few words");
    // Without a change of properties, equal content keeps its place.
    let _kept = mark::expect("write-without-change");
    rewrite(&files, "file", false);
    pool.sync().unwrap();
    assert_eq!(pointers(&files, "file"), new);
    drop(files);
    pool.export().unwrap();
    judged(&world);
    judged_by_zdb(&world, "rewritten");
}

#[test]
fn only_blocks_with_bytes_of_the_range_are_rewritten() {
    let world = World::without_journal(711);
    let pool = pool_on(&world, &[(Single, 1)]);
    let files = pool.file_system("tank/a").unwrap();
    make(&files, "file", &content());
    pool.sync().unwrap();
    let old = pointers(&files, "file");
    let file = node(&files, "file");
    // The first block in part, the hole, and the beginning of block 20.
    for (offset, length) in [
        (RECORD / 2, 10),
        (9 * RECORD + 1, 6 * RECORD),
        (20 * RECORD - 1, 2),
        (1000 * RECORD, 0),
        (u64::MAX, u64::MAX),
    ] {
        files.rewrite(&file, offset, length, false).unwrap();
    }
    pool.sync().unwrap();
    let new = pointers(&files, "file");
    let changed: Vec<usize> = (0..old.len()).filter(|id| old[*id] != new[*id]).collect();
    assert_eq!(changed, [0, 9, 14, 15, 19, 20]);
    drop((file, files));
    pool.export().unwrap();
    judged(&world);
}

#[test]
fn snapshots_and_clones_keep_the_old_blocks() {
    let world = World::without_journal(712);
    let pool = pool_on(&world, &[(Single, 1)]);
    enable(&pool);
    let datasets = pool.datasets();
    let files = pool.file_system("tank/a").unwrap();
    make(&files, "file", &content());
    let copied = node(&files, "file");
    pool.sync().unwrap();
    copy_file(&files, &copied, "copy");
    datasets.snapshot(&["tank/a@s"], &[]).unwrap();
    datasets.clone_snapshot("tank/a@s", "tank/c", &[]).unwrap();
    properties(&pool, &[("compression", "gzip-9")]);
    let before = used_bytes(&pool);
    rewrite(&files, "file", true);
    rewrite(&files, "copy", true);
    rewrite(&pool.file_system("tank/c").unwrap(), "file", true);
    assert!(used_bytes(&pool) > before + 60 * RECORD);
    let view = pool.committed().unwrap();
    for name in ["tank/a", "tank/a@s", "tank/c"] {
        let files = view.dataset(name).unwrap().file_system().unwrap();
        for file in ["file", "copy"] {
            assert!(bytes_of(&node(&files, file)) == content(), "{name} {file}");
        }
    }
    judged(&world);
    drop((copied, files, view));
    // Freed in an order in which each is once the last that has its blocks.
    datasets.destroy("tank/c", Default::default()).unwrap();
    pool.sync().unwrap();
    judged(&world);
    datasets.destroy("tank/a@s", Default::default()).unwrap();
    for _ in 0..3 {
        pool.sync().unwrap();
    }
    judged(&world);
    datasets.destroy("tank/a", Default::default()).unwrap();
    for _ in 0..3 {
        pool.sync().unwrap();
    }
    judged(&world);
    // Nothing is left that an older zdb does not know.
    pool.export().unwrap();
    judged_by_zdb(&world, "all freed");
}

#[test]
fn kept_births_keep_blocks_out_of_incremental_streams() {
    let world = World::without_journal(713);
    let pool = pool_on(&world, &[(Single, 1)]);
    let files = pool.file_system("tank/a").unwrap();
    make(&files, "file", &content());
    pool.datasets().snapshot(&["tank/a@1"], &[]).unwrap();
    // Not without the feature.
    let file = node(&files, "file");
    let refused = files.rewrite(&file, 0, 0, true);
    assert!(
        matches!(refused, Err(FileError::NotSupported)),
        "{refused:?}"
    );
    enable(&pool);
    let old = pointers(&files, "file");
    properties(&pool, &[("compression", "gzip-9")]);
    rewrite(&files, "file", true);
    // What is written afterwards is new.
    let new = noise(5, 100);
    let at = WriteAt::Offset(3 * RECORD + 50);
    files.write(&Caller::root(), &file, at, &new).unwrap();
    pool.sync().unwrap();
    for (id, (old, new)) in old.iter().zip(pointers(&files, "file")).enumerate() {
        let is_kept = id != 3 && !old.is_hole();
        assert_eq!(new.is_rewritten(), is_kept, "{id}");
        assert_eq!(new.birth() == old.birth(), id != 3, "{id}");
        assert!(
            new.allocation_birth() > old.birth() || old.is_hole(),
            "{id}"
        );
    }
    pool.datasets().snapshot(&["tank/a@2"], &[]).unwrap();
    let flags = SendFlags::default();
    let stream = sent(&pool, "tank/a@2", Some("tank/a@1"), flags);
    assert!(stream.len() < 2 * RECORD as usize, "{}", stream.len());
    let all = sent(&pool, "tank/a@1", None, flags);
    received(&pool, "tank/got", &all);
    received(&pool, "tank/got", &stream);
    let got = pool.file_system("tank/got").unwrap();
    assert!(bytes_of(&node(&got, "file")) == bytes_of(&file));
    // Rewritten as ordinary writes, they are all sent.
    rewrite(&files, "file", false);
    pool.datasets().snapshot(&["tank/a@3"], &[]).unwrap();
    let stream = sent(&pool, "tank/a@3", Some("tank/a@2"), flags);
    assert!(stream.len() > 30 * RECORD as usize, "{}", stream.len());
    drop((file, files, got));
    pool.export().unwrap();
    judged(&world);
}

#[test]
fn blocks_of_every_kind_are_rewritten() {
    for (dedup, is_encrypted) in [("off", true), ("on", false), ("verify", true)] {
        let world = World::without_journal(714);
        let pool = sim::create(&world, &[(Single, 1)], 128);
        enable(&pool);
        let own = [("recordsize", "16384"), ("copies", "2"), ("dedup", dedup)];
        match is_encrypted {
            true => root(&world, &pool, "tank/a", "aes-256-gcm", &own),
            false => {
                let own: Vec<_> = own.iter().map(|(name, value)| text(name, value)).collect();
                pool.datasets().create_filesystem("tank/a", &own).unwrap();
            }
        }
        let files = pool.file_system("tank/a").unwrap();
        make(&files, "file", &content());
        make(&files, "same", &content());
        pool.datasets().snapshot(&["tank/a@1"], &[]).unwrap();
        for (value, keeps_births) in [("zstd", true), ("lz4", false), ("off", true)] {
            properties(&pool, &[("compression", value)]);
            rewrite(&files, "file", keeps_births);
            pool.sync().unwrap();
            let what = format!("{dedup} {is_encrypted} {value}");
            let has_kept = pointers(&files, "file")
                .iter()
                .any(BlockPointer::is_rewritten);
            assert_eq!(has_kept, keeps_births && dedup == "off", "{what}");
            assert!(bytes_of(&node(&files, "file")) == content(), "{what}");
            judged(&world);
        }
        drop(files);
        if dedup == "off" {
            pool.export().unwrap();
            continue;
        }
        finish(&world, pool, dedup);
    }
}

/// Random histories with rewritten files, also with kept births.
#[test]
fn histories_with_kept_births_stay_whole() {
    for seed in 0..3 {
        let world = World::without_journal(720 + seed);
        let pool = sim::create(&world, &[(Single, 1)], 512);
        enable(&pool);
        let mut life = Life::new("tank", "kept births", seed);
        life.file_bytes_max = 200_000;
        life.copy_percent = 15;
        for round in 0..12 {
            life.steps(&pool, 40);
            pool.sync().unwrap();
            let view = pool.committed().unwrap();
            life.compare(&view, &format!("seed {seed}, round {round}"));
            let faults = recount::faults_after_a_cut(&view);
            assert!(faults.is_empty(), "seed {seed}, round {round}: {faults:#?}");
        }
        pool.export().unwrap();
        let view = sim::read(&world).unwrap();
        life.compare(&view, &format!("seed {seed}, opened again"));
        sim::verify(&view).unwrap();
    }
}

/// The power fails while files with snapshots are rewritten. Their content is the same in every state.
#[test]
fn rewriting_survives_every_crash() {
    for keeps_births in [false, true] {
        let world = World::new(730);
        let pool = pool_on(&world, &[(Single, 1)]);
        enable(&pool);
        let files = pool.file_system("tank/a").unwrap();
        make(&files, "file", &content());
        let file = node(&files, "file");
        pool.sync().unwrap();
        copy_file(&files, &file, "copy");
        pool.datasets().snapshot(&["tank/a@1"], &[]).unwrap();
        world.forget();
        for compression in ["gzip", "off"] {
            properties(&pool, &[("compression", compression)]);
            rewrite(&files, "file", keeps_births);
            rewrite(&files, "copy", keeps_births);
            files.fsync(&file).unwrap();
            pool.sync().unwrap();
        }
        drop((file, files, pool));
        let journal = world.journal().len();
        let step = match crate::exhaustive::is_all() {
            true => 1,
            false => (journal / 40).max(1),
        };
        for (round, count) in (0..=journal).step_by(step).enumerate() {
            let variant = &crate::crash::variants(730, round, count)[round % 5];
            let what = format!("after {count} of {journal} requests, {variant:?}");
            let after = world.reborn(count, variant);
            judged(&after);
            let pool = sim::open(&after).unwrap_or_else(|error| panic!("{what}: {error}"));
            let files = pool.file_system("tank/a").unwrap();
            for name in ["file", "copy"] {
                assert!(bytes_of(&node(&files, name)) == content(), "{what}");
            }
            rewrite(&files, "copy", keeps_births);
            drop(files);
            pool.export().unwrap();
            judged(&after);
        }
    }
}
