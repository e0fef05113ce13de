//! Finds pools through a cache file.
#![forbid(unsafe_code)]

use millpond_engine::{Error, OpenOptions, Search, View};
use millpond_nvlist::{NvList, NvValue};
use millpond_tests::{images, record};
use std::path::{Path, PathBuf};

fn unpacked(case: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = images::workspace().join("testdata/golden").join(case);
    let record = record::load(&folder).unwrap();
    let image = &record.images[0];
    let path =
        images::unpacked(&folder.join(&image.file), &image.sha256, image.size_bytes).unwrap();
    let place = tempfile::tempdir().unwrap();
    let disk = place.path().join("somewhere.img");
    std::fs::copy(path, &disk).unwrap();
    (place, disk)
}

/// The configuration stored in the pool, with its only leaf at `path`.
fn config_at(disk: &Path, path: &Path) -> NvList {
    let folder = disk.parent().unwrap();
    let pool = View::open(&Search::new([folder]), "single", &OpenOptions::default()).unwrap();
    let mut config = pool.inner().config().clone();
    let mut tree = config.list("vdev_tree").unwrap().clone();
    let mut leaf = tree.list_array("children").unwrap()[0].clone();
    leaf.insert("path", path.to_str().unwrap());
    tree.insert("children", NvValue::ListArray(vec![leaf]));
    config.insert("vdev_tree", NvValue::List(tree));
    config
}

fn write_cache_file(folder: &Path, config: NvList) -> PathBuf {
    let mut list = NvList::new();
    list.insert("single", NvValue::List(config));
    let path = folder.join("zpool.cache");
    std::fs::write(&path, list.encode_native().unwrap()).unwrap();
    path
}

#[test]
fn a_cache_file_finds_a_pool_outside_the_search() {
    let (place, disk) = unpacked("single");
    let cache = write_cache_file(place.path(), config_at(&disk, &disk));
    let search = Search::in_cache_file(&cache).unwrap();
    let pool = View::open(&search, "single", &OpenOptions::default()).unwrap();
    assert!(pool.dataset("single/child").unwrap().file_system().is_ok());
}

#[test]
fn a_disk_that_moved_since_is_found_by_searching_there_too() {
    let (place, disk) = unpacked("single");
    let cache = write_cache_file(place.path(), config_at(&disk, Path::new("/nowhere/d0")));
    let mut search = Search::in_cache_file(&cache).unwrap();
    assert!(View::open(&search, "single", &OpenOptions::default()).is_err());
    search.paths.push(place.path().to_owned());
    assert!(View::open(&search, "single", &OpenOptions::default()).is_ok());
}

#[test]
fn an_invalid_cache_file_is_an_error_with_its_name() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("zpool.cache");
    let names_it =
        |outcome: Result<Search, Error>| outcome.unwrap_err().to_string().contains("zpool.cache");
    assert!(names_it(Search::in_cache_file(&path)));
    std::fs::write(&path, b"not a list of pools").unwrap();
    assert!(names_it(Search::in_cache_file(&path)));
}
