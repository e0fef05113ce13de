//! Tests what users with read-only access can do to a daemon: little, and nothing that harms root.

use millpond_control::{
    ChangeError, ControlError, DatasetChange, DatasetQuery, MountProblem, NewDevices,
    NewPoolRequest, PoolChange, Service, TopRequest, Value, Wanted,
};
use millpond_control::{Failure, Request};
use millpond_daemon::{CONNECTIONS, Daemon, Listener, PretendMounter, StateDirs};
use millpond_dataset::properties::Kinds;
use millpond_engine::{AllocationClass, FeatureChoice, NewLayout};
use millpond_env::Env;
use millpond_rpc::{
    Access, Caller, Client, DELEGATED_MESSAGE_BYTES_MAX, Messages, decode_reply, serve,
};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// A user who is neither root nor the daemon's own.
const STRANGER: Caller = Caller {
    user: 65_534,
    group: 65_534,
    groups: Vec::new(),
    process: 0,
};
const ROOT: Caller = Caller {
    user: 0,
    group: 0,
    groups: Vec::new(),
    process: 0,
};

/// The stored value of `acltype=posix`.
const POSIX: u64 = 1;

struct Stage {
    folder: tempfile::TempDir,
    mounter: PretendMounter,
}

impl Stage {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            mounter: PretendMounter::default(),
        }
    }

    fn start(&self, name: &str) -> Arc<Daemon> {
        let dirs = StateDirs::in_folder(&self.folder.path().join(name));
        let mounter = Box::new(self.mounter.clone());
        Daemon::start(&Env::real(), &dirs, mounter, Box::new(|_| {})).unwrap()
    }

    fn request(&self, name: &str) -> NewPoolRequest {
        let path = self.folder.path().join("disk");
        let image = std::fs::File::create(&path).unwrap();
        image.set_len(96 << 20).unwrap();
        NewPoolRequest {
            temporary_name: None,
            name: name.into(),
            devices: NewDevices {
                tops: vec![TopRequest {
                    class: AllocationClass::Normal,
                    layout: NewLayout::Single,
                    paths: vec![path.to_string_lossy().into_owned()],
                }],
                ..NewDevices::default()
            },
            features: FeatureChoice::Default,
            properties: vec![],
            root_properties: vec![],
            root_quotas: vec![],
            root_key: None,
            only_check: false,
        }
    }
}

/// The peer of a connection by `caller`.
fn connect(daemon: &Arc<Daemon>, caller: Caller) -> UnixStream {
    let (here, there) = UnixStream::pair().unwrap();
    let daemon = Arc::clone(daemon);
    std::thread::spawn(move || {
        let _ = serve(there, daemon.as_ref(), &caller, Access::of(&caller, 0));
    });
    here
}

fn failure(messages: &mut Messages<UnixStream>) -> Failure {
    let bytes = messages.read().unwrap().expect("a reply");
    decode_reply(&bytes).unwrap().failure.expect("a failure")
}

#[test]
fn permissions_are_checked_before_parameters() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let mut stream = connect(&daemon, STRANGER);
    // The parameters are not a valid `CreatePool`, and are not even decoded.
    let text = r#"{"method":"org.millpond.CreatePool","parameters":[[[7]]]}"#;
    stream.write_all(text.as_bytes()).unwrap();
    stream.write_all(&[0]).unwrap();
    let mut messages = Messages::new(stream);
    assert_eq!(failure(&mut messages), Failure::Change(ChangeError::Denied));
    // The connection stays usable.
    messages.write(&Request::ClearEvents {}).unwrap();
    let denied = Failure::Control(ControlError::Denied);
    assert_eq!(failure(&mut messages), denied);
    let client = Client::new(connect(&daemon, STRANGER));
    let refused = client.unmount("tank/a", false).unwrap_err();
    assert_eq!(refused, ("tank/a".into(), MountProblem::Denied));
}

#[test]
fn a_user_who_is_not_the_owner_sends_no_long_messages() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let stream = connect(&daemon, STRANGER);
    let mut sending = stream.try_clone().unwrap();
    // Ends when the daemon closes the connection; the message has no end.
    let sender = std::thread::spawn(move || {
        let piece = vec![b' '; 64 << 10];
        (0..1 << 14).find(|_| sending.write_all(&piece).is_err())
    });
    let mut messages = Messages::new(stream);
    let Failure::Call(text) = failure(&mut messages) else {
        panic!("another failure")
    };
    assert!(
        text.contains(&DELEGATED_MESSAGE_BYTES_MAX.to_string()),
        "{text}"
    );
    assert!(sender.join().unwrap().is_some(), "a gibibyte was taken");
    // Root may send long messages.
    let query = DatasetQuery {
        root: "x".repeat(4 * DELEGATED_MESSAGE_BYTES_MAX),
        depth: 0,
        kinds: Kinds::ALL,
        wanted: Wanted::All,
        names_damaged: false,
    };
    let client = Client::new(connect(&daemon, ROOT));
    let listed = client.datasets(&query, &mut |_| Ok(()));
    assert_eq!(listed, Err(ControlError::NoSuchPool));
}

