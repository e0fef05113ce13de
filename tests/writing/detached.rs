//! What a detached device still holds: OpenZFS's `zhack` makes it a pool again.

use crate::attach::leaf_at;
use millpond_engine::{Caller, NewMode, OpenOptions, Pool, PoolBuilder, Search, WriteOptions};
use millpond_tests::images::workspace;
use millpond_tests::oracle::zdb;
use std::path::Path;
use std::process::Command;

fn zhack(option: &str, image: &Path) {
    let done = Command::new(workspace().join("tools/oracle/zhack"))
        .args(["label", "repair", option])
        .arg(image)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{text}");
}

/// Creates an empty file.
fn create(pool: &Pool, name: &[u8]) {
    let files = pool.file_system("tank").unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mode = NewMode::exactly(0o644);
    files.create(&caller, &root, name, mode, true).unwrap();
}

fn has(pool: &Pool, name: &[u8]) -> bool {
    let files = pool.file_system("tank").unwrap();
    files.root().unwrap().lookup(name).is_ok()
}

#[test]
fn zhack_makes_a_detached_device_its_old_pool_again() {
    if let Some(why) = zdb::absent() {
        println!("zhack not tried: {why}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let images = ["d0.img", "d1.img"].map(|name| folder.path().join(name));
    for image in &images {
        let file = std::fs::File::create(image).unwrap();
        file.set_len(128 << 20).unwrap();
    }
    let pool = PoolBuilder::new("tank").mirror(&images).create().unwrap();
    let open = || {
        let search = Search::new([folder.path()]);
        let (options, writing) = (OpenOptions::default(), WriteOptions::default());
        Pool::open(&search, "tank", &options, &writing)
    };
    create(&pool, b"before");
    pool.sync().unwrap();
    let leaf = leaf_at(&pool, images[1].to_str().unwrap());
    pool.inner().detach_leaf(leaf).unwrap();
    create(&pool, b"after");
    pool.export().unwrap();
    // Beside the pool the device belongs to nothing.
    open().unwrap().export().unwrap();
    std::fs::remove_file(&images[0]).unwrap();
    open().unwrap_err();
    zhack("-u", &images[1]);
    let pool = open().unwrap();
    assert!(has(&pool, b"before") && !has(&pool, b"after"));
    pool.export().unwrap();
    assert!(zdb::judge(folder.path(), "tank").unwrap().is_clean());
}
