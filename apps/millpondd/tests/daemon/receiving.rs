//! Streams received into mounted file systems.

use super::*;
use millpond_control::{ReceiveProblem, ReceiveStream, Received, Reply, Request, SendStream};
use std::fs::File;
use std::os::fd::OwnedFd;

#[test]
fn a_busy_file_system_is_not_replaced() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = client(&daemon, 0);
    asked.create_pool(&stage.request("t", "a"), "").unwrap();
    let snapshot = PoolChange::Dataset(DatasetChange::Snapshot {
        names: vec!["t/a@1".into()],
        properties: vec![],
    });
    let changes = [create("t/a"), create("t/b"), snapshot];
    asked.change("t", &changes, "").unwrap();
    let path = stage.folder.path().join("stream");
    let transfer = |request: &Request, file: File| {
        let reply = asked.transfer(request, OwnedFd::from(file), &|| false);
        reply.unwrap()
    };
    let request = SendStream {
        name: "t/a@1".into(),
        ..SendStream::default()
    };
    transfer(&Request::Send { request }, File::create(&path).unwrap());
    let receive = || -> Received {
        let request = Request::Receive {
            request: ReceiveStream {
                name: "t/b@1".into(),
                is_forced: true,
                mount: true,
                ..ReceiveStream::default()
            },
            command: "zfs receive -F t/b@1".into(),
        };
        match transfer(&request, File::open(&path).unwrap()) {
            Reply::Receive(received) => received,
            other => panic!("{other:?}"),
        }
    };
    stage.mounter.busy.lock().push("/t/b".into());
    let failure = receive().failure.unwrap();
    let why = "pool or dataset is busy".to_owned();
    assert_eq!(failure.problem, ReceiveProblem::Mounted("/t/b".into(), why));
    assert_eq!(mounted(&asked), ["t /t", "t/a /t/a", "t/b /t/b"]);
    stage.mounter.busy.lock().clear();
    assert_eq!(receive().failure, None);
    assert_eq!(mounted(&asked), ["t /t", "t/a /t/a", "t/b /t/b"]);
}
