//! What users other than root can do after `zfs allow`, and what they cannot do.

mod packages;

use crate::{Stage, create, mounted, property};
use millpond_control::{
    ChangeError, ChangeFailure, Changed, DatasetChange, DiffQuery, Failure, KeyProblem,
    MountProblem, Note, PermissionGrant, PermissionHolder, PermissionReach, PoolChange,
    ReceiveProblem, ReceiveStream, Received, Reply, Request, Secret, SendPackage, SendProblem,
    SendStream, Service, Value,
};
use millpond_daemon::Daemon;
use millpond_engine::Refusal;
use millpond_rpc::{Access, Caller, Client, serve};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

const ALICE: u32 = 1001;
const BOB: u32 = 1002;
const STAFF: u32 = 50;

/// A pool with some file systems, and a daemon.
struct World {
    stage: Stage,
    daemon: Arc<Daemon>,
    root: Client,
}

impl World {
    fn new(names: &[&str]) -> Self {
        let stage = Stage::new();
        let daemon = stage.start("state");
        let root = peer(&daemon, 0, &[]);
        root.create_pool(&stage.request("t", "a"), "").unwrap();
        let changes: Vec<PoolChange> = names.iter().map(|name| create(name)).collect();
        root.change("t", &changes, "").unwrap();
        Self {
            stage,
            daemon,
            root,
        }
    }

    fn user(&self, user: u32) -> Client {
        peer(&self.daemon, user, &[])
    }

    fn allow(&self, dataset: &str, grants: &[PermissionGrant]) {
        let change = DatasetChange::Allow {
            name: dataset.into(),
            grants: grants.to_vec(),
        };
        as_is(&self.root, change).unwrap();
    }

    /// Grants a user permissions for a dataset and its descendants.
    fn allow_all(&self, user: u32, permissions: &[&str], dataset: &str) {
        let holder = PermissionHolder::User(user.into());
        let grant = |reach| PermissionGrant::new(holder.clone(), reach, permissions);
        let both = [PermissionReach::Local, PermissionReach::Descendant].map(grant);
        self.allow(dataset, &both);
    }

    fn unmount_all(&self) {
        self.root.unmount("t", false).unwrap();
    }
}

fn peer(daemon: &Arc<Daemon>, user: u32, groups: &[u32]) -> Client {
    let (here, there) = UnixStream::pair().unwrap();
    let daemon = Arc::clone(daemon);
    let caller = Caller {
        user,
        group: user,
        groups: groups.to_vec(),
        process: 0,
    };
    std::thread::spawn(move || {
        let _ = serve(there, daemon.as_ref(), &caller, Access::of(&caller, 0));
    });
    Client::new(here)
}

fn as_is(client: &Client, change: DatasetChange) -> Result<Changed, ChangeFailure> {
    client.change("t", &[PoolChange::Dataset(change)], "zfs …")
}

#[track_caller]
fn denied<T: std::fmt::Debug>(outcome: Result<T, ChangeFailure>) {
    assert_eq!(outcome.unwrap_err().error, ChangeError::Denied);
}

fn snapshot(name: &str) -> DatasetChange {
    DatasetChange::Snapshot {
        names: vec![name.into()],
        properties: vec![],
    }
}

fn destroy(name: &str) -> DatasetChange {
    DatasetChange::Destroy { name: name.into() }
}

fn rename(from: &str, to: &str) -> DatasetChange {
    DatasetChange::Rename {
        from: from.into(),
        to: to.into(),
        recursively: false,
        mount: true,
    }
}

fn set(name: &str, property: &str, value: Value) -> DatasetChange {
    DatasetChange::Set {
        name: name.into(),
        properties: vec![(property.into(), value)],
        mount: true,
    }
}