#[test]
fn idle_users_leave_permits_for_root_and_other_users() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let listener = Listener::bind(&daemon.dirs().socket()).unwrap();
    let sit = |user: u32| {
        let (here, there) = UnixStream::pair().unwrap();
        let caller = Caller {
            user,
            ..Caller::default()
        };
        listener.answer(there, caller, &daemon);
        Client::new(here)
    };
    let one: Vec<Client> = (0..70).map(|_| sit(65_534)).collect();
    let refused = one[69].pools().unwrap_err().to_string();
    assert!(
        refused.contains("too many connections of user 65534"),
        "{refused}"
    );
    assert_eq!(one[0].pools().unwrap(), Vec::<String>::new());
    assert_eq!(sit(65_533).pools().unwrap(), Vec::<String>::new());
    // As many users as a range of subordinate uids provides.
    let many: Vec<Client> = (100_000..100_200).map(sit).collect();
    assert!(sit(65_533).pools().is_err());
    let root: Vec<Client> = (0..CONNECTIONS.all - CONNECTIONS.strangers)
        .map(|_| sit(0))
        .collect();
    for client in &root {
        assert_eq!(client.pools().unwrap(), Vec::<String>::new());
    }
    drop((one, many, root));
}

#[test]
fn a_stalled_reader_does_not_keep_an_exported_pool_open() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = Client::new(connect(&daemon, ROOT));
    asked.create_pool(&stage.request("tank"), "").unwrap();
    // More than one reply can hold, so the list takes several.
    let mut made: Vec<PoolChange> = (0..60)
        .map(|n| {
            PoolChange::Dataset(DatasetChange::CreateFileSystem {
                name: format!("tank/{n}"),
                properties: vec![],
                mount: false,
                key: None,
            })
        })
        .collect();
    made.extend((0..5).map(|round| {
        PoolChange::Dataset(DatasetChange::Snapshot {
            names: (0..60).map(|n| format!("tank/{n}@{round}")).collect(),
            properties: vec![],
        })
    }));
    asked.change("tank", &made, "").unwrap();
    let stream = connect(&daemon, STRANGER);
    let request = Request::Datasets {
        query: DatasetQuery {
            root: "tank".into(),
            depth: DatasetQuery::WHOLE_TREE,
            kinds: Kinds::ALL,
            wanted: Wanted::All,
            names_damaged: false,
        },
    };
    let mut messages = Messages::new(stream.try_clone().unwrap());
    messages.write(&request).unwrap();
    // The response starts; the rest is more than a socket buffer holds.
    let mut byte = [0];
    std::io::Read::read_exact(&mut &stream, &mut byte).unwrap();
    asked.change("tank", &[PoolChange::Export], "").unwrap();
    let other = stage.start("other");
    let elsewhere = Client::new(connect(&other, ROOT));
    let request = millpond_control::ImportRequest {
        pool: "tank".into(),
        search: millpond_control::SearchPaths {
            paths: vec![stage.folder.path().to_string_lossy().into_owned()],
            cache_file: None,
        },
        ..millpond_control::ImportRequest::default()
    };
    elsewhere.import(&request, "").unwrap();
    // The response is complete nevertheless.
    let mut bytes = byte.to_vec();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    std::io::Read::read_to_end(&mut &stream, &mut bytes).unwrap();
    // A server that sends while it reads the pool would have blocked at the first of these bytes.
    assert!(bytes.len() > 512 << 10, "{} bytes", bytes.len());
    let mut messages = Messages::new(bytes.as_slice());
    let mut entries = 0;
    loop {
        let reply = decode_reply(&messages.read().unwrap().unwrap()).unwrap();
        assert_eq!(reply.failure, None);
        entries += reply.value.as_array().unwrap().len();
        if !reply.more {
            break;
        }
    }
    assert_eq!(entries, 361);
}

#[test]
fn mount_options_seen_by_the_kernel_are_remounted() {
    let stage = Stage::new();
    let daemon = stage.start("state");
    let asked = Client::new(connect(&daemon, ROOT));
    asked.create_pool(&stage.request("t"), "").unwrap();
    let create = |name: &str, mountpoint: &str| {
        let mountpoint = Value::Text(mountpoint.into());
        let change = DatasetChange::CreateFileSystem {
            name: name.into(),
            properties: vec![("mountpoint".into(), mountpoint)],
            mount: true,
            key: None,
        };
        asked
            .change("t", &[PoolChange::Dataset(change)], "")
            .unwrap();
    };
    let set = |name: &str, value: u64| {
        let change = DatasetChange::Set {
            name: name.into(),
            properties: vec![("acltype".into(), Value::Number(value))],
            mount: true,
        };
        asked.change("t", &[PoolChange::Dataset(change)], "")
    };
    let remounted = || -> Vec<String> {
        let all = std::mem::take(&mut *stage.mounter.asked.lock());
        let paths = all.into_iter().map(|(path, _)| path);
        paths
            .map(|path| path.to_string_lossy().into_owned())
            .collect()
    };
    create("t/a", "/a");
    create("t/b", "/b");
    set("t/b", POSIX).unwrap();
    remounted();
    // Those with a local value are not remounted.
    set("t", POSIX).unwrap();
    assert_eq!(remounted(), ["/a", "/t"]);
    // The value did not change.
    set("t", POSIX).unwrap();
    assert_eq!(remounted(), Vec::<String>::new());
    // All or none, if one is in use.
    stage.mounter.busy.lock().push("/a".into());
    let refused = set("t", 0).unwrap_err().error;
    assert!(
        matches!(refused, ChangeError::Mounted { .. }),
        "{refused:?}"
    );
    assert_eq!(asked.mounts().unwrap().len(), 3);
    remounted();
    stage.mounter.busy.lock().clear();
    let inherit = DatasetChange::Inherit {
        name: "t".into(),
        property: "acltype".into(),
        to_received: false,
    };
    asked
        .change("t", &[PoolChange::Dataset(inherit)], "")
        .unwrap();
    assert_eq!(remounted(), ["/a", "/t"]);
}
