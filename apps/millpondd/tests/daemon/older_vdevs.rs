//! A pool of two single disks, one of which is replaced by an older copy.

use super::*;

/// Makes such a pool. The daemon is stopped, the copy lies beside the disk.
fn copied(stage: &Stage, exported: bool) -> (PathBuf, PathBuf) {
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    let mut request = stage.request("tank", "a");
    request.devices.tops.push(TopRequest {
        class: AllocationClass::Normal,
        layout: NewLayout::Single,
        paths: vec![stage.image("b")],
    });
    asked.create_pool(&request, "").unwrap();
    asked.change("tank", &[create("tank/old")], "").unwrap();
    let disk = stage.folder.path().join("b");
    let copy = stage.folder.path().join("copy-of-b");
    std::fs::copy(&disk, &copy).unwrap();
    for number in 0..4 {
        let change = create(&format!("tank/new{number}"));
        asked.change("tank", &[change], "").unwrap();
    }
    if exported {
        asked.change("tank", &[PoolChange::Export], "").unwrap();
    }
    drop(asked);
    daemon.stop();
    gone(daemon);
    (disk, copy)
}

#[test]
fn an_older_copy_of_a_single_disk_is_imported_by_force_only() {
    let stage = Stage::new();
    let (disk, copy) = copied(&stage, true);
    let away = stage.folder.path().join("state/away");
    std::fs::rename(&disk, &away).unwrap();
    std::fs::rename(&copy, &disk).unwrap();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    let named = disk.to_string_lossy();
    let request = stage.import("tank");
    let listed = asked.importable(&request.search).unwrap();
    let text = listed[0].older.clone().unwrap();
    assert!(text.contains(&*named), "{text}");
    match asked.import(&request, "zpool import") {
        Err(ImportError::OlderVdevs(text)) => {
            assert!(
                text.starts_with(&format!("{named} ended at txg ")),
                "{text}"
            );
        }
        other => panic!("{other:?}"),
    }
    let read_only = ImportRequest {
        properties: vec![("readonly".into(), "on".into())],
        mount: false,
        ..request.clone()
    };
    asked.import(&read_only, "zpool import").unwrap();
    asked.change("tank", &[PoolChange::Export], "").unwrap();
    // The disk itself makes it whole.
    std::fs::rename(&disk, &copy).unwrap();
    std::fs::rename(&away, &disk).unwrap();
    std::fs::rename(&copy, &away).unwrap();
    let listed = asked.importable(&request.search).unwrap();
    assert_eq!(listed[0].older, None);
    asked.import(&request, "zpool import").unwrap();
    asked.change("tank", &[PoolChange::Export], "").unwrap();
    std::fs::rename(&away, &disk).unwrap();
    assert!(asked.import(&request, "zpool import").is_err());
    let forced = ImportRequest {
        force: true,
        ..request
    };
    asked.import(&forced, "zpool import -f").unwrap();
}

#[test]
fn a_daemon_that_starts_does_not_import_an_older_copy() {
    let stage = Stage::new();
    let (disk, copy) = copied(&stage, false);
    let away = stage.folder.path().join("state/away");
    std::fs::rename(&disk, &away).unwrap();
    std::fs::rename(&copy, &disk).unwrap();
    let daemon = stage.start("state");
    assert!(client(&daemon, 0).pools().unwrap().is_empty());
    daemon.stop();
    gone(daemon);
    // It is not forgotten.
    std::fs::rename(&away, &disk).unwrap();
    let daemon = stage.start("state");
    assert_eq!(client(&daemon, 0).pools().unwrap(), ["tank"]);
}
