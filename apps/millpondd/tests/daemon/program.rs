//! Channel programs and what is mounted.

use super::*;
use millpond_control::{ProgramRequest, ProgramValue, Reply, Request};
use std::fs::File;
use std::os::fd::OwnedFd;

#[test]
fn mounted_snapshots_stay_and_follow_a_program() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    asked.create_pool(&stage.request("t", "a"), "").unwrap();
    let snapshot = |name: &str| {
        PoolChange::Dataset(DatasetChange::Snapshot {
            names: vec![name.into()],
            properties: vec![],
        })
    };
    let changes = [create("t/a"), snapshot("t/a@s"), snapshot("t/a@u")];
    asked.change("t", &changes, "").unwrap();
    let place = |name: &str| MountRequest {
        at: Some(name.into()),
        ..MountRequest::default()
    };
    asked.mount("t/a@s", &place("/s")).unwrap();
    let path = stage.folder.path().join("program");
    let run = |script: &str| {
        std::fs::write(&path, script).unwrap();
        let request = Request::RunProgram {
            request: ProgramRequest {
                pool: "t".into(),
                arguments: ProgramValue::Nil,
                instructions: 1_000_000,
                memory_bytes: 10 << 20,
                is_read_only: false,
            },
            command: "zfs program t".into(),
        };
        let script = OwnedFd::from(File::open(&path).unwrap());
        match asked.transfer(&request, script, &|| false).unwrap() {
            Reply::RunProgram(value) => format!("{value:?}"),
            other => panic!("{other:?}"),
        }
    };
    // EBUSY: its blocks are read.
    let refused = run("return zfs.sync.destroy('t/a@s')");
    assert!(refused.contains("16"), "{refused}");
    let done = run("return zfs.sync.destroy('t/a@u')");
    assert!(done.contains("Integer(0)"), "{done}");
    let done = run("return zfs.sync.rename_snapshot('t/a', 's', 'v')");
    assert!(done.contains("Integer(0)"), "{done}");
    assert_eq!(mounted(&asked), ["t /t", "t/a /t/a", "t/a@v /s"]);
    // The properties of what is mounted are read again.
    let set = DatasetChange::Set {
        name: "t/a".into(),
        properties: vec![("readonly".into(), Value::Number(1))],
        mount: true,
    };
    asked.change("t", &[PoolChange::Dataset(set)], "").unwrap();
    stage.mounter.changed.lock().clear();
    let done = run("return zfs.sync.inherit('t/a', 'readonly')");
    assert!(done.contains("Integer(0)"), "{done}");
    let changed = std::mem::take(&mut *stage.mounter.changed.lock());
    assert_eq!(changed, [(PathBuf::from("/t/a"), false)]);
    // Destroying by a command unmounts it first, and an export does not wait for it.
    let names = vec!["t/a@v".into()];
    let destroy = DatasetChange::DestroyInOrder {
        names,
        before_rollback: None,
    };
    asked
        .change("t", &[PoolChange::Dataset(destroy)], "")
        .unwrap();
    assert_eq!(mounted(&asked), ["t /t", "t/a /t/a"]);
    run("return zfs.sync.snapshot('t/a@w')");
    asked.mount("t/a@w", &place("/w")).unwrap();
    asked.change("t", &[PoolChange::Export], "").unwrap();
}
