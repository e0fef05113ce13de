//! A cache device goes to the module with what we wrote on it, and comes back with what it wrote.

use crate::records::{
    RECORDS, content, open_with_cache_device, read, stats, with_cache_device, write,
};
use crate::rig::Rig;
use crate::run_script;
use millpond_tests::oracle::kernel::{self, Release, written};
use std::collections::BTreeMap;

/// The module's counts from the share.
fn counts(share: &std::path::Path) -> BTreeMap<String, u64> {
    let counts = written(share, "cache.txt").into_iter().filter_map(|line| {
        let (name, count) = line.split_once(' ')?;
        Some((name.to_owned(), count.parse().ok()?))
    });
    counts.collect()
}

fn to_and_fro(release: Release) {
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(2, 1100);
    let pool = with_cache_device(&rig);
    let content = content(12);
    write(&pool, "file", &content);
    let mut rounds = 0;
    while stats(&pool).log_blocks < 3 {
        read(&pool, "file", &content);
        rounds += 1;
        assert!(rounds < 100, "{:?}", stats(&pool));
    }
    let ours = stats(&pool);
    pool.export().unwrap();
    rig.keep("cache-device");
    rig.judge("tank");

    let share = tempfile::tempdir().unwrap();
    run_script(release, &rig, "cache", Some(share.path()), &["tank"]);
    let theirs = counts(share.path());
    assert_eq!(theirs["l2_rebuild_success"], 1, "{theirs:?}");
    assert_eq!(theirs["l2_rebuild_log_blks"], ours.log_blocks);
    assert!(
        theirs["l2_rebuild_bufs"] + theirs["l2_rebuild_bufs_precached"] >= 100,
        "{theirs:?}"
    );
    assert!(theirs["l2_hits"] >= RECORDS as u64 / 2, "{theirs:?}");
    assert_eq!([theirs["l2_cksum_bad"], theirs["l2_io_error"]], [0, 0]);
    assert!(theirs["l2_log_blk_writes"] >= 2, "{theirs:?}");

    // What it wrote there is found, too.
    rig.judge("tank");
    let pool = open_with_cache_device(&rig);
    while stats(&pool).rebuilds + stats(&pool).rebuild_header_errors == 0 {
        std::thread::yield_now();
    }
    let rebuilt = stats(&pool);
    assert_eq!(
        rebuilt.rebuild_header_errors + rebuilt.rebuild_checksum_errors,
        0,
        "{rebuilt:?}"
    );
    assert!(
        rebuilt.rebuilt_log_blocks > theirs["l2_log_blk_writes"],
        "ours and theirs: {rebuilt:?}"
    );
    read(&pool, "file", &content);
    let files = pool.file_system("tank/a").unwrap();
    let node = files.root().unwrap().lookup(b"theirs").unwrap();
    let mut bytes = vec![0; node.size_bytes() as usize];
    assert_eq!(node.read(0, &mut bytes).unwrap(), bytes.len());
    let known = std::fs::read(share.path().join("theirs")).unwrap();
    assert!(bytes == known);
    let used = stats(&pool);
    assert!(used.hits >= RECORDS as u64 / 2, "{used:?}");
    assert_eq!((used.checksum_errors, used.read_errors), (0, 0));
    drop((node, files));
    pool.export().unwrap();
    rig.judge("tank");
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn a_cache_device_goes_to_the_module_and_comes_back() {
    to_and_fro(Release::V2_3);
    to_and_fro(Release::V2_4);
}
