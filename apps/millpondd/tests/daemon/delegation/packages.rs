//! Packages of streams that users receive: each thing that a package brings needs its permission.

use super::*;
use millpond_control::properties::Kinds;
use millpond_control::{DatasetQuery, ReceiveStep, Wanted};

/// A tree with a history, and the streams of it.
struct Sender {
    world: World,
    alice: Client,
    path: std::path::PathBuf,
}

impl Sender {
    fn new() -> Self {
        let datasets = ["t/a", "t/a/below", "t/got", "t/local"];
        let world = World::new(&datasets);
        let alice = world.user(ALICE);
        let path = world.stage.folder.path().join("stream");
        let sender = Self { world, alice, path };
        sender.snapshot("1");
        sender
    }

    fn change(&self, change: DatasetChange) {
        as_is(&self.world.root, change).unwrap();
    }

    fn snapshot(&self, name: &str) {
        let names = ["t/a", "t/a/below"].map(|dataset| format!("{dataset}@{name}"));
        self.change(DatasetChange::Snapshot {
            names: names.into(),
            properties: vec![],
        });
    }

    fn send(&self, request: SendStream) {
        let file = OwnedFd::from(File::create(&self.path).unwrap());
        let sent = (self.world.root).transfer(&Request::Send { request }, file, &|| false);
        sent.unwrap();
    }

    fn receive(&self, name: &str, is_forced: bool) -> Received {
        let request = Request::Receive {
            request: ReceiveStream {
                name: name.into(),
                is_forced,
                ..ReceiveStream::default()
            },
            command: "zfs receive".into(),
        };
        let file = OwnedFd::from(File::open(&self.path).unwrap());
        match self.alice.transfer(&request, file, &|| false).unwrap() {
            Reply::Receive(received) => received,
            other => panic!("{other:?}"),
        }
    }

    fn has(&self, name: &str) -> bool {
        let query = DatasetQuery {
            root: name.into(),
            depth: 0,
            kinds: Kinds::ALL,
            wanted: Wanted::All,
            names_damaged: false,
        };
        self.world.root.datasets(&query, &mut |_| Ok(())).is_ok()
    }
}

/// The properties that the user was not allowed to set.
fn refused(received: &Received) -> Vec<String> {
    let steps = received.steps.iter().filter_map(|step| match step {
        ReceiveStep::PropertyRefused {
            dataset,
            property,
            reason,
        } => {
            assert_eq!(reason, "permission denied");
            Some(format!("{property} of {dataset}"))
        }
        _ => None,
    });
    steps.collect()
}

fn denied(received: &Received) -> bool {
    let failure = received.failure.as_ref();
    failure.is_some_and(|failure| failure.problem == ReceiveProblem::Denied)
}

const RECEIVE: [&str; 3] = ["receive", "create", "mount"];

#[test]
fn snapshots_between_are_received_with_the_permissions_of_a_stream() {
    let sender = Sender::new();
    sender.world.allow_all(ALICE, &RECEIVE, "t/got");
    sender.snapshot("2");
    sender.snapshot("3");
    sender.send(SendStream {
        name: "t/a@1".into(),
        ..SendStream::default()
    });
    assert_eq!(sender.receive("t/got/a", false).failure, None);
    sender.send(SendStream {
        name: "t/a@3".into(),
        from: Some("t/a@1".into()),
        has_between: true,
        ..SendStream::default()
    });
    assert_eq!(sender.receive("t/got/a", false).failure, None);
    assert!(sender.has("t/got/a@2") && sender.has("t/got/a@3"));
}

