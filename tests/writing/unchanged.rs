//! Writes of the content that is there already: with the right properties nothing is stored, and snapshots keep sharing it.

use crate::cloning::{RECORD, bytes_of, judged, judged_by_zdb, make, node};
use crate::encryption::root;
use crate::sim;
use millpond_engine::{Caller, NewLayout::Single, Pool, PropertyValue, WriteAt};
use millpond_env::mark;
use millpond_sim::{World, noise};
use millpond_tests::workload::text;

const LENGTH: usize = 40 * RECORD as usize + 5000;

fn number(name: &str, value: u64) -> (String, PropertyValue) {
    (name.to_owned(), PropertyValue::Number(value))
}

fn used_bytes(pool: &Pool) -> u64 {
    pool.sync().unwrap();
    pool.inner().allocator().usage().pool().allocated_bytes
}

fn rewrite(pool: &Pool, bytes: &[u8]) {
    let files = pool.file_system("tank/a").unwrap();
    let file = node(&files, "file");
    let at = WriteAt::Offset(0);
    files.write(&Caller::root(), &file, at, bytes).unwrap();
}

/// Writes a file with some properties, takes a snapshot, changes a property, and writes the same again. Returns whether
/// that took space.
fn takes_space(created: &[(&str, &str)], then: &[(&str, &str)]) -> bool {
    let what = format!("{created:?} {then:?}");
    let world = World::without_journal(700);
    let pool = sim::create(&world, &[(Single, 1)], 128);
    let datasets = pool.datasets();
    let texts = |all: &[(&str, &str)]| -> Vec<_> {
        let all = all.iter().map(|(name, value)| match value.parse() {
            Ok(value) => number(name, value),
            Err(_) => text(name, value),
        });
        all.collect()
    };
    datasets
        .set_properties("tank", &[number("recordsize", RECORD)])
        .unwrap();
    datasets
        .create_filesystem("tank/a", &texts(created))
        .unwrap();
    // Every other record can be compressed.
    let mut bytes = noise(1, LENGTH);
    for record in bytes.chunks_mut(RECORD as usize).step_by(2) {
        for line in record.chunks_mut(64) {
            let half = line.len() / 2;
            line[..half].fill(7);
        }
    }
    let files = pool.file_system("tank/a").unwrap();
    make(&files, "file", &bytes);
    drop(files);
    let single = used_bytes(&pool);
    datasets.snapshot(&["tank/a@s"], &[]).unwrap();
    if !then.is_empty() {
        datasets.set_properties("tank/a", &texts(then)).unwrap();
    }
    let before = used_bytes(&pool);
    rewrite(&pool, &bytes);
    let after = used_bytes(&pool);
    // A record that differs is stored, and no other.
    bytes[3 * RECORD as usize + 77] ^= 1;
    rewrite(&pool, &bytes);
    let changed = used_bytes(&pool);
    let added = after.saturating_sub(before);
    assert!(changed > after || added > 0, "{what}");
    assert!(single > (LENGTH / 3) as u64, "{what}: {single}");
    let files = pool.file_system("tank/a").unwrap();
    assert!(bytes_of(&node(&files, "file")) == bytes, "{what}");
    drop(files);
    pool.export().unwrap();
    judged(&world);
    judged_by_zdb(&world, &what);
    // Metadata is written again.
    let takes = added > 100 << 10;
    assert!(takes || added < 64 << 10, "{what}: {added}");
    takes
}

#[test]
fn equal_content_is_not_stored_again() {
    let _mark = mark::expect("write-without-change");
    for checksum in ["sha256", "sha512", "skein", "edonr", "blake3"] {
        let properties = [("checksum", checksum), ("compression", "lz4")];
        assert!(!takes_space(&properties, &[]), "{checksum}");
    }
    let zle = [
        ("checksum", "sha256"),
        ("compression", "zle"),
        ("copies", "2"),
    ];
    assert!(!takes_space(&zle, &[]));
    // A weak checksum says nothing, and without compression nothing is compared.
    for checksum in ["on", "fletcher2", "fletcher4"] {
        let properties = [("checksum", checksum), ("compression", "lz4")];
        assert!(takes_space(&properties, &[]), "{checksum}");
    }
    let off = [("checksum", "sha256"), ("compression", "off")];
    assert!(takes_space(&off, &[]));
}

#[test]
fn what_is_to_be_stored_otherwise_is_stored_again() {
    let first = [("checksum", "sha256"), ("compression", "lz4")];
    for change in [
        ("checksum", "sha512"),
        ("compression", "gzip"),
        ("copies", "2"),
    ] {
        assert!(takes_space(&first, &[change]), "{change:?}");
    }
}

/// Encrypted blocks have a random IV, and of deduplicated ones the table counts references.
#[test]
fn encrypted_and_deduplicated_blocks_have_their_own_rules() {
    for is_encrypted in [false, true] {
        let world = World::without_journal(701);
        let pool = sim::create(&world, &[(Single, 1)], 128);
        let datasets = pool.datasets();
        let properties = [
            number("recordsize", RECORD),
            text("checksum", "sha256"),
            text("compression", "lz4"),
        ];
        datasets.set_properties("tank", &properties).unwrap();
        match is_encrypted {
            true => root(&world, &pool, "tank/a", "aes-256-gcm", &[]),
            false => {
                let dedup = [text("dedup", "on")];
                datasets.create_filesystem("tank/a", &dedup).unwrap();
            }
        }
        let bytes = noise(3, LENGTH);
        let files = pool.file_system("tank/a").unwrap();
        make(&files, "file", &bytes);
        drop(files);
        used_bytes(&pool);
        datasets.snapshot(&["tank/a@s"], &[]).unwrap();
        let before = used_bytes(&pool);
        rewrite(&pool, &bytes);
        let added = used_bytes(&pool).saturating_sub(before);
        assert_eq!(added > LENGTH as u64 / 2, is_encrypted, "{added}");
        pool.export().unwrap();
        judged(&world);
        judged_by_zdb(&world, "written again");
    }
}
