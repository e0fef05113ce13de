//! Files whose blocks have other sizes at the sender.

use crate::cloning::{make, node, pool_on};
use crate::receive::{finish, received, sent};
use crate::receive_cases::{LARGE, PLAIN, files_of};
use millpond_engine::{Caller, NewLayout::Single, PropertyValue, SetAttributes, WriteAt};
use millpond_env::mark;
use millpond_sim::{World, noise};

/// The sender's copy was once received with its blocks split, and its blocks are still small.
#[test]
fn files_whose_blocks_are_smaller_at_the_sender_keep_what_did_not_change() {
    let _mark = mark::expect("received-block-resized");
    let world = World::without_journal(83);
    let pool = pool_on(&world, &[(Single, 1)]);
    let large = ("recordsize".to_owned(), PropertyValue::Number(1 << 20));
    (pool.datasets().create_filesystem("tank/l", &[large])).unwrap();
    let files = pool.file_system("tank/l").unwrap();
    for (number, size) in [4 << 20, 500_000, 200_000, 700, 0].into_iter().enumerate() {
        make(&files, &format!("f{number}"), &noise(number as u64, size));
    }
    pool.datasets().snapshot(&["tank/l@1"], &[]).unwrap();
    make(&files, "h", &noise(9, 2 << 20));
    drop(files);
    pool.datasets().snapshot(&["tank/l@2"], &[]).unwrap();
    let (one, two) = ("tank/l@1", "tank/l@2");
    received(&pool, "tank/split", &sent(&pool, one, None, PLAIN));
    let more = sent(&pool, two, Some(one), LARGE);
    received(&pool, "tank/split", &more);
    // Back: first what touches none of the files, though their dnodes are sent, then a part of each.
    let files = pool.file_system("tank/split").unwrap();
    make(&files, "i", b"new");
    pool.datasets().snapshot(&["tank/split@3"], &[]).unwrap();
    for number in 0..3 {
        let at = WriteAt::Offset(140_000);
        let node = node(&files, &format!("f{number}"));
        (files.write(&Caller::root(), &node, at, &noise(20 + number, 9000))).unwrap();
    }
    drop(files);
    pool.datasets().snapshot(&["tank/split@4"], &[]).unwrap();
    for (from, to) in [(2, 3), (3, 4)] {
        let (from, to) = (format!("tank/split@{from}"), format!("tank/split@{to}"));
        received(&pool, "tank/l", &sent(&pool, &to, Some(&from), LARGE));
        let back = to.replace("split", "l");
        assert!(files_of(&pool, &back) == files_of(&pool, &to), "{to}");
    }
    finish(&world, pool, "received");
}

/// A file that is overwritten from its beginning gets larger blocks, if it has one only. The kernel module does the same with
/// one of several blocks (`tests/kernel`, `chains`).
#[test]
fn a_received_file_has_the_block_size_of_the_sender() {
    let _mark = mark::expect("received-file-resized");
    let world = World::without_journal(84);
    let pool = pool_on(&world, &[(Single, 1)]);
    let usual = ("recordsize".to_owned(), PropertyValue::Number(128 << 10));
    (pool.datasets().create_filesystem("tank/l", &[usual])).unwrap();
    let block_bytes = |dataset: &str, file: &str| {
        let files = pool.file_system(dataset).unwrap();
        node(&files, file).stat().unwrap().block_bytes
    };
    let files = pool.file_system("tank/l").unwrap();
    for file in ["f", "g"] {
        make(&files, file, &noise(1, 160_000));
    }
    make(&files, "small", &noise(2, 3000));
    drop(files);
    pool.datasets().snapshot(&["tank/l@1"], &[]).unwrap();
    let large = ("recordsize".to_owned(), PropertyValue::Number(1 << 20));
    (pool.datasets().set_properties("tank/l", &[large])).unwrap();
    let files = pool.file_system("tank/l").unwrap();
    for (file, size) in [("f", 160_001), ("g", 3 << 20), ("small", 600_000)] {
        let node = node(&files, file);
        let empty = SetAttributes {
            size_bytes: Some(0),
            ..SetAttributes::default()
        };
        (files.set_attributes(&Caller::root(), &node, &empty)).unwrap();
        pool.sync().unwrap();
        let content = noise(3, size);
        (files.write(&Caller::root(), &node, WriteAt::Offset(0), &content)).unwrap();
    }
    drop(files);
    pool.datasets().snapshot(&["tank/l@2"], &[]).unwrap();
    received(&pool, "tank/got", &sent(&pool, "tank/l@1", None, LARGE));
    let more = sent(&pool, "tank/l@2", Some("tank/l@1"), LARGE);
    received(&pool, "tank/got", &more);
    assert!(files_of(&pool, "tank/got") == files_of(&pool, "tank/l"));
    for file in ["f", "g", "small"] {
        let (ours, theirs) = (block_bytes("tank/got", file), block_bytes("tank/l", file));
        assert_eq!(ours, theirs, "{file}");
    }
    assert!(block_bytes("tank/got", "small") > 131_072);
    finish(&world, pool, "received");
}
