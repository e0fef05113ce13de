//! Calls all reading functions of the library on a hostile pool.

use super::image::candidate;
use super::overlay::Overlay;
use millpond_check::{CheckOptions, Progress};
use millpond_engine::{
    Dataset, FileKind, FileSystem, Node, ObjectId, OpenOptions, OwnerKind, Symlinks, View,
};
use millpond_inspect::{block_statistics, datasets, object_summaries};
use millpond_intent::IntentLog;
use millpond_pool::import::{find_pools, scan_devices};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

/// The current operation, which the watchdog prints if it takes too long.
pub static NOW: Mutex<String> = Mutex::new(String::new());

fn now(what: &str, name: &str) {
    *NOW.lock().unwrap_or_else(|poison| poison.into_inner()) = format!("{what} {name}");
}

/// Opens the pool and reads everything in it. Returns whether the pool opened.
///
/// Errors are acceptable; panics and endless loops are not.
pub fn exercise(overlay: Overlay) -> bool {
    now("scan", "");
    let found = scan_devices(vec![candidate(overlay)]);
    let options = OpenOptions {
        cache_bytes: Some(64 << 20),
        ..OpenOptions::default()
    };
    let mut has_opened = false;
    for pool in find_pools(&found, 0) {
        now("open", &pool.name);
        if let Ok(pool) = View::open_candidate(&pool, &options) {
            has_opened = true;
            whole(&pool);
        }
    }
    has_opened
}

fn whole(pool: &View) {
    let inner = pool.inner();
    now("pool", "properties");
    let _ = pool.literal_properties();
    let _ = inner.feature_properties();
    let _ = inner.history();
    let _ = inner.logged_errors();
    let _ = inner.checkpoint();
    now("pool", "space");
    let _ = inner.space();
    now("pool", "datasets");
    for dataset in bounded(pool.datasets(), "datasets").flatten() {
        about(&dataset);
        now("snapshots", dataset.name());
        for snapshot in dataset.snapshots().unwrap_or_default() {
            about(&snapshot);
        }
    }
    now("inspect", "datasets");
    for _ in bounded(datasets(inner), "inspected datasets") {}
    now("inspect", "mos");
    for _ in bounded(object_summaries(inner.mos()), "objects of the MOS") {}
    now("inspect", "blocks");
    let mut left = STATISTICS_STEPS;
    let _ = block_statistics(inner, &mut |_| {
        left -= 1;
        match left {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    });
    for id in 1..OBJECTS_BY_NUMBER {
        now("dataset by number", &id.to_string());
        let _ = pool.dataset_by_id(ObjectId(id));
    }
    now("verify", "");
    let _ = pool.verify(&Progress::default(), &|_| {});
    now("check", "");
    let _ = pool.check(&CheckOptions::default(), &Progress::default(), &|_| {});
}

fn about(dataset: &Dataset) {
    now("properties", dataset.name());
    let _ = dataset.kind();
    let _ = dataset.is_locked();
    let _ = dataset.literal_properties();
    for bookmark in dataset.bookmarks().unwrap_or_default() {
        let _ = dataset.literal_bookmark_properties(&bookmark.name);
    }
    let _ = dataset.holds();
    let _ = dataset.inner().origin();
    now("space by owner", dataset.name());
    for owners in [OwnerKind::User, OwnerKind::Group, OwnerKind::Project] {
        let _ = dataset.space_by_owner(owners);
    }
    now("object set", dataset.name());
    if let Ok(set) = dataset.object_set() {
        for _ in bounded(object_summaries(&set), "objects") {}
        now("intent log", dataset.name());
        if let Some(log) = IntentLog::open(&set) {
            let synced = dataset.pool().inner().uberblock().txg;
            for record in bounded(log.records(synced), "records") {
                let _ = record.decode();
            }
        }
    }
    now("files", dataset.name());
    if let Ok(files) = dataset.file_system() {
        tree(dataset.name(), &files);
    }
    now("volume", dataset.name());
    if let Ok(volume) = dataset.volume() {
        let mut buffer = vec![0; 1 << 16];
        for offset in [0, 1 << 16, 1 << 40, u64::MAX - 10] {
            let _ = volume.read(offset, &mut buffer);
        }
    }
}

fn tree(name: &str, files: &Arc<FileSystem>) {
    let _ = files.unlinked();
    // By object id, so that every file is visited exactly once.
    let mut after = ObjectId(0);
    let Some(set) = files.committed() else { return };
    for _ in 0..FILES_MAX {
        match set.next_object(after) {
            Ok(Some(object)) => {
                after = object.id();
                if let Ok(node) = files.node(after) {
                    now("file", &format!("{name} {after}"));
                    file(files, &node);
                }
            }
            Ok(None) => break,
            Err(_) => after.0 += 1,
        }
    }
    now("resolve", name);
    for path in [b"a/b/../../..".as_slice(), b"link", b"dir/../dir/file"] {
        let _ = files.resolve(path, Symlinks::Follow);
    }
}

fn file(files: &Arc<FileSystem>, node: &Node) {
    let _ = node.stat();
    let _ = node.nfs4_acl();
    let _ = node.link_target();
    let _ = node.is_xattr_directory();
    for name in node.xattr_names().unwrap_or_default() {
        let _ = node.xattr(&name);
    }
    // Searches every directory on the path.
    if node.id().0.is_multiple_of(8) {
        let _ = files.path_of(node.id());
    }
    match node.kind() {
        FileKind::Directory => {
            let mut names = Vec::new();
            if let Ok(entries) = node.entries() {
                for entry in bounded(entries, "entries").flatten() {
                    if names.len() < 12 {
                        names.push(entry.name);
                    }
                }
            }
            for name in names {
                let _ = node.find(&name);
                let _ = node.find(&name.to_ascii_uppercase());
            }
        }
        FileKind::Symlink => {
            if let Ok(Some(target)) = node.link_target() {
                let _ = files.resolve(&target, Symlinks::Follow);
            }
        }
        _ => {
            let mut buffer = vec![0; 1 << 17];
            for extent in node.extents().take(64).flatten() {
                let _ = node.read(extent.offset_bytes, &mut buffer);
                let end = extent.offset_bytes.saturating_add(extent.length_bytes);
                let _ = node.read(end.saturating_sub(1000), &mut buffer);
            }
            for offset in [node.size_bytes().saturating_sub(10), u64::MAX - 1] {
                let _ = node.read(offset, &mut buffer);
            }
        }
    }
}

/// Passes an iterator on, and panics if it does not end.
fn bounded<T>(list: impl Iterator<Item = T>, what: &'static str) -> impl Iterator<Item = T> {
    list.enumerate().map(move |(count, item)| {
        assert!(count < ENDLESS, "the list of {what} does not end");
        item
    })
}

/// More than any list in a small image can have.
const ENDLESS: usize = 100_000;
const FILES_MAX: usize = 120;
const OBJECTS_BY_NUMBER: u64 = 64;
const STATISTICS_STEPS: u64 = 100_000;