#[test]
fn users_do_what_was_delegated_to_them_and_nothing_else() {
    let world = World::new(&["t/a", "t/a/below", "t/b"]);
    let alice = world.user(ALICE);
    for change in [
        snapshot("t/a@1"),
        set("t/a", "atime", Value::Number(0)),
        destroy("t/a/below"),
    ] {
        denied(as_is(&alice, change));
    }
    denied(alice.change("t", &[create("t/a/new")], ""));
    let user = || PermissionHolder::User(ALICE.into());
    world.allow(
        "t/a",
        &[
            PermissionGrant::new(user(), PermissionReach::Local, &["snapshot", "atime"]),
            PermissionGrant::new(user(), PermissionReach::Descendant, &["hold"]),
        ],
    );
    as_is(&alice, snapshot("t/a@1")).unwrap();
    as_is(&alice, set("t/a", "atime", Value::Number(0))).unwrap();
    let atime = property(&world.root, "t/a", "atime").unwrap();
    assert_eq!(atime.value, Some(Value::Number(0)));
    denied(as_is(&alice, snapshot("t/a/below@1")));
    denied(as_is(&alice, snapshot("t/b@1")));
    denied(as_is(&alice, set("t/a", "exec", Value::Number(0))));
    // All or nothing.
    let both = DatasetChange::Snapshot {
        names: vec!["t/a@2".into(), "t/b@2".into()],
        properties: vec![],
    };
    denied(as_is(&alice, both));
    as_is(&world.root, snapshot("t/a/below@1")).unwrap();
    let hold = |name: &str| DatasetChange::Hold {
        names: vec![name.into()],
        tag: "x".into(),
    };
    as_is(&alice, hold("t/a/below@1")).unwrap();
    denied(as_is(&alice, hold("t/a@1")));
    denied(as_is(&world.user(BOB), hold("t/a/below@1")));
    // Pools, mounts and the history stay closed.
    let refused = alice.change("t", &[PoolChange::Destroy], "").unwrap_err();
    assert_eq!(refused.error, ChangeError::Denied);
    assert!(alice.history("t", &mut |_| Ok(())).is_err());
    let refused = alice.unmount("t/a", false).unwrap_err();
    assert_eq!(refused.1, MountProblem::Denied);
    // A command that does nothing would only write to the history.
    assert_eq!(
        alice.change("t", &[], "boo").unwrap_err().error,
        ChangeError::Denied
    );
    // Every user may look at permissions.
    let found = world.user(BOB).permissions("t/a/below").unwrap();
    let datasets: Vec<&str> = found.iter().map(|one| one.dataset.as_str()).collect();
    assert_eq!(datasets, ["t/a/below", "t/a", "t"]);
    assert_eq!(found[1].grants.len(), 2);
    // Off for all but root.
    let off = |value: &str| PoolChange::Set {
        name: "delegation".into(),
        value: value.into(),
    };
    world.root.change("t", &[off("off")], "").unwrap();
    denied(as_is(&alice, snapshot("t/a@3")));
    world.allow_all(BOB, &["snapshot"], "t/a");
    world.root.change("t", &[off("on")], "").unwrap();
    as_is(&alice, snapshot("t/a@3")).unwrap();
}

#[test]
fn groups_everyone_and_sets_give_permissions() {
    let world = World::new(&["t/a", "t/b"]);
    let (local, set_of) = (PermissionReach::Local, PermissionReach::NotApplicable);
    world.allow(
        "t",
        &[PermissionGrant::new(
            PermissionHolder::Set("@s".into()),
            set_of,
            &["snapshot", "destroy", "mount"],
        )],
    );
    world.allow(
        "t/a",
        &[PermissionGrant::new(
            PermissionHolder::Group(STAFF.into()),
            local,
            &["@s"],
        )],
    );
    world.allow(
        "t/b",
        &[PermissionGrant::new(
            PermissionHolder::Everyone,
            local,
            &["snapshot"],
        )],
    );
    let staff = peer(&world.daemon, ALICE, &[7, STAFF]);
    as_is(&staff, snapshot("t/a@1")).unwrap();
    as_is(&staff, destroy("t/a@1")).unwrap();
    denied(as_is(&world.user(ALICE), snapshot("t/a@1")));
    // The gid of the process counts too: here that of the user.
    as_is(&world.user(STAFF), snapshot("t/a@1")).unwrap();
    as_is(&world.user(BOB), snapshot("t/b@1")).unwrap();
    denied(as_is(&world.user(BOB), destroy("t/b@1")));
}

#[test]
fn who_creates_a_file_system_owns_it_and_root_mounts_it() {
    let world = World::new(&["t/home"]);
    world.allow_all(ALICE, &["create", "mount"], "t/home");
    let creator = PermissionHolder::Creator;
    let at_creation = PermissionGrant::new(
        creator,
        PermissionReach::NotApplicable,
        &["destroy", "snapshot"],
    );
    world.allow("t/home", &[at_creation]);
    let alice = world.user(ALICE);
    let changes = [create("t/home/alice"), create("t/home/alice/deep")];
    let changed = alice.change("t", &changes, "zfs create -p").unwrap();
    let not_mounted = |name: &str| Note::NotMounted {
        dataset: name.into(),
        mountpoint: format!("/{name}"),
        why: MountProblem::Denied,
    };
    let wanted = [
        not_mounted("t/home/alice"),
        not_mounted("t/home/alice/deep"),
    ];
    assert_eq!(changed.notes, wanted);
    assert_eq!(mounted(&world.root), ["t /t", "t/home /t/home"]);
    let live = world.daemon.pools().writable("t").unwrap();
    let files = live.file_system("t/home/alice").unwrap();
    let stat = files.root().unwrap().stat().unwrap();
    assert_eq!((stat.uid, stat.gid), (ALICE, ALICE));
    drop((files, live));
    as_is(&alice, snapshot("t/home/alice@1")).unwrap();
    // What root created has no such permissions.
    world
        .root
        .change("t", &[create("t/home/root")], "")
        .unwrap();
    denied(as_is(&alice, snapshot("t/home/root@1")));
    denied(as_is(&alice, destroy("t/home/root")));
    as_is(&alice, destroy("t/home/alice/deep")).unwrap();
    denied(alice.change("t", &[create("t/elsewhere")], ""));
}

