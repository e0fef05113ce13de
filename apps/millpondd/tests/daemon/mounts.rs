//! Mounts across restarts of the daemon.

use super::*;

#[test]
fn mounts_are_restored_as_they_were_or_kept() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    asked.create_pool(&stage.request("t", "a"), "").unwrap();
    let change = |change: DatasetChange| asked.change("t", &[PoolChange::Dataset(change)], "");
    for name in ["t/a", "t/a/b", "t/n"] {
        asked.change("t", &[create(name)], "").unwrap();
    }
    let set = |name: &str, property: &str, value: u64| DatasetChange::Set {
        name: name.into(),
        properties: vec![(property.into(), Value::Number(value))],
        mount: true,
    };
    let remounted = || std::mem::take(&mut *stage.mounter.asked.lock());
    let at = |path: &str, read_only| (PathBuf::from(path), read_only);
    // A rename without `mount` keeps the mount points. Nothing is unmounted, although it is in use.
    remounted();
    stage.mounter.busy.lock().push(PathBuf::from("/t/a"));
    change(DatasetChange::Rename {
        from: "t/a".into(),
        to: "t/c".into(),
        recursively: false,
        mount: false,
    })
    .unwrap();
    assert!(remounted().is_empty());
    assert_eq!(
        mounted(&asked),
        ["t /t", "t/c /t/a", "t/c/b /t/a/b", "t/n /t/n"]
    );
    stage.mounter.busy.lock().clear();
    // A rollback replaces the files of a mount, and does not mount what was not mounted.
    change(set("t/n", "canmount", 2)).unwrap();
    asked.unmount("t/n", false).ok();
    asked.mount("t/n", &MountRequest::default()).unwrap();
    let names = vec!["t/n@s".into(), "t/c@s".into()];
    let properties = vec![];
    change(DatasetChange::Snapshot { names, properties }).unwrap();
    asked.unmount("t/c", false).unwrap();
    remounted();
    for snapshot in ["t/n@s", "t/c@s"] {
        let snapshot = snapshot.into();
        change(DatasetChange::Rollback { snapshot }).unwrap();
    }
    assert!(remounted().is_empty());
    assert_eq!(*stage.mounter.replaced.lock(), [PathBuf::from("/t/n")]);
    assert_eq!(mounted(&asked), ["t /t", "t/n /t/n"]);
    // Read-only and back, by property and by mount option.
    let changed = || std::mem::take(&mut *stage.mounter.changed.lock());
    change(set("t/n", "readonly", 1)).unwrap();
    change(set("t/n", "atime", 0)).unwrap();
    change(set("t/n", "readonly", 0)).unwrap();
    assert_eq!(changed(), [at("/t/n", true), at("/t/n", false)]);
    let again = |words: &str| MountRequest {
        options: vec![words.into()],
        ..MountRequest::default()
    };
    asked.mount("t/n", &again("remount,ro")).unwrap();
    assert_eq!(changed(), [at("/t/n", true)]);
    assert!(remounted().is_empty());
    stage.mounter.busy.lock().push(PathBuf::from("/t/n"));
    let refused = asked.mount("t/n", &again("remount,rw")).unwrap_err();
    assert_eq!(refused, MountProblem::Busy);
    // All or none: one file system in use keeps the others mounted too.
    asked.mount("t/c", &MountRequest::default()).unwrap();
    let names: Vec<String> = ["t/n@s", "t/n", "t/c/b", "t/c@s", "t/c"]
        .map(Into::into)
        .into();
    let all = || DatasetChange::DestroyInOrder {
        names: names.clone(),
        before_rollback: None,
    };
    let refused = change(all()).unwrap_err();
    assert!(
        matches!(refused.error, ChangeError::Mounted { .. }),
        "{refused:?}"
    );
    assert_eq!(mounted(&asked).len(), 3);
    stage.mounter.busy.lock().clear();
    change(all()).unwrap();
    assert_eq!(mounted(&asked), ["t /t"]);
}