#[test]
fn properties_and_holds_of_a_package_need_their_own() {
    let sender = Sender::new();
    sender.world.allow_all(ALICE, &RECEIVE, "t/got");
    let set = |name: &str, value: &str| {
        sender.change(DatasetChange::Set {
            name: "t/a".into(),
            properties: vec![(name.into(), Value::Text(value.into()))],
            mount: false,
        });
    };
    set("atime", "off");
    set("of:us", "yes");
    set("mountpoint", "/etc/millpond-test");
    sender.change(DatasetChange::Hold {
        names: vec!["t/a@1".into()],
        tag: "kept".into(),
    });
    let package = |has_holds| SendStream {
        name: "t/a@1".into(),
        package: SendPackage {
            has_properties: true,
            has_holds,
            ..SendPackage::default()
        },
        ..SendStream::default()
    };
    sender.send(package(false));
    let received = sender.receive("t/got/a", false);
    assert_eq!(received.failure, None);
    let all = ["atime", "mountpoint", "of:us"].map(|name| format!("{name} of t/got/a"));
    let mut names = refused(&received);
    names.sort();
    assert_eq!(names, all);
    let atime = |name: &str| property(&sender.world.root, name, "atime").unwrap().value;
    assert_ne!(atime("t/got/a"), Some(Value::Number(0)));
    // The place of a mount stays the superuser's: the daemon mounts there.
    (sender.world).allow_all(ALICE, &["atime", "userprop", "mountpoint"], "t/got");
    let received = sender.receive("t/got/b", false);
    assert_eq!(received.failure, None);
    assert_eq!(refused(&received), ["mountpoint of t/got/b"]);
    assert_eq!(atime("t/got/b"), Some(Value::Number(0)));
    sender.send(package(true));
    assert!(denied(&sender.receive("t/got/c", false)));
    sender.world.allow_all(ALICE, &["hold"], "t/got");
    assert_eq!(sender.receive("t/got/d", false).failure, None);
}

#[test]
fn each_dataset_of_a_tree_needs_the_permissions() {
    let sender = Sender::new();
    sender.world.allow_all(ALICE, &RECEIVE, "t/got");
    let holder = PermissionHolder::User(ALICE.into());
    let local = PermissionGrant::new(holder, PermissionReach::Local, &RECEIVE);
    sender.world.allow("t/local", &[local]);
    let tree = |name: &str, from: Option<&str>| SendStream {
        name: name.into(),
        from: from.map(str::to_owned),
        package: SendPackage {
            is_recursive: true,
            ..SendPackage::default()
        },
        ..SendStream::default()
    };
    sender.send(tree("t/a@1", None));
    assert!(denied(&sender.receive("t/local/a", false)));
    assert!(!sender.has("t/local/a/below"));
    assert_eq!(sender.receive("t/got/a", false).failure, None);
    assert!(sender.has("t/got/a/below@1"));
    // What the sender has not any more is not destroyed by who may not, and its names do not change.
    sender.snapshot("2");
    let names = ["t/a/below@2", "t/a/below@1", "t/a/below"].map(str::to_owned);
    sender.change(DatasetChange::DestroyInOrder {
        names: names.into(),
        before_rollback: None,
    });
    sender.send(tree("t/a@2", Some("t/a@1")));
    let received = sender.receive("t/got/a", true);
    assert_eq!(received.failure, None);
    let is_kept = |step: &ReceiveStep| matches!(step, ReceiveStep::Destroyed { is_done: false, name } if name.starts_with("t/got/a/below"));
    assert!(received.steps.iter().any(is_kept), "{received:?}");
    assert!(sender.has("t/got/a/below@1"));
    sender.world.allow_all(ALICE, &["destroy"], "t/got");
    let received = sender.receive("t/got/a", true);
    assert_eq!(received.failure, None);
    assert!(!sender.has("t/got/a/below"), "{received:?}");
}

#[test]
fn clones_need_the_permission_at_their_origin() {
    let sender = Sender::new();
    sender.world.allow_all(ALICE, &RECEIVE, "t/got");
    sender.change(DatasetChange::Clone {
        snapshot: "t/a@1".into(),
        name: "t/a/clone".into(),
        properties: vec![],
        mount: false,
    });
    sender.change(DatasetChange::Snapshot {
        names: ["t/a@2", "t/a/below@2", "t/a/clone@2"]
            .map(str::to_owned)
            .into(),
        properties: vec![],
    });
    sender.send(SendStream {
        name: "t/a@2".into(),
        package: SendPackage {
            is_recursive: true,
            ..SendPackage::default()
        },
        ..SendStream::default()
    });
    assert!(denied(&sender.receive("t/got/a", false)));
    assert!(!sender.has("t/got/a/clone"));
    sender.world.allow_all(ALICE, &["clone"], "t/got");
    assert_eq!(sender.receive("t/got/b", false).failure, None);
    assert!(sender.has("t/got/b/clone@2"));
}