#[test]
fn properties_of_new_datasets_need_their_permissions() {
    let world = World::new(&["t/a"]);
    world.allow_all(ALICE, &["create", "mount", "compression"], "t/a");
    let alice = world.user(ALICE);
    let new = |name: &str, property: &str, value: Value| DatasetChange::CreateFileSystem {
        name: name.into(),
        properties: vec![(property.into(), value)],
        mount: true,
        key: None,
    };
    let etc = Value::Text("/etc".into());
    denied(as_is(&alice, new("t/a/1", "mountpoint", etc.clone())));
    denied(as_is(&alice, new("t/a/1", "exec", Value::Number(0))));
    as_is(&alice, new("t/a/1", "compression", Value::Number(2))).unwrap();
    let volume = |name: &str, reserved: bool| {
        let mut properties = vec![("volsize".into(), Value::Number(1 << 20))];
        if reserved {
            properties.push(("refreservation".into(), Value::Number(1 << 20)));
        }
        DatasetChange::CreateVolume {
            name: name.into(),
            properties,
            key: None,
        }
    };
    denied(as_is(&alice, volume("t/a/v", true)));
    as_is(&alice, volume("t/a/v", false)).unwrap();
    // Not even with the permission: root's daemon would mount it there when it starts.
    world.allow_all(ALICE, &["mountpoint", "keylocation", "userprop"], "t/a");
    denied(as_is(&alice, set("t/a/1", "mountpoint", etc)));
    let shadow = Value::Text("file:///etc/shadow".into());
    denied(as_is(&alice, set("t/a/1", "keylocation", shadow)));
    as_is(
        &alice,
        set("t/a/1", "mountpoint", Value::Text("none".into())),
    )
    .unwrap();
    as_is(
        &alice,
        set("t/a/1", "org.example:note", Value::Text("x".into())),
    )
    .unwrap();
}

#[test]
fn what_is_mounted_stays_mounted() {
    let world = World::new(&["t/a", "t/a/b"]);
    let permissions = [
        "destroy", "mount", "rename", "create", "rollback", "canmount", "exec",
    ];
    world.allow_all(ALICE, &permissions, "t/a");
    let alice = world.user(ALICE);
    let busy = |outcome: Result<Changed, ChangeFailure>| {
        let error = outcome.unwrap_err().error;
        let wanted = ChangeError::Mounted {
            mountpoint: "/t/a/b".into(),
            why: MountProblem::Denied,
        };
        assert_eq!(error, wanted);
    };
    let before = mounted(&world.root);
    busy(as_is(&alice, destroy("t/a/b")));
    let in_order = |names: &[&str]| DatasetChange::DestroyInOrder {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        before_rollback: None,
    };
    busy(as_is(&alice, in_order(&["t/a/b"])));
    busy(as_is(&alice, rename("t/a/b", "t/a/c")));
    busy(as_is(&alice, set("t/a/b", "canmount", Value::Number(0))));
    assert_eq!(mounted(&world.root), before);
    // Mounted again in its place.
    as_is(&world.root, snapshot("t/a/b@1")).unwrap();
    let snapshot = "t/a/b@1".into();
    as_is(&alice, DatasetChange::Rollback { snapshot }).unwrap();
    as_is(&alice, set("t/a/b", "exec", Value::Number(0))).unwrap();
    let sorted = |mut lines: Vec<String>| {
        lines.sort();
        lines
    };
    assert_eq!(sorted(mounted(&world.root)), sorted(before));
    world.unmount_all();
    as_is(&alice, rename("t/a/b", "t/a/c")).unwrap();
    as_is(&alice, set("t/a/c", "canmount", Value::Number(1))).unwrap();
    as_is(&alice, in_order(&["t/a/c@1", "t/a/c"])).unwrap();
    assert_eq!(mounted(&world.root), Vec::<String>::new());
}