/// A query that reads the pool, or a request of a program to a file system that is gone, can last longer than an export.
#[test]
fn an_export_says_that_the_devices_are_still_in_use() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    asked.create_pool(&stage.request("t", "a"), "").unwrap();
    let user = daemon.pools().get("t").unwrap();
    let failed = asked.change("t", &[PoolChange::Export], "").unwrap_err();
    let ChangeError::Failed(text) = failed.error else {
        panic!("{failed:?}");
    };
    assert!(text.contains("stay in use"), "{text}");
    assert_eq!(daemon.pools().names(), Vec::<String>::new());
    drop(user);
    asked.import(&stage.import("t"), "").unwrap();
    asked.change("t", &[PoolChange::Export], "").unwrap();
}

/// What was unmounted for it comes back.
#[test]
fn an_export_that_is_refused_leaves_the_file_systems_mounted() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    asked.create_pool(&stage.request("t", "a"), "").unwrap();
    let snapshot = DatasetChange::Snapshot {
        names: vec!["t@s".into()],
        properties: vec![],
    };
    asked
        .change("t", &[PoolChange::Dataset(snapshot)], "")
        .unwrap();
    assert_eq!(mounted(&asked), ["t /t"]);
    let live = daemon.pools().writable("t").unwrap();
    let used = live.use_snapshot("t@s").unwrap();
    let failed = asked.change("t", &[PoolChange::Export], "").unwrap_err();
    assert_eq!(failed.error, ChangeError::Busy);
    assert_eq!(mounted(&asked), ["t /t"]);
    drop((used, live));
    asked.change("t", &[PoolChange::Export], "").unwrap();
}

/// Programs that are cut off must not lose what they changed in mapped memory.
#[test]
fn changes_in_memory_are_written_before_a_mount_is_cut_off() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    for (pool, image) in [("t", "a"), ("u", "b")] {
        asked.create_pool(&stage.request(pool, image), "").unwrap();
    }
    for name in ["t/a", "u/a"] {
        let pool = &name[..1];
        asked.change(pool, &[create(name)], "").unwrap();
    }
    let forced = || std::mem::take(&mut *stage.mounter.forced.lock());
    let written = |path: &str| (PathBuf::from(path), false);
    let cut_off = |path: &str| (PathBuf::from(path), true);
    asked.unmount("t", false).unwrap();
    assert_eq!(forced(), []);
    asked.mount("t", &MountRequest::default()).unwrap();
    asked.mount("t/a", &MountRequest::default()).unwrap();
    asked.unmount("t", true).unwrap();
    let tree = [
        written("/t"),
        written("/t/a"),
        cut_off("/t/a"),
        cut_off("/t"),
    ];
    assert_eq!(forced(), tree);
    asked.mount("t", &MountRequest::default()).unwrap();
    asked.mount("t/a", &MountRequest::default()).unwrap();
    // The end of the daemon waits once for a pool that waits for its devices.
    stage.mounter.stuck.lock().push(PathBuf::from("/u"));
    daemon.stop();
    let mut all = vec![written("/u"), written("/t"), written("/t/a")];
    all.extend(["/t/a", "/t", "/u/a", "/u"].map(cut_off));
    assert_eq!(forced(), all);
}

/// As `mount` does, which shows `ro`.
#[test]
fn file_systems_of_a_pool_that_was_imported_read_only_show_it() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    asked.create_pool(&stage.request("t", "a"), "").unwrap();
    asked.change("t", &[create("t/a")], "").unwrap();
    asked.change("t", &[create("t/n")], "").unwrap();
    let shown = |name: &str| {
        let property = property(&asked, name, "readonly").unwrap();
        (property.value.unwrap(), property.source)
    };
    assert_eq!(shown("t/a"), (Value::Number(0), Source::Default));
    asked.change("t", &[PoolChange::Export], "").unwrap();
    let mut request = stage.import("t");
    request.properties = vec![("readonly".into(), "on".into())];
    asked.import(&request, "").unwrap();
    asked.unmount("t/n", false).unwrap();
    assert_eq!(shown("t/a"), (Value::Number(1), Source::Temporary));
    assert_eq!(shown("t/n"), (Value::Number(0), Source::Default));
}