#[test]
fn an_earlier_change_does_not_lend_its_rights_to_another_dataset() {
    let world = World::new(&["t/a", "t/victim", "t/a/mine"]);
    world.unmount_all();
    // Everything at one's own dataset, and only a rename of the other one.
    let local = PermissionReach::Local;
    let user = || PermissionHolder::User(ALICE.into());
    world.allow(
        "t/a",
        &[PermissionGrant::new(user(), local, &["create", "mount"])],
    );
    let own = ["rename", "mount", "destroy", "create"];
    world.allow("t/a/mine", &[PermissionGrant::new(user(), local, &own)]);
    world.allow(
        "t/victim",
        &[PermissionGrant::new(user(), local, &["rename", "mount"])],
    );
    let changes = [
        rename("t/a/mine", "t/a/other"),
        rename("t/victim", "t/a/mine"),
        destroy("t/a/mine"),
    ];
    let changes = changes.map(PoolChange::Dataset);
    let failure = world.user(ALICE).change("t", &changes, "").unwrap_err();
    let wanted = ChangeFailure {
        done: 2,
        error: ChangeError::Denied,
    };
    assert_eq!(failure, wanted);
    assert!(property(&world.root, "t/a/mine", "used").is_some());
}

#[test]
fn clones_and_promotions_need_both_ends() {
    let world = World::new(&["t/from", "t/to"]);
    as_is(&world.root, snapshot("t/from@1")).unwrap();
    let alice = world.user(ALICE);
    let clone = || DatasetChange::Clone {
        snapshot: "t/from@1".into(),
        name: "t/to/clone".into(),
        properties: vec![],
        mount: false,
    };
    world.allow_all(ALICE, &["create", "mount"], "t/to");
    denied(as_is(&alice, clone()));
    world.allow_all(ALICE, &["clone"], "t/from");
    as_is(&alice, clone()).unwrap();
    let promote = || DatasetChange::Promote {
        name: "t/to/clone".into(),
    };
    world.allow_all(ALICE, &["promote"], "t/to");
    denied(as_is(&alice, promote()));
    world.allow_all(ALICE, &["promote"], "t/from");
    as_is(&alice, promote()).unwrap();
}

#[test]
fn only_held_permissions_are_passed_on() {
    let world = World::new(&["t/a", "t/a/b"]);
    let alice = world.user(ALICE);
    let (user, bob) = (
        || PermissionHolder::User(ALICE.into()),
        || PermissionHolder::User(BOB.into()),
    );
    let (local, below) = (PermissionReach::Local, PermissionReach::Descendant);
    world.allow(
        "t/a",
        &[PermissionGrant::new(user(), local, &["allow", "snapshot"])],
    );
    let allow = |reach, permissions: &[&str]| DatasetChange::Allow {
        name: "t/a".into(),
        grants: vec![PermissionGrant::new(bob(), reach, permissions)],
    };
    let unallow = |permissions: &[&str]| DatasetChange::Unallow {
        name: "t/a".into(),
        recursively: false,
        removals: vec![PermissionGrant::new(bob(), local, permissions)],
    };
    denied(as_is(&alice, allow(local, &["snapshot", "destroy"])));
    denied(as_is(&alice, allow(local, &["allow"])));
    denied(as_is(&alice, allow(local, &["@s"])));
    denied(as_is(&alice, allow(below, &["snapshot"])));
    as_is(&alice, allow(local, &["snapshot"])).unwrap();
    as_is(&world.user(BOB), snapshot("t/a@1")).unwrap();
    denied(as_is(&world.user(BOB), allow(local, &["snapshot"])));
    denied(as_is(&alice, unallow(&[])));
    denied(as_is(&alice, unallow(&["send"])));
    as_is(&alice, unallow(&["snapshot"])).unwrap();
    denied(as_is(&world.user(BOB), snapshot("t/a@2")));
}

#[test]
fn internal_datasets_are_nobodys() {
    let world = World::new(&[]);
    world.unmount_all();
    world.allow_all(ALICE, &["rename", "mount", "create", "atime"], "t");
    let alice = world.user(ALICE);
    denied(as_is(&alice, rename("t/$ORIGIN", "t/mine")));
    denied(as_is(&alice, set("t/$ORIGIN", "atime", Value::Number(0))));
}

#[test]
fn limits_hold_for_users() {
    let world = World::new(&["t/a"]);
    as_is(&world.root, set("t/a", "snapshot_limit", Value::Number(1))).unwrap();
    world.allow_all(ALICE, &["snapshot"], "t/a");
    let alice = world.user(ALICE);
    as_is(&alice, snapshot("t/a@1")).unwrap();
    let refused = as_is(&alice, snapshot("t/a@2")).unwrap_err();
    let limited = matches!(
        refused.error,
        ChangeError::Refused {
            why: Refusal::LimitReached,
            ..
        }
    );
    assert!(limited, "{refused:?}");
    as_is(&world.root, snapshot("t/a@2")).unwrap();
}

#[test]
fn streams_are_sent_and_received_with_permissions() {
    let world = World::new(&["t/a", "t/a/below", "t/got", "t/appended"]);
    let snapshots = DatasetChange::Snapshot {
        names: vec!["t/a@1".into(), "t/a/below@1".into()],
        properties: vec![],
    };
    as_is(&world.root, snapshots).unwrap();
    let alice = world.user(ALICE);
    let path = world.stage.folder.path().join("stream");
    let send = |client: &Client, package: SendPackage| {
        let request = SendStream {
            name: "t/a@1".into(),
            package,
            ..SendStream::default()
        };
        let file = OwnedFd::from(File::create(&path).unwrap());
        let plan = client.send_plan(&request);
        let sent = client.transfer(&Request::Send { request }, file, &|| false);
        assert_eq!(plan.is_ok(), sent.is_ok());
        sent
    };
    let tree = || SendPackage {
        is_recursive: true,
        ..SendPackage::default()
    };
    let refused = Failure::Send(SendProblem::Denied);
    assert_eq!(send(&alice, SendPackage::default()), Err(refused.clone()));
    let local = PermissionGrant::new(
        PermissionHolder::User(ALICE.into()),
        PermissionReach::Local,
        &["send", "diff"],
    );
    world.allow("t/a", &[local]);
    // A tree needs the permission in all of it.
    assert_eq!(send(&alice, tree()), Err(refused));
    send(&alice, SendPackage::default()).unwrap();
    let query = DiffQuery {
        from: "t/a@1".into(),
        to: "t/a".into(),
    };
    alice.diff(&query, &mut |_| Ok(())).unwrap();
    let query = DiffQuery {
        from: "t/a/below@1".into(),
        to: "t/a/below".into(),
    };
    assert!(alice.diff(&query, &mut |_| Ok(())).is_err());

    let receive_as = |name: &str, is_forced: bool| -> Result<Received, Failure> {
        let request = Request::Receive {
            request: ReceiveStream {
                name: name.into(),
                mount: true,
                is_forced,
                ..ReceiveStream::default()
            },
            command: "zfs receive".into(),
        };
        let file = OwnedFd::from(File::open(&path).unwrap());
        match alice.transfer(&request, file, &|| false)? {
            Reply::Receive(received) => Ok(received),
            other => panic!("{other:?}"),
        }
    };
    let receive = |name: &str| receive_as(name, false);
    let refused = Err(Failure::Receive(ReceiveProblem::Denied));
    // What exists is not given up with this permission.
    world.allow_all(
        ALICE,
        &["receive:append", "create", "mount", "exec"],
        "t/appended",
    );
    assert_eq!(receive_as("t/appended/a", true), refused);
    assert_eq!(receive("t/appended/a").unwrap().failure, None);
    world.allow_all(ALICE, &["receive", "create"], "t/got");
    assert_eq!(receive("t/got/a"), refused);
    world.allow_all(ALICE, &["mount", "exec"], "t/got");
    assert_eq!(receive("t/elsewhere"), refused);
    let received = receive("t/got/a").unwrap();
    assert_eq!(received.failure, None);
    assert!(
        !mounted(&world.root)
            .iter()
            .any(|line| line.starts_with("t/got/a "))
    );
    for name in ["setuid", "devices"] {
        let shown = property(&world.root, "t/got/a", name).unwrap();
        assert_eq!(shown.value, Some(Value::Number(0)), "{name}");
    }
}

#[test]
fn keys_need_their_permission() {
    let world = World::new(&["t/a"]);
    let alice = world.user(ALICE);
    let load = || {
        alice
            .load_key("t/a", &Secret::new(b"x"), false)
            .unwrap_err()
    };
    assert_eq!(load(), KeyProblem::Denied);
    assert_eq!(alice.unload_key("t/a").unwrap_err(), KeyProblem::Denied);
    world.allow_all(ALICE, &["load-key"], "t/a");
    // It is not encrypted.
    assert!(matches!(load(), KeyProblem::Text(_)));
}
